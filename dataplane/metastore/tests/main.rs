//! The metastore of one node and of several, over the log in memory.

mod cluster;
#[path = "../../tests/fuzz.rs"]
mod fuzz;
mod lives;
mod replica;
#[path = "../fuzz/targets.rs"]
mod targets;
