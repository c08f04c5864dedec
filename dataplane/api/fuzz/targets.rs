// What each fuzz target does with its input; shared with the plain test that replays the checked-in inputs.

use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use veena_api::decoders;
use veena_auth::{Authenticator, Token};
use veena_contract::{HeaderName, Key, TokenIssuer, TokenIssuerRecord, TokenKey, TopicName, limits};

/// A target: its name, and what it does.
pub type Target = (&'static str, fn(&[u8]));

/// All targets of this crate.
pub const TARGETS: [Target; 9] = [
    ("batch_body", batch_body),
    ("packed_body", packed_body),
    ("topic_bodies", topic_bodies),
    ("ack_body", ack_body),
    ("schema", schema),
    ("names", names),
    ("query", query),
    ("duration", duration),
    ("token", token),
];

/// The body of a batch produce.
pub fn batch_body(bytes: &[u8]) {
    let body = Bytes::copy_from_slice(bytes);
    if let Some(count) = decoders::batch_messages(&body) {
        assert!(count > 0 && count <= limits::PRODUCE_BATCH_MESSAGES_MAX);
    }
}

/// A packed body: what it grows to is bounded.
pub fn packed_body(bytes: &[u8]) {
    let body = Bytes::copy_from_slice(bytes);
    for is_zstd in [false, true] {
        assert!(decoders::unpacked(&body, is_zstd).is_none_or(|len| len <= limits::PRODUCE_BATCH_BYTES_MAX));
    }
}

/// The bodies that create, change and attach a topic: what is read is written back with the same meaning.
pub fn topic_bodies(bytes: &[u8]) {
    for (kind, written) in decoders::topic_bodies(bytes).into_iter().enumerate() {
        if let Some(written) = written {
            assert_eq!(decoders::topic_bodies(&written)[kind].as_ref(), Some(&written));
        }
    }
}

/// The body of a batch ack: handles over the bound are counted and not kept.
pub fn ack_body(bytes: &[u8]) {
    if let Some((kept, total)) = decoders::ack_handles(bytes) {
        assert!(kept <= total && kept <= limits::ACK_BATCH_HANDLES_MAX);
    }
}

/// Two schemas and a payload, a line each: a schema follows itself, and what was valid stays valid under one that may follow.
pub fn schema(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut lines = text.splitn(3, '\n');
    let (current, new, payload) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""), lines.next().unwrap_or(""));
    if !decoders::is_schema(current) {
        return;
    }
    assert!(decoders::may_follow(current, current), "a schema follows itself");
    let is_valid = decoders::is_valid(current, payload.as_bytes());
    if decoders::is_schema(new) && decoders::may_follow(current, new) && is_valid {
        assert!(decoders::is_valid(new, payload.as_bytes()), "a valid payload became invalid");
    }
}

/// Names and keys: a topic's name can be a part of a path, and is taken again as it is.
pub fn names(bytes: &[u8]) {
    assert!(Key::parse(Bytes::copy_from_slice(bytes)).is_ok() == (bytes.len() <= limits::KEY_BYTES_MAX));
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(name) = TopicName::parse(text) {
        assert_eq!(name.as_str(), text);
        assert!(text != "." && text != ".." && !text.contains(['/', '\\', '\0']) && text.len() <= limits::TOPIC_NAME_BYTES_MAX);
        assert!(TopicName::parse(&name.folded()).is_ok());
    }
    if let Ok(name) = HeaderName::parse(text) {
        assert_eq!(HeaderName::parse(name.as_str()), Ok(name));
    }
}

/// A query string, and a path segment.
pub fn query(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        decoders::query(text);
    }
}

/// A duration: what is read is written back with the same meaning.
pub fn duration(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Some(found) = decoders::duration(text)
    {
        assert_eq!(decoders::duration(&decoders::duration_text(found)), Some(found));
    }
}

static SIGNER: LazyLock<Ed25519KeyPair> = LazyLock::new(|| Ed25519KeyPair::from_seed_unchecked(&[1; 32]).expect("a seed"));
static ISSUER: LazyLock<Arc<TokenIssuerRecord>> = LazyLock::new(|| {
    let key = TokenKey { kid: "k1".to_owned(), x: URL_SAFE_NO_PAD.encode(SIGNER.public_key()) };
    let issuer = TokenIssuer { issuer: "https://id.example".to_owned(), audience: "veena".to_owned(), keys: vec![key] };
    Arc::new(TokenIssuerRecord { issuer, revision: 1 })
});
static AUTHENTICATOR: LazyLock<Authenticator> = LazyLock::new(|| Authenticator::new().expect("random"));

/// A token: as it is, and a header and claims, a line each, under a good signature. Whatever is good ends within an hour and the skew.
pub fn token(bytes: &[u8]) {
    const NOW_MS: u64 = 1_700_000_000_000;
    let (header, claims) = bytes.iter().position(|byte| *byte == b'\n').map_or((bytes, &b""[..]), |at| (&bytes[..at], &bytes[at + 1..]));
    let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let signed = format!("{message}.{}", URL_SAFE_NO_PAD.encode(SIGNER.sign(message.as_bytes())));
    for text in [bytes, signed.as_bytes()] {
        let header = [b"Bearer ", text].concat();
        let Some(token) = Token::of_bearer(&header) else { continue };
        if let Ok(found) = AUTHENTICATOR.verify_token(token, &ISSUER, NOW_MS) {
            let latest = NOW_MS + limits::TOKEN_SKEW_MS + limits::TOKEN_LIFETIME_MS_MAX;
            assert!(found.expires_at_ms() > NOW_MS && found.expires_at_ms() <= latest && header.len() <= limits::TOKEN_BYTES_MAX + 7);
        }
    }
}
