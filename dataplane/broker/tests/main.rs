//! Tests of the engine from outside.

mod damage;
mod engine;
mod fuzz;
mod model;
mod promised;
mod scrub;
mod support;
