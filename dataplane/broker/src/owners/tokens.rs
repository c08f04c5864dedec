//! Consumers that wait for messages of another node's partitions: a token each, in the line of the owner.
//!
//! A token reserves nothing. It stands among the parked consumers of the owner, first come first served with those of the owner itself, and
//! is woken like one of them. Whoever is woken claims; only the claim reserves. A token that was woken keeps its place, and the baton, until
//! its claim has come: served, it leaves; served with nothing, it waits again. When no claim comes in time, when its consumer is said to be
//! gone, or the wait is over, it leaves and its baton is passed on.
//!
//! What must never happen: a message lies there while somebody waits for it and nobody is on the way to it; an owner asks, or is asked, again
//! and again while there is nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::debug;
use veena_contract::{Effect, NodeId, PeerAddr, PeerClass, PeerOp, PeerRefusal, PeerRequest, TopicId, limits};

use crate::consume::deliver::Deliveries;
use crate::consume::lease::MonoMs;
use crate::consume::park::{self, Parked};
use crate::consume::reserve::{Demand, is_takeable};
use crate::consume::waiters::{Ticket, Wanted};
use crate::core::Core;
use crate::errors::ConsumeError;
use crate::owners::bodies::lease::{ClaimRefusal, Ending, Wait, Waited};
use crate::owners::call;
use crate::owners::claims::{Number, Unclaimed, claim, owned_of};
use crate::owners::elsewhere::{Owner, error_of, owners_of};
use crate::partition::{NotOpen, Partition};
use crate::topics::Topic;

/// How long a consumer that was woken in vain stays away; and at first, one whose owner cannot take it.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// How long the latter stays away at most; it doubles with each time.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How much longer than the wait its answer may take before the owner counts as silent.
const ANSWER_MARGIN: Duration = Duration::from_secs(1);

/// Consumers of other nodes that wait here.
#[derive(Default)]
pub struct Tokens {
    standing: Mutex<BTreeMap<Number, Token>>,
}

struct Token {
    topic: Arc<Topic>,
    wanted: Wanted,
    ticket: Ticket,
    waker: Arc<Notify>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A call waits under it; of several, the last.
    Waiting {
        /// Which.
        turn: u64,
    },
    /// Its consumer was told, and has until then to claim.
    Called {
        /// Then it is passed on.
        until: MonoMs,
    },
}

impl Tokens {
    /// Puts a token in line, or takes it up again where it stands.
    fn wait(&self, number: &Number, topic: &Arc<Topic>, wanted: Wanted, turn: u64) -> Result<Arc<Notify>, ConsumeError> {
        let mut standing = self.standing.lock();
        if let Some(token) = standing.get_mut(number) {
            match token.stage {
                Stage::Called { .. } => token.topic.waiters.lock().return_baton(token.wanted, token.ticket),
                Stage::Waiting { .. } => token.waker.notify_waiters(),
            }
            token.stage = Stage::Waiting { turn };
            return Ok(Arc::clone(&token.waker));
        }
        let waker = Arc::new(Notify::new());
        let ticket = park::park(topic, wanted, &waker)?;
        let token = Token { topic: Arc::clone(topic), wanted, ticket, waker: Arc::clone(&waker), stage: Stage::Waiting { turn } };
        standing.insert(number.clone(), token);
        Ok(waker)
    }

    /// Is it this call that waits under the token?
    fn is_waiting(&self, number: &Number, turn: u64) -> bool {
        self.standing.lock().get(number).is_some_and(|token| token.stage == Stage::Waiting { turn })
    }

    fn set_called(&self, core: &Core, number: &Number, ms_more: u64) {
        if let Some(token) = self.standing.lock().get_mut(number) {
            token.stage = Stage::Called { until: core.now_ms() + limits::TOKEN_CLAIM_MS_MAX + ms_more };
        }
    }

    /// A claim is made for the token. Says whether it stands in this topic's line.
    pub(super) fn claims(&self, core: &Core, number: &Number, topic: TopicId) -> bool {
        let is_standing = self.standing.lock().get(number).is_some_and(|token| token.topic.record.load().id == topic);
        if is_standing {
            self.set_called(core, number, limits::OWNER_CLAIM_MS_MAX);
        }
        is_standing
    }

    /// The claim was served; with nothing, its consumer will wait again.
    pub(super) fn has_claimed(&self, core: &Core, number: &Number, has_found: bool) {
        if has_found {
            self.remove(core, number);
        } else {
            self.set_called(core, number, 0);
        }
    }

    /// Nobody waits under the token any more: what it was told of is passed on.
    pub(super) fn remove(&self, core: &Core, number: &Number) {
        let token = self.standing.lock().remove(number);
        if let Some(Token { topic, wanted, ticket, waker, .. }) = token {
            waker.notify_waiters();
            park::leave(core, &topic, wanted, ticket);
        }
    }

    /// Passes on what was not claimed in time. Of a node that does not claim, no other consumer is told either: each would hold the same message
    /// up for as long. Those that are there after all wait anew.
    pub(super) fn pass_on(&self, core: &Core) {
        let now = core.now_ms();
        let is_late = |token: &Token| matches!(token.stage, Stage::Called { until } if until <= now);
        let removed: Vec<Number> = {
            let standing = self.standing.lock();
            let silent: BTreeSet<NodeId> = standing.iter().filter(|(_, token)| is_late(token)).map(|((node, _), _)| node.clone()).collect();
            standing.keys().filter(|(node, _)| silent.contains(node)).cloned().collect()
        };
        for number in removed {
            debug!(node = %number.0, "a node was told of a message and did not claim it: others are told");
            self.remove(core, &number);
        }
    }
}

/// The token of a call that waits; it leaves the line when dropped, unless its consumer was told.
struct Standing<'a> {
    core: &'a Core,
    number: &'a Number,
    turn: u64,
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        if self.core.queue.tokens.is_waiting(self.number, self.turn) {
            self.core.queue.tokens.remove(self.core, self.number);
        }
    }
}

/// Opens what nobody has opened since this process began, and which would wake nobody therefore, and tells of what is in it. Never ends.
async fn open_all(core: &Arc<Core>, topic: &Topic, partitions: &[Arc<Partition>]) -> Infallible {
    for partition in partitions.iter().filter(|partition| partition.serving().is_none() && !partition.is_asleep_and_empty()) {
        match partition.open(core).await {
            Ok(serving) if is_takeable(core, &topic.record.load(), &serving) => topic.wake(partition.id.index, 1),
            Ok(_) => {}
            Err(NotOpen) => {
                debug!(partition = %partition.dir.display(), "a consumer waits for what is in a log that cannot be opened now");
            }
        }
    }
    pending().await
}

/// Serves a wait: answers when there is something to claim, or when the time is over.
///
/// # Errors
/// [`PeerRefusal`].
pub(super) async fn serve(core: &Arc<Core>, request: PeerRequest) -> Result<Bytes, PeerRefusal> {
    let began = Instant::now();
    let wait = Wait::decode(request.body)?;
    let deadline = began + Duration::from_millis(wait.wait_ms.into()).min(request.remaining);
    let number = (request.from, wait.token);
    let Some((topic, partitions)) = owned_of(core, &wait.tenures, deadline).await else { return Ok(Waited::NotOwner.encode()) };
    if request.caller.is_gone() {
        return Err(PeerRefusal::TooLate);
    }
    let wanted = match partitions.as_slice() {
        [only] if !wait.is_any => Wanted::Only(only.id.index),
        _ => Wanted::Any,
    };
    if core.queue.claims.has_ended(&number) {
        return Ok(Waited::Over.encode());
    }
    let turn = core.ports.entropy.next_u64();
    let Ok(waker) = core.queue.tokens.wait(&number, &topic, wanted, turn) else { return Ok(Waited::TooMany.encode()) };
    let standing = Standing { core, number: &number, turn };
    // What became takeable before the token stood in line is handed out here.
    park::wake_takeable(core, &topic);
    tokio::select! {
        () = waker.notified() => {}
        // A token that is told meanwhile waits for no log.
        never = open_all(core, &topic, &partitions) => match never {},
        () = tokio::time::sleep_until(deadline) => return Ok(Waited::Over.encode()),
        () = core.ports.tasks.token().cancelled() => return Err(PeerRefusal::NotServing),
    }
    if core.is_stopping() {
        return Err(PeerRefusal::NotServing);
    }
    if !core.queue.tokens.is_waiting(&number, turn) {
        // Whoever waits now under the token is to have what this call was woken with.
        waker.notify_one();
        return Ok(Waited::Over.encode());
    }
    if topic.is_gone() || request.caller.is_gone() {
        return Ok(Waited::Over.encode());
    }
    core.queue.tokens.set_called(core, &number, 0);
    drop(standing);
    Ok(Waited::Woken.encode())
}

/// Waits at this node and at every owner at once, until there is a first message or the time is over.
///
/// # Errors
/// [`ConsumeError`].
pub(super) async fn wait(
    core: &Arc<Core>,
    topic: &Arc<Topic>,
    demand: Demand,
    wanted: Wanted,
    deadline: Instant,
) -> Result<Deliveries, ConsumeError> {
    loop {
        if let Some(found) = wait_at(core, topic, demand, wanted, deadline).await? {
            return Ok(found);
        }
    }
}

/// Waits at the owners there are now; `None` when there are others.
async fn wait_at(
    core: &Arc<Core>,
    topic: &Arc<Topic>,
    demand: Demand,
    wanted: Wanted,
    deadline: Instant,
) -> Result<Option<Deliveries>, ConsumeError> {
    let (catalog, id) = (&core.ports.catalog, topic.record.load().id);
    let view = catalog.view();
    let mut changed = catalog.changed(view.applied);
    let record = view.topic_by_id(id).ok_or(ConsumeError::TopicNotFound)?;
    core.topics.of(core, record);
    let mut seen = (record.revision, addresses(core));
    let owners = owners_of(core, topic, wanted);
    let parked = Parked::new(core, topic, wanted)?;
    let mut watches: FuturesUnordered<_> = owners.iter().map(|owner| watch(core, topic, owner, demand, wanted, deadline)).collect();
    loop {
        // What became takeable before this consumer stood in line, or while it held a baton, is handed out here.
        park::wake_takeable(core, topic);
        tokio::select! {
            () = parked.notified() => {
                if let Some(found) = park::attempt_woken(core, topic, demand, wanted, &parked).await? {
                    return Ok(Some(found));
                }
            }
            Some(found) = watches.next() => return found.map(Some),
            () = tokio::time::sleep_until(deadline) => return Ok(Some(Deliveries::none(core, topic))),
            () = &mut changed => {
                let view = catalog.view();
                let record = view.topic_by_id(id).ok_or(ConsumeError::TopicNotFound)?;
                changed = catalog.changed(view.applied);
                let now = (record.revision, addresses(core));
                // Most changes are of other topics: what costs something for each partition is not done for them.
                if now == seen {
                    continue;
                }
                seen = now;
                core.topics.of(core, record);
                if owners_of(core, topic, wanted) != owners {
                    return Ok(None);
                }
            }
        }
    }
}

/// Where the members listen.
fn addresses(core: &Core) -> Vec<PeerAddr> {
    let Some(peers) = &core.ports.peers else { return Vec::new() };
    peers.directory.nodes().iter().filter_map(|node| peers.directory.address_of(node)).collect()
}

/// A token that this node has at an owner, for all that is known. Dropped, it is given back.
struct Placed<'a> {
    core: &'a Arc<Core>,
    owner: &'a PeerAddr,
    number: u64,
    is_placed: bool,
    until: Instant,
}

impl Drop for Placed<'_> {
    fn drop(&mut self) {
        if self.is_placed {
            self.core.queue.elsewhere.tell(self.core, self.owner, Ending::Token { number: self.number }, self.until);
        }
    }
}

/// Waits at one owner. Ends with messages; for a consumer of one partition also when that cannot be had.
async fn watch(
    core: &Arc<Core>,
    topic: &Arc<Topic>,
    owner: &Owner,
    demand: Demand,
    wanted: Wanted,
    deadline: Instant,
) -> Result<Deliveries, ConsumeError> {
    let is_any = wanted == Wanted::Any;
    let node = &owner.addr.node;
    let (number, until) = (core.ports.entropy.next_u64().max(1), deadline + ANSWER_MARGIN);
    let mut token = Placed { core, owner: &owner.addr, number, is_placed: false, until };
    let mut pause = PAUSE_MIN;
    loop {
        if let Some(until) = core.queue.elsewhere.silent_until(node) {
            tokio::time::sleep_until(until).await;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let wait_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
        let body = Wait { tenures: owner.tenures.clone(), is_any, token: number, wait_ms }.encode();
        let was_placed = std::mem::replace(&mut token.is_placed, true);
        let answer = call(core, &owner.addr, PeerOp::OWNER_WAIT, PeerClass::Wait, left + ANSWER_MARGIN, body).await;
        match answer.map(Waited::decode) {
            Ok(Ok(Waited::Woken)) => {
                core.queue.elsewhere.answered(node);
                match claim(core, topic, owner, demand, Some(number)).await {
                    // Others were quicker: no reason to stay away, or the next message is told to nobody for as long.
                    Ok(found) if found.is_empty() => pause = PAUSE_MIN,
                    Ok(found) => {
                        token.is_placed = false;
                        return Ok(found);
                    }
                    // It has moved: where to is heard of soon.
                    Err(Unclaimed::Refused(ClaimRefusal::NotOwner)) => {}
                    Err(why) if !is_any => return Err(error_of(why)),
                    Err(Unclaimed::Silent(_) | Unclaimed::Refused(_)) => {}
                }
            }
            Ok(Ok(Waited::Over | Waited::NotOwner | Waited::TooMany)) => {}
            Ok(Err(malformed)) => debug!(%node, error = %malformed, "an owner's answer to a wait cannot be read"),
            Err(error) => {
                debug!(%error, "an owner cannot be waited at now");
                token.is_placed = was_placed || error.effect() != Effect::None;
                core.queue.elsewhere.silent(node);
                if !is_any {
                    return Err(ConsumeError::OwnerDown);
                }
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
