//! The metadata of several nodes: copied, restored, recovered from one survivor; and who comes back into it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use veena_loadtest_checker::How;
use veena_loadtest_driver::api::Client;
use veena_loadtest_driver::node::{NodeConfig, NodeProcess};

use crate::cluster::{Cluster, config, confirmed_status_of, create_until_there, members, name, peer_addr, refused, with};
use crate::support::{BIN, assert_empty, consume_exactly, handles, produce_all, start, texts, until};

/// What says that a directory is to be taken out of its cluster.
const LEAVE: &str = "--yes-leave-its-cluster";

fn veena(words: &[&str]) -> Output {
    Command::new(BIN).args(words).output().expect("it runs")
}

/// What a command that is to succeed says, as JSON.
fn told(words: &[&str]) -> Value {
    let output = veena(&[words, &["--json"]].concat());
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// What a command that is to fail says, and how it ends.
fn failed(words: &[&str]) -> (Option<i32>, String) {
    let output = veena(words);
    assert!(!output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

fn shown(path: &Path) -> &str {
    path.to_str().expect("text")
}

fn data_dir(cluster: &Cluster, at: usize) -> PathBuf {
    cluster.nodes[at].config().data_dir.clone()
}

/// A node that founds nothing, and joins what runs at another.
fn joins(config: &NodeConfig, other: usize, cluster: &Cluster) -> NodeConfig {
    let config = with(config.clone(), "VEENA_CLUSTER_BOOTSTRAP", "false");
    with(config, "VEENA_CLUSTER_JOIN", &format!("{}@{}", name(other + 1), cluster.peers[other]))
}

async fn send(cluster: &Cluster, topic: &str, count: u32) -> Vec<String> {
    let mut sent = Vec::new();
    for number in 0..count {
        let text = format!("{topic} {number}");
        cluster.client(0).produce_to(topic, number % 3, text.as_bytes()).await.expect("202");
        sent.push(text);
    }
    sent
}

async fn all_committed(cluster: &Cluster, topic: &str, count: u64) {
    let committed = || async {
        let numbers = cluster.client(0).describe(topic).await;
        numbers.is_ok_and(|numbers| numbers.iter().map(|partition| partition.high_watermark).sum::<u64>() == count)
    };
    until("everything is at its owner", committed).await;
}

/// What is set aside for good below a data directory, and does begin so.
fn kept(data: &Path, start: &str) -> Vec<PathBuf> {
    let Ok(entries) = data.join("quarantine").read_dir() else { return Vec::new() };
    let paths = entries.map(|entry| entry.expect("listed").path());
    paths.filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(start))).collect()
}

#[tokio::test]
async fn a_cluster_that_is_restored_from_a_backup_goes_on_with_what_that_knows_and_sets_the_rest_aside() {
    let mut cluster = Cluster::of(3).await;
    create_until_there(&cluster.nodes[0], "kept", 3).await;
    let mut sent = send(&cluster, "kept", 30).await;
    all_committed(&cluster, "kept", 30).await;
    let acked = consume_exactly(&mut cluster.client(1), "kept", 6).await;
    for handle in handles(&acked) {
        assert_eq!(cluster.client(2).settle("kept", &handle, How::Ack).await.expect("an answer").status, 204);
    }
    sent.retain(|text| !texts(&acked).contains(text));

    let file = cluster.dir.path().join("metadata.backup");
    let server = cluster.nodes[2].addr().to_string();
    let facts = told(&["cluster", "backup", "-s", &server, "--out", shown(&file)]);
    assert_eq!(facts["topics"], 1);
    let (code, text) = failed(&["cluster", "backup", "-s", &server, "--out", shown(&file)]);
    assert!(code == Some(1) && text.contains("cannot write"), "a file that is there is not replaced: {text}");
    create_until_there(&cluster.nodes[0], "later", 3).await;
    send(&cluster, "later", 3).await;
    all_committed(&cluster, "later", 3).await;

    let dirs = [0, 1, 2].map(|at| data_dir(&cluster, at));
    let restore = ["cluster", "restore", "--data-dir", shown(&dirs[0]), "--from", shown(&file)];
    assert!(failed(&restore).1.contains("stop the node first"));
    cluster.stop_all().await;
    let garbled = cluster.dir.path().join("garbled");
    let mut bytes = std::fs::read(&file).expect("readable");
    *bytes.last_mut().expect("not empty") ^= 1;
    std::fs::write(&garbled, bytes).expect("written");
    let (_, text) = failed(&["cluster", "restore", "--data-dir", shown(&dirs[0]), "--from", shown(&garbled)]);
    assert!(text.contains("checksum"), "{text}");
    let begun = told(&restore);
    assert_ne!(begun["begun"], facts["lineage"]);
    assert_eq!((&begun["owned_elsewhere"]["node-2"], &begun["owned_elsewhere"]["node-3"]), (&1.into(), &1.into()));
    assert_eq!(kept(&dirs[0], "kept-").len(), 1, "the metadata that was there");
    let mistyped = cluster.dir.path().join("mistyped");
    let (_, text) = failed(&["cluster", "restore", "--data-dir", shown(&mistyped), "--from", shown(&file)]);
    assert!(text.contains("--node-id") && !mistyped.exists(), "{text}");
    // Under the name of an owner, in another directory, its partitions would look empty.
    let empty = cluster.dir.path().join("empty");
    let (_, text) = failed(&["cluster", "restore", "--data-dir", shown(&empty), "--from", shown(&file), "--node-id", "node-2"]);
    assert!(text.contains("this is not its data directory"), "{text}");

    cluster.nodes[0].start_again().await.expect("it needs nobody");
    assert_eq!(confirmed_status_of(&cluster.nodes[0], "kept").await, 200);
    assert_eq!(confirmed_status_of(&cluster.nodes[0], "later").await, 404);
    assert_eq!(members(&cluster.nodes[0]).await.len(), 1);
    let text = refused(cluster.nodes[1].config()).await;
    assert!(text.contains("veena cluster rejoin"), "{text}");
    let text = {
        told(&["cluster", "rejoin", "--data-dir", shown(&dirs[1]), LEAVE]);
        let founds = with(cluster.nodes[1].config().clone(), "VEENA_CLUSTER_BOOTSTRAP", "true");
        refused(&with(founds, "VEENA_CLUSTER_JOIN", "")).await
    };
    assert!(text.contains("belongs to no cluster yet"), "what it has left has an heir, and it founds none: {text}");
    for at in [1, 2] {
        assert_eq!(told(&["cluster", "rejoin", "--data-dir", shown(&dirs[at]), LEAVE])["left"], facts["lineage"]);
        cluster.nodes[at].start_again().await.expect("it joins anew");
    }
    let all_vote = || async { members(&cluster.nodes[0]).await.iter().filter(|member| member.voter == Some(true)).count() == 3 };
    until("all vote", all_vote).await;
    let mut read = texts(&consume_exactly(&mut cluster.client(1), "kept", sent.len()).await);
    read.sort_unstable();
    sent.sort_unstable();
    assert_eq!(read, sent, "each once, and what was acked not again");
    assert_empty(&mut cluster.client(2), "kept").await;
    for dir in &dirs {
        let aside = kept(dir, "kept-life-");
        let [aside] = aside.as_slice() else { panic!("{}: {aside:?}", dir.display()) };
        let topics = aside.join("topics/default").read_dir().expect("a topic was not known").count();
        assert!(topics == 1 && aside.join("ingress").exists(), "{}", aside.display());
    }
    // They are one cluster, also after the next start.
    create_until_there(&cluster.nodes[2], "later", 3).await;
    cluster.stop_all().await;
    cluster.start_all().await;
    assert_eq!(confirmed_status_of(&cluster.nodes[1], "later").await, 200);
}

#[tokio::test]
async fn one_survivor_of_three_goes_on_alone_when_it_is_told_to() {
    let mut cluster = Cluster::of(3).await;
    create_until_there(&cluster.nodes[0], "kept", 3).await;
    let sent = send(&cluster, "kept", 9).await;
    all_committed(&cluster, "kept", 9).await;
    for node in &mut cluster.nodes {
        node.kill().expect("killed");
    }
    let (survivor, dirs) = (1, [0, 1, 2].map(|at| data_dir(&cluster, at)));
    std::fs::remove_dir_all(&dirs[2]).expect("removed");
    // Its disk is away, and not lost, as it turns out.
    let away = cluster.dir.path().join("away");
    std::fs::rename(&dirs[0], &away).expect("renamed");

    let recover = ["cluster", "recover", "--data-dir", shown(&dirs[survivor])];
    let consents = [recover.as_slice(), &["--yes-lose-what-only-the-others-know"]].concat();
    let (code, text) = failed(&recover);
    assert!(code == Some(2) && text.contains("up to position") && text.contains("node-1, node-2, node-3"), "{text}");
    let (_, text) = failed(&["cluster", "recover", "--data-dir", shown(&dirs[2])]);
    assert!(text.contains("not the data directory of a node"), "{text}");
    let begun = told(&consents);
    assert_eq!((&begun["topics"], &begun["owned_elsewhere"]["node-1"]), (&1.into(), &1.into()));
    assert!(failed(&consents).1.contains("is the only voter"), "it is done");

    cluster.nodes[survivor].start_again().await.expect("it needs nobody");
    let client = veena_client::Client::new(&format!("http://{}", cluster.nodes[survivor].addr())).expect("an address");
    let stats = client.topic("kept", None).await.expect("described").partition_stats;
    let mut owners: Vec<_> = stats.iter().map(|stats| (stats.owner_node.clone().expect("named"), stats.status.clone())).collect();
    owners.sort_unstable();
    assert_eq!(owners.iter().map(|(owner, _)| owner.as_str()).collect::<Vec<_>>(), ["node-1", "node-2", "node-3"]);
    assert!(owners.iter().all(|(owner, status)| (owner == "node-2") == (status.as_deref() == Some("ok"))), "{owners:?}");
    create_until_there(&cluster.nodes[survivor], "new", 3).await;
    produce_all(&mut cluster.client(survivor), "new", &["hello".to_owned()]).await;
    assert_eq!(texts(&consume_exactly(&mut cluster.client(survivor), "new", 1).await), ["hello"]);

    // Who comes with a new directory under the name of an owner is not let in; under another name it is.
    let told_so = refused(&joins(cluster.nodes[2].config(), survivor, &cluster)).await;
    assert!(told_so.contains("partitions of this cluster belong to node-3"), "{told_so}");
    let fourth = joins(&config(cluster.dir.path(), "node-4", peer_addr()), survivor, &cluster);
    let fourth = NodeProcess::start(fourth).await.expect("it joins");
    assert_eq!(confirmed_status_of(&fourth, "new").await, 200);

    // The disk that was away comes back: not as the voter that it was, but as itself.
    std::fs::rename(&away, &dirs[0]).expect("renamed");
    let first = joins(cluster.nodes[0].config(), survivor, &cluster);
    let told_so = refused(&first).await;
    assert!(told_so.contains("veena cluster rejoin"), "{told_so}");
    told(&["cluster", "rejoin", "--data-dir", shown(&dirs[0]), LEAVE]);
    *cluster.nodes[0].config_mut() = first;
    cluster.nodes[0].start_again().await.expect("it joins anew");
    let mut read = texts(&consume_exactly(&mut cluster.client(0), "kept", 6).await);
    read.sort_unstable();
    let of_living = |number: &usize| {
        let index = u64::try_from(number % 3).expect("small");
        stats.iter().any(|stats| stats.index == index && stats.owner_node.as_deref() != Some("node-3"))
    };
    assert_eq!(read, (0..sent.len()).filter(of_living).map(|number| sent[number].clone()).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_node_alone_is_restored_in_its_own_directory_and_in_an_empty_one() {
    let dir = crate::support::scratch();
    let mut node = start(&dir.path().join("node")).await;
    let mut client = Client::new(node.addr());
    crate::support::create_wide(&mut client, "kept", 1, 30_000).await;
    produce_all(&mut client, "kept", &["hello".to_owned()]).await;
    let file = dir.path().join("metadata.backup");
    told(&["cluster", "backup", "-s", &node.addr().to_string(), "--out", shown(&file)]);
    node.stop(crate::support::STOP_DEADLINE).await.expect("it stops");
    std::fs::remove_dir_all(node.config().data_dir.join("metastore")).expect("removed");
    told(&["cluster", "restore", "--data-dir", shown(&node.config().data_dir), "--from", shown(&file)]);
    node.start_again().await.expect("it starts");
    assert_eq!(texts(&consume_exactly(&mut client, "kept", 1).await), ["hello"]);
    node.stop(crate::support::STOP_DEADLINE).await.expect("it stops");

    let elsewhere = dir.path().join("elsewhere");
    told(&["cluster", "restore", "--data-dir", shown(&elsewhere.join("data")), "--from", shown(&file), "--node-id", "other"]);
    let other = start(&elsewhere).await;
    assert_empty(&mut Client::new(other.addr()), "kept").await;
    // A directory of something else is not taken for one of this.
    let strange = dir.path().join("strange");
    start(&strange).await.stop(crate::support::STOP_DEADLINE).await.expect("it stops");
    let (_, text) = failed(&["cluster", "restore", "--data-dir", shown(&strange.join("data")), "--from", shown(&file)]);
    assert!(text.contains("the backup is of"), "{text}");
}

#[tokio::test]
async fn a_member_that_needs_no_other_cluster_leaves_its_own_only_when_that_is_meant_and_can_be_put_back() {
    let mut cluster = Cluster::of(2).await;
    create_until_there(&cluster.nodes[0], "kept", 2).await;
    let dir = data_dir(&cluster, 1);
    cluster.nodes[1].stop(crate::support::STOP_DEADLINE).await.expect("it stops");
    let (code, text) = failed(&["cluster", "rejoin", "--data-dir", shown(&dir)]);
    assert!(code == Some(2) && text.contains("Nothing was done") && dir.join("metastore").exists(), "{text}");
    let left = veena(&["cluster", "rejoin", "--data-dir", shown(&dir), LEAVE]);
    let text = String::from_utf8(left.stdout).expect("text");
    let undo = text.split_once(": mv ").and_then(|(_, rest)| rest.split_once('\n')).expect("told").0;
    let (from, to) = undo.split_once(' ').expect("two paths");
    std::fs::rename(from, to).expect("put back");
    // It has a name, which need not be said again.
    let mut config = cluster.nodes[1].config().clone();
    let named = config.flags.iter().position(|flag| flag == "--node-id").expect("said so far");
    config.flags.drain(named..named + 2);
    let back = NodeProcess::start(config).await.expect("it is a member as before");
    assert_eq!(confirmed_status_of(&back, "kept").await, 200);
    assert_eq!(members(&back).await.len(), 2);
}

#[tokio::test]
async fn a_founder_that_has_lost_its_directory_founds_no_second_cluster() {
    let mut cluster = Cluster::of(3).await;
    create_until_there(&cluster.nodes[0], "kept", 3).await;
    cluster.nodes[0].kill().expect("killed");
    std::fs::remove_dir_all(data_dir(&cluster, 0)).expect("removed");
    let alone = cluster.nodes[0].config().clone();
    let text = refused(&alone).await;
    assert!(text.contains("is in a cluster already"), "it knows nobody, and is called by them: {text}");
    std::fs::remove_dir_all(data_dir(&cluster, 0)).expect("it has made one");
    let knowing = with(alone, "VEENA_CLUSTER_JOIN", &format!("node-2@{}", cluster.peers[1]));
    let text = refused(&knowing).await;
    assert!(text.contains("it has lost its disk: put its data directory back"), "{text}");
    create_until_there(&cluster.nodes[1], "goes-on", 3).await;
}

#[tokio::test]
async fn nodes_with_the_same_settings_that_start_at_once_are_one_cluster() {
    let dir = crate::support::scratch();
    let peers = [peer_addr(), peer_addr(), peer_addr()];
    let known = |me: usize| {
        let others = (0..3).filter(|at| *at != me).map(|at| format!("{}@{}", name(at + 1), peers[at]));
        others.collect::<Vec<_>>().join(",")
    };
    let of = |at: usize| with(config(dir.path(), &name(at + 1), peers[at]), "VEENA_CLUSTER_JOIN", &known(at));
    let founder = with(of(0), "VEENA_CLUSTER_BOOTSTRAP", "true");
    let (first, second, third) = tokio::join!(NodeProcess::start(founder), NodeProcess::start(of(1)), NodeProcess::start(of(2)));
    let nodes = [first, second, third].map(|node| node.expect("it starts"));
    until("they are one", || async { members(&nodes[2]).await.len() == 3 }).await;
}
