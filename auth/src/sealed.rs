//! Secrets that are stored: sealed under a key that is derived from the cluster secret, and bound to what they are for.
//!
//! A sealed secret is one text, base64 without padding of: format version (1), the id of the cluster secret (8 bytes), nonce (12 bytes),
//! ciphertext and tag of AES-256-GCM. Its key is derived with HKDF-SHA256 for each tenant; its associated data is the head before the nonce
//! and the [`Purpose`], so that what was sealed for one thing opens for no other.
//!
//! Nonces are random. Two that are equal under one key would give both secrets away; with 2^32 sealings under one key that has a chance of
//! 2^-32 (NIST SP 800-38D, 8.3), and a tenant's remotes are changed by people.
//!
//! This must never open what it cannot prove, and never say what it opened.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use veena_contract::{TenantId, limits};
use zeroize::Zeroizing;

use crate::cluster_secret::{ClusterSecret, ClusterSecrets, SecretId};
use crate::password::NoRandomness;
use crate::secret::Secret;

const VERSION: u8 = 1;
const ID_BYTES: usize = 8;
const HEAD_BYTES: usize = 1 + ID_BYTES;

/// What a secret is for: whose it is, and the words that name its use, such as kind, name, address and version of a remote. Another tenant,
/// another word or another order of them is another purpose.
#[derive(Clone, Copy, Debug)]
pub struct Purpose<'a> {
    /// Whose.
    pub tenant: &'a TenantId,
    /// What for.
    pub words: &'a [&'a str],
}

impl Purpose<'_> {
    /// Each word behind its length, so that no two purposes have the same bytes.
    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for word in std::iter::once(self.tenant.as_str()).chain(self.words.iter().copied()) {
            out.extend_from_slice(&(word.len() as u64).to_be_bytes());
            out.extend_from_slice(word.as_bytes());
        }
        out
    }
}

/// Why a sealed secret was not opened. Holds nothing of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// It is no sealed secret, or of a later format.
    #[error("this is no sealed secret that this program can read")]
    Unreadable,
    /// It was sealed under a cluster secret that this node does not have.
    #[error("it was sealed under the cluster secret {id}, which this node does not have")]
    UnknownKey {
        /// Which one.
        id: String,
    },
    /// It was changed, or was sealed for something else.
    #[error("it was changed, or was sealed for something else")]
    NotAuthentic,
    /// More than a secret is.
    #[error("a secret to be sealed has at most {bytes_max} bytes, this has {bytes}")]
    TooLong {
        /// How long it is.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// There is no nonce to be had.
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
}

/// A sealed secret, as it is stored and sent. Printed, it tells under which cluster secret it was sealed.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed(Vec<u8>);

impl Sealed {
    /// Reads the text of one.
    ///
    /// # Errors
    /// [`SealError::Unreadable`].
    pub fn parse(text: &str) -> Result<Self, SealError> {
        let bytes_max = HEAD_BYTES + NONCE_LEN + limits::SEALED_SECRET_BYTES_MAX + AES_256_GCM.tag_len();
        let bytes = STANDARD_NO_PAD.decode(text).map_err(|_| SealError::Unreadable)?;
        let is_whole = (HEAD_BYTES + NONCE_LEN + AES_256_GCM.tag_len()..=bytes_max).contains(&bytes.len());
        if is_whole && bytes[0] == VERSION { Ok(Self(bytes)) } else { Err(SealError::Unreadable) }
    }

    /// Its text.
    #[must_use]
    pub fn to_text(&self) -> String {
        STANDARD_NO_PAD.encode(&self.0)
    }

    /// The name of the cluster secret under which it was sealed.
    #[must_use]
    pub fn key_id(&self) -> String {
        self.0[1..HEAD_BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealed({})", self.key_id())
    }
}

/// The keys under which secrets are sealed: the current cluster secret's, and while it is being changed that of the one before, which only
/// opens.
pub struct KeyRing<'a>(&'a ClusterSecrets);

impl<'a> KeyRing<'a> {
    /// The keys of these secrets.
    #[must_use]
    pub const fn new(secrets: &'a ClusterSecrets) -> Self {
        Self(secrets)
    }

    /// Seals a secret for a purpose, under the current key.
    ///
    /// # Errors
    /// [`SealError::TooLong`], [`SealError::NoRandomness`].
    pub fn seal(&self, purpose: Purpose<'_>, plain: &Secret<Vec<u8>>) -> Result<Sealed, SealError> {
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).map_err(|_| NoRandomness)?;
        self.seal_with(purpose, plain, nonce)
    }

    fn seal_with(&self, purpose: Purpose<'_>, plain: &Secret<Vec<u8>>, nonce: [u8; NONCE_LEN]) -> Result<Sealed, SealError> {
        let (bytes, bytes_max) = (plain.expose().len(), limits::SEALED_SECRET_BYTES_MAX);
        if bytes > bytes_max {
            return Err(SealError::TooLong { bytes, bytes_max });
        }
        let secret = &self.0.current;
        let mut out = vec![VERSION];
        out.extend_from_slice(&id_bytes(secret.id()));
        let aad = associated(&out, purpose);
        out.extend_from_slice(&nonce);
        // Sealed in place: what holds the secret until then is overwritten, and its room is not left to anybody by growing.
        let mut text = Zeroizing::new(Vec::with_capacity(bytes + AES_256_GCM.tag_len()));
        text.extend_from_slice(plain.expose());
        let sealed = key(secret, purpose.tenant).seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(aad), &mut *text);
        sealed.expect("invariant: AES-GCM takes secrets of this length");
        out.extend_from_slice(&text);
        Ok(Sealed(out))
    }

    /// Opens what was sealed for this purpose.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn open(&self, purpose: Purpose<'_>, sealed: &Sealed) -> Result<Secret<Vec<u8>>, SealError> {
        let id = sealed.key_id();
        let secret = std::iter::once(&self.0.current).chain(&self.0.previous).find(|secret| secret.id().as_str() == id);
        let secret = secret.ok_or(SealError::UnknownKey { id })?;
        let (head, rest) = sealed.0.split_at(HEAD_BYTES);
        let (nonce, text) = rest.split_at(NONCE_LEN);
        let nonce = Nonce::try_assume_unique_for_key(nonce).expect("invariant: split at the length of a nonce");
        let mut text = Zeroizing::new(text.to_vec());
        let plain = key(secret, purpose.tenant).open_in_place(nonce, Aad::from(associated(head, purpose)), &mut text);
        plain.map(|plain| Secret::new(plain.to_vec())).map_err(|_| SealError::NotAuthentic)
    }

    /// The same secret under the current key; `None` if it is sealed under that already.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn reseal(&self, purpose: Purpose<'_>, sealed: &Sealed) -> Result<Option<Sealed>, SealError> {
        if sealed.key_id() == self.0.current.id().as_str() {
            return Ok(None);
        }
        let plain = self.open(purpose, sealed)?;
        self.seal(purpose, &plain).map(Some)
    }
}

/// The key of a tenant under a cluster secret.
fn key(secret: &ClusterSecret, tenant: &TenantId) -> LessSafeKey {
    let label = format!("sealed 1 {tenant}");
    let key = secret.derive(label.as_bytes());
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key.expose()).expect("invariant: 32 bytes are a key"))
}

fn associated(head: &[u8], purpose: Purpose<'_>) -> Vec<u8> {
    let mut aad = head.to_vec();
    aad.extend_from_slice(&purpose.bytes());
    aad
}

fn id_bytes(id: &SecretId) -> [u8; ID_BYTES] {
    let number = u64::from_str_radix(id.as_str(), 16).expect("invariant: an id is 16 hexadecimal digits");
    number.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OLD: &str = "0123456789abcdef0123456789abcdef";
    const GOLDEN: &str = "AZ6q0GF7ifURBQUFBQUFBQUFBQUFWVIsVEY2pgxcu6tdyOUs5+rVfkGI+Pw";
    const NEW: &str = "x123456789abcdef0123456789abcdef";

    fn secrets(text: &str) -> ClusterSecrets {
        ClusterSecrets::parse(text).expect("secrets")
    }

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).expect("a name")
    }

    fn plain(text: &str) -> Secret<Vec<u8>> {
        Secret::new(text.as_bytes().to_vec())
    }

    #[test]
    fn what_was_sealed_once_is_opened_for_ever() {
        let (acme, old) = (tenant("acme"), secrets(OLD));
        let purpose = Purpose { tenant: &acme, words: &["remote", "west", "7"] };
        let sealed = KeyRing::new(&old).seal_with(purpose, &plain("hunter2"), [5; NONCE_LEN]).expect("sealed");
        // worked out with another implementation of HKDF and AES-GCM
        assert_eq!(sealed.to_text(), GOLDEN);
        let again = Sealed::parse(GOLDEN).expect("readable");
        assert_eq!(KeyRing::new(&old).open(purpose, &again).expect("opened").expose(), b"hunter2");
    }

    #[test]
    fn it_opens_for_no_other_tenant_word_or_order_and_not_when_a_bit_differs() {
        let (acme, other, old) = (tenant("acme"), tenant("acm"), secrets(OLD));
        let ring = KeyRing::new(&old);
        let words: &[&str] = &["remote", "west"];
        let sealed = ring.seal(Purpose { tenant: &acme, words }, &plain("hunter2")).expect("sealed");
        for (tenant, words) in [
            (&other, words),
            (&acme, &["remote", "wes"]),
            (&acme, &["west", "remote"]),
            (&acme, &["remotewest"]),
            (&acme, &["remote", "west", ""]),
            (&acme, &["remote"]),
        ] {
            let opened = ring.open(Purpose { tenant, words }, &sealed).map(drop);
            assert_eq!(opened, Err(SealError::NotAuthentic), "{tenant} {words:?}");
        }
        for at in HEAD_BYTES * 8..sealed.0.len() * 8 {
            let mut flipped = sealed.clone();
            flipped.0[at / 8] ^= 1 << (at % 8);
            assert!(ring.open(Purpose { tenant: &acme, words }, &flipped).is_err(), "bit {at}");
        }
    }

    #[test]
    fn after_a_change_of_the_secret_the_old_one_opens_until_everything_is_sealed_anew() {
        let acme = tenant("acme");
        let purpose = Purpose { tenant: &acme, words: &["remote"] };
        let (old, both, new) = (secrets(OLD), secrets(&format!("{NEW}\n{OLD}")), secrets(NEW));
        let sealed = KeyRing::new(&old).seal(purpose, &plain("hunter2")).expect("sealed");
        let id = old.current.id().as_str().to_owned();
        assert_eq!(KeyRing::new(&new).open(purpose, &sealed).map(drop), Err(SealError::UnknownKey { id }));
        assert_eq!(KeyRing::new(&both).open(purpose, &sealed).expect("opened").expose(), b"hunter2");
        let anew = KeyRing::new(&both).reseal(purpose, &sealed).expect("opened").expect("another key");
        assert_eq!(KeyRing::new(&new).open(purpose, &anew).expect("opened").expose(), b"hunter2");
        assert_eq!(KeyRing::new(&both).reseal(purpose, &anew).expect("opened"), None);
    }

    #[test]
    fn a_sealed_secret_is_not_told_by_printing_it_and_two_sealings_differ() {
        let (acme, old) = (tenant("acme"), secrets(OLD));
        let purpose = Purpose { tenant: &acme, words: &[] };
        let seal = || KeyRing::new(&old).seal(purpose, &plain("hunter2")).expect("sealed");
        let (one, two) = (seal(), seal());
        assert_ne!(one, two, "nonces are random");
        assert_eq!(format!("{one:?}"), format!("Sealed({})", old.current.id()));
        let long = Secret::new(vec![0; limits::SEALED_SECRET_BYTES_MAX + 1]);
        assert!(matches!(KeyRing::new(&old).seal(purpose, &long), Err(SealError::TooLong { .. })));
    }

    proptest! {
        #[test]
        fn whatever_is_sealed_opens_again(bytes in proptest::collection::vec(any::<u8>(), 0..300), words in proptest::collection::vec(".{0,8}", 0..4)) {
            let (acme, old) = (tenant("acme"), secrets(OLD));
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let purpose = Purpose { tenant: &acme, words: &words };
            let sealed = KeyRing::new(&old).seal(purpose, &Secret::new(bytes.clone())).expect("sealed");
            let read = Sealed::parse(&sealed.to_text()).expect("readable");
            let opened = KeyRing::new(&old).open(purpose, &read).expect("opened");
            prop_assert_eq!(opened.expose(), &bytes);
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,80}") {
            if let Ok(sealed) = Sealed::parse(&text) {
                let (acme, old) = (tenant("acme"), secrets(OLD));
                let opened = KeyRing::new(&old).open(Purpose { tenant: &acme, words: &[] }, &sealed);
                prop_assert!(opened.is_err());
            }
        }
    }
}
