//! HTTP/1.1 as bytes: requests are rendered once and sent again and again, answers are read into one buffer.

mod connection;
mod request;

pub use connection::{Answer, Connection, Exchange};
pub use request::{RequestBytes, escape};
