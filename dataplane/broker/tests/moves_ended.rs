//! What is told of moves, and moves that end by themselves since they cannot be completed.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::sleep;
use veena_contract::{Frozen, Move, MoveToken, Offset, Ownership, PeerOp, TopicRecord};
use veena_storage::disk::mem::{Fault as DiskFault, FaultKind, MemDisk, Op};
use veena_storage::disk::{Disk, OpenMode};

use crate::moves::{
    ID, abort, begin, cluster, commit, dirs, long, owner, put, seen_by_all, spread, stored, take, until, until_at, until_frozen,
};
use crate::net::{Cluster, Fault, NODES, node_id};

#[tokio::test(start_paused = true)]
async fn moves_are_counted_and_so_is_how_long_nobody_served_what_moved() {
    let cluster = cluster(1).await;
    put(cluster.node("a"), "0000").await;
    cluster.settle_down().await;
    begin(&cluster, "c", 7);
    until_at(&cluster, "c").await;
    let metrics = |node: &str| cluster.node(node).broker.clone();
    until("it is served there", || metrics("c").metrics().move_freeze_seconds.count() == 1).await;
    // The next one is given up after the owner has stopped: that goes on, and says for how long it did not.
    cluster.net.fail_op("a", "c", PeerOp::OWNER_FREEZE, Fault::LoseAnswers);
    begin(&cluster, "a", 8);
    until_frozen(&cluster).await;
    assert_eq!(metrics("a").moves().len(), 1);
    assert!(abort(&cluster, 8));
    until("its owner goes on", || metrics("c").metrics().move_freeze_seconds.count() == 2).await;
    until("nothing moves", || metrics("a").moves().is_empty()).await;
    let counted = |node: &str| {
        let broker = metrics(node);
        let counted = broker.metrics();
        [counted.moves_begun.get(), counted.moves_flipped.get(), counted.moves_aborted.get(), counted.move_freeze_seconds.count()]
    };
    assert_eq!((counted("a"), counted("b"), counted("c")), ([1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 0, 2]));
    assert!(metrics("c").metrics().move_bytes_copied.get() > 0);
}

fn disk<'a>(cluster: &'a Cluster, node: &str) -> &'a MemDisk {
    &cluster.members.iter().find(|member| member.name == node).expect("one of three").disk
}

/// Damages the last byte of the last frame of the partition at node b.
fn damage_the_end(cluster: &Cluster) {
    let (disk, dir) = (disk(cluster, "b"), PathBuf::from(format!("/data/topics/default/{ID}/p00001")));
    let logs = disk.list(&dir).expect("listed").into_iter().filter(|entry| entry.name.ends_with(".log"));
    let last = logs.max_by(|a, b| a.name.cmp(&b.name)).expect("a segment");
    let path = dir.join(&last.name);
    let mut bytes = vec![0; usize::try_from(last.len).expect("small")];
    disk.open(&path, OpenMode::Read).and_then(|file| file.read_at(&mut bytes, 0)).expect("read");
    let end = bytes.iter().rposition(|byte| *byte != 0).expect("a frame") as u64;
    disk.flip_bit(&path, end * 8).expect("damaged");
}

/// Each in a frame of its own.
async fn put_each(cluster: &Cluster, count: usize) {
    put_all(cluster, (0..count).map(long)).await;
}

async fn put_all(cluster: &Cluster, payloads: impl IntoIterator<Item = String>) {
    for payload in payloads {
        put(cluster.node("b"), &payload).await;
        cluster.settle_down().await;
    }
}

/// So little that its segment is not sealed before the partition stops.
fn short(n: usize) -> String {
    format!("{n:04}")
}

fn reasons(cluster: &Cluster, node: &str) -> Vec<String> {
    cluster.node(node).broker.ended_moves().into_iter().map(|ended| ended.reason).collect()
}

fn is_back(cluster: &Cluster) -> bool {
    owner(&cluster.catalog) == Ownership::new(node_id("b"), spread().owners[1].epoch)
}

#[tokio::test(start_paused = true)]
async fn a_partition_whose_last_frame_is_damaged_moves_with_all_that_is_whole() {
    // Found before the partition stops, in what is not sealed; or in the copy of what is.
    for (payload, is_told) in [(short as fn(usize) -> String, true), (long, false)] {
        let cluster = cluster(1).await;
        put_all(&cluster, (0..3).map(payload)).await;
        damage_the_end(&cluster);
        begin(&cluster, "c", 7);
        until_at(&cluster, "c").await;
        put(cluster.node("a"), &payload(3)).await;
        cluster.settle_down().await;
        let taken = take(cluster.node("a"), 10, 0).await;
        assert_eq!(
            taken.iter().map(|delivery| delivery.offset.0).collect::<Vec<_>>(),
            [0, 1, 3],
            "the damaged one is stepped over, as ever"
        );
        let told = cluster.node("b").broker.metrics().damage_found.get();
        assert_eq!(told > 0, is_told, "by its owner; in a copy, the target's log names it, and its scrubber will");
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_whose_log_makes_no_whole_copy_ends_the_move_before_it_has_stopped_and_says_why() {
    let cluster = cluster(1).await;
    put_all(&cluster, (0..3).map(short)).await;
    damage_the_end(&cluster);
    // Nor can it begin a segment behind the damage.
    disk(&cluster, "b").inject(DiskFault {
        op: Op::Create,
        path_contains: "/p00001/".into(),
        after: 0,
        times: 1_000,
        kind: FaultKind::Eio,
    });
    begin(&cluster, "c", 7);
    until("the move has ended", || is_back(&cluster)).await;
    until("it is told", || !reasons(&cluster, "b").is_empty()).await;
    assert_eq!(reasons(&cluster, "b"), ["the last published frames of the log are damaged"]);
    until("nothing is left of it", || dirs(&cluster, "c").is_empty()).await;
    disk(&cluster, "b").clear_faults();
    put(cluster.node("a"), &long(3)).await;
    cluster.settle_down().await;
    let taken = take(cluster.node("a"), 10, 0).await;
    assert_eq!(taken.last().map(|delivery| delivery.offset.0), Some(3), "its owner goes on");
    assert_eq!(cluster.node("b").broker.metrics().move_freeze_seconds.count(), 0, "and has never stopped");
}

#[tokio::test(start_paused = true)]
async fn a_target_that_finds_no_whole_copy_at_a_stopped_owner_ends_the_move() {
    let mut cluster = cluster(1).await;
    put_all(&cluster, (0..3).map(short)).await;
    cluster.net.fail_op("c", "b", PeerOp::OWNER_FREEZE, Fault::LoseAnswers);
    begin(&cluster, "c", 7);
    until_frozen(&cluster).await;
    // What was copied of the last segment is begun anew in the next life of the target, and is damaged by then.
    cluster.kill("c");
    damage_the_end(&cluster);
    cluster.net.heal();
    cluster.revive("c").await;
    until("the move has ended", || is_back(&cluster)).await;
    until("it is told", || !reasons(&cluster, "c").is_empty()).await;
    assert!(reasons(&cluster, "c")[0].contains("it does not end where the owner has stopped"), "{:?}", reasons(&cluster, "c"));
    put(cluster.node("a"), &long(3)).await;
    cluster.settle_down().await;
    let taken = take(cluster.node("a"), 10, 0).await;
    assert_eq!(taken.last().map(|delivery| delivery.offset.0), Some(3), "its owner goes on");
}

/// Every such operation at this node fails from now on.
fn fail_files(cluster: &Cluster, node: &str, op: Op, path: &str) {
    let fault = DiskFault { op, path_contains: path.into(), after: 0, times: 1_000_000, kind: FaultKind::Eio };
    disk(cluster, node).inject(fault);
}

#[tokio::test(start_paused = true)]
async fn a_move_whose_files_cannot_be_read_or_written_for_a_while_ends_wherever_they_are() {
    let target = "the copy cannot be written";
    let owner = "the owner cannot read or write its files";
    for (node, op, path, reason) in [
        ("c", Op::Write, "/p00001.", target),
        ("c", Op::Sync, "/p00001.", target),
        ("c", Op::List, "/topics/", "the directory of the topic cannot be changed"),
        ("b", Op::Open, "/p00001/", owner),
        ("b", Op::Read, "/p00001/", owner),
        // It stops, cannot say so, and goes on, again and again.
        ("b", Op::Rename, "/p00001/copy.cell", owner),
    ] {
        let cluster = cluster(1).await;
        put_each(&cluster, 3).await;
        fail_files(&cluster, node, op, path);
        begin(&cluster, "c", 7);
        until(&format!("the move has ended: {op:?} {path}"), || is_back(&cluster)).await;
        until("it is told", || !reasons(&cluster, "c").is_empty()).await;
        let reasons = reasons(&cluster, "c");
        assert!(reasons.len() == 1 && reasons[0].contains(reason), "{op:?} {path}: {reasons:?}");
        disk(&cluster, node).clear_faults();
        put(cluster.node("a"), &long(3)).await;
        cluster.settle_down().await;
        assert_eq!(stored(&cluster).await.len(), 4, "{op:?} {path}: its owner goes on");
        begin(&cluster, "c", 8);
        until_at(&cluster, "c").await;
        assert_eq!(stored(&cluster).await.len(), 4, "{op:?} {path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_segment_that_cannot_be_sealed_for_its_move_costs_no_commit_its_answer() {
    for op in [Op::SetLen, Op::Sync] {
        let cluster = cluster(1).await;
        put_each(&cluster, 3).await;
        // What is written to ends where its frames end, and that is synced, once it is sealed.
        let name = disk(&cluster, "b").list(format!("/data/topics/default/{ID}/p00001").as_ref()).expect("listed");
        let log = name.into_iter().map(|entry| entry.name).find(|name| name.ends_with(".log")).expect("a segment");
        disk(&cluster, "b").inject(DiskFault { op, path_contains: format!("/p00001/{log}"), after: 0, times: 1, kind: FaultKind::Eio });
        begin(&cluster, "c", 7);
        until("it could not be sealed", || cluster.node("c").broker.moves().iter().any(|moving| moving.failures > 0)).await;
        commit(cluster.node("b"), &long(3)).await;
        until_at(&cluster, "c").await;
        assert_eq!(stored(&cluster).await.len(), 4, "{op:?}");
    }
}

/// A cluster with so many messages, whose node `c` keeps 60,000 bytes of its disk free.
async fn with_a_reserve(messages: usize) -> Cluster {
    let mut cluster = Cluster::start_lagging(1).await;
    cluster.members[2].config.disk_reserve_bytes = 60_000;
    cluster.kill("c");
    cluster.revive("c").await;
    cluster.catalog.put(spread());
    seen_by_all().await;
    put_each(&cluster, messages).await;
    cluster
}

#[tokio::test(start_paused = true)]
async fn a_node_without_room_for_a_copy_beside_its_reserve_takes_none() {
    let cluster = with_a_reserve(20).await;
    let disk = disk(&cluster, "c").clone();
    let used = disk.space("/data".as_ref()).expect("told");
    disk.set_capacity(used.total - used.available + 150_000);
    // All of it fits, and then less than the reserve is free.
    begin(&cluster, "c", 7);
    until("the move has ended", || is_back(&cluster)).await;
    until("it is told", || !reasons(&cluster, "c").is_empty()).await;
    assert!(reasons(&cluster, "c")[0].contains("are free on this node's disk"), "{:?}", reasons(&cluster, "c"));
    assert_eq!(cluster.node("c").broker.metrics().move_bytes_copied.get(), 0, "it was known before");
    assert_eq!(stored(&cluster).await.len(), 20);
    disk.set_capacity(used.total);
    begin(&cluster, "c", 8);
    until_at(&cluster, "c").await;
    assert_eq!(stored(&cluster).await.len(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_finds_the_room_gone_ends_and_leaves_nothing_behind() {
    let cluster = with_a_reserve(60).await;
    let disk = disk(&cluster, "c").clone();
    cluster.net.fail_op("c", "b", PeerOp::OWNER_COPY, Fault::Delay(Duration::from_millis(500)));
    begin(&cluster, "c", 7);
    until("a part has come", || cluster.node("c").broker.moves().iter().any(|moving| moving.copied_bytes > 50_000)).await;
    // Somebody else fills the disk.
    let used = disk.space("/data".as_ref()).expect("told");
    disk.set_capacity(used.total - used.available + 30_000);
    until("the move has ended", || is_back(&cluster)).await;
    until("it is told", || !reasons(&cluster, "c").is_empty()).await;
    until("nothing is left of it", || dirs(&cluster, "c").is_empty()).await;
    sleep(Duration::from_secs(1)).await;
    assert!(disk.list("/data/quarantine".as_ref()).expect("listed").is_empty(), "not in quarantine either");
    assert_eq!(stored(&cluster).await.len(), 60);
}

/// The catalog as it was when the partition had stopped at node b, on its way to node c.
fn stopped_on_its_way(end: u64) -> TopicRecord {
    let mut record = spread();
    record.owners[1].moving = Some(Move { to: node_id("c"), token: MoveToken(7), frozen: Some(Frozen { end: Offset(end) }) });
    record
}

#[tokio::test(start_paused = true)]
async fn what_a_node_has_served_already_it_takes_over_again_when_the_metadata_know_only_that_it_was_to_come() {
    let mut cluster = cluster(1).await;
    put_each(&cluster, 3).await;
    begin(&cluster, "c", 7);
    until_at(&cluster, "c").await;
    let after = owner(&cluster.catalog);
    put(cluster.node("c"), &long(3)).await;
    cluster.settle_down().await;
    assert_eq!(take(cluster.node("c"), 1, 0).await.len(), 1);
    until("the former owner has nothing of it", || dirs(&cluster, "b").is_empty()).await;
    // The metadata are put back to before the change of owner.
    NODES.into_iter().for_each(|node| cluster.kill(node));
    cluster.catalog.put(stopped_on_its_way(3));
    for node in NODES {
        cluster.revive(node).await;
    }
    until_at(&cluster, "c").await;
    assert_eq!(owner(&cluster.catalog), after);
    assert_eq!(stored(&cluster).await.len(), 4, "with what came after the change that the metadata have forgotten");
    sleep(Duration::from_secs(60)).await;
    assert_eq!((dirs(&cluster, "b").len(), dirs(&cluster, "c").len()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_has_handed_on_what_it_served_does_not_take_it_over_again_and_its_first_owner_begins_no_empty_log() {
    let mut cluster = cluster(1).await;
    put_each(&cluster, 3).await;
    begin(&cluster, "c", 7);
    until_at(&cluster, "c").await;
    until("the former owner has nothing of it", || dirs(&cluster, "b").is_empty()).await;
    // Its copy stays there, for want of a leader who confirms that it may go.
    cluster.catalog.set_leaderless(true);
    begin(&cluster, "a", 8);
    until_at(&cluster, "a").await;
    put(cluster.node("a"), &long(3)).await;
    cluster.settle_down().await;
    NODES.into_iter().for_each(|node| cluster.kill(node));
    cluster.catalog.put(stopped_on_its_way(3));
    for node in NODES {
        cluster.revive(node).await;
    }
    cluster.catalog.set_leaderless(false);
    sleep(Duration::from_secs(120)).await;
    assert_eq!(owner(&cluster.catalog), stopped_on_its_way(3).owners[1], "it waits for somebody who knows more");
    assert_eq!(NODES.map(|node| dirs(&cluster, node).len()), [1, 0, 1], "and the newest copy stays where it is");
}
