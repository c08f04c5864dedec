//! The engine: accepts, dispatches, commits, reserves, settles and fans out.
//!
//! It reaches disk only through `veena-storage`, the catalog and other nodes only through the seams of `veena-contract`. It must never know
//! HTTP, QUIC or Raft, and what is in a node's address.

pub mod consume;
pub mod core;
pub mod engine;
pub mod errors;
pub mod fanout;
pub mod key_uses;
pub mod layout;
pub mod message;
pub mod metrics;
pub mod offline;
pub mod owners;
pub mod partition;
pub mod ports;
pub mod produce;
pub mod quota;
pub mod scrub;
pub mod settle;
pub mod stats;
pub mod streams;
pub mod sweep;
pub mod tasks;
pub mod topics;
mod traces;
pub mod usage;

pub use engine::{Broker, Deliveries, OpenError};
pub use traces::Traces;
