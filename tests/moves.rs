//! Nodes that leave a cluster: decommissioned, with what they own moved away under load; or dead for good, and given up.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use veena_contract::limits;
use veena_loadtest_checker::How;
use veena_loadtest_driver::api::{Client, Message};
use veena_loadtest_driver::node::NodeProcess;

use crate::cluster::{Cluster, create_until_there, members, name, refused};
use crate::support::{
    BIN, STOP_DEADLINE, assert_clean_log, assert_empty, consume_exactly, create_wide, handles, produce_all, texts, until,
};

/// By when a node that was killed is taken for dead by all others.
const DEAD_WITHIN: Duration = Duration::from_millis(2 * limits::MEMBER_DEAD_MS);

/// By when two partitions have moved onto a node that has come.
const BALANCED_WITHIN: Duration = Duration::from_millis(2 * limits::REBALANCE_AFTER_MS);

/// What says that a member is to be given up.
const LOSE: &str = "--yes-lose-what-only-it-has";

fn veena(node: &NodeProcess, words: &[&str]) -> (bool, String) {
    let output = Command::new(BIN).arg("cluster").args(words).args(["-s", &node.addr().to_string()]).output().expect("it runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Sends numbered messages to one node after the other until told to stop; answers those that were taken.
async fn send(mut clients: Vec<Client>, stop: Arc<AtomicBool>) -> BTreeSet<String> {
    let mut sent = BTreeSet::new();
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let text = format!("message {number}");
        let at = number % clients.len();
        produce_all(&mut clients[at], "orders", std::slice::from_ref(&text)).await;
        sent.insert(text);
    }
    sent
}

/// Reads at one node after the other and acks at the next, until told to stop and nothing came; answers what was acked.
async fn read(mut clients: Vec<Client>, stop: Arc<AtomicBool>) -> Vec<String> {
    let mut read = Vec::new();
    for turn in 0.. {
        let is_last = stop.load(Ordering::Relaxed);
        let count = clients.len();
        let answer = clients[turn % count].consume("orders", Duration::from_millis(100), 20).await.expect("an answer");
        let messages = answer.unwrap_or_else(|refused| panic!("consumers are not refused while partitions move: {}", refused.status));
        if is_last && messages.is_empty() {
            break;
        }
        for message in messages {
            ack(&mut clients[(turn + 1) % count], &message).await;
            read.push(String::from_utf8_lossy(&message.payload).into_owned());
        }
    }
    read
}

/// Acks, again if that certainly was not applied.
async fn ack(client: &mut Client, message: &Message) {
    let handle = message.handle.clone().expect("a lease has a handle");
    loop {
        let reply = client.settle("orders", &handle, How::Ack).await.expect("an answer");
        if reply.status != 503 {
            assert_eq!(reply.status, 204, "{}", String::from_utf8_lossy(&reply.body));
            return;
        }
    }
}

#[tokio::test]
async fn the_leader_leaves_under_load_and_everything_it_had_is_served_by_the_others() {
    let mut cluster = Cluster::of(4).await;
    let leaving = cluster.leader(0).await;
    let others: Vec<usize> = (0..4).filter(|at| *at != leaving).collect();
    let [first, second, third] = *others.as_slice() else { panic!("three stay") };
    create_until_there(&cluster.nodes[first], "orders", 8).await;
    create_wide(&mut cluster.client(second), "held", 8, 120_000).await;
    let kept: Vec<String> = (0..40).map(|number| format!("held {number}")).collect();
    produce_all(&mut cluster.client(third), "held", &kept).await;
    let held = consume_exactly(&mut cluster.client(second), "held", kept.len()).await;

    let stop = Arc::new(AtomicBool::new(false));
    let staying = || others.iter().map(|at| cluster.client(*at)).collect::<Vec<_>>();
    let sending = tokio::spawn(send(staying(), Arc::clone(&stop)));
    let is_all_sent = Arc::new(AtomicBool::new(false));
    let reading = tokio::spawn(read(staying(), Arc::clone(&is_all_sent)));

    let (is_done, text) = veena(&cluster.nodes[first], &["decommission", &name(leaving + 1), "--dry-run"]);
    assert!(is_done && text.contains("could be taken out; 4 partition(s)"), "{text}");
    let (is_done, text) = veena(&cluster.nodes[second], &["decommission", &name(leaving + 1)]);
    assert!(is_done, "{text}");
    until("it takes nothing new", || async {
        let reply = cluster.client(leaving).produce("orders", None, b"late").await.expect("an answer");
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        reply.status == 503 && text.contains("being decommissioned and takes no new produce")
    })
    .await;
    until("it is gone", || async { members(&cluster.nodes[first]).await.iter().all(|member| member.id != name(leaving + 1)) }).await;
    assert!(members(&cluster.nodes[first]).await.iter().all(|member| member.owned_partitions >= 5), "spread over those who stay");
    until("it says so", || async {
        let reply = cluster.client(leaving).get("/readyz").await.expect("an answer");
        reply.status == 503 && String::from_utf8_lossy(&reply.body).contains("taken out of its cluster")
    })
    .await;
    cluster.nodes[leaving].stop(STOP_DEADLINE).await.expect("it stops");

    stop.store(true, Ordering::Relaxed);
    let sent = sending.await.expect("sent");
    until("all is committed", || async {
        let mut undispatched = 0.0;
        for at in &others {
            let node = &cluster.nodes[*at];
            undispatched += crate::support::metric(node.addr(), "veena_ingress_dispatch_backlog_records").await;
        }
        undispatched == 0.0
    })
    .await;
    is_all_sent.store(true, Ordering::Relaxed);
    let mut acked = reading.await.expect("read");
    // What was sent to the one that leaves before it knew that it does.
    acked.retain(|text| text != "late");
    acked.sort_unstable();
    assert!(acked.iter().eq(&sent), "{} were sent, {} acked", sent.len(), acked.len());

    // Leases outlive the move.
    assert_empty(&mut cluster.client(first), "held").await;
    assert_eq!(texts(&held).into_iter().collect::<BTreeSet<_>>(), kept.into_iter().collect());
    for (number, handle) in handles(&held).iter().enumerate() {
        let reply = cluster.client(others[number % 3]).settle("held", handle, How::Ack).await.expect("an answer");
        assert_eq!(reply.status, 204, "{}", String::from_utf8_lossy(&reply.body));
    }
    let told = refused(cluster.nodes[leaving].config()).await;
    assert!(told.contains("no member of the cluster any more"), "{told}");
    others.iter().for_each(|at| assert_clean_log(&cluster.nodes[*at]));
}

#[tokio::test]
async fn partitions_move_onto_a_node_that_has_come_once_all_have_been_well_for_a_while() {
    let mut cluster = Cluster::of(2).await;
    create_until_there(&cluster.nodes[0], "orders", 6).await;
    let sent: Vec<String> = (0..60).map(|number| format!("message {number}")).collect();
    produce_all(&mut cluster.client(1), "orders", &sent).await;
    let begin = Instant::now();
    cluster.add().await;
    let owned = async || members(&cluster.nodes[2]).await.into_iter().map(|member| member.owned_partitions).collect::<Vec<_>>();
    while owned().await != [2, 2, 2] {
        assert!(begin.elapsed() < BALANCED_WITHIN, "{:?}", owned().await);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(begin.elapsed() >= Duration::from_millis(limits::REBALANCE_AFTER_MS), "not at once");
    let read = consume_exactly(&mut cluster.client(2), "orders", sent.len()).await;
    assert_eq!(texts(&read).into_iter().collect::<BTreeSet<_>>(), sent.into_iter().collect());
    cluster.nodes.iter().for_each(assert_clean_log);
}

#[tokio::test]
async fn a_node_that_is_dead_for_good_is_given_up_and_one_that_is_needed_or_lives_is_not() {
    let mut cluster = Cluster::of(3).await;
    create_until_there(&cluster.nodes[0], "orders", 3).await;
    let third = name(3);
    let (is_done, text) = veena(&cluster.nodes[0], &["decommission", &third]);
    assert!(!is_done && text.contains("2 voters would be left"), "{text}");
    let (is_done, text) = veena(&cluster.nodes[0], &["forget", &third]);
    assert!(!is_done && text.contains("with 1 partition(s)") && text.contains("cannot be undone"), "{text}");
    let (is_done, text) = veena(&cluster.nodes[0], &["forget", &third, LOSE]);
    assert!(!is_done && text.contains("node-3 is not dead"), "{text}");
    let (is_done, text) = veena(&cluster.nodes[0], &["forget", "node-9", LOSE]);
    assert!(!is_done && text.contains("member not found"), "{text}");

    cluster.nodes[2].kill().expect("killed");
    let killed = Instant::now();
    while !veena(&cluster.nodes[1], &["forget", &third, LOSE]).0 {
        assert!(killed.elapsed() < DEAD_WITHIN, "it is taken for dead in the end");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(killed.elapsed() >= Duration::from_millis(limits::MEMBER_SILENT_MS), "a moment's silence is no death");
    let left = members(&cluster.nodes[0]).await;
    assert_eq!(left.iter().map(|member| member.id.as_str()).collect::<Vec<_>>(), ["node-1", "node-2"]);
    // Nobody else has what is in its partition, so it keeps it.
    let client = veena_client::Client::new(&format!("http://{}", cluster.nodes[0].addr())).expect("an address");
    let detail = client.topic("orders", None).await.expect("described");
    let lost = detail.partition_stats.iter().find(|stats| stats.owner_node.as_deref() == Some(&third)).expect("its own");
    assert!(detail.partial && lost.owner_liveness.as_deref() == Some("unknown"), "{lost:?}");
    let trail = String::from_utf8(client.audit(None, veena_contract::AuditKind::Changes, 0).await.expect("told")).expect("text");
    let forgotten: Vec<&str> = trail.lines().filter(|line| line.contains(r#""action":"forget_member""#)).collect();
    assert!(forgotten.len() == 1 && forgotten[0].contains(r#""object":"node:node-3""#), "what was refused is not recorded: {forgotten:?}");
    create_until_there(&cluster.nodes[1], "goes-on", 2).await;
    let told = refused(cluster.nodes[2].config()).await;
    assert!(told.contains("no member of the cluster any more"), "{told}");
    cluster.nodes[..2].iter().for_each(assert_clean_log);
}
