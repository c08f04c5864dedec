//! Tests of the engine from outside.
#![allow(clippy::disallowed_methods, reason = "a test ends with its own runtime")]

mod damage;
mod engine;
mod faults;
mod fuzz;
mod model;
mod promised;
mod scrub;
mod support;
