//! The calls of the contract that load and tests make, each with what is known of its effect.

mod members;
mod metrics;
mod topics;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;
use veena_loadtest_checker::{Delivered, Digest, How, Outcome};

use crate::http::{Connection, Exchange, RequestBytes, escape};
use crate::payload;

pub use members::{Member, MoveShown};
pub use metrics::Metrics;
pub use topics::{NewTopic, PartitionNumbers};

/// An answer, owned.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The whole body.
    pub body: Vec<u8>,
    /// May it have been applied, as the answer says (`Veena-Effect`, or `effect` in the body).
    pub effect: Option<String>,
    /// The header `Retry-After`.
    pub retry_after: Option<String>,
}

impl Reply {
    /// Did the thing that was asked for happen?
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match (self.status, self.effect.as_deref()) {
            (200..=299, _) => Outcome::Ok,
            (_, Some("none")) => Outcome::Fail,
            (_, Some(_)) => Outcome::Unknown,
            // Without a word: what the contract says of the status.
            (400..=498 | 503, None) => Outcome::Fail,
            (_, None) => Outcome::Unknown,
        }
    }

    /// The answer as an error, for calls that must succeed.
    fn refused(&self, what: &str) -> anyhow::Error {
        anyhow::anyhow!("{what}: {} {}", self.status, String::from_utf8_lossy(&self.body))
    }
}

/// How a call without an answer ended.
#[must_use]
pub fn outcome_of(err: &Exchange) -> Outcome {
    match err {
        Exchange::NotSent(_) => Outcome::Fail,
        Exchange::Unanswered(_) => Outcome::Unknown,
    }
}

/// One message as a client got it.
#[derive(Clone, Debug)]
pub struct Message {
    /// Its partition.
    pub partition: u32,
    /// Its offset.
    pub offset: u64,
    /// Its id, if served.
    pub id: Option<String>,
    /// The bytes that were sent.
    pub payload: Vec<u8>,
    /// What settles it; absent for a replay.
    pub handle: Option<String>,
    /// How often it was handed out, if served.
    pub delivery_count: Option<u32>,
}

impl Message {
    /// The message as the checker sees it.
    #[must_use]
    pub fn delivered(&self) -> Delivered {
        Delivered {
            partition: self.partition,
            offset: self.offset,
            id: self.id.as_deref().map(Into::into),
            label: payload::label_of(&self.payload),
            digest: Digest::of(&self.payload),
            handle: self.handle.as_deref().unwrap_or_default().into(),
        }
    }
}

#[derive(Deserialize)]
struct WireMessage<'a> {
    partition: u32,
    offset: u64,
    #[serde(default)]
    id: Option<String>,
    #[serde(borrow)]
    payload: &'a RawValue,
    #[serde(default)]
    payload_encoding: Option<String>,
    #[serde(default)]
    receipt_handle: Option<String>,
    #[serde(default)]
    delivery_count: Option<u32>,
}

impl WireMessage<'_> {
    fn into_message(self) -> anyhow::Result<Message> {
        let raw = self.payload.get();
        let payload = match self.payload_encoding.as_deref() {
            Some("base64") => STANDARD.decode(serde_json::from_str::<String>(raw)?)?,
            Some(other) => bail!("payload encoding {other}"),
            None if raw.starts_with('"') => serde_json::from_str::<String>(raw)?.into_bytes(),
            None if raw == "null" => Vec::new(),
            None => raw.as_bytes().to_vec(),
        };
        let Self { partition, offset, id, receipt_handle: handle, delivery_count, .. } = self;
        Ok(Message { partition, offset, id, payload, handle, delivery_count })
    }
}

/// The messages in the body of a consume.
///
/// # Errors
/// The body is not what the contract promises.
pub fn parse_messages(body: &[u8], is_batch: bool) -> anyhow::Result<Vec<Message>> {
    #[derive(Deserialize)]
    struct Batch<'a> {
        #[serde(borrow)]
        messages: Vec<WireMessage<'a>>,
    }
    let wire = if is_batch { serde_json::from_slice::<Batch<'_>>(body)?.messages } else { vec![serde_json::from_slice(body)?] };
    wire.into_iter().map(WireMessage::into_message).collect()
}

/// What a client holds: the nodes it may ask, and a connection to each as long as it lasts. It asks one node as long as that answers.
pub struct Client {
    nodes: Vec<(SocketAddr, Option<Connection>)>,
    /// The node that is asked next.
    at: usize,
    stays: bool,
    /// The `Authorization` line, if the nodes ask who sends a request.
    signs_in: Option<String>,
    timeout: Duration,
}

/// A password must not be printed.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("nodes", &self.nodes).field("at", &self.at).finish_non_exhaustive()
    }
}

impl Client {
    /// A client of the node at `addr`.
    #[must_use]
    pub fn new(addr: SocketAddr) -> Self {
        Self::among(&[addr], 0)
    }

    /// A client of the nodes at `addrs`, which asks first the one at place `at`, counted round.
    ///
    /// # Panics
    /// There is no node.
    #[must_use]
    pub fn among(addrs: &[SocketAddr], at: usize) -> Self {
        let nodes = addrs.iter().map(|addr| (*addr, None)).collect();
        Self { nodes, at: at % addrs.len(), stays: false, signs_in: None, timeout: Duration::from_secs(30) }
    }

    /// Signs in with this `Authorization` line.
    #[must_use]
    pub fn signed_in(mut self, line: &str) -> Self {
        self.signs_in = Some(line.to_owned());
        self
    }

    /// Asks the same node whatever it answers.
    #[must_use]
    pub fn staying(mut self) -> Self {
        self.stays = true;
        self
    }

    /// The place of the node that is asked next.
    #[must_use]
    pub fn node(&self) -> usize {
        self.at
    }

    /// Asks the next node from now on.
    pub fn turn(&mut self) {
        if !self.stays {
            self.at = (self.at + 1) % self.nodes.len();
        }
    }

    /// With another limit on how long an answer may take.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// One request, one answer. After a failure or a refusal for now the next node is asked.
    ///
    /// # Errors
    /// See [`Exchange`].
    pub async fn call(&mut self, request: &RequestBytes) -> Result<Reply, Exchange> {
        let at = self.at;
        let signed = self.signs_in.as_ref().map(|line| request.clone().with_header(line));
        let request = signed.as_ref().unwrap_or(request);
        // A future that is dropped on the way leaves the place as it is, without a connection.
        let answered = Self::exchange(&mut self.nodes[at], self.timeout, request).await;
        if !answered.as_ref().is_ok_and(|reply| reply.status < 500) {
            self.turn();
        }
        answered
    }

    async fn exchange(
        (addr, kept): &mut (SocketAddr, Option<Connection>),
        timeout: Duration,
        request: &RequestBytes,
    ) -> Result<Reply, Exchange> {
        let mut connection = match kept.take().filter(|connection| !connection.is_over()) {
            Some(connection) => connection,
            None => {
                let opened = tokio::time::timeout(timeout, Connection::open(*addr)).await;
                opened.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())).map_err(Exchange::NotSent)?
            }
        };
        let answered = tokio::time::timeout(timeout, connection.exchange(request.as_bytes())).await;
        let answer = answered.map_err(|_| Exchange::Unanswered(std::io::ErrorKind::TimedOut.into()))??;
        let reply = Reply {
            status: answer.status,
            body: answer.body.to_vec(),
            effect: answer.effect.map(str::to_owned).or_else(|| effect_in(answer.status, answer.body)),
            retry_after: answer.retry_after.map(str::to_owned),
        };
        *kept = Some(connection);
        Ok(reply)
    }

    /// A GET.
    ///
    /// # Errors
    /// See [`Exchange`].
    pub async fn get(&mut self, target: &str) -> Result<Reply, Exchange> {
        self.call(&RequestBytes::get(target)).await
    }

    /// Sends one message.
    ///
    /// # Errors
    /// See [`Exchange`].
    pub async fn produce(&mut self, topic: &str, key: Option<&str>, payload: &[u8]) -> Result<Reply, Exchange> {
        let query = key.map(|key| format!("?key={}", escape(key))).unwrap_or_default();
        let target = format!("/v1/topics/{topic}/produce{query}");
        let headers = ["X-Veena-Client: load", "Content-Type: application/octet-stream"];
        self.call(&RequestBytes::new("POST", &target, &headers, payload)).await
    }

    /// Sends one message under an idempotency key, and may ask where it is.
    ///
    /// # Errors
    /// See [`Exchange`].
    pub async fn produce_once(
        &mut self,
        topic: &str,
        key: Option<&str>,
        idempotency_key: &str,
        asks_where: bool,
        payload: &[u8],
    ) -> Result<Reply, Exchange> {
        let key = key.map(|key| format!("key={}", escape(key)));
        let query: Vec<String> = key.into_iter().chain(asks_where.then(|| "wait_for=commit".to_owned())).collect();
        let target = format!("/v1/topics/{topic}/produce?{}", query.join("&"));
        let header = format!("Idempotency-Key: {idempotency_key}");
        let headers = ["X-Veena-Client: load", "Content-Type: application/octet-stream", &header];
        self.call(&RequestBytes::new("POST", &target, &headers, payload)).await
    }

    /// Sends one message to a partition; a node that is behind is asked again.
    ///
    /// # Errors
    /// The node does not take it, or does not answer.
    pub async fn produce_to(&mut self, topic: &str, partition: u32, payload: &[u8]) -> anyhow::Result<()> {
        let request = RequestBytes::post(&format!("/v1/topics/{topic}/produce?partition={partition}"), payload);
        for _ in 0..1000 {
            let reply = self.call(&request).await?;
            match reply.status {
                202 => return Ok(()),
                429 | 503 if reply.outcome() == Outcome::Fail => tokio::time::sleep(Duration::from_millis(20)).await,
                _ => return Err(reply.refused("cannot produce")),
            }
        }
        bail!("the node takes no message")
    }

    /// Sends a batch; payloads go as base64.
    ///
    /// # Errors
    /// See [`Exchange`].
    pub async fn produce_batch(&mut self, topic: &str, messages: &[(Option<&str>, &[u8])]) -> Result<Reply, Exchange> {
        let entries = messages.iter().map(|(key, payload)| {
            let mut entry = serde_json::json!({ "payload": STANDARD.encode(payload), "payload_encoding": "base64" });
            if let Some(key) = key {
                entry["key"] = serde_json::json!(key);
            }
            entry
        });
        let body = serde_json::json!({ "messages": entries.collect::<Vec<_>>() }).to_string();
        self.call(&RequestBytes::post_json(&format!("/v1/topics/{topic}/produce/batch"), body.as_bytes())).await
    }

    /// Leases up to `messages_max` messages (1: the single form). Empty when the wait ran out.
    ///
    /// # Errors
    /// No answer, or one that the contract does not know; `Err` within `Ok` is a refusal.
    pub async fn consume(&mut self, topic: &str, wait: Duration, messages_max: usize) -> anyhow::Result<Result<Vec<Message>, Reply>> {
        let is_batch = messages_max > 1;
        let max = if is_batch { format!("&max={messages_max}") } else { String::new() };
        let reply = self.get(&format!("/v1/topics/{topic}/consume?wait={}ms{max}", wait.as_millis())).await?;
        match reply.status {
            200 => Ok(Ok(parse_messages(&reply.body, is_batch).context("the body of a consume")?)),
            204 => Ok(Ok(Vec::new())),
            _ => Ok(Err(reply)),
        }
    }

    /// Acks, extends or hands back one lease.
    ///
    /// # Errors
    /// See [`Exchange`].
    pub async fn settle(&mut self, topic: &str, handle: &str, how: How) -> Result<Reply, Exchange> {
        let extend = match how {
            How::Ack => "",
            How::Extend => "&extend=true",
            How::Nack => "&extend=0",
        };
        self.call(&RequestBytes::post(&format!("/v1/topics/{topic}/ack?receipt_handle={}{extend}", escape(handle)), b"")).await
    }

    /// Acks up to 100 leases; one status each.
    ///
    /// # Errors
    /// See [`Exchange`]; a refusal of the whole is the status of each.
    pub async fn ack_batch(&mut self, topic: &str, handles: &[String]) -> Result<Vec<u16>, Exchange> {
        #[derive(Deserialize)]
        struct One {
            status: u16,
        }
        #[derive(Deserialize)]
        struct All {
            results: Vec<One>,
        }
        let body = serde_json::json!({ "receipt_handles": handles }).to_string();
        let reply = self.call(&RequestBytes::post_json(&format!("/v1/topics/{topic}/ack"), body.as_bytes())).await?;
        let all = serde_json::from_slice::<All>(&reply.body).ok().filter(|all| reply.status == 200 && all.results.len() == handles.len());
        Ok(all.map_or_else(|| vec![reply.status; handles.len()], |all| all.results.into_iter().map(|one| one.status).collect()))
    }
}

fn effect_in(status: u16, body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Problem {
        effect: String,
    }
    if status < 300 { None } else { serde_json::from_slice::<Problem>(body).ok().map(|problem| problem.effect) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u16, effect: Option<&str>) -> Outcome {
        Reply { status, body: Vec::new(), effect: effect.map(str::to_owned), retry_after: None }.outcome()
    }

    #[test]
    fn an_answer_tells_whether_it_happened() {
        assert_eq!(reply(202, None), Outcome::Ok);
        assert_eq!(reply(500, None), Outcome::Unknown);
        assert_eq!(reply(500, Some("none")), Outcome::Fail);
        assert_eq!(reply(503, None), Outcome::Fail);
        assert_eq!(reply(503, Some("possible")), Outcome::Unknown);
        assert_eq!(reply(502, None), Outcome::Unknown);
        assert_eq!(reply(410, None), Outcome::Fail);
        assert_eq!(effect_in(503, br#"{"error":"x","effect":"none"}"#).as_deref(), Some("none"));
    }

    #[test]
    fn every_served_form_of_a_payload_gives_back_the_bytes() {
        let body = br#"{"messages":[
            {"topic":"t","partition":1,"offset":2,"payload":{"a": 1.0},"timestamp":1,"receipt_handle":"1:2:3","id":"s-1"},
            {"topic":"t","partition":1,"offset":3,"payload":"plain \u00e9","timestamp":1,"receipt_handle":"1:3:3"},
            {"topic":"t","partition":1,"offset":4,"payload":"/w==","payload_encoding":"base64","timestamp":1,"unknown":[]}]}"#;
        let messages = parse_messages(body, true).expect("the contract's form");
        let payloads: Vec<&[u8]> = messages.iter().map(|m| m.payload.as_slice()).collect();
        assert_eq!(payloads, [br#"{"a": 1.0}"#.as_slice(), "plain é".as_bytes(), &[0xff]]);
        assert_eq!(messages[0].id.as_deref(), Some("s-1"));
        assert_eq!(messages[2].handle, None);
    }

    #[test]
    fn metrics_of_one_kind_are_summed() {
        let text = "# HELP x\nveena_storage_fsync_seconds_count{file=\"wal\"} 3\nveena_storage_fsync_seconds_count 4\nother_total 9\n\
                    veena_storage_fsync_seconds_bucket{le=\"1\"} 7\nveena_ingress_dispatch_backlog_records 12\n";
        let metrics = Metrics(text.to_owned());
        assert_eq!(metrics.syncs(), Some(7.0));
        assert_eq!(metrics.wal_lag(), Some(12.0));
        assert_eq!(metrics.sum(|name| name == "absent"), None);
    }

    #[test]
    fn series_are_summed_by_name_and_by_label() {
        let text = "# TYPE a counter\na{route=\"x\",le=\"1\"} 2\na{route=\"x\",le=\"2\"} 3\na{route=\"y\",le=\"1\"} 5\nveena_storage_fsync_seconds_count{file=\"wal\"} 7\n";
        let metrics = Metrics(text.to_owned());
        assert_eq!(metrics.sum(|name| name == "a"), Some(10.0));
        assert_eq!(metrics.sum_of("a{route=\"x\"", "le=\"1\""), Some(2.0));
        assert_eq!(metrics.sum_of("a{route=\"z\"", ""), None);
        assert_eq!((metrics.syncs(), metrics.wal_lag()), (Some(7.0), None));
    }
}
