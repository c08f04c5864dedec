//! Produce: accept a message, dispatch it from the WAL to its partition's owner, commit it there.

pub mod accept;
pub mod backlog;
pub mod commit;
pub mod committed;
pub mod digest;
pub mod discard;
pub mod dispatch;
pub mod intake;
pub mod keyed;
pub mod mend;
pub mod moved;
pub mod park;
pub mod parked;
pub mod partitioner;
pub mod queue;
pub mod request;
pub mod reroute;
pub mod waiting;
