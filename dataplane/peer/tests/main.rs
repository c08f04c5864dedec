//! Calls between nodes over real QUIC on loopback.
#![allow(clippy::disallowed_methods, reason = "a test ends with its own runtime")]

mod calls;
mod classes;
#[path = "../../tests/fuzz.rs"]
mod fuzz;
mod nodes;
mod raw;
mod stop;
mod support;
#[path = "../fuzz/targets.rs"]
mod targets;
