//! API keys of service accounts, as the metastore keeps them: what a key says in public, and a hash of the rest.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::grants::Grants;
use crate::ids::TenantId;
use crate::username::Username;

/// How many characters the public part of a key has.
pub const KEY_ID_CHARS: usize = 12;
/// How many bytes are stored of a key.
const HASH_BYTES: usize = 32;

/// The text is not the form that it should have. Holds nothing of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKeyPart {
    /// It is no id of a key.
    #[error("not the id of a key: want {KEY_ID_CHARS} of 0-9 A-Z a-z")]
    Id,
    /// It is nothing that is stored of a key.
    #[error("not the hash of a key")]
    Hash,
}

/// The public part of a key, by which it is found: 12 letters and digits, made up at random, over the whole cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyId([u8; KEY_ID_CHARS]);

impl KeyId {
    /// Reads an id.
    ///
    /// # Errors
    /// [`InvalidKeyPart::Id`].
    pub fn parse(text: &str) -> Result<Self, InvalidKeyPart> {
        let id: [u8; KEY_ID_CHARS] = text.as_bytes().try_into().map_err(|_| InvalidKeyPart::Id)?;
        if id.iter().all(u8::is_ascii_alphanumeric) { Ok(Self(id)) } else { Err(InvalidKeyPart::Id) }
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("invariant: letters and digits")
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for KeyId {
    type Error = InvalidKeyPart;

    fn try_from(text: String) -> Result<Self, InvalidKeyPart> {
        Self::parse(&text)
    }
}

impl From<KeyId> for String {
    fn from(id: KeyId) -> Self {
        id.as_str().to_owned()
    }
}

/// What is stored of a key: a hash that only `auth` computes and compares. It cannot be printed; serialized it is hexadecimal, which only the
/// metastore may do.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyHash([u8; HASH_BYTES]);

impl KeyHash {
    /// Takes what was computed.
    #[must_use]
    pub const fn new(hash: [u8; HASH_BYTES]) -> Self {
        Self(hash)
    }

    /// The bytes. Whoever calls this must not let them out, and compares them in constant time.
    #[must_use]
    pub const fn expose(&self) -> &[u8; HASH_BYTES] {
        &self.0
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash")
    }
}

impl TryFrom<String> for KeyHash {
    type Error = InvalidKeyPart;

    fn try_from(text: String) -> Result<Self, InvalidKeyPart> {
        const HEX: u32 = 16;
        let digit = |byte: u8| char::from(byte).to_digit(HEX).and_then(|digit| u8::try_from(digit).ok());
        let pairs = text.as_bytes().chunks_exact(2);
        if !pairs.remainder().is_empty() {
            return Err(InvalidKeyPart::Hash);
        }
        let bytes: Option<Vec<u8>> = pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect();
        bytes.and_then(|bytes| bytes.try_into().ok()).map(Self).ok_or(InvalidKeyPart::Hash)
    }
}

impl From<KeyHash> for String {
    fn from(hash: KeyHash) -> Self {
        hash.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// One key of a service account. It never changes: another key takes its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRecord {
    /// Its public part.
    pub id: KeyId,
    /// Whose account it is for.
    pub tenant: TenantId,
    /// The account that signs in with it.
    pub username: Username,
    /// What is stored of the whole text.
    pub hash: KeyHash,
    /// What it may do at most, of what its account may; all of that unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Grants>,
    /// When it was created.
    pub created_at_ms: u64,
    /// Who created it, when security is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<Arc<str>>,
    /// From when on it is good for nothing; it lasts unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<u64>,
    /// What it is for, in somebody's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<Arc<str>>,
}

impl KeyRecord {
    /// Is it good for nothing any more?
    #[must_use]
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_at_ms.is_some_and(|expires_at_ms| expires_at_ms <= now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_twelve_letters_and_digits() {
        let id = KeyId::parse("0123456789aZ").expect("an id");
        assert_eq!(
            (id.as_str(), format!("{id:?}"), serde_json::to_string(&id).expect("JSON")),
            ("0123456789aZ", id.to_string(), format!("\"{id}\""))
        );
        assert_eq!(serde_json::from_str::<KeyId>("\"0123456789aZ\"").expect("its own JSON"), id);
        for text in ["", "0123456789a", "0123456789aZZ", "0123456789a_", "0123456789\u{e4}", "012345678 aZ"] {
            assert_eq!(KeyId::parse(text), Err(InvalidKeyPart::Id), "{text}");
        }
    }

    #[test]
    fn a_hash_is_not_printed_and_is_read_back_from_its_json() {
        let hash = KeyHash::new(std::array::from_fn(|n| u8::try_from(n * 7).expect("small")));
        assert_eq!(format!("{hash:?}"), "KeyHash");
        let text = serde_json::to_string(&hash).expect("JSON");
        assert!(text.starts_with("\"00070e15") && text.len() == 2 + 2 * HASH_BYTES, "{text}");
        assert_eq!(serde_json::from_str::<KeyHash>(&text).expect("its own JSON"), hash);
        for text in ["", "00", "0", &"0".repeat(63), &"0".repeat(66), &"x".repeat(64), &"\u{e4}".repeat(32)] {
            assert_eq!(KeyHash::try_from((*text).to_owned()), Err(InvalidKeyPart::Hash), "{text}");
        }
    }
}
