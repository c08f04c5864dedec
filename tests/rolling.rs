//! Nodes that are stopped and started one after the other, under load, by clients that know all of them: nobody is refused for good.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::JoinSet;
use veena_loadtest_driver::api::{Client, Reply, parse_messages};
use veena_loadtest_driver::http::{Exchange, RequestBytes};
use veena_loadtest_driver::node::NodeConfig;

use crate::cluster::{Cluster, create_until_there, members, with};
use crate::support::{DEADLINE, STOP_DEADLINE, assert_clean_log, handles, texts, until};

const TOPIC: &str = "orders";
/// A client waits this long before it asks the next node.
const AGAIN: Duration = Duration::from_millis(20);
const WRITERS: usize = 2;
const READERS: usize = 2;

/// What the clients have seen.
#[derive(Default)]
struct Seen {
    is_over: AtomicBool,
    asked: AtomicUsize,
    sent: Mutex<BTreeSet<String>>,
    read: Mutex<BTreeSet<String>>,
    failed: Mutex<Vec<String>>,
}

/// A client of all nodes: asked for one thing, it goes from one to the next as long as that was not there to be asked, or answered 503.
struct Anywhere {
    clients: Vec<Client>,
    at: usize,
    seen: Arc<Seen>,
}

impl Anywhere {
    fn new(addrs: &[SocketAddr], at: usize, seen: &Arc<Seen>) -> Self {
        Self { clients: addrs.iter().map(|addr| Client::new(*addr)).collect(), at, seen: Arc::clone(seen) }
    }

    /// The first answer that is no 503. One that is none of the `wanted` is a failure.
    async fn ask(&mut self, what: &str, request: &RequestBytes, wanted: &[u16]) -> Option<Reply> {
        let began = Instant::now();
        loop {
            self.at = (self.at + 1) % self.clients.len();
            let answer = self.clients[self.at].call(request).await;
            self.seen.asked.fetch_add(1, Ordering::Relaxed);
            let fault = match answer {
                Ok(reply) if wanted.contains(&reply.status) => return Some(reply),
                Ok(reply) if reply.status == 503 && began.elapsed() < DEADLINE => None,
                Ok(reply) => Some(format!("{} {}", reply.status, String::from_utf8_lossy(&reply.body))),
                Err(Exchange::NotSent(_)) if began.elapsed() < DEADLINE => None,
                Err(error) => Some(format!("{error:?}")),
            };
            if let Some(fault) = fault {
                self.seen.failed.lock().push(format!("{what} at node {}: {fault}", self.at + 1));
                return None;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn write(mut self, writer: usize) {
        for number in 0.. {
            if self.seen.is_over.load(Ordering::Relaxed) {
                return;
            }
            let text = format!("{writer}-{number}");
            let target = format!("/v1/topics/{TOPIC}/produce");
            if self.ask("produce", &RequestBytes::post(&target, text.as_bytes()), &[202]).await.is_some() {
                self.seen.sent.lock().insert(text);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A lease ends with the process of its owner: 410 is an answer.
    async fn read(mut self) {
        let consume = RequestBytes::get(&format!("/v1/topics/{TOPIC}/consume?wait=100ms&max=20"));
        loop {
            let is_over = self.seen.is_over.load(Ordering::Relaxed);
            let reply = self.ask("consume", &consume, &[200, 204]).await;
            let messages = reply.filter(|reply| reply.status == 200).map(|reply| parse_messages(&reply.body, true).expect("messages"));
            let messages = messages.unwrap_or_default();
            self.seen.read.lock().extend(texts(&messages));
            for handle in handles(&messages) {
                let target = format!("/v1/topics/{TOPIC}/ack?receipt_handle={handle}");
                self.ask("ack", &RequestBytes::post(&target, b""), &[204, 410]).await;
            }
            let is_all_read = || {
                let (sent, read) = (self.seen.sent.lock(), self.seen.read.lock());
                sent.is_subset(&read)
            };
            if is_over && is_all_read() {
                return;
            }
        }
    }

    /// Makes topics and looks at them. A change that is asked for again may have been made the first time.
    async fn change(mut self) {
        for number in 0.. {
            if self.seen.is_over.load(Ordering::Relaxed) {
                return;
            }
            let body = format!(r#"{{"name":"made-{number}","partitions":1}}"#);
            self.ask("create", &RequestBytes::post_json("/v1/topics", body.as_bytes()), &[201, 409]).await;
            self.ask("look", &RequestBytes::get(&format!("/v1/topics/made-{number}/schema")), &[200]).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Stops and starts each node in turn, with other settings: the next one when the one before is a voter that answers again.
async fn roll(cluster: &mut Cluster, change: impl Fn(NodeConfig) -> NodeConfig) {
    for at in 0..cluster.nodes.len() {
        let node = &mut cluster.nodes[at];
        node.stop(STOP_DEADLINE).await.expect("it stops");
        *node.config_mut() = change(node.config().clone());
        node.start_again().await.expect("it starts");
        for asked in &cluster.nodes {
            let all_there = || async {
                let members = members(asked).await;
                members.iter().all(|member| member.status == "alive") && members.iter().any(|member| member.leader == Some(true))
            };
            until("all are there", all_there).await;
        }
    }
}

/// What happens to a cluster of three, under load: nothing that a client sees.
async fn unnoticed(happens: impl AsyncFnOnce(&mut Cluster)) {
    let mut cluster = Cluster::of(3).await;
    create_until_there(&cluster.nodes[0], TOPIC, 6).await;
    let addrs: Vec<SocketAddr> = cluster.nodes.iter().map(|node| node.addr()).collect();
    let (seen, mut load) = (Arc::new(Seen::default()), JoinSet::new());
    for number in 0..WRITERS {
        load.spawn(Anywhere::new(&addrs, number, &seen).write(number));
    }
    for number in 0..READERS {
        load.spawn(Anywhere::new(&addrs, number, &seen).read());
    }
    load.spawn(Anywhere::new(&addrs, 0, &seen).change());
    until("messages flow", || async { seen.read.lock().len() > 50 }).await;
    happens(&mut cluster).await;
    let now = seen.read.lock().len();
    until("messages still flow", || async { seen.read.lock().len() > now + 50 }).await;
    seen.is_over.store(true, Ordering::Relaxed);
    tokio::time::timeout(DEADLINE, load.join_all()).await.expect("everything is read");
    // Nobody else has them any more.
    let [sent, read] = [&seen.sent, &seen.read].map(|texts| std::mem::take(&mut *texts.lock()));
    let failed = std::mem::take(&mut *seen.failed.lock());
    assert!(failed.is_empty(), "{} of {} calls failed: {failed:#?}", failed.len(), seen.asked.load(Ordering::Relaxed));
    assert_eq!(sent, read);
    cluster.stop_all().await;
    cluster.nodes.iter().for_each(assert_clean_log);
}

#[tokio::test]
async fn a_rolling_restart_under_load_fails_no_request_of_a_client_that_repeats_a_503() {
    unnoticed(async |cluster: &mut Cluster| roll(cluster, |config| config).await).await;
}

#[tokio::test]
async fn the_secret_of_a_cluster_is_changed_node_by_node_under_load() {
    const NEW: &str = "the secret that comes after the first one";
    unnoticed(async |cluster: &mut Cluster| {
        let files = cluster.dir.path().to_owned();
        let write = |name: &str, lines: &[&str]| {
            let path = files.join(name);
            std::fs::write(&path, lines.join("\n")).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("nobody else's");
            path.display().to_string()
        };
        // Those that know the new one alone and those that know the old one alone never run at once.
        let (both, new) = (write("both", &[NEW, crate::cluster::SECRET]), write("new", &[NEW]));
        for file in [both, new] {
            roll(cluster, |mut config| {
                config.env.retain(|(name, _)| name != "VEENA_CLUSTER_SECRET");
                with(config, "VEENA_CLUSTER_SECRET_FILE", &file)
            })
            .await;
        }
    })
    .await;
}
