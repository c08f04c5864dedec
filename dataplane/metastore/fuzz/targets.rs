// What each fuzz target does with its input; shared with the plain test that replays the checked-in inputs.

use veena_metastore::state::State;

/// A target: its name, and what it does.
pub type Target = (&'static str, fn(&[u8]));

/// All targets of this crate.
pub const TARGETS: [Target; 1] = [("state_dump", state_dump)];

/// A dump of the catalog: what is read is written down again and read as the same.
pub fn state_dump(bytes: &[u8]) {
    if let Ok(state) = State::from_dump(bytes) {
        let dump = state.dump();
        let again = State::from_dump(&dump).expect("what was written is read");
        assert_eq!(again.dump(), dump);
    }
}
