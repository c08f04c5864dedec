//! Records of the catalog in the shape of the contract's bodies.

use serde_json::value::{RawValue, to_raw_value};
use veena_client::bodies::Topic;
use veena_contract::{CatalogView, Reroute, TopicRecord};

/// A topic as served, with its role.
pub(crate) fn topic(view: &CatalogView, record: &TopicRecord) -> Topic {
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
    Topic {
        name: record.name.to_string(),
        id: record.id.to_string(),
        partitions: record.partitions.into(),
        retention_ms: record.retention_ms,
        retention_bytes: record.retention_bytes,
        visibility_timeout_ms: record.visibility_timeout_ms,
        max_in_flight_per_partition: record.max_in_flight_per_partition,
        max_acked_ahead_per_partition: record.max_acked_ahead_per_partition,
        dedup_window_ms: record.dedup_window_ms,
        reroute: match record.reroute {
            Reroute::Auto => "auto".to_owned(),
            Reroute::Never => "never".to_owned(),
        },
        created_at: record.created_at_ms / 1000,
        owner: record.owner.as_deref().map(str::to_owned),
        role: Some(role.to_owned()),
        children: record.children.iter().map(|child| child.child.to_string()).collect(),
        parent: link.map(|link| link.parent.to_string()),
        attach_epoch: link.map(|link| link.epoch.to_string()),
        fanout_delay_ms: link.map_or(0, |link| link.delay_ms),
        attach_offsets,
    }
}

/// A stored JSON document, written as it is; one that is no JSON after all is written as text.
pub(crate) fn document(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap_or_else(|_| to_raw_value(text).expect("invariant: a text can be written as JSON"))
}
