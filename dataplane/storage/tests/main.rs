//! The storage crate from outside.

mod cell;
mod disk;
mod envelope;
#[path = "../../tests/fuzz.rs"]
mod fuzz;
mod journal;
mod offline;
mod partition;
mod support;
#[path = "../fuzz/targets.rs"]
mod targets;
mod wal;
