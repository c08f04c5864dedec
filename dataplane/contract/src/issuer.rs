//! Who may sign bearer tokens, as the metastore keeps it: one issuer, and the public keys by which its tokens are known. Nothing here is secret.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::limits;

/// How many characters an Ed25519 key takes in base64url without padding: 32 bytes.
const X_CHARS: usize = 43;
/// The last of them has four bits of the key and two that are zero; only then is there one text of one key.
const X_LAST: &[u8] = b"AEIMQUYcgkosw048";

/// One public key of the issuer: Ed25519, and of no other kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenKey {
    /// What a token calls it.
    pub kid: String,
    /// The key, in base64url without padding, as in a JWK.
    pub x: String,
}

/// The issuer of tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenIssuer {
    /// What its tokens call it (`iss`).
    pub issuer: String,
    /// For whom its tokens have to be (`aud`).
    pub audience: String,
    /// A token is signed with one of these.
    pub keys: Vec<TokenKey>,
}

/// The issuer of tokens, as the metastore keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenIssuerRecord {
    /// The issuer.
    #[serde(flatten)]
    pub issuer: TokenIssuer,
    /// Rises with each change; never falls while there is an issuer.
    pub revision: u64,
}

/// This is no issuer. Holds nothing of what was given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTokenIssuer {
    /// A name is too short, too long, or not of printable characters.
    #[error("invalid {what}: want 1 to {max} bytes, none of them a control character")]
    Text {
        /// Which.
        what: &'static str,
        /// How long it may be.
        max: usize,
    },
    /// Too few keys, or too many.
    #[error("invalid keys: want 1 to {}", limits::TOKEN_KEYS_MAX)]
    Count,
    /// Two keys of one id.
    #[error("invalid keys: two have the same kid")]
    SameId,
    /// No Ed25519 key.
    #[error("invalid x: want the 32 bytes of an Ed25519 public key in base64url without padding")]
    Key,
}

impl TokenIssuer {
    /// The key that a token names.
    #[must_use]
    pub fn key(&self, kid: &str) -> Option<&TokenKey> {
        self.keys.iter().find(|key| key.kid == kid)
    }

    /// Is this an issuer that there can be?
    ///
    /// # Errors
    /// [`InvalidTokenIssuer`] with the first thing that is wrong.
    pub fn check(&self) -> Result<(), InvalidTokenIssuer> {
        let text = |what, text: &str, max: usize| {
            let is_one = (1..=max).contains(&text.len()) && !text.chars().any(char::is_control);
            if is_one { Ok(()) } else { Err(InvalidTokenIssuer::Text { what, max }) }
        };
        text("issuer", &self.issuer, limits::TOKEN_ISSUER_BYTES_MAX)?;
        text("audience", &self.audience, limits::TOKEN_ISSUER_BYTES_MAX)?;
        if !(1..=limits::TOKEN_KEYS_MAX).contains(&self.keys.len()) {
            return Err(InvalidTokenIssuer::Count);
        }
        for TokenKey { kid, x } in &self.keys {
            text("kid", kid, limits::TOKEN_KID_BYTES_MAX)?;
            let is_base64 = x.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
            if x.len() != X_CHARS || !is_base64 || !x.bytes().last().is_some_and(|last| X_LAST.contains(&last)) {
                return Err(InvalidTokenIssuer::Key);
            }
        }
        let ids: BTreeSet<&str> = self.keys.iter().map(|key| key.kid.as_str()).collect();
        if ids.len() == self.keys.len() { Ok(()) } else { Err(InvalidTokenIssuer::SameId) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(kid: &str) -> TokenKey {
        TokenKey { kid: kid.to_owned(), x: "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo".to_owned() }
    }

    fn issuer(keys: Vec<TokenKey>) -> TokenIssuer {
        TokenIssuer { issuer: "https://id.example".to_owned(), audience: "veena".to_owned(), keys }
    }

    #[test]
    fn an_issuer_has_names_and_one_to_eight_keys_of_ids_that_differ() {
        let of = |count: usize| issuer((0..count).map(|n| key(&format!("k{n}"))).collect());
        assert_eq!(of(1).check(), Ok(()));
        assert_eq!(of(limits::TOKEN_KEYS_MAX).check(), Ok(()));
        assert_eq!(of(0).check(), Err(InvalidTokenIssuer::Count));
        assert_eq!(of(limits::TOKEN_KEYS_MAX + 1).check(), Err(InvalidTokenIssuer::Count));
        assert_eq!(issuer(vec![key("a"), key("b"), key("a")]).check(), Err(InvalidTokenIssuer::SameId));
        for kid in ["", "a\nb", &"k".repeat(limits::TOKEN_KID_BYTES_MAX + 1)] {
            assert!(matches!(issuer(vec![key(kid)]).check(), Err(InvalidTokenIssuer::Text { what: "kid", .. })), "{kid:?}");
        }
        for name in ["", "a\u{1}", &"n".repeat(limits::TOKEN_ISSUER_BYTES_MAX + 1)] {
            let named = TokenIssuer { issuer: name.to_owned(), ..of(1) };
            assert!(matches!(named.check(), Err(InvalidTokenIssuer::Text { what: "issuer", .. })), "{name:?}");
            let named = TokenIssuer { audience: name.to_owned(), ..of(1) };
            assert!(matches!(named.check(), Err(InvalidTokenIssuer::Text { what: "audience", .. })), "{name:?}");
        }
        assert_eq!((of(2).key("k1").map(|key| key.kid.as_str()), of(2).key("k2")), (Some("k1"), None));
    }

    #[test]
    fn a_key_has_one_text_and_is_32_bytes() {
        let x = key("a").x;
        for bad in ["", &x[1..], &format!("{x}A"), &format!("{x}="), &x.replace('_', "/"), &format!("{}p", &x[..X_CHARS - 1])] {
            let with = issuer(vec![TokenKey { kid: "a".to_owned(), x: (*bad).to_owned() }]);
            assert_eq!(with.check(), Err(InvalidTokenIssuer::Key), "{bad}");
        }
    }
}
