//! Schemas of topics: which documents are taken, whether a new version keeps every old message valid, and whether a payload is valid.
//!
//! A client writes both the document and the payload. Nothing here may be made to run long, recurse deep or panic by either.

mod admit;
mod compat;
mod cost;
mod keywords;
mod payload;
mod validate;

use serde_json::Value;
use veena_contract::ErrorCode;

use crate::problem::Problem;

pub(crate) use admit::admit;
pub(crate) use validate::Schemas;

/// What a new document means for a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The same rules in other words: no new version.
    None,
    /// A new version.
    New,
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

fn stored(document: &str) -> Result<Value, Problem> {
    payload::parse(document.as_bytes(), veena_contract::limits::SCHEMA_DEPTH_MAX)
        .map_err(|error| Problem::invalid(format!("invalid argument: schema: {error}")))
}

/// Texts about schemas quote what clients wrote; they are kept short.
fn cut(mut text: String) -> String {
    const TEXT_BYTES_MAX: usize = 2048;
    if text.len() > TEXT_BYTES_MAX {
        let end = (0..=TEXT_BYTES_MAX - 3).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
    }
    text
}
