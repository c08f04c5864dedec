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

/// The part of a grant that allows something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CoveringGrant {
    /// `produce`, `consume`, `create` or `admin`.
    pub action: String,
    /// The pattern that covers the topic; none for `admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
}
