//! The readers of what clients send, for the fuzzer and the replay of its inputs. Not part of the crate's interface.

use std::time::Duration;

use bytes::Bytes;

/// Reads the body of a batch produce; how many messages it has, if it is one.
#[must_use]
pub fn batch_messages(body: &Bytes) -> Option<usize> {
    crate::batch_body::messages(body).ok().map(|messages| messages.len())
}

/// Reads a query string and a path segment in every way there is.
pub fn query(text: &str) {
    for (_, value) in crate::query::pairs(Some(text)) {
        let _ = crate::query::text(value);
    }
    let _ = crate::query::first(Some(text), "key");
    let _ = crate::query::unescape_segment(text);
}

/// Reads a duration as Go writes them.
#[must_use]
pub fn duration(text: &str) -> Option<Duration> {
    veena_client::parse_duration(text).ok()
}

/// Writes a duration as Go does.
#[must_use]
pub fn duration_text(duration: Duration) -> String {
    veena_client::format_duration(duration)
}
