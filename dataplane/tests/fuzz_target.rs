//! One fuzz target: the binary is named after it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let target = targets::TARGETS.iter().find(|(name, _)| *name == env!("CARGO_BIN_NAME"));
    let (_, run) = target.expect("every binary is named after a target");
    run(bytes);
});
