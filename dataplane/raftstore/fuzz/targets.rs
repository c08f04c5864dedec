// What each fuzz target does with its input; shared with the plain test that replays the checked-in inputs.

use serde::{Deserialize, Serialize};

// The module alone: the package it belongs to links C++.
#[path = "../src/codec.rs"]
#[allow(dead_code)]
mod codec;

/// A target: its name, and what it does.
pub type Target = (&'static str, fn(&[u8]));

/// All targets of this crate.
pub const TARGETS: [Target; 1] = [("stored_values", stored_values)];

/// What stands behind a key, of whichever kind: what is read is written back with the same meaning.
pub fn stored_values(bytes: &[u8]) {
    same_again::<codec::StoredEntry>(bytes);
    same_again::<codec::StoredVote>(bytes);
    same_again::<Option<codec::StoredLogId>>(bytes);
    same_again::<codec::Current>(bytes);
    if let Ok(index) = codec::entry_index(bytes) {
        assert_eq!(codec::entry_key(index), bytes);
    }
}

fn same_again<T: Serialize + for<'a> Deserialize<'a>>(bytes: &[u8]) {
    if let Ok(found) = codec::decode::<T>("a value", bytes) {
        let written = codec::encode(&found).expect("what was read can be written");
        let again = codec::decode::<T>("a value", &written).expect("what was written is read");
        assert_eq!(codec::encode(&again).expect("once more"), written);
    }
}
