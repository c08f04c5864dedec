//! The consensus log, vote and snapshot in RocksDB. The only crate that links C++.
//!
//! One thread writes, in the order it was asked; one sync covers everything that waits. A failed write or sync latches the store: nothing
//! that comes after succeeds, until the process starts again and RocksDB has checked what is on disk. No call blocks an async thread.

mod codec;
mod log;
mod open;
mod snapshot;
mod tail;
mod writer;

#[cfg(test)]
mod tests;

pub use open::{OpenError, RaftStore};
