//! Several nodes: one catalog, whoever is asked; and who is not let in.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use veena_client::bodies::{ClusterMember, PatchTopic};
use veena_contract::Reroute;
use veena_loadtest_checker::How;
use veena_loadtest_driver::api::{Client, NewTopic};
use veena_loadtest_driver::node::{NodeConfig, NodeProcess, free_addr};

use crate::support::{
    BIN, STOP_DEADLINE, assert_clean_log, assert_empty, consume_exactly, create_wide, handles, produce_all, scratch, start, texts, until,
};

pub const SECRET: &str = "a secret that only these tests know";
const OTHER_SECRET: &str = "another secret, as long as that one";
/// How long a node that is refused may take to end.
const REFUSED_WITHIN: Duration = Duration::from_secs(60);

/// An address for other nodes that nobody listens on.
pub fn peer_addr() -> SocketAddr {
    UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port")
}

/// What a node is started with that other nodes reach at `peer`.
pub fn config(dir: &Path, name: &str, peer: SocketAddr) -> NodeConfig {
    let config = NodeConfig::in_dir(Path::new(BIN), &dir.join(name)).flag("--node-id").flag(name);
    with(with(config, "VEENA_CLUSTER_PEER_ADDR", &peer.to_string()), "VEENA_CLUSTER_SECRET", SECRET)
}

pub fn with(mut config: NodeConfig, name: &str, value: &str) -> NodeConfig {
    config.env.retain(|(known, _)| known != name);
    config.env.push((name.to_owned(), value.to_owned()));
    config
}

pub(crate) fn name(number: usize) -> String {
    format!("node-{number}")
}

/// Nodes that found or joined one cluster.
pub(crate) struct Cluster {
    pub(crate) dir: TempDir,
    pub(crate) nodes: Vec<NodeProcess>,
    pub(crate) peers: Vec<SocketAddr>,
}

impl Cluster {
    /// As many nodes, all of them voters.
    pub(crate) async fn of(count: usize) -> Self {
        let mut cluster = Self { dir: scratch(), nodes: Vec::new(), peers: Vec::new() };
        for _ in 0..count {
            cluster.add().await;
        }
        until("all vote", || async {
            members(&cluster.nodes[0]).await.iter().filter(|member| member.voter == Some(true)).count() == count
        })
        .await;
        cluster
    }

    /// One more node, which joins; the first one founds.
    pub(crate) async fn add(&mut self) {
        let peer = peer_addr();
        let config = config(self.dir.path(), &name(self.nodes.len() + 1), peer);
        let config = match self.peers.first() {
            None => with(config, "VEENA_CLUSTER_BOOTSTRAP", "true"),
            Some(_) => self.joining(config),
        };
        self.nodes.push(NodeProcess::start(config).await.expect("a node starts"));
        self.peers.push(peer);
    }

    pub(crate) fn joining(&self, config: NodeConfig) -> NodeConfig {
        with(config, "VEENA_CLUSTER_JOIN", &format!("node-1@{}", self.peers[0]))
    }

    pub(crate) fn client(&self, at: usize) -> Client {
        Client::new(self.nodes[at].addr())
    }

    /// Who leads, once somebody does, as one of these nodes sees it.
    pub(crate) async fn leader(&self, asked: usize) -> usize {
        until("somebody leads", || async { self.leader_of(asked).await.is_some() }).await;
        self.leader_of(asked).await.expect("just found")
    }

    async fn leader_of(&self, asked: usize) -> Option<usize> {
        let leader = members(&self.nodes[asked]).await.into_iter().find(|member| member.leader == Some(true))?;
        (0..self.nodes.len()).find(|at| name(at + 1) == leader.id)
    }

    pub async fn stop_all(&mut self) {
        for node in &mut self.nodes {
            node.stop(STOP_DEADLINE).await.expect("a node stops");
        }
    }

    /// Starts the three nodes again: each waits for the others.
    pub async fn start_all(&mut self) {
        let [first, second, third] = self.nodes.as_mut_slice() else { panic!("three nodes") };
        let (first, second, third) = tokio::join!(first.start_again(), second.start_again(), third.start_again());
        first.and(second).and(third).expect("all are ready");
    }
}

pub(crate) async fn members(node: &NodeProcess) -> Vec<ClusterMember> {
    let client = veena_client::Client::new(&format!("http://{}", node.addr())).expect("an address");
    client.cluster_members().await.expect("an answer")
}

/// The status with which a node answers for a topic, from the metadata alone.
async fn status_of(client: &mut Client, topic: &str) -> u16 {
    client.get(&format!("/v1/topics/{topic}/schema")).await.expect("an answer").status
}

/// The same, once there is a leader that can confirm it.
pub async fn confirmed_status_of(node: &NodeProcess, topic: &str) -> u16 {
    let status = Cell::new(503);
    until("a leader confirms it", || async {
        status.set(status_of(&mut Client::new(node.addr()), topic).await);
        status.get() != 503
    })
    .await;
    status.get()
}

/// Creates a topic, if need be again until it is there.
pub(crate) async fn create_until_there(node: &NodeProcess, name: &str, partitions: u32) {
    let addr = node.addr();
    until("a topic can be created", || async {
        let topic = NewTopic { name: name.to_owned(), partitions, visibility_ms: 30_000, keeps_order: true };
        let mut client = Client::new(addr);
        client.create_topic(&topic).await.is_ok() || status_of(&mut client, name).await == 200
    })
    .await;
}

pub fn log_of(config: &NodeConfig) -> String {
    std::fs::read_to_string(&config.log).unwrap_or_default()
}

/// Runs a node that is to be refused, and answers what it said.
pub(crate) async fn refused(config: &NodeConfig) -> String {
    let status = config.run_to_end(free_addr().expect("a free port"), REFUSED_WITHIN).await.expect("it ends by itself");
    assert!(matches!(status.code(), Some(1 | 3)), "{}", log_of(config));
    log_of(config)
}

#[tokio::test]
async fn a_topic_that_is_made_at_any_node_is_known_at_all_and_spread_over_all() {
    let mut cluster = Cluster::of(3).await;
    for made_at in 0..3 {
        let topic = format!("topic-{made_at}");
        create_until_there(&cluster.nodes[made_at], &topic, 6).await;
        for (asked, node) in cluster.nodes.iter().enumerate() {
            assert_eq!(confirmed_status_of(node, &topic).await, 200, "made at {made_at}, asked at {asked}");
            assert_eq!(confirmed_status_of(node, "never-made").await, 404, "asked at {asked}");
        }
    }
    for asked in &cluster.nodes {
        until("all are alive, and one leads", || async {
            let members = members(asked).await;
            members.iter().all(|member| member.status == "alive")
                && members.iter().filter(|member| member.leader == Some(true)).count() == 1
        })
        .await;
        let members = members(asked).await;
        assert_eq!(members.iter().map(|member| member.id.as_str()).collect::<Vec<_>>(), ["node-1", "node-2", "node-3"]);
        assert!(members.iter().all(|member| member.owned_partitions == 6), "{members:?}");
    }
    let grown = veena_client::Client::new(&format!("http://{}", cluster.nodes[1].addr())).expect("an address");
    let patch = veena_client::bodies::PatchTopic { partitions: Some(9), ..Default::default() };
    grown.patch_topic("topic-0", &patch).await.expect("it grows");
    assert!(members(&cluster.nodes[1]).await.iter().all(|member| member.owned_partitions == 7));

    let shown = Command::new(BIN).args(["cluster", "members", "-s", &cluster.nodes[2].addr().to_string()]).output().expect("it runs");
    let shown = String::from_utf8(shown.stdout).expect("text");
    assert!(shown.contains("NODE") && shown.matches("voter").count() == 2 && shown.matches("leader").count() == 1, "{shown}");
    cluster.stop_all().await;
    cluster.nodes.iter().for_each(assert_clean_log);
}

#[tokio::test]
async fn metadata_outlives_its_leader_and_says_when_there_is_none() {
    let mut cluster = Cluster::of(3).await;
    create_until_there(&cluster.nodes[0], "before", 3).await;
    let leader = cluster.leader(0).await;
    let (one, other) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.nodes[leader].kill().expect("killed");
    create_until_there(&cluster.nodes[one], "after", 3).await;
    let given = async || members(&cluster.nodes[one]).await[leader].owned_partitions;
    let number = Cell::new(0);
    until("who is gone is given nothing new", || async {
        let before = given().await;
        create_until_there(&cluster.nodes[one], &format!("more-{}", number.replace(number.get() + 1)), 3).await;
        given().await == before
    })
    .await;
    assert_eq!(confirmed_status_of(&cluster.nodes[other], "after").await, 200);
    until("the one that is gone is told to be dead, and no other", || async {
        members(&cluster.nodes[one]).await.iter().all(|member| (member.status == "dead") == (member.id == name(leader + 1)))
    })
    .await;

    // One of three can agree with nobody, and does not say "not found" of what it only does not know.
    cluster.nodes[other].kill().expect("killed");
    until("it is told that there is no leader", || async {
        let reply = cluster.client(one).get("/readyz").await.expect("an answer");
        reply.status == 503 && String::from_utf8_lossy(&reply.body).contains("no leader")
    })
    .await;
    assert_eq!(status_of(&mut cluster.client(one), "never-made").await, 503);
    assert_eq!(status_of(&mut cluster.client(one), "after").await, 200, "what it knows it tells");

    cluster.nodes[leader].start_again().await.expect("it starts");
    cluster.nodes[other].start_again().await.expect("it starts");
    for asked in 0..3 {
        assert_eq!(confirmed_status_of(&cluster.nodes[asked], "after").await, 200);
    }
    create_until_there(&cluster.nodes[leader], "again", 3).await;
    // A node that is down is no error of those that are up, and is not told again and again.
    assert_clean_log(&cluster.nodes[one]);
}

#[tokio::test]
async fn what_is_sent_to_any_node_is_read_at_any_other_and_acked_at_any_third() {
    let mut cluster = Cluster::of(3).await;
    create_until_there(&cluster.nodes[0], "orders", 6).await;
    let sent: BTreeSet<String> = (0..60).map(|number| format!("message {number}")).collect();
    for (number, text) in sent.iter().enumerate() {
        produce_all(&mut cluster.client(number % 3), "orders", std::slice::from_ref(text)).await;
    }
    let (read, turn) = (RefCell::new(Vec::new()), Cell::new(0));
    until("everything is read and acked", || async {
        let at = turn.replace((turn.get() + 1) % 3);
        let (mut reader, mut settler) = (cluster.client(at), cluster.client((at + 1) % 3));
        let messages = reader.consume("orders", Duration::from_millis(100), 7).await.expect("an answer").expect("messages");
        for handle in handles(&messages) {
            assert_eq!(settler.settle("orders", &handle, How::Ack).await.expect("an answer").status, 204);
        }
        read.borrow_mut().extend(texts(&messages));
        read.borrow().len() >= sent.len()
    })
    .await;
    let mut read = read.into_inner();
    read.sort_unstable();
    assert!(read.iter().eq(&sent), "each once: {read:?}");
    for asked in 0..3 {
        assert_empty(&mut cluster.client(asked), "orders").await;
    }
    cluster.stop_all().await;
    cluster.nodes.iter().for_each(assert_clean_log);
    cluster.start_all().await;
    assert_empty(&mut cluster.client(1), "orders").await;
}

async fn take_one(client: &mut Client) -> Vec<String> {
    let messages = consume_exactly(client, "orders", 1).await;
    for handle in handles(&messages) {
        assert_eq!(client.settle("orders", &handle, How::Ack).await.expect("an answer").status, 204);
    }
    texts(&messages)
}

#[tokio::test]
async fn what_is_sent_to_a_node_that_is_down_waits_or_goes_to_another_and_the_rest_goes_on() {
    let mut cluster = Cluster::of(3).await;
    create_until_there(&cluster.nodes[0], "orders", 3).await;
    let (asked, down) = (0, 2);
    let client = veena_client::Client::new(&format!("http://{}", cluster.nodes[asked].addr())).expect("an address");
    let reroute = |reroute| PatchTopic { reroute: Some(reroute), ..PatchTopic::default() };
    client.patch_topic("orders", &reroute(Reroute::Never)).await.expect("patched");
    let stats = client.topic("orders", None).await.expect("described").partition_stats;
    let of = |node: usize| stats.iter().find(|stats| stats.owner_node == Some(name(node + 1))).expect("one each").index;
    let [of_down, of_living] = [of(down), of(1)].map(|index| u32::try_from(index).expect("a small number"));
    cluster.nodes[down].kill().expect("killed");
    let mut here = cluster.client(asked);
    here.produce_to("orders", of_down, b"waits").await.expect("202");
    here.produce_to("orders", of_living, b"goes on").await.expect("202");
    assert_eq!(take_one(&mut cluster.client(1)).await, ["goes on"]);
    cluster.nodes[down].start_again().await.expect("it starts");
    assert_eq!(take_one(&mut cluster.client(1)).await, ["waits"]);

    client.patch_topic("orders", &reroute(Reroute::Auto)).await.expect("patched");
    cluster.nodes[down].kill().expect("killed");
    // It is sent before anybody knows that nobody is there, so nobody knows whether it was stored.
    here.produce_to("orders", of_down, b"in doubt").await.expect("202");
    until("what was never sent goes elsewhere", || async {
        cluster.client(asked).produce_to("orders", of_down, b"goes elsewhere").await.expect("202");
        let found = cluster.client(1).consume("orders", Duration::from_millis(500), 1).await.expect("an answer").expect("no refusal");
        texts(&found) == ["goes elsewhere"]
    })
    .await;
    cluster.nodes[down].start_again().await.expect("it starts");
    until("the node that is back gets its own again", || async {
        cluster.client(asked).produce_to("orders", of_down, b"back").await.expect("202");
        let detail = client.topic("orders", None).await.expect("described");
        let owner = detail.partition_stats.iter().find(|stats| stats.owner_node == Some(name(down + 1)));
        owner.is_some_and(|stats| stats.high_watermark > 2)
    })
    .await;
}

#[tokio::test]
async fn nodes_that_were_all_down_find_each_other_again_also_at_another_address() {
    let mut cluster = Cluster::of(3).await;
    create_until_there(&cluster.nodes[0], "kept", 3).await;
    for node in &mut cluster.nodes {
        node.kill().expect("killed");
    }
    cluster.start_all().await;
    assert_eq!(confirmed_status_of(&cluster.nodes[2], "kept").await, 200);

    cluster.stop_all().await;
    let moved = peer_addr();
    let config = with(cluster.nodes[2].config().clone(), "VEENA_CLUSTER_PEER_ADDR", &moved.to_string());
    *cluster.nodes[2].config_mut() = config;
    cluster.start_all().await;
    create_until_there(&cluster.nodes[2], "from-there", 3).await;
    for asked in 0..3 {
        assert_eq!(confirmed_status_of(&cluster.nodes[asked], "from-there").await, 200);
        let known = members(&cluster.nodes[asked]).await.into_iter().find(|member| member.id == "node-3").expect("a member");
        assert_eq!(known.addr, moved.to_string());
    }
}

#[tokio::test]
async fn a_node_with_another_secret_is_not_let_in_and_says_why() {
    let cluster = Cluster::of(1).await;
    let stranger = cluster.joining(with(config(cluster.dir.path(), "node-2", peer_addr()), "VEENA_CLUSTER_SECRET", OTHER_SECRET));
    let process = stranger.spawn(free_addr().expect("a free port")).expect("it starts");
    until("it says why", || async { log_of(&stranger).contains("does not know the cluster secret") }).await;
    drop(process);
    assert_eq!(members(&cluster.nodes[0]).await.len(), 1);
    for log in [log_of(&stranger), log_of(cluster.nodes[0].config())] {
        assert!(!log.contains(SECRET) && !log.contains(OTHER_SECRET));
    }
}

#[tokio::test]
async fn a_node_of_another_cluster_is_refused_and_told_so() {
    let cluster = Cluster::of(1).await;
    let founder = with(config(cluster.dir.path(), "node-2", peer_addr()), "VEENA_CLUSTER_BOOTSTRAP", "true");
    let mut elsewhere = NodeProcess::start(founder.clone()).await.expect("it founds a cluster of its own");
    elsewhere.stop(STOP_DEADLINE).await.expect("it stops");
    let told = refused(&cluster.joining(with(founder, "VEENA_CLUSTER_BOOTSTRAP", "false"))).await;
    assert!(told.contains("the data directory is of another cluster"), "{told}");
    assert_eq!(members(&cluster.nodes[0]).await.len(), 1);
}

#[tokio::test]
async fn a_node_that_has_lost_its_directory_is_not_let_in_under_its_old_name() {
    let mut cluster = Cluster::of(3).await;
    create_until_there(&cluster.nodes[0], "kept", 3).await;
    cluster.nodes[2].kill().expect("killed");
    let config = cluster.nodes[2].config().clone();
    std::fs::remove_dir_all(&config.data_dir).expect("removed");
    let told = refused(&config).await;
    assert!(told.contains("it has lost its disk: put its data directory back"), "{told}");
    create_until_there(&cluster.nodes[0], "goes-on", 3).await;
}

#[tokio::test]
async fn a_node_that_was_alone_founds_a_cluster_with_what_it_has() {
    let dir = scratch();
    let mut alone = start(&dir.path().join("node-1")).await;
    create_wide(&mut Client::new(alone.addr()), "old", 3, 30_000).await;
    let id = members(&alone).await.remove(0).id;
    alone.stop(STOP_DEADLINE).await.expect("it stops");

    let peer = peer_addr();
    let mut founder = with(config(dir.path(), "node-1", peer), "VEENA_CLUSTER_BOOTSTRAP", "true");
    founder.flags = vec!["--node-id".to_owned(), id.clone()];
    let founder = NodeProcess::start(founder).await.expect("it founds a cluster");
    let joining = with(config(dir.path(), "node-2", peer_addr()), "VEENA_CLUSTER_JOIN", &format!("{id}@{peer}"));
    let second = NodeProcess::start(joining).await.expect("it joins");
    assert_eq!(confirmed_status_of(&second, "old").await, 200);
    let owned = members(&second).await.into_iter().map(|member| (member.id, member.owned_partitions)).collect::<Vec<_>>();
    assert!(owned.contains(&(id, 3)) && owned.contains(&("node-2".to_owned(), 0)), "{owned:?}");
    assert_clean_log(&founder);
}

#[tokio::test]
async fn a_node_that_joins_while_topics_are_made_is_given_its_share_of_them_once_it_is_ready() {
    let mut cluster = Cluster::of(1).await;
    let config = cluster.joining(config(cluster.dir.path(), &name(2), peer_addr()));
    let mut founder = cluster.client(0);
    let mut made = Vec::new();
    let mut joining = std::pin::pin!(NodeProcess::start(config));
    let joined = loop {
        let topic = NewTopic { name: format!("topic-{}", made.len()), partitions: 2, visibility_ms: 30_000, keeps_order: true };
        let create = async {
            founder.create_topic(&topic).await.expect("made");
            topic.name
        };
        tokio::select! {
            name = create => made.push(name),
            joined = &mut joining => break joined.expect("it starts"),
        }
    };
    cluster.nodes.push(joined);
    // What was made meanwhile may be all the founder's, this is not.
    let topic = NewTopic { name: "spread".to_owned(), partitions: 2, visibility_ms: 30_000, keeps_order: true };
    founder.create_topic(&topic).await.expect("made");
    made.push(topic.name);
    let client = veena_client::Client::new(&format!("http://{}", cluster.nodes[1].addr())).expect("an address");
    let mut given = Vec::new();
    for topic in &made {
        let stats = client.topic(topic, None).await.expect("described").partition_stats;
        let Some(own) = stats.iter().find(|stats| stats.owner_node == Some(name(2))) else { continue };
        given.push(topic.as_str());
        let own = u32::try_from(own.index).expect("a small number");
        cluster.client(0).produce_to(topic, own, b"hello").await.expect("202");
        assert_eq!(texts(&consume_exactly(&mut cluster.client(1), topic, 1).await), ["hello"]);
    }
    assert_eq!(given.last(), Some(&"spread"), "{given:?} of {made:?}");
    cluster.stop_all().await;
}

#[tokio::test]
async fn a_cluster_of_one_that_is_started_alone_grows_its_topics() {
    let mut cluster = Cluster::of(1).await;
    create_until_there(&cluster.nodes[0], "old", 2).await;
    cluster.stop_all().await;
    let node = &mut cluster.nodes[0];
    node.config_mut().env.retain(|(name, _)| !name.starts_with("VEENA_CLUSTER_"));
    node.start_again().await.expect("it starts");
    let client = veena_client::Client::new(&format!("http://{}", node.addr())).expect("an address");
    let patch = veena_client::bodies::PatchTopic { partitions: Some(5), ..Default::default() };
    client.patch_topic("old", &patch).await.expect("it grows");
    assert_eq!(client.topic("old", None).await.expect("described").partition_stats.len(), 5);
}

#[tokio::test]
async fn a_node_that_is_stopped_while_it_waits_for_its_cluster_stops_in_order() {
    let dir = scratch();
    let config = with(config(dir.path(), &name(2), peer_addr()), "VEENA_CLUSTER_JOIN", &format!("node-1@{}", peer_addr()));
    let mut process = config.spawn(free_addr().expect("a free port")).expect("it starts");
    until("it answers others, and waits", || async { log_of(&config).contains("other nodes are answered") }).await;
    let status = process.terminate(STOP_DEADLINE).await.expect("it ends");
    assert!(status.success() && log_of(&config).contains("stopped"), "{status}\n{}", log_of(&config));
}
