//! Stops that cannot keep everything: the process says so by how it ends, and the next start has all that was stored.

use std::path::Path;
use std::time::Duration;

use veena_loadtest_driver::api::Client;
use veena_loadtest_driver::node::{NodeConfig, NodeProcess};

use crate::support::{
    BIN, STOP_DEADLINE, assert_empty, consume_exactly, create_narrow, handles, limit, produce_all, scratch, texts, unterminated_by_limits,
};

const SENT: [&str; 3] = ["one", "two", "three"];

/// A node whose three messages are leased and not acked yet, and their handles.
async fn with_leases(config: NodeConfig) -> (NodeProcess, Client, Vec<String>) {
    let node = NodeProcess::start(config).await.expect("a node starts");
    let mut client = Client::new(node.addr());
    create_narrow(&mut client, "orders", 60_000).await;
    produce_all(&mut client, "orders", &SENT.map(str::to_owned)).await;
    let leases = handles(&consume_exactly(&mut client, "orders", SENT.len()).await);
    (node, client, leases)
}

/// The words that start a node under strace, which answers every sync of these files with EIO and does not carry it out.
fn with_failing_syncs(files: &[&Path], log: &Path) -> Vec<String> {
    let fixed = "strace -D -f --seccomp-bpf -y -qq -e signal=none -e trace=fdatasync -e inject=fdatasync:error=EIO -o";
    let mut words: Vec<String> = fixed.split(' ').map(str::to_owned).collect();
    words.push(log.display().to_string());
    files.iter().for_each(|file| words.extend(["-P".to_owned(), file.display().to_string()]));
    words
}

/// Stops the node, which must end with an error of its own.
async fn stop_with_an_error(node: &mut NodeProcess) {
    let error = node.stop(STOP_DEADLINE).await.expect_err("something was not kept");
    assert!(error.to_string().contains("exit status: 1"), "{error:#}");
}

#[tokio::test]
async fn a_stop_that_cannot_write_the_last_acks_ends_with_an_error_and_loses_no_message() {
    let dir = scratch();
    let mut config = NodeConfig::in_dir(&unterminated_by_limits(dir.path()), dir.path());
    // Its own words must not be what meets the limit.
    config.log = Path::new("/dev/null").to_owned();
    let (mut node, mut client, leases) = with_leases(config).await;
    // From here on no file takes a byte.
    limit(&node, "--fsize=1:unlimited");
    assert_eq!(client.ack_batch("orders", &leases).await.expect("an answer"), [204; 3]);
    stop_with_an_error(&mut node).await;
    node.start_again().await.expect("the node starts again");
    assert_eq!(texts(&consume_exactly(&mut client, "orders", SENT.len()).await), SENT);
    node.stop(STOP_DEADLINE).await.expect("nothing is wrong any more");
}

#[tokio::test]
async fn a_stop_whose_last_sync_fails_ends_with_an_error_says_so_and_loses_no_message() {
    let dir = scratch();
    let (mut node, _, _) = with_leases(NodeConfig::in_dir(Path::new(BIN), dir.path())).await;
    node.stop(STOP_DEADLINE).await.expect("the node stops");
    let settle = node.config().data_dir.canonicalize().expect("there").join("settle");
    let journals = std::fs::read_dir(&settle).expect("listed").map(|entry| entry.expect("listed").path());
    let journal = journals.filter(|path| path.extension().is_some_and(|end| end == "journal")).max().expect("a journal");
    // A file is told by the name it has at the time of the call: the journal's syncs succeed until it is renamed. The other name is that of
    // every file that is to take its place.
    let renamed = settle.join("renamed");
    let injected = dir.path().join("strace.log");
    node.config_mut().before = with_failing_syncs(&[&renamed, &settle.join("settle.tmp")], &injected);
    node.start_again().await.expect("the node starts under strace");
    let mut client = Client::new(node.addr());
    let leases = handles(&consume_exactly(&mut client, "orders", SENT.len()).await);
    std::fs::rename(&journal, &renamed).expect("renamed");
    assert_eq!(client.ack_batch("orders", &leases).await.expect("an answer"), [204; 3]);
    stop_with_an_error(&mut node).await;
    assert!(std::fs::read_to_string(&injected).expect("a log").contains("(INJECTED)"), "a sync has failed");
    let log = std::fs::read_to_string(&node.config().log).expect("a log");
    assert!(log.contains("the last acks could not be made durable"), "{log}");

    std::fs::rename(&renamed, &journal).expect("renamed");
    node.config_mut().before = Vec::new();
    node.start_again().await.expect("the node starts again");
    // What was acked may come again, and then in full.
    let again = client.consume("orders", Duration::from_millis(500), 100).await.expect("an answer").expect("messages");
    assert!(again.is_empty() || texts(&again) == SENT, "{again:?}");
    node.stop(STOP_DEADLINE).await.expect("nothing is wrong any more");
}

#[tokio::test]
async fn a_stop_whose_disk_stands_still_gives_up_with_an_error_and_loses_no_message() {
    let dir = scratch();
    let stall = dir.path().join("stall");
    let mut config = NodeConfig::in_dir(Path::new(BIN), dir.path()).flag("--slow-flush").flag("1ns");
    config.env.push(("VEENA_STALL_FILE".to_owned(), stall.display().to_string()));
    let (mut node, mut client, leases) = with_leases(config).await;
    std::fs::write(&stall, b"").expect("the disk stands still");
    assert_eq!(client.ack_batch("orders", &leases).await.expect("an answer"), [204; 3]);
    stop_with_an_error(&mut node).await;
    let log = std::fs::read_to_string(&node.config().log).expect("a log");
    assert!(log.contains("the node did not stop within"), "{log}");
    std::fs::remove_file(&stall).expect("the disk moves again");
    node.start_again().await.expect("the node starts again");
    // What was acked may come again, and then in full.
    let again = client.consume("orders", Duration::from_millis(500), 100).await.expect("an answer").expect("messages");
    assert!(again.is_empty() || texts(&again) == SENT, "{again:?}");
    produce_all(&mut client, "orders", &["four".to_owned()]).await;
    assert_eq!(texts(&consume_exactly(&mut client, "orders", 1).await), ["four"]);
    assert_empty(&mut client, "orders").await;
}
