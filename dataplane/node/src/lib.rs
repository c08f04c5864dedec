//! Assembly of one node: configuration, boot, serve, shutdown.
//!
//! The one crate that knows every part and decides nothing: it opens the parts in order, hands each the seams it needs, and ends them in
//! reverse. It must never look inside a message, and never name the C++ store: the opened log store comes in from outside.

mod admin_password;
mod ballast;
pub mod boot;
pub mod client_tls;
pub mod cluster;
pub mod config;
pub mod data_dir;
mod early;
pub mod listen;
pub mod lives;
mod room;
mod root_admin;
pub mod serve;
pub mod shutdown;
pub mod system;
pub mod telemetry;
mod tenant_end;

pub use admin_password::{KeepPasswordError, KeptPassword};
pub use boot::{BootError, NodeParts};
pub use client_tls::ClientTlsError;
pub use cluster::{ClusterError, EnterError, PeerPlane, PeerPort};
pub use config::{AdminPassword, Config, ConfigError, Flags, LogFormat, LogLevel, warn_of_unknown_variables};
pub use data_dir::{DataDir, DataDirError};
pub use listen::{ListenError, Listening};
pub use serve::{NodeError, Ready, serve};
pub use system::{OsEntropy, SystemClock};
/// The HTTP interface of a node as an OpenAPI document.
pub use veena_api::openapi_json;
/// How far the logs of a node that does not run were published.
pub use veena_broker::offline::PromisedEnds;
