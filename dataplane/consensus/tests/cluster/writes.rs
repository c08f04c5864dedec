//! Changes through any member, and what is said of them when something breaks.

use std::time::Duration;

use tokio::time::Instant;
use veena_consensus::ProposeError;
use veena_contract::{Effect, PeerOp, limits};

use super::support::{Cluster, eventually, text, wait};

#[tokio::test(start_paused = true)]
async fn a_change_through_any_node_is_applied_there_when_it_is_answered() {
    for (voters, seed) in [(3, 1), (5, 2)] {
        let cluster = Cluster::of(voters, seed).await;
        cluster.net.delay(40);
        for round in 0..10 {
            for node in &cluster.nodes {
                let command = format!("{}-{round}", node.id);
                eventually("a change", || async {
                    match node.propose(&command).await {
                        // Delays may cost an election; what was not taken may be asked for again.
                        Err(error) if error.effect() == Effect::None => Err(error),
                        other => Ok(other.expect("answered")),
                    }
                })
                .await;
                assert!(node.journal.has(&command), "{command} was answered and is not applied on {}", node.id);
            }
        }
        wait("all are equal", || cluster.nodes.iter().all(|node| node.journal.lines().len() == voters * 10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_killed_leader_is_replaced_and_nothing_answered_is_lost() {
    for (voters, seed) in [(3, 3), (5, 4)] {
        let mut cluster = Cluster::of(voters, seed).await;
        let mut answered = Vec::new();
        for round in 0..2 * voters {
            let command = format!("before-{round}");
            cluster.nodes[round % voters].propose(&command).await.expect("taken");
            answered.push(command);
        }
        let leader = cluster.leader().await;
        cluster.kill(leader).await;
        let since = Instant::now();
        let heir = (leader + 1) % voters;
        eventually("changes after the leader's end", || cluster.nodes[heir].propose("after")).await;
        assert!(since.elapsed() < Duration::from_secs(2), "{:?} without changes", since.elapsed());
        answered.push("after".to_owned());
        assert_eq!(cluster.nodes[heir].journal.lines(), answered);

        cluster.start(leader).await;
        wait("the old leader has everything", || cluster.nodes[leader].journal.lines() == answered).await;
        assert_ne!(cluster.leader().await, leader);
    }
}

#[tokio::test(start_paused = true)]
async fn all_members_may_stop_at_once_and_have_everything_they_answered() {
    let mut cluster = Cluster::of(3, 5).await;
    for round in 0..9 {
        cluster.nodes[round % 3].propose(&round.to_string()).await.expect("taken");
    }
    for at in 0..3 {
        cluster.kill(at).await;
    }
    for at in 0..3 {
        cluster.start(at).await;
    }
    for node in &cluster.nodes {
        eventually("a barrier", || node.up().barrier(Duration::from_secs(5))).await;
        assert_eq!(node.journal.lines().len(), 9, "on {}", node.id);
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_whose_answer_was_lost_may_have_been_made() {
    let cluster = Cluster::of(3, 6).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let third = 3 - leader - follower;
    let (lost, there) = (&cluster.nodes[follower], &cluster.nodes[leader]);
    cluster.net.cut(&there.id, &lost.id);
    let error = lost.propose_within("lost", Duration::from_millis(400)).await.expect_err("no answer comes back");
    assert_eq!(error.effect(), Effect::Possible, "{error}");
    assert!(there.journal.has("lost"), "the leader has made it");
    wait("the third has it too", || cluster.nodes[third].journal.has("lost")).await;
}

#[tokio::test(start_paused = true)]
async fn a_change_that_reached_nobody_was_certainly_not_made() {
    let mut cluster = Cluster::of(3, 7).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    for at in (0..3).filter(|at| *at != follower) {
        cluster.kill(at).await;
    }
    let error = cluster.nodes[follower].propose("nowhere").await.expect_err("nobody is there");
    assert!(matches!(error, ProposeError::NoLeader { .. }), "{error}");
    assert_eq!(error.effect(), Effect::None);
    for at in (0..3).filter(|at| *at != follower) {
        cluster.start(at).await;
    }
    eventually("a later change", || cluster.nodes[leader].propose("later")).await;
    wait("all are equal", || cluster.nodes.iter().all(|node| node.journal.lines() == ["later"])).await;
}

/// The entry gives way to another leader's on the node that took it, and lives on elsewhere.
#[tokio::test(start_paused = true)]
async fn a_change_that_gave_way_where_it_was_made_may_still_be_made() {
    let mut cluster = Cluster::of(5, 8).await;
    let old = cluster.leader().await;
    let others: Vec<usize> = (0..5).filter(|at| *at != old).collect();
    let (keeper, rest) = (others[0], &others[1..]);
    let ids: Vec<_> = cluster.nodes.iter().map(|node| node.id.clone()).collect();
    let next = || rest.iter().copied().find(|at| cluster.nodes[*at].up().status().is_leader);
    // The old leader reaches the keeper only.
    for at in rest {
        cluster.net.cut_both(&ids[old], &ids[*at]);
    }
    let asked = cluster.nodes[old].up().clone();
    let (error, heir) = tokio::join!(asked.propose(text("revived"), Duration::from_secs(10)), async {
        wait("the keeper has the entry", || has_entry(&cluster, keeper, old)).await;
        cluster.net.cut_both(&ids[old], &ids[keeper]);
        // One of the rest will be elected, and its entries reach the old leader only.
        for at in rest {
            cluster.net.cut_both(&ids[keeper], &ids[*at]);
            for to in rest {
                cluster.net.block(&ids[*at], &ids[*to], PeerOp::RAFT_APPEND);
            }
        }
        wait("another one leads", || next().is_some()).await;
        let heir = next().expect("just found");
        cluster.net.heal_both(&ids[old], &ids[heir]);
        heir
    });
    let error = error.expect_err("leadership was lost");
    assert!(matches!(error, ProposeError::Lost { .. }), "{error}");
    assert_eq!(error.effect(), Effect::Possible);
    cluster.kill(heir).await;
    cluster.kill(old).await;
    cluster.net.heal();
    wait("it was made", || cluster.up().all(|node| node.journal.has("revived"))).await;
}

fn has_entry(cluster: &Cluster, keeper: usize, leader: usize) -> bool {
    cluster.nodes[keeper].up().status().last_log >= cluster.nodes[leader].up().status().last_log
        && cluster.nodes[leader].up().status().last_log > cluster.nodes[leader].up().status().applied
}

#[tokio::test(start_paused = true)]
async fn a_change_that_fits_into_no_call_is_refused_before_it_is_taken() {
    let cluster = Cluster::of(3, 9).await;
    let large = "x".repeat(limits::METADATA_COMMAND_BYTES_MAX);
    for node in &cluster.nodes {
        let error = node.propose(&large).await.expect_err("too large");
        assert!(matches!(error, ProposeError::TooLarge { .. }), "{error}");
        assert_eq!(error.effect(), Effect::None);
    }
    // The largest that is taken goes through, forwarded and replicated, and so do many together.
    let largest = "x".repeat(limits::METADATA_COMMAND_BYTES_MAX - 2);
    let follower = cluster.follower().await;
    for _ in 0..3 {
        cluster.nodes[follower].propose(&largest).await.expect("taken");
    }
    wait("all have them", || cluster.nodes.iter().all(|node| node.journal.lines().len() == 3)).await;
}

#[tokio::test(start_paused = true)]
async fn a_member_that_was_away_gets_large_changes_in_several_calls() {
    let mut cluster = Cluster::of(3, 10).await;
    let away = cluster.follower().await;
    cluster.kill(away).await;
    let leader = cluster.leader().await;
    let large = "x".repeat(limits::PEER_CONTROL_BYTES_MAX / 3);
    for _ in 0..10 {
        cluster.nodes[leader].propose(&large).await.expect("taken");
    }
    cluster.start(away).await;
    wait("it has them", || cluster.nodes[away].journal.lines().len() == 10).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_says_nothing_is_waited_for_only_until_there_is_another() {
    let cluster = Cluster::of(3, 9).await;
    let (leader, asked) = (cluster.leader().await, cluster.follower().await);
    cluster.isolate(&[leader]);
    let error = cluster.nodes[asked].propose("perhaps").await.expect_err("nobody answers");
    assert!(matches!(&error, ProposeError::Lost { reason } if reason.contains("ceased to lead")), "{error}");
    assert_eq!(error.effect(), Effect::Possible);
    cluster.nodes[asked].propose("next").await.expect("the others go on");
}
