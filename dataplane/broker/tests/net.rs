//! A network in memory: nodes call each other, and each direction can be told to fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use veena_broker::Broker;
use veena_broker::ports::{BrokerConfig, Peers};
use veena_contract::{
    BoxFuture, CallerGone, Entropy, NodeDirectory, NodeId, Ownership, OwnershipEpoch, PeerAddr, PeerCall, PeerClass, PeerClient, PeerError,
    PeerOp, PeerRefusal, PeerRequest, TopicRecord, limits,
};
use veena_storage::disk::Disk;
use veena_storage::disk::mem::MemDisk;
use veena_storage::io::Io;

use crate::support::{FakeCatalog, Node, Seeded, small_config};

/// What happens to calls in one direction.
#[derive(Clone)]
pub enum Fault {
    /// Nothing can be sent.
    Cut,
    /// Requests are lost on the way.
    LoseRequests,
    /// Requests are served, answers are lost.
    LoseAnswers,
    /// Requests arrive late, and are served as if they were not.
    Delay(Duration),
    /// Requests and answers take a moment, and overtake each other.
    Slow(Arc<Seeded>),
    /// Any of these, or none, by chance.
    Flaky(Arc<Seeded>),
}

/// Who listens, and what is wrong between whom.
#[derive(Default)]
pub struct Net {
    brokers: Mutex<BTreeMap<NodeId, (u64, Broker)>>,
    faults: Mutex<BTreeMap<(NodeId, NodeId), Fault>>,
    faults_of_ops: Mutex<BTreeMap<(NodeId, NodeId, PeerOp), Fault>>,
    calls: Mutex<BTreeMap<(PeerOp, PeerClass), u64>>,
    lives: AtomicU64,
    dead: Mutex<BTreeSet<NodeId>>,
    leader: Mutex<Option<NodeId>>,
    forgotten: Mutex<BTreeSet<NodeId>>,
    standing: Standing,
}

/// Nodes that stand still: nothing leaves them or is served there before they go on. Time goes on for them too.
struct Standing(watch::Sender<BTreeSet<NodeId>>);

impl Default for Standing {
    fn default() -> Self {
        Self(watch::channel(BTreeSet::new()).0)
    }
}

impl Standing {
    /// Completes at once, unless this node stands still.
    async fn goes_on(&self, node: &NodeId) {
        self.0.subscribe().wait_for(|standing| !standing.contains(node)).await.map(drop).expect("the sender lives here");
    }
}

impl Net {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// This node stands still from now on, or goes on.
    fn stand_still(&self, name: &str, stands_still: bool) {
        self.standing.0.send_modify(|standing| {
            if stands_still {
                standing.insert(node_id(name))
            } else {
                standing.remove(&node_id(name))
            };
        });
    }

    /// Calls from one node to another fail so, from now on.
    pub fn fail(&self, from: &str, to: &str, fault: Fault) {
        self.faults.lock().insert((node_id(from), node_id(to)), fault);
    }

    /// Calls of one kind from one node to another fail so, from now on.
    pub fn fail_op(&self, from: &str, to: &str, op: PeerOp, fault: Fault) {
        self.faults_of_ops.lock().insert((node_id(from), node_id(to), op), fault);
    }

    /// How many calls of one kind were made.
    pub fn calls(&self, op: PeerOp) -> u64 {
        PeerClass::ALL.iter().map(|class| self.calls_of(op, *class)).sum()
    }

    /// How many calls of one kind and class were made.
    pub fn calls_of(&self, op: PeerOp, class: PeerClass) -> u64 {
        self.calls.lock().get(&(op, class)).copied().unwrap_or(0)
    }

    /// Calls between all nodes fail so, from now on.
    pub fn fail_all(&self, fault: &Fault) {
        for from in NODES {
            NODES.iter().for_each(|to| self.fail(from, to, fault.clone()));
        }
    }

    /// Somebody has found that this node is dead, or that it is not.
    pub fn set_dead(&self, name: &str, is_dead: bool) {
        let mut dead = self.dead.lock();
        if is_dead {
            dead.insert(node_id(name))
        } else {
            dead.remove(&node_id(name))
        };
    }

    /// Who leads the metadata, as all know.
    pub fn set_leader(&self, name: Option<&str>) {
        *self.leader.lock() = name.map(node_id);
    }

    /// This node is a member no more, or is one again.
    pub fn set_forgotten(&self, name: &str, is_forgotten: bool) {
        let mut forgotten = self.forgotten.lock();
        if is_forgotten {
            forgotten.insert(node_id(name))
        } else {
            forgotten.remove(&node_id(name))
        };
    }

    /// Everything works again.
    pub fn heal(&self) {
        self.faults.lock().clear();
        self.faults_of_ops.lock().clear();
    }

    /// Who listens under this name now.
    pub fn listen(&self, name: &str, broker: &Broker) {
        let life = self.lives.fetch_add(1, Ordering::Relaxed);
        self.brokers.lock().insert(node_id(name), (life, broker.clone()));
    }

    /// Nobody listens under this name any more; answers that are on their way are lost.
    pub fn hang_up(&self, name: &str) {
        self.brokers.lock().remove(&node_id(name));
    }

    fn listening(&self, node: &NodeId) -> Option<(u64, Broker)> {
        self.brokers.lock().get(node).cloned()
    }

    fn fault(&self, from: &NodeId, to: &NodeId, op: PeerOp) -> Option<Fault> {
        let of_op = self.faults_of_ops.lock().get(&(from.clone(), to.clone(), op)).cloned();
        let fault = of_op.or_else(|| self.faults.lock().get(&(from.clone(), to.clone())).cloned())?;
        let Fault::Flaky(entropy) = fault else { return Some(fault) };
        match entropy.next_u64() % 6 {
            0 => Some(Fault::Cut),
            1 => Some(Fault::LoseRequests),
            2 => Some(Fault::LoseAnswers),
            // Short of the caller's patience, and beyond it.
            3 => Some(Fault::Delay(Duration::from_millis(entropy.next_u64() % 1_000))),
            4 => Some(Fault::Delay(Duration::from_millis(10_000 + entropy.next_u64() % 10_000))),
            _ => None,
        }
    }
}

/// One node's way into the network.
struct Line {
    me: NodeId,
    net: Arc<Net>,
}

impl PeerClient for Line {
    fn call<'a>(&'a self, to: &'a PeerAddr, call: PeerCall) -> BoxFuture<'a, Result<Bytes, PeerError>> {
        Box::pin(async move {
            let node = to.node.clone();
            self.net.standing.goes_on(&self.me).await;
            *self.net.calls.lock().entry((call.op, call.class)).or_default() += 1;
            assert!(call.body.len() <= bytes_max(call.class), "{} with {} bytes is never taken", call.op, call.body.len());
            let fault = self.net.fault(&self.me, &node, call.op);
            let reason = || "in this test".to_owned();
            let Some((life, broker)) = self.net.listening(&node).filter(|_| !matches!(fault, Some(Fault::Cut))) else {
                return Err(PeerError::Unreachable { node, reason: reason() });
            };
            if matches!(fault, Some(Fault::LoseRequests)) {
                sleep(call.timeout).await;
                return Err(PeerError::Silent { node });
            }
            let caller = CallerGone::default();
            let request = PeerRequest {
                from: self.me.clone(),
                class: call.class,
                op: call.op,
                remaining: call.timeout,
                caller: caller.clone(),
                body: call.body,
            };
            let delay = if let Some(Fault::Delay(delay)) = fault { delay } else { Duration::ZERO };
            let moment = || match &fault {
                Some(Fault::Slow(entropy)) => Duration::from_millis(entropy.next_u64() % 30),
                _ => Duration::ZERO,
            };
            let (there, back) = (moment(), moment());
            // Of a caller that left while its call was on the way, nobody hears.
            let _leaving = delay.is_zero().then(|| Leaving(caller));
            let (net, called) = (Arc::clone(&self.net), node.clone());
            let serving = tokio::spawn(async move {
                sleep(delay + there).await;
                net.standing.goes_on(&called).await;
                let served = match broker.serve_peer(request) {
                    Some(serving) => serving.await,
                    None => Err(PeerRefusal::UnknownOp),
                };
                net.standing.goes_on(&called).await;
                sleep(back).await;
                served
            });
            let served = timeout(call.timeout, serving).await;
            self.net.standing.goes_on(&self.me).await;
            let Ok(served) = served else { return Err(PeerError::Silent { node }) };
            let is_same = self.net.listening(&node).is_some_and(|(now, _)| now == life);
            if let Ok(Ok(body)) = &served {
                assert!(body.len() <= bytes_max(call.class), "the answer to {} with {} bytes is never taken", call.op, body.len());
            }
            match served {
                Ok(_) if matches!(fault, Some(Fault::LoseAnswers)) || !is_same => Err(PeerError::Lost { node, reason: reason() }),
                Ok(served) => served.map_err(|refusal| PeerError::Refused { node, refusal }),
                Err(_) => Err(PeerError::Failed { node }),
            }
        })
    }
}

/// The largest call or answer, as between real nodes.
fn bytes_max(class: PeerClass) -> usize {
    match class {
        PeerClass::Control => limits::PEER_CONTROL_BYTES_MAX,
        PeerClass::Data => limits::PEER_DATA_BYTES_MAX,
        PeerClass::Wait => limits::PEER_WAIT_BYTES_MAX,
        PeerClass::Settle => limits::PEER_SETTLE_BYTES_MAX,
    }
}

/// Dropped with a call: whoever made it waits no more.
struct Leaving(CallerGone);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// Everybody who was not forgotten is known, at once, and so is who was found dead.
struct All(Arc<Net>);

impl NodeDirectory for All {
    fn nodes(&self) -> Vec<NodeId> {
        let forgotten = self.0.forgotten.lock();
        NODES.map(node_id).into_iter().filter(|node| !forgotten.contains(node)).collect()
    }

    fn address_of(&self, node: &NodeId) -> Option<PeerAddr> {
        let is_member = !self.0.forgotten.lock().contains(node);
        is_member.then(|| PeerAddr { node: node.clone(), addr: Arc::from("in memory") })
    }

    fn leader(&self) -> Option<NodeId> {
        self.0.leader.lock().clone()
    }

    fn is_dead(&self, node: &NodeId) -> bool {
        self.0.dead.lock().contains(node)
    }
}

pub const NODES: [&str; 3] = ["a", "b", "c"];

pub fn node_id(name: &str) -> NodeId {
    NodeId(Arc::from(name))
}

/// The same topic, each of its partitions with an owner, since the first epoch.
pub fn owned_by(mut record: TopicRecord, owners: &[&str]) -> TopicRecord {
    record.partitions = u32::try_from(owners.len()).expect("few");
    record.owners = owners.iter().map(|name| Ownership::new(node_id(name), OwnershipEpoch(1))).collect();
    record
}

/// One node that dies and comes back.
pub struct Member {
    pub name: &'static str,
    /// What it sees of the catalog.
    sees: Arc<FakeCatalog>,
    pub disk: MemDisk,
    pub node: Node,
    pub config: BrokerConfig,
}

/// Three nodes that see one catalog.
pub struct Cluster {
    pub net: Arc<Net>,
    pub catalog: Arc<FakeCatalog>,
    pub members: Vec<Member>,
    seed: u64,
    io: Io,
    /// How much later than it changes the nodes see the catalog, at most.
    lag_ms_max: Option<u64>,
}

impl Cluster {
    pub async fn start(seed: u64) -> Self {
        Self::start_with(seed, small_config()).await
    }

    pub async fn start_with(seed: u64, config: BrokerConfig) -> Self {
        Self::start_on(seed, config, Io::inline(), None).await
    }

    /// With nodes that see changes of the catalog late, each at another time.
    pub async fn start_lagging(seed: u64) -> Self {
        Self::start_on(seed, small_config(), Io::inline(), Some(150)).await
    }

    /// With file calls on threads, as in a real node: one that stands still holds up who waits for it alone.
    pub async fn start_on_threads(seed: u64) -> Self {
        Self::start_on(seed, small_config(), Io::threads(24), None).await
    }

    async fn start_on(seed: u64, config: BrokerConfig, io: Io, lag_ms_max: Option<u64>) -> Self {
        let mut cluster = Self { net: Net::new(), catalog: FakeCatalog::new(), members: Vec::new(), seed, io, lag_ms_max };
        for name in NODES {
            let disk = MemDisk::new();
            let (sees, node) = cluster.open(name, &disk, &config, &Arc::clone(&cluster.catalog)).await;
            cluster.members.push(Member { name, sees, disk, node, config: config.clone() });
        }
        cluster
    }

    async fn open(&mut self, name: &str, disk: &MemDisk, config: &BrokerConfig, catalog: &Arc<FakeCatalog>) -> (Arc<FakeCatalog>, Node) {
        self.seed += 1;
        let sees = match self.lag_ms_max {
            Some(lag_ms_max) => catalog.follow(Seeded::new(self.seed), lag_ms_max),
            None => Arc::clone(catalog),
        };
        let client = Arc::new(Line { me: node_id(name), net: Arc::clone(&self.net) });
        let peers = Peers { me: node_id(name), client, directory: Arc::new(All(Arc::clone(&self.net))) };
        let node = Node::start_among(Arc::new(disk.clone()), &sees, self.seed, config.clone(), self.io.clone(), peers).await;
        self.net.listen(name, &node.broker);
        (sees, node)
    }

    pub fn node(&self, name: &str) -> &Node {
        &self.members.iter().find(|member| member.name == name).expect("one of three").node
    }

    /// The process of a node stands still from now on, or goes on: then it sees what has changed a little later.
    pub fn stand_still(&self, name: &str, stands_still: bool) {
        let member = self.members.iter().find(|member| member.name == name).expect("one of three");
        assert!(self.lag_ms_max.is_some(), "each node sees the catalog by itself");
        member.sees.stand_still(stands_still);
        self.net.stand_still(name, stands_still);
    }

    /// The process of a node dies.
    pub fn kill(&mut self, name: &str) {
        self.end(name, MemDisk::crash_kill);
    }

    /// The machine of a node loses its power.
    pub fn cut_power(&mut self, name: &str, entropy: &Seeded) {
        self.end(name, |disk| disk.crash_power(&mut || entropy.next_u64()));
    }

    fn end(&mut self, name: &str, crash: impl FnOnce(&MemDisk)) {
        let member = self.members.iter_mut().find(|member| member.name == name).expect("one of three");
        self.net.hang_up(name);
        crash(&member.disk);
        member.node.tasks.token().cancel();
    }

    /// A node that died begins its next life.
    pub async fn revive(&mut self, name: &str) {
        let catalog = Arc::clone(&self.catalog);
        self.revive_on(name, &catalog).await;
    }

    /// As `revive`, with a catalog of its own.
    pub async fn revive_on(&mut self, name: &str, catalog: &Arc<FakeCatalog>) {
        let at = self.members.iter().position(|member| member.name == name).expect("one of three");
        let (disk, config) = (self.members[at].disk.reopen(), self.members[at].config.clone());
        let (sees, node) = self.open(name, &disk, &config, catalog).await;
        (self.members[at].sees, self.members[at].disk, self.members[at].node) = (sees, disk, node);
    }

    /// Waits until nothing is under way from any node.
    pub async fn settle_down(&self) {
        let quiet = async {
            while self.members.iter().any(|member| member.node.broker.undispatched() > 0) {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(Duration::from_secs(120), quiet).await.expect("everything accepted reaches its owner");
    }

    /// No node has a directory of a partition that another owns.
    pub fn assert_only_own_logs(&self, record: &TopicRecord) {
        for member in &self.members {
            let dir = format!("/data/topics/default/{}", record.id);
            let entries = member.disk.list(dir.as_ref()).unwrap_or_default();
            for entry in entries {
                let index: usize = entry.name.trim_start_matches('p').parse().expect("a partition");
                assert_eq!(record.owners[index].node, node_id(member.name), "{} has a log of partition {index}", member.name);
            }
        }
    }
}

impl Drop for Cluster {
    /// Ends what runs, so that the next seed of a test has the runtime for itself.
    fn drop(&mut self) {
        self.members.iter().for_each(|member| member.node.tasks.token().cancel());
    }
}
