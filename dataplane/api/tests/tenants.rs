//! Tenants: their life, who they keep out, and that two with the same names never notice each other.

use serde_json::{Value, json};
use veena_contract::limits;

use crate::support::{Answer, Node, PASSWORD, basic, until};

const TENANTS: &str = "/v1/admin/tenants";

async fn put(node: &Node, tenant: &str, state: &str) -> Answer {
    node.send_as_root("PUT", &format!("{TENANTS}/{tenant}"), &format!(r#"{{"state":"{state}"}}"#)).await
}

async fn get(node: &Node, tenant: &str) -> Answer {
    node.send_as_root("GET", &format!("{TENANTS}/{tenant}"), "").await
}

async fn as_user(node: &Node, who: &str, method: &str, path: &str, body: &str) -> Answer {
    node.send_as(Some((who, PASSWORD)), method, path, body).await
}

/// Two tenants with an admin and a user of the same names.
async fn with_twins() -> Node {
    let node = Node::start_secured_emptying().await;
    furnish(&node).await;
    node
}

async fn furnish(node: &Node) {
    for tenant in ["acme", "twin"] {
        node.tenant(tenant).await;
        node.user(&format!("boss@{tenant}"), &[("admin", "")]).await;
        node.user(&format!("joe@{tenant}"), &[("produce", "*"), ("consume", "*"), ("create", "*")]).await;
    }
}

#[tokio::test]
async fn a_tenant_is_created_with_its_first_admin_who_then_manages_it() {
    let node = Node::start_secured().await;
    let created = put(&node, "acme", "active").await;
    assert_eq!(created.status, 200, "{}", created.text());
    let acme = created.json();
    let expected = json!({"tenant": "acme", "state": "active", "revision": 1, "created_at_ms": acme["created_at_ms"],
                          "updated_at_ms": acme["created_at_ms"], "topics": 0, "users": 0});
    assert_eq!(acme, expected);
    assert_eq!(put(&node, "acme", "active").await.json(), acme, "said again, nothing changes");

    let path = format!("{TENANTS}/acme/users/boss");
    let body = format!(r#"{{"password":"{PASSWORD}","grants":[{{"action":"admin"}}]}}"#);
    let boss = node.send_as_root("PUT", &path, &body).await;
    assert_eq!(
        (boss.status, boss.json()["username"].clone(), boss.json()["revision"].clone()),
        (200, json!("boss"), json!(1)),
        "{}",
        boss.text()
    );
    assert_eq!(node.send_as_root("PUT", &path, &body).await.json(), boss.json(), "said again, nothing changes, also the password");
    assert_eq!(as_user(&node, "boss", "GET", "/v1/topics", "").await.status, 401, "not a user of the tenant default");

    let joe = as_user(
        &node,
        "boss@acme",
        "POST",
        "/v1/users",
        r#"{"username":"joe","password":"x","grants":[{"action":"create","patterns":["*"]}]}"#,
    );
    assert_eq!(joe.await.status, 201);
    assert_eq!(as_user(&node, "boss@acme", "POST", "/v1/topics", r#"{"name":"t"}"#).await.status, 201);
    let admin =
        as_user(&node, "boss@acme", "POST", "/v1/users", r#"{"username":"eve","password":"x","grants":[{"action":"admin"}]}"#).await;
    assert_eq!(admin.refusal(403, "forbidden"), "cannot grant permissions you do not hold");
    let counted = get(&node, "acme").await.json();
    assert_eq!((&counted["topics"], &counted["users"]), (&json!(1), &json!(2)));
    let users = node.send_as_root("GET", &format!("{TENANTS}/acme/users"), "").await.json();
    let names: Vec<&Value> = users.as_array().expect("a list").iter().map(|user| &user["username"]).collect();
    assert_eq!(names, ["boss", "joe"]);
    assert_eq!(node.send_as_root("DELETE", &path, "").await.status, 204);
    assert_eq!(as_user(&node, "boss@acme", "GET", "/v1/topics", "").await.status, 401, "at once");
    assert_eq!(node.send_as_root("DELETE", &path, "").await.refusal(404, "not_found"), "user not found");
}

#[tokio::test]
async fn tenants_are_listed_by_name_page_by_page_and_default_is_one() {
    let node = Node::start_secured().await;
    for tenant in ["b", "zen", "acme"] {
        assert_eq!(put(&node, tenant, "active").await.status, 200);
    }
    let page = async |query: &str| {
        let page = node.send_as_root("GET", &format!("{TENANTS}{query}"), "").await.json();
        let names: Vec<String> = page["tenants"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|tenant| tenant["tenant"].as_str().expect("a name").to_owned())
            .collect();
        (names.join(" "), page["next_page_token"].as_str().expect("a token").to_owned())
    };
    assert_eq!(page("").await, ("acme b default zen".to_owned(), String::new()));
    assert_eq!(page("?limit=2").await, ("acme b".to_owned(), "b".to_owned()));
    assert_eq!(page("?limit=2&page_token=b").await, ("default zen".to_owned(), String::new()));
    for query in ["?limit=0", "?limit=x", "?page_token=A"] {
        assert_eq!(node.send_as_root("GET", &format!("{TENANTS}{query}"), "").await.status, 400, "{query}");
    }
    let default = get(&node, "default").await.json();
    assert_eq!((&default["state"], &default["revision"], &default["users"]), (&json!("active"), &json!(0), &json!(1)));
}

#[tokio::test]
async fn what_cannot_be_said_of_a_tenant_is_refused() {
    let node = with_twins().await;
    for (method, path, body, status, code) in [
        ("PUT", "/acme", r#"{"state":"deleting"}"#, 400, "invalid_argument"),
        ("PUT", "/acme", r#"{"state":"active","revision":-1}"#, 400, "invalid_argument"),
        ("PUT", "/acme", r#"{"state":"active","colour":1}"#, 400, "malformed_request"),
        ("PUT", "/Acme", r#"{"state":"active"}"#, 400, "invalid_argument"),
        ("PUT", "/-a", r#"{"state":"active"}"#, 400, "invalid_argument"),
        ("PUT", "/..%2fx", r#"{"state":"active"}"#, 400, "invalid_argument"),
        ("PUT", "/default", r#"{"state":"suspended"}"#, 409, "conflict"),
        ("DELETE", "/default", "", 409, "conflict"),
        ("PUT", "/acme", r#"{"state":"active","revision":0}"#, 409, "conflict"),
        ("PUT", "/acme", r#"{"state":"suspended","revision":1}"#, 409, "conflict"),
        ("GET", "/nobody", "", 404, "not_found"),
        ("DELETE", "/nobody", "", 404, "not_found"),
        ("GET", "/nobody/users", "", 404, "not_found"),
        ("PUT", "/nobody/users/joe", r#"{"password":"x"}"#, 404, "not_found"),
        ("PUT", "/acme/users/new", r#"{"grants":[]}"#, 400, "invalid_argument"),
        ("PUT", "/acme/users/j%20e", r#"{"password":"x"}"#, 400, "invalid_argument"),
        ("PUT", "/default/users/admin", r#"{"grants":[]}"#, 403, "forbidden"),
        ("DELETE", "/default/users/admin", "", 403, "forbidden"),
    ] {
        let answer = node.send_as_root(method, &format!("{TENANTS}{path}"), body).await;
        assert!(!answer.refusal(status, code).is_empty(), "{method} {path}");
    }
    for who in ["boss@acme", "joe@acme"] {
        for path in [TENANTS, "/v1/cluster/members", "/v1/cluster/backup", "/metrics"] {
            assert_eq!(
                as_user(&node, who, "GET", path, "").await.refusal(403, "forbidden"),
                "operator privileges required",
                "{who} {path}"
            );
        }
    }
}

#[tokio::test]
async fn who_is_of_no_tenant_is_told_nothing_else_than_who_is_no_user() {
    let node = with_twins().await;
    assert_eq!(node.send_as_root("DELETE", &format!("{TENANTS}/twin"), "").await.status, 202);
    let mut told = Vec::new();
    for who in ["joe", "nosuchuser@acme", "joe@nosuchtenant", "joe@", "joe@NO", "joe@twin"] {
        let answer = as_user(&node, who, "GET", "/v1/topics", "").await;
        assert_eq!(answer.status, 401, "{who}");
        told.push(answer.refusal(401, "unauthenticated"));
    }
    assert!(told.iter().all(|text| text == "authentication required"));
    let wrong = node.send_as(Some(("joe@acme", "wrong")), "GET", "/v1/topics", "").await;
    assert_eq!(wrong.refusal(401, "unauthenticated"), "authentication required");
}

#[tokio::test]
async fn a_suspended_tenant_does_nothing_and_says_so_only_to_who_signs_in() {
    let node = with_twins().await;
    assert_eq!(as_user(&node, "joe@acme", "POST", "/v1/topics", r#"{"name":"t"}"#).await.status, 201);
    assert_eq!(put(&node, "acme", "suspended").await.status, 200);
    for who in ["joe@acme", "boss@acme"] {
        for (method, path, body) in [
            ("GET", "/v1/topics", ""),
            ("POST", "/v1/topics/t/produce", "1"),
            ("GET", "/v1/topics/t/consume", ""),
            ("GET", "/v1/users", ""),
            ("GET", TENANTS, ""),
            ("GET", "/metrics", ""),
        ] {
            let answer = as_user(&node, who, method, path, body).await;
            assert_eq!(answer.refusal(403, "tenant_suspended"), "tenant is suspended", "{who} {method} {path}");
        }
    }
    assert_eq!(
        node.send_as(Some(("joe@acme", "wrong")), "GET", "/v1/topics", "").await.status,
        401,
        "whoever does not sign in learns nothing"
    );
    assert_eq!(as_user(&node, "joe@twin", "GET", "/v1/topics", "").await.status, 200, "another tenant is not");
    let set = node.send_as_root("PUT", &format!("{TENANTS}/acme/users/joe"), r#"{"grants":[]}"#).await;
    assert_eq!(set.status, 200, "an operator looks after its users all the same");
    assert_eq!(put(&node, "acme", "active").await.status, 200);
    assert_eq!(as_user(&node, "boss@acme", "GET", "/v1/topics/t", "").await.status, 200, "as before");
}

#[tokio::test]
async fn what_a_node_that_is_behind_lets_a_suspended_tenant_do_the_leader_refuses() {
    let node = Node::start_secured_member().await;
    furnish(&node).await;
    node.catalog.stop_following();
    assert_eq!(put(&node, "acme", "suspended").await.status, 200);
    let answer = as_user(&node, "boss@acme", "POST", "/v1/topics", r#"{"name":"t"}"#).await;
    assert_eq!(answer.refusal(403, "tenant_suspended"), "tenant is suspended");
}

#[tokio::test]
async fn suspending_and_deleting_a_tenant_end_the_polls_that_are_parked() {
    for (who, status, code) in [("suspend", 403, "tenant_suspended"), ("delete", 401, "unauthenticated")] {
        let node = with_twins().await;
        for tenant in ["acme", "twin"] {
            assert_eq!(as_user(&node, &format!("joe@{tenant}"), "POST", "/v1/topics", r#"{"name":"t"}"#).await.status, 201);
        }
        let [acme, twin] = ["acme", "twin"].map(|tenant| basic(&format!("joe@{tenant}"), PASSWORD));
        let mut parked = node.connect().await;
        parked.start("GET", "/v1/topics/t/consume?wait=30s", &[("Authorization", acme.as_str())], b"").await;
        let mut other = node.connect().await;
        other.start("GET", "/v1/topics/t/consume?wait=30s", &[("Authorization", twin.as_str())], b"").await;
        until("both are parked", async || {
            let metrics = node.send_as_root("GET", "/metrics", "").await.text();
            metrics.lines().any(|line| line == "veena_consumers_parked 2")
        })
        .await;
        match who {
            "suspend" => assert_eq!(put(&node, "acme", "suspended").await.status, 200),
            _ => assert_eq!(node.send_as_root("DELETE", &format!("{TENANTS}/acme"), "").await.status, 202),
        }
        assert!(!parked.answer(false).await.refusal(status, code).is_empty());
        assert_eq!(as_user(&node, "joe@twin", "POST", "/v1/topics/t/produce", "7").await.status, 202);
        assert_eq!(other.answer(false).await.json()["payload"], 7, "another tenant's waits on");
    }
}

/// What an answer says, without what names it.
fn said(answer: &Answer) -> (u16, Value) {
    let mut body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    if let Some(body) = body.as_object_mut() {
        body.remove("instance");
    }
    (answer.status, body)
}

#[tokio::test]
async fn another_tenants_thing_is_told_of_like_one_that_is_not_there() {
    let node = with_twins().await;
    let boss = async |method: &str, path: &str, body: &str| as_user(&node, "boss@acme", method, path, body).await;
    assert_eq!(boss("POST", "/v1/topics", r#"{"name":"p","partitions":1}"#).await.status, 201);
    assert_eq!(boss("POST", "/v1/topics", r#"{"name":"c","parent":"p"}"#).await.status, 201);
    assert_eq!(boss("POST", "/v1/users", r#"{"username":"ann","password":"x"}"#).await.status, 201);
    for who in ["boss@twin", "joe@twin", "admin"] {
        for (method, path, body) in [
            ("GET", "/v1/topics/{p}", ""),
            ("PATCH", "/v1/topics/{p}", r#"{"retention_ms":0}"#),
            ("DELETE", "/v1/topics/{p}", ""),
            ("GET", "/v1/topics/{p}/schema", ""),
            ("GET", "/v1/topics/{p}/children", ""),
            ("POST", "/v1/topics/{p}/children", r#"{"child":"{c}"}"#),
            ("DELETE", "/v1/topics/{p}/children/{c}", ""),
            ("POST", "/v1/topics/{p}/produce", "1"),
            ("POST", "/v1/topics/{p}/produce?wait_for=commit", "1"),
            ("POST", "/v1/topics/{p}/produce/batch", r#"{"messages":[{"payload":1}]}"#),
            ("GET", "/v1/topics/{p}/consume", ""),
            ("GET", "/v1/topics/{p}/consume?partition=0&offset=0", ""),
            ("POST", "/v1/topics/{p}/ack?receipt_handle=0:0:1", ""),
            ("GET", "/v1/users/{ann}", ""),
            ("DELETE", "/v1/users/{ann}", ""),
            ("PUT", "/v1/users/{ann}/grants", r#"{"grants":[]}"#),
            ("PUT", "/v1/users/{ann}/password", r#"{"new_password":"y"}"#),
            ("POST", "/v1/topics", r#"{"name":"new","parent":"{p}"}"#),
        ] {
            let of = |text: &str, is_there: bool| {
                let names = if is_there { ["p", "c", "ann"] } else { ["absent-p", "absent-c", "absent-ann"] };
                ["{p}", "{c}", "{ann}"].iter().zip(names).fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
            };
            let [there, absent] = [true, false].map(|is_there| (of(path, is_there), of(body, is_there)));
            let answer = as_user(&node, who, method, &there.0, &there.1).await;
            let expected = as_user(&node, who, method, &absent.0, &absent.1).await;
            assert_eq!(said(&answer), said(&expected), "{who} {method} {path}");
            assert!([403, 404].contains(&answer.status), "{who} {method} {path}: {}", answer.status);
        }
        let list = as_user(&node, who, "GET", "/v1/topics", "").await.json();
        assert_eq!(list, json!({"topics": [], "next_page_token": ""}), "{who}");
    }
    assert_eq!(boss("GET", "/v1/topics/p", "").await.status, 200, "nobody took anything");
}

const TENANTS_OF_FLOWS: [&str; 2] = ["acme", "twin"];

/// Sends through a topic with a child: produce, batch, both children, replay, ack. Says what was read.
async fn flow(node: &Node, tenant: &str) -> Vec<Value> {
    let who = format!("joe@{tenant}");
    let joe = async |method: &str, path: &str, body: &str| {
        let headers = [("Content-Type", "application/json"), ("X-Veena-Client", "test")];
        let signed = basic(&who, PASSWORD);
        let headers = [headers[0], headers[1], ("Authorization", signed.as_str())];
        node.connect().await.request(method, path, &headers, body.as_bytes()).await
    };
    let schema = format!(r#"{{"type":"object","required":["{tenant}"]}}"#);
    let body = format!(r#"{{"name":"orders","partitions":1,"schema":{schema}}}"#);
    assert_eq!(joe("POST", "/v1/topics", &body).await.status, 201);
    assert_eq!(joe("POST", "/v1/topics", r#"{"name":"copy","parent":"orders"}"#).await.status, 201);
    assert_eq!(joe("POST", "/v1/topics", r#"{"name":"Orders"}"#).await.status, 409, "names in another case are its own too");
    let message = |n: u32| format!(r#"{{"{tenant}":{n}}}"#);
    let refused = joe("POST", "/v1/topics/orders/produce", r#"{"neither":0}"#).await.refusal(400, "schema_violation");
    assert!(TENANTS_OF_FLOWS.iter().all(|other| *other == tenant || !refused.contains(other)), "{refused}");
    assert_eq!(joe("POST", "/v1/topics/orders/produce?wait_for=commit", &message(1)).await.status, 200);
    let batch = format!(r#"{{"messages":[{{"payload":{}}},{{"payload":{}}}]}}"#, message(2), message(3));
    assert_eq!(joe("POST", "/v1/topics/orders/produce/batch", &batch).await.status, 202);
    let mut read = Vec::new();
    for topic in ["orders", "copy"] {
        for _ in 0..3 {
            let answer = joe("GET", &format!("/v1/topics/{topic}/consume?wait=10s"), "").await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            let message = answer.json();
            let handle = message["receipt_handle"].as_str().expect("a handle").to_owned();
            read.push(message["payload"].clone());
            let acked = joe("POST", &format!("/v1/topics/{topic}/ack?receipt_handle={handle}"), "").await;
            assert_eq!(acked.status, 204, "{}", acked.text());
        }
        assert_eq!(joe("GET", &format!("/v1/topics/{topic}/consume"), "").await.status, 204, "nobody else's are among them");
    }
    let replayed = joe("GET", "/v1/topics/orders/consume?partition=0&offset=0", "").await;
    read.push(replayed.json()["payload"].clone());
    let children = joe("GET", "/v1/topics/orders/children", "").await.json();
    assert_eq!(children["children"].as_array().map(Vec::len), Some(1));
    read
}

#[tokio::test]
async fn two_tenants_with_the_same_names_send_and_read_each_their_own() {
    let node = with_twins().await;
    let (acme, twin) = tokio::join!(flow(&node, "acme"), flow(&node, "twin"));
    for (tenant, read) in [("acme", acme), ("twin", twin)] {
        let wanted: Vec<Value> = [1, 2, 3, 1, 2, 3, 1].iter().map(|n| json!({tenant: n})).collect();
        assert_eq!(read, wanted);
    }
    // a handle of one tenant is nothing to the other
    let signed = |who: &str| basic(who, PASSWORD);
    for tenant in ["acme", "twin"] {
        let sent =
            as_user(&node, &format!("joe@{tenant}"), "POST", "/v1/topics/orders/produce?wait_for=commit", &format!(r#"{{"{tenant}":4}}"#))
                .await;
        assert_eq!(sent.status, 200);
    }
    let leased = as_user(&node, "joe@acme", "GET", "/v1/topics/orders/consume?wait=10s", "").await.json();
    let handle = leased["receipt_handle"].as_str().expect("a handle").to_owned();
    let path = format!("/v1/topics/orders/ack?receipt_handle={handle}");
    let foreign =
        node.connect().await.request("POST", &path, &[("Authorization", signed("joe@twin").as_str()), ("X-Veena-Client", "t")], b"").await;
    assert_eq!(foreign.status, 410, "{}", foreign.text());
    assert_eq!(as_user(&node, "joe@acme", "POST", &path, "").await.status, 204, "it is as it was");
    // deleting one leaves the other
    assert_eq!(as_user(&node, "boss@acme", "DELETE", "/v1/topics/orders", "").await.status, 204);
    assert_eq!(as_user(&node, "joe@twin", "GET", "/v1/topics/orders", "").await.status, 200);
    let metrics = node.send_as_root("GET", "/metrics", "").await.text();
    for name in ["orders", "copy", "acme", "twin", "joe", "boss"] {
        assert!(!metrics.contains(name), "the counters name {name}");
    }
}

#[tokio::test]
async fn caps_on_requests_in_flight_are_of_a_user_of_a_tenant() {
    let config = veena_api::ApiConfig { max_consume_in_flight_per_identity: 1, ..veena_api::ApiConfig::default() };
    let node = Node::start_secured_with(config).await;
    furnish(&node).await;
    for tenant in ["acme", "twin"] {
        assert_eq!(as_user(&node, &format!("joe@{tenant}"), "POST", "/v1/topics", r#"{"name":"t"}"#).await.status, 201);
    }
    let header = basic("joe@acme", PASSWORD);
    let mut parked = node.connect().await;
    parked.start("GET", "/v1/topics/t/consume?wait=10s", &[("Authorization", header.as_str())], b"").await;
    until("the consumer is parked", async || as_user(&node, "joe@acme", "GET", "/v1/topics/t/consume", "").await.status == 429).await;
    assert_eq!(as_user(&node, "joe@twin", "GET", "/v1/topics/t/consume", "").await.status, 204);
}

#[tokio::test]
async fn a_password_that_is_guessed_at_is_throttled_for_its_tenants_user_alone() {
    let node = with_twins().await;
    for guess in 0..limits::LOGIN_FAILURES_MAX {
        let answer = node.send_as(Some(("joe@acme", &format!("guess{guess}"))), "GET", "/v1/topics", "").await;
        assert_eq!(answer.status, 401);
    }
    assert_eq!(as_user(&node, "joe@acme", "GET", "/v1/topics", "").await.status, 429);
    assert_eq!(as_user(&node, "joe@twin", "GET", "/v1/topics", "").await.status, 200);
}

#[tokio::test]
async fn of_a_tenant_that_is_deleted_it_is_told_what_is_left_until_nothing_is() {
    let node = with_twins().await;
    for tenant in ["acme", "twin"] {
        drop(flow(&node, tenant).await);
    }
    let deleted = node.send_as_root("DELETE", &format!("{TENANTS}/acme"), "").await;
    assert_eq!((deleted.status, &deleted.json()["state"]), (202, &json!("deleting")), "{}", deleted.text());
    let left = deleted.json()["left"].clone();
    assert_eq!((&left["topics"], &left["users"], &left["open_topics"]), (&json!(2), &json!(2), &json!(2)), "{left}");
    assert!(left["directories"].as_u64() >= Some(2), "{left}");
    assert_eq!(put(&node, "acme", "active").await.refusal(409, "conflict"), "tenant is being deleted");
    node.empty("acme").await;
    until("nothing is left", async || {
        let left = get(&node, "acme").await.json()["left"].clone();
        left == json!({"topics": 0, "users": 0, "open_topics": 0, "directories": 0, "quarantined": 0, "orphans": 0, "positions": 0})
    })
    .await;
    let topics = node.disk_names("/data/topics");
    assert_eq!(topics, ["twin"], "the other's are there");
    assert_eq!(as_user(&node, "joe@twin", "GET", "/v1/topics/orders/consume?partition=0&offset=0", "").await.status, 200);
}

#[tokio::test]
async fn what_is_restricted_here_is_lifted_here_and_by_no_revision() {
    let node = Node::start_secured().await;
    let say = async |path: &str, body: &str| node.send_as_root("PUT", &format!("{TENANTS}/{path}"), body).await;
    assert_eq!(say("acme", r#"{"state":"active","revision":5}"#).await.status, 200);
    let joe =
        |revision: u64| format!(r#"{{"password":"{PASSWORD}","grants":[{{"action":"create","patterns":["*"]}}],"revision":{revision}}}"#);
    assert_eq!(say("acme/users/joe", &joe(5)).await.status, 200);
    assert_eq!(as_user(&node, "joe@acme", "POST", "/v1/topics", r#"{"name":"t"}"#).await.status, 201);

    assert_eq!(put(&node, "acme", "suspended").await.status, 200);
    let refused = say("acme", r#"{"state":"active","revision":9}"#).await.refusal(409, "conflict");
    assert_eq!(refused, "the tenant was suspended on this cluster itself: only a change without a revision resumes it");
    assert_eq!(put(&node, "acme", "active").await.status, 200, "lifted");

    assert_eq!(node.send_as_root("DELETE", &format!("{TENANTS}/acme/users/joe"), "").await.status, 204);
    let refused = say("acme/users/joe", &joe(9)).await.refusal(409, "conflict");
    assert_eq!(refused, "it was deleted on this cluster itself: only a change without a revision makes it again");
    let again = say("acme/users/joe", &format!(r#"{{"password":"{PASSWORD}","grants":[]}}"#)).await;
    assert_eq!((again.status, &again.json()["revision"]), (200, &json!(6)), "lifted, and what is older stays so");
    let theirs = as_user(&node, "joe@acme", "DELETE", "/v1/topics/t", "").await;
    assert_eq!(theirs.status, 403, "the topics of the former joe are nobody's");

    assert_eq!(node.send_as_root("DELETE", &format!("{TENANTS}/acme"), "").await.status, 202);
    node.empty("acme").await;
    let created_at_ms = get(&node, "acme").await.json()["created_at_ms"].as_u64().expect("a time");
    node.gone("acme", created_at_ms).await;
    assert_eq!(get(&node, "acme").await.status, 404);
    say("acme", r#"{"state":"active","revision":100}"#).await.refusal(409, "conflict");
    assert_eq!(put(&node, "acme", "active").await.status, 200);
}
