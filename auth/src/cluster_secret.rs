//! The one secret that all nodes of a cluster share, and what is derived from it.
//!
//! Everything is derived with HKDF-SHA256 (RFC 5869) under a label of its own, so that no derived value tells anything of another. The
//! derivation is part of the wire: nodes of two versions must come to the same values.

use std::fmt;

use ring::hkdf;
use veena_contract::limits;

use crate::secret::Secret;

const SALT: &[u8] = b"veena cluster 1";

/// The public name of a cluster secret. It tells which one is meant, and nothing of what it is.
///
/// Whoever listens on the network sees it and can try secrets against it, so a secret must be random: see [`ClusterSecret::parse`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretId(String);

impl SecretId {
    /// As text: 16 hexadecimal digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SecretId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a text is no cluster secret. Holds nothing of the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterSecretError {
    /// It is shorter than can be random enough.
    #[error("a cluster secret has at least {bytes_min} characters, this has {bytes}; make one with `openssl rand -base64 32`")]
    TooShort {
        /// How long it is.
        bytes: usize,
        /// The bound.
        bytes_min: usize,
    },
    /// It is longer than a secret would be: perhaps the wrong file.
    #[error("a cluster secret has at most {bytes_max} characters, this has {bytes}")]
    TooLong {
        /// How long it is.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// More than a secret and the one before it.
    #[error("there are {lines} lines: the first one is the secret, a second one may be the secret before it")]
    TooMany {
        /// How many there are.
        lines: usize,
    },
}

/// A cluster secret.
pub struct ClusterSecret {
    text: Secret<Vec<u8>>,
    id: SecretId,
}

impl ClusterSecret {
    /// Reads a secret; white space around it, such as the newline of a file, does not count. It must be random, at least 32 characters of
    /// it: one that a person made up can be found by trying.
    ///
    /// # Errors
    /// [`ClusterSecretError`].
    pub fn parse(text: &str) -> Result<Self, ClusterSecretError> {
        let text = text.trim().as_bytes();
        let (bytes, bytes_min, bytes_max) = (text.len(), limits::CLUSTER_SECRET_BYTES_MIN, limits::CLUSTER_SECRET_BYTES_MAX);
        if bytes < bytes_min {
            return Err(ClusterSecretError::TooShort { bytes, bytes_min });
        }
        if bytes > bytes_max {
            return Err(ClusterSecretError::TooLong { bytes, bytes_max });
        }
        let text = Secret::new(text.to_vec());
        let id = derive(&text, b"id").expose()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { text, id: SecretId(id) })
    }

    /// Its public name.
    #[must_use]
    pub const fn id(&self) -> &SecretId {
        &self.id
    }

    /// What the label stands for under this secret.
    pub(crate) fn derive(&self, label: &[u8]) -> Secret<[u8; 32]> {
        derive(&self.text, label)
    }
}

fn derive(secret: &Secret<Vec<u8>>, label: &[u8]) -> Secret<[u8; 32]> {
    let key = hkdf::Salt::new(hkdf::HKDF_SHA256, SALT).extract(secret.expose());
    let mut out = [0; 32];
    let label = [label];
    let filled = key.expand(&label, hkdf::HKDF_SHA256).and_then(|derived| derived.fill(&mut out));
    filled.expect("invariant: 32 bytes are within what HKDF-SHA256 gives");
    Secret::new(out)
}

/// The secrets that a node knows. While a secret is changed node by node, both are accepted.
pub struct ClusterSecrets {
    /// What this node uses first.
    pub current: ClusterSecret,
    /// What others may still use.
    pub previous: Option<ClusterSecret>,
}

impl ClusterSecrets {
    /// Reads one secret a line: the current one, and behind it the one before while it is being changed. Empty lines do not count.
    ///
    /// # Errors
    /// [`ClusterSecretError`].
    pub fn parse(text: &str) -> Result<Self, ClusterSecretError> {
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let previous = match lines.as_slice() {
            [] | [_] => None,
            [_, previous] => Some(ClusterSecret::parse(previous)?),
            more => return Err(ClusterSecretError::TooMany { lines: more.len() }),
        };
        Ok(Self { current: ClusterSecret::parse(lines.first().copied().unwrap_or_default())?, previous })
    }

    /// Their public names, the current one first.
    pub fn ids(&self) -> impl Iterator<Item = &SecretId> {
        std::iter::once(&self.current).chain(&self.previous).map(ClusterSecret::id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn what_is_derived_never_changes() {
        let secret = ClusterSecret::parse(TEXT).expect("long enough");
        // worked out with another implementation of RFC 5869
        assert_eq!(secret.id().as_str(), "9eaad0617b89f511");
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        for (label, derived) in [
            ("ca", "da6ce2ad3c19dff78065e267ba103b9496d3825091e359d49b60e4e757110192"),
            ("proof", "c0cfbc44dfc3aca8fe272fbf53c2c449109ab50114e6d734c87ebd2c672d3d4b"),
            ("reset n1", "97a803c6a798283d02c3abe859beaef8c66fba94a2d0a5250b5904a130fe7e5b"),
        ] {
            assert_eq!(hex(secret.derive(label.as_bytes()).expose()), derived, "{label}");
        }
    }

    #[test]
    fn white_space_around_a_secret_does_not_count_and_a_label_makes_a_difference() {
        let secret = ClusterSecret::parse(TEXT).expect("long enough");
        let same = ClusterSecret::parse(&format!("  {TEXT}\n")).expect("long enough");
        assert_eq!(secret.id(), same.id());
        assert_eq!(secret.derive(b"ca").expose(), same.derive(b"ca").expose());
        assert_ne!(secret.derive(b"ca").expose(), secret.derive(b"proof").expose());
        let other = ClusterSecret::parse(&TEXT.replace('0', "x")).expect("long enough");
        assert_ne!(secret.id(), other.id());
        assert_ne!(secret.derive(b"ca").expose(), other.derive(b"ca").expose());
    }

    #[test]
    fn a_second_line_is_the_secret_before() {
        let other = TEXT.replace('0', "x");
        let ids = |text: &str| ClusterSecrets::parse(text).map(|secrets| secrets.ids().cloned().collect::<Vec<_>>());
        let id = |text: &str| ClusterSecret::parse(text).expect("long enough").id().clone();
        assert_eq!(ids(&format!("{TEXT}\n")), Ok(vec![id(TEXT)]));
        assert_eq!(ids(&format!("{other}\n\n{TEXT}\n")), Ok(vec![id(&other), id(TEXT)]));
        assert_eq!(ids(&format!("{TEXT}\n{TEXT}\n{TEXT}")), Err(ClusterSecretError::TooMany { lines: 3 }));
        assert!(ids("").is_err() && ids(&format!("{TEXT}\nshort")).is_err());
    }

    #[test]
    fn a_secret_that_is_too_short_or_too_long_is_refused_and_not_shown() {
        for text in ["hunter2hunter2", &"x".repeat(limits::CLUSTER_SECRET_BYTES_MAX + 1)] {
            let Err(error) = ClusterSecret::parse(text) else { panic!("it was taken") };
            assert!(!format!("{error} {error:?}").contains(text), "{error}");
        }
    }
}
