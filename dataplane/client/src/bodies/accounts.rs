//! Service accounts, their keys, and who one is.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Grant, is_false};

/// A key in a body, as it is shown once. It is not printed.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct KeyText(String);

impl KeyText {
    /// The key. Whoever calls this keeps it where nobody else reads it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for KeyText {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyText")
    }
}

/// `POST /v1/accounts`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateAccount {
    /// 1 to 64 of `A-Z a-z 0-9 . _ -`; no user has it.
    pub name: String,
    /// What the account may do; nothing unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grants: Option<Vec<Grant>>,
}

/// A service account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Account {
    /// Its name.
    pub name: String,
    /// What it may do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<Grant>,
    /// When it was created, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub created_at_ms: u64,
    /// When its grants were last set, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub updated_at_ms: u64,
}

/// `POST /v1/accounts/{account}/keys`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    /// What it is for: up to 256 bytes without control characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// How long it is good for; for good unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<i64>,
    /// What the key may do at most, of what its account may; all of that unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<Grant>>,
}

/// A key of a service account, without what is secret of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Key {
    /// Its public part: `veena_sk_<id>_...`.
    pub id: String,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What it may do at most, of what its account may; absent, that is all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<Grant>>,
    /// When it was created, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub created_at_ms: u64,
    /// Who created it, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    /// From when on it is good for nothing, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<u64>,
    /// Has it expired?
    #[serde(default, skip_serializing_if = "is_false")]
    pub expired: bool,
    /// When somebody last signed in with it, to the hour, in Unix milliseconds: the latest of what each node has seen since it started; absent, if
    /// none has seen any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_ms: Option<u64>,
    /// How many nodes did not say soon when it was last used: they may have seen a later use. Absent, if all have.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub nodes_silent: u64,
}

/// A key that was just created: the only answer that shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedKey {
    /// What is known of it from now on.
    #[serde(flatten)]
    pub record: Key,
    /// The key itself. It is shown this once.
    #[schema(value_type = String)]
    pub key: KeyText,
}

/// `GET /v1/whoami`: who the caller is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Whoami {
    /// Whose topics and users the caller sees.
    pub tenant: String,
    /// The caller's name; absent when nobody is asked for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `person` or `service`; absent when nobody is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The key that the caller signs in with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// What the caller may do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<Grant>,
    /// What the key allows of that, if not all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<Grant>>,
    /// Is it the root admin, who may do everything for good?
    #[serde(default, skip_serializing_if = "is_false")]
    pub root: bool,
    /// May the caller manage the cluster?
    pub operator: bool,
    /// When the token ends that the caller signs in with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_expires_at_ms: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_in_the_json_and_in_no_debug_text() {
        let key = CreatedKey { record: Key { id: "abc".into(), ..Key::default() }, key: "veena_sk_canary".to_owned().into() };
        let text = serde_json::to_string(&key).expect("JSON");
        assert_eq!(text, r#"{"id":"abc","key":"veena_sk_canary"}"#);
        assert_eq!(serde_json::from_str::<CreatedKey>(&text).expect("its own JSON"), key);
        assert!(!format!("{key:?}").contains("canary"));
    }
}
