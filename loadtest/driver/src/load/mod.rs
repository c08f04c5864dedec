//! Load: many connections, each doing one thing after the other, when they do it, and what came of it.

mod client;
mod measure;
mod pace;

pub use client::{ConsumeAck, Cycle, CycleBatch, ProduceBatch, ProduceOne, label_into};
pub(crate) use measure::as_f64;
pub use measure::{LoadClient, Measured, Meter, Run, Step, run};
pub use pace::Pace;
