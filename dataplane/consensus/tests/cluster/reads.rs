//! Read points: never older than what was answered before they were asked for.

use std::time::Duration;

use veena_consensus::{BarrierError, ProposeError};
use veena_contract::{Effect, PeerOp};

use super::support::{Cluster, eventually, wait};

const SHORT: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_read_point_on_any_node_shows_what_was_answered_on_another() {
    let cluster = Cluster::of(3, 1).await;
    cluster.net.delay(30);
    for round in 0..10 {
        for (at, node) in cluster.nodes.iter().enumerate() {
            let command = format!("{at}-{round}");
            eventually("a change", || async {
                match node.propose(&command).await {
                    Err(error) if error.effect() == Effect::None => Err(error),
                    other => Ok(other.expect("answered")),
                }
            })
            .await;
            for reader in &cluster.nodes {
                eventually("a read point", || reader.up().barrier(Duration::from_secs(5))).await;
                assert!(reader.journal.has(&command), "{} does not show {command} behind a read point", reader.id);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_minority_neither_makes_changes_nor_says_what_is_not_there() {
    for seed in [2, 3, 4] {
        let cluster = Cluster::of(5, seed).await;
        let leader = cluster.leader().await;
        let few = [leader, (leader + 1) % 5];
        let many: Vec<usize> = (0..5).filter(|at| !few.contains(at)).collect();
        cluster.isolate(&few);
        eventually("a change by the majority", || cluster.nodes[many[0]].propose("by-many")).await;
        for at in few {
            let node = &cluster.nodes[at];
            assert!(!node.journal.has("by-many"));
            let error = node.up().barrier(SHORT).await.expect_err("no majority confirms");
            assert!(matches!(error, BarrierError::Unconfirmed { .. } | BarrierError::Timeout { .. }), "{error}");
            assert_eq!(error.effect(), Effect::None);
            // It was handed to a leader that cannot know that it is none.
            let error = node.propose_within(&format!("by-few-{at}"), SHORT).await.expect_err("no majority");
            assert_eq!(error.effect(), Effect::Possible, "{error}");
        }
        wait("the old leader knows that nobody follows", || !cluster.nodes[leader].up().status().has_leader).await;
        cluster.net.heal();
        for at in few {
            let node = &cluster.nodes[at];
            eventually("a read point", || node.up().barrier(Duration::from_secs(5))).await;
            assert!(node.journal.has("by-many"), "a read point on {} hides what was answered", node.id);
        }
        wait("all are equal", || cluster.nodes.iter().all(|node| node.journal.lines() == cluster.nodes[0].journal.lines())).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_alone_knows_no_leader_after_a_while_and_takes_no_change() {
    let cluster = Cluster::of(3, 5).await;
    let alone = cluster.follower().await;
    cluster.isolate(&[alone]);
    let node = &cluster.nodes[alone];
    let error = node.propose_within("sent", SHORT).await.expect_err("cut off");
    assert_eq!(error.effect(), Effect::Possible, "a call into a cut may have arrived: {error}");
    wait("it asks to lead itself", || !node.up().status().has_leader).await;
    let error = node.propose("unsent").await.expect_err("cut off");
    assert!(matches!(error, ProposeError::NoLeader { .. }), "{error}");
    assert_eq!(error.effect(), Effect::None);
    assert!(node.up().barrier(SHORT).await.is_err());
    cluster.net.heal();
    eventually("a change", || node.propose("later")).await;
    wait("all are equal", || cluster.nodes.iter().all(|node| node.journal.lines() == ["later"])).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_hears_nobody_confirms_nothing_though_all_hear_it() {
    let cluster = Cluster::of(3, 6).await;
    let leader = cluster.leader().await;
    for at in (0..3).filter(|at| *at != leader) {
        cluster.net.cut(&cluster.nodes[at].id, &cluster.nodes[leader].id);
    }
    assert!(cluster.nodes[leader].up().barrier(SHORT).await.is_err());
    for at in (0..3).filter(|at| *at != leader) {
        assert!(cluster.nodes[at].up().barrier(SHORT).await.is_err());
    }
    cluster.net.heal();
    for node in &cluster.nodes {
        eventually("a read point", || node.up().barrier(Duration::from_secs(5))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn read_points_that_are_asked_for_together_share_one_call() {
    let cluster = Cluster::of(3, 7).await;
    let follower = cluster.follower().await;
    let node = &cluster.nodes[follower];
    cluster.net.delay(5);
    let before = cluster.net.calls(&node.id, PeerOp::METADATA_BARRIER);
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let member = node.up().clone();
        readers.spawn(async move { member.barrier(Duration::from_secs(5)).await });
    }
    for outcome in readers.join_all().await {
        outcome.expect("confirmed");
    }
    let calls = cluster.net.calls(&node.id, PeerOp::METADATA_BARRIER) - before;
    assert!((1..=2).contains(&calls), "{calls} calls for 200 read points");
}

/// The mark of what was committed is written without a sync.
#[tokio::test(start_paused = true)]
async fn a_leader_that_starts_again_and_leads_on_shows_all_that_it_had_answered() {
    for seed in 0..20 {
        let mut cluster = Cluster::of(3, seed).await;
        let leader = cluster.leader().await;
        for round in 0..5 {
            cluster.nodes[leader].propose(&round.to_string()).await.expect("taken");
        }
        cluster.kill(leader).await;
        cluster.nodes[leader].log.lose_committed(3);
        cluster.net.delay(20);
        cluster.start(leader).await;
        let node = &cluster.nodes[leader];
        eventually("a read point", || node.up().barrier(Duration::from_secs(5))).await;
        assert_eq!(node.journal.lines().len(), 5, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_led_and_comes_back_does_not_ask_itself_although_others_send_it_there() {
    let mut cluster = Cluster::of(3, 6).await;
    let leader = cluster.leader().await;
    let (late, third) = ((leader + 1) % 3, (leader + 2) % 3);
    let [led, behind, electing] = [leader, late, third].map(|at| cluster.nodes[at].id.clone());
    let term = cluster.nodes[leader].up().status().term;
    for at in [leader, late] {
        cluster.kill(at).await;
    }
    // The third asks for votes: the one that led hears it, and the late one does not.
    cluster.net.cut(&led, &electing);
    cluster.start(leader).await;
    wait("it knows of an election", || cluster.nodes[leader].up().status().term > term).await;
    cluster.kill(third).await;
    for (from, to) in [(&led, &behind), (&behind, &led)] {
        cluster.net.block(from, to, PeerOp::RAFT_VOTE);
    }
    cluster.start(late).await;
    assert_eq!(cluster.nodes[late].up().status().leader, Some(led.clone()), "it has not heard of the election");
    // In this network nobody can call itself.
    cluster.nodes[leader].up().barrier(SHORT).await.expect_err("nobody is elected");
    cluster.net.heal();
    eventually("a read point", || cluster.nodes[leader].up().barrier(Duration::from_secs(5))).await;
}
