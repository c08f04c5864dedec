//! A broker in memory: as much of the contract as the driver uses, with one lie at a time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// How the broker lies, once in a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// It does not.
    None,
    /// Answers 202 and keeps nothing.
    Loses,
    /// Stores a message twice.
    Doubles,
    /// Stores what it refuses.
    KeepsRefused,
    /// Changes a byte.
    Garbles,
    /// Gives a leased message to somebody else.
    LeasesTwice,
    /// Forgets an ack.
    ForgetsAck,
    /// Takes an ack that it refuses.
    TakesRefusedAck,
    /// Puts a message into another partition than its key's.
    Scatters,
    /// Leaves an offset out.
    Skips,
    /// Stores again what it has under an idempotency key, and answers as if it did not.
    ForgetsKeys,
}

#[derive(Clone, Default)]
struct Stored {
    offset: u64,
    id: u64,
    payload: Vec<u8>,
    lease: Option<(u64, Instant)>,
    is_acked: bool,
}

#[derive(Default)]
struct Topic {
    visibility: Duration,
    partitions: Vec<Vec<Stored>>,
    next_offset: Vec<u64>,
}

struct Broker {
    lie: Lie,
    topics: BTreeMap<String, Topic>,
    counter: u64,
    keyed: u64,
    /// Where what was sent under idempotency keys is.
    places: BTreeMap<String, Value>,
}

type Shared = Arc<Mutex<Broker>>;

impl Broker {
    /// Lies are rare.
    fn lies(&mut self, lie: Lie) -> bool {
        self.counter += 1;
        self.lie == lie && self.counter.is_multiple_of(17)
    }

    /// Every third message with a key, where there is another partition.
    fn scatters(&mut self, topic: &str, key: Option<&str>) -> bool {
        if self.lie != Lie::Scatters || key.is_none() || self.topics.get(topic).is_none_or(|topic| topic.partitions.len() < 2) {
            return false;
        }
        self.keyed += 1;
        self.keyed.is_multiple_of(3)
    }

    fn store(&mut self, topic: &str, key: Option<&str>, payload: Vec<u8>) -> bool {
        if self.lies(Lie::KeepsRefused) {
            self.append(topic, key, payload, false);
            return false;
        }
        if self.lies(Lie::Loses) {
            return true;
        }
        let is_double = self.lies(Lie::Doubles);
        let is_scattered = self.scatters(topic, key);
        if is_double {
            self.append(topic, key, payload.clone(), false);
        }
        self.append(topic, key, payload, is_scattered);
        true
    }

    fn store_once(&mut self, topic: &str, key: Option<&str>, idempotency_key: &str, payload: Vec<u8>) -> Value {
        if self.lie == Lie::ForgetsKeys || !self.places.contains_key(idempotency_key) {
            let place = self.append(topic, key, payload, false);
            self.places.entry(idempotency_key.to_owned()).or_insert(place);
        }
        self.places[idempotency_key].clone()
    }

    fn append(&mut self, topic: &str, key: Option<&str>, mut payload: Vec<u8>, is_scattered: bool) -> Value {
        if self.lies(Lie::Garbles)
            && let Some(last) = payload.last_mut()
        {
            *last ^= 1;
        }
        let is_skipped = self.lies(Lie::Skips);
        let id = self.counter;
        let Some(topic) = self.topics.get_mut(topic) else { return Value::Null };
        let count = u64::try_from(topic.partitions.len()).expect("small");
        let hash = key.map_or(id, |key| key.bytes().map(u64::from).sum());
        let at = usize::try_from((hash + u64::from(is_scattered)) % count).expect("small");
        let offset = &mut topic.next_offset[at];
        *offset += u64::from(is_skipped);
        topic.partitions[at].push(Stored { offset: *offset, id, payload, ..Stored::default() });
        let place = json!({ "id": format!("s-{id}"), "partition": at, "offset": offset });
        *offset += 1;
        place
    }

    fn lease(&mut self, name: &str, max: usize) -> Vec<String> {
        let now = Instant::now();
        let mut found = Vec::new();
        let twice = self.lies(Lie::LeasesTwice);
        let Some(topic) = self.topics.get_mut(name) else { return found };
        for (partition, log) in topic.partitions.iter_mut().enumerate() {
            for one in log.iter_mut().filter(|one| !one.is_acked) {
                let is_free = one.lease.is_none_or(|(_, until)| until <= now);
                if found.len() == max || !(is_free || twice) {
                    continue;
                }
                self.counter += 1;
                one.lease = Some((self.counter, now + topic.visibility));
                let (payload, encoding) = match std::str::from_utf8(&one.payload) {
                    Ok(text) if serde_json::from_str::<Value>(text).is_ok() => (text.to_owned(), ""),
                    Ok(text) => (json!(text).to_string(), ""),
                    Err(_) => (json!(STANDARD.encode(&one.payload)).to_string(), r#","payload_encoding":"base64""#),
                };
                // Written by hand: JSON payloads are served byte for byte.
                let message = format!(
                    r#"{{"topic":"{name}","partition":{partition},"offset":{offset},"payload":{payload}{encoding},"timestamp":1,"id":"s-{id}","receipt_handle":"{partition}:{offset}:{nonce}"}}"#,
                    offset = one.offset,
                    id = one.id,
                    nonce = self.counter,
                );
                found.push(message);
            }
        }
        found
    }

    fn settle(&mut self, name: &str, handle: &str, extend: Option<&str>) -> u16 {
        let forgets = self.lies(Lie::ForgetsAck);
        let refuses = self.lies(Lie::TakesRefusedAck);
        let Some(topic) = self.topics.get_mut(name) else { return 404 };
        let parts: Vec<u64> = handle.split(':').filter_map(|part| part.parse().ok()).collect();
        let [partition, offset, nonce] = parts[..] else { return 400 };
        let log = topic.partitions.get_mut(usize::try_from(partition).expect("small"));
        let found = log.and_then(|log| log.iter_mut().find(|one| one.offset == offset));
        let Some(one) = found.filter(|one| one.lease.is_some_and(|(held, until)| held == nonce && until > Instant::now())) else {
            return 410;
        };
        match extend {
            Some("true") => one.lease = Some((nonce, Instant::now() + topic.visibility)),
            Some(_) => one.lease = None,
            None => {
                one.lease = None;
                one.is_acked = !forgets;
                if refuses {
                    return 503;
                }
            }
        }
        204
    }
}

async fn create(State(broker): State<Shared>, Json(body): Json<Value>) -> StatusCode {
    let partitions = usize::try_from(body["partitions"].as_u64().expect("a number")).expect("small");
    let visibility = Duration::from_millis(body["visibility_timeout_ms"].as_u64().expect("a number"));
    let topic = Topic { visibility, partitions: vec![Vec::new(); partitions], next_offset: vec![0; partitions] };
    broker.lock().topics.insert(body["name"].as_str().expect("a name").to_owned(), topic);
    StatusCode::CREATED
}

async fn describe(State(broker): State<Shared>, Path(name): Path<String>) -> Response {
    let broker = broker.lock();
    let Some(topic) = broker.topics.get(&name) else { return StatusCode::NOT_FOUND.into_response() };
    let stats = topic.next_offset.iter().enumerate();
    let stats: Vec<Value> =
        stats.map(|(at, end)| json!({ "index": at, "next_offset": end, "high_watermark": end, "status": "ok" })).collect();
    Json(json!({ "name": name, "partition_stats": stats })).into_response()
}

async fn produce(
    State(broker): State<Shared>,
    Path(name): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let key = query.get("key").map(String::as_str);
    if let Some(idempotency_key) = headers.get("idempotency-key") {
        let place = broker.lock().store_once(&name, key, idempotency_key.to_str().expect("a text"), body.to_vec());
        return if query.contains_key("wait_for") { Json(place).into_response() } else { StatusCode::ACCEPTED.into_response() };
    }
    let is_accepted = broker.lock().store(&name, key, body.to_vec());
    if is_accepted { StatusCode::ACCEPTED.into_response() } else { refusal() }
}

fn refusal() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "error": "not now", "effect": "none" }))).into_response()
}

async fn produce_batch(State(broker): State<Shared>, Path(name): Path<String>, Json(body): Json<Value>) -> Response {
    for entry in body["messages"].as_array().expect("an array") {
        let text = entry["payload"].as_str().expect("a text");
        let is_base64 = entry["payload_encoding"] == "base64";
        let payload = if is_base64 { STANDARD.decode(text).expect("base64") } else { format!("\"{text}\"").into_bytes() };
        while !broker.lock().store(&name, entry["key"].as_str(), payload.clone()) {}
    }
    (StatusCode::ACCEPTED, Json(json!({ "accepted": 1 }))).into_response()
}

async fn consume(State(broker): State<Shared>, Path(name): Path<String>, Query(query): Query<BTreeMap<String, String>>) -> Response {
    let wait = query.get("wait").and_then(|wait| wait.strip_suffix("ms")).and_then(|ms| ms.parse().ok()).unwrap_or(0);
    let max = query.get("max").and_then(|max| max.parse().ok());
    let until = Instant::now() + Duration::from_millis(wait);
    loop {
        let messages = broker.lock().lease(&name, max.unwrap_or(1));
        match (messages.first(), max) {
            (Some(first), None) => return first.clone().into_response(),
            (Some(_), Some(_)) => return format!(r#"{{"messages":[{}]}}"#, messages.join(",")).into_response(),
            (None, _) if Instant::now() >= until => return StatusCode::NO_CONTENT.into_response(),
            (None, _) => tokio::time::sleep(Duration::from_millis(2)).await,
        }
    }
}

async fn ack(
    State(broker): State<Shared>,
    Path(name): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
    body: Bytes,
) -> Response {
    let mut broker = broker.lock();
    if let Some(handle) = query.get("receipt_handle") {
        let status = broker.settle(&name, handle, query.get("extend").map(String::as_str));
        return StatusCode::from_u16(status).expect("a status").into_response();
    }
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    let handles = body["receipt_handles"].as_array().expect("an array");
    let settled = handles.iter().map(|handle| json!({ "status": broker.settle(&name, handle.as_str().expect("a text"), None) }));
    Json(json!({ "results": settled.collect::<Vec<_>>() })).into_response()
}

/// A running broker; it ends with the returned tasks.
pub async fn start(lie: Lie) -> (SocketAddr, tokio::task::JoinSet<()>) {
    let broker: Shared = Arc::new(Mutex::new(Broker { lie, topics: BTreeMap::new(), counter: 0, keyed: 0, places: BTreeMap::new() }));
    let router = Router::new()
        .route("/v1/topics", post(create))
        .route("/v1/topics/{topic}", get(describe))
        .route("/v1/topics/{topic}/produce", post(produce))
        .route("/v1/topics/{topic}/produce/batch", post(produce_batch))
        .route("/v1/topics/{topic}/consume", get(consume))
        .route("/v1/topics/{topic}/ack", post(ack))
        .with_state(broker);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("bound");
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        axum::serve(listener, router).await.expect("it serves until it is dropped");
    });
    (addr, tasks)
}
