//! The HTTP plane over a real engine on an in-memory disk and a real metastore on an in-memory log, spoken to through real sockets.

mod accounts;
mod audit;
mod batches;
mod blocking;
mod cases;
mod changes;
mod cluster;
mod documented;
mod edge;
#[path = "../../tests/fuzz.rs"]
mod fuzz;
mod messages;
mod metrics;
mod partial;
mod quotas;
mod rights;
mod schemas;
mod secrets;
mod sockets;
mod support;
#[path = "../fuzz/targets.rs"]
mod targets;
mod tenants;
mod tls;
mod tokens;
mod topics;
mod users;
