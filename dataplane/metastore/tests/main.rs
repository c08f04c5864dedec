//! The metastore of one node, over the log in memory.

mod replica;
