//! Bearer tokens of an issuer outside: who signs in with one, what ends it, and how the keys of the issuer are replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use tokio::sync::watch;
use veena_contract::limits;

use crate::support::{Answer, Client, Node, PASSWORD, basic, until};
use crate::users::{park_with, pass};

/// When every node of a test starts, in seconds.
pub const START: u64 = 1_700_000_000;
const PATH: &str = "/v1/admin/token-issuer";

fn pair(seed: u8) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).expect("a seed")
}

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn jwk(seed: u8) -> Value {
    let x = encoded(pair(seed).public_key());
    json!({"kty": "OKP", "crv": "Ed25519", "kid": format!("k{seed}"), "x": x, "use": "sig", "alg": "EdDSA"})
}

fn issuer(seeds: &[u8]) -> Value {
    let keys: Vec<Value> = seeds.iter().map(|seed| jwk(*seed)).collect();
    json!({"issuer": "https://id.example", "audience": "veena", "keys": keys})
}

/// Takes the tokens of the keys of these seeds.
pub async fn take(node: &Node, seeds: &[u8]) {
    let put = node.send_as_root("PUT", PATH, &issuer(seeds).to_string()).await;
    assert_eq!(put.status, 200, "{}", put.text());
}

fn signed(seed: u8, header: &Value, claims: &str) -> String {
    let message = format!("{}.{}", encoded(header.to_string()), encoded(claims));
    format!("{message}.{}", encoded(pair(seed).sign(message.as_bytes())))
}

fn header(seed: u8) -> Value {
    json!({"alg": "EdDSA", "kid": format!("k{seed}")})
}

fn claims(sub: &str) -> Value {
    let (sub, tid) = sub.split_once('@').unwrap_or((sub, "default"));
    json!({"iss": "https://id.example", "aud": ["x", "veena"], "sub": sub, "tid": tid, "iat": START, "exp": START + 3600})
}

/// A token of this user, good for an hour.
pub fn token(seed: u8, sub: &str) -> String {
    signed(seed, &header(seed), &claims(sub).to_string())
}

fn with(claims: &Value, changes: &Value) -> String {
    let mut claims = claims.clone();
    for (name, value) in changes.as_object().expect("changes") {
        match value {
            Value::Null => drop(claims.as_object_mut().expect("claims").remove(name)),
            value => claims[name] = value.clone(),
        }
    }
    claims.to_string()
}

async fn with_token(node: &Node, token: &str, method: &str, path: &str, body: &str) -> Answer {
    node.send_with(Some(&format!("Bearer {token}")), method, path, body).await
}

async fn signs_in(node: &Node, token: &str) -> u16 {
    with_token(node, token, "GET", "/v1/whoami", "").await.status
}

/// All that a refusal says, but for its name.
fn said(answer: &Answer) -> (u16, Option<String>, Value) {
    let mut body = answer.json();
    body["instance"] = json!("");
    (answer.status, answer.header("www-authenticate").map(str::to_owned), body)
}

#[tokio::test]
async fn whoever_a_token_names_signs_in_as_the_record_is_now() {
    let node = Node::start_secured().await;
    node.tenant("acme").await;
    for name in ["joe", "joe@acme"] {
        node.user(name, &[("produce", "t")]).await;
    }
    node.account("ci", &[("create", "t")]).await;
    let joe = token(1, "joe");
    assert_eq!(signs_in(&node, &joe).await, 401, "nobody's tokens are taken");
    take(&node, &[1, 2]).await;
    for (sub, kind, tenant) in [("joe", "person", "default"), ("joe@acme", "person", "acme"), ("ci", "service", "default")] {
        let told = with_token(&node, &token(2, sub), "GET", "/v1/whoami", "").await.json();
        let name = sub.split('@').next().expect("a name");
        assert_eq!((&told["name"], &told["kind"], &told["tenant"]), (&json!(name), &json!(kind), &json!(tenant)), "{told}");
        assert_eq!((&told["token_expires_at_ms"], &told["key_id"]), (&json!((START + 3600) * 1000), &Value::Null), "{told}");
    }
    let absent = signed(1, &header(1), &with(&claims("joe"), &json!({"tid": null})));
    assert_eq!(with_token(&node, &absent, "GET", "/v1/whoami", "").await.json()["tenant"], "default");
    assert_eq!(with_token(&node, &token(1, "ci"), "POST", "/v1/topics", r#"{"name":"t","partitions":1}"#).await.status, 201);
    assert_eq!(with_token(&node, &joe, "POST", "/v1/topics/t/produce", "x").await.status, 202);
    assert_eq!(node.send_as_root("PUT", "/v1/users/joe/grants", r#"{"grants":[]}"#).await.status, 200);
    assert_eq!(with_token(&node, &joe, "POST", "/v1/topics/t/produce", "x").await.status, 403, "grants are those of now");
    let password = r#"{"new_password":"another horse"}"#;
    assert_eq!(node.send_as_root("PUT", "/v1/users/joe/password", password).await.status, 204);
    assert_eq!(signs_in(&node, &joe).await, 200, "a password is nothing to it");
    assert_eq!(node.send_as_root("DELETE", "/v1/users/joe", "").await.status, 204);
    assert_eq!(signs_in(&node, &joe).await, 401);
    assert_eq!(signs_in(&node, &token(1, "joe@acme")).await, 200, "another tenant's user of that name");
    assert_eq!(node.send_as_root("PUT", "/v1/admin/tenants/acme", r#"{"state":"suspended"}"#).await.status, 200);
    assert_eq!(signs_in(&node, &token(1, "joe@acme")).await, 403);
    assert_eq!(node.send_as_root("DELETE", "/v1/admin/tenants/acme", "").await.status, 202);
    assert_eq!(signs_in(&node, &token(1, "joe@acme")).await, 401);
    assert_eq!(signs_in(&node, &token(1, "admin")).await, 401, "the root admin signs in with a password alone");
    assert_eq!(node.send_as_root("DELETE", PATH, "").await.status, 204);
    assert_eq!(signs_in(&node, &token(1, "ci")).await, 401);
}

fn hs256(secret: &[u8]) -> String {
    let message = format!("{}.{}", encoded(r#"{"alg":"HS256","kid":"k1"}"#), encoded(claims("joe").to_string()));
    format!("{message}.{}", encoded(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message.as_bytes())))
}

#[tokio::test]
async fn every_token_that_is_not_good_is_refused_as_a_wrong_password_is() {
    let node = Node::start_secured().await;
    node.tenant("acme").await;
    node.user("joe", &[]).await;
    node.user("ann@acme", &[]).await;
    take(&node, &[1]).await;
    let (of_joe, good) = (claims("joe"), token(1, "joe"));
    let of = |changes: Value| signed(1, &header(1), &with(&of_joe, &changes));
    let over = |seconds: u64| of(json!({"iat": START - 600, "exp": START - seconds}));
    let (message, signature) = good.rsplit_once('.').expect("parts");
    let public = pair(1);
    let refused = [
        ("expired for 1 s", over(1)),
        ("expired for 59 s", over(59)),
        ("expired for 61 s", over(61)),
        ("exp is missing", of(json!({"exp": null}))),
        ("iat is missing", of(json!({"iat": null}))),
        ("alg none", format!("{}.{}.", encoded(r#"{"alg":"none","kid":"k1"}"#), encoded(of_joe.to_string()))),
        ("HS256 with the public key", hs256(public.public_key().as_ref())),
        ("HS256 with the text of the public key", hs256(jwk(1)["x"].as_str().expect("a text").as_bytes())),
        ("RS256", signed(1, &json!({"alg": "RS256", "kid": "k1"}), &of_joe.to_string())),
        ("wrong iss", of(json!({"iss": "https://id.example.com"}))),
        ("wrong aud", of(json!({"aud": "vina"}))),
        ("wrong auds", of(json!({"aud": ["a", "b"]}))),
        ("unknown kid", token(2, "joe")),
        ("no kid", signed(1, &json!({"alg": "EdDSA"}), &of_joe.to_string())),
        ("signed with another key", signed(2, &header(1), &of_joe.to_string())),
        ("nbf in the future", of(json!({"nbf": START + 600}))),
        ("iat in the future", of(json!({"iat": START + 600}))),
        ("too long a life", of(json!({"exp": START + 3601}))),
        ("too long", of(json!({"pad": "x".repeat(limits::TOKEN_BYTES_MAX)}))),
        ("a claim twice", signed(1, &header(1), &of_joe.to_string().replacen('{', r#"{"sub":"ann","#, 1))),
        ("another tenant's tid", of(json!({"tid": "acme"}))),
        ("a tenant that is not there", of(json!({"tid": "twin"}))),
        ("a user who is not there", of(json!({"sub": "nosuchuser"}))),
        ("garbage", "garbage".to_owned()),
        ("nothing", String::new()),
        ("no signature", message.to_owned()),
        ("half a signature", format!("{message}.{}", &signature[..40])),
    ];
    assert_eq!(signs_in(&node, &good).await, 200);
    let wrong = said(&node.send_as(Some(("joe", "wrong")), "GET", "/v1/whoami", "").await);
    assert_eq!(wrong.0, 401);
    for (what, token) in refused {
        assert_eq!(said(&with_token(&node, &token, "GET", "/v1/whoami", "").await), wrong, "{what}");
    }
    let megabyte = of(json!({"pad": "x".repeat(1024 * 1024)}));
    let answer = axum_answer(&node, &megabyte).await;
    assert!(answer == 431 || answer == 401, "{answer}: a head of a megabyte is not read at all");
    assert_eq!(signs_in(&node, &good).await, 200);
}

/// Past the socket, on which so long a head is not even sent to its end.
async fn axum_answer(node: &Node, token: &str) -> u16 {
    let request = http::Request::get("/v1/whoami").header("Authorization", format!("Bearer {token}"));
    let request = request.body(axum::body::Body::empty()).expect("a request");
    tower::ServiceExt::oneshot(node.router.clone(), request).await.expect("an answer").status().as_u16()
}

#[tokio::test]
async fn an_issuer_is_put_shown_changed_by_revision_and_taken_away() {
    let node = Node::start_secured().await;
    let send = async |method: &str, body: Value| node.send_as_root(method, PATH, &body.to_string()).await;
    assert_eq!(node.send_as_root("GET", PATH, "").await.refusal(404, "not_found"), "not found: nobody's tokens are taken");
    let put = send("PUT", issuer(&[1])).await;
    let shown = json!({
        "issuer": "https://id.example", "audience": "veena", "revision": 1,
        "keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k1", "x": jwk(1)["x"]}],
    });
    assert_eq!((put.status, put.json()), (200, shown.clone()));
    assert_eq!(send("PUT", shown.clone()).await.json(), shown, "what is shown may be put");
    assert_eq!(node.send_as_root("GET", PATH, "").await.json(), shown);
    let of = |name: &str, value: Value| {
        let mut body = issuer(&[1, 2]);
        body[name] = value;
        body
    };
    assert_eq!(send("PUT", of("revision", json!(5))).await.json()["revision"], 5);
    assert_eq!(send("PUT", of("revision", json!(4))).await.status, 409);
    let mut private = jwk(1);
    private["d"] = json!("canary-of-a-private-key");
    let weak = json!({"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": "A".repeat(43)});
    let other = |name: &str, value: &str| {
        let mut key = jwk(1);
        key[name] = json!(value);
        key
    };
    for (body, code) in [
        (of("keys", json!([private])), "malformed_request"),
        (of("keys", json!([])), "invalid_argument"),
        (of("keys", json!([jwk(1), jwk(1)])), "invalid_argument"),
        (of("keys", json!([weak])), "invalid_argument"),
        (of("keys", json!([other("kty", "RSA")])), "invalid_argument"),
        (of("keys", json!([other("crv", "X25519")])), "invalid_argument"),
        (of("keys", json!([other("alg", "ES256")])), "invalid_argument"),
        (of("keys", json!([other("use", "enc")])), "invalid_argument"),
        (of("keys", json!([other("x", "AAAA")])), "invalid_argument"),
        (of("issuer", json!("")), "invalid_argument"),
        (of("audience", json!("x".repeat(257))), "invalid_argument"),
        (of("revision", json!(-1)), "invalid_argument"),
        (json!("canary"), "malformed_request"),
    ] {
        let answer = send("PUT", body.clone()).await;
        answer.refusal(400, code);
        assert!(!answer.whole().contains("canary"), "{}", answer.text());
    }
    assert_eq!(node.send_as_root("GET", PATH, "").await.json()["revision"], 5);
    assert_eq!((node.send_as_root("DELETE", PATH, "").await.status, node.send_as_root("DELETE", PATH, "").await.status), (204, 204));
    assert_eq!(node.send_as_root("GET", PATH, "").await.status, 404);
}

#[tokio::test]
async fn a_parked_consumer_is_cut_off_when_the_key_of_its_token_or_its_user_is_gone() {
    let node = Node::start_secured().await;
    assert_eq!(node.send_as_root("POST", "/v1/topics", r#"{"name":"t","partitions":1}"#).await.status, 201);
    for name in ["joe", "gone"] {
        node.user(name, &[("consume", "t")]).await;
    }
    take(&node, &[1, 2]).await;
    let park = async |token: &str| park_with(&node, &format!("Bearer {token}")).await;
    let (mut removed, mut kept, mut gone) = (park(&token(1, "joe")).await, park(&token(2, "joe")).await, park(&token(2, "gone")).await);
    take(&node, &[2]).await;
    assert_eq!(node.send_as_root("DELETE", "/v1/users/gone", "").await.status, 204);
    pass(Duration::from_millis(limits::REVOCATION_LOOK_MS)).await;
    let answer = async |client: &mut Client| -> Answer { client.answer(false).await };
    assert_eq!(answer(&mut removed).await.refusal(401, "unauthenticated"), "authentication required");
    assert_eq!(answer(&mut gone).await.refusal(401, "unauthenticated"), "authentication required");
    assert_eq!(node.send_as_root("POST", "/v1/topics/t/produce", "x").await.status, 202);
    assert_eq!(answer(&mut kept).await.status, 200, "whoever still may waits on");
}

#[tokio::test]
async fn a_token_that_ends_while_nothing_changes_cuts_off_who_waits() {
    let node = Node::start_secured().await;
    assert_eq!(node.send_as_root("POST", "/v1/topics", r#"{"name":"t","partitions":1}"#).await.status, 201);
    node.user("joe", &[("consume", "t")]).await;
    take(&node, &[1]).await;
    let ending = signed(1, &header(1), &with(&claims("joe"), &json!({"exp": START + 60})));
    // Most of its life goes by first: a consumer waits ten seconds, and an idle connection is closed after a while.
    pass(Duration::from_secs(53)).await;
    let mut parked = park_with(&node, &format!("Bearer {ending}")).await;
    pass(Duration::from_secs(8)).await;
    assert_eq!(parked.answer(false).await.refusal(401, "unauthenticated"), "authentication required");
    assert_eq!(signs_in(&node, &ending).await, 401);
}

#[tokio::test]
async fn the_keys_of_the_issuer_are_replaced_under_load_without_a_request_that_fails() {
    const CLIENTS: usize = 8;
    let node = Arc::new(Node::start_secured().await);
    assert_eq!(node.send_as_root("POST", "/v1/topics", r#"{"name":"t","partitions":1}"#).await.status, 201);
    node.user("joe", &[("produce", "t")]).await;
    take(&node, &[1]).await;
    let (current, stop) = (watch::Sender::new(1), Arc::new(AtomicBool::new(false)));
    let [with_new, failed, sent] = std::array::from_fn(|_| Arc::new(AtomicUsize::new(0)));
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..CLIENTS {
        let (node, current, stop) = (Arc::clone(&node), current.subscribe(), Arc::clone(&stop));
        let (with_new, failed, sent) = (Arc::clone(&with_new), Arc::clone(&failed), Arc::clone(&sent));
        clients.spawn(async move {
            let (mut has_switched, mut turn) = (false, 0);
            while !stop.load(Ordering::Relaxed) {
                let seed = *current.borrow();
                // Every fourth request has a token that was never seen before.
                let jti = format!("{client}-{}", turn / 4);
                let token = signed(seed, &header(seed), &with(&claims("joe"), &json!({"jti": jti})));
                let answer = with_token(&node, &token, "POST", "/v1/topics/t/produce", "x").await;
                failed.fetch_add(usize::from(answer.status != 202), Ordering::Relaxed);
                sent.fetch_add(1, Ordering::Relaxed);
                turn += 1;
                if seed == 2 && !has_switched {
                    has_switched = true;
                    with_new.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    let more = async |what: &str| {
        let before = sent.load(Ordering::Relaxed);
        until(what, async || sent.load(Ordering::Relaxed) > before + 10 * CLIENTS).await;
    };
    more("requests with tokens of the old key").await;
    take(&node, &[1, 2]).await;
    more("requests with tokens of the old key beside the new one").await;
    current.send_replace(2);
    until("every client has tokens of the new key", async || with_new.load(Ordering::Relaxed) == CLIENTS).await;
    take(&node, &[2]).await;
    more("requests with tokens of the new key").await;
    stop.store(true, Ordering::Relaxed);
    while clients.join_next().await.transpose().expect("no client panics").is_some() {}
    assert_eq!(failed.load(Ordering::Relaxed), 0, "of {}", sent.load(Ordering::Relaxed));
    assert_eq!((signs_in(&node, &token(1, "joe")).await, signs_in(&node, &token(2, "joe")).await), (401, 200));
    println!("{} requests, none failed", sent.load(Ordering::Relaxed));
}

#[tokio::test]
async fn a_token_changes_nothing_of_the_other_ways_to_sign_in() {
    let node = Node::start_secured().await;
    node.user("joe", &[]).await;
    node.account("ci", &[]).await;
    let key = node.key("ci", None, None).await;
    take(&node, &[1]).await;
    for header in [basic("joe", PASSWORD), format!("Bearer {}", key.expose()), format!("bearer  {}", token(1, "joe"))] {
        assert_eq!(node.send_with(Some(&header), "GET", "/v1/whoami", "").await.status, 200);
    }
}
