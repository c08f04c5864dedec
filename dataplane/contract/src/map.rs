//! Hash maps with a fixed hasher: iteration order depends on the contents alone, so a simulated run repeats.
//!
//! Keys that a client chooses go into ordered maps instead: a fixed hasher must never face them.

/// A hash map for keys that are ours (ids, positions).
pub type Map<K, V> = std::collections::HashMap<K, V, rustc_hash::FxBuildHasher>;
/// A hash set for keys that are ours.
pub type Set<K> = std::collections::HashSet<K, rustc_hash::FxBuildHasher>;
