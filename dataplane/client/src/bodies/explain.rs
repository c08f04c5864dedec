//! Why somebody may do something, or may not.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `GET /v1/explain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Explained {
    /// May they?
    pub allowed: bool,
    /// Why, or why not: what a request that was refused would be told.
    pub reason: String,
    /// The grant that allows it, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<CoveringGrant>,
    /// What would allow it, if something is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<MissingGrant>,
    /// The topic, as far as whoever asks may see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Is there such a topic? Left out where whoever asks could not see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exists: Option<bool>,
    /// Is it the user's own?
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<bool>,
}

/// What would allow something: the narrowest grant that does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MissingGrant {
    /// `produce`, `consume`, `create` or `admin`.
    pub action: String,
    /// The pattern that it takes; none for `admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// Not granted to the account, but a scope of the key that it signs in with; scopes of a key never change, so that it takes another key.
    #[serde(default, skip_serializing_if = "super::is_false")]
    pub of_key: bool,
    /// Who can give it, in words.
    pub given_by: String,
}

/// The part of a grant that allows something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CoveringGrant {
    /// `produce`, `consume`, `create` or `admin`.
    pub action: String,
    /// The pattern that covers the topic; none for `admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
}
