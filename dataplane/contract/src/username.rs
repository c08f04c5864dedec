//! The name of a user of the contract's `/v1/users`.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use crate::limits;
use serde::{Deserialize, Serialize};

/// Why a text is no user name. The text is shown to the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("username must be 1 to {max} of A-Z a-z 0-9 . _ -, and not . or ..", max = limits::USERNAME_BYTES_MAX)]
pub struct InvalidUsername;

/// A user's name: 1 to 64 of `A-Z a-z 0-9 . _ -`, not `.` and not `..` (http-contract 1.5).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Username(Arc<str>);

impl Username {
    /// The name of the root admin, which the first leader seeds.
    pub const ROOT: &'static str = "admin";

    /// The name of the root admin.
    #[must_use]
    pub fn root() -> Self {
        Self(Arc::from(Self::ROOT))
    }

    /// The name that comes before all others.
    #[must_use]
    pub fn least() -> Self {
        Self(Arc::from("-"))
    }

    /// Parses a name given by a client.
    ///
    /// # Errors
    /// [`InvalidUsername`].
    pub fn parse(text: &str) -> Result<Self, InvalidUsername> {
        let is_name = (1..=limits::USERNAME_BYTES_MAX).contains(&text.len())
            && !matches!(text, "." | "..")
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
        if is_name { Ok(Self(Arc::from(text))) } else { Err(InvalidUsername) }
    }

    /// The name as given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Username {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Username {
    type Error = InvalidUsername;

    fn try_from(text: String) -> Result<Self, InvalidUsername> {
        Self::parse(&text)
    }
}

impl From<Username> for String {
    fn from(name: Username) -> Self {
        name.0.as_ref().to_owned()
    }
}

impl fmt::Display for Username {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Username {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_name_is_1_to_64_plain_characters() {
        for good in ["a", "admin", "a.b_c-D9", "...", &"x".repeat(64)] {
            assert_eq!(Username::parse(good).expect("a name").as_str(), good);
        }
        for bad in ["", ".", "..", "a b", "a@b", "a:b", "ä", "a\n", &"x".repeat(65)] {
            assert_eq!(Username::parse(bad), Err(InvalidUsername), "{bad:?}");
        }
    }

    #[test]
    fn no_name_comes_before_the_least() {
        for byte in 0..=u8::MAX {
            let text = char::from(byte).to_string();
            assert!(Username::parse(&text).is_err() || Username::parse(&text).expect("a name") >= Username::least(), "{text:?}");
        }
        assert_eq!(Username::parse("-"), Ok(Username::least()));
    }

    #[test]
    fn a_user_name_is_a_string_in_json() {
        let name: Username = serde_json::from_str("\"joe\"").expect("a name");
        assert_eq!(serde_json::to_string(&name).expect("a string"), "\"joe\"");
        assert!(serde_json::from_str::<Username>("\"j o e\"").is_err());
    }
}
