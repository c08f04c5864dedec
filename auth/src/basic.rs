//! `Authorization: Basic` as it comes from the network (RFC 7617), read without trust.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use veena_contract::{Actor, TenantId, limits};

use crate::password::Password;
use crate::secret::Secret;
use veena_contract::Username;

/// Why a header holds no credentials that could be right. Holds nothing of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBasic {
    /// It speaks of another scheme.
    #[error("the Authorization header is not of the scheme Basic")]
    OtherScheme,
    /// It is too long, not base64, or what it holds is no name and password that a user could have.
    #[error("the Authorization header holds no user name and password")]
    Malformed,
}

/// A name and a password that somebody gave. They cannot be printed.
pub struct Credentials {
    /// Who it is said to be.
    pub username: Username,
    /// Of which tenant, if that was said: `user@tenant`. Nobody has looked whether there is such a one.
    pub tenant: Option<String>,
    /// What is to prove it.
    pub password: Password,
}

impl Credentials {
    /// Reads the value of an `Authorization` header.
    ///
    /// # Errors
    /// [`InvalidBasic`].
    pub fn parse(header: &[u8]) -> Result<Self, InvalidBasic> {
        let (scheme, encoded) = header.split_at_checked(b"basic ".len()).ok_or(InvalidBasic::OtherScheme)?;
        if !scheme.eq_ignore_ascii_case(b"basic ") {
            return Err(InvalidBasic::OtherScheme);
        }
        if header.len() > limits::AUTHORIZATION_BYTES_MAX {
            return Err(InvalidBasic::Malformed);
        }
        let decoded = Secret::new(STANDARD.decode(encoded.trim_ascii()).map_err(|_| InvalidBasic::Malformed)?);
        let text = std::str::from_utf8(decoded.expose()).map_err(|_| InvalidBasic::Malformed)?;
        let (name, password) = text.split_once(':').ok_or(InvalidBasic::Malformed)?;
        let (username, tenant) = match name.split_once('@') {
            None => (name, None),
            Some((username, tenant)) => (username, Some(tenant.to_owned())),
        };
        let username = Username::parse(username).map_err(|_| InvalidBasic::Malformed)?;
        let password = Password::new(password.to_owned()).map_err(|_| InvalidBasic::Malformed)?;
        Ok(Self { username, tenant, password })
    }

    /// Who it is said to be: of the tenant `default`, unless another was said. `None` if no tenant can have the name that was.
    #[must_use]
    pub fn actor(&self) -> Option<Actor> {
        let tenant = self.tenant.as_deref().map_or_else(|| Some(TenantId::default_tenant()), TenantId::parse)?;
        Some(Actor { tenant, username: self.username.clone(), checked: None })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(text: &str) -> Vec<u8> {
        format!("Basic {}", STANDARD.encode(text)).into_bytes()
    }

    fn parsed(header: &[u8]) -> Result<(String, Option<String>, String), InvalidBasic> {
        Credentials::parse(header).map(|it| (it.username.to_string(), it.tenant, it.password.expose().to_owned()))
    }

    #[test]
    fn a_name_and_a_password_are_read() {
        let joe = |password: &str| Ok(("joe".to_owned(), None, password.to_owned()));
        assert_eq!(parsed(b"Basic am9lOmh1bnRlcjI="), joe("hunter2"));
        assert_eq!(parsed(b"bAsIc   am9lOmh1bnRlcjI= "), joe("hunter2"));
        assert_eq!(parsed(&header("joe:a:b@c")), joe("a:b@c"));
        assert_eq!(parsed(&header(&format!("joe:{}", "x".repeat(72)))), joe(&"x".repeat(72)));
    }

    #[test]
    fn a_name_may_say_its_tenant() {
        let of = |text: &str| Credentials::parse(&header(text)).map(|it| it.actor().map(|actor| actor.tenant.to_string()));
        for (text, tenant) in [("joe:x", "default"), ("joe@default:x", "default"), ("joe@acme:x", "acme"), ("joe@a-1:x@y", "a-1")] {
            assert_eq!(of(text), Ok(Some(tenant.to_owned())), "{text}");
        }
        for text in ["joe@:x", "joe@Acme:x", "joe@-a:x", "joe@a@b:x", "joe@../x:x", &format!("joe@{}:x", "t".repeat(64))] {
            assert_eq!(of(text), Ok(None), "{text}");
        }
    }

    #[test]
    fn another_scheme_is_told_apart_from_garbage() {
        for other in [b"".as_slice(), b"Basic", b"Bearer am9lOmh1bnRlcjI=", b"\xff\xff"] {
            assert_eq!(parsed(other), Err(InvalidBasic::OtherScheme), "{other:?}");
        }
        for garbage in [b"Basic ".as_slice(), b"Basic %%%", b"Basic am9lOmh1bnRlcjI", b"Basic am9l OmgK", b"Basic \xff\xfe"] {
            assert_eq!(parsed(garbage), Err(InvalidBasic::Malformed), "{garbage:?}");
        }
        for text in ["joe", ":x", "joe:", "j e:x", "@acme:x", "..:x", &format!("joe:{}", "x".repeat(73)), &"x".repeat(400)] {
            assert_eq!(parsed(&header(text)), Err(InvalidBasic::Malformed), "{text}");
        }
        let not_text = format!("Basic {}", STANDARD.encode(b"joe:\xff"));
        assert_eq!(parsed(not_text.as_bytes()), Err(InvalidBasic::Malformed));
    }

    #[test]
    fn the_longest_credentials_fit() {
        let longest = format!("{}@{}:{}", "u".repeat(64), "t".repeat(64), "p".repeat(72));
        assert!(parsed(&header(&longest)).is_ok());
    }

    proptest! {
        #[test]
        fn no_header_brings_the_reader_down(bytes in proptest::collection::vec(any::<u8>(), 0..600), is_basic in any::<bool>(), encode in any::<bool>()) {
            let body = if encode { STANDARD.encode(&bytes).into_bytes() } else { bytes };
            let header = if is_basic { [b"Basic ".as_slice(), &body].concat() } else { body };
            let _ = Credentials::parse(&header);
        }

        #[test]
        fn whatever_a_user_may_have_is_read_back(name in "[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", password in "[^@]{1,18}") {
            prop_assert_eq!(parsed(&header(&format!("{name}:{password}"))), Ok((name, None, password)));
        }
    }
}
