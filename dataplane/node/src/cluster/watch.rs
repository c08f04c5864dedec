//! Who of the members is there, by this node's own clock: each node asks all others again and again. A member that does not answer is silent,
//! nothing more; only long silence, while this node itself was awake, is a death.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch::Sender;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use veena_broker::Broker;
use veena_contract::{
    Catalog, DrainMark, LeaderPort, NodeId, PeerAddr, PeerCall, PeerClass, PeerClient, PeerError, PeerOp, Standing, WallClock, limits,
};
use veena_metastore::{Metastore, MetastoreStatus};

use super::plan::Seat;

const SILENT: Duration = Duration::from_millis(limits::MEMBER_SILENT_MS);
const DEAD: Duration = Duration::from_millis(limits::MEMBER_DEAD_MS);
const WATCH_EVERY: Duration = Duration::from_millis(limits::MEMBER_WATCH_MS);
const ANSWER_WITHIN: Duration = Duration::from_millis(limits::MEMBER_ANSWER_MS_MAX);
/// One round counts for at most this much silence: when this node stood still, it was not the others that were silent.
const ROUND_MAX: Duration = WATCH_EVERY.saturating_add(ANSWER_WITHIN).saturating_mul(2);

const TAKEN_OUT: &str = "this node was taken out of its cluster; ask another node, and stop this one";

/// What a node asks along with "are you there?". A node of the first version does not look at it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Question {
    /// Said by the leader: how far the clock of the node that is asked is ahead of its own, if that is too far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_ahead_ms: Option<i64>,
    /// Does the one that asks lead?
    pub leads: bool,
    /// A node of which it is asked how long it has been silent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<NodeId>,
}

/// What a node says of itself. A node of the first version says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Sign {
    /// Its time of day.
    pub wall_ms: u64,
    /// Is it ready?
    #[serde(rename = "ready")]
    pub is_ready: bool,
    /// If it is being taken out, and nothing is left in it that others do not have: which time of being taken out that is.
    #[serde(rename = "drained_under", skip_serializing_if = "Option::is_none")]
    pub drained: Option<DrainMark>,
    /// Is the one that asks a member, as far as it knows?
    #[serde(rename = "known")]
    pub knows_you: bool,
    /// How long the node that it was asked about has been silent; absent if that is no member to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_ms: Option<u64>,
}

/// Asks a node whether it is there. `None` is the answer of a node of the first version.
pub(super) async fn ask(client: &dyn PeerClient, peer: &PeerAddr, question: &Question) -> Result<Option<Sign>, PeerError> {
    let body = serde_json::to_vec(question).expect("invariant: a question is plain data").into();
    let call = PeerCall { class: PeerClass::Control, op: PeerOp::NODE_ALIVE, timeout: ANSWER_WITHIN, body };
    let answer = client.call(peer, call).await?;
    Ok(serde_json::from_slice(&answer).ok())
}

/// How far a clock is ahead that said `theirs_ms` in an answer that `took` so long and came at `ours_ms`, if that is certainly too far: when
/// it was written is not known.
fn clock_ahead(theirs_ms: u64, ours_ms: u64, took: Duration) -> Option<i64> {
    let doubt_ms = i64::try_from(took.as_millis() / 2).unwrap_or(i64::MAX);
    let ahead_ms = theirs_ms.wrapping_sub(ours_ms).cast_signed().saturating_add(doubt_ms);
    let most = limits::CLOCK_OFF_MS_MAX.saturating_add(doubt_ms.unsigned_abs());
    (ahead_ms.unsigned_abs() > most).then_some(ahead_ms)
}

/// What is known of another member.
#[derive(Clone, Debug, Default)]
struct Seen {
    silent: Duration,
    sign: Option<Sign>,
    /// How far its clock is ahead, if that is too far.
    clock_ahead_ms: Option<i64>,
}

/// The members, watched by one of them.
pub(super) struct Watch {
    me: NodeId,
    metastore: Metastore,
    client: Arc<dyn PeerClient>,
    clock: Arc<dyn WallClock>,
    broker: OnceLock<Broker>,
    seen: Mutex<BTreeMap<NodeId, Seen>>,
    /// What the leader says of this node's clock.
    clock_ahead_ms: Mutex<Option<i64>>,
    /// Was this node taken out, as of the last round?
    is_out: Sender<bool>,
}

impl Watch {
    pub fn new(me: NodeId, metastore: Metastore, client: Arc<dyn PeerClient>, clock: Arc<dyn WallClock>) -> Self {
        let (seen, clock_ahead_ms) = (Mutex::default(), Mutex::default());
        Self { me, metastore, client, clock, broker: OnceLock::new(), seen, clock_ahead_ms, is_out: Sender::new(false) }
    }

    pub fn engine(&self, broker: Broker) {
        // There is one, and it is set once.
        let _first = self.broker.set(broker);
    }

    /// Asks all others, again and again.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut last = Instant::now();
        loop {
            let now = Instant::now();
            let passed = now.duration_since(last);
            last = now;
            if stop.run_until_cancelled(self.round(passed)).await.is_none() {
                return;
            }
            if stop.run_until_cancelled(tokio::time::sleep(WATCH_EVERY)).await.is_none() {
                return;
            }
        }
    }

    async fn round(&self, passed: Duration) {
        // The leader that was told may have been of an older version, and has not kept it.
        if let Err(error) = self.metastore.announce_level().await {
            debug!(%error, "the others do not know yet what this node's program knows");
        }
        let status = self.metastore.status();
        let leads = status.leader.as_ref() == Some(&self.me);
        if leads {
            *self.clock_ahead_ms.lock() = None;
        }
        let others: Vec<&PeerAddr> = status.members.iter().map(|member| &member.peer).filter(|peer| peer.node != self.me).collect();
        let asked = others.iter().map(|peer| async {
            let clock_ahead_ms = self.seen.lock().get(&peer.node).and_then(|seen| seen.clock_ahead_ms).filter(|_| leads);
            let began = Instant::now();
            let answer = ask(self.client.as_ref(), peer, &Question { clock_ahead_ms, leads, about: None }).await;
            answer.map(|sign| (sign, began.elapsed(), self.clock.now_ms()))
        });
        let answers = join_all(asked).await;
        let mut seen = self.seen.lock();
        seen.retain(|node, _| others.iter().any(|peer| peer.node == *node));
        for (peer, answer) in others.iter().zip(answers) {
            let member = seen.entry(peer.node.clone()).or_default();
            let was_dead = member.silent >= DEAD;
            match answer {
                Ok((sign, took, wall_ms)) => {
                    let ahead = sign.as_ref().and_then(|sign| clock_ahead(sign.wall_ms, wall_ms, took));
                    if leads && ahead.is_some() && member.clock_ahead_ms.is_none() {
                        warn!(node = %peer.node, ahead_ms = ahead, "the clock of a member differs from this node's, which leads");
                    }
                    *member = Seen { silent: Duration::ZERO, sign, clock_ahead_ms: ahead };
                }
                Err(_) => member.silent += passed.min(ROUND_MAX),
            }
            match (was_dead, member.silent >= DEAD) {
                (false, true) => info!(node = %peer.node, "a member is silent, and taken for dead"),
                (true, false) => info!(node = %peer.node, "a member that was taken for dead is heard again"),
                _ => {}
            }
        }
        drop(seen);
        let is_out = self.was_taken_out();
        if self.is_out.send_replace(is_out) != is_out {
            if is_out {
                warn!("{TAKEN_OUT}");
            } else {
                info!("the others know this node again");
            }
        }
    }

    /// What this node says once it was taken out.
    pub fn taken_out(&self) -> Option<&'static str> {
        self.is_out.borrow().then_some(TAKEN_OUT)
    }

    /// Completes when this node finds that it was taken out.
    pub async fn until_taken_out(&self) {
        let mut is_out = self.is_out.subscribe();
        // The sender lives here.
        let _found = is_out.wait_for(|is_out| *is_out).await.is_ok();
    }

    /// Answers another node that asks whether this one is there.
    pub fn answer(&self, from: &NodeId, question: &[u8]) -> Bytes {
        let question: Question = serde_json::from_slice(question).unwrap_or_default();
        // A node that led once does not know better.
        if question.leads && self.metastore.status().leader.as_ref() == Some(from) {
            let was = std::mem::replace(&mut *self.clock_ahead_ms.lock(), question.clock_ahead_ms);
            match (was, question.clock_ahead_ms) {
                (None, Some(ahead_ms)) => warn!(leader = %from, ahead_ms, "the clock of this node differs from the leader's"),
                (Some(_), None) => info!(leader = %from, "the clock of this node agrees with the leader's again"),
                _ => {}
            }
        }
        let mut sign = self.sign();
        sign.knows_you = self.metastore.is_member(from);
        sign.silent_ms =
            question.about.and_then(|node| self.silent(&node)).map(|silent| u64::try_from(silent.as_millis()).unwrap_or(u64::MAX));
        serde_json::to_vec(&sign).expect("invariant: a sign is plain data").into()
    }

    fn sign(&self) -> Sign {
        let broker = self.broker.get();
        let is_ready = broker.is_some_and(|broker| broker.not_ready_reason().is_none())
            && self.metastore.not_ready_reason().is_none()
            && self.not_ready_reason().is_none();
        let drained = broker.and_then(Broker::drained);
        Sign { wall_ms: self.clock.now_ms(), is_ready, drained, ..Sign::default() }
    }

    /// Why this node should not be called ready, as its cluster sees it.
    pub fn not_ready_reason(&self) -> Option<String> {
        if let Some(reason) = self.taken_out() {
            return Some(reason.to_owned());
        }
        let ahead_ms = (*self.clock_ahead_ms.lock())?;
        let direction = if ahead_ms > 0 { "ahead of" } else { "behind" };
        Some(format!("the clock of this node is {} ms {direction} the leader's; set it right", ahead_ms.unsigned_abs()))
    }

    /// A node that was taken out is told of it by nobody; but those that answer it do not know it any more. One that has just come is not
    /// known to all either: it follows a leader, and is not marked.
    fn was_taken_out(&self) -> bool {
        let is_in = || !self.metastore.view().draining.contains(&self.me) && self.metastore.status().has_leader;
        let seen = self.seen.lock();
        let mut signs = seen.values().filter(|seen| seen.silent.is_zero()).filter_map(|seen| seen.sign.as_ref()).peekable();
        signs.peek().is_some() && signs.all(|sign| !sign.knows_you) && !is_in()
    }

    /// How long a member has been silent. `None` for a node that is none.
    pub fn silent(&self, node: &NodeId) -> Option<Duration> {
        if !self.metastore.is_member(node) {
            return None;
        }
        Some(self.seen.lock().get(node).map_or(Duration::ZERO, |seen| seen.silent))
    }

    pub fn standing(&self, node: &NodeId) -> Standing {
        match self.silent(node) {
            None => Standing::NotAMember,
            Some(silent) if silent >= DEAD => Standing::Dead,
            Some(_) => Standing::Alive,
        }
    }

    /// What is known of every member, by name.
    pub fn seats(&self, status: &MetastoreStatus) -> Vec<Seat> {
        let mine = Seen { sign: Some(self.sign()), ..Seen::default() };
        let seen = self.seen.lock();
        let mut seats: Vec<Seat> = status
            .members
            .iter()
            .map(|member| {
                let node = &member.peer.node;
                let known = if *node == self.me { mine.clone() } else { seen.get(node).cloned().unwrap_or_default() };
                Seat {
                    node: node.clone(),
                    is_voter: member.is_voter,
                    is_leader: status.leader.as_ref() == Some(node),
                    is_here: known.silent < SILENT && known.sign.is_some(),
                    is_dead: known.silent >= DEAD,
                    is_ready: known.clock_ahead_ms.is_none() && known.sign.as_ref().is_some_and(|sign| sign.is_ready),
                    drained: known.sign.and_then(|sign| sign.drained),
                }
            })
            .collect();
        seats.sort_unstable_by(|a, b| a.node.cmp(&b.node));
        seats
    }
}

#[cfg(test)]
mod tests;
