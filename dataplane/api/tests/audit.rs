//! Who changed what: every route that changes the metadata leaves one record of its caller; and what is denied is counted.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use veena_contract::audit::Verifier;
use veena_contract::{
    AuditEntry, AuditKind, Catalog as _, CatalogWriter as _, Command, MoveToken, NodeId, OwnershipEpoch, PartitionAt, PartitionIndex,
    TenantId, TopicName,
};

use crate::support::{Answer, LEAVER, Node, PASSWORD, bearer};

/// What one route leaves behind.
struct Row {
    method: &'static str,
    template: &'static str,
    body: &'static str,
    /// Action and object; `$n` is the row's number.
    record: (&'static str, &'static str),
}

const fn row(method: &'static str, template: &'static str, body: &'static str, record: (&'static str, &'static str)) -> Row {
    Row { method, template, body, record }
}

const ROWS: &[Row] = &[
    row("POST", "/v1/topics", r#"{"name":"new-$n"}"#, ("create_topic", "topic:new-$n")),
    row("PATCH", "/v1/topics/{topic}", r#"{"retention_ms":0}"#, ("set_bounds", "topic:t-$n")),
    row("DELETE", "/v1/topics/{topic}", "", ("delete_topic", "topic:t-$n")),
    row("POST", "/v1/topics/{topic}/children", r#"{"child":"free-$n"}"#, ("attach_child", "topic:t-$n")),
    row("DELETE", "/v1/topics/{topic}/children/{child}", "", ("detach_child", "topic:t-$n")),
    row("POST", "/v1/cluster/members/{member}/decommission", "", ("decommission", "node:leaver")),
    row("DELETE", "/v1/cluster/members/{member}/decommission", "", ("cancel_decommission", "node:leaver")),
    row("POST", "/v1/cluster/members/{member}/forget", "", ("forget_member", "node:leaver")),
    row("POST", "/v1/cluster/moves/{topic}/{partition}/abort", "", ("abort_move", "partition:default/t-$n/0")),
    row("POST", "/v1/users", r#"{"username":"made-$n","password":"canary-password"}"#, ("create_user", "user:made-$n")),
    row("DELETE", "/v1/users/{user}", "", ("delete_user", "user:u-$n")),
    row("PUT", "/v1/users/{user}/grants", r#"{"grants":[{"action":"produce","patterns":["a*"]}]}"#, ("set_grants", "user:u-$n")),
    row("PUT", "/v1/users/{user}/password", r#"{"new_password":"canary-password"}"#, ("set_password", "user:u-$n")),
    row("POST", "/v1/accounts", r#"{"name":"made-$n"}"#, ("create_user", "account:made-$n")),
    row("DELETE", "/v1/accounts/{account}", "", ("delete_user", "account:a-$n")),
    row("PUT", "/v1/accounts/{account}/grants", r#"{"grants":[]}"#, ("set_grants", "account:a-$n")),
    row("POST", "/v1/accounts/{account}/keys", "{}", ("create_key", "account:a-$n")),
    row("DELETE", "/v1/accounts/{account}/keys/{key}", "", ("delete_key", "account:a-$n")),
    row("PUT", "/v1/admin/tenants/{tenant}", r#"{"state":"suspended"}"#, ("put_tenant", "tenant:acme-$n")),
    row("PUT", "/v1/admin/tenants/{tenant}/quota", r#"{"quota":{"topics":7}}"#, ("set_quota", "quota:acme-$n")),
    row("DELETE", "/v1/admin/tenants/{tenant}", "", ("delete_tenant", "tenant:acme-$n")),
    row("PUT", "/v1/admin/tenants/{tenant}/users/{user}", r#"{"password":"canary-password"}"#, ("put_user", "user:u-$n@acme-$n")),
    row("DELETE", "/v1/admin/tenants/{tenant}/users/{user}", "", ("delete_user", "user:u-$n@acme-$n")),
    row(
        "PUT",
        "/v1/admin/token-issuer",
        r#"{"issuer":"https://id.example","audience":"veena","keys":[{"kty":"OKP","crv":"Ed25519","kid":"k","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#,
        ("put_token_issuer", "token_issuer"),
    ),
    row("DELETE", "/v1/admin/token-issuer", "", ("delete_token_issuer", "token_issuer")),
];

/// Messages are no metadata: there is one record for each of them already, which is the message.
const MESSAGES: [&str; 3] = ["/v1/topics/{topic}/produce", "/v1/topics/{topic}/produce/batch", "/v1/topics/{topic}/ack"];

#[test]
fn every_route_that_changes_something_has_its_row() {
    let document: Value = serde_json::from_str(&veena_api::openapi_json()).expect("the document is JSON");
    let paths = document["paths"].as_object().expect("paths");
    let served = paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().expect("an item");
        methods.keys().filter(|method| *method != "get").map(move |method| (method.to_uppercase(), path.clone()))
    });
    let rows = ROWS.iter().map(|row| (row.method.to_owned(), row.template.to_owned()));
    let messages = MESSAGES.iter().map(|template| ("POST".to_owned(), (*template).to_owned()));
    assert_eq!(served.collect::<BTreeSet<_>>(), rows.chain(messages).collect::<BTreeSet<_>>());
}

fn lines_of(answer: &Answer) -> Vec<String> {
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/x-ndjson")), "{}", answer.text());
    let (text, mut verifier) = (answer.text(), Verifier::default());
    text.split_terminator('\n').try_for_each(|line| verifier.line(line)).expect("a chain");
    text.split_terminator('\n').map(str::to_owned).collect()
}

async fn records(node: &Node, query: &str) -> Vec<Value> {
    let lines = lines_of(&node.send_as_root("GET", &format!("/v1/audit{query}"), "").await);
    lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

async fn create(node: &Node, topic: &str) {
    let answer = node.send_as_root("POST", "/v1/topics", &format!(r#"{{"name":"{topic}","partitions":1}}"#)).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
}

/// Makes what the path of one row names, and the path.
async fn prepare(node: &Node, row: &Row, n: usize) -> String {
    let topic = format!("t-{n}");
    if row.template.contains("{topic}") {
        create(node, &topic).await;
    }
    if row.template.contains("/children") {
        create(node, &format!("free-{n}")).await;
    }
    if row.template.contains("{child}") {
        let body = format!(r#"{{"child":"free-{n}"}}"#);
        assert_eq!(node.send_as_root("POST", &format!("/v1/topics/{topic}/children"), &body).await.status, 200);
    }
    if row.template.contains("/abort") {
        let name = TopicName::parse(&topic).expect("a name");
        let record = node.catalog.view().topic(&TenantId::default_tenant(), &name).cloned().expect("there");
        let at = PartitionAt { tenant: record.tenant.clone(), topic: record.id, index: PartitionIndex(0), epoch: OwnershipEpoch(1) };
        let begin = Command::BeginMove { at, to: NodeId("node-2".into()), token: MoveToken(1) };
        node.catalog.newest().propose(begin).await.expect("taken");
    }
    if row.template.contains("{tenant}") {
        let put = node.send_as_root("PUT", &format!("/v1/admin/tenants/acme-{n}"), r#"{"state":"active"}"#).await;
        assert_eq!(put.status, 200, "{}", put.text());
    }
    if row.template.contains("{tenant}") && row.template.contains("{user}") && row.method == "DELETE" {
        let path = format!("/v1/admin/tenants/acme-{n}/users/u-{n}");
        assert_eq!(node.send_as_root("PUT", &path, &format!(r#"{{"password":"{PASSWORD}"}}"#)).await.status, 200);
    } else if row.template.contains("{user}") && !row.template.contains("{tenant}") {
        node.user(&format!("u-{n}"), &[]).await;
    }
    let mut key = String::new();
    if row.template.contains("{account}") {
        assert_eq!(node.send_as_root("POST", "/v1/accounts", &format!(r#"{{"name":"a-{n}"}}"#)).await.status, 201);
    }
    if row.template.contains("{key}") {
        let made = node.send_as_root("POST", &format!("/v1/accounts/a-{n}/keys"), "{}").await.json();
        key = made["id"].as_str().expect("a text").to_owned();
    }
    let names = [
        ("{topic}", topic),
        ("{account}", format!("a-{n}")),
        ("{key}", key),
        ("{child}", format!("free-{n}")),
        ("{user}", format!("u-{n}")),
        ("{tenant}", format!("acme-{n}")),
        ("{member}", LEAVER.to_owned()),
    ];
    names.iter().fold(row.template.replace("{partition}", "0"), |path, (name, value)| path.replace(name, value))
}

#[tokio::test]
async fn every_change_leaves_one_record_of_its_caller() {
    let node = Node::start_secured_member().await;
    for (n, row) in ROWS.iter().enumerate() {
        let path = prepare(&node, row, n).await;
        let before = records(&node, "").await.last().map_or(0, |record| record["seq"].as_u64().expect("a number"));
        let answer = node.send_as_root(row.method, &path, &row.body.replace("$n", &n.to_string())).await;
        assert!(answer.status < 300, "{} {path}: {} {}", row.method, answer.status, answer.text());
        let new = records(&node, &format!("?after={before}")).await;
        assert_eq!(new.len(), 1, "{} {path}: {new:?}", row.method);
        let record = &new[0];
        let (action, object) = row.record;
        assert_eq!((&record["action"], &record["object"]), (&json!(action), &json!(object.replace("$n", &n.to_string()))), "{path}");
        assert_eq!((&record["actor"], &record["decision"]), (&json!("user:admin@default"), &json!("allowed")), "{path}");
        assert_eq!(record["source"], "127.0.0.1");
        assert_eq!(record["request"].as_str(), answer.header("veena-request-id"), "{path}: the answer names its record");
        assert!(record["request"].is_string() && record["at_ms"].as_u64() > Some(1_700_000_000_000));
    }
    let whole = node.send_as_root("GET", "/v1/audit", "").await.text();
    assert!(!whole.contains("canary") && !whole.contains("$argon2"), "{whole}");
}

#[tokio::test]
async fn a_change_that_is_refused_where_it_is_applied_is_recorded_too() {
    let node = Node::start_secured_member().await;
    node.user("ann", &[("create", "a*")]).await;
    node.catalog.stop_following();
    assert_eq!(node.send_as_root("PUT", "/v1/users/ann/grants", r#"{"grants":[]}"#).await.status, 200);
    let refused = node.send_as(Some(("ann", PASSWORD)), "POST", "/v1/topics", r#"{"name":"a"}"#).await;
    assert_eq!(refused.status, 403, "{}", refused.text());
    let record = records(&node, "").await.pop().expect("a record");
    assert_eq!((&record["actor"], &record["action"]), (&json!("user:ann@default"), &json!("create_topic")));
    assert_eq!((&record["decision"], &record["reason"]), (&json!("refused"), &json!("forbidden: may_not_create")));
    assert_eq!(record["request"], refused.json()["instance"], "it is the same request");
}

#[tokio::test]
async fn records_are_read_page_by_page_by_admins_alone() {
    let node = Node::start_secured().await;
    for n in 1..=5 {
        create(&node, &format!("t-{n}")).await;
    }
    let objects = async |query: &str| {
        let records = records(&node, query).await;
        records.iter().map(|record| record["object"].as_str().expect("a text").to_owned()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(objects("?after=1&limit=2").await, "topic:t-1 topic:t-2");
    assert_eq!(objects("?after=4&limit=0").await, "topic:t-4", "at least one, or nobody would get on");
    assert_eq!((objects("?after=6").await.as_str(), objects("?after=99").await.as_str()), ("", ""));
    for query in ["?after=x", "?limit=-1", "?kind=all"] {
        assert_eq!(node.send_as_root("GET", &format!("/v1/audit{query}"), "").await.status, 400, "{query}");
    }
    node.tenant("acme").await;
    let theirs = node.send_as_root("GET", "/v1/admin/audit?tenant=acme", "").await;
    assert!(lines_of(&theirs).is_empty());
    let ours = node.send_as_root("GET", "/v1/admin/audit", "").await;
    assert_eq!(ours.text(), node.send_as_root("GET", "/v1/audit", "").await.text());
    assert_eq!(node.send_as_root("GET", "/v1/admin/audit?tenant=A%0A", "").await.status, 400);
}

#[tokio::test]
async fn what_is_denied_is_counted_and_written_once_without_what_strangers_call_themselves() {
    let node = Node::start_secured_with(veena_api::ApiConfig { max_consume_in_flight_per_identity: 1, ..Default::default() }).await;
    node.user("joe", &[("consume", "t")]).await;
    create(&node, "t").await;
    let joe = Some(("joe", PASSWORD));
    for (who, method, path, status) in [
        (None, "GET", "/v1/topics", 401),
        (Some(("hunter2-is-my-password", "x")), "GET", "/v1/topics", 401),
        (joe, "GET", "/v1/users", 403),
        (joe, "GET", "/v1/users", 403),
        (joe, "POST", "/v1/topics/t/produce", 403),
        (joe, "GET", "/v1/topics/t", 200),
        (joe, "GET", "/v1/topics/unknown", 404),
    ] {
        assert_eq!(node.send_as(who, method, path, "").await.status, status, "{who:?} {method} {path}");
    }
    let header = crate::support::basic("joe", PASSWORD);
    let mut parked = node.connect().await;
    parked.start("GET", "/v1/topics/t/consume?wait=10s", &[("Authorization", header.as_str())], b"").await;
    let second = async || node.send_as(joe, "GET", "/v1/topics/t/consume", "").await.status;
    crate::support::until("the consumer is parked", async || second().await == 429).await;

    let before = records(&node, "").await;
    node.state.write_denials().await;
    node.state.write_denials().await;
    assert_eq!(records(&node, "").await, before, "they stand in a chain of their own");
    let records = records(&node, "?kind=denials").await;
    assert_eq!(records.len(), 1, "what was written is not written again");
    let record = &records[0];
    assert_eq!((&record["actor"], &record["action"]), (&json!("node:node-1"), &json!("denials")));
    let rows: BTreeSet<String> = record["detail"]["denials"].as_array().expect("rows").iter().map(Value::to_string).collect();
    let row = |actor: &str, rule: &str, count: u64| json!({ "actor": actor, "rule": rule, "count": count }).to_string();
    let expected = [
        row(AuditEntry::ANONYMOUS, "unauthenticated", 2),
        row("user:joe@default", "forbidden GET /v1/users", 2),
        row("user:joe@default", "forbidden POST /v1/topics/{topic}/produce", 1),
        row("user:joe@default", "rate_limited GET /v1/topics/{topic}/consume", 1),
    ];
    assert_eq!(rows, expected.into_iter().collect());
    assert!(!record.to_string().contains("hunter2"));
}

#[tokio::test]
async fn what_a_suspended_tenant_is_denied_is_told_in_its_own_chain_of_who_has_proven_who_they_are() {
    let node = Node::start_secured().await;
    node.tenant("acme").await;
    node.user("joe@acme", &[("consume", "t")]).await;
    node.user("boss@acme", &[("admin", "")]).await;
    let boss = Some(("boss@acme", PASSWORD));
    assert_eq!(node.send_as(boss, "POST", "/v1/accounts", r#"{"name":"ci"}"#).await.status, 201);
    let made = node.send_as(boss, "POST", "/v1/accounts/ci/keys", "{}").await.json();
    let key = format!("Bearer {}", made["key"].as_str().expect("a key"));
    crate::tokens::take(&node, &[1]).await;
    let token = format!("Bearer {}", crate::tokens::token(1, "boss@acme"));
    let suspended = node.send_as_root("PUT", "/v1/admin/tenants/acme", r#"{"state":"suspended"}"#).await;
    assert_eq!(suspended.status, 200, "{}", suspended.text());
    let password = crate::support::basic("joe@acme", PASSWORD);
    let wrong = crate::support::basic("joe@acme", "wrong");
    let (of_nobody, wrong_key) = (crate::support::basic("nobody@acme", PASSWORD), format!("{}x", key));
    for (header, method, path, status) in [
        (&password, "GET", "/v1/topics", 403),
        (&password, "POST", "/v1/topics/t/produce", 403),
        (&password, "GET", "/no/such/route", 403),
        (&key, "GET", "/v1/topics", 403),
        (&token, "GET", "/v1/topics", 403),
        (&wrong, "GET", "/v1/topics", 401),
        (&of_nobody, "GET", "/v1/topics", 401),
        (&wrong_key, "GET", "/v1/topics", 401),
    ] {
        let answer = node.send_with(Some(header.as_str()), method, path, "").await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
    }
    node.state.write_denials().await;
    let rows = async |query: &str| {
        let lines = lines_of(&node.send_as_root("GET", &format!("/v1/admin/audit?kind=denials{query}"), "").await);
        let records: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let rows = records.iter().flat_map(|record| record["detail"]["denials"].as_array().expect("rows"));
        rows.map(|row| format!("{} {} {}", row["actor"], row["rule"], row["count"]).replace('"', "")).collect::<BTreeSet<_>>()
    };
    let expected = [
        "user:boss@acme tenant_suspended GET /v1/topics 1",
        "user:ci@acme tenant_suspended GET /v1/topics 1",
        "user:joe@acme tenant_suspended 1",
        "user:joe@acme tenant_suspended GET /v1/topics 1",
        "user:joe@acme tenant_suspended POST /v1/topics/{topic}/produce 1",
    ];
    assert_eq!(rows("&tenant=acme").await, expected.map(str::to_owned).into());
    assert_eq!(rows("").await, ["anonymous unauthenticated 3".to_owned()].into(), "what nobody has proven");
}

#[tokio::test]
async fn without_security_a_change_is_nobodys_and_still_recorded() {
    let node = Node::start().await;
    node.topic(r#"{"name":"a","partitions":1}"#).await;
    let lines = lines_of(&node.get("/v1/audit").await);
    let record: Value = serde_json::from_str(&lines[0]).expect("JSON");
    assert_eq!((lines.len(), &record["actor"], &record["object"]), (1, &json!("anonymous"), &json!("topic:a")));
}

#[tokio::test]
async fn a_node_that_stops_writes_down_what_it_has_denied() {
    let mut node = Node::start_secured().await;
    assert_eq!(node.send_as(None, "GET", "/v1/topics", "").await.status, 401);
    node.shutdown.cancel();
    node.stopped().await;
    let told = node
        .catalog
        .view()
        .audit
        .after(&TenantId::default_tenant(), AuditKind::Denials, 0)
        .any(|line| line.contains(r#""action":"denials""#));
    assert!(told);
}

#[tokio::test]
async fn why_somebody_may_do_something_or_not_is_told() {
    let node = Node::start_secured().await;
    node.user("joe", &[("produce", "a*"), ("create", "joes")]).await;
    node.user("boss", &[("admin", "")]).await;
    create(&node, "ab").await;
    create(&node, "b").await;
    assert_eq!(node.send_as(Some(("joe", PASSWORD)), "POST", "/v1/topics", r#"{"name":"joes"}"#).await.status, 201);
    let explained = async |who: &str, query: &str| {
        let answer = node.send_as(Some((who, PASSWORD)), "GET", &format!("/v1/explain?{query}"), "").await;
        assert_eq!(answer.status, 200, "{who} {query}: {}", answer.text());
        let told = answer.json();
        let shown = |name: &str| told.get(name).map_or("-".to_owned(), Value::to_string);
        let text = format!("{} {} {} {}", told["allowed"], told["reason"].as_str().expect("a text"), shown("exists"), shown("owner"));
        (text, told["grant"].clone())
    };
    let covering = json!({ "action": "produce", "pattern": "a*" });
    for (who, query, text, grant) in [
        ("admin", "user=joe&action=produce&topic=ab", "true the grant produce on a* covers the topic true false", covering.clone()),
        ("admin", "user=joe&action=produce&topic=ax", "true the grant produce on a* covers the topic false -", covering.clone()),
        ("admin", "user=joe&action=consume&topic=ab", "false consume not allowed on this topic true false", Value::Null),
        ("admin", "user=joe&action=see&topic=b", "false no grant on this topic true false", Value::Null),
        ("admin", "user=joe&action=manage&topic=joes", "true the topic's owner may true true", Value::Null),
        ("boss", "user=admin&action=admin", "true the root admin may do everything - -", Value::Null),
        ("admin", "user=boss&action=consume&topic=b", "true the grant admin is for everything true false", json!({ "action": "admin" })),
        ("joe", "action=see&topic=ab", "true the grant produce on a* covers the topic true false", covering),
        ("joe", "user=joe&action=manage&topic=joes", "true the topic's owner may true true", Value::Null),
        ("joe", "action=admin", "false admin privileges required - -", Value::Null),
    ] {
        assert_eq!(explained(who, query).await, (text.to_owned(), grant), "{who} {query}");
    }
    // Whether there is a topic that they could not see is nothing that the answer depends on.
    for action in ["produce", "consume", "create", "see", "manage"] {
        let of = async |topic: &str| explained("joe", &format!("action={action}&topic={topic}")).await;
        assert_eq!(of("b").await, of("c").await, "{action}");
    }
    for (who, query, status) in [
        ("joe", "user=admin&action=admin", 403),
        ("joe", "user=nobody&action=admin", 403),
        ("admin", "user=nobody&action=admin", 404),
        ("admin", "user=joe&action=fly&topic=a", 400),
        ("admin", "user=joe&action=produce", 400),
        ("admin", "user=joe&action=manage", 400),
        ("admin", "user=joe", 400),
        ("admin", "user=j%20e&action=admin", 400),
        ("admin", "user=joe&action=see&topic=a%20b", 400),
    ] {
        let answer = node.send_as(Some((who, PASSWORD)), "GET", &format!("/v1/explain?{query}"), "").await;
        assert_eq!(answer.status, status, "{who} {query}: {}", answer.text());
    }
}

#[tokio::test]
async fn what_is_missing_is_told_with_who_can_give_it_and_operators_ask_about_other_tenants() {
    let node = Node::start_secured().await;
    node.user("joe", &[("produce", "a*")]).await;
    node.tenant("acme").await;
    node.user("boss@acme", &[("admin", "")]).await;
    node.user("joe@acme", &[("consume", "o-*")]).await;
    node.account("ci@acme", &[("consume", "t"), ("produce", "t")]).await;
    let key = bearer(&node.key("ci@acme", Some(&[("consume", "t")]), None).await);
    let asked = async |who: &str, query: &str| {
        let path = format!("/v1/explain?{query}");
        if who == "ci" {
            node.send_with(Some(&key), "GET", &path, "").await
        } else {
            node.send_as(Some((who, PASSWORD)), "GET", &path, "").await
        }
    };
    let missing = |action: &str, pattern: Option<&str>, tenant: &str, of_key: bool| {
        let mut missing = json!({ "action": action, "given_by": format!("an admin of the tenant {tenant}") });
        if let Some(pattern) = pattern {
            missing["pattern"] = json!(pattern);
        }
        if of_key {
            missing["of_key"] = json!(true);
        }
        missing
    };
    for (who, query, expected) in [
        ("admin", "user=joe&action=produce&topic=ab", Value::Null),
        ("admin", "user=joe&action=consume&topic=ab", missing("consume", Some("ab"), "default", false)),
        ("joe", "action=see&topic=b", missing("consume", Some("b"), "default", false)),
        ("joe", "action=manage&topic=b", missing("admin", None, "default", false)),
        ("joe", "action=admin", missing("admin", None, "default", false)),
        ("ci", "action=consume&topic=t", Value::Null),
        ("ci", "action=produce&topic=t", missing("produce", Some("t"), "acme", true)),
        ("ci", "action=produce&topic=u", missing("produce", Some("u"), "acme", false)),
        ("admin", "tenant=acme&user=joe&action=consume&topic=o-1", Value::Null),
        ("admin", "tenant=acme&user=joe&action=produce&topic=o-1", missing("produce", Some("o-1"), "acme", false)),
        ("boss@acme", "tenant=acme&user=joe&action=create&topic=o-1", missing("create", Some("o-1"), "acme", false)),
    ] {
        let answer = asked(who, query).await;
        assert_eq!(answer.status, 200, "{who} {query}: {}", answer.text());
        let told = answer.json();
        assert_eq!((&told["missing"], &told["allowed"]), (&expected, &json!(expected.is_null())), "{who} {query}");
    }
    for (who, query, status, text) in [
        ("admin", "tenant=nosuch&user=joe&action=admin", 404, "tenant not found"),
        ("admin", "tenant=acme&user=nosuch&action=admin", 404, "user not found"),
        ("admin", "tenant=acme&action=admin", 400, "user is required"),
        ("boss@acme", "tenant=default&user=joe&action=admin", 403, "operator privileges required"),
        ("boss@acme", "tenant=nosuch&user=joe&action=admin", 403, "operator privileges required"),
    ] {
        let answer = asked(who, query).await;
        assert_eq!((answer.status, &answer.json()["error"]), (status, &json!(text)), "{who} {query}");
    }
    let export = async |tenant: &str| node.send_as_root("GET", &format!("/v1/admin/audit?tenant={tenant}"), "").await;
    assert_eq!(export("nosuch").await.refusal(404, "not_found"), "tenant not found");
    assert_eq!(export("acme").await.status, 200);
}
