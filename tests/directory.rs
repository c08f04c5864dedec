//! One data directory has one process.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use veena_loadtest_driver::api::Client;
use veena_loadtest_driver::node::{NodeConfig, NodeProcess, free_addr};

use crate::support::{BIN, STOP_DEADLINE, consume_exactly, create_narrow, produce_all, scratch, start, until};

fn signal(node: &NodeProcess, which: &str) {
    let status = Command::new("kill").args([which, &node.pid().to_string()]).status().expect("kill runs");
    assert!(status.success(), "kill {which}");
}

/// What each thread of a node does.
fn states(node: &NodeProcess) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{}/task", node.pid())).expect("the node lives");
    let stats = threads.map(|thread| std::fs::read_to_string(thread.expect("listed").path().join("stat")).expect("readable"));
    // Behind the name, which may hold anything.
    stats.map(|stat| stat.rsplit(") ").next().and_then(|rest| rest.split(' ').next()).expect("a state").to_owned()).collect()
}

/// What is below a directory: bytes and the time of the last change.
fn files(dir: &Path) -> BTreeMap<PathBuf, (SystemTime, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(dir).expect("listed") {
            let path = entry.expect("listed").path();
            let changed = path.metadata().and_then(|metadata| metadata.modified()).expect("told");
            if path.is_dir() {
                found.insert(path.clone(), (changed, Vec::new()));
                left.push(path);
            } else {
                found.insert(path.clone(), (changed, std::fs::read(&path).expect("readable")));
            }
        }
    }
    found
}

#[tokio::test]
async fn what_a_node_keeps_is_its_users_alone_also_in_a_directory_that_was_open_to_others() {
    let dir = scratch();
    let data = NodeConfig::in_dir(Path::new(BIN), dir.path()).data_dir;
    for folder in [data.clone(), data.join("metastore"), data.join("topics")] {
        std::fs::create_dir_all(&folder).expect("made");
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).expect("opened to others");
    }
    let mut node = start(dir.path()).await;
    let mut client = Client::new(node.addr());
    create_narrow(&mut client, "orders", 30_000).await;
    // What a running node has there may be gone before it is looked at.
    node.stop(STOP_DEADLINE).await.expect("it stops");
    for path in files(&data).keys() {
        let mode = std::fs::symlink_metadata(path).expect("there").permissions().mode();
        assert!(mode & 0o077 == 0, "{} has mode {mode:o}", path.display());
    }
}

#[tokio::test]
async fn a_second_process_on_one_data_directory_refuses_to_start_and_leaves_the_first_alone() {
    let dir = scratch();
    let node = start(dir.path()).await;
    let mut client = Client::new(node.addr());
    create_narrow(&mut client, "orders", 30_000).await;
    let mut second = NodeConfig::in_dir(Path::new(BIN), dir.path());
    second.log = dir.path().join("second.log");
    // While the first one stands still, whatever changes was changed by the second.
    signal(&node, "-STOP");
    until("all its threads stand still", || async { states(&node).iter().all(|state| state == "T") }).await;
    let before = files(&second.data_dir);
    let status = second.run_to_end(free_addr().expect("a free port"), Duration::from_secs(20)).await.expect("it ends by itself");
    assert!(files(&second.data_dir) == before, "it touched a file");
    signal(&node, "-CONT");
    assert!(!status.success(), "{status}");
    let told = std::fs::read_to_string(&second.log).expect("a log");
    let shown = second.data_dir.display().to_string();
    assert!(told.contains("in use by another process") && told.contains(&shown), "it must say which directory is in use: {told}");
    produce_all(&mut client, "orders", &["still here".to_owned()]).await;
    assert_eq!(consume_exactly(&mut client, "orders", 1).await[0].payload, b"still here");
}

/// Copies the files of a folder that has no folders in it.
fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("created");
    for entry in std::fs::read_dir(from).expect("listed") {
        let entry = entry.expect("listed");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}

#[tokio::test]
async fn older_metadata_is_refused_and_removes_no_topic_that_was_made_since() {
    let dir = scratch();
    let mut node = start(dir.path()).await;
    create_narrow(&mut Client::new(node.addr()), "old", 30_000).await;
    node.stop(STOP_DEADLINE).await.expect("it stops");
    let config = NodeConfig::in_dir(Path::new(BIN), dir.path());
    let (metastore, older, newest) = (config.data_dir.join("metastore"), dir.path().join("older"), dir.path().join("newest"));
    copy_folder(&metastore, &older);

    node.start_again().await.expect("it starts");
    let mut client = Client::new(node.addr());
    create_narrow(&mut client, "new", 30_000).await;
    produce_all(&mut client, "new", &["kept".to_owned()]).await;
    node.stop(STOP_DEADLINE).await.expect("it stops");
    std::fs::rename(&metastore, &newest).expect("moved");
    copy_folder(&older, &metastore);

    let mut refused = NodeConfig::in_dir(Path::new(BIN), dir.path());
    refused.log = dir.path().join("refused.log");
    let status = refused.run_to_end(free_addr().expect("a free port"), Duration::from_secs(20)).await.expect("it ends by itself");
    assert_eq!(status.code(), Some(1));
    let told = std::fs::read_to_string(&refused.log).expect("a log");
    assert!(told.contains("an older copy, or was cut") && told.contains("reached.cell"), "{told}");

    std::fs::remove_dir_all(&metastore).expect("removed");
    std::fs::rename(&newest, &metastore).expect("moved back");
    node.start_again().await.expect("it starts");
    assert_eq!(consume_exactly(&mut Client::new(node.addr()), "new", 1).await[0].payload, b"kept");
}
