//! Passwords, and what is stored of them: Argon2id in the PHC form, m = 19 MiB, t = 2, p = 1.
//!
//! A computation takes 19 MiB and some 20 ms of a core, so nothing here is called from a request: `permits` bounds how many run at
//! once, and [`crate::authenticator`] remembers what they found.

use std::fmt;
use std::sync::Arc;

use argon2::password_hash::phc::{self, Output};
use argon2::{Algorithm, Argon2, Block, Params, Version};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use veena_contract::{StoredHash, limits};

use crate::secret::Secret;

/// How many bytes a computation gives.
const OUTPUT_BYTES: usize = 32;
/// How many bytes of salt each password gets.
const SALT_BYTES: usize = 16;
/// Passwords are computed on one lane: a login takes one core, not all.
const LANES: u32 = 1;
/// How many random bytes a password has that the node makes up (http-contract 1.5).
const RANDOM_PASSWORD_BYTES: usize = 24;

/// Why a text cannot be a password. Holds nothing of the text; it is shown to the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("password must be 1 to {max} bytes", max = limits::PASSWORD_BYTES_MAX)]
pub struct InvalidPassword;

/// The system has no randomness to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no randomness")]
pub struct NoRandomness;

/// A stored hash that is not computed: it is damaged, not ours, or costs more than this node spends. Holds nothing of the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableHash {
    /// It is no Argon2id hash in the PHC form, with the salt and the length that are written here.
    #[error("the stored password hash cannot be read")]
    Unreadable,
    /// It asks for more memory or time than a hash made here.
    #[error("the stored password hash costs more than this node spends")]
    TooCostly,
}

/// What a computation works in: 19 MiB. One computation after the other takes the same: allocated anew on whatever thread computes, it would
/// stay with that thread's part of the heap.
pub(crate) struct Memory(Vec<Block>);

impl Memory {
    pub(crate) fn new() -> Self {
        Self(vec![Block::default(); params(limits::PASSWORD_MEMORY_KIB, limits::PASSWORD_ROUNDS).block_count()])
    }

    /// As much of it as a computation takes.
    fn of(&mut self, argon2: &Argon2<'_>) -> &mut [Block] {
        let count = argon2.params().block_count();
        &mut self.0[..count]
    }
}

/// A password, 1 to 72 bytes. It cannot be printed.
///
/// ```compile_fail
/// println!("{:?}", veena_auth::Password::new("hunter2".into()));
/// ```
pub struct Password(Secret<String>);

impl Password {
    /// Takes a password that a caller gave.
    ///
    /// # Errors
    /// [`InvalidPassword`].
    pub fn new(text: String) -> Result<Self, InvalidPassword> {
        let text = Secret::new(text);
        if (1..=limits::PASSWORD_BYTES_MAX).contains(&text.expose().len()) { Ok(Self(text)) } else { Err(InvalidPassword) }
    }

    /// Makes up one of 24 random bytes, as 32 characters.
    ///
    /// # Errors
    /// [`NoRandomness`].
    pub fn random() -> Result<Self, NoRandomness> {
        let mut bytes = [0; RANDOM_PASSWORD_BYTES];
        SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandomness)?;
        let bytes = Secret::new(bytes);
        Ok(Self(Secret::new(URL_SAFE_NO_PAD.encode(bytes.expose()))))
    }

    /// The password. Whoever calls this must not let it out.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose()
    }
}

/// What is stored of a password. Cheap to clone. Serialized it is its PHC text: only the metastore may do that, no answer and no log.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PasswordHash(Arc<str>);

impl PasswordHash {
    /// Computes the hash of a password under a new salt. Takes as long as a login, and memory of its own; a node uses
    /// [`crate::Authenticator::hash`].
    ///
    /// # Errors
    /// [`NoRandomness`].
    pub fn compute(password: &Password) -> Result<Self, NoRandomness> {
        Self::compute_in(password, &mut Memory::new())
    }

    pub(crate) fn compute_in(password: &Password, memory: &mut Memory) -> Result<Self, NoRandomness> {
        let (memory_kib, rounds) = (limits::PASSWORD_MEMORY_KIB, limits::PASSWORD_ROUNDS);
        let mut salt = [0; SALT_BYTES];
        SystemRandom::new().fill(&mut salt).map_err(|_| NoRandomness)?;
        let argon2 = argon2(params(memory_kib, rounds));
        let mut computed = [0; OUTPUT_BYTES];
        let done = argon2.hash_password_into_with_memory(password.expose().as_bytes(), &salt, &mut computed, memory.of(&argon2));
        done.expect("invariant: the parameters are valid, and 72 bytes are no limit of Argon2");
        Ok(Self::of_parts(memory_kib, rounds, &salt, &computed))
    }

    fn of_parts(memory_kib: u32, rounds: u32, salt: &[u8], computed: &[u8]) -> Self {
        let (salt, computed) = (STANDARD_NO_PAD.encode(salt), STANDARD_NO_PAD.encode(computed));
        Self(Arc::from(format!("$argon2id$v=19$m={memory_kib},t={rounds},p={LANES}${salt}${computed}")))
    }

    /// Is this the password? Takes as long as the hash says, and never longer than one made here.
    ///
    /// # Errors
    /// [`UnusableHash`]: nothing was computed.
    pub(crate) fn verify_in(&self, password: &Password, memory: &mut Memory) -> Result<bool, UnusableHash> {
        let stored = Stored::parse(&self.0)?;
        let mut computed = [0; OUTPUT_BYTES];
        let memory = memory.of(&stored.argon2);
        let done = stored.argon2.hash_password_into_with_memory(password.expose().as_bytes(), &stored.salt, &mut computed, memory);
        done.map_err(|_| UnusableHash::Unreadable)?;
        let computed = Secret::new(computed);
        Ok(computed.expose().ct_eq(stored.output.as_bytes()).into())
    }

    /// A hash that costs what every hash made here costs, and belongs to no password: what it gives is not looked at.
    pub(crate) fn of_nobody() -> Self {
        Self::of_parts(limits::PASSWORD_MEMORY_KIB, limits::PASSWORD_ROUNDS, &[0; SALT_BYTES], &[0; OUTPUT_BYTES])
    }

    /// What a remembered check is bound to: a new password has a new salt, and so another text.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for PasswordHash {
    type Error = UnusableHash;

    /// Looks at the length only: a hash that this version does not compute must not keep it from reading its own store.
    fn try_from(text: String) -> Result<Self, UnusableHash> {
        if text.len() > limits::PASSWORD_HASH_BYTES_MAX { Err(UnusableHash::Unreadable) } else { Ok(Self(Arc::from(text))) }
    }
}

impl TryFrom<&StoredHash> for PasswordHash {
    type Error = UnusableHash;

    /// As for a text. Copies nothing.
    fn try_from(stored: &StoredHash) -> Result<Self, UnusableHash> {
        if stored.expose().len() > limits::PASSWORD_HASH_BYTES_MAX {
            Err(UnusableHash::Unreadable)
        } else {
            Ok(Self(stored.expose().clone()))
        }
    }
}

impl From<PasswordHash> for StoredHash {
    fn from(hash: PasswordHash) -> Self {
        Self::new(hash.0)
    }
}

impl From<PasswordHash> for String {
    fn from(hash: PasswordHash) -> Self {
        hash.0.as_ref().to_owned()
    }
}

impl PartialEq for PasswordHash {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

impl Eq for PasswordHash {}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash")
    }
}

/// A stored hash, read and found cheap enough.
struct Stored {
    argon2: Argon2<'static>,
    salt: Vec<u8>,
    output: Output,
}

impl Stored {
    fn parse(text: &str) -> Result<Self, UnusableHash> {
        let hash = phc::PasswordHash::new(text).map_err(|_| UnusableHash::Unreadable)?;
        let (Some(salt), Some(output)) = (hash.salt, hash.hash) else { return Err(UnusableHash::Unreadable) };
        let is_ours = hash.algorithm.as_str() == Algorithm::Argon2id.as_str() && hash.version == Some(Version::V0x13 as u32);
        if !is_ours || output.len() != OUTPUT_BYTES {
            return Err(UnusableHash::Unreadable);
        }
        let asked = Params::try_from(&hash.params).map_err(|_| UnusableHash::Unreadable)?;
        let (memory, rounds) = (asked.m_cost(), asked.t_cost());
        if memory > limits::PASSWORD_MEMORY_KIB || rounds > limits::PASSWORD_ROUNDS || asked.p_cost() > LANES {
            return Err(UnusableHash::TooCostly);
        }
        Ok(Self { argon2: argon2(params(memory, rounds)), salt: salt.to_vec(), output })
    }
}

fn params(memory_kib: u32, rounds: u32) -> Params {
    Params::new(memory_kib, rounds, LANES, Some(OUTPUT_BYTES)).expect("invariant: within what Argon2 takes")
}

fn argon2(params: Params) -> Argon2<'static> {
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
}

#[cfg(test)]
impl PasswordHash {
    /// With memory of its own.
    pub(crate) fn verify(&self, password: &Password) -> Result<bool, UnusableHash> {
        self.verify_in(password, &mut Memory::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFERENCE: &str = "$argon2id$v=19$m=19456,t=2,p=1$9Rb1BLO8hoyouq5zClvJJg$fhGU0c1anDvWgKu+40lUK7lOchwhIL1bUffYl+MoAWk";

    fn password(text: &str) -> Password {
        Password::new(text.to_owned()).expect("a password")
    }

    fn stored(text: &str) -> PasswordHash {
        PasswordHash::try_from(text.to_owned()).expect("short enough")
    }

    #[test]
    fn a_password_has_1_to_72_bytes() {
        assert!(Password::new(String::new()).is_err());
        assert!(Password::new("ä".repeat(36)).is_ok());
        assert!(Password::new("x".repeat(73)).is_err());
    }

    #[test]
    fn a_hash_knows_its_password_and_no_other() {
        let hash = PasswordHash::compute(&password("hunter2")).expect("random");
        assert!(hash.text().starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{}", hash.text());
        assert!(hash.text().len() < limits::PASSWORD_HASH_BYTES_MAX);
        assert_eq!(hash.verify(&password("hunter2")), Ok(true));
        assert_eq!(hash.verify(&password("hunter3")), Ok(false));
        let reference = phc::PasswordHash::new(hash.text()).expect("as others write it");
        assert_eq!(reference.to_string(), hash.text());
        assert_ne!(hash, PasswordHash::compute(&password("hunter2")).expect("random"), "the salt is new each time");
    }

    #[test]
    fn a_hash_of_another_implementation_is_known() {
        // made with the reference implementation (argon2-cffi)
        let hash = stored(REFERENCE);
        assert_eq!(hash.verify(&password("correct horse")), Ok(true));
        assert_eq!(hash.verify(&password("correct horsf")), Ok(false));
    }

    #[test]
    fn what_an_earlier_computation_left_in_the_memory_changes_nothing() {
        let mut memory = Memory::new();
        let cheaper = stored("$argon2id$v=19$m=8,t=1,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
        for _ in 0..2 {
            assert_eq!(stored(REFERENCE).verify_in(&password("correct horsf"), &mut memory), Ok(false));
            assert_eq!(cheaper.verify_in(&password("x"), &mut memory), Ok(false));
            assert_eq!(stored(REFERENCE).verify_in(&password("correct horse"), &mut memory), Ok(true));
        }
    }

    #[test]
    fn a_hash_of_nobody_costs_what_every_hash_costs() {
        let of_nobody = PasswordHash::of_nobody();
        let made = PasswordHash::compute(&password("x")).expect("random");
        let costs = |hash: &PasswordHash| {
            let stored = Stored::parse(hash.text()).expect("readable");
            let params = stored.argon2.params();
            (params.m_cost(), params.t_cost(), params.p_cost(), stored.salt.len(), stored.output.len())
        };
        assert_eq!(costs(&of_nobody), costs(&made));
        assert_eq!(of_nobody.verify(&password("x")), Ok(false));
    }

    #[test]
    fn a_stored_hash_that_costs_more_than_one_made_here_is_refused_and_not_computed() {
        let rest = "$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        for costs in ["m=4194304,t=2,p=1", "m=19457,t=2,p=1", "m=19456,t=3,p=1", "m=19456,t=2,p=2", "m=19456,t=4294967295,p=1"] {
            let hash = stored(&format!("$argon2id$v=19${costs}{rest}"));
            assert_eq!(hash.verify(&password("x")), Err(UnusableHash::TooCostly), "{costs}");
        }
    }

    #[test]
    fn a_stored_hash_that_is_not_ours_is_refused() {
        let ours = PasswordHash::of_nobody();
        for text in [
            String::new(),
            "hunter2".to_owned(),
            "$2b$12$abcdefghijklmnopqrstuuABCDEFGHIJKLMNOPQRSTUVWXYZ01234".to_owned(),
            ours.text().replace("argon2id", "argon2i"),
            ours.text().replace("v=19", "v=16"),
            ours.text().replace("$v=19", ""),
            ours.text().replace("m=19456", "m=0"),
            ours.text().replace("p=1$", "p=1,x=1$"),
            ours.text().rsplit_once('$').expect("parts").0.to_owned(),
            format!("{}AAAA", ours.text()),
        ] {
            assert_eq!(stored(&text).verify(&password("x")), Err(UnusableHash::Unreadable), "{text}");
        }
        assert!(PasswordHash::try_from("x".repeat(limits::PASSWORD_HASH_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn a_stored_hash_is_text_in_json() {
        let hash = PasswordHash::of_nobody();
        let json = serde_json::to_string(&hash).expect("a string");
        assert_eq!(json, format!("{:?}", hash.text()));
        assert_eq!(serde_json::from_str::<PasswordHash>(&json).expect("a hash"), hash);
    }

    #[test]
    fn random_passwords_differ() {
        let (one, other) = (Password::random().expect("random"), Password::random().expect("random"));
        assert_eq!(one.expose().len(), 32);
        assert_ne!(one.expose(), other.expose());
    }
}
