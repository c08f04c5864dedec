// What each fuzz target does with its input; shared with the plain test that replays the checked-in inputs.

use bytes::Bytes;
use veena_api::decoders;

/// A target: its name, and what it does.
pub type Target = (&'static str, fn(&[u8]));

/// All targets of this crate.
pub const TARGETS: [Target; 3] = [("batch_body", batch_body), ("query", query), ("duration", duration)];

/// The body of a batch produce, packed or not.
pub fn batch_body(bytes: &[u8]) {
    let body = Bytes::copy_from_slice(bytes);
    if let Some(count) = decoders::batch_messages(&body) {
        assert!(count > 0 && count <= veena_contract::limits::PRODUCE_BATCH_MESSAGES_MAX);
    }
}

/// A query string, and a path segment.
pub fn query(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        decoders::query(text);
    }
}

/// A duration: what is read is written back with the same meaning.
pub fn duration(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Some(found) = decoders::duration(text)
    {
        assert_eq!(decoders::duration(&decoders::duration_text(found)), Some(found));
    }
}
