//! The metastore of one node, over the log in memory.

mod fuzz;
mod replica;
