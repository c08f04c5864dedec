//! Members, and the network between them.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};
use veena_consensus::{ApplyError, Consensus, ConsensusConfig, FrozenState, MemLog, ProposeError, RestoreError, Runtime, StateMachine};
use veena_contract::{BoxFuture, CallerGone, Entropy, LogIndex, NodeId, PeerAddr, PeerCall, PeerClient, PeerError, PeerOp, PeerRequest};

pub const DEADLINE: Duration = Duration::from_secs(30);

/// Remembers every command, in order.
#[derive(Clone, Default)]
pub struct Journal {
    lines: Arc<Mutex<Vec<String>>>,
}

impl Journal {
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().clone()
    }

    pub fn has(&self, command: &str) -> bool {
        self.lines.lock().iter().any(|line| line == command)
    }
}

impl StateMachine for Journal {
    fn apply(&mut self, _index: LogIndex, command: &str) -> Result<String, ApplyError> {
        let mut lines = self.lines.lock();
        lines.push(serde_json::from_str(command).expect("a string"));
        Ok(lines.len().to_string())
    }

    fn publish(&mut self, _applied: LogIndex) {}

    fn freeze(&self) -> FrozenState {
        let lines = self.lines();
        Box::new(move || serde_json::to_vec(&lines).expect("strings are JSON"))
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), RestoreError> {
        *self.lines.lock() = serde_json::from_slice(snapshot).map_err(|e| RestoreError { detail: e.to_string() })?;
        Ok(())
    }
}

/// Numbers that repeat (SplitMix64).
pub struct Seeded(AtomicU64);

impl Seeded {
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    pub fn below(&self, end: u64) -> u64 {
        self.next_u64() % end
    }
}

impl Entropy for Seeded {
    fn next_u64(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

pub fn id(name: &str) -> NodeId {
    NodeId(Arc::from(name))
}

/// What lies between the members. A cut is silent: whoever calls waits for all of its time, and does not know.
pub struct Net {
    state: Mutex<NetState>,
    chance: Seeded,
    served: Mutex<JoinSet<()>>,
}

#[derive(Default)]
struct NetState {
    listening: BTreeMap<Arc<str>, (NodeId, Consensus)>,
    cut: BTreeSet<(NodeId, NodeId)>,
    blocked: BTreeSet<(NodeId, NodeId, PeerOp)>,
    traps: BTreeMap<(NodeId, NodeId, PeerOp), PeerOp>,
    delay_ms_max: u64,
    calls: BTreeMap<(NodeId, PeerOp), u64>,
}

impl Net {
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), chance: Seeded::new(seed), served: Mutex::default() })
    }

    /// Nothing goes from one to the other, neither calls nor answers.
    pub fn cut(&self, from: &NodeId, to: &NodeId) {
        self.state.lock().cut.insert((from.clone(), to.clone()));
    }

    pub fn cut_both(&self, a: &NodeId, b: &NodeId) {
        self.cut(a, b);
        self.cut(b, a);
    }

    pub fn heal_both(&self, a: &NodeId, b: &NodeId) {
        let mut state = self.state.lock();
        state.cut.remove(&(a.clone(), b.clone()));
        state.cut.remove(&(b.clone(), a.clone()));
    }

    /// Calls of this kind do not arrive.
    pub fn block(&self, from: &NodeId, to: &NodeId, op: PeerOp) {
        self.state.lock().blocked.insert((from.clone(), to.clone(), op));
    }

    /// From the first call of one kind on, calls of another kind do not arrive.
    pub fn block_behind(&self, from: &NodeId, to: &NodeId, first: PeerOp, blocked: PeerOp) {
        self.state.lock().traps.insert((from.clone(), to.clone(), first), blocked);
    }

    pub fn heal(&self) {
        let mut state = self.state.lock();
        state.traps.clear();
        state.cut.clear();
        state.blocked.clear();
        state.delay_ms_max = 0;
    }

    /// Every call and every answer takes up to this long.
    pub fn delay(&self, ms_max: u64) {
        self.state.lock().delay_ms_max = ms_max;
    }

    /// How many calls of this kind a node has made.
    pub fn calls(&self, from: &NodeId, op: PeerOp) -> u64 {
        self.state.lock().calls.get(&(from.clone(), op)).copied().unwrap_or_default()
    }

    fn passes(&self, from: &NodeId, to: &NodeId) -> bool {
        !self.state.lock().cut.contains(&(from.clone(), to.clone()))
    }

    async fn travel(&self) {
        let ms_max = self.state.lock().delay_ms_max;
        if ms_max > 0 {
            sleep(Duration::from_millis(self.chance.below(ms_max))).await;
        }
    }
}

/// One member's way into the network.
struct End {
    net: Arc<Net>,
    me: NodeId,
}

impl PeerClient for End {
    fn call<'a>(&'a self, to: &'a PeerAddr, call: PeerCall) -> BoxFuture<'a, Result<Bytes, PeerError>> {
        Box::pin(async move {
            let until = Instant::now() + call.timeout;
            let silent = || PeerError::Silent { node: to.node.clone() };
            assert_ne!(self.me, to.node, "nobody calls itself");
            let there = {
                let mut state = self.net.state.lock();
                *state.calls.entry((self.me.clone(), call.op)).or_default() += 1;
                if let Some(op) = state.traps.get(&(self.me.clone(), to.node.clone(), call.op)).copied() {
                    state.blocked.insert((self.me.clone(), to.node.clone(), op));
                }
                state.listening.get(&to.addr).filter(|(node, _)| *node == to.node).map(|(_, there)| there.clone())
            };
            let Some(there) = there else {
                return Err(PeerError::Unreachable { node: to.node.clone(), reason: "nobody is there".to_owned() });
            };
            let (op, body) = (call.op, call.body);
            let is_blocked = self.net.state.lock().blocked.contains(&(self.me.clone(), to.node.clone(), op));
            if is_blocked || !self.net.passes(&self.me, &to.node) || timeout_at(until, self.net.travel()).await.is_err() {
                tokio::time::sleep_until(until).await;
                return Err(silent());
            }
            let caller = CallerGone::default();
            let remaining = until.saturating_duration_since(Instant::now());
            let request = PeerRequest { from: self.me.clone(), class: call.class, op, remaining, caller: caller.clone(), body };
            let (tell, told) = oneshot::channel();
            // What was begun is ended, also when the caller has gone.
            self.net.served.lock().spawn(async move {
                let _ = tell.send(there.serve(request).await);
            });
            let answered = timeout_at(until, async {
                let answer = told.await;
                self.net.travel().await;
                answer
            });
            let answer = answered.await.map_err(|_| {
                caller.set();
                silent()
            })?;
            if !self.net.passes(&to.node, &self.me) {
                tokio::time::sleep_until(until).await;
                return Err(silent());
            }
            match answer {
                Ok(Ok(bytes)) => Ok(bytes),
                Ok(Err(refusal)) => Err(PeerError::Refused { node: to.node.clone(), refusal }),
                Err(_) => Err(PeerError::Failed { node: to.node.clone() }),
            }
        })
    }
}

/// One member; its log outlives it.
pub struct Node {
    pub id: NodeId,
    pub addr: Arc<str>,
    pub log: MemLog,
    pub journal: Journal,
    running: Option<Consensus>,
}

impl Node {
    pub fn up(&self) -> &Consensus {
        self.running.as_ref().expect("this node runs")
    }

    pub fn is_up(&self) -> bool {
        self.running.is_some()
    }

    pub fn peer(&self) -> PeerAddr {
        PeerAddr { node: self.id.clone(), addr: self.addr.clone() }
    }

    pub async fn propose(&self, command: &str) -> Result<LogIndex, ProposeError> {
        self.propose_within(command, Duration::from_secs(10)).await
    }

    pub async fn propose_within(&self, command: &str, within: Duration) -> Result<LogIndex, ProposeError> {
        self.up().propose(text(command), within).await.map(|(at, _)| at)
    }
}

pub fn text(command: &str) -> Box<RawValue> {
    serde_json::value::to_raw_value(command).expect("a string is JSON")
}

/// A cluster whose members can be stopped, wiped and moved.
pub struct Cluster {
    pub net: Arc<Net>,
    pub nodes: Vec<Node>,
    pub snapshot_every: u64,
    pub seed: u64,
}

impl Cluster {
    /// This many voters; the first has founded the cluster.
    pub async fn of(voters: usize, seed: u64) -> Self {
        let mut cluster = Self { net: Net::new(seed), nodes: Vec::new(), snapshot_every: 5000, seed };
        cluster.found().await;
        for _ in 1..voters {
            let at = cluster.add().await;
            cluster.join(at).await;
            cluster.nodes[0].up().promote(&cluster.nodes[at].id, DEADLINE).await.expect("promoted");
        }
        cluster
    }

    /// One voter that takes snapshots often and keeps little behind them.
    pub async fn with_snapshots(snapshot_every: u64, seed: u64) -> Self {
        let mut cluster = Self { net: Net::new(seed), nodes: Vec::new(), snapshot_every, seed };
        cluster.found().await;
        cluster
    }

    async fn found(&mut self) {
        let first = self.add().await;
        self.nodes[first].up().initialize().await.expect("initialized");
        self.nodes[first].up().lead(DEADLINE).await.expect("leads");
    }

    /// One more node, which has not joined.
    pub async fn add(&mut self) -> usize {
        let addr = format!("node-{}:1", self.nodes.len() + 1);
        self.add_at(Arc::from(addr)).await
    }

    /// One more node, which listens there.
    pub async fn add_at(&mut self, addr: Arc<str>) -> usize {
        let name = format!("node-{}", self.nodes.len() + 1);
        let node = Node { id: id(&name), addr, log: MemLog::new(), journal: Journal::default(), running: None };
        self.nodes.push(node);
        let at = self.nodes.len() - 1;
        self.start(at).await;
        at
    }

    pub async fn join(&self, at: usize) {
        self.nodes[at].up().join(&[self.nodes[0].peer()], DEADLINE).await.expect("joined");
    }

    /// Starts a node that does not run, on its log.
    pub async fn start(&mut self, at: usize) {
        let entropy = Runtime::new(Arc::new(Seeded::new(self.seed)));
        let snapshot_every = self.snapshot_every;
        let node = &mut self.nodes[at];
        let mut config = ConsensusConfig::new(node.id.clone(), "test");
        config.addr = node.addr.clone();
        config.snapshot_every = snapshot_every;
        config.entries_kept = snapshot_every.min(config.entries_kept);
        node.journal = Journal::default();
        let machine = Box::new(node.journal.clone());
        let client = Arc::new(End { net: self.net.clone(), me: node.id.clone() });
        let member = Consensus::start_among(&config, node.log.clone(), machine, &entropy, client).await.expect("starts");
        self.net.state.lock().listening.insert(node.addr.clone(), (node.id.clone(), member.clone()));
        node.running = Some(member);
    }

    /// Stops a node; its log stays.
    pub async fn kill(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        self.net.state.lock().listening.remove(&node.addr);
        if let Some(member) = node.running.take() {
            member.shutdown().await;
        }
    }

    /// Who leads, once one node leads and everybody who is up and connected agrees.
    pub async fn leader(&self) -> usize {
        let mut leads = None;
        wait("a leader that all know", || {
            let leaders: BTreeSet<_> = self.up().map(|node| node.up().status().leader).collect();
            leads = match leaders.iter().collect::<Vec<_>>().as_slice() {
                [Some(leader)] => self.nodes.iter().position(|node| node.id == *leader && node.is_up()),
                _ => None,
            };
            leads.is_some()
        })
        .await;
        leads.expect("just found")
    }

    pub fn up(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.is_up())
    }

    /// Somebody who is up and does not lead.
    pub async fn follower(&self) -> usize {
        let leader = self.leader().await;
        (0..self.nodes.len()).find(|at| *at != leader && self.nodes[*at].is_up()).expect("a follower")
    }

    /// Cuts these off from all others, in both directions.
    pub fn isolate(&self, group: &[usize]) {
        for (a, node) in self.nodes.iter().enumerate() {
            for (b, other) in self.nodes.iter().enumerate() {
                if group.contains(&a) && !group.contains(&b) {
                    self.net.cut_both(&node.id, &other.id);
                }
            }
        }
    }
}

/// Waits for a condition, in the time of the test.
pub async fn wait(what: &str, mut is_met: impl FnMut() -> bool) {
    let until = Instant::now() + DEADLINE;
    while !is_met() {
        assert!(Instant::now() < until, "not in time: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Repeats until it succeeds.
pub async fn eventually<T, E: std::fmt::Display, F: Future<Output = Result<T, E>>>(what: &str, mut attempt: impl FnMut() -> F) -> T {
    let until = Instant::now() + DEADLINE;
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => assert!(Instant::now() < until, "not in time: {what}: {error}"),
        }
        sleep(Duration::from_millis(10)).await;
    }
}
