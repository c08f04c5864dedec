//! Load: many connections, each doing one thing after the other, and what came of it.

mod client;
mod measure;

pub use client::{ConsumeAck, Cycle, CycleBatch, ProduceBatch, ProduceOne, label_into};
pub(crate) use measure::as_f64;
pub use measure::{LoadClient, Measured, Meter, Pace, Run, Step, run};
