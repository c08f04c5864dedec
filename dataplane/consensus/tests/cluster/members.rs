//! Joining, voting, leaving, moving; and nodes that have lost their disk.

use std::sync::Arc;
use std::time::Duration;

use veena_consensus::{BarrierError, Consensus, ConsensusConfig, MemLog, MemberError, ProposeError, Runtime, StartError};
use veena_contract::{Effect, NodeId, PeerOp, limits};

use super::support::{Cluster, DEADLINE, Journal, Seeded, eventually, id, wait};

fn voters(cluster: &Cluster, at: usize) -> Vec<NodeId> {
    let members = cluster.nodes[at].up().status().members;
    let mut names: Vec<NodeId> = members.into_iter().filter(|member| member.is_voter).map(|member| member.peer.node).collect();
    names.sort();
    names
}

/// A node that has founded a cluster, with 40 entries of that part of a snapshot's piece each.
async fn with_much_to_send(seed: u64, part: usize) -> Cluster {
    let cluster = Cluster::with_snapshots(8, seed).await;
    let large = "x".repeat(limits::METADATA_SNAPSHOT_PIECE_BYTES / part);
    for round in 0..40 {
        cluster.nodes[0].propose(&format!("{round}-{large}")).await.expect("taken");
    }
    cluster
}

#[tokio::test(start_paused = true)]
async fn a_learner_catches_up_by_a_snapshot_in_pieces() {
    let mut cluster = with_much_to_send(1, 4).await;
    wait("the log's beginning is gone", || cluster.nodes[0].log.entries() < 30).await;
    let learner = cluster.add().await;
    cluster.net.delay(10);
    cluster.join(learner).await;
    assert!(cluster.nodes[learner].up().snapshot_at().is_some(), "it has come by a snapshot");
    assert!(cluster.net.calls(&id("node-1"), PeerOp::RAFT_SNAPSHOT) > 3, "in several pieces");
    wait("equal", || cluster.nodes[1].journal.lines() == cluster.nodes[0].journal.lines()).await;
    assert_eq!(voters(&cluster, 0), [id("node-1")], "a learner has no vote");
    let member = cluster.nodes[learner].propose("through the learner").await;
    member.expect("a learner forwards changes");
    assert!(cluster.nodes[learner].journal.has("through the learner"));

    // It has what it was sent: it starts from that.
    cluster.kill(learner).await;
    cluster.start(learner).await;
    wait("equal again", || cluster.nodes[1].journal.lines() == cluster.nodes[0].journal.lines()).await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_goes_on_after_the_learner_was_started_again_in_the_middle() {
    let mut cluster = with_much_to_send(2, 2).await;
    let learner = cluster.add().await;
    cluster.net.delay(60);
    let member = cluster.nodes[learner].up().clone();
    let known = [cluster.nodes[0].peer()];
    let sent = |cluster: &Cluster| cluster.net.calls(&id("node-1"), PeerOp::RAFT_SNAPSHOT);
    let (joined, ()) = tokio::join!(member.join(&known, Duration::from_secs(1)), wait("some pieces are there", || sent(&cluster) > 5),);
    drop(joined);
    drop(member);
    cluster.kill(learner).await;
    cluster.start(learner).await;
    // It has nothing that is durable, so it asks again.
    cluster.join(learner).await;
    wait("equal", || cluster.nodes[1].journal.lines() == cluster.nodes[0].journal.lines()).await;
}

#[tokio::test(start_paused = true)]
async fn a_removed_node_neither_votes_nor_disturbs_nor_is_served() {
    let cluster = Cluster::of(3, 3).await;
    let leader = cluster.leader().await;
    let removed = cluster.follower().await;
    let third = 3 - leader - removed;
    cluster.nodes[third].up().remove(&cluster.nodes[removed].id, DEADLINE).await.expect("removed");
    assert_eq!(voters(&cluster, leader).len(), 2);
    let term = cluster.nodes[leader].up().status().term;

    let gone = &cluster.nodes[removed];
    let error = gone.up().barrier(Duration::from_secs(5)).await.expect_err("no member");
    assert!(matches!(error, BarrierError::NotAMember), "{error}");
    let error = gone.propose("by a stranger").await.expect_err("no member");
    assert!(matches!(error, ProposeError::NotAMember | ProposeError::NoLeader { .. }), "{error}");
    assert_eq!(error.effect(), Effect::None);

    // It asks for votes again and again, and nobody minds.
    let asked = cluster.net.calls(&gone.id, PeerOp::RAFT_VOTE);
    wait("it asks to lead", || cluster.net.calls(&gone.id, PeerOp::RAFT_VOTE) > asked + 20).await;
    for round in 0..10 {
        cluster.nodes[third].propose(&format!("quiet-{round}")).await.expect("taken");
    }
    assert_eq!(cluster.nodes[leader].up().status().term, term, "the same leader in the same term");

    // Its vote is none: without the third, there is no majority.
    cluster.isolate(&[third]);
    let error = cluster.nodes[leader].propose_within("alone", Duration::from_secs(5)).await.expect_err("one of two");
    assert_eq!(error.effect(), Effect::Possible);
    assert!(cluster.nodes[leader].up().barrier(Duration::from_secs(5)).await.is_err());
    cluster.net.heal();
    eventually("two of two", || cluster.nodes[third].propose("together")).await;
    assert!(!gone.journal.has("together"));
}

#[tokio::test(start_paused = true)]
async fn the_leader_can_be_taken_out_and_the_last_voter_cannot() {
    let cluster = Cluster::of(3, 4).await;
    let leader = cluster.leader().await;
    let gone = cluster.nodes[leader].id.clone();
    cluster.nodes[leader].up().remove(&gone, DEADLINE).await.expect("removed");
    let rest: Vec<usize> = (0..3).filter(|at| *at != leader).collect();
    for at in &rest {
        eventually("a change", || cluster.nodes[*at].propose("after")).await;
    }
    assert!(!voters(&cluster, rest[0]).contains(&gone));

    cluster.nodes[rest[0]].up().remove(&cluster.nodes[rest[1]].id, DEADLINE).await.expect("removed");
    let last = &cluster.nodes[rest[0]];
    wait("one is left", || voters(&cluster, rest[0]) == [last.id.clone()]).await;
    let error = eventually("a refusal", || async {
        match last.up().remove(&last.id, DEADLINE).await {
            Err(MemberError::NoLeader { reason }) => Err(reason),
            other => Ok(other.expect_err("the last voter")),
        }
    })
    .await;
    assert!(matches!(&error, MemberError::Refused { reason } if reason.contains("only voter")), "{error}");
    assert_eq!(error.effect(), Effect::None);
    last.propose("still").await.expect("taken");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_under_another_address_is_found_there() {
    let mut cluster = Cluster::of(3, 5).await;
    let moved = cluster.follower().await;
    cluster.kill(moved).await;
    cluster.nodes[moved].addr = Arc::from("elsewhere:7");
    cluster.start(moved).await;
    cluster.nodes[moved].up().announce_address(DEADLINE).await.expect("told");
    let peer = cluster.nodes[moved].peer();
    for node in &cluster.nodes {
        wait("all know it", || node.up().status().members.iter().any(|member| member.peer == peer)).await;
    }
    cluster.nodes[moved].propose("from there").await.expect("taken");
    // It is counted where it is now.
    let leader = cluster.leader().await;
    cluster.kill(leader).await;
    eventually("two of three", || cluster.nodes[moved].propose("with two")).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_elsewhere_is_found_there_also_when_it_knows_only_a_former_leader() {
    let mut cluster = Cluster::of(5, 5).await;
    let moved = cluster.follower().await;
    let former = cluster.leader().await;
    cluster.kill(moved).await;
    cluster.kill(former).await;
    let leader = cluster.leader().await;
    cluster.nodes[leader].propose("meanwhile").await.expect("taken");
    cluster.start(former).await;
    assert_eq!(cluster.leader().await, leader);
    cluster.nodes[moved].addr = Arc::from("elsewhere:7");
    cluster.start(moved).await;
    cluster.nodes[moved].up().announce_address(DEADLINE).await.expect("told");
    let peer = cluster.nodes[moved].peer();
    for node in &cluster.nodes {
        wait("all know it", || node.up().status().members.iter().any(|member| member.peer == peer)).await;
        assert_eq!(node.up().member(&peer.node), Some(peer.clone()));
    }
    cluster.nodes[moved].propose("from there").await.expect("taken");
}

#[tokio::test(start_paused = true)]
async fn a_voter_that_lost_its_disk_is_not_let_in_under_its_old_name() {
    let mut cluster = Cluster::of(3, 6).await;
    cluster.nodes[0].propose("kept").await.expect("taken");
    let leader = cluster.leader().await;
    let wiped = cluster.follower().await;
    let third = 3 - leader - wiped;
    cluster.kill(wiped).await;
    cluster.nodes[wiped].log = MemLog::new();
    cluster.start(wiped).await;
    let known = [cluster.nodes[third].peer(), cluster.nodes[leader].peer()];
    let error = cluster.nodes[wiped].up().join(&known, DEADLINE).await.expect_err("a voter with an empty log");
    assert!(matches!(&error, MemberError::Refused { reason } if reason.contains("lost its disk")), "{error}");
    assert_eq!(error.effect(), Effect::None);

    // It does not count for what it has forgotten: neither for a change nor for an election.
    cluster.kill(third).await;
    let error = cluster.nodes[leader].propose_within("one of three", Duration::from_secs(5)).await.expect_err("no majority");
    assert_eq!(error.effect(), Effect::Possible);
    assert!(cluster.nodes[wiped].up().is_blank());
    cluster.kill(leader).await;
    cluster.start(leader).await;
    assert!(cluster.nodes[leader].up().barrier(Duration::from_secs(5)).await.is_err());

    // Once it was taken out, it may come as somebody new.
    cluster.start(third).await;
    let name = cluster.nodes[wiped].id.clone();
    eventually("the wiped one is taken out", || cluster.nodes[third].up().remove(&name, DEADLINE)).await;
    cluster.nodes[wiped].up().join(&known, DEADLINE).await.expect("joined");
    cluster.nodes[third].up().promote(&name, DEADLINE).await.expect("promoted");
    wait("it has everything", || cluster.nodes[wiped].journal.has("kept")).await;
    assert_eq!(voters(&cluster, third).len(), 3);
}

#[tokio::test(start_paused = true)]
async fn joining_and_promoting_twice_is_the_same_as_once() {
    let mut cluster = Cluster::of(1, 7).await;
    let at = cluster.add().await;
    cluster.join(at).await;
    // A learner that lost its disk may come again: nothing was built on it.
    cluster.kill(at).await;
    cluster.nodes[at].log = MemLog::new();
    cluster.start(at).await;
    cluster.join(at).await;
    cluster.join(at).await;
    let name = cluster.nodes[at].id.clone();
    for _ in 0..2 {
        cluster.nodes[at].up().promote(&name, DEADLINE).await.expect("promoted");
    }
    assert_eq!(voters(&cluster, at).len(), 2);
    let error = cluster.nodes[at].up().promote(&id("nobody"), DEADLINE).await.expect_err("unknown");
    assert!(matches!(error, MemberError::Refused { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_change_of_voters_that_could_not_be_finished_is_refused() {
    let mut cluster = Cluster::of(3, 8).await;
    let leader = cluster.leader().await;
    let dead = cluster.follower().await;
    let third = 3 - leader - dead;
    let learner = cluster.add().await;
    cluster.join(learner).await;
    cluster.kill(learner).await;
    cluster.kill(dead).await;
    let ids: Vec<_> = cluster.nodes.iter().map(|node| node.id.clone()).collect();
    // One of the two that would be left is dead; so is the one that would be added.
    for refused in
        [cluster.nodes[leader].up().remove(&ids[third], DEADLINE).await, cluster.nodes[third].up().promote(&ids[learner], DEADLINE).await]
    {
        let error = refused.expect_err("nobody could lead then");
        assert!(matches!(error, MemberError::Refused { .. }), "{error}");
        assert_eq!(error.effect(), Effect::None);
    }
    cluster.nodes[leader].propose("still").await.expect("taken");
    cluster.nodes[leader].up().remove(&ids[dead], DEADLINE).await.expect("the dead one can be taken out");
    cluster.nodes[third].propose("with two").await.expect("taken");
}

/// The log of a cluster of one that was never told where it listens.
#[tokio::test(start_paused = true)]
async fn a_founder_without_an_address_gets_one_when_it_starts_with_one() {
    let mut cluster = Cluster { net: super::support::Net::new(9), nodes: Vec::new(), snapshot_every: 5000, seed: 9 };
    cluster.add_at(Arc::from("")).await;
    cluster.nodes[0].up().initialize().await.expect("initialized");
    cluster.nodes[0].up().lead(DEADLINE).await.expect("leads");
    cluster.nodes[0].propose("old").await.expect("taken");
    cluster.kill(0).await;
    cluster.nodes[0].addr = Arc::from("node-1:1");
    cluster.start(0).await;
    cluster.nodes[0].up().lead(DEADLINE).await.expect("leads");
    cluster.nodes[0].up().announce_address(DEADLINE).await.expect("told");
    let second = cluster.add().await;
    cluster.join(second).await;
    cluster.nodes[second].propose("new").await.expect("taken");
    assert_eq!(cluster.nodes[second].journal.lines(), ["old", "new"]);
}

/// It has a snapshot from before it joined, which does not name it.
#[tokio::test(start_paused = true)]
async fn a_learner_that_was_stopped_before_it_learned_of_itself_starts_and_goes_on() {
    let mut cluster = Cluster::with_snapshots(5, 10).await;
    for round in 0..40 {
        cluster.nodes[0].propose(&round.to_string()).await.expect("taken");
    }
    wait("the log's beginning is gone", || cluster.nodes[0].log.entries() < 30).await;
    let learner = cluster.add().await;
    cluster.net.block_behind(&cluster.nodes[0].id, &cluster.nodes[learner].id, PeerOp::RAFT_SNAPSHOT, PeerOp::RAFT_APPEND);
    let known = [cluster.nodes[0].peer()];
    let error = cluster.nodes[learner].up().join(&known, Duration::from_secs(5)).await.expect_err("entries do not come");
    assert_eq!(error.effect(), Effect::Possible);
    assert!(cluster.nodes[learner].up().snapshot_at().is_some());
    cluster.kill(learner).await;
    cluster.net.heal();
    cluster.start(learner).await;
    assert!(!cluster.nodes[learner].up().is_blank());
    eventually("a read point", || cluster.nodes[learner].up().barrier(Duration::from_secs(5))).await;
    assert_eq!(cluster.nodes[learner].journal.lines(), cluster.nodes[0].journal.lines());
}

#[tokio::test(start_paused = true)]
async fn a_member_of_a_cluster_is_not_started_alone_even_if_it_is_the_only_voter() {
    let mut cluster = Cluster::of(1, 14).await;
    let start_alone = async |cluster: &Cluster| {
        let config = ConsensusConfig::new(cluster.nodes[0].id.clone(), "test");
        let runtime = Runtime::new(Arc::new(Seeded::new(1)));
        Consensus::start(&config, cluster.nodes[0].log.clone(), Box::new(Journal::default()), &runtime).await
    };
    cluster.kill(0).await;
    start_alone(&cluster).await.expect("there is nobody else").shutdown().await;
    cluster.start(0).await;
    cluster.nodes[0].up().lead(DEADLINE).await.expect("leads");
    let learner = cluster.add().await;
    cluster.join(learner).await;
    cluster.kill(0).await;
    let error = start_alone(&cluster).await.err().expect("the learner would wait in vain");
    assert!(matches!(&error, StartError::AmongOthers { members } if members.contains("node-2")), "{error}");
}
