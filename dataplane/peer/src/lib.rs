//! Calls between nodes over QUIC.
//!
//! Two nodes have one connection per class of calls and direction, so that a large copy never holds up a heartbeat. Each call is one stream:
//! no numbers, no table of who waits for which answer. Both sides prove that they know the cluster's secret before anything else is said.
//!
//! - [`endpoint`]: the socket, and what both sides agree on.
//! - [`hello`]: the first exchange on a connection: who is there, and the proof.
//! - [`wire`]: the bytes of a call and of its answer.
//! - `pool`: connections to others, made when they are needed.
//! - [`client`] and [`server`]: the two ends of a call.
//!
//! This crate must never repeat a call that may have been begun, and never say that nothing happened once a byte of a call was sent.

pub mod client;
pub mod endpoint;
pub mod hello;
mod pool;
pub mod server;
pub mod wire;

pub use client::QuicPeers;
pub use endpoint::{Endpoint, EndpointError};
pub use hello::{Admission, Hello};
pub use server::Server;
