//! The checked-in inputs of the fuzzer, replayed: none of them makes a decoder panic. A part of the tests of each package with targets.

use super::targets::TARGETS;

#[test]
#[expect(clippy::disallowed_methods, reason = "real files")]
fn fuzz_corpus_replays() {
    let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    for (name, target) in TARGETS {
        let mut inputs = 0;
        for entry in seeds.join(name).read_dir().expect("every target has inputs") {
            target(&std::fs::read(entry.expect("listed").path()).expect("readable"));
            inputs += 1;
        }
        assert!(inputs > 0, "{name} has no input");
        println!("{name}: {inputs} inputs");
    }
}
