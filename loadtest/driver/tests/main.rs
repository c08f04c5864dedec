//! The driver and the checker against a broker in memory that is honest, or lies in one chosen way.
#![allow(clippy::disallowed_methods, reason = "real time")]

mod fake;
mod ledger;
mod load;
