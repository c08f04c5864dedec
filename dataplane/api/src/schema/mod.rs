//! Schemas of topics: which documents are taken, whether a new version keeps every old message valid, and whether a payload is valid.
//!
//! A client writes both the document and the payload. Nothing here may be made to run long, recurse deep or panic by either.

mod admit;
mod compat;
mod cost;
mod keywords;
mod payload;
mod validate;

use std::sync::Arc;

use serde_json::Value;
use veena_contract::{ErrorCode, limits};

use crate::problem::Problem;

pub(crate) use validate::Schemas;

/// What a new document means for a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The same rules in other words: no new version.
    None,
    /// A new version.
    New,
}

/// As [`admit::admit`], which the work of a large document keeps from nobody: it is done on a thread that may block.
pub(crate) async fn admit(document: &str) -> Result<Arc<str>, Problem> {
    if document.len() <= validate::INLINE_BYTES_MAX {
        return admit::admit(document);
    }
    let document = document.to_owned();
    let crashed = |_| Problem::new(http::StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Internal, "internal server panic");
    tokio::task::spawn_blocking(move || admit::admit(&document)).await.map_err(crashed)?
}

/// Compares a document with the one it would follow. Both were admitted.
pub(crate) fn change(current: &str, new: &str) -> Result<Change, Problem> {
    let (current, new) = (stored(current)?, stored(new)?);
    let (current, new) = (keywords::strip(&current), keywords::strip(&new));
    if current == new {
        return Ok(Change::None);
    }
    compat::check(&current, &new).map(|()| Change::New).map_err(|reason| {
        let text = cut(format!("invalid argument: schema incompatible with previous version: {reason}"));
        Problem::new(http::StatusCode::BAD_REQUEST, ErrorCode::SchemaIncompatible, text)
    })
}

/// For the fuzzer: is a document admitted?
pub(crate) fn is_admitted(document: &str) -> bool {
    admit::admit(document).is_ok()
}

/// For the fuzzer: is a payload valid under a document that was admitted?
pub(crate) fn is_valid(document: &str, payload: &[u8]) -> bool {
    let validator = stored(document).ok().and_then(|document| validate::compile(&document).ok());
    validator.is_some_and(|validator| validate::validate(&validator, payload).is_ok())
}

fn stored(document: &str) -> Result<Value, Problem> {
    payload::parse(document.as_bytes(), limits::SCHEMA_DEPTH_MAX)
        .map_err(|error| Problem::invalid(format!("invalid argument: schema: {error}")))
}

/// Texts about schemas quote what clients wrote; they are kept short.
fn cut(mut text: String) -> String {
    if text.len() > limits::SCHEMA_TEXT_BYTES_MAX {
        let end = (0..=limits::SCHEMA_TEXT_BYTES_MAX - 3).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
    }
    text
}
