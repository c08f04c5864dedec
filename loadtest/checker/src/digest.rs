//! What a payload is recognised by.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A payload's length and its 128-bit FNV-1a hash: two payloads with one digest are taken to be byte-identical.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest {
    /// Length in bytes.
    pub bytes: u64,
    /// FNV-1a, 128 bits.
    pub hash: u128,
}

impl Digest {
    /// The digest of `payload`.
    #[must_use]
    pub fn of(payload: &[u8]) -> Self {
        const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        let hash = payload.iter().fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME));
        let bytes = u64::try_from(payload.len()).expect("invariant: a length fits 64 bits");
        Self { bytes, hash }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:032x}", self.bytes, self.hash)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let parsed = text.split_once(':').and_then(|(bytes, hash)| {
            let hash = if hash.len() == 32 { u128::from_str_radix(hash, 16).ok()? } else { return None };
            Some(Self { bytes: bytes.parse().ok()?, hash })
        });
        parsed.ok_or_else(|| serde::de::Error::custom("not a digest: want <bytes>:<32 hexadecimal digits>"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_nothing_is_the_published_basis() {
        assert_eq!(Digest::of(b"").hash, 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
    }

    #[test]
    fn one_flipped_bit_changes_the_digest() {
        let mut payload = vec![7_u8; 300];
        let before = Digest::of(&payload);
        payload[299] ^= 1;
        assert_ne!(Digest::of(&payload), before);
    }

    #[test]
    fn a_digest_survives_its_text_form() {
        let digest = Digest::of(b"some bytes");
        let text = serde_json::to_string(&digest).expect("a digest is a string");
        assert_eq!(serde_json::from_str::<Digest>(&text).expect("own text form"), digest);
        assert!(serde_json::from_str::<Digest>("\"1:zz\"").is_err());
    }
}
