//! Tests of the engine from outside.

mod engine;
mod model;
mod support;
