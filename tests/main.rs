//! Real processes: a node is started, used, hurt and started again.
#![allow(clippy::disallowed_methods, reason = "real time and real files")]

mod cluster;
mod command_line;
mod contract_table;
mod crash;
mod directory;
mod edge_cases;
mod faults;
mod field_cases;
mod keys;
mod lives;
mod local_cluster;
mod log_tools;
mod moves;
mod restart;
mod rolling;
mod stall;
mod stops;
mod support;
mod tenants;
mod tls;
mod users;
