//! Replicated state behind a small interface: a pure state machine goes in, replicated writes and linearizable read points come out.
//!
//! The names of the raft library appear in `raft/` alone, so that another version of it stays a local change. Nothing here knows what is
//! replicated. Peers do not exist yet: the network seam answers that nobody can be reached.

mod config;
mod error;
mod machine;
pub mod raft;
mod runtime;
mod store;

pub use config::{ConsensusConfig, ConsensusStatus};
pub use error::{BarrierError, ProposeError, StartError};
pub use machine::{ApplyError, FrozenState, RestoreError, StateMachine};
pub use raft::{Consensus, LogStore, MemLog};
pub use runtime::Runtime;
pub use store::{SnapshotStore, StoreFuture, StoredSnapshot};
