//! Payloads that carry their label, in the three shapes that the contract serves differently.

use veena_loadtest_checker::Label;

use crate::chance::Chance;

/// How a payload is served back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Text that is no JSON: served as a JSON string.
    Text,
    /// JSON: served verbatim.
    Json,
    /// Bytes that are no text: served as base64.
    Binary,
}

impl Shape {
    /// Any of the three.
    pub fn any(chance: &mut Chance) -> Self {
        match chance.below(3) {
            0 => Self::Text,
            1 => Self::Json,
            _ => Self::Binary,
        }
    }
}

const JSON_PREFIX: &[u8] = b"{\"label\":\"";
const LABEL_DIGITS: usize = 16;

/// A payload of about `bytes` bytes (never fewer than the label needs).
#[must_use]
pub fn make(label: Label, shape: Shape, bytes: usize) -> Vec<u8> {
    match shape {
        Shape::Text => {
            let mut payload = label.to_string().into_bytes();
            // The letter keeps a label of digits from being a JSON number.
            payload.resize(bytes.max(LABEL_DIGITS + 1), b'v');
            payload
        }
        Shape::Json => {
            let pad = "v".repeat(bytes.saturating_sub(LABEL_DIGITS + 20));
            format!("{{\"label\":\"{label}\", \"pad\":\"{pad}\"}}").into_bytes()
        }
        Shape::Binary => {
            let mut payload = label.to_string().into_bytes();
            payload.push(0xff);
            let filler = (payload.len()..bytes).map(|at| u8::try_from(at % 256).unwrap_or(0));
            payload.extend(filler);
            payload
        }
    }
}

/// The label a payload carries.
#[must_use]
pub fn label_of(payload: &[u8]) -> Option<Label> {
    let digits = payload.strip_prefix(JSON_PREFIX).unwrap_or(payload).get(..LABEL_DIGITS)?;
    let text = std::str::from_utf8(digits).ok()?;
    let is_label = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    is_label.then(|| u64::from_str_radix(text, 16).ok()).flatten().map(Label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_carries_its_label_and_is_what_it_says() {
        for (shape, bytes) in
            [(Shape::Text, 1), (Shape::Text, 256), (Shape::Json, 1), (Shape::Json, 256), (Shape::Binary, 1), (Shape::Binary, 999)]
        {
            let payload = make(Label(0x1234_5678), shape, bytes);
            assert_eq!(label_of(&payload), Some(Label(0x1234_5678)));
            let is_json = serde_json::from_slice::<serde_json::Value>(&payload).is_ok();
            let is_text = std::str::from_utf8(&payload).is_ok();
            assert_eq!((is_json, is_text), (shape == Shape::Json, shape != Shape::Binary), "{shape:?} {bytes}");
            assert!(payload.len() >= bytes && payload.len() < bytes + 64);
        }
    }

    #[test]
    fn other_bytes_carry_no_label() {
        for payload in [&b""[..], b"short", b"zzzzzzzzzzzzzzzzzzzz", b"{\"label\":\"12\"}"] {
            assert_eq!(label_of(payload), None);
        }
    }
}
