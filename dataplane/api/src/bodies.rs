//! Bodies of requests and answers, as the contract writes them.

use std::borrow::Cow;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use veena_contract::{CatalogView, Effect, Reroute, TopicRecord};

use crate::json::present;

/// A refusal.
#[derive(Serialize)]
pub(crate) struct ErrorBody<'a> {
    pub(crate) error: &'a str,
    pub(crate) code: &'static str,
    pub(crate) effect: Effect,
    pub(crate) retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after_ms: Option<u64>,
    pub(crate) instance: String,
}

/// `POST /v1/topics`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateTopic<'a> {
    #[serde(default, borrow)]
    pub(crate) name: Option<Cow<'a, str>>,
    #[serde(default)]
    pub(crate) partitions: Option<i64>,
    #[serde(default)]
    pub(crate) retention_ms: Option<i64>,
    #[serde(default)]
    pub(crate) retention_bytes: Option<i64>,
    #[serde(default)]
    pub(crate) visibility_timeout_ms: Option<i64>,
    #[serde(default)]
    pub(crate) max_in_flight_per_partition: Option<i64>,
    #[serde(default)]
    pub(crate) max_acked_ahead_per_partition: Option<i64>,
    #[serde(default)]
    pub(crate) dedup_window_ms: Option<i64>,
    #[serde(default)]
    pub(crate) reroute: Option<Reroute>,
    #[serde(default, borrow, deserialize_with = "present")]
    pub(crate) schema: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(crate) parent: Option<Cow<'a, str>>,
    #[serde(default)]
    pub(crate) fanout_delay_ms: Option<i64>,
    /// Accepted and ignored: the owner is the caller.
    #[serde(default, rename = "owner")]
    pub(crate) _owner: Option<String>,
}

/// `PATCH /v1/topics/{topic}`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PatchTopic<'a> {
    #[serde(default)]
    pub(crate) retention_ms: Option<i64>,
    #[serde(default)]
    pub(crate) retention_bytes: Option<i64>,
    #[serde(default)]
    pub(crate) max_in_flight_per_partition: Option<i64>,
    #[serde(default)]
    pub(crate) max_acked_ahead_per_partition: Option<i64>,
    #[serde(default)]
    pub(crate) dedup_window_ms: Option<i64>,
    #[serde(default)]
    pub(crate) reroute: Option<Reroute>,
    #[serde(default)]
    pub(crate) partitions: Option<i64>,
    #[serde(default, borrow, deserialize_with = "present")]
    pub(crate) schema: Option<&'a RawValue>,
    #[serde(default)]
    pub(crate) schema_base_version: Option<i64>,
}

/// `POST /v1/topics/{parent}/children`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttachChild<'a> {
    #[serde(default, borrow)]
    pub(crate) child: Option<Cow<'a, str>>,
    #[serde(default)]
    pub(crate) delay_ms: Option<i64>,
}

/// A topic.
#[derive(Serialize)]
pub(crate) struct Topic<'a> {
    name: &'a str,
    id: String,
    partitions: u32,
    retention_ms: u64,
    visibility_timeout_ms: u64,
    max_in_flight_per_partition: u64,
    max_acked_ahead_per_partition: u64,
    created_at: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    children: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attach_epoch: Option<String>,
    #[serde(skip_serializing_if = "is_zero")]
    fanout_delay_ms: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attach_offsets: Vec<u64>,
    retention_bytes: u64,
    dedup_window_ms: u64,
    reroute: Reroute,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl<'a> Topic<'a> {
    /// As served, with its role.
    pub(crate) fn of(view: &CatalogView, record: &'a TopicRecord) -> Self {
        let role = match (&record.parent, record.children.is_empty()) {
            (Some(_), _) => "child",
            (None, false) => "parent",
            (None, true) => "standalone",
        };
        let link = record.parent.as_ref();
        let attach_offsets = link
            .and_then(|link| view.topic(&record.tenant, &link.parent))
            .and_then(|parent| parent.children.iter().find(|child| child.child_id == record.id))
            .map(|child| child.attach_offsets.iter().map(|offset| offset.get()).collect())
            .unwrap_or_default();
        Self {
            name: record.name.as_str(),
            id: record.id.to_string(),
            partitions: record.partitions,
            retention_ms: record.retention_ms,
            visibility_timeout_ms: record.visibility_timeout_ms,
            max_in_flight_per_partition: record.max_in_flight_per_partition,
            max_acked_ahead_per_partition: record.max_acked_ahead_per_partition,
            created_at: record.created_at_ms / 1000,
            owner: record.owner.as_deref(),
            role: Some(role),
            children: record.children.iter().map(|child| child.child.as_str()).collect(),
            parent: link.map(|link| link.parent.as_str()),
            attach_epoch: link.map(|link| link.epoch.to_string()),
            fanout_delay_ms: link.map_or(0, |link| link.delay_ms),
            attach_offsets,
            retention_bytes: record.retention_bytes,
            dedup_window_ms: record.dedup_window_ms,
            reroute: record.reroute,
        }
    }

    /// As the answer to a create without a parent, which says no role.
    pub(crate) fn without_role(mut self) -> Self {
        self.role = None;
        self
    }
}

/// `GET /v1/topics`.
#[derive(Serialize)]
pub(crate) struct TopicList<'a> {
    pub(crate) topics: Vec<Topic<'a>>,
    pub(crate) next_page_token: &'a str,
}

/// `GET /v1/topics/{topic}`.
#[derive(Serialize)]
pub(crate) struct Described<'a> {
    #[serde(flatten)]
    pub(crate) topic: Topic<'a>,
    pub(crate) schema_version: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) schema: Option<Document<'a>>,
    pub(crate) partition_stats: Vec<PartitionStats>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) partial: bool,
}

/// One partition of a described topic.
#[derive(Serialize)]
pub(crate) struct PartitionStats {
    pub(crate) index: u32,
    pub(crate) segments: u64,
    pub(crate) oldest_offset: u64,
    pub(crate) next_offset: u64,
    pub(crate) high_watermark: u64,
    pub(crate) size_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) oldest_segment_at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) owner_node: Option<String>,
    pub(crate) status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) owner_liveness: Option<&'static str>,
    pub(crate) frontier: u64,
    pub(crate) leased: u64,
    pub(crate) acked_ahead: u64,
}

/// A stored JSON document, written as it is.
pub(crate) struct Document<'a>(pub(crate) &'a str);

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serde_json::from_str::<&RawValue>(self.0) {
            Ok(raw) => raw.serialize(serializer),
            Err(_) => serializer.serialize_str(self.0),
        }
    }
}

/// `GET /v1/topics/{topic}/schema`.
#[derive(Serialize)]
pub(crate) struct SchemaHistory<'a> {
    pub(crate) topic: &'a str,
    pub(crate) version: u32,
    pub(crate) versions: Vec<SchemaEntry<'a>>,
}

/// One version of a schema.
#[derive(Serialize)]
pub(crate) struct SchemaEntry<'a> {
    pub(crate) version: u32,
    pub(crate) schema: Document<'a>,
}

/// `GET /v1/topics/{parent}/children`.
#[derive(Serialize)]
pub(crate) struct ChildList<'a> {
    pub(crate) parent: &'a str,
    pub(crate) parent_id: String,
    pub(crate) children: Vec<Child>,
}

/// One child of a listing.
#[derive(Serialize)]
pub(crate) struct Child {
    pub(crate) name: String,
    pub(crate) delay_ms: u64,
    pub(crate) lag_messages: u64,
    pub(crate) lag_complete: bool,
    pub(crate) dropped_messages: u64,
}

/// A produce with `wait_for=commit`.
#[derive(Serialize)]
pub(crate) struct CommittedBody {
    pub(crate) id: String,
    pub(crate) partition: u32,
    pub(crate) offset: u64,
    pub(crate) timestamp: u64,
}

/// A batch produce.
#[derive(Serialize)]
pub(crate) struct Accepted {
    pub(crate) accepted: usize,
}

/// A list with one result per request part.
#[derive(Serialize)]
pub(crate) struct Results<T> {
    pub(crate) results: Vec<T>,
}

/// What became of one message of a batch produce with `wait_for=commit`.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum CommitResult {
    /// Committed.
    Done { status: u16, id: String, partition: u32, offset: u64 },
    /// Refused, or not known.
    Failed { status: u16, code: &'static str, effect: Effect, error: String },
}

/// What became of one handle of a batch ack.
#[derive(Serialize)]
pub(crate) struct SettleResult {
    pub(crate) status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) code: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) effect: Option<Effect>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// `/healthz` and `/readyz`.
#[derive(Serialize)]
pub(crate) struct Health {
    pub(crate) status: &'static str,
}
