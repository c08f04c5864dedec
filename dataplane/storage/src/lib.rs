//! Bytes on disk: the ingress WAL, partition logs, the settle journal, small durable files.
//!
//! This crate knows offsets and files. It must never know a topic, a tenant, a socket or the catalog.

pub mod cell;
pub mod disk;
pub mod envelope;
pub mod io;
pub mod journal;
pub mod lanes;
pub mod offline;
pub mod partition;
pub mod turns;
pub mod wal;
