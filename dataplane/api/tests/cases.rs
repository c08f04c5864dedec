//! What users of queues have met in the field, tried on one node in this process. `docs/cases.md` says which case each test shows.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use veena_api::ApiConfig;

use crate::support::{Client, Node, until};

const CLIENT: (&str, &str) = ("X-Veena-Client", "test");
const MIB: usize = 1024 * 1024;

/// A node that lets consumers wait longer than any answer may take here: whoever is answered was woken.
async fn patient_node() -> Node {
    let minute = Duration::from_secs(60);
    Node::start_with(ApiConfig { max_consume_wait: minute, write_timeout: minute * 2, ..ApiConfig::default() }).await
}

async fn in_flight(node: &Node) -> usize {
    // The question is a request itself.
    usize::try_from(node.metric("veena_http_requests_in_flight").await).expect("few") - 1
}

async fn parked(node: &Node) -> u64 {
    node.metric("veena_consumers_parked").await
}

/// Consumers of `path`, one after the other, all of them parked.
async fn park(node: &Node, path: &str, count: usize) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let before = parked(node).await;
        let mut client = node.connect().await;
        client.start("GET", path, &[CLIENT], b"").await;
        until("the consumer is parked", || async { parked(node).await > before }).await;
        clients.push(client);
    }
    clients
}

/// Sends one message and waits until it is visible.
async fn commit(node: &Node, topic: &str, query: &str, payload: &str) {
    let answer = node.send("POST", &format!("/v1/topics/{topic}/produce?wait_for=commit{query}"), payload).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

fn handle_of(message: &Value) -> String {
    message["receipt_handle"].as_str().expect("leased").to_owned()
}

/// Settles a lease; `extend` is empty for an ack.
async fn settle(node: &Node, topic: &str, handle: &str, extend: &str) -> u16 {
    node.send("POST", &format!("/v1/topics/{topic}/ack?receipt_handle={handle}{extend}"), "").await.status
}

/// Leases up to 100 messages without waiting.
async fn lease_batch(node: &Node, topic: &str, query: &str) -> Vec<Value> {
    let answer = node.connect().await.request("GET", &format!("/v1/topics/{topic}/consume?{query}"), &[CLIENT], b"").await;
    match answer.status {
        204 => Vec::new(),
        200 => answer.json()["messages"].as_array().expect("a list").clone(),
        status => panic!("{status} {}", answer.text()),
    }
}

async fn attach(node: &Node, parent: &str, child: &str, delay: &str) -> u16 {
    let body = format!(r#"{{"child":"{child}","delay_ms":{delay}}}"#);
    node.send("POST", &format!("/v1/topics/{parent}/children"), body).await.status
}

/// Every payload that a topic's only partition holds, in order.
async fn log_of(node: &Node, topic: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut client = node.connect().await;
    loop {
        let path = format!("/v1/topics/{topic}/consume?partition=0&offset={}", found.len());
        let answer = client.request("GET", &path, &[], b"").await;
        if answer.status == 204 {
            return found;
        }
        let payload = answer.json()["payload"].clone();
        found.push(payload.as_str().map_or_else(|| payload.to_string(), str::to_owned));
    }
}

/// Takes and acks everything that comes until `count` messages have come; their payloads.
async fn drain(node: &Node, topic: &str, count: usize) -> Vec<String> {
    let mut found = Vec::new();
    while found.len() < count {
        let message = node.consume(topic).await;
        found.push(message["payload"].as_str().map_or_else(|| message["payload"].to_string(), str::to_owned));
        assert_eq!(settle(node, topic, &handle_of(&message), "").await, 204);
    }
    assert_eq!(node.get(&format!("/v1/topics/{topic}/consume")).await.status, 204, "and no more");
    found
}

#[tokio::test]
async fn a_batch_with_one_bad_record_in_any_place_stores_nothing() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t","partitions":1}"#).await;
    let too_large = format!(r#"{{"payload":"{}"}}"#, "x".repeat(MIB));
    let bad =
        [(too_large.as_str(), 413), (r#"{"payload":1,"partition":1}"#, 400), (r#"{"payload":1,"headers":{"A b":"x"}}"#, 400), ("{}", 400)];
    for (record, status) in bad {
        for place in [0, 2, 4] {
            let mut records = vec![r#"{"payload":1}"#; 4];
            records.insert(place, record);
            let body = format!(r#"{{"messages":[{}]}}"#, records.join(","));
            for query in ["", "?wait_for=commit"] {
                let answer = node.send("POST", &format!("/v1/topics/t/produce/batch{query}"), &body).await;
                assert_eq!(answer.status, status, "{}", answer.text());
                let text = answer.json()["error"].as_str().expect("a text").to_owned();
                assert!(text.starts_with(&format!("message {place}: ")), "{text}");
            }
        }
    }
    commit(&node, "t", "", "last").await;
    assert_eq!(log_of(&node, "t").await, ["last"]);
}

#[tokio::test]
async fn a_batch_body_may_have_16_mib_to_the_byte() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t","partitions":1}"#).await;
    let mut body = br#"{"messages":[{"payload":"fits"}]}"#.to_vec();
    body.resize(16 * MIB + 1, b' ');
    node.send("POST", "/v1/topics/t/produce/batch", &body).await.refusal(413, "body_too_large");
    body.pop();
    assert_eq!(node.send("POST", "/v1/topics/t/produce/batch", &body).await.status, 202);
    assert_eq!(drain(&node, "t", 1).await, ["fits"]);
}

#[tokio::test]
async fn a_body_over_the_limit_is_told_so_and_the_connection_goes_on_or_says_that_it_ends() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t","partitions":1}"#).await;
    let large = vec![b'x'; MIB + 1];
    let mut chunked = b"Transfer-Encoding: chunked\r\n\r\n".to_vec();
    for part in large.chunks(64 * 1024) {
        chunked.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
        chunked.extend_from_slice(part);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    let mut sized = format!("Content-Length: {}\r\n\r\n", large.len()).into_bytes();
    sized.extend_from_slice(&large);
    for rest in [sized, chunked] {
        let mut client = node.connect().await;
        client.raw("POST /v1/topics/t/produce HTTP/1.1\r\nHost: t\r\nX-Veena-Client: t\r\n").await;
        client.raw(rest).await;
        let answer = client.answer(false).await;
        answer.refusal(413, "body_too_large");
        if answer.header("connection") == Some("close") {
            assert!(client.is_closed().await);
        } else {
            assert_eq!(client.request("GET", "/healthz", &[], b"").await.status, 200);
        }
    }
    commit(&node, "t", "", "last").await;
    assert_eq!(log_of(&node, "t").await, ["last"], "no part of a refused body was stored");
}

#[tokio::test]
async fn an_odd_key_comes_back_as_it_was_sent_and_always_leads_to_the_same_partition() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t","partitions":7}"#).await;
    for (key, served, encoding) in [
        ("%00", json!("\0"), None),
        ("a%0D%0AX-Evil%3A%201", json!("a\r\nX-Evil: 1"), None),
        ("%FF%FE", json!("//4="), Some("base64")),
        ("%C3%A9%20%22%5C", json!("é \"\\"), None),
        ("%7F", json!("\u{7f}"), None),
    ] {
        let mut partitions = BTreeSet::new();
        for _ in 0..2 {
            commit(&node, "t", &format!("&key={key}"), "x").await;
            let message = node.consume("t").await;
            assert_eq!(message["key"], served, "{key}");
            assert_eq!(message.get("key_encoding").and_then(Value::as_str), encoding);
            partitions.insert(message["partition"].as_u64());
            assert_eq!(settle(&node, "t", &handle_of(&message), "").await, 204);
        }
        assert_eq!(partitions.len(), 1, "{key}");
    }
    for (query, body, status) in [
        ("", "", 400),
        ("?key=a&key=b", "x", 400),
        ("?key=%G0", "x", 400),
        ("?partition=-1", "x", 400),
        ("?partition=999999", "x", 400),
        ("?partition=1e3", "x", 400),
        ("?partition=4294967296", "x", 400),
        ("?partition=0x1", "x", 400),
    ] {
        assert_eq!(node.send("POST", &format!("/v1/topics/t/produce{query}"), body).await.status, status, "{query}");
    }
    let huge = node.send("POST", &format!("/v1/topics/t/produce?key={}", "k".repeat(MIB)), "x").await;
    assert_eq!(huge.status, 431);
    let huge = format!(r#"{{"messages":[{{"payload":1,"key":"{}"}}]}}"#, "k".repeat(MIB));
    node.send("POST", "/v1/topics/t/produce/batch", huge).await.refusal(400, "invalid_argument");
    assert_eq!(node.get("/v1/topics/t/consume").await.status, 204, "nothing refused was stored");
}

#[tokio::test]
async fn a_name_that_could_not_be_shown_or_deleted_is_not_created() {
    let node = Node::start().await;
    for name in ["", ".", "..", "a\0b", "a\nb", "a/b", "../a", "a b", "é", "a%2fb", "\u{1f600}"] {
        node.send("POST", "/v1/topics", json!({ "name": name }).to_string()).await.refusal(400, "invalid_argument");
    }
    for name in ["a..b", "CON", "trailing.", "-", "_", "...", &"n".repeat(200)] {
        node.topic(&json!({ "name": name }).to_string()).await;
        assert_eq!(node.get(&format!("/v1/topics/{name}")).await.json()["name"], name);
        assert_eq!(node.send("DELETE", &format!("/v1/topics/{name}"), "").await.status, 204);
    }
    assert_eq!(node.get("/v1/topics").await.json()["topics"], json!([]));
}

#[tokio::test]
async fn a_parked_batch_consumer_that_has_left_holds_nothing_back() {
    let node = patient_node().await;
    node.topic(r#"{"name":"t","partitions":1,"visibility_timeout_ms":60000}"#).await;
    for reset in [false, true] {
        let mut leaver = park(&node, "/v1/topics/t/consume?wait=60s&max=100", 1).await;
        let mut stays = park(&node, "/v1/topics/t/consume?wait=60s", 1).await;
        let leaver = leaver.remove(0);
        if reset {
            leaver.stream.set_zero_linger().expect("an option of every socket");
        }
        drop(leaver);
        until("one consumer is left", || async { parked(&node).await == 1 }).await;
        let three = r#"{"messages":[{"payload":1},{"payload":2},{"payload":3}]}"#;
        assert_eq!(node.send("POST", "/v1/topics/t/produce/batch", three).await.status, 202);
        let first = stays[0].answer(false).await.json();
        let mut rest = Vec::new();
        until("the rest has come", || async { node.metric("veena_ingress_dispatch_backlog_records").await == 0 }).await;
        rest.extend(lease_batch(&node, "t", "max=100").await);
        rest.push(first);
        assert_eq!(rest.len(), 3);
        for message in rest {
            assert_eq!(message["delivery_count"], 1);
            assert_eq!(settle(&node, "t", &handle_of(&message), "").await, 204);
        }
    }
}

#[tokio::test]
async fn of_a_hundred_parked_consumers_none_sleeps_while_a_message_is_there() {
    let node = patient_node().await;
    node.topic(r#"{"name":"t","partitions":4}"#).await;
    let mut consumers = park(&node, "/v1/topics/t/consume?wait=60s", 110).await;
    consumers.drain(..10);
    until("those who left are gone", || async { parked(&node).await == 100 }).await;
    let mut client = node.connect().await;
    for number in 0..100 {
        let sent = client.request("POST", "/v1/topics/t/produce", &[CLIENT], number.to_string().as_bytes()).await;
        assert_eq!(sent.status, 202);
    }
    let mut got = BTreeSet::new();
    for consumer in &mut consumers {
        let answer = consumer.answer(false).await;
        assert_eq!(answer.status, 200);
        got.insert(answer.json()["payload"].as_u64());
    }
    assert_eq!(got.len(), 100, "each got a message of its own");
    assert_eq!(parked(&node).await, 0);
}

#[tokio::test]
async fn consumers_of_an_empty_partition_hold_up_nobody_behind_them() {
    let node = patient_node().await;
    node.topic(r#"{"name":"t","partitions":2}"#).await;
    let mut pinned = park(&node, "/v1/topics/t/consume?wait=60s&partition=1", 10).await;
    let mut batches = park(&node, "/v1/topics/t/consume?wait=60s&max=2", 5).await;
    let mut any = park(&node, "/v1/topics/t/consume?wait=60s", 10).await;
    for number in 0..20 {
        commit(&node, "t", "&partition=0", &number.to_string()).await;
    }
    let mut got = 0;
    for consumer in &mut batches {
        got += consumer.answer(false).await.json()["messages"].as_array().expect("a list").len();
    }
    for consumer in &mut any {
        assert_eq!(consumer.answer(false).await.json()["partition"], 0);
        got += 1;
    }
    got += lease_batch(&node, "t", "max=100").await.len();
    assert_eq!(got, 20);
    for number in 0..10 {
        commit(&node, "t", "&partition=1", &number.to_string()).await;
    }
    for consumer in &mut pinned {
        assert_eq!(consumer.answer(false).await.json()["partition"], 1);
    }
}

#[tokio::test]
async fn an_expired_forged_or_foreign_handle_settles_nothing() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t","partitions":2,"visibility_timeout_ms":2000}"#).await;
    node.topic(r#"{"name":"u","partitions":2}"#).await;
    commit(&node, "t", "&partition=0", "x").await;
    let old = handle_of(&node.consume("t").await);
    let second = node.consume("t").await;
    assert_eq!(second["delivery_count"], 2);
    let held = handle_of(&second);
    for extend in ["", "&extend=true", "&extend=0"] {
        assert_eq!(settle(&node, "t", &old, extend).await, 410, "the first consumer's lease is over {extend}");
    }
    assert_eq!(settle(&node, "t", &held, "&extend=true").await, 204, "the message is still the second consumer's");
    let nonce: i64 = held.rsplit(':').next().and_then(|text| text.parse().ok()).expect("a nonce");
    for bit in 0..62 {
        assert_eq!(settle(&node, "t", &format!("0:0:{}", (nonce ^ (1 << bit)).max(1)), "").await, 410);
    }
    for forged in [format!("1:0:{nonce}"), format!("0:1:{nonce}"), format!("9:0:{nonce}")] {
        assert_eq!(settle(&node, "t", &forged, "").await, 410);
    }
    assert_eq!(settle(&node, "u", &held, "").await, 410);
    for malformed in ["0:0", "0:0:0", "-1:0:1", "a", "0:0:1:1", "0:0:99999999999999999999"] {
        assert_eq!(settle(&node, "t", malformed, "").await, 400, "{malformed}");
    }
    let third = node.consume("t").await;
    assert_eq!((&third["id"], &third["delivery_count"]), (&second["id"], &json!(3)), "the second consumer went away");
    let last = handle_of(&third);
    assert_eq!((settle(&node, "t", &last, "").await, settle(&node, "t", &last, "").await), (204, 410));

    assert_eq!(node.send("DELETE", "/v1/topics/t", "").await.status, 204);
    node.topic(r#"{"name":"t","partitions":2}"#).await;
    commit(&node, "t", "&partition=0", "y").await;
    let new = handle_of(&node.consume("t").await);
    assert_eq!((settle(&node, "t", &last, "").await, settle(&node, "t", &new, "").await), (410, 204));
}

#[tokio::test]
async fn a_lease_that_is_extended_in_time_never_ends_and_is_acked_at_last() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t","partitions":1,"visibility_timeout_ms":2000}"#).await;
    commit(&node, "t", "", "x").await;
    let held = handle_of(&node.consume("t").await);
    let mut other = node.connect().await;
    other.start("GET", "/v1/topics/t/consume?wait=5s", &[], b"").await;
    let mut byte = [0];
    let mut extends = 0;
    while tokio::time::timeout(Duration::from_millis(200), other.stream.peek(&mut byte)).await.is_err() {
        assert_eq!(settle(&node, "t", &held, "&extend=true").await, 204);
        extends += 1;
    }
    assert_eq!(other.answer(false).await.status, 204, "nobody else got it in more than twice the first deadline");
    assert!(extends > 5);
    assert_eq!(settle(&node, "t", &held, "").await, 204);
}

#[tokio::test]
async fn the_places_of_consumers_that_left_are_free_again() {
    let config = ApiConfig { max_consume_in_flight_per_identity: 50, ..ApiConfig::default() };
    let node = Node::start_with(config).await;
    node.topic(r#"{"name":"t","partitions":2}"#).await;
    let mut open = node.metric("veena_http_connections_open").await;
    for round in 0..5 {
        let consumers = park(&node, "/v1/topics/t/consume?wait=10s", 40).await;
        for consumer in &consumers[round * 8..] {
            consumer.stream.set_zero_linger().expect("an option of every socket");
        }
        drop(consumers);
        until("nobody is parked", || async { parked(&node).await == 0 && in_flight(&node).await == 0 }).await;
    }
    open += 1;
    until("their connections are gone", || async { node.metric("veena_http_connections_open").await <= open }).await;
    node.produce("t", "x").await;
    assert_eq!(node.consume("t").await["delivery_count"], 1);
}

#[tokio::test]
async fn a_message_never_acked_holds_its_partition_at_the_cap_and_no_other() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t","partitions":2,"visibility_timeout_ms":1000,"max_acked_ahead_per_partition":10}"#).await;
    for number in 0..31 {
        commit(&node, "t", &format!("&partition={}", u8::from(number != 0)), &number.to_string()).await;
        commit(&node, "t", "&partition=0", &number.to_string()).await;
    }
    let (mut acked, mut stuck) = ([BTreeSet::new(), BTreeSet::new()], Vec::new());
    while stuck.len() < 3 {
        for message in lease_batch(&node, "t", "max=3&wait=2s").await {
            let place = (message["partition"].as_u64().expect("a number"), message["offset"].as_u64().expect("a number"));
            if place == (0, 0) {
                stuck.push(message);
                continue;
            }
            assert_eq!(settle(&node, "t", &handle_of(&message), "").await, 204);
            assert!(acked[usize::from(place.0 == 1)].insert(place.1), "{place:?} came twice");
        }
    }
    assert_eq!(acked[1].len(), 30, "the other partition went on to its end");
    assert!((10..=13).contains(&acked[0].len()), "{}", acked[0].len());
    let counts: Vec<_> = stuck.iter().map(|message| message["delivery_count"].as_u64()).collect();
    assert_eq!(counts, [Some(1), Some(2), Some(3)], "it comes again whenever its lease has ended");
    let stats = &node.get("/v1/topics/t").await.json()["partition_stats"];
    assert_eq!((&stats[0]["frontier"], &stats[1]["frontier"]), (&json!(0), &json!(30)));
    assert_eq!(stats[0]["acked_ahead"].as_u64(), Some(acked[0].len() as u64));

    let last = handle_of(stuck.last().expect("three"));
    if settle(&node, "t", &last, "").await != 204 {
        assert_eq!(settle(&node, "t", &handle_of(&node.consume("t").await), "").await, 204);
    }
    drain(&node, "t", 31 - acked[0].len()).await;
    assert_eq!(node.get("/v1/topics/t").await.json()["partition_stats"][0]["frontier"], 32);
}

#[tokio::test]
async fn a_short_batch_is_answered_at_once_and_one_over_the_limit_is_told_the_limit() {
    let node = patient_node().await;
    node.topic(r#"{"name":"t","partitions":3}"#).await;
    for number in 0..3 {
        commit(&node, "t", &format!("&partition={number}"), "x").await;
    }
    // The client of these tests waits for half as long as the consumer would.
    assert_eq!(lease_batch(&node, "t", "max=100&wait=60s").await.len(), 3);
    let over = node.connect().await.request("GET", "/v1/topics/t/consume?max=101", &[CLIENT], b"").await;
    assert!(over.refusal(400, "invalid_argument").contains("100"));
    node.produce("t", "y").await;
    let long = node.get("/v1/topics/t/consume?wait=61s").await;
    assert_eq!((long.status, long.header("x-narad-wait-clamped")), (200, Some("1m0s")));
}

#[tokio::test]
async fn a_topic_made_again_inherits_nothing_and_feeds_its_children_what_is_new() {
    let node = Node::start().await;
    let make = async |name: &str| node.topic(&json!({"name": name, "partitions": 1}).to_string()).await;
    for name in ["parent", "child", "late"] {
        make(name).await;
    }
    assert_eq!((attach(&node, "parent", "child", "0").await, attach(&node, "parent", "late", "1").await), (200, 200));
    for number in 0..30 {
        commit(&node, "parent", "", &format!("old {number}")).await;
    }
    let leased = node.consume("parent").await;
    drain(&node, "child", 30).await;
    drain(&node, "late", 30).await;
    let before = node.get("/v1/topics/parent").await.json();

    assert_eq!(node.send("DELETE", "/v1/topics/parent", "").await.status, 204);
    make("parent").await;
    assert_eq!((attach(&node, "parent", "child", "0").await, attach(&node, "parent", "late", "1").await), (200, 200));
    let new: Vec<String> = (0..10).map(|number| format!("new {number}")).collect();
    for text in &new {
        commit(&node, "parent", "", text).await;
    }
    assert_eq!(drain(&node, "child", 10).await, new);
    assert_eq!(drain(&node, "late", 10).await, new);
    assert_eq!(settle(&node, "parent", &handle_of(&leased), "").await, 410);
    assert_eq!(drain(&node, "parent", 10).await, new);
    let after = node.get("/v1/topics/parent").await.json();
    assert_ne!(before["id"], after["id"]);
    assert_eq!(after["partition_stats"][0]["next_offset"], 10);

    // The child alone.
    assert_eq!(node.send("DELETE", "/v1/topics/child", "").await.status, 204);
    make("child").await;
    commit(&node, "parent", "", "unattached").await;
    assert_eq!(attach(&node, "parent", "child", "0").await, 200);
    commit(&node, "parent", "", "attached").await;
    assert_eq!(drain(&node, "child", 1).await, ["attached"]);
    assert_eq!(drain(&node, "late", 2).await, ["unattached", "attached"]);
}

#[tokio::test]
async fn an_absurd_delay_is_refused_and_a_long_one_is_kept_to_the_millisecond() {
    let node = Node::start().await;
    node.topic(r#"{"name":"parent","partitions":1,"retention_ms":0}"#).await;
    let absurd = [
        "31536000001",
        "9007199254740992",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551616",
        "-1",
        "\"1h\"",
        "1.5",
        "1e3",
    ];
    let long = ["0", "1", "2147483647", "2147483648", "4294967295", "4294967296", "4294967297", "31536000000"];
    node.topic(r#"{"name":"c","partitions":1}"#).await;
    for delay in absurd {
        assert_eq!(attach(&node, "parent", "c", delay).await, 400, "{delay}");
    }
    for delay in long {
        node.topic(&format!(r#"{{"name":"c{delay}","partitions":1}}"#)).await;
        assert_eq!(attach(&node, "parent", &format!("c{delay}"), delay).await, 200, "{delay}");
        let shown = node.get(&format!("/v1/topics/c{delay}")).await.json();
        assert_eq!(shown.get("fanout_delay_ms").map_or_else(|| "0".to_owned(), Value::to_string), delay);
    }
    commit(&node, "parent", "", "x").await;
    for soon in ["c0", "c1"] {
        drain(&node, soon, 1).await;
    }
    until("those that wait are said to lag", || async {
        let listed = node.get("/v1/topics/parent/children").await.json();
        listed["children"].as_array().expect("a list").iter().skip(2).all(|child| child["lag_messages"] == 1)
    })
    .await;
    for delay in &long[2..] {
        assert_eq!(node.get(&format!("/v1/topics/c{delay}/consume")).await.status, 204, "nothing comes early");
    }
}

#[tokio::test]
async fn a_child_deleted_under_traffic_takes_nothing_with_it_and_comes_back_unattached() {
    let node = Node::start().await;
    for name in ["parent", "child", "other"] {
        node.topic(&json!({"name": name, "partitions": 1}).to_string()).await;
    }
    assert_eq!((attach(&node, "parent", "child", "0").await, attach(&node, "parent", "other", "0").await), (200, 200));
    let texts: Vec<String> = (0..200).map(|number| format!("message {number}")).collect();
    let produce = async {
        let mut client = node.connect().await;
        for text in &texts {
            assert_eq!(client.request("POST", "/v1/topics/parent/produce", &[CLIENT], text.as_bytes()).await.status, 202);
        }
    };
    let delete = async {
        node.consume("child").await;
        assert_eq!(node.send("DELETE", "/v1/topics/child", "").await.status, 204);
        node.topic(r#"{"name":"child","partitions":1}"#).await;
    };
    tokio::join!(produce, delete);
    assert_eq!(drain(&node, "parent", 200).await, texts);
    assert_eq!(drain(&node, "other", 200).await, texts);
    assert_eq!(node.get("/v1/topics/child/consume").await.status, 204);
    let listed = node.get("/v1/topics/parent/children").await.json();
    assert_eq!(listed["children"].as_array().map(|list| list.iter().map(|c| c["name"].clone()).collect()), Some(vec![json!("other")]));
}

#[tokio::test]
async fn a_child_attached_under_traffic_gets_everything_from_its_attach_point_on() {
    let node = Node::start().await;
    for name in ["parent", "child"] {
        node.topic(&json!({"name": name, "partitions": 1}).to_string()).await;
    }
    let is_attached = Cell::new(false);
    let produce = async {
        let mut client = node.connect().await;
        let (mut texts, mut behind) = (Vec::new(), 0);
        while behind < 50 {
            behind += usize::from(is_attached.get());
            let text = format!("message {}", texts.len());
            assert_eq!(client.request("POST", "/v1/topics/parent/produce", &[CLIENT], text.as_bytes()).await.status, 202);
            texts.push(text);
        }
        texts
    };
    let attach = async {
        node.consume("parent").await;
        assert_eq!(attach(&node, "parent", "child", "0").await, 200);
        is_attached.set(true);
    };
    let (texts, ()) = tokio::join!(produce, attach);
    let linked = node.get("/v1/topics/child").await.json();
    let from = usize::try_from(linked["attach_offsets"][0].as_u64().expect("a number")).expect("few");
    assert!(from > 0 && from < texts.len(), "attached in the middle: {from}");
    assert_eq!(drain(&node, "child", texts.len() - from).await, texts[from..]);
}

#[tokio::test]
async fn topics_cannot_feed_themselves_in_a_circle_not_even_in_a_race() {
    let node = Node::start().await;
    for round in 0..10 {
        let (a, b) = (format!("a{round}"), format!("b{round}"));
        node.topic(&json!({"name": a, "partitions": 1}).to_string()).await;
        node.topic(&json!({"name": b, "partitions": 1}).to_string()).await;
        assert_eq!(attach(&node, &a, &a, "0").await, 400);
        let (one, other) = tokio::join!(attach(&node, &a, &b, "0"), attach(&node, &b, &a, "1"));
        assert_eq!(one.min(other), 200, "one of them is first");
        assert_eq!(one.max(other), 409, "and the other would close the circle");
    }
    node.topic(r#"{"name":"c","partitions":1}"#).await;
    let (parent, child) = match node.get("/v1/topics/a0").await.json()["role"].as_str() {
        Some("parent") => ("a0", "b0"),
        _ => ("b0", "a0"),
    };
    assert_eq!((attach(&node, child, "c", "0").await, attach(&node, "c", parent, "0").await), (409, 409));
}

#[tokio::test]
async fn a_child_that_waits_holds_up_none_of_the_others() {
    let node = Node::start().await;
    node.topic(r#"{"name":"parent","partitions":1,"retention_ms":0}"#).await;
    for number in 0..10 {
        node.topic(&json!({"name": format!("c{number}"), "partitions": 1}).to_string()).await;
        let delay = if number == 4 { "31536000000" } else { "0" };
        assert_eq!(attach(&node, "parent", &format!("c{number}"), delay).await, 200);
    }
    let texts: Vec<String> = (0..20).map(|number| format!("message {number}")).collect();
    for text in &texts {
        commit(&node, "parent", "", text).await;
    }
    for number in (0..10).filter(|number| *number != 4) {
        assert_eq!(drain(&node, &format!("c{number}"), 20).await, texts);
    }
    until("only the one that waits lags", || async {
        let listed = node.get("/v1/topics/parent/children").await.json();
        let lags: Vec<_> = listed["children"].as_array().expect("a list").iter().map(|child| child["lag_messages"].as_u64()).collect();
        lags.iter().enumerate().all(|(number, lag)| *lag == Some(if number == 4 { 20 } else { 0 }))
    })
    .await;
}

#[tokio::test]
async fn topics_that_come_and_go_leave_no_trace_in_the_counters() {
    let node = Node::start().await;
    let series =
        async || node.get("/metrics").await.text().lines().map(|line| line.split(' ').next().map(str::to_owned)).collect::<BTreeSet<_>>();
    let cycle = async |number: usize| {
        let name = format!("ghost-{number}");
        node.topic(&json!({"name": name, "partitions": 3}).to_string()).await;
        commit(&node, &name, "", "x").await;
        drain(&node, &name, 1).await;
        node.get(&format!("/v1/topics/{name}")).await;
        assert_eq!(node.send("DELETE", &format!("/v1/topics/{name}"), "").await.status, 204);
    };
    cycle(0).await;
    let before = series().await;
    for number in 1..30 {
        cycle(number).await;
    }
    until("their logs are closed", || async { node.metric("veena_open_partition_logs").await == 0 }).await;
    assert_eq!(series().await, before, "no series more, none less");
    let text = node.get("/metrics").await.text();
    assert!(!text.contains("ghost"), "{text}");
    assert_eq!((node.metric("veena_topics_total").await, node.metric("veena_partitions_total").await), (0, 0));
}

#[tokio::test]
async fn what_was_created_can_be_used_at_once() {
    let node = Node::start().await;
    let (mut one, mut two) = (node.connect().await, node.connect().await);
    for number in 0..50 {
        let body = json!({"name": format!("t{number}"), "partitions": 1}).to_string();
        assert_eq!(one.request("POST", "/v1/topics", &[CLIENT], body.as_bytes()).await.status, 201);
        assert_eq!(two.request("GET", &format!("/v1/topics/t{number}/consume"), &[], b"").await.status, 204);
        let child = json!({"name": format!("c{number}"), "parent": format!("t{number}")}).to_string();
        assert_eq!(one.request("POST", "/v1/topics", &[CLIENT], child.as_bytes()).await.status, 201);
        assert_eq!(two.request("GET", &format!("/v1/topics/c{number}/consume"), &[], b"").await.status, 204);
        assert_eq!(two.request("POST", &format!("/v1/topics/t{number}/produce"), &[CLIENT], b"x").await.status, 202);
        let path = format!("/v1/topics/t{number}/consume?wait=10s");
        for path in [&path, &format!("/v1/topics/c{number}/consume?wait=10s")] {
            assert_eq!(two.request("GET", path, &[], b"").await.status, 200);
        }
        assert_eq!(one.request("DELETE", &format!("/v1/topics/t{number}"), &[], b"").await.status, 204);
        assert_eq!(two.request("GET", &path, &[], b"").await.status, 404);
    }
}

#[tokio::test]
async fn a_batch_acked_twice_is_settled_once() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t","partitions":2,"visibility_timeout_ms":1000}"#).await;
    for _ in 0..10 {
        commit(&node, "t", "", "x").await;
    }
    let mut handles: Vec<_> = lease_batch(&node, "t", "max=100").await.iter().map(handle_of).collect();
    assert_eq!(handles.len(), 10);
    let left_out = handles.pop().expect("ten");
    let body = json!({ "receipt_handles": handles }).to_string();
    for status in [204, 410] {
        let answer = node.send("POST", "/v1/topics/t/ack", &body).await.json();
        let statuses: Vec<_> = answer["results"].as_array().expect("a list").iter().map(|one| one["status"].as_u64()).collect();
        assert_eq!(statuses, [Some(status); 9]);
    }
    let again = node.consume("t").await;
    assert_eq!(again["delivery_count"], 2, "what was left out comes again, and nothing else");
    assert_eq!(settle(&node, "t", &left_out, "").await, 410, "too late");
    assert_eq!(settle(&node, "t", &handle_of(&again), "").await, 204);
    assert_eq!(node.get("/v1/topics/t/consume").await.status, 204);
}

#[tokio::test]
async fn one_producer_with_one_key_is_read_in_its_order() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t","partitions":5}"#).await;
    let mut sent: Vec<String> = Vec::new();
    // 100 requests at once on one connection.
    let mut pipelined = node.connect().await;
    let mut bytes = String::new();
    for number in 0..100 {
        let text = format!("pipelined {number}");
        let head = "POST /v1/topics/t/produce?key=k HTTP/1.1\r\nHost: t\r\nX-Veena-Client: t";
        bytes.push_str(&format!("{head}\r\nContent-Length: {}\r\n\r\n{text}", text.len()));
        sent.push(text);
    }
    pipelined.raw(bytes).await;
    for _ in 0..100 {
        assert_eq!(pipelined.answer(false).await.status, 202);
    }
    // One after the other over eight connections.
    let mut connections = Vec::new();
    for _ in 0..8 {
        connections.push(node.connect().await);
    }
    for number in 0..100 {
        let text = format!("in turn {number}");
        let answer = connections[number % 8].request("POST", "/v1/topics/t/produce?key=k", &[CLIENT], text.as_bytes()).await;
        assert_eq!(answer.status, 202);
        sent.push(text);
    }
    // In batches.
    for batch in 0..5 {
        let texts: Vec<String> = (0..20).map(|number| format!("batch {batch} {number}")).collect();
        let messages: Vec<Value> = texts.iter().map(|text| json!({"payload": text, "key": "k"})).collect();
        let answer = node.send("POST", "/v1/topics/t/produce/batch", json!({ "messages": messages }).to_string()).await;
        assert_eq!(answer.status, 202);
        sent.extend(texts);
    }
    assert_eq!(drain(&node, "t", 300).await, sent);
}

/// No member of an answer is null: what is not known is left out.
fn assert_no_null(path: &str, value: &Value) {
    match value {
        Value::Null => panic!("{path} is null"),
        Value::Array(items) => items.iter().enumerate().for_each(|(at, item)| assert_no_null(&format!("{path}[{at}]"), item)),
        Value::Object(members) => members.iter().for_each(|(name, member)| assert_no_null(&format!("{path}.{name}"), member)),
        _ => {}
    }
}

#[tokio::test]
async fn what_is_not_known_is_left_out_and_every_refusal_can_be_read_by_a_program() {
    let node = Node::start().await;
    node.topic(r#"{"name":"parent","partitions":2,"retention_ms":0}"#).await;
    node.topic(r#"{"name":"child","parent":"parent"}"#).await;
    node.topic(r#"{"name":"late","parent":"parent","fanout_delay_ms":31536000000}"#).await;
    for healthy_or_lagging in 0..2 {
        for path in [
            "/v1/topics",
            "/v1/topics/parent",
            "/v1/topics/child",
            "/v1/topics/late",
            "/v1/topics/parent/schema",
            "/v1/topics/parent/children",
        ] {
            let answer = node.get(path).await;
            assert_eq!(answer.status, 200);
            assert_no_null(path, &answer.json());
        }
        let stats = node.get("/v1/topics/parent").await.json()["partition_stats"].clone();
        for partition in stats.as_array().expect("a list") {
            for name in ["index", "segments", "oldest_offset", "next_offset", "high_watermark", "size_bytes"] {
                assert!(partition[name].is_u64(), "{name} in {partition}");
            }
            assert_eq!(partition["status"], "ok");
        }
        if healthy_or_lagging == 0 {
            commit(&node, "parent", "", "{}").await;
            assert_no_null("message", &node.consume("child").await);
        }
    }
    for (method, path, body, status, code) in [
        ("POST", "/v1/topics", "{", 400, "malformed_request"),
        ("POST", "/v1/topics", r#"{"name":"parent"}"#, 409, "already_exists"),
        ("GET", "/v1/topics/none", "", 404, "topic_not_found"),
        ("POST", "/v1/topics/late/produce", "x", 409, "delayed_child"),
        ("POST", "/v1/topics/parent/ack?receipt_handle=0:0:1", "", 410, "lease_lost"),
        ("GET", "/v1/topics/parent/consume?wait=x", "", 400, "invalid_argument"),
        ("PATCH", "/v1/topics/parent", "{}", 400, "invalid_argument"),
        ("DELETE", "/v1/topics/parent/children/none", "", 404, "not_found"),
    ] {
        let answer = node.send(method, path, body).await;
        assert!(!answer.refusal(status, code).is_empty());
        assert_no_null(path, &answer.json());
    }
}

#[tokio::test]
async fn a_topic_made_again_is_not_judged_by_its_predecessors_schema() {
    let node = Node::start().await;
    for (schema, taken, refused) in [
        (r#","schema":{"type":"object"}"#, "{}", Some("1")),
        ("", "1", None),
        (r#","schema":{"type":"integer"}"#, "1", Some("{}")),
        (r#","schema":{"type":"object"}"#, "{}", Some("1")),
    ] {
        node.topic(&format!(r#"{{"name":"t","partitions":1{schema}}}"#)).await;
        node.produce("t", taken).await;
        if let Some(refused) = refused {
            assert_eq!(node.send("POST", "/v1/topics/t/produce", refused).await.status, 400);
        }
        assert_eq!(node.send("DELETE", "/v1/topics/t", "").await.status, 204);
    }
}

#[tokio::test]
async fn a_partition_that_is_added_is_served_to_those_who_wait_and_copied_from_its_beginning() {
    let node = patient_node().await;
    node.topic(r#"{"name":"parent","partitions":1}"#).await;
    node.topic(r#"{"name":"child","partitions":1,"parent":"parent"}"#).await;
    commit(&node, "parent", "", "first").await;
    drain(&node, "child", 1).await;
    drain(&node, "parent", 1).await;
    let mut consumer = park(&node, "/v1/topics/parent/consume?wait=60s", 1).await;
    assert_eq!(node.send("PATCH", "/v1/topics/parent", r#"{"partitions":3}"#).await.status, 200);
    commit(&node, "parent", "&partition=2", "second").await;
    assert_eq!(consumer[0].answer(false).await.json()["partition"], 2);
    assert_eq!(drain(&node, "child", 1).await, ["second"]);
}

#[tokio::test]
async fn no_partition_is_always_looked_at_first() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t","partitions":4}"#).await;
    for number in 0..20 {
        commit(&node, "t", &format!("&partition={}", number % 4), "x").await;
    }
    let mut seen = BTreeSet::new();
    for _ in 0..5 {
        seen.insert(node.consume("t").await["partition"].as_u64());
    }
    assert!(seen.len() > 1, "{seen:?}");
}
