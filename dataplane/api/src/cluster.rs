//! The members of the cluster; and what an answer of a node of a cluster has to wait for.

use http::StatusCode;
use veena_client::bodies::{ClusterMember, ClusterMembers};
use veena_contract::{CatalogView, Member, NodeId, Ownership, TopicId, TopicName, placement};

use crate::answer::{self, Answer};
use crate::edge::Call;
use crate::problem::Problem;
use crate::query;
use crate::state::ApiState;

/// `GET /v1/cluster/members`.
pub(crate) async fn members(call: &Call<'_>) -> Result<Answer, Problem> {
    let detail = query::first(call.query(), "detail").map_err(|error| Problem::malformed(format!("invalid detail: {error}")))?;
    let is_detailed = match detail.as_deref() {
        None | Some("" | "false") => false,
        Some("true") => true,
        Some(_) => return Err(Problem::invalid("invalid detail: want true or false")),
    };
    let parts = &call.state.parts;
    let members = match &parts.cluster {
        Some(cluster) => {
            let found = cluster.members().await;
            let view = call.state.view();
            found.iter().map(|member| shown(member, owned(&view, &member.peer.node), is_detailed)).collect()
        }
        None => vec![alone(&parts.node, &call.state.view(), is_detailed)],
    };
    Ok(answer::json(StatusCode::OK, &ClusterMembers { members }))
}

fn shown(member: &Member, owned_partitions: u64, is_detailed: bool) -> ClusterMember {
    ClusterMember {
        id: member.peer.node.to_string(),
        addr: member.peer.addr.to_string(),
        status: if member.is_alive { "alive" } else { "dead" }.to_owned(),
        owned_partitions,
        voter: is_detailed.then_some(member.is_voter),
        leader: member.is_leader.filter(|_| is_detailed),
        ..ClusterMember::default()
    }
}

/// A node alone is all there is.
fn alone(node: &NodeId, view: &CatalogView, is_detailed: bool) -> ClusterMember {
    ClusterMember {
        id: node.to_string(),
        status: "alive".to_owned(),
        owned_partitions: view.topics.values().map(|topic| u64::from(topic.partitions)).sum(),
        voter: is_detailed.then_some(true),
        leader: is_detailed.then_some(true),
        ..ClusterMember::default()
    }
}

fn owned(view: &CatalogView, node: &NodeId) -> u64 {
    view.topics.values().flat_map(|topic| &topic.owners).filter(|owner| owner.node == *node).count() as u64
}

/// Owners for partitions that are added to a topic; none on a node alone.
pub(crate) fn owners(state: &ApiState, topic: TopicId, owned: &[Ownership], count: u32) -> Vec<NodeId> {
    let nodes = state.parts.cluster.as_ref().map(|cluster| cluster.nodes()).unwrap_or_default();
    placement::owners_of_added(&nodes, topic, owned, count)
}

/// Makes sure that a topic which this node does not know is not one that it does not know *yet*: "not found" is said only of what is not
/// there according to the leader. Afterwards the newest view shows what there is.
pub(crate) async fn confirm(state: &ApiState, name: &TopicName) -> Result<(), Problem> {
    if state.parts.cluster.is_some() && state.topic(name).is_none() {
        state.parts.leader.confirmed_view().await?;
    }
    Ok(())
}
