//! The members of the cluster; and what an answer of a node of a cluster has to wait for.

use http::StatusCode;
use veena_client::bodies::{ClusterMember, ClusterMembers};
use veena_contract::{CatalogView, Member, NodeId, Ownership, PartitionIndex, TopicId, TopicName, placement};

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
            found.iter().map(|member| shown(member, view.partitions_of(&member.peer.node) as u64, is_detailed)).collect()
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

/// The nodes that new partitions may be given to. A node alone names nobody.
pub(crate) enum Places {
    Alone(NodeId),
    Members(Vec<NodeId>),
}

impl Places {
    /// Asks the members who of them is there: what is sent to a partition of one that is not would wait.
    pub(crate) async fn find(state: &ApiState) -> Self {
        let me = &state.parts.node;
        match &state.parts.cluster {
            None => Self::Alone(me.clone()),
            Some(cluster) => Self::Members(answering(&cluster.members().await, me)),
        }
    }

    /// Owners for partitions that are added to a topic; none on a node alone, unless the topic is from when that was a node of a cluster.
    pub(crate) fn owners(&self, topic: TopicId, owned: &[Ownership], count: u32) -> Vec<NodeId> {
        match self {
            Self::Alone(_) if owned.is_empty() => Vec::new(),
            Self::Alone(me) => placement::owners_of_added(std::slice::from_ref(me), topic, owned, count),
            Self::Members(nodes) => placement::owners_of_added(nodes, topic, owned, count),
        }
    }
}

/// The members that answer. If that is this node alone, all of them: it may be this one that is not heard.
fn answering(members: &[Member], me: &NodeId) -> Vec<NodeId> {
    let is_any = members.iter().any(|member| member.is_alive && member.peer.node != *me);
    members.iter().filter(|member| member.is_alive || !is_any).map(|member| member.peer.node.clone()).collect()
}

/// Makes sure that a topic which this node does not know is not one that it does not know *yet*: "not found" is said only of what is not
/// there according to the leader. Afterwards the newest view shows what there is.
pub(crate) async fn confirm(state: &ApiState, name: &TopicName) -> Result<(), Problem> {
    if state.parts.cluster.is_some() && state.topic(name).is_none() {
        state.parts.leader.confirmed_view().await?;
    }
    Ok(())
}

/// The same for a partition beyond those that this node knows of: only the leader knows that there is none.
pub(crate) async fn confirm_partition(state: &ApiState, name: &TopicName, partition: Option<PartitionIndex>) -> Result<(), Problem> {
    let is_beyond = |index: PartitionIndex| state.topic(name).is_some_and(|record| index.get() >= record.partitions);
    if state.parts.cluster.is_some() && partition.is_some_and(is_beyond) {
        state.parts.leader.confirmed_view().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use veena_contract::{OwnershipEpoch, PeerAddr};

    use super::*;

    fn node(name: &str) -> NodeId {
        NodeId(name.into())
    }

    fn answering_of(members: &[(&str, bool)]) -> Vec<String> {
        let members = members.iter().map(|(name, is_alive)| {
            let peer = PeerAddr { node: node(name), addr: "a:1".into() };
            Member { peer, is_alive: *is_alive, is_voter: true, is_leader: None }
        });
        answering(&members.collect::<Vec<_>>(), &node("a")).iter().map(NodeId::to_string).collect()
    }

    #[test]
    fn new_partitions_go_to_members_that_answer() {
        assert_eq!(answering_of(&[("a", true), ("b", false), ("c", true)]), ["a", "c"]);
        assert_eq!(answering_of(&[("a", true), ("b", false), ("c", false)]), ["a", "b", "c"], "it may be this node that is not heard");
        assert_eq!(answering_of(&[("a", true)]), ["a"]);
    }

    #[test]
    fn a_node_alone_is_named_for_what_is_added_to_a_topic_that_has_owners() {
        let alone = Places::Alone(node("a"));
        assert!(alone.owners(TopicId(7), &[], 3).is_empty());
        let owned = [Ownership::new(node("a"), OwnershipEpoch(1))];
        assert_eq!(alone.owners(TopicId(7), &owned, 2), [node("a"), node("a")]);
    }
}
