//! Messages on the way in and out, and what settles them.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{BASE64, present};

/// A message as handed to a consumer.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Message {
    /// Its topic.
    pub topic: String,
    /// Its partition.
    pub partition: u64,
    /// Its offset in the partition.
    pub offset: u64,
    /// Its key, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// `base64` when the key is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_encoding: Option<String>,
    /// One JSON text as it was sent; or text as a JSON string; or base64 with `payload_encoding`.
    #[schema(value_type = serde_json::Value)]
    pub payload: Box<RawValue>,
    /// `base64` when the payload is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_encoding: Option<String>,
    /// When it was committed, in seconds since 1970.
    pub timestamp: u64,
    /// What settles it; absent for a replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt_handle: Option<String>,
    /// Its id for life: the same in parent and children.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// How often it was handed out, this time included; absent for a replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_count: Option<u64>,
    /// Its headers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

impl Message {
    /// The payload as bytes. A payload that was sent as a JSON string comes without its quotes: on the wire it looks like plain text.
    ///
    /// # Errors
    /// When the server's own encoding is broken.
    pub fn payload_bytes(&self) -> Result<Bytes, InvalidEncoding> {
        let raw = self.payload.get();
        if self.payload_encoding.as_deref() == Some(BASE64) {
            let text: String = serde_json::from_str(raw).map_err(|_| InvalidEncoding { field: "payload" })?;
            return STANDARD.decode(text).map(Bytes::from).map_err(|_| InvalidEncoding { field: "payload" });
        }
        if raw.starts_with('"') {
            let text: String = serde_json::from_str(raw).map_err(|_| InvalidEncoding { field: "payload" })?;
            return Ok(Bytes::from(text));
        }
        Ok(Bytes::copy_from_slice(raw.as_bytes()))
    }

    /// The key as bytes.
    ///
    /// # Errors
    /// When the server's own encoding is broken.
    pub fn key_bytes(&self) -> Result<Option<Bytes>, InvalidEncoding> {
        let Some(key) = &self.key else {
            return Ok(None);
        };
        if self.key_encoding.as_deref() == Some(BASE64) {
            return STANDARD.decode(key).map(|bytes| Some(Bytes::from(bytes))).map_err(|_| InvalidEncoding { field: "key" });
        }
        Ok(Some(Bytes::copy_from_slice(key.as_bytes())))
    }
}

/// A field says it is base64 and is not, or is not JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is not encoded as it says")]
pub struct InvalidEncoding {
    /// Which field.
    pub field: &'static str,
}

/// The answer to a consume with `max`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct MessageBatch {
    /// The messages; never empty in an answer.
    pub messages: Vec<Message>,
}

/// The body of a batch produce.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProduceBatch {
    /// 1 to 1000 messages; all are taken or none.
    #[serde(default)]
    pub messages: Vec<BatchEntry>,
}

/// One message of a batch produce.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchEntry {
    /// Any JSON value, stored as written; or base64 with `payload_encoding`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    /// `base64` when `payload` is a base64 string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_encoding: Option<String>,
    /// Chooses the partition when `partition` does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// `base64` when `key` is base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_encoding: Option<String>,
    /// Chooses the partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<i64>,
    /// Stored and served with the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<BTreeMap<String, String>>,
    /// 1 to 255 printable ASCII characters: what is sent again under it within the topic's `dedup_window_ms` is stored once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

impl BatchEntry {
    /// An entry of these bytes: embedded when they are one JSON text, else base64.
    #[must_use]
    pub fn from_bytes(payload: &[u8]) -> Self {
        let json = std::str::from_utf8(payload).ok().and_then(|text| serde_json::from_str::<Box<RawValue>>(text).ok());
        // A JSON text with white space around it would come back trimmed: only an exact text may be embedded.
        let exact = json.filter(|raw| raw.get().len() == payload.len());
        let (payload, payload_encoding) = match exact {
            Some(raw) => (raw, None),
            None => (base64_string(payload), Some(BASE64.to_owned())),
        };
        Self {
            payload: Some(payload),
            payload_encoding,
            key: None,
            key_encoding: None,
            partition: None,
            headers: None,
            idempotency_key: None,
        }
    }

    /// The same entry with a key, as text when it is UTF-8.
    #[must_use]
    pub fn with_key(mut self, key: &[u8]) -> Self {
        match std::str::from_utf8(key) {
            Ok(text) => self.key = Some(text.to_owned()),
            Err(_) => {
                self.key = Some(STANDARD.encode(key));
                self.key_encoding = Some(BASE64.to_owned());
            }
        }
        self
    }
}

fn base64_string(bytes: &[u8]) -> Box<RawValue> {
    let quoted = format!("\"{}\"", STANDARD.encode(bytes));
    RawValue::from_string(quoted).expect("invariant: base64 in quotes is JSON")
}

/// The answer to a batch produce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BatchAccepted {
    /// How many messages were taken: all of them.
    pub accepted: u64,
}

/// The answer to a produce with `wait_for=commit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Committed {
    /// The message's id for life.
    pub id: String,
    /// Where it is.
    pub partition: u64,
    /// Where in the partition.
    pub offset: u64,
    /// When it was committed, in seconds since 1970.
    #[serde(default)]
    pub timestamp: u64,
}

/// The answer to a batch produce with `wait_for=commit`, in request order.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct CommitResults {
    /// One entry per message.
    pub results: Vec<CommitResult>,
}

/// What became of one message of a batch with `wait_for=commit`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CommitResult {
    /// 200 when it is committed.
    pub status: u16,
    /// The message's id for life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<u64>,
    /// Where in the partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Present when it had been stored before, under its idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replayed: Option<bool>,
    /// The error code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// `none` or `possible`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The body of a batch ack, extend or nack.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AckBatch {
    /// 1 to 100 handles.
    #[serde(default)]
    pub receipt_handles: Vec<String>,
}

/// The answer to a batch ack, in request order.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct AckResults {
    /// One entry per handle.
    pub results: Vec<AckResult>,
}

/// What became of one handle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AckResult {
    /// 204 when it is settled; else what a single ack would have answered.
    pub status: u16,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The error code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// `none` or `possible`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
}
