//! Users and what they may do.

use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::is_false;

/// A password in a body. It is neither printed nor told in an error.
#[derive(Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(transparent)]
pub struct PasswordText(String);

impl PasswordText {
    /// The text. Whoever calls this must not let it out.
    #[must_use]
    pub fn into_text(self) -> String {
        self.0
    }
}

impl From<String> for PasswordText {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for PasswordText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordText")
    }
}

impl<'de> Deserialize<'de> for PasswordText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl Reader {
            fn no_text<E: Error>(&self, kind: &'static str) -> Result<PasswordText, E> {
                Err(E::invalid_type(Unexpected::Other(kind), self))
            }
        }

        impl Visitor<'_> for Reader {
            type Value = PasswordText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<PasswordText, E> {
                Ok(PasswordText(text.to_owned()))
            }

            fn visit_string<E: Error>(self, text: String) -> Result<PasswordText, E> {
                Ok(PasswordText(text))
            }

            // What serde says of these by itself shows the value.
            fn visit_bool<E: Error>(self, _: bool) -> Result<PasswordText, E> {
                self.no_text("boolean")
            }

            fn visit_i64<E: Error>(self, _: i64) -> Result<PasswordText, E> {
                self.no_text("number")
            }

            fn visit_u64<E: Error>(self, _: u64) -> Result<PasswordText, E> {
                self.no_text("number")
            }

            fn visit_f64<E: Error>(self, _: f64) -> Result<PasswordText, E> {
                self.no_text("number")
            }
        }

        // Asked for a string, a deserializer may show what it found instead.
        deserializer.deserialize_any(Reader)
    }
}

/// One thing that a user may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// `produce`, `consume`, `create` or `admin`.
    pub action: String,
    /// To which topics: a name, or the beginning of names with a `*` behind it. None for `admin`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<String>,
}

/// `POST /v1/users`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateUser {
    /// 1 to 64 of `A-Z a-z 0-9 . _ -`.
    pub username: String,
    /// 1 to 72 bytes.
    #[schema(value_type = String)]
    pub password: PasswordText,
    /// What the user may do; nothing unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grants: Option<Vec<Grant>>,
}

/// `PUT /v1/users/{user}/grants`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetGrants {
    /// All that the user may do from now on.
    pub grants: Vec<Grant>,
}

/// `PUT /v1/users/{user}/password`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetPassword {
    /// 1 to 72 bytes.
    #[schema(value_type = String)]
    pub new_password: PasswordText,
    /// The password until now. Whoever is no admin has to give it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub current_password: Option<PasswordText>,
}

/// A user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct User {
    /// The name.
    pub username: String,
    /// What the user may do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<Grant>,
    /// Is it the root admin?
    #[serde(default, skip_serializing_if = "is_false")]
    pub root: bool,
    /// When the user was created, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub created_at_ms: u64,
    /// When the grants or the password were last set, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub updated_at_ms: u64,
    /// Which change by an operator from outside of the tenant was applied last, if there was one.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub revision: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_a_string_and_no_error_and_no_debug_text_shows_it() {
        let body: SetPassword = serde_json::from_str(r#"{"new_password":"hunt\u0065r2"}"#).expect("a body");
        assert_eq!(body.new_password.clone().into_text(), "hunter2");
        assert!(!format!("{body:?}").contains("hunter2"));
        for password in ["27182818", "-27182818", "27182818.5", "true", "[27182818]", "{\"27182818\":1}", "null"] {
            let error = serde_json::from_str::<SetPassword>(&format!(r#"{{"new_password":{password}}}"#)).expect_err(password);
            let text = error.to_string();
            assert!(text.contains("a string") && !text.contains("2718") && !text.contains("true"), "{text}");
        }
    }

    #[test]
    fn a_user_without_grants_is_short() {
        let user = User { username: "joe".into(), ..User::default() };
        assert_eq!(serde_json::to_string(&user).expect("json"), r#"{"username":"joe"}"#);
    }
}
