//! The JSON bodies of the public HTTP interface.
//!
//! Request bodies refuse unknown fields; response bodies ignore them, so that fields may be added. A field that is absent when empty says
//! so in its attribute. Numbers of a request are signed, so that a negative one is refused by its rule and not by the decoder.

mod accounts;
mod cluster;
mod explain;
mod issuer;
mod messages;
mod quota;
mod tenants;
mod topics;
mod users;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

pub use accounts::{Account, CreateAccount, CreateKey, CreatedKey, Key, KeyText, Whoami};
pub use cluster::{
    AbortedMove, ClusterMember, ClusterMembers, ClusterMove, ClusterMoves, Decommission, Forgotten, MoveAborted, NodeMove, NodeStatus,
    Quarantine, QuarantinedCopy, Reason,
};
pub use explain::{CoveringGrant, Explained, MissingGrant};
pub use issuer::{PutTokenIssuer, PutTokenKey, TokenIssuer, TokenKey};
pub use messages::{
    AckBatch, AckResult, AckResults, BatchAccepted, BatchEntry, CommitResult, CommitResults, Committed, InvalidEncoding, Message,
    MessageBatch, ProduceBatch,
};
pub use quota::{Quota, QuotaView, SetQuota, TopicQuota, Usage};
pub use tenants::{NodeTenant, PutTenant, PutUser, Tenant, TenantLeft, TenantList, TenantTraces};
pub use topics::{
    AttachChild, Child, Children, CreateTopic, PartitionStats, PatchTopic, SchemaEntry, SchemaHistory, Topic, TopicDetail, TopicList,
};
pub use users::{CreateUser, Grant, PasswordText, SetGrants, SetPassword, User};

/// The one value of `payload_encoding` and `key_encoding`.
pub const BASE64: &str = "base64";

/// Keeps a JSON `null` apart from an absent field.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

/// A `null` where a text is wanted is as good as an absent field: it is refused by the field's rule and not by the decoder.
fn null_is_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// The answer of `/healthz` and, when ready, of `/readyz`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`, `ready` or `shutting down`.
    pub status: String,
    /// What works, but not as it should.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub degraded: Vec<String>,
}

/// A refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// One line of text.
    pub error: String,
    /// The error code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// `none`: certainly not applied; `possible`: may have been applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// May the same request succeed later?
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
    /// How long to wait before a repeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Names this answer in the server's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Which limit is reached, of code `quota_exceeded`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Whose limit it is: `tenant` or `topic`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// How much of it is used: of a rate, on this node within the last second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<u64>,
    /// How much may be used: of a rate, this node's share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<u64>,
    /// The limit itself, of the whole cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
    /// Who can raise it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raised_by: Option<String>,
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use bytes::Bytes;

    use super::*;

    #[test]
    fn an_answer_with_unknown_fields_is_read() {
        let topic: Topic = serde_json::from_str(
            r#"{"name":"a","partitions":1,"retention_ms":0,"visibility_timeout_ms":1,"max_in_flight_per_partition":1,
               "max_acked_ahead_per_partition":1,"created_at":7,"from_the_future":{"x":1}}"#,
        )
        .expect("unknown fields are ignored");
        assert_eq!(topic.created_at, 7);
    }

    #[test]
    fn a_request_with_unknown_fields_is_refused() {
        assert!(serde_json::from_str::<CreateTopic>(r#"{"name":"a","colour":"red"}"#).is_err());
        assert!(serde_json::from_str::<PatchTopic>(r#"{"visibility_timeout_ms":1}"#).is_err());
        assert!(serde_json::from_str::<AckBatch>(r#"{"receipt_handle":[]}"#).is_err());
    }

    #[test]
    fn a_null_schema_is_not_an_absent_one() {
        let patch: PatchTopic = serde_json::from_str(r#"{"schema":null}"#).expect("decodes");
        assert_eq!(patch.schema.expect("present").get(), "null");
        let patch: PatchTopic = serde_json::from_str("{}").expect("decodes");
        assert!(patch.schema.is_none());
    }

    #[test]
    fn a_payload_comes_back_as_it_was_sent() {
        let message = |payload: &str, encoding: Option<&str>| {
            let encoding = encoding.map(|e| format!(r#","payload_encoding":"{e}""#)).unwrap_or_default();
            let text = format!(r#"{{"topic":"t","partition":0,"offset":1,"payload":{payload}{encoding},"timestamp":2}}"#);
            serde_json::from_str::<Message>(&text).expect("decodes").payload_bytes().expect("is encoded as it says")
        };
        assert_eq!(message(r#"{"n" : 1.50}"#, None), r#"{"n" : 1.50}"#);
        assert_eq!(message(r#""hello\n""#, None), "hello\n");
        assert_eq!(message(r#""AP8=""#, Some("base64")), Bytes::from_static(&[0, 255]));
    }

    #[test]
    fn a_batch_entry_embeds_exact_json_and_encodes_everything_else() {
        let entry = BatchEntry::from_bytes(br#"{"a":1}"#);
        assert_eq!(entry.payload.expect("present").get(), r#"{"a":1}"#);
        assert_eq!(entry.payload_encoding, None);
        for bytes in [&b"hello"[..], b" 1 ", &[0xff, 0x00]] {
            let entry = BatchEntry::from_bytes(bytes).with_key(&[0xff]);
            assert_eq!(entry.payload_encoding.as_deref(), Some(BASE64));
            assert_eq!(entry.key_encoding.as_deref(), Some(BASE64));
            let text: String = serde_json::from_str(entry.payload.expect("present").get()).expect("a string");
            assert_eq!(STANDARD.decode(text).expect("base64"), bytes);
        }
    }
}
