//! The HTTP plane over a real engine on an in-memory disk and a real metastore on an in-memory log, spoken to through real sockets.

mod batches;
mod cases;
mod documented;
mod edge;
mod fuzz;
mod messages;
mod metrics;
mod schemas;
mod sockets;
mod support;
mod topics;
