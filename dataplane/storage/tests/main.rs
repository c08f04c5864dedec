//! The storage crate from outside.

mod envelope;
mod fuzz;
mod journal;
mod offline;
mod partition;
mod cell;
mod disk;
mod support;
mod wal;
