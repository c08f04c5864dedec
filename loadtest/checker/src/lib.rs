//! The contract checker: a history of what clients asked and were answered goes in, violations of the contract come out.
//!
//! Pure: no I/O, no clock, no randomness; the same history always gives the same verdict. It judges only what is certain: a rule
//! is broken when no order of events that fits the recorded intervals could have kept it. The simulator, the crash tests and the
//! load driver share it. It must never be taught to excuse something the documented contract does not excuse.

mod digest;
mod event;
mod index;
mod jsonl;
mod rules;
mod verdict;

pub use digest::Digest;
pub use event::{Consumed, Delivered, Down, Event, How, Label, Names, NodeChange, Observed, Op, Outcome, Sent, Settled, TopicKey};
pub use jsonl::{MalformedHistory, from_jsonl, to_jsonl};
pub use rules::{Rules, check};
pub use verdict::{Counts, Rule, Verdict, Violation};
