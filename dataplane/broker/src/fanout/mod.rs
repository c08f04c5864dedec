//! Fan-out: each (parent partition, child) has a cursor that copies the parent's records into the child's partitions, in order, by the
//! stream rule. A cursor runs only while there is something to copy.

pub mod cursor;
pub mod delay;
pub mod local;
pub mod marks;
pub mod position;
pub mod reconcile;
pub mod slab;
