//! Drives real nodes: processes are started and hurt here, load is generated, latencies and CPU are measured, and every answer is
//! written down for the checker.
//!
//! Speaks raw HTTP/1.1 on purpose: it must measure the server and not a client library, and it must be able to say of every request
//! whether a byte of it was sent. It measures real time and real files, so the seams for time and files do not apply here.
#![allow(clippy::disallowed_methods)]

pub mod api;
pub mod bench;
pub mod chance;
pub mod chaos;
pub mod cluster;
pub mod cpu;
pub mod http;
pub mod load;
pub mod logs;
pub mod node;
pub mod payload;
pub mod recorder;
pub mod workload;
pub mod yardstick;
