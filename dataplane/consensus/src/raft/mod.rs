//! The raft library, and everything that names it.

mod adapter;
mod memlog;
mod network;
mod node;
mod runtime;
mod store;
mod types;

#[cfg(test)]
mod tests;

pub use adapter::MachineAdapter;
pub use memlog::MemLog;
pub use node::Consensus;
pub use runtime::RaftRuntime;
pub(crate) use runtime::seed_elections;
pub use store::LogStore;
pub use types::{Answer, CommandText, Member, MemberId, RaftTypes, member_id};
