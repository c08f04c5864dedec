use proptest::prelude::*;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};
use veena_contract::TokenKey;

use super::*;

/// Now, in seconds.
const NOW: u64 = 1_700_000_000;

fn pair(seed: u8) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).expect("a seed")
}

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn public(seed: u8) -> String {
    encoded(pair(seed).public_key())
}

/// Whose key is called `k` and a number, which is its seed.
fn issuer(seeds: &[u8]) -> Arc<TokenIssuerRecord> {
    let keys = seeds.iter().map(|seed| TokenKey { kid: format!("k{seed}"), x: public(*seed) }).collect();
    let issuer = TokenIssuer { issuer: "https://id.example".to_owned(), audience: "veena".to_owned(), keys };
    issuer.check().expect("an issuer");
    Arc::new(TokenIssuerRecord { issuer, revision: 1 })
}

fn claims() -> Value {
    json!({"iss": "https://id.example", "aud": "veena", "sub": "joe", "iat": NOW - 10, "exp": NOW + 600})
}

fn with(changes: Value) -> String {
    let mut claims = claims();
    for (name, value) in changes.as_object().expect("changes") {
        match value {
            Value::Null => drop(claims.as_object_mut().expect("claims").remove(name)),
            value => claims[name] = value.clone(),
        }
    }
    claims.to_string()
}

fn signed(seed: u8, header: &str, claims: &str) -> String {
    let message = format!("{}.{}", encoded(header), encoded(claims));
    let signature = pair(seed).sign(message.as_bytes());
    format!("{message}.{}", encoded(signature))
}

fn header(seed: u8) -> String {
    format!(r#"{{"typ":"JWT","alg":"EdDSA","kid":"k{seed}"}}"#)
}

fn token(claims: &str) -> String {
    signed(1, &header(1), claims)
}

fn verified_at(text: &str, now_ms: u64) -> Result<(String, u64), InvalidToken> {
    let header = format!("Bearer {text}");
    let token = Token::of_bearer(header.as_bytes()).expect("of this scheme");
    let found = Tokens::new().expect("random").verify(token, &issuer(&[1, 2]), now_ms)?;
    Ok((format!("{}@{}", found.actor().username, found.actor().tenant), found.expires_at_ms()))
}

fn verified(text: &str) -> Result<(String, u64), InvalidToken> {
    verified_at(text, NOW * SECOND_MS)
}

fn good(name: &str) -> Result<(String, u64), InvalidToken> {
    Ok((name.to_owned(), (NOW + 600) * SECOND_MS))
}

#[test]
fn a_token_says_who_its_holder_is() {
    assert_eq!(verified(&token(&claims().to_string())), good("joe@default"));
    assert_eq!(verified(&signed(2, &header(2), &claims().to_string())), good("joe@default"));
    for (changes, who) in [
        (json!({"tid": "acme"}), "joe@acme"),
        (json!({"tid": "default"}), "joe@default"),
        (json!({"aud": ["other", "veena"]}), "joe@default"),
        (json!({"nbf": NOW, "jti": "x", "scope": {"a": [1]}}), "joe@default"),
        (json!({"iat": NOW + 60}), "joe@default"),
        (json!({"nbf": NOW + 60}), "joe@default"),
    ] {
        assert_eq!(verified(&token(&with(changes.clone()))), good(who), "{changes}");
    }
    let longest = with(json!({"iat": NOW, "exp": NOW + limits::TOKEN_LIFETIME_MS_MAX / SECOND_MS}));
    assert!(verified(&token(&longest)).is_ok());
    // What a header names as a key of its own is not looked at.
    let own = format!(r#"{{"alg":"EdDSA","kid":"k1","jku":"http://x","jwk":{{"kty":"OKP","crv":"Ed25519","x":"{}"}}}}"#, public(3));
    assert_eq!(verified(&signed(1, &own, &claims().to_string())), good("joe@default"));
    assert_eq!(verified(&signed(3, &own, &claims().to_string())), Err(InvalidToken));
}

#[test]
fn a_token_is_over_at_its_end_and_begins_a_minute_early() {
    let token = |iat: u64, nbf: u64, exp: u64| token(&with(json!({"iat": iat, "nbf": nbf, "exp": exp})));
    let (now, ok) = (NOW * SECOND_MS, |text: &str, at| verified_at(text, at).is_ok());
    let plain = token(NOW - 100, NOW - 100, NOW);
    assert!(ok(&plain, now - 1) && !ok(&plain, now), "there is no leeway behind the end");
    for late in [1, 59, 61] {
        assert!(!ok(&plain, now + late * SECOND_MS), "{late} s");
    }
    for (iat, nbf) in [(NOW, NOW - 100), (NOW - 100, NOW)] {
        let coming = token(iat, nbf, NOW + 600);
        assert!(ok(&coming, now - 60 * SECOND_MS) && !ok(&coming, now - 60 * SECOND_MS - 1), "{iat} {nbf}");
    }
}

fn hs256(secret: &[u8]) -> String {
    let message = format!("{}.{}", encoded(r#"{"alg":"HS256","kid":"k1"}"#), encoded(claims().to_string()));
    let mac = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message.as_bytes());
    format!("{message}.{}", encoded(mac))
}

#[test]
fn what_is_no_token_of_the_issuer_is_refused() {
    let (text, whole) = (claims().to_string(), token(&claims().to_string()));
    let unsigned = format!("{}.{}.", encoded(r#"{"alg":"none","kid":"k1"}"#), encoded(&text));
    let twice = |name: &str, value: &str| token(&text.replacen('{', &format!(r#"{{"{name}":{value},"#), 1));
    let head = |header: &str| signed(1, header, &text);
    let mut refused = vec![
        ("nothing", String::new()),
        ("garbage", "x".to_owned()),
        ("dots", "..".to_owned()),
        ("two parts", whole.rsplit_once('.').expect("parts").0.to_owned()),
        ("four parts", format!("{whole}.x")),
        ("no signature", unsigned.clone()),
        ("none with a signature", format!("{unsigned}{}", whole.rsplit_once('.').expect("parts").1)),
        ("None", format!("{}.{}.", encoded(r#"{"alg":"None","kid":"k1"}"#), encoded(&text))),
        ("HS256 with the text of the key", hs256(public(1).as_bytes())),
        ("HS256 with the key", hs256(pair(1).public_key().as_ref())),
        ("RS256", head(r#"{"alg":"RS256","kid":"k1"}"#)),
        ("ES256", head(r#"{"alg":"ES256","kid":"k1"}"#)),
        ("no algorithm", head(r#"{"kid":"k1"}"#)),
        ("no kid", head(r#"{"alg":"EdDSA"}"#)),
        ("kid of nobody", signed(3, &header(3), &text)),
        ("key of another kid", signed(2, &header(1), &text)),
        ("two kids", head(r#"{"alg":"EdDSA","kid":"k1","kid":"k2"}"#)),
        ("what must be understood", head(r#"{"alg":"EdDSA","kid":"k1","crit":["x"],"x":1}"#)),
        ("not of base64", head(r#"{"alg":"EdDSA","kid":"k1","crit":["b64"],"b64":false}"#)),
        ("padding", format!("{whole}=")),
        ("claims that are none", token("[]")),
        ("iss of another", token(&with(json!({"iss": "https://id.example/"})))),
        ("list of issuers", token(&with(json!({"iss": ["https://id.example"]})))),
        ("aud of another", token(&with(json!({"aud": "veena2"})))),
        ("auds of others", token(&with(json!({"aud": ["a", "b"]})))),
        ("no aud in it", token(&with(json!({"aud": []})))),
        ("a number as aud", token(&with(json!({"aud": 1})))),
        ("tid of none", token(&with(json!({"tid": "A B"})))),
        ("sub of nobody", token(&with(json!({"sub": "j e"})))),
        ("sub with a tenant", token(&with(json!({"sub": "joe@acme"})))),
        ("nbf in a while", token(&with(json!({"nbf": NOW + 61})))),
        ("iat in a while", token(&with(json!({"iat": NOW + 61})))),
        ("too long a life", token(&with(json!({"iat": NOW, "exp": NOW + 3601})))),
        ("end before its begin", token(&with(json!({"iat": NOW, "exp": NOW - 1})))),
        ("end at the end of time", token(&with(json!({"iat": u64::MAX - 10, "exp": u64::MAX})))),
        ("exp as a text", token(&with(json!({"exp": "1700000600"})))),
        ("exp in parts", token(&with(json!({"exp": 1_700_000_600.5})))),
        ("negative iat", token(&with(json!({"iat": -1})))),
        ("exp twice", twice("exp", "1800000000")),
        ("sub twice", twice("sub", r#""ann""#)),
        ("tid twice", token(&with(json!({"tid": "acme"})).replacen('{', r#"{"tid":"twin","#, 1))),
        ("another claim twice", token(&text.replacen('{', r#"{"x":1,"x":1,"#, 1))),
        ("too long", token(&with(json!({"pad": "x".repeat(limits::TOKEN_BYTES_MAX)})))),
        ("a megabyte", token(&with(json!({"pad": "x".repeat(1024 * 1024)})))),
    ];
    refused.extend(["iss", "aud", "sub", "exp", "iat"].map(|name| (name, token(&with(json!({name: null}))))));
    for (what, text) in &refused {
        assert_eq!(verified(text), Err(InvalidToken), "{what}");
    }
    // Any other signature.
    let (message, signature) = whole.rsplit_once('.').expect("parts");
    let signature = URL_SAFE_NO_PAD.decode(signature).expect("base64");
    for at in 0..signature.len() {
        let mut other = signature.clone();
        other[at] ^= 1;
        assert_eq!(verified(&format!("{message}.{}", encoded(other))), Err(InvalidToken), "{at}");
    }
}

#[test]
fn a_key_of_the_cluster_is_no_token_and_another_scheme_is_none_either() {
    let of = |header: &str| Token::of_bearer(header.as_bytes()).map(|token| String::from_utf8(token.0.to_vec()).expect("text"));
    assert_eq!((of("Bearer x"), of("bEARER   x ")), (Some("x".to_owned()), Some("x".to_owned())));
    assert_eq!(of("Bearer "), Some(String::new()));
    for header in ["Basic x", "", "Bearer", "Bearer veena_", "Bearer veena_sk_0123456789aZ_x", "BEARER  veena_x"] {
        assert_eq!(of(header), None, "{header}");
    }
}

#[test]
fn what_was_verified_is_remembered_as_long_as_it_would_be_again() {
    let tokens = Tokens::new().expect("random");
    let header = format!("Bearer {}", token(&claims().to_string()));
    let token = Token::of_bearer(header.as_bytes()).expect("of this scheme");
    let at = |issuer: &Arc<TokenIssuerRecord>, now_ms: u64| tokens.verify(token, issuer, now_ms);
    let (one, now_ms) = (issuer(&[1]), NOW * SECOND_MS);
    let first = at(&one, now_ms).expect("good");
    assert!(Arc::ptr_eq(&first, &at(&one, now_ms).expect("good")), "it is known");
    assert!(Arc::ptr_eq(&first, &at(&issuer(&[1, 2]), now_ms).expect("good")), "another key is nothing to it");
    assert_eq!(at(&issuer(&[2]), now_ms).map(drop), Err(InvalidToken), "its key is gone");
    let mut swapped = TokenIssuerRecord::clone(&one);
    swapped.issuer.keys[0].x = public(2);
    assert_eq!(at(&Arc::new(swapped), now_ms).map(drop), Err(InvalidToken), "its key is another");
    for name in ["issuer", "audience"] {
        let mut other = TokenIssuerRecord::clone(&one);
        let text = if name == "issuer" { &mut other.issuer.issuer } else { &mut other.issuer.audience };
        text.push('x');
        assert_eq!(at(&Arc::new(other), now_ms).map(drop), Err(InvalidToken), "another {name}");
    }
    assert_eq!(at(&one, first.expires_at_ms()).map(drop), Err(InvalidToken), "it is over");
    assert!(first.stands(Some(&one), first.expires_at_ms() - 1) && !first.stands(Some(&one), first.expires_at_ms()));
    assert!(!first.stands(None, now_ms), "nobody's tokens are taken");
}

#[test]
fn what_is_remembered_is_bounded() {
    let tokens = Tokens::new().expect("random");
    let one = issuer(&[1]);
    for n in 0..limits::TOKENS_VERIFIED_MAX + 10 {
        let header = format!("Bearer {}", token(&with(json!({"jti": n}))));
        tokens.verify(Token::of_bearer(header.as_bytes()).expect("a token"), &one, NOW * SECOND_MS).expect("good");
        assert!(tokens.known.read().len() <= limits::TOKENS_VERIFIED_MAX);
    }
    let kept = tokens.known.read().len();
    assert!(kept >= limits::TOKENS_VERIFIED_MAX / 2, "{kept}");
}

#[test]
fn no_token_is_printed() {
    let text = token(&claims().to_string());
    let header = format!("Bearer {text}");
    let found =
        Tokens::new().expect("random").verify(Token::of_bearer(header.as_bytes()).expect("a token"), &issuer(&[1]), NOW * SECOND_MS);
    let printed = format!("{found:?} {InvalidToken} {InvalidToken:?}");
    assert!(printed.contains("joe") && text.split('.').all(|part| !printed.contains(part)), "{printed}");
}

/// Printed, for whoever wants to know: `cargo nextest run --release --no-capture a_token_is_checked`.
#[test]
#[expect(clippy::disallowed_methods, reason = "how long it takes is printed")]
fn a_token_is_checked_in_microseconds() {
    const ROUNDS: u32 = 2_000;
    let one = issuer(&[1]);
    let header = format!("Bearer {}", token(&claims().to_string()));
    let token = Token::of_bearer(header.as_bytes()).expect("a token");
    let began = std::time::Instant::now();
    (0..ROUNDS).for_each(|_| drop(verify(token, &one, NOW * SECOND_MS).expect("good")));
    println!("one signature: {:?}", began.elapsed() / ROUNDS);
    let (tokens, began) = (Tokens::new().expect("random"), std::time::Instant::now());
    (0..ROUNDS).for_each(|_| drop(tokens.verify(token, &one, NOW * SECOND_MS).expect("good")));
    println!("one that is remembered: {:?}", began.elapsed() / ROUNDS);
}

proptest! {
    #[test]
    fn no_token_brings_the_reader_down(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        header in "\\PC{0,60}",
        claims in "\\PC{0,120}",
        is_signed in any::<bool>(),
    ) {
        let refused = |token: &[u8]| {
            let header = [b"Bearer ", token].concat();
            let token = Token::of_bearer(&header);
            token.is_none_or(|token| Tokens::new().expect("random").verify(token, &issuer(&[1]), NOW * SECOND_MS).is_err())
        };
        prop_assert!(refused(&bytes));
        let _ = Token::of_bearer(&bytes);
        let text = if is_signed { token(&claims) } else { signed(1, &header, &claims) };
        prop_assert!(refused(text.as_bytes()));
    }
}

#[test]
fn a_key_for_which_anybody_can_sign_is_told() {
    // Nothing, times the base point, is the neutral element, which is what such a key adds: no secret is needed.
    let (mut neutral, mut forged) = ([0; 32], [0; 64]);
    (neutral[0], forged[0]) = (1, 1);
    assert!(UnparsedPublicKey::new(&ED25519, &neutral).verify(b"anything", &forged).is_ok(), "that is why");
    assert!(is_weak(&encoded(neutral)) && is_weak(&"A".repeat(43)));
    neutral[31] = 0x80;
    assert!(is_weak(&encoded(neutral)), "with the other sign");
    assert!((0..=255).all(|seed| !is_weak(&public(seed))) && !is_weak("") && !is_weak("x"));
}
