//! What a log store must be.

use openraft::storage::RaftLogStorage;

use super::types::RaftTypes;
use crate::SnapshotStore;

/// A log, a vote and a snapshot that outlive the process. Implemented by whatever implements both halves.
///
/// A failed write or sync MUST latch the store: nothing that comes after may succeed, and every answer from then on is an error.
pub trait LogStore: RaftLogStorage<RaftTypes> + SnapshotStore {}

impl<T: RaftLogStorage<RaftTypes> + SnapshotStore> LogStore for T {}
