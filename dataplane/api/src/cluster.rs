//! The members of the cluster and the moves between them; and what an answer of a node of a cluster has to wait for.

use std::time::Duration;

use futures_util::future::join_all;
use http::StatusCode;
use veena_client::bodies::{
    AbortedMove, ClusterMember, ClusterMembers, ClusterMove, ClusterMoves, Decommission, Forgotten, MoveAborted, NodeMove, NodeStatus,
    Reason,
};
use veena_contract::{
    CatalogView, Command, CommandError, DrainMark, ErrorCode, ForgetError, Member, Members, Move, NodeId, Obstacle, Ownership, PartitionAt,
    PartitionIndex, ProposeError, Standing, TenantId, TopicId, TopicName, TopicRecord, limits, placement,
};

use crate::answer::{self, Answer};
use crate::catalog;
use crate::edge::Call;
use crate::node_status::{self, ABORTED, node_status};
use crate::problem::Problem;
use crate::query;
use crate::state::ApiState;

/// `GET /v1/cluster/members`.
pub(crate) async fn members(call: &Call<'_>) -> Result<Answer, Problem> {
    let is_detailed = flag(call, "detail")?;
    let parts = &call.state.parts;
    let mut members = match &parts.cluster {
        Some(cluster) => {
            let found = cluster.members(Duration::from_millis(limits::MEMBER_ANSWER_MS_MAX)).await;
            let view = call.state.view();
            let mut members: Vec<ClusterMember> = found.iter().map(|member| shown(member, &view, is_detailed)).collect();
            for member in members.iter_mut().filter(|member| is_detailed && member.draining) {
                let obstacles = cluster.obstacles(&NodeId(member.id.as_str().into()));
                member.decommission_blocked = obstacles.into_iter().map(reason).collect();
            }
            members
        }
        None => vec![alone(&parts.node, &call.state.view(), is_detailed)],
    };
    if is_detailed {
        let nodes = members.iter().map(|member| NodeId(member.id.as_str().into()));
        let told = join_all(nodes.map(async |node| status_of(call.state, &node).await)).await;
        for (member, told) in members.iter_mut().zip(told) {
            match told {
                Ok(status) => member.node_status = Some(status),
                Err(reason) => member.status_error = Some(reason),
            }
        }
    }
    Ok(answer::json(StatusCode::OK, &ClusterMembers { members }))
}

/// What a member says of itself, or why that is not known.
async fn status_of(state: &ApiState, node: &NodeId) -> Result<NodeStatus, String> {
    let parts = &state.parts;
    match &parts.cluster {
        Some(cluster) if *node != parts.node => {
            let told = cluster.status(node).await?;
            serde_json::from_slice(&told).map_err(|_| "what it says of itself cannot be read".to_owned())
        }
        _ => Ok(node_status(&parts.broker, node).await),
    }
}

fn flag(call: &Call<'_>, name: &'static str) -> Result<bool, Problem> {
    let value = query::first(call.query(), name).map_err(|error| Problem::malformed(format!("invalid {name}: {error}")))?;
    match value.as_deref() {
        None | Some("" | "false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(Problem::invalid(format!("invalid {name}: want true or false"))),
    }
}

fn reason(obstacle: Obstacle) -> Reason {
    Reason { code: obstacle.code.as_str().to_owned(), message: obstacle.message }
}

fn shown(member: &Member, view: &CatalogView, is_detailed: bool) -> ClusterMember {
    let node = &member.peer.node;
    ClusterMember {
        id: node.to_string(),
        addr: member.peer.addr.to_string(),
        status: if member.is_alive { "alive" } else { "dead" }.to_owned(),
        draining: view.draining.contains(node),
        owned_partitions: view.partitions_of(node) as u64,
        outbound_moves: view.moves().filter(|(_, _, owner, _)| owner.node == *node).count() as u64,
        voter: is_detailed.then_some(member.is_voter),
        leader: member.is_leader.filter(|_| is_detailed),
        heartbeat_age_seconds: is_detailed.then_some(if member.is_alive { 0 } else { member.silent.as_secs() }),
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
        heartbeat_age_seconds: is_detailed.then_some(0),
        ..ClusterMember::default()
    }
}

/// `GET /v1/cluster/moves`.
pub(crate) async fn moves(call: &Call<'_>) -> Result<Answer, Problem> {
    let is_detailed = flag(call, "detail")?;
    let view = call.state.view();
    let cluster = call.state.parts.cluster.as_deref().filter(|_| is_detailed);
    let moves = view.moves().map(|(topic, index, owner, moving)| move_shown(cluster, &view, topic, index, owner, moving));
    let mut answer = ClusterMoves { moves: moves.collect(), aborted: Vec::new() };
    if let Some(cluster) = cluster {
        // Who cannot be asked is left out: that is told of the members.
        let told = join_all(cluster.nodes().into_iter().map(async |node| status_of(call.state, &node).await.ok())).await;
        for told in told.into_iter().flatten().flat_map(|status| status.moves) {
            tell(&mut answer, told);
        }
        answer.aborted.sort_unstable_by_key(|aborted| aborted.aborted_at);
    }
    Ok(answer::json(StatusCode::OK, &answer))
}

/// Adds what a member has told of one move.
fn tell(answer: &mut ClusterMoves, told: NodeMove) {
    let NodeMove { tenant, topic, partition, source: from, target: to, started_at, phase, last_error, copied_bytes, .. } = told;
    if phase == ABORTED {
        answer.aborted.push(AbortedMove { tenant, topic, partition, from, to, reason: last_error, aborted_at: started_at });
        return;
    }
    let is_it = |shown: &&mut ClusterMove| shown.tenant == tenant && shown.topic == topic && shown.partition == partition && shown.to == to;
    if let Some(shown) = answer.moves.iter_mut().find(is_it) {
        shown.worker = Some(format!("{phase}, {copied_bytes} bytes copied"));
        shown.worker_error = Some(last_error).filter(|error| !error.is_empty());
    }
}

/// One move; in detail, with what is known of the two nodes.
fn move_shown(
    cluster: Option<&dyn Members>,
    view: &CatalogView,
    topic: &TopicRecord,
    index: PartitionIndex,
    owner: &Ownership,
    moving: &Move,
) -> ClusterMove {
    let standing = |node: &NodeId| cluster.map(|cluster| cluster.standing(node));
    let status = |node: &NodeId| {
        standing(node).map(|standing| match standing {
            Standing::NotAMember => "not_a_member",
            Standing::Dead => "dead",
            Standing::Alive if view.draining.contains(node) => "draining",
            Standing::Alive => "alive",
        })
    };
    let blocked = match (standing(&owner.node), standing(&moving.to)) {
        (_, Some(Standing::NotAMember)) => Some("target_not_member"),
        (_, Some(Standing::Dead)) => Some("target_dead"),
        (Some(Standing::Dead | Standing::NotAMember), _) => Some("source_dead"),
        _ => None,
    };
    ClusterMove {
        tenant: node_status::told(&topic.tenant),
        topic: topic.name.to_string(),
        partition: index.get().into(),
        from: owner.node.to_string(),
        to: moving.to.to_string(),
        frozen: moving.frozen.is_some(),
        from_status: status(&owner.node).map(str::to_owned),
        to_status: status(&moving.to).map(str::to_owned),
        blocked: blocked.map(str::to_owned),
        ..ClusterMove::default()
    }
}

/// The members; a node alone has none that could come or go.
fn cluster_of<'a>(call: &'a Call<'_>) -> Result<&'a dyn Members, Problem> {
    call.state.parts.cluster.as_deref().ok_or_else(no_member)
}

/// Refuses what is asked of a node that was taken out of its cluster: to it, all that others have would look empty.
pub(crate) fn taken_out(reason: &'static str) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::NotReady, reason)
}

/// Completes when this node finds that it was taken out of its cluster.
pub(crate) async fn until_taken_out(state: &ApiState) -> Problem {
    let Some(cluster) = &state.parts.cluster else { return std::future::pending().await };
    cluster.until_taken_out().await;
    taken_out(cluster.taken_out().unwrap_or("this node was out of its cluster for a moment; ask again"))
}

fn no_member() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, ErrorCode::NotFound, "member not found")
}

/// The member that the path names, according to the leader.
async fn member_of(call: &Call<'_>, cluster: &dyn Members) -> Result<NodeId, Problem> {
    let node = NodeId(call.path.second.as_ref().into());
    if cluster.standing(&node) == Standing::NotAMember {
        call.state.parts.leader.confirmed_view().await?;
        if cluster.standing(&node) == Standing::NotAMember {
            return Err(no_member());
        }
    }
    Ok(node)
}

/// `POST /v1/cluster/members/{member}/decommission`.
pub(crate) async fn decommission(call: &Call<'_>) -> Result<Answer, Problem> {
    let is_dry_run = flag(call, "dry_run")?;
    let cluster = cluster_of(call)?;
    let node = member_of(call, cluster).await?;
    // Judged by what the leader knows: somebody else may be leaving since.
    let confirmed = call.state.parts.leader.confirmed_view().await?;
    let obstacles = cluster.obstacles(&node);
    let lasting: Vec<&str> = obstacles.iter().filter(|obstacle| obstacle.is_lasting).map(|obstacle| obstacle.message.as_str()).collect();
    if is_dry_run {
        let view = call.state.view();
        let would_decommission = lasting.is_empty();
        let answer = Decommission {
            member: node.to_string(),
            would_decommission,
            voter: cluster.is_voter(&node),
            owned_partitions: view.partitions_of(&node) as u64,
            inbound_moves: view.moves().filter(|(.., moving)| moving.to == node).count() as u64,
            reasons: obstacles.into_iter().map(reason).collect(),
        };
        return Ok(answer::json(StatusCode::OK, &answer));
    }
    if !lasting.is_empty() {
        let text = format!("{node} cannot be taken out: {}", lasting.join("; "));
        return Err(Problem::new(StatusCode::CONFLICT, ErrorCode::Blocked, text));
    }
    let mark = Some(DrainMark(call.state.parts.entropy.next_u128()));
    let beside = Some(confirmed.draining.iter().cloned().collect());
    let command = Command::SetDraining { node, draining: true, mark, beside };
    catalog::propose_once(call, command).await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}

/// `DELETE /v1/cluster/members/{member}/decommission`.
pub(crate) async fn recommission(call: &Call<'_>) -> Result<Answer, Problem> {
    if query::first(call.query(), "dry_run").map_err(|error| Problem::malformed(format!("invalid dry_run: {error}")))?.is_some() {
        return Err(Problem::invalid("dry_run is of decommissioning, not of taking it back"));
    }
    let node = member_of(call, cluster_of(call)?).await?;
    catalog::propose_once(call, Command::SetDraining { node, draining: false, mark: None, beside: None }).await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}

/// `POST /v1/cluster/members/{member}/forget`.
pub(crate) async fn forget(call: &Call<'_>) -> Result<Answer, Problem> {
    let node = NodeId(call.path.second.as_ref().into());
    let voter = cluster_of(call)?.forget(&node, call.origin()).await?;
    Ok(answer::json(StatusCode::OK, &Forgotten { id: node.to_string(), voter }))
}

impl From<ForgetError> for Problem {
    fn from(error: ForgetError) -> Self {
        let text = error.to_string();
        match error {
            ForgetError::Oneself => Self::invalid(text),
            ForgetError::NotAMember => no_member(),
            ForgetError::Alive { .. } | ForgetError::Refused { .. } => Self::new(StatusCode::CONFLICT, ErrorCode::Blocked, text),
            ForgetError::Unavailable { effect: veena_contract::Effect::None, .. } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::MetadataUnavailable, text)
            }
            ForgetError::Unavailable { .. } => Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::MetadataUncertain, text),
        }
    }
}

/// `POST /v1/cluster/moves/{topic}/{partition}/abort`.
pub(crate) async fn abort(call: &Call<'_>) -> Result<Answer, Problem> {
    let target = query::first(call.query(), "target").map_err(|error| Problem::malformed(format!("invalid target: {error}")))?;
    let name = call.topic()?;
    let index: PartitionIndex = call.path.second.parse().map(PartitionIndex).map_err(|_| Problem::invalid("invalid partition"))?;
    let tenant = query::first(call.query(), "tenant").map_err(|error| Problem::malformed(format!("invalid tenant: {error}")))?;
    let tenant = match tenant.as_deref().filter(|tenant| !tenant.is_empty()) {
        None => call.tenant().clone(),
        Some(tenant) => TenantId::parse(tenant).ok_or_else(|| Problem::invalid("invalid tenant"))?,
    };
    let view = call.state.parts.leader.confirmed_view().await?;
    let topic = view.topic(&tenant, &name).ok_or_else(Problem::topic_not_found)?;
    let no_move = || Problem::new(StatusCode::NOT_FOUND, ErrorCode::NotFound, format!("no move of {name}/{index} is under way"));
    let owner = topic.owner_of(index).ok_or_else(no_move)?;
    let moving = owner.moving.as_ref().ok_or_else(no_move)?;
    if let Some(target) = target.as_deref().filter(|target| !target.is_empty() && **target != *moving.to.0) {
        let text = format!("{name}/{index} moves to {}, not to {target}", moving.to);
        return Err(Problem::new(StatusCode::CONFLICT, ErrorCode::Conflict, text));
    }
    let at = PartitionAt { tenant: topic.tenant.clone(), topic: topic.id, index, epoch: owner.epoch };
    catalog::propose_once(call, Command::AbortMove { at, token: moving.token }).await.map_err(|error| match error {
        ProposeError::Refused(CommandError::OwnershipChanged) => {
            let text = format!("the move of {name}/{index} has ended, or another one was begun, just now");
            Problem::new(StatusCode::CONFLICT, ErrorCode::Conflict, text)
        }
        other => other.into(),
    })?;
    let rest = Duration::from_millis(limits::MOVE_REST_MS).as_secs();
    let note = format!(
        "the partition stays at {} and is left there for at least {rest} s; then it may be moved again, if there is still a reason to",
        owner.node
    );
    let aborted = move_shown(call.state.parts.cluster.as_deref(), &view, topic, index, owner, moving);
    Ok(answer::json(StatusCode::ACCEPTED, &MoveAborted { r#move: aborted, note }))
}

/// The owners of the partitions that a topic is fed from, if it has a parent.
pub(crate) fn owners_of_parent<'a>(view: &'a CatalogView, topic: &TopicRecord) -> &'a [Ownership] {
    let parent = topic.parent.as_ref().and_then(|link| view.topic_by_id(link.parent_id));
    parent.map_or(&[], |parent| &parent.owners)
}

/// The nodes that new partitions may be given to. A node alone names nobody.
pub(crate) enum Places {
    Alone(NodeId),
    Members(Vec<NodeId>),
}

impl Places {
    /// Asks the members who of them serves partitions: what is sent to one of another would wait.
    pub(crate) async fn find(state: &ApiState) -> Self {
        let me = &state.parts.node;
        match &state.parts.cluster {
            None => Self::Alone(me.clone()),
            Some(cluster) => Self::Members(serving(&cluster.members(Duration::from_millis(limits::PLACEMENT_ANSWER_MS_MAX)).await, me)),
        }
    }

    /// Owners for partitions that are added to a topic; none on a node alone, unless the topic is from when that was a node of a cluster.
    ///
    /// # Errors
    /// When every node that could own them is being taken out.
    pub(crate) fn owners(
        &self,
        view: &CatalogView,
        topic: TopicId,
        owned: &[Ownership],
        parent: &[Ownership],
        count: u32,
    ) -> Result<Vec<NodeId>, Problem> {
        match self {
            Self::Alone(_) if owned.is_empty() => Ok(Vec::new()),
            Self::Alone(me) => Ok(placement::owners_of_added(std::slice::from_ref(me), topic, owned, parent, count)),
            Self::Members(nodes) => {
                let staying: Vec<NodeId> = nodes.iter().filter(|node| !view.draining.contains(*node)).cloned().collect();
                if staying.is_empty() {
                    let text = "every live member is being decommissioned and gets no new partitions";
                    return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Draining, text));
                }
                Ok(placement::owners_of_added(&staying, topic, owned, parent, count))
            }
        }
    }
}

/// The members that serve partitions. If that is this node alone, also those that vote, since each of them once did: it may be this node that
/// is not heard.
fn serving(members: &[Member], me: &NodeId) -> Vec<NodeId> {
    let is_other = |member: &&Member| member.peer.node != *me;
    let is_any = members.iter().filter(is_other).any(|member| member.is_ready);
    let may_own = |member: &&Member| member.is_ready || !is_other(member) || (!is_any && member.is_voter);
    members.iter().filter(may_own).map(|member| member.peer.node.clone()).collect()
}

/// Makes sure that a topic which this node does not know is not one that it does not know *yet*: "not found" is said only of what is not
/// there according to the leader. Afterwards the newest view shows what there is.
pub(crate) async fn confirm(call: &Call<'_>, name: &TopicName) -> Result<(), Problem> {
    if call.state.parts.cluster.is_some() && call.known_topic(name).is_none() {
        call.state.parts.leader.confirmed_view().await?;
    }
    Ok(())
}

/// The same for a partition beyond those that this node knows of: only the leader knows that there is none.
pub(crate) async fn confirm_partition(call: &Call<'_>, name: &TopicName, partition: Option<PartitionIndex>) -> Result<(), Problem> {
    let is_beyond = |index: PartitionIndex| call.known_topic(name).is_some_and(|record| index.get() >= record.partitions);
    if call.state.parts.cluster.is_some() && partition.is_some_and(is_beyond) {
        call.state.parts.leader.confirmed_view().await?;
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

    /// Members by name: `R` says that it is ready, `v` votes.
    fn serving_of(members: &[(&str, &str)]) -> String {
        let members = members.iter().map(|(name, is)| {
            let peer = PeerAddr { node: node(name), addr: "a:1".into() };
            Member { peer, is_alive: true, is_ready: is.contains('R'), is_voter: is.contains('v'), is_leader: None, silent: Duration::ZERO }
        });
        serving(&members.collect::<Vec<_>>(), &node("a")).iter().map(NodeId::to_string).collect()
    }

    #[test]
    fn new_partitions_go_to_members_that_have_shown_that_they_are_ready() {
        assert_eq!(serving_of(&[("a", "Rv"), ("b", "v"), ("c", "Rv")]), "ac");
        assert_eq!(serving_of(&[("a", "Rv"), ("b", "R"), ("c", "v")]), "ab", "who serves need not vote");
        assert_eq!(serving_of(&[("a", "Rv"), ("b", "")]), "a", "it has answered, and was never ready");
        assert_eq!(serving_of(&[("a", "Rv"), ("b", "v"), ("c", "v"), ("d", "")]), "abc", "it may be this node that is not heard");
        assert_eq!(serving_of(&[("a", "")]), "a");
    }

    #[test]
    fn a_node_alone_is_named_for_what_is_added_to_a_topic_that_has_owners() {
        let alone = Places::Alone(node("a"));
        let owners = |owned: &[Ownership], count| alone.owners(&CatalogView::default(), TopicId(7), owned, &[], count).expect("a node");
        assert!(owners(&[], 3).is_empty());
        let owned = [Ownership::new(node("a"), OwnershipEpoch(1))];
        assert_eq!(owners(&owned, 2), [node("a"), node("a")]);
    }

    #[test]
    fn a_node_that_is_taken_out_is_given_nothing_new() {
        let members = Places::Members(vec![node("a"), node("b")]);
        let owners = |draining: &[&str]| {
            let view = CatalogView { draining: draining.iter().map(|name| node(name)).collect(), ..CatalogView::default() };
            members.owners(&view, TopicId(0), &[], &[], 2).map_err(|problem| (problem.status.as_u16(), problem.text.into_owned()))
        };
        assert_eq!(owners(&["a"]).expect("b stays"), [node("b"), node("b")]);
        let (status, text) = owners(&["a", "b"]).expect_err("nobody stays");
        assert!(status == 503 && text.starts_with("every live member is being decommissioned"), "{status} {text}");
    }
}
