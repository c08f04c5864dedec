//! Routes of messages: produce, consume, settle.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderName, HeaderValue};

use super::{Answer, Client};
use crate::bodies::{AckBatch, AckResult, AckResults, BatchAccepted, Committed, Message, MessageBatch, ProduceBatch};
use crate::duration::format_duration;
use crate::error::ClientError;
use crate::headers;
use crate::retry::Kind;

/// What a produce says beside the message.
#[derive(Clone, Debug, Default)]
pub struct ProduceOptions {
    /// Chooses the partition when `partition` does not; stored with the message.
    pub key: Option<Bytes>,
    /// Chooses the partition.
    pub partition: Option<u32>,
    /// Stored and served with the message.
    pub headers: Vec<(String, String)>,
    /// The message is stored once, however often it is sent under this key within the topic's window.
    pub idempotency_key: Option<String>,
}

/// What to do with a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleMode {
    /// The message is done.
    Ack,
    /// The lease runs anew from now.
    Extend,
    /// The message may be handed out again at once.
    Nack,
}

impl SettleMode {
    const fn extend(self) -> Option<&'static str> {
        match self {
            Self::Ack => None,
            Self::Extend => Some("true"),
            Self::Nack => Some("0"),
        }
    }
}

impl Client {
    /// `POST /v1/topics/{topic}/produce`: stores one message; answers once it is synced on the accepting node.
    ///
    /// # Errors
    /// As the server refuses. [`ClientError::effect`] says whether the message may have been stored; such a call is repeated here only under
    /// an idempotency key.
    pub async fn produce(&self, topic: &str, payload: Bytes, options: &ProduceOptions) -> Result<(), ClientError> {
        self.send_produce(topic, payload, options, false).await.map(|_| ())
    }

    /// The same with `wait_for=commit`: answers once the message is visible to consumers, and says where it is.
    ///
    /// # Errors
    /// As [`Client::produce`].
    pub async fn produce_committed(&self, topic: &str, payload: Bytes, options: &ProduceOptions) -> Result<Committed, ClientError> {
        self.send_produce(topic, payload, options, true).await?.json()
    }

    async fn send_produce(&self, topic: &str, payload: Bytes, options: &ProduceOptions, commit: bool) -> Result<Answer, ClientError> {
        let mut route = self.v1(&["topics", topic, "produce"]);
        if let Some(key) = &options.key {
            route = route.with("key", key);
        }
        route = route.with_some("partition", options.partition).with_some("wait_for", commit.then_some("commit"));
        let kind = if options.idempotency_key.is_some() { Kind::ProduceKeyed } else { Kind::Produce };
        let mut call = self.call(kind, Method::POST, route);
        call.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        if let Some(key) = &options.idempotency_key {
            let value = HeaderValue::from_str(key).map_err(|_| ClientError::invalid("the idempotency key cannot be sent as a header"))?;
            call.headers.insert(HeaderName::from_static(headers::IDEMPOTENCY_KEY), value);
        }
        for (name, value) in &options.headers {
            let header = HeaderName::from_bytes(format!("{}{name}", headers::MESSAGE_PREFIX).as_bytes());
            let header = header.map_err(|_| ClientError::invalid(format!("message header name {name:?} cannot be sent")))?;
            let value =
                HeaderValue::from_str(value).map_err(|_| ClientError::invalid(format!("value of message header {name} cannot be sent")))?;
            call.headers.append(header, value);
        }
        call.body = Some(payload);
        self.send(call).await
    }

    /// `POST /v1/topics/{topic}/produce/batch`: stores all messages or none. With an idempotency key on each, it is repeated here until all
    /// are known to be stored.
    ///
    /// # Errors
    /// As the server refuses; the text names the first message that was refused.
    pub async fn produce_batch(&self, topic: &str, batch: &ProduceBatch) -> Result<BatchAccepted, ClientError> {
        let is_keyed = batch.messages.iter().all(|entry| entry.idempotency_key.is_some());
        let kind = if is_keyed { Kind::ProduceKeyed } else { Kind::Produce };
        let call = self.json_call(kind, Method::POST, self.v1(&["topics", topic, "produce", "batch"]), batch)?;
        self.send(call).await?.json()
    }

    /// `GET /v1/topics/{topic}/consume`: leases one message; `None` when none came within `wait`.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn consume(&self, topic: &str, wait: Duration, partition: Option<u32>) -> Result<Option<Message>, ClientError> {
        let answer = self.send_consume(topic, wait, partition, None).await?;
        if answer.status == 204 { Ok(None) } else { answer.json().map(Some) }
    }

    /// The same with `max`: leases up to `max` messages; empty when none came within `wait`.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn consume_batch(&self, topic: &str, max: u32, wait: Duration, partition: Option<u32>) -> Result<Vec<Message>, ClientError> {
        let answer = self.send_consume(topic, wait, partition, Some(max)).await?;
        if answer.status == 204 { Ok(Vec::new()) } else { Ok(answer.json::<MessageBatch>()?.messages) }
    }

    async fn send_consume(&self, topic: &str, wait: Duration, partition: Option<u32>, max: Option<u32>) -> Result<Answer, ClientError> {
        let route = self.v1(&["topics", topic, "consume"]).with_some("wait", (!wait.is_zero()).then(|| format_duration(wait)));
        let mut call = self.call(Kind::Lease, Method::GET, route.with_some("partition", partition).with_some("max", max));
        call.timeout += wait;
        self.send(call).await
    }

    /// `GET /v1/topics/{topic}/consume?offset=`: reads one message without a lease; `None` at the end of what is visible.
    ///
    /// # Errors
    /// As the server refuses; 410 below the oldest retained offset.
    pub async fn replay(&self, topic: &str, partition: u32, offset: u64) -> Result<Option<Message>, ClientError> {
        let route = self.v1(&["topics", topic, "consume"]).with_some("partition", Some(partition)).with_some("offset", Some(offset));
        let answer = self.send(self.call(Kind::Read, Method::GET, route)).await?;
        if answer.status == 204 { Ok(None) } else { answer.json().map(Some) }
    }

    /// `POST /v1/topics/{topic}/ack`: settles one lease. After an attempt without an answer, "the lease is gone" is taken as done for an
    /// ack or nack: the first attempt landed.
    ///
    /// # Errors
    /// As the server refuses; 410 when the lease is lost.
    pub async fn settle(&self, topic: &str, handle: &str, mode: SettleMode) -> Result<(), ClientError> {
        let route = self.v1(&["topics", topic, "ack"]).with("receipt_handle", handle).with_some("extend", mode.extend());
        let (result, after_uncertain) = self.attempt_all(self.call(Kind::Settle, Method::POST, route)).await;
        match result {
            Err(error) if error.is(410) && after_uncertain && mode != SettleMode::Extend => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Acks one message.
    ///
    /// # Errors
    /// As [`Client::settle`].
    pub async fn ack(&self, topic: &str, handle: &str) -> Result<(), ClientError> {
        self.settle(topic, handle, SettleMode::Ack).await
    }

    /// Settles up to 100 leases; one result per handle, in request order.
    ///
    /// # Errors
    /// When the whole request is refused.
    pub async fn settle_batch(&self, topic: &str, handles: Vec<String>, mode: SettleMode) -> Result<Vec<AckResult>, ClientError> {
        let route = self.v1(&["topics", topic, "ack"]).with_some("extend", mode.extend());
        let call = self.json_call(Kind::Settle, Method::POST, route, &AckBatch { receipt_handles: handles })?;
        let answer = self.send(call).await?;
        let mut results = answer.json::<AckResults>()?.results;
        if answer.after_uncertain && mode != SettleMode::Extend {
            for result in results.iter_mut().filter(|result| result.status == 410) {
                *result = AckResult { status: 204, ..Default::default() };
            }
        }
        Ok(results)
    }
}
