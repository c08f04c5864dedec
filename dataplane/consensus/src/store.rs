//! Where snapshots are kept.

use std::future::Future;
use std::io;
use std::pin::Pin;

use crate::FrozenState;

/// The answer of a store, when it comes.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'a>>;

/// A snapshot as it was saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSnapshot {
    /// What describes it; opaque to the store.
    pub meta: Vec<u8>,
    /// The state.
    pub data: Vec<u8>,
}

/// Keeps one snapshot, durably.
pub trait SnapshotStore: Send + Sync + Clone + 'static {
    /// Saves a snapshot and makes it the current one. When this answers, it is durable, and the one before may be gone; until then, the one
    /// before is whole. Answers the bytes of the state.
    fn save_snapshot(&self, meta: Vec<u8>, state: FrozenState) -> StoreFuture<'_, Vec<u8>>;

    /// The current snapshot, if one was ever saved.
    fn load_snapshot(&self) -> StoreFuture<'_, Option<StoredSnapshot>>;

    /// What tells whether every handle to the store is gone and its files are closed. It is no handle itself.
    fn closed(&self) -> Box<dyn Fn() -> bool + Send + Sync>;
}
