//! Service accounts and their keys: their life, and what ends with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use veena_auth::ApiKey;
use veena_contract::{CatalogWriter as _, Command, KeyHash, KeyId, KeyRecord, TenantId, UserKind, UserRecord, Username, limits};

use crate::support::{Answer, Client, Node, PASSWORD, basic, bearer, forged, until};
use crate::users::{park_with, pass};

async fn account(node: &Node, name: &str, grants: &str) {
    let answer = node.send_as_root("POST", "/v1/accounts", &format!(r#"{{"name":"{name}","grants":{grants}}}"#)).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
}

/// Creates a key; its id and its text.
async fn key(node: &Node, account: &str, body: &str) -> (String, String) {
    let answer = node.send_as_root("POST", &format!("/v1/accounts/{account}/keys"), body).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let told = answer.json();
    (told["id"].as_str().expect("an id").to_owned(), told["key"].as_str().expect("a key").to_owned())
}

async fn with_key(node: &Node, key: &str, method: &str, path: &str, body: &str) -> Answer {
    node.send_with(Some(&format!("Bearer {key}")), method, path, body).await
}

async fn signs_in(node: &Node, key: &str) -> u16 {
    with_key(node, key, "GET", "/v1/whoami", "").await.status
}

#[tokio::test]
async fn an_account_is_created_shown_changed_and_deleted_and_is_no_user() {
    let node = Node::start_secured().await;
    let grants = r#"[{"action":"produce","patterns":["a","b*"]}]"#;
    let created = node.send_as_root("POST", "/v1/accounts", &format!(r#"{{"name":"ci","grants":{grants}}}"#)).await;
    assert_eq!(created.status, 201, "{}", created.text());
    let told = created.json();
    let fields: Vec<&String> = told.as_object().expect("an account").keys().collect();
    assert_eq!(fields, ["created_at_ms", "grants", "name", "updated_at_ms"]);
    assert_eq!((&told["name"], &told["grants"]), (&json!("ci"), &serde_json::from_str(grants).expect("json")));
    assert_eq!(node.send_as_root("GET", "/v1/accounts/ci", "").await.json(), told);
    node.user("joe", &[]).await;
    let names = async |path: &str, field: &str| -> Vec<Value> {
        let list = node.send_as_root("GET", path, "").await.json();
        list.as_array().expect("a bare list").iter().map(|one| one[field].clone()).collect()
    };
    assert_eq!(names("/v1/accounts", "name").await, ["ci"]);
    assert_eq!(names("/v1/users", "username").await, ["admin", "joe"]);

    for (path, text) in
        [("/v1/users/ci", "user not found"), ("/v1/accounts/joe", "account not found"), ("/v1/accounts/j%20e", "account not found")]
    {
        for (method, path, body) in
            [("GET", path.to_owned(), ""), ("DELETE", path.to_owned(), ""), ("PUT", format!("{path}/grants"), r#"{"grants":[]}"#)]
        {
            assert_eq!(node.send_as_root(method, &path, body).await.refusal(404, "not_found"), text, "{method} {path}");
        }
    }
    for (method, body) in [("GET", ""), ("POST", "{}")] {
        assert_eq!(node.send_as_root(method, "/v1/accounts/joe/keys", body).await.refusal(404, "not_found"), "account not found");
    }
    let password = node.send_as_root("PUT", "/v1/users/ci/password", r#"{"new_password":"x"}"#).await;
    assert_eq!(password.refusal(404, "not_found"), "user not found");
    for (path, body, text) in [
        ("/v1/users", r#"{"username":"ci","password":"x"}"#, "a user or a service account of this name already exists"),
        ("/v1/accounts", r#"{"name":"ci"}"#, "a user or a service account of this name already exists"),
        ("/v1/accounts", r#"{"name":"joe"}"#, "a user or a service account of this name already exists"),
        ("/v1/accounts", r#"{"name":"admin"}"#, "a user or a service account of this name already exists"),
    ] {
        assert_eq!(node.send_as_root("POST", path, body).await.refusal(409, "already_exists"), text, "{body}");
    }
    let named = node.send_as_root("POST", "/v1/accounts", r#"{"name":"a b"}"#).await;
    assert_eq!(named.refusal(400, "invalid_argument"), "name must be 1 to 64 of A-Z a-z 0-9 . _ -, and not . or ..");

    let (_, secret) = key(&node, "ci", "{}").await;
    let produce = async || with_key(&node, &secret, "POST", "/v1/topics/nosuch/produce", "x").await.status;
    assert_eq!(produce().await, 403);
    let all = r#"{"grants":[{"action":"produce","patterns":["*"]}]}"#;
    assert_eq!(node.send_as_root("PUT", "/v1/accounts/ci/grants", all).await.status, 200);
    assert_eq!(produce().await, 404, "at once");
    let own = with_key(&node, &secret, "PUT", "/v1/users/ci/password", r#"{"new_password":"x","current_password":"x"}"#).await;
    assert_eq!(own.refusal(404, "not_found"), "user not found", "not even to itself");
    assert_eq!(node.send_as_root("DELETE", "/v1/accounts/ci", "").await.status, 204);
    assert_eq!(signs_in(&node, &secret).await, 401, "at once");
    account(&node, "ci", "[]").await;
    assert_eq!(signs_in(&node, &secret).await, 401, "another account of the name");
    assert_eq!(node.send_as_root("GET", "/v1/accounts/ci/keys", "").await.json(), json!([]));
}

#[tokio::test]
async fn a_key_is_shown_once_and_listed_without_what_is_secret() {
    let node = Node::start_secured().await;
    account(&node, "ci", r#"[{"action":"consume","patterns":["t"]}]"#).await;
    let body = r#"{"description":"for the build","expires_in_ms":60000,"scopes":[{"action":"consume","patterns":["t*"]}]}"#;
    let created = node.send_as_root("POST", "/v1/accounts/ci/keys", body).await;
    assert_eq!((created.status, created.header("cache-control")), (201, Some("no-store")), "{}", created.text());
    let told = created.json();
    let secret = told["key"].as_str().expect("a key");
    let read = ApiKey::parse(secret).expect("a key of its form");
    assert_eq!((told["id"].as_str(), &told["created_by"]), (Some(read.id().as_str()), &json!("admin")));
    assert_eq!(told["expires_at_ms"].as_u64(), told["created_at_ms"].as_u64().map(|at_ms| at_ms + 60_000));

    let listed = async || node.send_as_root("GET", "/v1/accounts/ci/keys", "").await;
    let mut expected = told.clone();
    expected.as_object_mut().expect("a key").remove("key");
    assert_eq!(listed().await.json(), json!([expected]));
    assert!(!listed().await.text().contains(&secret[secret.len() - 36..]));
    assert_eq!(signs_in(&node, secret).await, 200);
    let used_ms = listed().await.json()[0]["last_used_ms"].as_u64().expect("it was used");
    assert!(
        used_ms % limits::KEY_USE_MS == 0 && used_ms + limits::KEY_USE_MS > told["created_at_ms"].as_u64().expect("a time"),
        "{used_ms}"
    );
    pass(Duration::from_secs(60)).await;
    assert_eq!(listed().await.json()[0]["expired"], json!(true));
}

#[tokio::test]
async fn what_cannot_be_a_key_is_refused_with_a_text() {
    let node = Node::start_secured().await;
    account(&node, "ci", "[]").await;
    let long = format!(r#"{{"description":"{}"}}"#, "x".repeat(257));
    for (body, text) in [
        (r#"{"scopes":[]}"#, "scopes must not be empty: leave it out for all that the account may do"),
        (r#"{"scopes":[{"action":"produce"}]}"#, "action produce requires at least one pattern"),
        (r#"{"expires_in_ms":0}"#, "expires_in_ms must be 1 to 315360000000"),
        (r#"{"expires_in_ms":-1}"#, "expires_in_ms must be 1 to 315360000000"),
        (r#"{"expires_in_ms":315360000001}"#, "expires_in_ms must be 1 to 315360000000"),
        (r#"{"description":"a\nb"}"#, "description must be up to 256 bytes without control characters"),
        (&long, "description must be up to 256 bytes without control characters"),
    ] {
        assert_eq!(node.send_as_root("POST", "/v1/accounts/ci/keys", body).await.refusal(400, "invalid_argument"), text, "{body}");
    }
    for body in ["", "[]", r#"{"key":"x"}"#] {
        let text = node.send_as_root("POST", "/v1/accounts/ci/keys", body).await.refusal(400, "malformed_request");
        assert!(text.starts_with("invalid json: "), "{text}");
    }
    for _ in 0..limits::KEYS_PER_ACCOUNT_MAX {
        key(&node, "ci", "{}").await;
    }
    let refused = node.send_as_root("POST", "/v1/accounts/ci/keys", "{}").await;
    assert_eq!(refused.refusal(409, "limit_reached"), "limit reached: an account has at most 5 keys that have not expired");
}

#[tokio::test]
async fn whatever_is_wrong_with_a_key_the_answer_is_the_same() {
    let node = Node::start_secured().await;
    node.account("ci", &[("admin", "")]).await;
    node.user("joe", &[]).await;
    let good = node.key("ci", None, None).await;
    let expired = node.key("ci", None, Some(1)).await;
    let unknown = ApiKey::random(veena_auth::KeyKind::Service).expect("random");
    let other_kind = ApiKey::random(veena_auth::KeyKind::Replication).expect("random");
    let mut mistyped = good.expose().to_owned();
    mistyped.pop();
    mistyped.push('!');
    let nobody = node.send_with(None, "GET", "/v1/whoami", "").await;
    let shape = |answer: &Answer| {
        let mut body = answer.json();
        body.as_object_mut().expect("a body").remove("instance");
        (answer.status, answer.header("www-authenticate").map(str::to_owned), body)
    };
    assert_eq!(nobody.header("www-authenticate"), Some("Basic realm=\"narad\""));
    for header in [
        bearer(&expired),
        bearer(&unknown),
        bearer(&other_kind),
        bearer(&forged(&good)),
        format!("Bearer {mistyped}"),
        "Bearer".to_owned(),
        "Bearer ".to_owned(),
        basic("ci", good.expose()),
        basic("apikey", good.expose()),
        basic("ci", PASSWORD),
        format!("Token {}", good.expose()),
    ] {
        let answer = node.send_with(Some(&header), "GET", "/v1/whoami", "").await;
        assert_eq!(shape(&answer), shape(&nobody), "{}", header.replace(good.expose(), "(the key)"));
    }
    for header in [bearer(&good), format!("bearer  {} ", good.expose())] {
        assert_eq!(node.send_with(Some(&header), "GET", "/v1/users", "").await.status, 200);
    }
}

#[tokio::test]
async fn whoever_asks_is_told_who_they_are() {
    let node = Node::start_secured().await;
    node.account("ci", &[("admin", "")]).await;
    node.user("joe", &[("consume", "t")]).await;
    let (whole, scoped) = (node.key("ci", None, None).await, node.key("ci", Some(&[("consume", "t")]), None).await);
    let admin = json!([{"action": "admin"}]);
    let consume = json!([{"action": "consume", "patterns": ["t"]}]);
    for (header, told) in [
        (basic("admin", PASSWORD), json!({"tenant": "default", "name": "admin", "kind": "person", "root": true, "operator": true})),
        (basic("joe", PASSWORD), json!({"tenant": "default", "name": "joe", "kind": "person", "grants": consume, "operator": false})),
        (
            bearer(&whole),
            json!({"tenant": "default", "name": "ci", "kind": "service", "key_id": whole.id().as_str(), "grants": admin, "operator": true}),
        ),
        (
            bearer(&scoped),
            json!({
                "tenant": "default", "name": "ci", "kind": "service", "key_id": scoped.id().as_str(), "grants": admin, "scopes": consume, "operator": false,
            }),
        ),
    ] {
        assert_eq!(node.send_with(Some(&header), "GET", "/v1/whoami", "").await.json(), told);
    }
    assert_eq!(Node::start().await.get("/v1/whoami").await.json(), json!({"tenant": "default", "operator": true}), "nobody is asked for");
}

#[tokio::test]
async fn a_topic_is_its_accounts_and_a_key_with_scopes_manages_what_it_could_create() {
    let node = Node::start_secured().await;
    node.account("ci", &[("create", "*")]).await;
    let (whole, scoped) = (node.key("ci", None, None).await, node.key("ci", Some(&[("create", "a*"), ("consume", "*")]), None).await);
    let send = async |key: &ApiKey, method: &str, path: &str, body: &str| node.send_with(Some(&bearer(key)), method, path, body).await;
    for (key, body, status) in [(&whole, r#"{"name":"b"}"#, 201), (&scoped, r#"{"name":"a"}"#, 201), (&scoped, r#"{"name":"c"}"#, 403)] {
        let answer = send(key, "POST", "/v1/topics", body).await;
        assert_eq!(answer.status, status, "{body} {}", answer.text());
    }
    assert_eq!(send(&whole, "GET", "/v1/topics/a", "").await.json()["owner"], json!("ci"));
    let refused = send(&scoped, "DELETE", "/v1/topics/b", "").await;
    assert_eq!(refused.refusal(403, "forbidden"), "only the topic owner or an admin may modify this topic");
    assert_eq!(send(&scoped, "DELETE", "/v1/topics/a", "").await.status, 204);
    assert_eq!(send(&whole, "DELETE", "/v1/topics/b", "").await.status, 204);
}

/// An account of another tenant with a key, and an admin there: what the tenant's own routes would have made.
async fn other_tenant(node: &Node, account: &str) -> KeyId {
    node.tenant("other").await;
    let tenant = TenantId::parse("other").expect("a tenant");
    let username = Username::parse(account).expect("a name");
    let (kind, id) = (UserKind::Service, KeyId::parse("otherother00").expect("an id"));
    let user = UserRecord {
        tenant: tenant.clone(),
        username: username.clone(),
        kind,
        hash: None,
        grants: veena_contract::Grants::none(),
        is_root: false,
        created_at_ms: 1,
        updated_at_ms: 1,
        revision: 0,
    };
    let hash = KeyHash::new([0; 32]);
    let key =
        KeyRecord { id, tenant, username, hash, scopes: None, created_at_ms: 1, created_by: None, expires_at_ms: None, description: None };
    let writer = node.catalog.newest();
    writer.propose(Command::CreateUser { user }).await.expect("created");
    writer.propose(Command::CreateKey { key }).await.expect("created");
    id
}

#[tokio::test]
async fn a_key_of_another_tenant_or_account_is_not_there() {
    let node = Node::start_secured().await;
    let theirs = other_tenant(&node, "ci").await;
    let absent = node.send_as_root("DELETE", &format!("/v1/accounts/ci/keys/{theirs}"), "").await;
    assert_eq!(absent.refusal(404, "not_found"), "account not found", "there is one of that name, elsewhere");
    account(&node, "ci", "[]").await;
    account(&node, "cd", "[]").await;
    let (own, secret) = key(&node, "cd", "{}").await;
    for id in [theirs.as_str(), own.as_str(), "0123456789ab", "x", "a%2Fb"] {
        let refused = node.send_as_root("DELETE", &format!("/v1/accounts/ci/keys/{id}"), "").await;
        assert_eq!(refused.refusal(404, "not_found"), "key not found", "{id}");
    }
    assert_eq!(node.send_as_root("GET", "/v1/accounts/ci/keys", "").await.json(), json!([]));
    assert_eq!(signs_in(&node, &secret).await, 200);
    assert!(veena_contract::Catalog::view(&*node.catalog).key(&theirs).is_some());
    assert_eq!(node.send_as_root("DELETE", &format!("/v1/accounts/cd/keys/{own}"), "").await.status, 204);
    assert_eq!(signs_in(&node, &secret).await, 401, "at once");
    let again = node.send_as_root("DELETE", &format!("/v1/accounts/cd/keys/{own}"), "").await;
    assert_eq!(again.refusal(404, "not_found"), "key not found");
}

#[tokio::test]
async fn a_parked_consumer_is_cut_off_when_its_key_or_its_account_is_gone_or_it_has_expired() {
    let node = Node::start_secured().await;
    assert_eq!(node.send_as_root("POST", "/v1/topics", r#"{"name":"t","partitions":1}"#).await.status, 201);
    let consume = r#"[{"action":"consume","patterns":["t"]}]"#;
    for name in ["ci", "gone", "barred"] {
        account(&node, name, consume).await;
    }
    let park = async |secret: &str| park_with(&node, &format!("Bearer {secret}")).await;
    let (id, deleted) = key(&node, "ci", "{}").await;
    let (_, kept) = key(&node, "ci", "{}").await;
    let (_, expiring) = key(&node, "ci", r#"{"expires_in_ms":5000}"#).await;
    let (_, gone) = key(&node, "gone", "{}").await;
    let (_, barred) = key(&node, "barred", "{}").await;
    let (mut deleted, mut kept, mut gone, mut barred) = (park(&deleted).await, park(&kept).await, park(&gone).await, park(&barred).await);
    let mut expires = park(&expiring).await;
    assert_eq!(node.send_as_root("DELETE", &format!("/v1/accounts/ci/keys/{id}"), "").await.status, 204);
    assert_eq!(node.send_as_root("DELETE", "/v1/accounts/gone", "").await.status, 204);
    assert_eq!(node.send_as_root("PUT", "/v1/accounts/barred/grants", r#"{"grants":[]}"#).await.status, 200);
    pass(Duration::from_millis(limits::REVOCATION_LOOK_MS)).await;
    let answer = async |client: &mut Client| -> Answer { client.answer(false).await };
    assert_eq!(answer(&mut deleted).await.refusal(401, "unauthenticated"), "authentication required");
    assert_eq!(answer(&mut gone).await.refusal(401, "unauthenticated"), "authentication required");
    assert_eq!(answer(&mut barred).await.refusal(403, "forbidden"), "consume not allowed on this topic");
    pass(Duration::from_secs(5)).await;
    // Nothing changes in the catalog when a key expires.
    assert_eq!(answer(&mut expires).await.refusal(401, "unauthenticated"), "authentication required");
    assert_eq!(signs_in(&node, &expiring).await, 401);
    assert_eq!(node.send_as_root("POST", "/v1/topics/t/produce", "x").await.status, 202);
    assert_eq!(answer(&mut kept).await.status, 200, "whoever still may waits on");
}

#[tokio::test]
async fn a_key_that_expires_while_nothing_changes_gets_no_message_and_cuts_off_who_waits() {
    let node = Node::start_secured().await;
    assert_eq!(node.send_as_root("POST", "/v1/topics", r#"{"name":"t","partitions":1}"#).await.status, 201);
    account(&node, "ci", r#"[{"action":"consume","patterns":["t"]}]"#).await;
    let (_, expiring) = key(&node, "ci", r#"{"expires_in_ms":5000}"#).await;
    let mut parked = park_with(&node, &format!("Bearer {expiring}")).await;
    pass(Duration::from_secs(6)).await;
    assert_eq!(parked.answer(false).await.refusal(401, "unauthenticated"), "authentication required");
    assert_eq!(node.send_as_root("POST", "/v1/topics/t/produce", "x").await.status, 202);
    assert_eq!(signs_in(&node, &expiring).await, 401);
}

#[tokio::test]
async fn a_key_is_replaced_under_load_without_a_request_that_fails() {
    const CLIENTS: usize = 8;
    let node = Arc::new(Node::start_secured().await);
    assert_eq!(node.send_as_root("POST", "/v1/topics", r#"{"name":"t","partitions":1}"#).await.status, 201);
    account(&node, "ci", r#"[{"action":"produce","patterns":["t"]}]"#).await;
    let (old_id, old) = key(&node, "ci", "{}").await;
    let (current, stop) = (watch::Sender::new(old.clone()), Arc::new(AtomicBool::new(false)));
    let (with_new, failed, sent) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let (node, old, current, stop) = (Arc::clone(&node), old.clone(), current.subscribe(), Arc::clone(&stop));
        let (with_new, failed, sent) = (Arc::clone(&with_new), Arc::clone(&failed), Arc::clone(&sent));
        clients.spawn(async move {
            let mut has_switched = false;
            while !stop.load(Ordering::Relaxed) {
                let now = current.borrow().clone();
                let answer = with_key(&node, &now, "POST", "/v1/topics/t/produce", "x").await;
                failed.fetch_add(usize::from(answer.status != 202), Ordering::Relaxed);
                sent.fetch_add(1, Ordering::Relaxed);
                if now != old && !has_switched {
                    has_switched = true;
                    with_new.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    until("requests with the old key", async || sent.load(Ordering::Relaxed) > 10 * CLIENTS).await;
    let (_, new) = key(&node, "ci", "{}").await;
    assert_eq!((signs_in(&node, &old).await, signs_in(&node, &new).await), (200, 200), "both are good");
    current.send_replace(new);
    until("every client has the new key", async || with_new.load(Ordering::Relaxed) == CLIENTS).await;
    assert_eq!(node.send_as_root("DELETE", &format!("/v1/accounts/ci/keys/{old_id}"), "").await.status, 204);
    let before = sent.load(Ordering::Relaxed);
    until("requests with the new key", async || sent.load(Ordering::Relaxed) > before + 10 * CLIENTS).await;
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = clients.join_next().await {
        ended.expect("no client fails");
    }
    assert_eq!(signs_in(&node, &old).await, 401);
    assert_eq!(failed.load(Ordering::Relaxed), 0, "of {} requests", sent.load(Ordering::Relaxed));
}

#[tokio::test]
async fn a_member_that_is_behind_asks_before_it_says_that_there_is_no_account_and_no_key() {
    let node = Node::start_secured_member().await;
    node.catalog.stop_following();
    node.account("ci", &[]).await;
    let made = node.key("ci", None, None).await;
    assert_eq!(node.send_with(Some(&bearer(&made)), "GET", "/v1/whoami", "").await.status, 401, "it does not know yet");
    node.catalog.set_leaderless(true);
    for (method, path) in [
        ("GET", "/v1/accounts/ci".to_owned()),
        ("GET", "/v1/accounts/ci/keys".to_owned()),
        ("DELETE", format!("/v1/accounts/ci/keys/{}", made.id())),
    ] {
        assert!(!node.send_as_root(method, &path, "").await.refusal(503, "metadata_unavailable").is_empty(), "{method} {path}");
    }
    node.catalog.set_leaderless(false);
    assert_eq!(node.send_as_root("DELETE", &format!("/v1/accounts/ci/keys/{}", made.id()), "").await.status, 204);
}
