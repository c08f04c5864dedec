//! Another life of a metastore: from a backup, and from what one survivor has.

use std::sync::Arc;

use veena_contract::{Catalog, CatalogWriter, LeaderPort, LineageId, LogIndex, TopicId};
use veena_metastore::{Backup, MemLog, MemberError, Metastore, MetastoreConfig, StartError, Survivor};

use crate::cluster::{Listening, given_to, open_in, open_with, peer, runtime, stop};
use crate::replica::{Counter, create, delete};

fn directory(n: u64) -> String {
    format!("dir-{n}")
}

/// Three voters with directories, each of which owns the topic of its number.
async fn three_owners() -> (Listening, [MemLog; 3], Vec<Metastore>) {
    let listening = Listening::default();
    let logs = [MemLog::new(), MemLog::new(), MemLog::new()];
    let mut nodes = Vec::new();
    for n in 1..=3 {
        let node = open_in(&listening, n, peer(n), &logs[nodes.len()], &directory(n)).await;
        if n == 1 {
            node.found(&runtime(n)).await.expect("founded");
        } else {
            node.enter(&[peer(1)]).await.expect("entered");
            node.promote(&peer(n).node).await.expect("promoted");
        }
        node.propose(given_to(n, &peer(n).node)).await.expect("made");
        nodes.push(node);
    }
    (listening, logs, nodes)
}

fn founder(n: u64) -> MetastoreConfig {
    let mut config = MetastoreConfig::new(peer(n).node);
    config.consensus.directory = Arc::from(directory(n));
    config.consensus.addr = peer(n).addr;
    config
}

async fn begin(backup: &Backup, n: u64) -> (MemLog, LineageId) {
    let log = MemLog::new();
    let lineage = backup.found(log.clone(), &founder(n).consensus, &Counter::new(100), None).await.expect("founded");
    (log, lineage)
}

#[tokio::test(start_paused = true)]
async fn a_backup_from_any_node_holds_all_that_was_committed_and_begins_another_life() {
    let (listening, _logs, nodes) = three_owners().await;
    let mut backups = Vec::new();
    for (n, node) in (11..).zip(&nodes) {
        nodes[0].propose(create(n)).await.expect("taken");
        let backup = Backup::decode(&node.backup().await.expect("a copy")).expect("readable");
        assert!(backup.state.view().topic_by_id(TopicId(n)).is_some(), "what was answered before is in it");
        assert_eq!((backup.lineage().ok(), backup.members.len()), (nodes[0].lineage(), 3));
        backups.push(backup);
    }
    nodes[0].propose(create(20)).await.expect("taken");
    nodes[0].propose(delete(11)).await.expect("taken");
    let former = nodes[0].lineage().expect("named");
    for (n, node) in (1..).zip(&nodes) {
        stop(&listening, n, node).await;
    }

    let backup = backups.pop().expect("three");
    let (log, lineage) = begin(&backup, 1).await;
    assert_ne!(lineage, former);
    for _ in 0..2 {
        let first = open_with(&listening, 1, founder(1), &log).await;
        assert!(first.log_end_at_start() > backup.applied(), "positions go on");
        first.found(&runtime(1)).await.expect("it needs nobody");
        assert_eq!((first.lineage(), first.is_only_voter()), (Some(lineage), true));
        let view = first.view();
        assert_eq!([11, 12, 13, 20].map(|n| view.topic_by_id(TopicId(n)).is_some()), [true, true, true, false]);
        let [life] = &first.former()[..] else { panic!("one former life") };
        assert_eq!((life.lineage, life.at, life.members.len()), (former, backup.applied(), 3));
        assert!(first.is_directory_known());
        stop(&listening, 1, &first).await;
    }
    // Of that another backup is taken, and a third life begun.
    let first = open_with(&listening, 1, founder(1), &log).await;
    first.found(&runtime(1)).await.expect("founded");
    let backup = Backup::decode(&first.backup().await.expect("a copy")).expect("readable");
    stop(&listening, 1, &first).await;
    let (log, _) = begin(&backup, 1).await;
    let third = open_with(&listening, 1, founder(1), &log).await;
    third.found(&runtime(1)).await.expect("founded");
    assert_eq!(third.former().iter().map(|life| life.lineage).collect::<Vec<_>>(), [former, lineage]);
}

#[tokio::test(start_paused = true)]
async fn a_metastore_begins_only_in_an_empty_log() {
    let (_listening, logs, nodes) = three_owners().await;
    let backup = Backup::decode(&nodes[1].backup().await.expect("a copy")).expect("readable");
    nodes[0].shutdown().await;
    let error = backup.found(logs[0].clone(), &founder(1).consensus, &Counter::new(1), None).await.expect_err("there is one");
    assert!(error.to_string().contains("not empty"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn without_a_leader_there_is_no_backup() {
    let (listening, _logs, nodes) = three_owners().await;
    stop(&listening, 1, &nodes[0]).await;
    stop(&listening, 2, &nodes[1]).await;
    nodes[2].backup().await.expect_err("it might miss what was answered");
}

#[tokio::test(start_paused = true)]
async fn a_survivor_goes_on_with_all_its_log_holds_and_the_others_join_anew_with_their_directories() {
    let (listening, logs, nodes) = three_owners().await;
    let former = nodes[0].lineage().expect("named");
    stop(&listening, 3, &nodes[2]).await;
    nodes[1].propose(create(11)).await.expect("two of three agree");
    for n in [1, 2] {
        stop(&listening, n, &nodes[usize::try_from(n).expect("small") - 1]).await;
    }
    // What is known to be committed is written and not synced: it may be gone, and what was answered must not be.
    logs[1].lose_committed(3);
    let Survivor { backup, committed, voters } = Backup::read(logs[1].clone()).await.expect("readable").expect("it knows something");
    assert!(committed < backup.applied() && voters.len() == 3);
    assert!(backup.state.view().topic_by_id(TopicId(11)).is_some(), "it was answered");

    let (log, _) = begin(&backup, 2).await;
    let second = open_with(&listening, 2, founder(2), &log).await;
    second.found(&runtime(2)).await.expect("it needs nobody");
    second.propose(create(12)).await.expect("it takes changes");
    for owner in 1..=3 {
        let topic = second.view().topic_by_id(TopicId(owner)).cloned().expect("known");
        assert!(topic.owners.iter().all(|named| named.node == peer(owner).node), "who is gone stays named");
    }
    // A new directory under the name of an owner would show its partitions empty; so would one that comes from elsewhere.
    for (directory, left) in [("dir-9", None), ("", Some(former)), ("dir-9", Some(former)), ("dir-3", Some(LineageId(77)))] {
        let mut config = founder(3);
        (config.consensus.directory, config.consensus.left) = (Arc::from(directory), left);
        let wiped = open_with(&listening, 3, config, &MemLog::new()).await;
        let error = wiped.enter(&[peer(2)]).await.expect_err("not its own directory");
        assert!(matches!(&error, StartError::Member(MemberError::Refused { .. })), "{error}");
        stop(&listening, 3, &wiped).await;
    }
    let mut config = founder(3);
    config.consensus.left = Some(former);
    let third = open_with(&listening, 3, config, &MemLog::new()).await;
    third.enter(&[peer(2)]).await.expect("the directory that it had");
    third.promote(&peer(3).node).await.expect("promoted");
    third.propose(create(13)).await.expect("taken");
    assert_eq!((third.lineage(), third.former().len()), (second.lineage(), 1));
    assert_eq!(
        third.view().by_id,
        second.confirmed_view().await.expect("confirmed").by_id,
        "who joins gets what was before the new log, too"
    );
    let mut config = founder(4);
    config.consensus.left = Some(LineageId(77));
    let stranger = open_with(&listening, 4, config, &MemLog::new()).await;
    let error = stranger.enter(&[peer(2)]).await.expect_err("it has messages of another cluster");
    assert!(error.to_string().contains("no heir"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_empty_log_is_nothing_to_go_on_from() {
    assert!(Backup::read(MemLog::new()).await.expect("readable").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_backup_that_was_cut_or_changed_anywhere_is_refused() {
    let (_listening, _logs, nodes) = three_owners().await;
    let bytes = nodes[0].backup().await.expect("a copy");
    let whole = Backup::decode(&bytes).expect("readable");
    assert_eq!(whole.encode().expect("written"), bytes, "it is written as it was read");
    assert!(whole.applied() > LogIndex(0));
    for at in 0..bytes.len() {
        assert!(Backup::decode(&bytes[..at]).is_err(), "cut at {at}");
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        assert!(Backup::decode(&changed).is_err(), "changed at {at}");
    }
    assert!(Backup::decode(&[bytes.as_slice(), b"x"].concat()).is_err());
}
