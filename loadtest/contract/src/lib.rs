//! The HTTP contract as a table: one row per status, text and field, sent as raw HTTP/1.1 bytes and compared with the raw answer.
//!
//! Rows know nothing of the server but its address. Each uses topics of its own, so that rows run in any order, and at once, against one
//! server. A row never sleeps: what takes time is waited for with the contract's own long poll, or asked for again until a bound is reached.

pub mod coverage;
mod expect;
mod json;
mod row;
mod run;
pub mod table;
mod vars;
mod wire;

pub use expect::{Body, Expect, Is};
pub use row::{Profile, Row, Step};
pub use run::{Failure, Filter, Report, run};
pub use wire::{Request, Response, WireError};
