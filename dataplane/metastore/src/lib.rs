//! The catalog: topics, links and schemas, replicated by consensus.
//!
//! `state` is the pure part: commands in, refusals and a new state out. `replica` is what this node has applied, as an immutable view that
//! hot paths read without a lock. `propose` is the way in, `witness` the way to a confirmed read. Nothing here touches a file: the log store
//! is handed in. `hold` refuses changes for as long as the node says so.

mod backup;
mod directory;
mod hold;
mod metastore;
mod propose;
mod replica;
pub mod state;
mod witness;

pub use backup::{Backup, BackupError, Survivor};
pub use hold::Hold;
pub use metastore::{Metastore, MetastoreConfig, MetastoreStatus};
pub use state::{FormerLife, FormerMember};
pub use veena_consensus::{MemLog, MemberError, MemberStatus, Runtime, StartError};
