//! Real processes: a node is started, used, hurt and started again.
#![allow(clippy::disallowed_methods, reason = "real time and real files")]

mod crash;
mod directory;
mod restart;
mod support;
