//! Bearer tokens: JSON Web Tokens (RFC 7519) of the one issuer that the metadata names, signed with Ed25519, verified on the node without asking
//! anybody.
//!
//! `jsonwebtoken` takes a token apart; the only signature that it can check is `ring`'s Ed25519, for it is given nothing else. What the claims
//! mean is decided here, by the clock that the node has: a token is refused from the second on that it names as its end, whatever the library's
//! leeway is, and what is said twice is refused, for another reader may look at the other one.
//!
//! A token is a secret: nothing here prints one, and an error says nothing of what was wrong with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, OnceLock};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Validation};
use parking_lot::RwLock;
use ring::hmac;
use ring::signature::{ED25519, UnparsedPublicKey};
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use veena_contract::{Actor, TenantId, TokenIssuer, TokenIssuerRecord, Username, limits};

use crate::password::NoRandomness;
use crate::verified::random_mac_key;

/// What a key of this cluster begins with, and no token does: that is base64 of `{`.
const OF_KEYS: &[u8] = b"veena_";
const SECOND_MS: u64 = 1_000;

/// The token is not one that signs anybody in. Says nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("authentication required")]
pub struct InvalidToken;

/// A text that somebody sent as a token. It cannot be printed.
#[derive(Clone, Copy)]
pub struct Token<'a>(&'a [u8]);

impl<'a> Token<'a> {
    /// Reads the value of an `Authorization` header of the scheme Bearer; nothing, if it is of another, or a key.
    #[must_use]
    pub fn of_bearer(header: &'a [u8]) -> Option<Self> {
        const SCHEME: &[u8] = b"bearer ";
        let (scheme, token) = header.split_at_checked(SCHEME.len())?;
        let token = token.trim_ascii();
        (scheme.eq_ignore_ascii_case(SCHEME) && !token.starts_with(OF_KEYS)).then_some(Self(token))
    }
}

/// What a token says, once it was verified.
#[derive(Clone, Debug)]
pub struct SignedToken {
    actor: Actor,
    kid: String,
    not_before_ms: u64,
    expires_at_ms: u64,
    /// As the issuer was known when it was verified.
    issuer: Arc<TokenIssuerRecord>,
}

impl SignedToken {
    /// Who its holder is, as far as the issuer is concerned. Nobody has looked whether there is such a one.
    #[must_use]
    pub const fn actor(&self) -> &Actor {
        &self.actor
    }

    /// From when on it is good for nothing.
    #[must_use]
    pub const fn expires_at_ms(&self) -> u64 {
        self.expires_at_ms
    }

    /// Is it over?
    #[must_use]
    pub const fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_at_ms <= now_ms
    }

    /// Would it be verified now? The issuer, whom it is for and the key that it was signed with have to be the same as then: others may change.
    #[must_use]
    pub fn stands(&self, issuer: Option<&Arc<TokenIssuerRecord>>, now_ms: u64) -> bool {
        let is_same = |now: &Arc<TokenIssuerRecord>| {
            let (now, then) = (&now.issuer, &self.issuer.issuer);
            now.issuer == then.issuer && now.audience == then.audience && now.key(&self.kid) == then.key(&self.kid)
        };
        let is_in_time = now_ms.saturating_add(limits::TOKEN_SKEW_MS) >= self.not_before_ms && !self.is_expired(now_ms);
        is_in_time && issuer.is_some_and(|now| Arc::ptr_eq(now, &self.issuer) || is_same(now))
    }
}

/// Verifies tokens, and remembers those that were right: a signature costs some fifty times what a MAC does.
pub(crate) struct Tokens {
    key: hmac::Key,
    known: RwLock<BTreeMap<[u8; 32], Arc<SignedToken>>>,
}

impl Tokens {
    pub(crate) fn new() -> Result<Self, NoRandomness> {
        Ok(Self { key: random_mac_key()?, known: RwLock::default() })
    }

    /// What the token says, if the issuer has signed it and it is good now.
    ///
    /// It runs where it is called: a signature takes tens of microseconds, less than a password is waited for, and less than it takes to hand
    /// the work over and to wake up again under load. Whoever floods a node with bad tokens makes it do so much for each request, as with any
    /// other request that has to be read before it is refused; connections are what bounds that.
    pub(crate) fn verify(&self, token: Token<'_>, issuer: &Arc<TokenIssuerRecord>, now_ms: u64) -> Result<Arc<SignedToken>, InvalidToken> {
        if token.0.len() > limits::TOKEN_BYTES_MAX {
            return Err(InvalidToken);
        }
        let mut mac = [0; 32];
        mac.copy_from_slice(hmac::sign(&self.key, token.0).as_ref());
        // The order in a map of MACs tells whoever measures it nothing: nobody outside can compute one.
        if let Some(known) = self.known.read().get(&mac).filter(|known| known.stands(Some(issuer), now_ms)) {
            return Ok(Arc::clone(known));
        }
        let verified = Arc::new(verify(token, issuer, now_ms)?);
        let mut known = self.known.write();
        if known.len() >= limits::TOKENS_VERIFIED_MAX {
            make_room(&mut known, issuer, now_ms);
        }
        known.insert(mac, Arc::clone(&verified));
        Ok(verified)
    }
}

/// Forgets what is good for nothing any more, and of the rest every other one if that is most of them: so a pass over all of them is paid for by as
/// many signatures. Which ones is left to chance, in the order of MACs; whoever is forgotten costs one signature.
fn make_room(known: &mut BTreeMap<[u8; 32], Arc<SignedToken>>, issuer: &Arc<TokenIssuerRecord>, now_ms: u64) {
    known.retain(|_, token| token.stands(Some(issuer), now_ms));
    if known.len() > limits::TOKENS_VERIFIED_MAX / 2 {
        let mut is_kept = false;
        known.retain(|_, _| {
            is_kept = !is_kept;
            is_kept
        });
    }
}

fn verify(Token(token): Token<'_>, issuer: &Arc<TokenIssuerRecord>, now_ms: u64) -> Result<SignedToken, InvalidToken> {
    if !is_installed() {
        return Err(InvalidToken);
    }
    let header = jsonwebtoken::decode_header(token).map_err(|_| InvalidToken)?;
    let kid = header.kid.ok_or(InvalidToken)?;
    let TokenIssuer { issuer: iss, audience, .. } = &issuer.issuer;
    let key = issuer.issuer.key(&kid).ok_or(InvalidToken)?;
    let key = DecodingKey::from_ed_components(&key.x).map_err(|_| InvalidToken)?;
    let claims = jsonwebtoken::decode::<Claims>(token, &key, &signature_alone()).map_err(|_| InvalidToken)?.claims;
    let ms = |seconds: u64| seconds.checked_mul(SECOND_MS).ok_or(InvalidToken);
    let (issued_at_ms, expires_at_ms) = (ms(claims.iat)?, ms(claims.exp)?);
    let lifetime_ms = expires_at_ms.checked_sub(issued_at_ms).ok_or(InvalidToken)?;
    let is_for_us = claims.iss == *iss && claims.aud.0.contains(audience);
    if !is_for_us || lifetime_ms > limits::TOKEN_LIFETIME_MS_MAX {
        return Err(InvalidToken);
    }
    let tenant = claims.tid.map_or_else(|| Some(TenantId::default_tenant()), |tid| TenantId::parse(&tid)).ok_or(InvalidToken)?;
    let username = Username::parse(&claims.sub).map_err(|_| InvalidToken)?;
    let not_before_ms = claims.nbf.map(ms).transpose()?.unwrap_or(0).max(issued_at_ms);
    let actor = Actor { tenant, username, checked: None };
    let token = SignedToken { actor, kid, not_before_ms, expires_at_ms, issuer: Arc::clone(issuer) };
    if token.stands(Some(issuer), now_ms) { Ok(token) } else { Err(InvalidToken) }
}

/// Is this a key for which anybody can sign? Of small order, that is: a placeholder of zeros is one. What is no key is none of them.
#[must_use]
pub fn is_weak(x: &str) -> bool {
    // The y of each, the least of the two forms that have one; without the sign of x, which is the highest bit.
    const ZERO: [u8; 32] = [0; 32];
    const ONE: [u8; 32] = with_ends(0, 1, 0);
    const EIGHTH: [u8; 32] = [
        0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0, 0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6,
        0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05,
    ];
    const OTHER_EIGHTH: [u8; 32] = [
        0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f, 0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39,
        0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a,
    ];
    const MINUS_ONE: [u8; 32] = with_ends(0xff, 0xec, 0x7f);
    const ZERO_AGAIN: [u8; 32] = with_ends(0xff, 0xed, 0x7f);
    const ONE_AGAIN: [u8; 32] = with_ends(0xff, 0xee, 0x7f);
    let Ok(Ok(mut y)) = URL_SAFE_NO_PAD.decode(x).map(<[u8; 32]>::try_from) else { return false };
    y[31] &= 0x7f;
    [ZERO, ONE, EIGHTH, OTHER_EIGHTH, MINUS_ONE, ZERO_AGAIN, ONE_AGAIN].contains(&y)
}

const fn with_ends(all: u8, first: u8, last: u8) -> [u8; 32] {
    let mut bytes = [all; 32];
    (bytes[0], bytes[31]) = (first, last);
    bytes
}

/// What the library is to look at: who has signed. The rest is looked at here.
fn signature_alone() -> Validation {
    let mut validation = Validation::new(Algorithm::EdDSA);
    validation.required_spec_claims.clear();
    (validation.validate_exp, validation.validate_nbf, validation.validate_aud) = (false, false, false);
    validation
}

/// What is read of the claims. Others are nobody's business; each may stand there once.
struct Claims {
    iss: String,
    aud: Audience,
    sub: String,
    tid: Option<String>,
    exp: u64,
    iat: u64,
    nbf: Option<u64>,
}

impl<'de> Deserialize<'de> for Claims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Claims;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("claims")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Claims, A::Error> {
                let (mut iss, mut aud, mut sub, mut tid, mut exp, mut iat, mut nbf) = (None, None, None, None, None, None, None);
                let mut seen = BTreeSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        "iss" => iss = Some(map.next_value()?),
                        "aud" => aud = Some(map.next_value()?),
                        "sub" => sub = Some(map.next_value()?),
                        "tid" => tid = Some(map.next_value()?),
                        "exp" => exp = Some(map.next_value()?),
                        "iat" => iat = Some(map.next_value()?),
                        "nbf" => nbf = Some(map.next_value()?),
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                    if !seen.insert(name) {
                        return Err(A::Error::custom("a claim stands there twice"));
                    }
                }
                let missing = || A::Error::custom("a claim is missing");
                Ok(Claims {
                    iss: iss.ok_or_else(missing)?,
                    aud: aud.ok_or_else(missing)?,
                    sub: sub.ok_or_else(missing)?,
                    tid,
                    exp: exp.ok_or_else(missing)?,
                    iat: iat.ok_or_else(missing)?,
                    nbf,
                })
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

/// For whom a token is: one, or a list.
struct Audience(Vec<String>);

impl<'de> Deserialize<'de> for Audience {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            One(String),
            Many(Vec<String>),
        }
        Either::deserialize(deserializer).map(|either| match either {
            Either::One(one) => Self(vec![one]),
            Either::Many(many) => Self(many),
        })
    }
}

/// All the cryptography that the library gets. Tokens are not signed here, and of JWKs only the `x` is handed over: what is not implemented is
/// asked for by no function that this module calls.
static PROVIDER: CryptoProvider =
    CryptoProvider { signer_factory: no_signer, verifier_factory: ed25519_verifier, key_utils: KeyUtils::new_unimplemented() };

/// Is it that which the library uses? Once, and for the whole process.
fn is_installed() -> bool {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    *INSTALLED.get_or_init(|| PROVIDER.install_default().is_ok())
}

fn no_signer(_: &Algorithm, _: &EncodingKey) -> jsonwebtoken::errors::Result<Box<dyn JwtSigner>> {
    Err(ErrorKind::UnsupportedAlgorithm.into())
}

fn ed25519_verifier(algorithm: &Algorithm, key: &DecodingKey) -> jsonwebtoken::errors::Result<Box<dyn JwtVerifier>> {
    match algorithm {
        Algorithm::EdDSA => Ok(Box::new(Ed25519(UnparsedPublicKey::new(&ED25519, key.try_get_as_bytes()?.to_vec())))),
        _ => Err(ErrorKind::UnsupportedAlgorithm.into()),
    }
}

/// A public key.
struct Ed25519(UnparsedPublicKey<Vec<u8>>);

impl Verifier<Vec<u8>> for Ed25519 {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        self.0.verify(message, signature).map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for Ed25519 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::EdDSA
    }
}

#[cfg(test)]
mod tests;
