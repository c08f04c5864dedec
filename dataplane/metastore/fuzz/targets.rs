// What each fuzz target does with its input; shared with the plain test that replays the checked-in inputs.

use veena_metastore::Backup;
use veena_metastore::state::State;

/// A target: its name, and what it does.
pub type Target = (&'static str, fn(&[u8]));

/// All targets of this crate.
pub const TARGETS: [Target; 3] = [("state_dump", state_dump), ("commands", commands), ("backup", backup)];

/// A dump of the catalog: what is read is written down again and read as the same.
pub fn state_dump(bytes: &[u8]) {
    if let Ok(state) = State::from_dump(bytes) {
        let dump = state.dump();
        let again = State::from_dump(&dump).expect("what was written is read");
        assert_eq!(again.dump(), dump);
    }
}

/// A log of commands, one a line: two nodes that apply it are told the same and have the same catalog, also when one was restored on the way.
pub fn commands(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (mut one, mut other) = (State::default(), State::default());
    for line in text.lines() {
        assert_eq!(one.apply_text(line), other.apply_text(line), "{line}");
        let dump = one.dump();
        assert_eq!(other.dump(), dump, "{line}");
        other = State::from_dump(&dump).expect("what was written is read");
    }
}

/// A backup: what is read is written down again and read as the same.
pub fn backup(bytes: &[u8]) {
    if let Ok(backup) = Backup::decode(bytes) {
        let file = backup.encode().expect("what was read can be written");
        let again = Backup::decode(&file).expect("what was written is read");
        assert_eq!(again.encode().expect("written"), file);
    }
}
