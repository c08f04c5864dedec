//! The readers of what clients send, for the fuzzer and the replay of its inputs. Not part of the crate's interface.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use veena_client::bodies::{AttachChild, CreateTopic, PatchTopic};

use crate::batch_body::Encoding;
use crate::budget::Budget;
use crate::{ack, batch_body, json, schema};

/// Reads the body of a batch produce; how many messages it has, if it is one.
#[must_use]
pub fn batch_messages(body: &Bytes) -> Option<usize> {
    batch_body::messages(body).ok().map(|messages| messages.len())
}

/// Unpacks a body that is said to be packed with zstd, or else with gzip; how many bytes it has.
#[must_use]
pub fn unpacked(body: &Bytes, is_zstd: bool) -> Option<usize> {
    let encoding = if is_zstd { Encoding::Zstd } else { Encoding::Gzip };
    let mut reserved = Budget::new(usize::MAX).empty();
    batch_body::unpack(body.clone(), encoding, &mut reserved, 0).ok().map(|whole| whole.len())
}

/// Reads the bodies that create, change and attach a topic, and writes what was read.
#[must_use]
pub fn topic_bodies(bytes: &[u8]) -> [Option<Vec<u8>>; 3] {
    [again::<CreateTopic>(bytes), again::<PatchTopic>(bytes), again::<AttachChild>(bytes)]
}

fn again<'a, T: Serialize + Deserialize<'a>>(bytes: &'a [u8]) -> Option<Vec<u8>> {
    let found: T = json::decode(bytes).ok()?;
    Some(serde_json::to_vec(&found).expect("invariant: a body that was read can be written"))
}

/// Reads the body of a batch ack; how many handles are kept, and how many there are.
#[must_use]
pub fn ack_handles(bytes: &[u8]) -> Option<(usize, usize)> {
    ack::count_handles(bytes)
}

/// Is the text taken as a schema?
#[must_use]
pub fn is_schema(text: &str) -> bool {
    schema::is_admitted(text)
}

/// May the schema `new` follow `current`?
#[must_use]
pub fn may_follow(current: &str, new: &str) -> bool {
    schema::change(current, new).is_ok()
}

/// Is the payload valid under a schema that was taken?
#[must_use]
pub fn is_valid(schema: &str, payload: &[u8]) -> bool {
    schema::is_valid(schema, payload)
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
