//! The decoders of what stands in the store.

#[path = "../../tests/fuzz.rs"]
mod fuzz;
#[path = "../fuzz/targets.rs"]
mod targets;
