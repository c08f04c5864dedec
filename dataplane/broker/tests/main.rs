//! Tests of the engine from outside.

mod engine;
mod model;
mod scrub;
mod support;
