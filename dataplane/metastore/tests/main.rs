//! The metastore of one node, over the log in memory.

#[path = "../../tests/fuzz.rs"]
mod fuzz;
mod replica;
#[path = "../fuzz/targets.rs"]
mod targets;
