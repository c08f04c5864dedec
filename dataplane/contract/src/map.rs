//! Hash maps with a fixed hasher: iteration order depends on the contents alone, so a simulated run repeats.
//!
//! Keys that a client chooses go into ordered maps instead: a fixed hasher must never face them.

#![allow(clippy::disallowed_types, reason = "the one place where the fixed hasher is chosen")]

/// A hash map for keys that are ours (ids, positions).
pub type Map<K, V> = std::collections::HashMap<K, V, rustc_hash::FxBuildHasher>;
