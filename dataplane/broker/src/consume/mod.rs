//! Consume: reserve a message under a lease, settle it, move the frontier.

pub mod ack;
pub mod deliver;
pub mod frontier;
pub mod lease;
pub mod park;
pub mod promised;
pub mod reserve;
pub mod waiters;
