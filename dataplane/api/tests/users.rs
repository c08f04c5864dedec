//! Users: their life, and what ends with it.

use std::time::Duration;

use serde_json::{Value, json};
use veena_contract::{Catalog, CatalogWriter as _, Command, StoredHash, TenantId, UserRecord, Username, limits};

use crate::support::{Answer, Client, Node, PASSWORD, basic, until};

const ROOT: Option<(&str, &str)> = Some(("admin", PASSWORD));

async fn create(node: &Node, name: &str, password: &str, grants: &str) {
    let body = format!(r#"{{"username":"{name}","password":"{password}","grants":{grants}}}"#);
    let answer = node.send_as(ROOT, "POST", "/v1/users", &body).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
}

/// As who sees the list of topics, which every user may.
async fn signs_in(node: &Node, name: &str, password: &str) -> u16 {
    node.send_as(Some((name, password)), "GET", "/v1/topics", "").await.status
}

#[tokio::test]
async fn a_user_is_created_shown_changed_and_deleted() {
    let node = Node::start_secured().await;
    let grants = r#"[{"action":"produce","patterns":["a","b*"]},{"action":"create","patterns":["a"]}]"#;
    let body = format!(r#"{{"username":"joe","password":"hunter2","grants":{grants}}}"#);
    let created = node.send_as(ROOT, "POST", "/v1/users", &body).await;
    assert_eq!(created.status, 201, "{}", created.text());
    let user = created.json();
    let keys: Vec<&String> = user.as_object().expect("a user").keys().collect();
    assert_eq!(keys, ["created_at_ms", "grants", "updated_at_ms", "username"]);
    assert_eq!((&user["username"], &user["grants"]), (&json!("joe"), &serde_json::from_str(grants).expect("json")));
    assert!(user["created_at_ms"].as_u64().expect("a time") >= 1_700_000_000_000);
    assert_eq!(node.send_as(ROOT, "GET", "/v1/users/joe", "").await.json(), user);
    create(&node, "ann", "x", "null").await;
    let all = node.send_as(ROOT, "GET", "/v1/users", "").await.json();
    let names: Vec<&Value> = all.as_array().expect("a bare list").iter().map(|user| &user["username"]).collect();
    assert_eq!(names, ["admin", "ann", "joe"]);
    assert_eq!((&all[0]["root"], all[1].get("root"), all[1].get("grants")), (&json!(true), None, None));
    assert_eq!(signs_in(&node, "joe", "hunter2").await, 200);

    let changed = node.send_as(ROOT, "PUT", "/v1/users/joe/grants", r#"{"grants":[{"action":"admin"}]}"#).await;
    assert_eq!((changed.status, &changed.json()["grants"]), (200, &json!([{"action": "admin"}])));
    assert_eq!(node.send_as(Some(("joe", "hunter2")), "GET", "/v1/users", "").await.status, 200, "at once");
    let emptied = node.send_as(ROOT, "PUT", "/v1/users/joe/grants", r#"{"grants":[]}"#).await;
    assert_eq!((emptied.status, emptied.json().get("grants")), (200, None));
    assert_eq!(node.send_as(Some(("joe", "hunter2")), "GET", "/v1/users", "").await.status, 403, "at once");

    assert_eq!(node.send_as(ROOT, "DELETE", "/v1/users/joe", "").await.status, 204);
    assert_eq!(signs_in(&node, "joe", "hunter2").await, 401, "at once");
    for (method, path, body) in [
        ("GET", "/v1/users/joe", ""),
        ("DELETE", "/v1/users/joe", ""),
        ("PUT", "/v1/users/joe/grants", r#"{"grants":[]}"#),
        ("PUT", "/v1/users/joe/password", r#"{"new_password":"x"}"#),
        ("GET", "/v1/users/j%20e", ""),
    ] {
        assert_eq!(node.send_as(ROOT, method, path, body).await.refusal(404, "not_found"), "user not found", "{method} {path}");
    }
    create(&node, "joe", "hunter3", "[]").await;
    assert_eq!((signs_in(&node, "joe", "hunter2").await, signs_in(&node, "joe", "hunter3").await), (401, 200), "another joe");
}

#[tokio::test]
async fn what_cannot_be_a_user_is_refused_with_a_text() {
    let node = Node::start_secured().await;
    create(&node, "joe", "x", "[]").await;
    let long = "x".repeat(73);
    for (body, status, code, text) in [
        (r#"{"username":"joe","password":"x"}"#, 409, "already_exists", "user already exists"),
        (r#"{"username":"admin","password":"x"}"#, 409, "already_exists", "user already exists"),
        (r#"{"username":"a b","password":"x"}"#, 400, "invalid_argument", "username must be 1 to 64 of A-Z a-z 0-9 . _ -, and not . or .."),
        (r#"{"username":"..","password":"x"}"#, 400, "invalid_argument", "username must be 1 to 64 of A-Z a-z 0-9 . _ -, and not . or .."),
        (r#"{"username":"ann","password":""}"#, 400, "invalid_argument", "password must be 1 to 72 bytes"),
        (&format!(r#"{{"username":"ann","password":"{long}"}}"#), 400, "invalid_argument", "password must be 1 to 72 bytes"),
        (
            r#"{"username":"ann","password":"x","grants":[{"action":"produce"}]}"#,
            400,
            "invalid_argument",
            "action produce requires at least one pattern",
        ),
    ] {
        assert_eq!(node.send_as(ROOT, "POST", "/v1/users", body).await.refusal(status, code), text, "{body}");
    }
    for body in ["", "[]", r#"{"username":"ann"}"#, r#"{"username":"ann","password":1}"#, r#"{"username":"ann","password":"x","role":1}"#] {
        let text = node.send_as(ROOT, "POST", "/v1/users", body).await.refusal(400, "malformed_request");
        assert!(text.starts_with("invalid json: "), "{text}");
    }
    let large = format!(r#"{{"username":"{}"}}"#, "x".repeat(limits::JSON_BODY_BYTES_MAX));
    assert_eq!(node.send_as(ROOT, "POST", "/v1/users", &large).await.refusal(400, "body_too_large"), "request body too large");
}

#[tokio::test]
async fn nobody_gives_what_they_do_not_hold_and_root_stays_as_it_is() {
    let node = Node::start_secured().await;
    node.user("second", &[("admin", "")]).await;
    node.user("joe", &[]).await;
    let second = Some(("second", PASSWORD));
    for (who, method, path, body, text) in [
        (second, "PUT", "/v1/users/joe/grants", r#"{"grants":[{"action":"admin"}]}"#, "cannot grant permissions you do not hold"),
        (
            second,
            "POST",
            "/v1/users",
            r#"{"username":"ann","password":"x","grants":[{"action":"admin"}]}"#,
            "cannot grant permissions you do not hold",
        ),
        (second, "PUT", "/v1/users/second/grants", r#"{"grants":[]}"#, "cannot change your own grants"),
        (second, "PUT", "/v1/users/admin/grants", r#"{"grants":[]}"#, "the root admin's grants cannot be changed"),
        (ROOT, "PUT", "/v1/users/admin/grants", r#"{"grants":[]}"#, "the root admin's grants cannot be changed"),
        (second, "DELETE", "/v1/users/second", "", "cannot delete your own account"),
        (second, "DELETE", "/v1/users/admin", "", "the root admin cannot be deleted"),
        (ROOT, "DELETE", "/v1/users/admin", "", "the root admin cannot be deleted"),
        (second, "PUT", "/v1/users/admin/password", r#"{"new_password":"x"}"#, "only the root admin may change the root admin's password"),
    ] {
        assert_eq!(node.send_as(who, method, path, body).await.refusal(403, "forbidden"), text, "{method} {path} {body}");
    }
    let all = r#"{"grants":[{"action":"produce","patterns":["*"]}]}"#;
    assert_eq!(node.send_as(second, "PUT", "/v1/users/joe/grants", all).await.status, 200, "an admin gives all but admin");
}

#[tokio::test]
async fn a_user_changes_their_own_password_with_the_one_they_have_and_admins_without() {
    let node = Node::start_secured().await;
    create(&node, "joe", "one", "[]").await;
    create(&node, "ann", "x", "[]").await;
    let joe = Some(("joe", "one"));
    let path = "/v1/users/joe/password";
    for body in
        [r#"{"new_password":"two"}"#, r#"{"new_password":"two","current_password":"x"}"#, r#"{"new_password":"two","current_password":""}"#]
    {
        assert_eq!(node.send_as(joe, "PUT", path, body).await.refusal(403, "forbidden"), "current password is incorrect", "{body}");
    }
    let of_ann = node.send_as(joe, "PUT", "/v1/users/ann/password", r#"{"new_password":"two","current_password":"one"}"#).await;
    assert_eq!(of_ann.refusal(403, "forbidden"), "admin privileges required");
    let changed = node.send_as(joe, "PUT", path, r#"{"new_password":"two","current_password":"one"}"#).await;
    assert_eq!((changed.status, changed.body.len()), (204, 0), "{}", changed.text());
    assert_eq!((signs_in(&node, "joe", "one").await, signs_in(&node, "joe", "two").await), (401, 200));
    assert_eq!(node.send_as(ROOT, "PUT", path, r#"{"new_password":"three"}"#).await.status, 204);
    assert_eq!((signs_in(&node, "joe", "two").await, signs_in(&node, "joe", "three").await), (401, 200));
    assert_eq!(node.send_as(ROOT, "PUT", "/v1/users/admin/password", r#"{"new_password":"new"}"#).await.status, 204, "root's own");
    assert_eq!((signs_in(&node, "admin", PASSWORD).await, signs_in(&node, "admin", "new").await), (401, 200));
}

#[tokio::test]
async fn sign_ins_are_counted_by_how_they_ended() {
    let node = Node::start_secured().await;
    node.user("joe", &[]).await;
    assert_eq!(signs_in(&node, "joe", PASSWORD).await, 200);
    for guess in 0..=limits_of_failures() {
        signs_in(&node, "joe", &format!("wrong-{guess}")).await;
    }
    assert_eq!(node.send_as(None, "GET", "/v1/topics", "").await.status, 401);
    let text = node.send_as(ROOT, "GET", "/metrics", "").await.text();
    for line in ["{result=\"ok\"} 2", "{result=\"wrong\"} 5", "{result=\"missing\"} 1", "{result=\"throttled\"} 1", "{result=\"busy\"} 0"] {
        assert!(text.contains(&format!("veena_sign_ins_total{line}\n")), "{line}: {text}");
    }
}

#[tokio::test]
async fn a_request_with_two_names_is_nobodys() {
    let node = Node::start_secured().await;
    let (root, other) = (basic("admin", PASSWORD), basic("nobody", "x"));
    for headers in [[root.as_str(), &other], [&other, &root], [&root, &root]] {
        let headers = headers.map(|value| ("Authorization", value));
        let answer = node.connect().await.request("GET", "/v1/users", &headers, b"").await;
        assert_eq!(answer.refusal(401, "unauthenticated"), "authentication required");
    }
}

#[tokio::test]
async fn a_user_changes_their_password_once_at_a_time() {
    let node = Node::start_secured().await;
    node.user("joe", &[]).await;
    assert_eq!(signs_in(&node, "joe", PASSWORD).await, 200);
    let body = format!(r#"{{"new_password":"two","current_password":"{PASSWORD}"}}"#);
    let all = (0..30).map(|_| node.send_as(Some(("joe", PASSWORD)), "PUT", "/v1/users/joe/password", &body));
    let answers = futures_util::future::join_all(all).await;
    let count = |status: u16| answers.iter().filter(|answer| answer.status == status).count();
    let texts: Vec<String> = answers.iter().map(Answer::text).collect();
    // Whoever comes after the change is unknown by that password.
    assert!(count(204) == 1 && count(429) > 0 && count(204) + count(429) + count(401) == 30, "{texts:?}");
    for refused in answers.iter().filter(|answer| answer.status == 429) {
        assert_eq!(refused.refusal(429, "rate_limited"), "another change of this password is under way");
    }
    assert_eq!(signs_in(&node, "joe", "two").await, 200);
}

/// Lets time pass that nobody waits for.
pub async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn too_many_wrong_passwords_are_throttled_until_time_has_passed_and_whoever_was_right_is_not() {
    let node = Node::start_secured().await;
    node.user("joe", &[]).await;
    assert_eq!(signs_in(&node, "joe", PASSWORD).await, 200);
    for turn in 0..limits_of_failures() {
        assert_eq!(signs_in(&node, "joe", &format!("wrong-{turn}")).await, 401, "{turn}");
    }
    let throttled = node.send_as(Some(("joe", "wrong-last")), "GET", "/v1/topics", "").await;
    assert_eq!(throttled.refusal(429, "rate_limited"), "too many failed authentication attempts");
    let wait: u64 = throttled.header("retry-after").expect("when to come back").parse().expect("seconds");
    assert!((1..=12).contains(&wait), "{wait}");
    assert_eq!(signs_in(&node, "joe", PASSWORD).await, 200, "what was found right needs no check");
    assert_eq!(signs_in(&node, "joe", "wrong-0").await, 401, "what was found wrong needs none either");
    assert_eq!(signs_in(&node, "admin", PASSWORD).await, 200, "others are not");
    pass(Duration::from_secs(wait)).await;
    assert_eq!(signs_in(&node, "joe", "wrong-last").await, 401);
    assert_eq!(signs_in(&node, "joe", "wrong-after").await, 429);
}

#[tokio::test]
async fn who_guesses_at_one_address_keeps_nobody_out_at_another_where_they_signed_in() {
    let node = Node::start_secured().await;
    node.user("joe", &[]).await;
    let signs_in_from = async |last: u8, password: &str| {
        let header = basic("joe", password);
        let mut client = node.connect_from([127, 0, 0, last]).await;
        client.request("GET", "/v1/topics", &[("Authorization", header.as_str())], b"").await.status
    };
    assert_eq!(signs_in_from(7, PASSWORD).await, 200);
    pass(Duration::from_millis(limits::VERIFIED_IDLE_MS)).await;
    for turn in 0..limits_of_failures() {
        assert_eq!(signs_in_from(66, &format!("guess-{turn}")).await, 401);
    }
    assert_eq!(signs_in_from(66, "guess-last").await, 429);
    assert_eq!(signs_in_from(8, PASSWORD).await, 429, "nobody knows who that is");
    assert_eq!(signs_in_from(7, PASSWORD).await, 200);
}

fn limits_of_failures() -> usize {
    usize::try_from(limits::LOGIN_FAILURES_MAX).expect("few")
}

async fn park(node: &Node, name: &str) -> Client {
    park_with(node, &basic(name, PASSWORD)).await
}

/// A consumer of `t` with this `Authorization` header, once it waits.
pub async fn park_with(node: &Node, header: &str) -> Client {
    let before = parked(node).await;
    let mut client = node.connect().await;
    client.start("GET", "/v1/topics/t/consume?wait=10s", &[("Authorization", header)], b"").await;
    until("the consumer is parked", async || parked(node).await > before).await;
    client
}

async fn parked(node: &Node) -> u64 {
    let text = node.send_as(ROOT, "GET", "/metrics", "").await.text();
    text.lines().find_map(|line| line.strip_prefix("veena_consumers_parked ")?.parse().ok()).expect("a number")
}

#[tokio::test]
async fn a_parked_consumer_is_cut_off_when_its_user_or_its_grant_is_gone_or_the_password_is_another() {
    let node = Node::start_secured().await;
    assert_eq!(node.send_as(ROOT, "POST", "/v1/topics", r#"{"name":"t","partitions":1}"#).await.status, 201);
    for name in ["deleted", "barred", "renewed", "kept"] {
        node.user(name, &[("consume", "t")]).await;
    }
    let mut deleted = park(&node, "deleted").await;
    let mut barred = park(&node, "barred").await;
    let mut renewed = park(&node, "renewed").await;
    let mut kept = park(&node, "kept").await;
    assert_eq!(node.send_as(ROOT, "DELETE", "/v1/users/deleted", "").await.status, 204);
    let none = r#"{"grants":[{"action":"produce","patterns":["t"]}]}"#;
    assert_eq!(node.send_as(ROOT, "PUT", "/v1/users/barred/grants", none).await.status, 200);
    assert_eq!(node.send_as(ROOT, "PUT", "/v1/users/renewed/password", r#"{"new_password":"x"}"#).await.status, 204);
    let same = r#"{"grants":[{"action":"consume","patterns":["t*"]}]}"#;
    assert_eq!(node.send_as(ROOT, "PUT", "/v1/users/kept/grants", same).await.status, 200);
    pass(Duration::from_millis(limits::REVOCATION_LOOK_MS)).await;
    let answer = async |client: &mut Client| -> Answer { client.answer(false).await };
    assert_eq!(answer(&mut deleted).await.refusal(401, "unauthenticated"), "authentication required");
    assert_eq!(answer(&mut barred).await.refusal(403, "forbidden"), "consume not allowed on this topic");
    assert_eq!(answer(&mut renewed).await.refusal(401, "unauthenticated"), "authentication required");
    assert_eq!(node.send_as(ROOT, "POST", "/v1/topics/t/produce", "x").await.status, 202);
    assert_eq!(answer(&mut kept).await.status, 200, "whoever still may waits on");
}

/// Sends the head of a request and a byte of its body, and goes on when the node has let it in.
async fn begin(node: &Node, who: &str, method: &str, path: &str, body: &str) -> Client {
    let before = in_flight(node).await;
    let mut client = node.connect().await;
    let (header, length) = (basic(who, PASSWORD), body.len());
    let kind = "Content-Type: application/json\r\nX-Veena-Client: t";
    let (first, _) = body.split_at(1);
    client
        .raw(format!("{method} {path} HTTP/1.1\r\nHost: t\r\nAuthorization: {header}\r\n{kind}\r\nContent-Length: {length}\r\n\r\n{first}"))
        .await;
    until("the request is begun", async || in_flight(node).await > before).await;
    client
}

async fn in_flight(node: &Node) -> u64 {
    let text = node.send_as(ROOT, "GET", "/metrics", "").await.text();
    text.lines().find_map(|line| line.strip_prefix("veena_http_requests_in_flight ")?.parse().ok()).expect("a number")
}

const BEGUN: [(&str, &str, &str); 8] = [
    ("PUT", "/v1/users/second/password", r#"{"new_password":"mine","current_password":"x"}"#),
    ("PUT", "/v1/users/joe/password", r#"{"new_password":"mine"}"#),
    ("PUT", "/v1/users/joe/grants", r#"{"grants":[]}"#),
    ("POST", "/v1/users", r#"{"username":"back-door","password":"x"}"#),
    ("POST", "/v1/topics", r#"{"name":"u"}"#),
    ("PATCH", "/v1/topics/t", r#"{"retention_ms":0}"#),
    ("POST", "/v1/topics/t/produce", "xx"),
    ("POST", "/v1/topics/t/produce/batch", r#"{"payload":"eA=="}"#),
];

#[tokio::test]
async fn a_request_whose_body_trickles_is_refused_when_its_caller_has_lost_what_let_it_in() {
    let changes = [
        ("the password is another", 401, "unauthenticated"),
        ("the user is another of the name", 401, "unauthenticated"),
        ("the rights are gone", 403, "forbidden"),
    ];
    for (change, status, code) in changes {
        let node = Node::start_secured().await;
        node.user("second", &[("admin", "")]).await;
        node.user("joe", &[]).await;
        assert_eq!(node.send_as(ROOT, "POST", "/v1/topics", r#"{"name":"t","partitions":1}"#).await.status, 201);
        let mut begun = Vec::new();
        for (method, path, body) in BEGUN {
            begun.push(begin(&node, "second", method, path, body).await);
        }
        match status {
            403 => assert_eq!(node.send_as(ROOT, "PUT", "/v1/users/second/grants", r#"{"grants":[]}"#).await.status, 200),
            _ if change.starts_with("the user") => {
                assert_eq!(node.send_as(ROOT, "DELETE", "/v1/users/second", "").await.status, 204);
                create(&node, "second", PASSWORD, r#"[{"action":"admin"}]"#).await;
            }
            _ => assert_eq!(node.send_as(ROOT, "PUT", "/v1/users/second/password", r#"{"new_password":"safe"}"#).await.status, 204),
        }
        let users = node.send_as(ROOT, "GET", "/v1/users", "").await.text();
        for (client, (method, path, body)) in begun.iter_mut().zip(BEGUN) {
            client.raw(&body[1..]).await;
            let answer = client.answer(false).await;
            assert_eq!(answer.status, status, "{change}: {method} {path} {}", answer.text());
            assert!(!answer.refusal(status, code).is_empty());
        }
        assert_eq!(node.send_as(ROOT, "GET", "/v1/users", "").await.text(), users, "{change}: nothing was done");
        assert_eq!(node.send_as(ROOT, "GET", "/v1/topics/t/consume", "").await.status, 204, "{change}: nothing was stored");
    }
}

#[tokio::test]
async fn a_change_is_refused_by_the_leader_when_the_callers_password_was_replaced_where_this_node_does_not_know_yet() {
    for is_another in [false, true] {
        let node = Node::start_secured_member().await;
        node.user("second", &[("admin", "")]).await;
        node.user("joe", &[]).await;
        let second = Some(("second", PASSWORD));
        assert_eq!(node.send_as(second, "GET", "/v1/users", "").await.status, 200);
        node.catalog.stop_following();
        if is_another {
            let view = Catalog::view(&*node.catalog);
            let second = view.user(&TenantId::default_tenant(), &Username::parse("second").expect("a name")).expect("there").clone();
            assert_eq!(node.send_as(ROOT, "DELETE", "/v1/users/second", "").await.status, 204);
            let another = UserRecord { hash: Some(StoredHash::new("of another".into())), ..UserRecord::clone(&second) };
            node.catalog.newest().propose(Command::CreateUser { user: another }).await.expect("created");
        } else {
            assert_eq!(node.send_as(ROOT, "PUT", "/v1/users/second/password", r#"{"new_password":"safe"}"#).await.status, 204);
        }
        for (method, path, body) in [
            ("PUT", "/v1/users/second/password", r#"{"new_password":"mine"}"#),
            ("PUT", "/v1/users/joe/grants", r#"{"grants":[]}"#),
            ("POST", "/v1/users", r#"{"username":"back-door","password":"x"}"#),
            ("POST", "/v1/topics", r#"{"name":"u"}"#),
        ] {
            let refused = node.send_as(second, method, path, body).await.refusal(403, "forbidden");
            assert_eq!(refused, "caller unknown to the leader", "{method} {path}");
        }
    }
}

#[tokio::test]
async fn a_message_that_comes_before_anybody_has_looked_does_not_go_to_a_user_who_was_deleted() {
    let node = Node::start_secured().await;
    assert_eq!(node.send_as(ROOT, "POST", "/v1/topics", r#"{"name":"t","partitions":1}"#).await.status, 201);
    node.user("deleted", &[("consume", "t")]).await;
    let mut deleted = park(&node, "deleted").await;
    assert_eq!(node.send_as(ROOT, "DELETE", "/v1/users/deleted", "").await.status, 204);
    assert_eq!(node.send_as(ROOT, "POST", "/v1/topics/t/produce", "x").await.status, 202);
    assert_eq!(deleted.answer(false).await.refusal(401, "unauthenticated"), "authentication required");
    assert_eq!(node.send_as(ROOT, "GET", "/v1/topics/t/consume?wait=10s", "").await.status, 200, "the lease went back");
}

#[tokio::test]
async fn without_security_nobody_is_asked_for_and_users_can_be_made_all_the_same() {
    let node = Node::start().await;
    let reserved = node.send("POST", "/v1/users", r#"{"username":"admin","password":"x"}"#).await.refusal(409, "already_exists");
    assert!(reserved.starts_with("the name admin is the root admin's"), "{reserved}");
    let made = node.send("POST", "/v1/users", r#"{"username":"joe","password":"x","grants":[{"action":"admin"}]}"#).await;
    assert_eq!(made.status, 201, "{}", made.text());
    assert_eq!(node.send_as(Some(("joe", "wrong")), "GET", "/v1/users", "").await.json().as_array().map(Vec::len), Some(1));
    assert_eq!(node.send("PUT", "/v1/users/joe/password", r#"{"new_password":"y"}"#).await.status, 204);
    assert_eq!(node.send("DELETE", "/v1/users/joe", "").await.status, 204);
    node.topic(r#"{"name":"t"}"#).await;
    assert_eq!(node.get("/v1/topics/t").await.json().get("owner"), None);
}
