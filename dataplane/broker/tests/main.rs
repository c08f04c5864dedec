//! Tests of the engine from outside.
#![allow(clippy::disallowed_methods, reason = "a test ends with its own runtime")]

mod apart;
mod attachments;
mod budgets;
mod copying;
mod damage;
mod draining;
mod engine;
mod faults;
mod former;
#[path = "../../tests/fuzz.rs"]
mod fuzz;
mod gaps;
mod growth;
mod housekeeping;
mod in_hand;
mod keys;
mod lost_wal;
mod model;
mod moves;
mod moves_ended;
mod net;
mod owners;
mod park;
mod promised;
mod queue_anywhere;
mod quotas;
mod reroute;
mod scrub;
mod settling;
mod small_files;
mod standstill;
mod support;
#[path = "../fuzz/targets.rs"]
mod targets;
mod turns;
mod woken;
