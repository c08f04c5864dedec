//! Replicated state behind a small interface: a pure state machine goes in, replicated writes and linearizable read points come out.
//!
//! The names of the raft library appear in `raft/` alone, so that another version of it stays a local change. Nothing here knows what is
//! replicated. Members talk over [`PeerClient`](veena_contract::PeerClient), and are called through [`Consensus::serve`].

mod config;
mod error;
mod machine;
pub mod raft;
mod runtime;
mod store;

pub use config::{ConsensusConfig, ConsensusStatus, KnownMember, MemberStatus};
pub use error::{BarrierError, MemberError, ProposeError, StartError};
pub use machine::{ApplyError, Door, FrozenState, Gate, Joining, RestoreError, StateMachine};
pub use raft::{Consensus, LogContents, LogStore, MemLog, NoPeers, found_log, read_log};
pub use runtime::Runtime;
pub use store::{SnapshotStore, StoreFuture, StoredSnapshot};
