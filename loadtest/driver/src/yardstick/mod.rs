//! What the machine can do at all: servers that answer 202 and nothing else, without and with a durable log. Veena is measured
//! against them. Written apart from `storage` on purpose: a yardstick that shares code with what it measures shows nothing.

mod log;
mod serve;

pub use log::GroupLog;
pub use serve::{serve_bare, serve_logged};
