//! Names that arrive from outside, parsed once at the edge and carried as types from there on.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::limits;

/// Why a name was refused. The text is shown to the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidName(pub String);

/// A topic's name: 1 to 200 of `A-Z a-z 0-9 . _ -`, not `.` and not `..` (http-contract 1.1).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TopicName(Arc<str>);

impl TopicName {
    /// The name that comes before all others.
    #[must_use]
    pub fn least() -> Self {
        Self(Arc::from("-"))
    }

    /// Parses a name given by a client.
    ///
    /// # Errors
    /// [`InvalidName`] with a text that says which rule was broken.
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        if text.is_empty() {
            return Err(InvalidName("topic name required".into()));
        }
        if text.len() > limits::TOPIC_NAME_BYTES_MAX {
            return Err(InvalidName(format!(
                "topic name is {} bytes; new topic names are limited to {} bytes",
                text.len(),
                limits::TOPIC_NAME_BYTES_MAX
            )));
        }
        if text == "." || text == ".." {
            return Err(InvalidName(format!("topic name {text:?} is not allowed")));
        }
        if let Some(bad) = text.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))) {
            return Err(InvalidName(format!("topic name has {bad:?}; allowed are A-Z a-z 0-9 . _ -")));
        }
        Ok(Self(Arc::from(text)))
    }

    /// The name as given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The form under which two names that differ only in letter case are one.
    #[must_use]
    pub fn folded(&self) -> String {
        self.0.to_ascii_lowercase()
    }
}

impl TryFrom<String> for TopicName {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        Self::parse(&text)
    }
}

impl From<TopicName> for String {
    fn from(name: TopicName) -> Self {
        name.0.as_ref().to_owned()
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A message key: 1 byte to 32 KiB of anything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(Bytes);

impl Key {
    /// Takes the bytes a client gave as key; no bytes means no key.
    ///
    /// # Errors
    /// [`InvalidName`] when the key is longer than [`limits::KEY_BYTES_MAX`].
    pub fn parse(bytes: Bytes) -> Result<Option<Self>, InvalidName> {
        if bytes.is_empty() {
            return Ok(None);
        }
        if bytes.len() > limits::KEY_BYTES_MAX {
            return Err(InvalidName(format!("key is {} bytes; keys are limited to {} bytes", bytes.len(), limits::KEY_BYTES_MAX)));
        }
        Ok(Some(Self(bytes)))
    }

    /// The key's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }
}

/// An idempotency key: 1 to 255 printable ASCII characters, spaces among them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(Arc<str>);

impl IdempotencyKey {
    /// Parses a key given by a client.
    ///
    /// # Errors
    /// [`InvalidName`] when it is empty, too long, or has other characters.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidName> {
        let fits = (1..=limits::IDEMPOTENCY_KEY_BYTES_MAX).contains(&bytes.len());
        let text = str::from_utf8(bytes).ok().filter(|text| fits && text.bytes().all(|b| matches!(b, b' '..=b'~')));
        text.map(|text| Self(Arc::from(text))).ok_or_else(|| {
            InvalidName(format!("invalid idempotency key: want 1 to {} printable ASCII characters", limits::IDEMPOTENCY_KEY_BYTES_MAX))
        })
    }

    /// The key as given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name of a message header: 1 to 64 of `a-z 0-9 -`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HeaderName(Arc<str>);

impl HeaderName {
    /// Parses a header name; upper case is folded, as HTTP does.
    ///
    /// # Errors
    /// [`InvalidName`] when the folded name is not `[a-z0-9-]{1,64}`.
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        let folded = text.to_ascii_lowercase();
        let fits = (1..=limits::HEADER_NAME_BYTES_MAX).contains(&folded.len());
        if !fits || !folded.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-')) {
            return Err(InvalidName(format!("invalid header name {text:?}: want 1 to {} of a-z 0-9 -", limits::HEADER_NAME_BYTES_MAX)));
        }
        Ok(Self(Arc::from(folded)))
    }

    /// The folded name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idempotency_key_is_up_to_255_printable_characters() {
        for text in ["a", " ~", &"x".repeat(255)] {
            assert_eq!(IdempotencyKey::parse(text.as_bytes()).expect("valid").as_str(), text);
        }
        for bytes in [&b""[..], b"a\tb", b"\x7f", "\u{e9}".as_bytes(), b"\xff", "x".repeat(256).as_bytes()] {
            assert!(IdempotencyKey::parse(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_name_that_could_leave_its_directory_is_refused() {
        for text in ["", ".", "..", "a/b", "a\\b", "a\0b", "ä", "a b", "a\n"] {
            assert!(TopicName::parse(text).is_err(), "{text:?}");
        }
        assert!(TopicName::parse(&"x".repeat(200)).is_ok());
        let error = TopicName::parse(&"x".repeat(201)).expect_err("over the limit");
        assert_eq!(error.to_string(), "topic name is 201 bytes; new topic names are limited to 200 bytes");
    }

    #[test]
    fn an_empty_key_is_no_key() {
        assert_eq!(Key::parse(Bytes::new()).expect("empty is no key"), None);
        assert!(Key::parse(Bytes::from(vec![0; limits::KEY_BYTES_MAX + 1])).is_err());
    }
}
