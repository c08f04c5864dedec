//! The client-facing HTTP plane: HTTP/1.1 in, engine calls out.
//!
//! One resource a file, thin handlers: parse, ask the engine or the catalog, encode. This crate never touches a disk, never decides where a
//! message goes and never destroys anything; it holds no state of its own beyond counters, caches of compiled schemas and the connections.

mod accounts;
mod ack;
mod answer;
mod audit;
mod backup;
mod batch_body;
mod body;
mod budget;
mod catalog;
mod children;
mod cluster;
mod config;
mod conn;
mod consume;
mod contact;
#[doc(hidden)]
pub mod decoders;
mod denials;
mod edge;
mod explain;
mod handshake;
mod headers;
mod health;
mod io;
mod issuer;
mod json;
mod message_json;
mod metrics;
mod node_status;
mod openapi;
mod problem;
mod produce;
mod produce_batch;
mod query;
mod quota;
mod rights;
mod route;
mod schema;
mod serve;
mod shape;
mod sign_in;
mod state;
mod tenants;
mod topic_patch;
mod topics;
mod traces;
mod usage;
mod users;

pub use config::{ApiConfig, TopicDefaults};
pub use edge::router;
pub use metrics::{Metrics, render};
pub use node_status::node_status;
pub use openapi::openapi_json;
pub use serve::serve;
pub use state::{ApiParts, ApiState};
pub use traces::left;
