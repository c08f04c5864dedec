//! The storage crate from outside.

mod cell;
mod disk;
mod envelope;
mod fuzz;
mod journal;
mod offline;
mod partition;
mod support;
mod wal;
