//! The raft library, and everything that names it.

mod adapter;
mod leader;
mod members;
mod memlog;
mod network;
mod node;
mod offline;
mod receive;
mod runtime;
mod serve;
mod shared;
mod store;
mod types;
mod wire;

#[cfg(test)]
mod tests;

pub use adapter::MachineAdapter;
pub use memlog::MemLog;
pub use network::NoPeers;
pub use node::Consensus;
pub use offline::{LogContents, found_log, read_log};
pub use runtime::RaftRuntime;
pub(crate) use runtime::seed_elections;
pub use store::LogStore;
pub use types::{Answer, CommandText, Member, MemberId, RaftTypes, member_id};
