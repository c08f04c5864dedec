//! Calls that are none, or come in another's name.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use veena_consensus::Consensus;
use veena_consensus::raft::member_id;
use veena_contract::{CallerGone, NodeId, PeerClass, PeerOp, PeerRefusal, PeerRequest};

use super::support::{Cluster, id, wait};

fn request(from: &NodeId, op: PeerOp, body: &str) -> PeerRequest {
    PeerRequest {
        from: from.clone(),
        class: PeerClass::Control,
        op,
        remaining: Duration::from_secs(5),
        caller: CallerGone::default(),
        body: Bytes::from(body.to_owned()),
    }
}

#[tokio::test(start_paused = true)]
async fn every_call_about_the_metadata_is_served_and_no_other() {
    let cluster = Cluster::of(1, 1).await;
    let member = cluster.nodes[0].up();
    for op in PeerOp::ALL {
        let is_ours = op <= PeerOp::METADATA_MEMBERS;
        assert_eq!(Consensus::serves(op), is_ours, "{op}");
        if !is_ours {
            continue;
        }
        for body in ["", "{}", "null", "{\"v\":1}", "{\"v\":2,\"body\":null}", "{\"v\":1,\"body\":[]}", "\n", "{\"v\":1}\nabc"] {
            // Any JSON is a command; what it means is the state machine's business.
            if op == PeerOp::METADATA_PROPOSE && body.ends_with("[]}") {
                continue;
            }
            assert_eq!(member.serve(request(&id("node-2"), op, body)).await, Err(PeerRefusal::Malformed), "{op} of {body:?}");
        }
    }
    assert!(!Consensus::serves(PeerOp(999)));
    assert_eq!(member.serve(request(&id("node-2"), PeerOp(999), "")).await, Err(PeerRefusal::UnknownOp));
}

#[tokio::test(start_paused = true)]
async fn nobody_speaks_in_anothers_name() {
    let cluster = Cluster::of(3, 2).await;
    let leader = cluster.leader().await;
    let term = cluster.nodes[leader].up().status().term;
    let (speaker, named) = (id("stranger"), member_id(&cluster.nodes[(leader + 1) % 3].id));
    for is_committed in [true, false] {
        let vote = format!(r#"{{"leader_id":{{"term":{},"node_id":{named}}},"committed":{is_committed}}}"#, term + 5);
        let meta = r#"{"last_log_id":null,"last_membership":{"log_id":null,"membership":{"configs":[],"nodes":{}}},"snapshot_id":"x"}"#;
        let calls = [
            (PeerOp::RAFT_APPEND, format!(r#"{{"v":1,"body":{{"vote":{vote},"prev_log_id":null,"entries":[],"leader_commit":null}}}}"#)),
            (PeerOp::RAFT_VOTE, format!(r#"{{"v":1,"body":{{"vote":{vote},"last_log_id":null}}}}"#)),
            (PeerOp::RAFT_SNAPSHOT, format!("{{\"v\":1,\"body\":{{\"vote\":{vote},\"meta\":{meta},\"offset\":0,\"is_last\":true}}}}\n[]")),
        ];
        for (op, body) in calls {
            let refused = cluster.nodes[leader].up().serve(request(&speaker, op, &body)).await;
            assert_eq!(refused, Err(PeerRefusal::NotAdmitted), "{op}");
        }
    }
    for change in [r#"{"join":{"name":"node-9","addr":"x:1"}}"#, r#"{"address":{"name":"node-2","addr":"x:1"}}"#] {
        let body = format!(r#"{{"v":1,"body":{change}}}"#);
        let refused = cluster.nodes[leader].up().serve(request(&speaker, PeerOp::METADATA_MEMBERS, &body)).await;
        assert_eq!(refused, Err(PeerRefusal::NotAdmitted));
    }
    assert_eq!(cluster.nodes[leader].up().status().term, term);
}

#[tokio::test(start_paused = true)]
async fn a_forwarded_change_whose_caller_has_gone_is_not_begun() {
    let cluster = Cluster::of(3, 3).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let from = cluster.nodes[follower].id.clone();
    let body = r#"{"v":1,"body":"gone"}"#;
    let gone = request(&from, PeerOp::METADATA_PROPOSE, body);
    gone.caller.set();
    let mut late = request(&from, PeerOp::METADATA_PROPOSE, body);
    late.remaining = Duration::ZERO;
    for request in [gone, late] {
        assert_eq!(cluster.nodes[leader].up().serve(request).await, Err(PeerRefusal::TooLate));
    }
    let stranger = request(&NodeId(Arc::from("stranger")), PeerOp::METADATA_PROPOSE, body);
    let answer = cluster.nodes[leader].up().serve(stranger).await.expect("answered");
    assert_eq!(answer, r#"{"v":1,"body":{"Err":"not_a_member"}}"#);
    cluster.nodes[follower].propose("there").await.expect("taken");
    wait("equal", || cluster.nodes.iter().all(|node| node.journal.lines() == ["there"])).await;
}
