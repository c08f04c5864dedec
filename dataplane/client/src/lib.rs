//! Public HTTP bodies and the one typed client.
//!
//! The command line, the load generator, the control plane and the tests speak to a node through [`Client`] and the types of [`bodies`];
//! the server answers with the same types. This crate must never know how a node works inside, and never repeats a request that may have
//! been applied unless applying it twice is harmless.

pub mod bodies;
pub mod client;
pub mod duration;
pub mod error;
mod retry;
mod routes;

pub use client::{Client, ClientBuilder, ProduceOptions, SettleMode};
pub use duration::{InvalidDuration, format_duration, parse_duration};
pub use error::ClientError;

/// Names of headers that are not standard HTTP.
pub mod headers {
    /// Sent by clients; satisfies the cross-site guard and is required for batch consume.
    pub const CLIENT: &str = "x-veena-client";
    /// The same under Narad's name.
    pub const CLIENT_NARAD: &str = "x-narad-client";
    /// The wait that was used, when the one asked for was longer than the server allows.
    pub const WAIT_CLAMPED: &str = "x-narad-wait-clamped";
    /// The error code, where the body is plain text.
    pub const ERROR_CODE: &str = "veena-error-code";
    /// The effect, where the body is plain text.
    pub const EFFECT: &str = "veena-effect";
    /// Names a request whose change or refusal can be looked for, in the audit trail or in the log.
    pub const REQUEST_ID: &str = "veena-request-id";
    /// Whatever is produced again under the same key is stored once.
    pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
    /// The prefix of message headers on a single produce.
    pub const MESSAGE_PREFIX: &str = "veena-header-";
}
