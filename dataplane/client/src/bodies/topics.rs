//! Topics, their partitions, schemas and children.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use veena_contract::Reroute;

use super::{is_false, is_zero, null_is_default, present};

/// Creates a topic. Absent fields take the server's defaults.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateTopic {
    /// 1 to 200 of `A-Z a-z 0-9 . _ -`.
    #[serde(default, deserialize_with = "null_is_default")]
    #[schema(required)]
    pub name: String,
    /// How many partitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<i64>,
    /// How long messages are kept; 0 is for ever, else at least an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_ms: Option<i64>,
    /// How many bytes each partition keeps; 0 is no bound, else at least 64 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_bytes: Option<i64>,
    /// How long a lease lasts. Cannot be changed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visibility_timeout_ms: Option<i64>,
    /// How many messages of one partition may be leased at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_in_flight_per_partition: Option<i64>,
    /// How many messages of one partition may be settled ahead of the first unsettled one before deliveries are held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_acked_ahead_per_partition: Option<i64>,
    /// How long idempotency keys are remembered, in commit time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup_window_ms: Option<i64>,
    /// What happens to records of a down owner: `auto` or `never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub reroute: Option<Reroute>,
    /// A JSON Schema that messages must match; becomes version 1.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub schema: Option<Box<RawValue>>,
    /// The topic that feeds this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// How long messages of the parent are held back; needs `parent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fanout_delay_ms: Option<i64>,
    /// Accepted and ignored: the caller is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

/// Changes a topic. At least one field.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchTopic {
    /// How long messages are kept; 0 is for ever, else at least an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_ms: Option<i64>,
    /// How many bytes each partition keeps; 0 is no bound, else at least 64 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_bytes: Option<i64>,
    /// 0 is the server's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_in_flight_per_partition: Option<i64>,
    /// 0 is the server's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_acked_ahead_per_partition: Option<i64>,
    /// How long idempotency keys are remembered, in commit time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup_window_ms: Option<i64>,
    /// `auto` or `never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub reroute: Option<Reroute>,
    /// More partitions than now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<i64>,
    /// A new version of the schema; `null` is refused.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub schema: Option<Box<RawValue>>,
    /// The version that `schema` was made from; another newest version is a conflict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema_base_version: Option<i64>,
}

/// A topic as answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Topic {
    /// Its name.
    pub name: String,
    /// This incarnation: 16 hexadecimal digits, new when the name is created again.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// How many partitions it has.
    pub partitions: u64,
    /// How long messages are kept; 0 is for ever.
    pub retention_ms: u64,
    /// How many bytes each partition keeps; 0 is no bound.
    #[serde(default)]
    pub retention_bytes: u64,
    /// How long a lease lasts.
    pub visibility_timeout_ms: u64,
    /// How many messages of one partition may be leased at once.
    pub max_in_flight_per_partition: u64,
    /// How many messages of one partition may be settled ahead of the first unsettled one.
    pub max_acked_ahead_per_partition: u64,
    /// How long idempotency keys are remembered.
    #[serde(default)]
    pub dedup_window_ms: u64,
    /// What happens to records of a down owner.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reroute: String,
    /// When it was created, in seconds since 1970.
    pub created_at: u64,
    /// Who created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// `standalone`, `parent` or `child`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Its children, in order of attachment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<String>,
    /// What feeds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Which attachment to its parent this is: 16 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attach_epoch: Option<String>,
    /// How long messages of the parent are held back.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub fanout_delay_ms: u64,
    /// Where in each partition of its parent it began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attach_offsets: Vec<u64>,
}

/// A topic with its schema and partitions.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct TopicDetail {
    /// The topic.
    #[serde(flatten)]
    pub topic: Topic,
    /// The newest version of the schema; 0 is none.
    #[serde(default)]
    pub schema_version: u64,
    /// The newest schema, as registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub schema: Option<Box<RawValue>>,
    /// One entry per partition (or the one asked for).
    #[serde(default)]
    pub partition_stats: Vec<PartitionStats>,
    /// Did an owner not answer?
    #[serde(default, skip_serializing_if = "is_false")]
    pub partial: bool,
}

/// One partition as answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PartitionStats {
    /// Which, from 0.
    pub index: u64,
    /// Files of its log.
    pub segments: u64,
    /// The oldest retained offset.
    pub oldest_offset: u64,
    /// The next offset to be written.
    pub next_offset: u64,
    /// The first offset that consumers do not see yet.
    pub high_watermark: u64,
    /// Bytes on disk.
    pub size_bytes: u64,
    /// When the oldest retained message was committed, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_segment_at: Option<u64>,
    /// Which node owns it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_node: Option<String>,
    /// `ok` or `owner_unavailable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Why the owner did not answer: `dead` or `unreachable`, or `unknown` when it is no member any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_liveness: Option<String>,
    /// The first offset that is not settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frontier: Option<u64>,
    /// How many messages are leased now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leased: Option<u64>,
    /// How many messages are settled ahead of the first unsettled one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acked_ahead: Option<u64>,
}

/// One page of topics, in name order.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct TopicList {
    /// The topics.
    pub topics: Vec<Topic>,
    /// Where the next page begins; empty at the end.
    #[serde(default)]
    pub next_page_token: String,
}

/// The history of a topic's schema, oldest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SchemaHistory {
    /// The topic.
    pub topic: String,
    /// The newest version; 0 is none.
    pub version: u64,
    /// Every version.
    pub versions: Vec<SchemaEntry>,
}

/// One version of a topic's schema.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SchemaEntry {
    /// From 1.
    pub version: u64,
    /// The document, as registered.
    #[schema(value_type = serde_json::Value)]
    pub schema: Box<RawValue>,
}

/// Attaches a child to a parent.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AttachChild {
    /// The child's name.
    #[serde(default, deserialize_with = "null_is_default")]
    #[schema(required)]
    pub child: String,
    /// How long messages of the parent are held back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<i64>,
}

/// The children of a topic.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Children {
    /// The parent's name.
    pub parent: String,
    /// The parent's incarnation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub parent_id: String,
    /// Its children, in order of attachment.
    pub children: Vec<Child>,
}

/// One child of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Child {
    /// Its name.
    pub name: String,
    /// How long messages of the parent are held back.
    pub delay_ms: u64,
    /// How many messages of the parent it does not have yet.
    pub lag_messages: u64,
    /// Did every partition of the parent report? If not, the lag is a lower bound.
    pub lag_complete: bool,
    /// How many messages of the parent were gone or damaged before they were copied.
    #[serde(default)]
    pub dropped_messages: u64,
}
