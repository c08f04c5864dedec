//! What a node says of itself: to operators, and to other members that were asked for it.

use veena_broker::Broker;
use veena_broker::owners::moves::MoveProgress;
use veena_broker::owners::moves::ended::EndedMove;
use veena_broker::sweep::Quarantined;
use veena_client::bodies::{NodeMove, NodeStatus, Quarantine, QuarantinedCopy};
use veena_contract::{CatalogView, NodeId, PartitionIndex, TenantId, TopicId, limits};

use crate::traces;

/// What this node says of itself.
pub async fn node_status(broker: &Broker, me: &NodeId) -> NodeStatus {
    let set_aside = broker.quarantined().await;
    let view = broker.catalog();
    let tenants = traces::of_this_node(broker, &view).await;
    let under_way = broker.moves().into_iter().filter_map(|progress| under_way(&view, progress));
    NodeStatus {
        node: me.to_string(),
        draining: broker.is_draining(),
        produce_in_flight: broker.produces_under_way() as u64,
        dispatch_backlog: broker.undispatched() as u64,
        quarantine: set_aside.map(|set_aside| Quarantine {
            copies: set_aside.len() as u64,
            bytes: set_aside.iter().map(|copy| copy.bytes).sum(),
            list: set_aside.iter().rev().take(limits::QUARANTINE_LISTED_MAX).map(|copy| set_aside_copy(&view, copy)).collect(),
        }),
        moves: under_way.chain(broker.ended_moves().into_iter().map(ended)).collect(),
        applied: view.applied.get(),
        tenants,
    }
}

fn under_way(view: &CatalogView, progress: MoveProgress) -> Option<NodeMove> {
    let topic = view.topic_by_id(progress.partition.topic)?;
    let owner = topic.owner_of(progress.partition.index)?;
    Some(NodeMove {
        tenant: told(&topic.tenant),
        topic: topic.name.to_string(),
        partition: progress.partition.index.get().into(),
        source: owner.node.to_string(),
        target: owner.moving.as_ref()?.to.to_string(),
        started_at: progress.began_ms / 1000,
        phase: progress.phase.to_owned(),
        attempts: progress.failures.into(),
        last_error: progress.last_error.unwrap_or_default(),
        copied_bytes: progress.copied_bytes,
        blocked: None,
    })
}

/// A tenant, as it is told beside the name of a topic.
pub(crate) fn told(tenant: &TenantId) -> Option<String> {
    (!tenant.is_default()).then(|| tenant.to_string())
}

/// What the phase of a move that has ended is called.
pub(crate) const ABORTED: &str = "aborted";

fn ended(ended: EndedMove) -> NodeMove {
    NodeMove {
        tenant: told(&ended.tenant),
        topic: ended.topic.to_string(),
        partition: ended.partition.index.get().into(),
        source: ended.from.to_string(),
        target: ended.to.to_string(),
        started_at: ended.ended_ms / 1000,
        phase: ABORTED.to_owned(),
        last_error: ended.reason,
        blocked: Some(ABORTED.to_owned()),
        ..NodeMove::default()
    }
}

/// A directory by its name: `<when>-topic-<tenant>-<id>`, `<when>-copy-<id>-<partition>`.
fn set_aside_copy(view: &CatalogView, copy: &Quarantined) -> QuarantinedCopy {
    let named = |id: &str| {
        let id: TopicId = id.parse().ok()?;
        Some(view.topic_by_id(id).map_or_else(|| id.to_string(), |topic| topic.name.to_string()))
    };
    let rest = copy.name.split_once('-').map_or("", |(_, rest)| rest);
    let (kind, topic, partition) = if let Some(topic) = rest.strip_prefix("topic-") {
        ("topic", topic.rsplit('-').next().and_then(named), None)
    } else if let Some((id, partition)) = rest.strip_prefix("copy-").and_then(|rest| rest.split_once('-')) {
        let index = partition.split('.').next().and_then(|dir| dir.strip_prefix('p')?.parse().ok()).map(PartitionIndex);
        ("copy", named(id), index)
    } else {
        ("other", None, None)
    };
    QuarantinedCopy {
        kind: kind.to_owned(),
        topic,
        partition: partition.map(|index| index.get().into()),
        dir: copy.name.clone(),
        bytes: copy.bytes,
        mod_time: copy.since_ms / 1000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_was_set_aside_is_told_by_its_name() {
        let told = |name: &str| {
            let copy = Quarantined { since_ms: 1_700_000_000_123, name: name.to_owned(), bytes: 7 };
            let told = set_aside_copy(&CatalogView::default(), &copy);
            assert_eq!((told.dir.as_str(), told.bytes, told.mod_time), (name, 7, 1_700_000_000));
            (told.kind, told.topic, told.partition)
        };
        let id = || Some("00000000000000ab".to_owned());
        assert_eq!(told("1700000000123-topic-default-00000000000000ab"), ("topic".to_owned(), id(), None));
        assert_eq!(told("1700000000123-copy-00000000000000ab-p00012"), ("copy".to_owned(), id(), Some(12)));
        let token = "0000000000000000000000000000002a";
        assert_eq!(told(&format!("1700000000123-copy-00000000000000ab-p00012.{token}")), ("copy".to_owned(), id(), Some(12)));
        assert_eq!(told("1700000000123-ingress"), ("other".to_owned(), None, None));
        assert_eq!(told("1700000000123-copy-x"), ("other".to_owned(), None, None));
    }
}
