//! API keys of service accounts: `veena_<kind>_<id>_<30 characters><6 characters of checksum>`.
//!
//! A scanner finds one by its form ([`PATTERN`]); a double click selects all of it. The checksum refuses what was mistyped or made up without
//! a look at anything. The 30 characters are random, some 178 bits, so what is stored of a key is one fast hash of the whole text: nobody
//! finds 178 bits by trying, however fast, and a slow hash would be paid with every request. For the same reason failed attempts are not
//! throttled: each costs its sender more than it costs the node, and none comes nearer.

use ring::digest;
use ring::rand::{SecureRandom, SystemRandom};
use subtle::ConstantTimeEq;
use veena_contract::keys::KEY_ID_CHARS;
use veena_contract::{KeyHash, KeyId};

use crate::password::NoRandomness;
use crate::secret::Secret;

/// The form of a key, as a regular expression: for scanners that look for keys where none should be.
pub const PATTERN: &str = r"\bveena_(sk|rk|pk)_[0-9A-Za-z]{12}_[0-9A-Za-z]{36}\b";

const BRAND: &str = "veena";
/// How many characters are random.
const SECRET_CHARS: usize = 30;
/// How many characters the checksum has: 62^6 is more than 2^32.
const CHECKSUM_CHARS: usize = 6;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Why a text is no key. Holds nothing of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an API key")]
pub struct InvalidApiKey;

/// What a key is for. The list is closed: a key of another kind is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// A service signs in with it.
    Service,
    /// Kept for links between clusters.
    Replication,
    /// Kept for what sets clusters up.
    Provisioning,
}

impl KeyKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Service, Self::Replication, Self::Provisioning];

    /// As it stands in a key.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Service => "sk",
            Self::Replication => "rk",
            Self::Provisioning => "pk",
        }
    }
}

/// A key whose checksum is right. It cannot be printed.
///
/// ```compile_fail
/// println!("{:?}", veena_auth::ApiKey::random(veena_auth::KeyKind::Service));
/// ```
pub struct ApiKey {
    kind: KeyKind,
    id: KeyId,
    text: Secret<String>,
}

impl ApiKey {
    /// Makes one up.
    ///
    /// # Errors
    /// [`NoRandomness`].
    pub fn random(kind: KeyKind) -> Result<Self, NoRandomness> {
        let mut drawn = Secret::new([0; KEY_ID_CHARS + SECRET_CHARS]);
        draw(drawn.expose_mut())?;
        let (id, secret) = drawn.expose().split_at(KEY_ID_CHARS);
        let text = |bytes| std::str::from_utf8(bytes).expect("invariant: letters and digits");
        // With room for the checksum, so that no copy of the text stays behind.
        let mut key = String::with_capacity(BRAND.len() + kind.as_str().len() + KEY_ID_CHARS + SECRET_CHARS + CHECKSUM_CHARS + 3);
        for part in [BRAND, "_", kind.as_str(), "_", text(id), "_", text(secret)] {
            key.push_str(part);
        }
        let sum = checksum(key.as_bytes());
        key.push_str(text(&sum));
        let id = KeyId::parse(text(id)).expect("invariant: as many letters and digits as an id has");
        Ok(Self { kind, id, text: Secret::new(key) })
    }

    /// Reads a key that somebody gave. One whose checksum is wrong is none.
    ///
    /// # Errors
    /// [`InvalidApiKey`].
    pub fn parse(text: &str) -> Result<Self, InvalidApiKey> {
        let is_said = |kind: &KeyKind| text.split('_').nth(1) == Some(kind.as_str());
        let kind = KeyKind::ALL.into_iter().find(is_said).ok_or(InvalidApiKey)?;
        let mut parts = text.split('_');
        let (Some(BRAND), Some(_), Some(id), Some(rest), None) = (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(InvalidApiKey);
        };
        let is_whole = rest.len() == SECRET_CHARS + CHECKSUM_CHARS && rest.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_whole || checksum(&text.as_bytes()[..text.len() - CHECKSUM_CHARS]) != text.as_bytes()[text.len() - CHECKSUM_CHARS..] {
            return Err(InvalidApiKey);
        }
        let id = KeyId::parse(id).map_err(|_| InvalidApiKey)?;
        Ok(Self { kind, id, text: Secret::new(text.to_owned()) })
    }

    /// Reads the value of an `Authorization` header of the scheme Bearer; nothing, if it is of another.
    #[must_use]
    pub fn of_bearer(header: &[u8]) -> Option<Result<Self, InvalidApiKey>> {
        const SCHEME: &[u8] = b"bearer ";
        let (scheme, token) = header.split_at_checked(SCHEME.len())?;
        if !scheme.eq_ignore_ascii_case(SCHEME) {
            return None;
        }
        Some(std::str::from_utf8(token.trim_ascii()).map_err(|_| InvalidApiKey).and_then(Self::parse))
    }

    /// What it is for.
    #[must_use]
    pub const fn kind(&self) -> KeyKind {
        self.kind
    }

    /// Its public part.
    #[must_use]
    pub const fn id(&self) -> KeyId {
        self.id
    }

    /// The whole key. It is shown once, to whoever asked for it, and nowhere else.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.text.expose()
    }

    /// What is stored of it.
    #[must_use]
    pub fn hash(&self) -> KeyHash {
        let mut hash = [0; digest::SHA256_OUTPUT_LEN];
        hash.copy_from_slice(digest::digest(&digest::SHA256, self.text.expose().as_bytes()).as_ref());
        KeyHash::new(hash)
    }

    /// Is it the key of which this is stored?
    #[must_use]
    pub fn is(&self, stored: &KeyHash) -> bool {
        self.hash().expose().ct_eq(stored.expose()).into()
    }
}

/// Fills it with letters and digits, each as likely as any other.
fn draw(out: &mut [u8]) -> Result<(), NoRandomness> {
    /// What is random and not below is drawn again: as many bytes stand for each character.
    const FAIR: usize = (1 << u8::BITS) / ALPHABET.len() * ALPHABET.len();
    let random = SystemRandom::new();
    let mut bytes = Secret::new([0; 64]);
    let mut slots = out.iter_mut().peekable();
    while slots.peek().is_some() {
        random.fill(bytes.expose_mut()).map_err(|_| NoRandomness)?;
        for (byte, slot) in bytes.expose().iter().filter(|byte| usize::from(**byte) < FAIR).zip(slots.by_ref()) {
            *slot = ALPHABET[usize::from(*byte) % ALPHABET.len()];
        }
    }
    Ok(())
}

/// CRC-32 (ISO-HDLC) as letters and digits, the highest first.
fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_CHARS] {
    let mut rest = crc32fast::hash(bytes) as usize;
    let mut out = [0; CHECKSUM_CHARS];
    for slot in out.iter_mut().rev() {
        *slot = ALPHABET[rest % ALPHABET.len()];
        rest /= ALPHABET.len();
    }
    out
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE};
    use proptest::prelude::*;

    use super::*;

    /// Made once. The checksum was computed by another program (Python's zlib).
    const GOLDEN: &str = "veena_sk_0123456789aZ_Th1s1sN0S3cretButG0ldenForAll02nnevP";
    const GOLDEN_HASH: &str = "cde26ed6704d06d26595d5c27b19311d9917d35bf67cffd305e36be936605dab";

    fn random() -> ApiKey {
        ApiKey::random(KeyKind::Service).expect("random")
    }

    #[test]
    fn a_key_keeps_its_form() {
        let key = ApiKey::parse(GOLDEN).expect("a key");
        assert_eq!((key.kind(), key.id().as_str(), key.expose()), (KeyKind::Service, "0123456789aZ", GOLDEN));
        assert_eq!(String::from(key.hash()), GOLDEN_HASH);
        let made = random();
        assert_eq!(made.expose().len(), GOLDEN.len());
        assert_ne!((made.id(), made.expose()), (random().id(), random().expose()), "two are two");
    }

    #[test]
    fn every_change_of_one_character_is_refused_before_anything_is_looked_up() {
        let others = ALPHABET.iter().copied().chain(*b"_-. ");
        let mut tried = 0;
        for (at, was) in GOLDEN.bytes().enumerate() {
            for other in others.clone().filter(|other| *other != was) {
                let mut text = GOLDEN.as_bytes().to_vec();
                text[at] = other;
                let text = String::from_utf8(text).expect("ASCII");
                assert!(ApiKey::parse(&text).is_err(), "{text}");
                tried += 1;
            }
        }
        assert_eq!(tried, GOLDEN.len() * (ALPHABET.len() + 3));
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let long = format!("{GOLDEN}0");
        let cut = &GOLDEN[..GOLDEN.len() - 1];
        for text in [
            "",
            "veena",
            "veena_sk_",
            "____",
            "veena_sk_0123456789aZ_",
            &long,
            cut,
            &GOLDEN.to_uppercase(),
            &GOLDEN.replace("_sk_", "_xk_"),
        ] {
            assert_eq!(ApiKey::parse(text).map(|_| ()), Err(InvalidApiKey), "{text}");
        }
        let of = |header: &str| ApiKey::of_bearer(header.as_bytes()).map(|key| key.is_ok());
        assert_eq!(of(&format!("Bearer {GOLDEN}")), Some(true));
        assert_eq!(of(&format!("bEARER   {GOLDEN} ")), Some(true));
        assert_eq!((of("Bearer x"), of("Bearer "), of("Bearer"), of("Basic eDp5"), of("")), (Some(false), Some(false), None, None, None));
        assert_eq!(ApiKey::of_bearer(b"Bearer \xff").map(|key| key.is_ok()), Some(false));
    }

    #[test]
    fn a_key_is_only_the_one_of_which_the_hash_is_stored() {
        let (one, other) = (random(), random());
        assert!(one.hash() != other.hash() && one.is(&one.hash()) && !one.is(&other.hash()));
        assert!(one.is(&ApiKey::parse(one.expose()).expect("its own text").hash()));
    }

    #[test]
    fn the_published_expression_finds_every_key_and_nothing_else() {
        const CORPUS_BYTES: usize = 10 * 1024 * 1024;
        let expression = regex::bytes::Regex::new(PATTERN).expect("an expression");
        let mut noise = vec![0; CORPUS_BYTES / 2];
        SystemRandom::new().fill(&mut noise).expect("random");
        let (plain, url) = noise.split_at(noise.len() / 2);
        let mut corpus = STANDARD.encode(plain).into_bytes();
        corpus.extend(URL_SAFE.encode(url).into_bytes());
        corpus.extend(STANDARD.encode(url).into_bytes());
        assert!(corpus.len() >= CORPUS_BYTES * 9 / 10);
        assert_eq!(expression.find_iter(&corpus).count(), 0);
        let keys: Vec<ApiKey> = (0..100).map(|n| ApiKey::random(KeyKind::ALL[n % KeyKind::ALL.len()]).expect("random")).collect();
        for (n, key) in keys.iter().enumerate() {
            let around = [("{\"key\":\"", "\"}"), ("Bearer ", "\n"), ("VEENA_API_KEY=", ""), ("", " ")][n % 4];
            corpus.splice(n * 1000..n * 1000, format!(" {}{}{} ", around.0, key.expose(), around.1).into_bytes());
        }
        let found: Vec<&[u8]> = expression.find_iter(&corpus).map(|found| found.as_bytes()).collect();
        assert_eq!(found, keys.iter().map(|key| key.expose().as_bytes()).collect::<Vec<_>>());
    }

    #[test]
    fn every_character_is_drawn_about_as_often_as_any_other() {
        let mut drawn = vec![0; 62 * 1000];
        draw(&mut drawn).expect("random");
        for char in ALPHABET {
            // Six times the deviation of a fair draw.
            let count = drawn.iter().filter(|drawn| *drawn == char).count();
            assert!((800..1200).contains(&count), "{} {count}", char::from(*char));
        }
    }

    proptest! {
        #[test]
        fn no_text_brings_the_reader_down(text in "\\PC{0,80}", bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(ApiKey::parse(&text).is_err());
            let _ = ApiKey::of_bearer(&bytes);
            let _ = ApiKey::of_bearer(&[b"Bearer ", bytes.as_slice()].concat());
        }

        #[test]
        fn what_is_made_is_read_back(kind in prop::sample::select(KeyKind::ALL.to_vec())) {
            let key = ApiKey::random(kind).expect("random");
            let read = ApiKey::parse(key.expose()).expect("its own text");
            prop_assert_eq!((read.kind(), read.id(), read.expose()), (kind, key.id(), key.expose()));
        }
    }
}
