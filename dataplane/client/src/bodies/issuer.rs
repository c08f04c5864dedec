//! Whose bearer tokens are taken.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `PUT /v1/admin/token-issuer`: whose tokens are taken, and by which public keys they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutTokenIssuer {
    /// What the issuer calls itself in its tokens (`iss`): 1 to 256 bytes.
    pub issuer: String,
    /// For whom a token has to be (`aud`): 1 to 256 bytes.
    pub audience: String,
    /// The public keys, 1 to 8, as in a JWKS. One that is absent is not good any more.
    pub keys: Vec<PutTokenKey>,
    /// Which revision this is. One that is not newer than what was applied is refused, unless it is the same; without it, it is the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
}

/// A public key as in a JWKS. A private part is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutTokenKey {
    /// `OKP`.
    pub kty: String,
    /// `Ed25519`.
    pub crv: String,
    /// What tokens call the key: 1 to 64 bytes.
    pub kid: String,
    /// The key, in base64url without padding.
    pub x: String,
    /// `sig`, if it is there.
    #[serde(default, rename = "use", skip_serializing_if = "Option::is_none")]
    pub usage: Option<String>,
    /// `EdDSA`, if it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alg: Option<String>,
}

/// Whose tokens are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenIssuer {
    /// What the issuer calls itself in its tokens (`iss`).
    pub issuer: String,
    /// For whom a token has to be (`aud`).
    pub audience: String,
    /// Its public keys.
    pub keys: Vec<TokenKey>,
    /// Rises with each change.
    pub revision: u64,
}

/// A public key, as in a JWKS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenKey {
    /// `OKP`.
    pub kty: String,
    /// `Ed25519`.
    pub crv: String,
    /// What tokens call the key.
    pub kid: String,
    /// The key, in base64url without padding.
    pub x: String,
}
