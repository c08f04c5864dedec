//! What the nodes still have of a tenant that is being deleted.

use futures_util::future::join_all;
use std::time::Duration;
use veena_broker::Broker;
use veena_client::bodies::{NodeStatus, NodeTenant, TenantLeft, TenantTraces};
use veena_contract::{CatalogView, Members, NodeId, TenantId, TenantState, limits};

use crate::node_status::node_status;

/// What this node has of tenants that are being deleted, as far as it knows of them.
pub(crate) async fn of_this_node(broker: &Broker, view: &CatalogView) -> Vec<NodeTenant> {
    let going = view.tenants.values().filter(|record| record.state == TenantState::Deleting).map(|record| record.tenant.clone());
    let going: Vec<TenantId> = going.take(limits::TENANTS_DELETED_AT_ONCE_MAX).collect();
    if going.is_empty() {
        return Vec::new();
    }
    let traces = broker.traces_of(&going).await;
    let told = |(at, tenant): (usize, &TenantId)| {
        let traces = traces.as_ref().and_then(|traces| traces.get(at));
        let left = traces.map(|traces| TenantTraces {
            open_topics: traces.open_topics as u64,
            directories: traces.directories as u64,
            quarantined: traces.quarantined as u64,
            orphans: traces.orphans as u64,
            positions: traces.positions as u64,
        });
        NodeTenant { tenant: tenant.to_string(), left }
    };
    going.iter().enumerate().map(told).collect()
}

/// What is left of these tenants in the catalog and on all nodes, in order. A node that does not answer, or has not followed the metadata as
/// far as `view`, is named: nothing is known of it.
pub async fn left(
    broker: &Broker,
    cluster: Option<&dyn Members>,
    me: &NodeId,
    view: &CatalogView,
    tenants: &[TenantId],
) -> Vec<TenantLeft> {
    let nodes = match cluster {
        None => vec![me.clone()],
        Some(cluster) => {
            let members = cluster.members(Duration::from_millis(limits::MEMBER_ANSWER_MS_MAX)).await;
            members.into_iter().map(|member| member.peer.node).collect()
        }
    };
    let told = join_all(nodes.iter().map(async |node| match cluster {
        Some(cluster) if node != me => cluster.status(node).await.ok().and_then(|told| serde_json::from_slice(&told).ok()),
        _ => Some(node_status(broker, node).await),
    }));
    let told: Vec<Option<NodeStatus>> = told.await;
    let of_one = |tenant: &TenantId| {
        let counts = view.counts_of(tenant);
        let mut left = TenantLeft { topics: counts.topics as u64, users: counts.users as u64, ..TenantLeft::default() };
        for (node, told) in nodes.iter().zip(&told) {
            match told.as_ref().and_then(|told| of_tenant(told, view, tenant)) {
                Some(traces) => left.on_nodes = left.on_nodes.and(&traces),
                None => left.unknown.push(node.to_string()),
            }
        }
        left
    };
    tenants.iter().map(of_one).collect()
}

/// What a node said of the tenant, if what it said is of a time when it knew what is in `view`.
fn of_tenant(told: &NodeStatus, view: &CatalogView, tenant: &TenantId) -> Option<TenantTraces> {
    if told.applied < view.applied.get() {
        return None;
    }
    told.tenants.iter().find(|of| of.tenant == tenant.as_str())?.left.clone()
}

#[cfg(test)]
mod tests {
    use veena_contract::LogIndex;

    use super::*;

    #[test]
    fn what_a_node_says_counts_only_if_it_has_followed_as_far_and_speaks_of_the_tenant() {
        let view = CatalogView { applied: LogIndex(7), ..CatalogView::default() };
        let acme = TenantId::parse("acme").expect("a name");
        let said = |applied, tenant: &str, left: Option<TenantTraces>| {
            let tenants = vec![NodeTenant { tenant: tenant.to_owned(), left }];
            of_tenant(&NodeStatus { applied, tenants, ..NodeStatus::default() }, &view, &acme)
        };
        let nothing = TenantTraces::default;
        assert_eq!(said(7, "acme", Some(nothing())), Some(nothing()));
        assert_eq!(said(9, "acme", Some(nothing())), Some(nothing()));
        assert_eq!(said(6, "acme", Some(nothing())), None, "it may not know yet what is to go");
        assert_eq!(said(0, "acme", Some(nothing())), None, "a node of before tenants says nothing of it");
        assert_eq!(said(7, "acme", None), None, "its disk did not tell");
        assert_eq!(said(7, "twin", Some(nothing())), None);
    }
}
