//! The network between nodes, at the level of messages: each request and each answer takes its own time, or is lost, in each direction for
//! itself. Nothing is repeated. That nothing was sent is told only of what will not arrive; whoever hears nothing learns it late, or from its
//! own patience alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;
use veena_contract::{
    BoxFuture, CallerGone, NodeId, PeerAddr, PeerCall, PeerClass, PeerClient, PeerError, PeerRequest, PeerService, limits,
};

use super::member::Service;
use crate::chance::Chance;
use crate::tally::Kind;
use crate::world::World;

/// How long a message takes in fair weather, in ms; what is sent later may arrive earlier.
const TAKES_MS: (u64, u64) = (1, 3);
/// How long it takes to find out that a connection is dead, in ms.
const FOUND_DEAD_MS: (u64, u64) = (1, limits::PEER_SILENCE_MS_MAX);
/// How long it takes to find out that none can be made, in ms.
const UNREACHABLE_MS: (u64, u64) = (1, 200);

/// What happens to messages from one node to another.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Nothing arrives.
    pub is_cut: bool,
    /// Of a hundred messages, so many are lost.
    pub lost_percent: u64,
    /// Of a hundred messages, so many are slow.
    pub slow_percent: u64,
    /// How long a slow one may take.
    pub slow_ms_max: u64,
}

type Outcome = Result<Bytes, PeerError>;
type Reply = oneshot::Sender<Outcome>;

/// From where to where.
type Way = (usize, usize);

/// Something under way.
enum Packet {
    Request {
        way: Way,
        number: u64,
        request: PeerRequest,
        reply: Reply,
    },
    Answer {
        way: Way,
        number: u64,
        outcome: Outcome,
        reply: Reply,
    },
    /// The caller finds out that it gets no answer.
    Nothing {
        error: PeerError,
        reply: Reply,
    },
    /// The caller waits no more.
    Left(CallerGone),
}

struct Port {
    handle: Handle,
    service: Arc<Service>,
}

struct State {
    chance: Chance,
    ports: Vec<Option<Port>>,
    /// Counts the lives of each node, so that a dead one is known.
    lives: Vec<u64>,
    weather: BTreeMap<Way, Weather>,
    packets: BTreeMap<(u64, u64), Packet>,
    tick: u64,
    sent: u64,
    calls: u64,
}

/// The network.
pub struct Net {
    world: Arc<World>,
    state: Mutex<State>,
}

impl Net {
    /// A network in fair weather, on which nobody listens.
    #[must_use]
    pub fn new(world: Arc<World>, chance: Chance) -> Arc<Self> {
        let nodes = world.machines.len();
        let state = State {
            chance,
            ports: (0..nodes).map(|_| None).collect(),
            lives: vec![0; nodes],
            weather: BTreeMap::new(),
            packets: BTreeMap::new(),
            tick: 0,
            sent: 0,
            calls: 0,
        };
        Arc::new(Self { world, state: Mutex::new(state) })
    }

    /// From now on, calls to this node are served so, in this runtime.
    pub(super) fn listen(&self, at: usize, handle: Handle, service: Arc<Service>) {
        self.state.lock().ports[at] = Some(Port { handle, service });
    }

    /// Nobody listens there any more, and what called from there is no more.
    pub(super) fn hang_up(&self, at: usize) {
        let mut state = self.state.lock();
        state.lives[at] += 1;
        state.ports[at] = None;
    }

    /// What happens to messages on this way from now on.
    pub fn set_weather(&self, from: usize, to: usize, weather: Weather) {
        self.state.lock().weather.insert((from, to), weather);
    }

    /// This happens to all messages from now on that are not cut off.
    pub fn slow_down(&self, weather: Weather) {
        let mut state = self.state.lock();
        let nodes = state.ports.len();
        for way in (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to))) {
            if !state.weather_of(way).is_cut {
                state.weather.insert(way, weather);
            }
        }
    }

    /// Everything arrives again, soon.
    pub fn clear_up(&self) {
        self.state.lock().weather.clear();
    }

    /// Hands over what arrives at this tick. Called between the turns of nodes.
    pub(super) fn deliver(self: &Arc<Self>, tick: u64) {
        let due = {
            let mut state = self.state.lock();
            state.tick = tick;
            let later = state.packets.split_off(&(tick + 1, 0));
            std::mem::replace(&mut state.packets, later)
        };
        for packet in due.into_values() {
            match packet {
                Packet::Request { way, number, request, reply } => self.arrive(way, number, request, reply),
                Packet::Answer { way, number, outcome, reply } => {
                    let is_heard = reply.send(outcome).is_ok();
                    self.note(way, number, if is_heard { "answered" } else { "answered, and nobody waits" });
                    if !is_heard {
                        self.world.tally.add(Kind::LateAnswer);
                    }
                }
                Packet::Nothing { error, reply } => drop(reply.send(Err(error))),
                Packet::Left(caller) => caller.set(),
            }
        }
    }

    fn note(&self, (from, to): Way, number: u64, what: &str) {
        let name = |at: usize| &self.world.machines[at].name;
        self.world.trace.line(&format!("{} #{number} {}>{} {what}", self.world.time.now_us(), name(from), name(to)));
    }

    fn node(&self, at: usize) -> NodeId {
        self.world.machines[at].id()
    }

    fn call(&self, way: Way, request: PeerRequest, reply: Reply) {
        let mut state = self.state.lock();
        state.calls += 1;
        let (number, (from, to)) = (state.calls, way);
        let what = format!("{} {} {} bytes", request.op, request.class, request.body.len());
        let weather = state.weather_of(way);
        if weather.is_cut || state.weather_of((to, from)).is_cut || state.ports[to].is_none() {
            // A connection that is known to be dead, or one that is not yet.
            let node = self.node(to);
            let is_known = state.chance.percent(50);
            if !is_known && !weather.is_cut && state.ports[to].is_some() {
                state.send(weather, Packet::Request { way, number, request, reply }, &self.world);
            } else if is_known {
                let after = state.chance.between(UNREACHABLE_MS.0, UNREACHABLE_MS.1);
                state.put(after, Packet::Nothing { error: PeerError::Unreachable { node, reason: "no way there".to_owned() }, reply });
            } else {
                state.lose(node, reply);
            }
            self.note(way, number, &format!("{what}, over a bad line"));
            return;
        }
        if state.is_lost(weather) {
            self.world.tally.add(Kind::RequestLost);
            state.lose(self.node(to), reply);
            self.note(way, number, &format!("{what}, lost"));
            return;
        }
        self.note(way, number, &what);
        state.send(weather, Packet::Request { way, number, request, reply }, &self.world);
    }

    /// A request has come to where it was sent.
    fn arrive(self: &Arc<Self>, way: Way, number: u64, request: PeerRequest, reply: Reply) {
        let (from, to) = way;
        let mut state = self.state.lock();
        let port = state.ports[to].as_ref().map(|port| (port.handle.clone(), Arc::clone(&port.service)));
        let Some((handle, service)) = port.filter(|_| !state.weather_of(way).is_cut) else {
            state.lose(self.node(to), reply);
            return self.note(way, number, "finds nobody");
        };
        drop(state);
        // Whoever leaves before the call is begun has not made it.
        if request.caller.is_gone() {
            return self.note(way, number, "comes from nobody any more");
        }
        self.note(way, number, "arrives");
        let mut serving = Serving { net: Arc::clone(self), way: (to, from), number, reply: Some(reply) };
        let node = self.node(to);
        // In a task of its own, so that what breaks breaks alone.
        let served = handle.spawn(async move { service.serve(request).await });
        drop(handle.spawn(async move {
            let outcome = match served.await {
                Ok(Ok(bytes)) => Ok(bytes),
                Ok(Err(refusal)) => Err(PeerError::Refused { node, refusal }),
                Err(failed) => {
                    if failed.is_panic() {
                        serving.net.world.complain(format!("{node} panicked over a call of another node"));
                    }
                    Err(PeerError::Failed { node })
                }
            };
            serving.answer(outcome);
        }));
    }

    fn answer(&self, way: Way, number: u64, outcome: Outcome, reply: Reply) {
        let mut state = self.state.lock();
        let weather = state.weather_of(way);
        let (from, _) = way;
        if weather.is_cut || state.is_lost(weather) {
            self.world.tally.add(Kind::AnswerLost);
            state.lose(self.node(from), reply);
            return self.note(way, number, "answer lost");
        }
        state.send(weather, Packet::Answer { way, number, outcome, reply }, &self.world);
    }
}

impl State {
    fn weather_of(&self, way: Way) -> Weather {
        self.weather.get(&way).copied().unwrap_or_default()
    }

    fn is_lost(&mut self, weather: Weather) -> bool {
        weather.lost_percent > 0 && self.chance.percent(weather.lost_percent)
    }

    fn put(&mut self, after_ms: u64, packet: Packet) {
        self.sent += 1;
        self.packets.insert((self.tick + after_ms, self.sent), packet);
    }

    fn send(&mut self, weather: Weather, packet: Packet, world: &World) {
        let is_slow = weather.slow_percent > 0 && self.chance.percent(weather.slow_percent);
        let more = if is_slow { self.chance.below(weather.slow_ms_max) } else { 0 };
        if is_slow {
            world.tally.add(Kind::SlowMessage);
        }
        let takes = self.chance.between(TAKES_MS.0, TAKES_MS.1);
        self.put(takes + more, packet);
    }

    /// Nothing comes back; the caller is told so some time later, unless it gives up before.
    fn lose(&mut self, node: NodeId, reply: Reply) {
        let after = self.chance.between(FOUND_DEAD_MS.0, FOUND_DEAD_MS.1);
        self.put(after, Packet::Nothing { error: PeerError::Lost { node, reason: "the line is dead".to_owned() }, reply });
    }
}

/// A call that is served. When the node dies, its caller hears of it some time later.
struct Serving {
    net: Arc<Net>,
    way: Way,
    number: u64,
    reply: Option<Reply>,
}

impl Serving {
    fn answer(&mut self, outcome: Outcome) {
        if let Some(reply) = self.reply.take() {
            self.net.answer(self.way, self.number, outcome, reply);
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.take() {
            let node = self.net.node(self.way.0);
            self.net.state.lock().lose(node, reply);
        }
    }
}

/// One node's way into the network, for one life.
pub(super) struct Line {
    net: Arc<Net>,
    me: usize,
    life: u64,
}

impl Line {
    pub fn new(net: &Arc<Net>, me: usize) -> Self {
        let life = net.state.lock().lives[me];
        Self { net: Arc::clone(net), me, life }
    }
}

/// Where a node listens.
pub(super) fn address(node: &NodeId) -> PeerAddr {
    PeerAddr { node: node.clone(), addr: Arc::from(format!("{node}:1")) }
}

const fn body_bytes_max(class: PeerClass) -> usize {
    match class {
        PeerClass::Control => limits::PEER_CONTROL_BYTES_MAX,
        PeerClass::Data => limits::PEER_DATA_BYTES_MAX,
        PeerClass::Wait => limits::PEER_WAIT_BYTES_MAX,
        PeerClass::Settle => limits::PEER_SETTLE_BYTES_MAX,
    }
}

impl PeerClient for Line {
    fn call<'a>(&'a self, to: &'a PeerAddr, call: PeerCall) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let (node, bytes_max) = (to.node.clone(), body_bytes_max(call.class));
            if call.body.len() > bytes_max {
                return Err(PeerError::TooLarge { bytes: call.body.len(), bytes_max });
            }
            let Some(at) = self.net.world.machines.iter().position(|machine| machine.name == node.0) else {
                return Err(PeerError::Unreachable { node, reason: "nobody has this name".to_owned() });
            };
            let caller = CallerGone::default();
            let request = PeerRequest {
                from: self.net.node(self.me),
                class: call.class,
                op: call.op,
                remaining: call.timeout,
                caller: caller.clone(),
                body: call.body,
            };
            let (reply, answer) = oneshot::channel();
            self.net.call((self.me, at), request, reply);
            let mut waiting = Waiting { line: self, way: (self.me, at), caller: Some(caller) };
            match timeout(call.timeout, answer).await {
                Ok(Ok(outcome)) => {
                    waiting.caller = None;
                    outcome
                }
                Ok(Err(_)) => Err(PeerError::Lost { node, reason: "the network is gone".to_owned() }),
                Err(_) => Err(PeerError::Silent { node }),
            }
        })
    }
}

/// Somebody waits for an answer. That he waits no more is told to the node he asked; if he has died, it finds out.
struct Waiting<'a> {
    line: &'a Line,
    way: Way,
    caller: Option<CallerGone>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(caller) = self.caller.take() else { return };
        let mut state = self.line.net.state.lock();
        let is_dead = state.lives[self.line.me] != self.line.life;
        let (from, to) = if is_dead || state.weather_of(self.way).is_cut { FOUND_DEAD_MS } else { TAKES_MS };
        let after = state.chance.between(from, to);
        state.put(after, Packet::Left(caller));
    }
}
