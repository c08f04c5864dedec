//! A consumer that finds nothing on its node asks the owners of the other partitions: one after the other, and none that has just been silent.
//!
//! What must never happen: an owner that is down delays consumers again and again; messages of several owners are gathered for one answer, and
//! held while others are asked.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::debug;
use veena_contract::{Effect, NodeId, PeerAddr, PeerClass, PeerOp, PeerRefusal, limits};

use crate::consume::deliver::Deliveries;
use crate::consume::waiters::Wanted;
use crate::core::Core;
use crate::errors::ConsumeError;
use crate::message::ConsumeRequest;
use crate::owners::bodies::Tenures;
use crate::owners::bodies::lease::{ClaimRefusal, Ending, endings, take_heard};
use crate::owners::call;
use crate::owners::claims::{Claims, Unclaimed, claim};
use crate::owners::tokens::{self, Tokens};
use crate::tasks::OnExit;
use crate::topics::Topic;

/// How soon an owner that did not hear what has ended is told again.
const TELL_PAUSE_MIN: Duration = Duration::from_millis(50);
/// The same, at most; it doubles with each time.
const TELL_PAUSE_MAX: Duration = Duration::from_secs(1);

/// What the queue needs to remember of other nodes.
#[derive(Default)]
pub struct QueueState {
    /// Their claims here.
    pub claims: Claims,
    /// Their consumers that wait here.
    pub tokens: Tokens,
    /// What this node asks of them.
    pub elsewhere: Elsewhere,
}

impl QueueState {
    /// Passes on what nobody has claimed, and forgets what has lapsed.
    pub fn sweep(&self, core: &Core) {
        self.tokens.pass_on(core);
        self.claims.forget_lapsed(core.now_ms());
    }
}

/// Another node, and those of a topic's partitions that it owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Where it is.
    pub addr: PeerAddr,
    /// The partitions.
    pub tenures: Tenures,
}

/// The other nodes that own partitions that a consumer wants.
#[must_use]
pub fn owners_of(core: &Core, topic: &Topic, wanted: Wanted) -> Vec<Owner> {
    let Some(peers) = &core.ports.peers else { return Vec::new() };
    let record = topic.record.load();
    let mut by_node: BTreeMap<&NodeId, Vec<_>> = BTreeMap::new();
    for (index, owner) in (0..record.partitions).map(veena_contract::PartitionIndex).zip(&record.owners) {
        let is_wanted = wanted == Wanted::Any || wanted == Wanted::Only(index);
        if is_wanted && owner.node != peers.me {
            by_node.entry(&owner.node).or_default().push((index, owner.epoch));
        }
    }
    let owner = |(node, mut partitions): (&NodeId, Vec<_>)| {
        // Of more than a call can name, others each time.
        if partitions.len() > limits::OWNER_CALL_PARTITIONS_MAX {
            let turn = core.ports.entropy.next_u64() % partitions.len() as u64;
            partitions.rotate_left(usize::try_from(turn).unwrap_or(0));
            partitions.truncate(limits::OWNER_CALL_PARTITIONS_MAX);
        }
        Some(Owner { addr: peers.directory.address_of(node)?, tenures: Tenures { topic: record.id, partitions } })
    };
    by_node.into_iter().filter_map(owner).collect()
}

/// Leases messages of other nodes, for a consumer who found none here; waits for a first one at most as long as asked.
///
/// # Errors
/// [`ConsumeError`]; that an owner is down or has not answered only if no other was asked for.
pub async fn consume(core: &Arc<Core>, topic: &Arc<Topic>, request: &ConsumeRequest, wanted: Wanted) -> Result<Deliveries, ConsumeError> {
    let deadline = Instant::now() + request.wait;
    let patience = Instant::now() + Duration::from_millis(limits::OWNER_CATCH_UP_MS_MAX);
    loop {
        let watch = core.moves.watch(core);
        match ask_all(core, topic, request, wanted).await {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => break,
            // It has moved, and whoever knows better is heard of soon.
            Err(Unclaimed::Refused(ClaimRefusal::NotOwner)) if watch.changed(patience).await => follow(core, topic),
            Err(why) => return Err(error_of(why)),
        }
    }
    if Instant::now() >= deadline || core.is_stopping() {
        return Ok(Deliveries::none(core, topic));
    }
    tokens::wait(core, topic, request.into(), wanted, deadline).await
}

/// Takes what the catalog has of the topic now.
fn follow(core: &Core, topic: &Topic) {
    if let Some(record) = core.ports.catalog.view().topic_by_id(topic.record.load().id) {
        core.topics.of(core, record);
    }
}

/// Asks each owner once; `None` when none has anything.
async fn ask_all(core: &Arc<Core>, topic: &Arc<Topic>, request: &ConsumeRequest, wanted: Wanted) -> Result<Option<Deliveries>, Unclaimed> {
    let mut owners = owners_of(core, topic, wanted);
    if let Wanted::Only(index) = wanted
        && owners.is_empty()
        && !core.is_mine(&topic.record.load(), index)
    {
        return Err(Unclaimed::Silent(Effect::None));
    }
    let turn = core.ports.entropy.next_u64() % owners.len().max(1) as u64;
    owners.rotate_left(usize::try_from(turn).unwrap_or(0));
    for owner in &owners {
        let claimed = match core.queue.elsewhere.may_ask(&owner.addr.node) {
            true => claim(core, topic, owner, request.into(), None).await,
            false => Err(Unclaimed::Silent(Effect::None)),
        };
        match claimed {
            Ok(found) if found.is_empty() => {}
            Ok(found) => return Ok(Some(found)),
            Err(why) if wanted != Wanted::Any => return Err(why),
            Err(_) => {}
        }
    }
    Ok(None)
}

pub(super) fn error_of(why: Unclaimed) -> ConsumeError {
    match why {
        Unclaimed::Refused(ClaimRefusal::ReadFailed) => ConsumeError::ReadFailed,
        Unclaimed::Silent(Effect::Possible) => ConsumeError::OutcomeUnknown,
        Unclaimed::Silent(Effect::None) | Unclaimed::Refused(ClaimRefusal::NotOwner | ClaimRefusal::NotOpen | ClaimRefusal::Ended) => {
            ConsumeError::OwnerDown
        }
    }
}

/// What this node has asked of others.
#[derive(Default)]
pub struct Elsewhere {
    /// Nodes that were silent, and until when they are not asked for messages.
    silent: Mutex<BTreeMap<NodeId, Instant>>,
    /// What is to be told to each node. There is a task for each that is here.
    untold: Mutex<BTreeMap<NodeId, VecDeque<(Ending, Instant)>>>,
}

impl Elsewhere {
    /// May this node be asked for messages now? Of those who ask a node that was silent, one finds out for all.
    pub(super) fn may_ask(&self, node: &NodeId) -> bool {
        let now = Instant::now();
        match self.silent.lock().get_mut(node) {
            Some(until) if *until > now => false,
            Some(until) => {
                *until = now + Duration::from_millis(limits::OWNER_CLAIM_MS_MAX);
                true
            }
            None => true,
        }
    }

    /// Until when it is not to be asked.
    pub(super) fn silent_until(&self, node: &NodeId) -> Option<Instant> {
        self.silent.lock().get(node).copied().filter(|until| *until > Instant::now())
    }

    /// It did not answer.
    pub(super) fn silent(&self, node: &NodeId) {
        self.silent.lock().insert(node.clone(), Instant::now() + Duration::from_millis(limits::OWNER_SKIP_MS));
    }

    /// It answered.
    pub(super) fn answered(&self, node: &NodeId) {
        self.silent.lock().remove(node);
    }

    /// Tells a node what has ended; again and again, until it has heard it or it is of no use any more.
    pub(super) fn tell(&self, core: &Arc<Core>, to: &PeerAddr, ending: Ending, until: Instant) {
        let mut untold = self.untold.lock();
        let is_told_to = untold.contains_key(&to.node);
        let waiting = untold.entry(to.node.clone()).or_default();
        if waiting.len() >= limits::OWNER_ENDINGS_QUEUED_MAX {
            waiting.pop_front();
        }
        waiting.push_back((ending, until));
        drop(untold);
        if !is_told_to {
            let (core_for_run, node) = (Arc::clone(core), to.node.clone());
            core.ports.tasks.spawn("endings", OnExit::Log, async move { tell_all(&core_for_run, &node).await });
        }
    }

    /// What is to be told next; `None`, and no task any more, if there is nothing.
    fn next(&self, node: &NodeId) -> Option<Vec<(Ending, Instant)>> {
        let mut untold = self.untold.lock();
        let waiting = untold.get_mut(node)?;
        let now = Instant::now();
        waiting.retain(|(_, until)| *until > now);
        if waiting.is_empty() {
            untold.remove(node);
            return None;
        }
        let count = waiting.len().min(limits::OWNER_ENDINGS_MAX);
        Some(waiting.drain(..count).collect())
    }

    /// It was not heard. It is the oldest: what has come meanwhile goes first where there is no room for all.
    fn put_back(&self, node: &NodeId, batch: Vec<(Ending, Instant)>) {
        if let Some(waiting) = self.untold.lock().get_mut(node) {
            let room = limits::OWNER_ENDINGS_QUEUED_MAX.saturating_sub(waiting.len());
            batch.into_iter().rev().take(room).for_each(|ending| waiting.push_front(ending));
        }
    }
}

/// Tells one node what has ended, until there is nothing left to tell. When this node stops, once more.
async fn tell_all(core: &Arc<Core>, node: &NodeId) {
    let elsewhere = &core.queue.elsewhere;
    let token = core.ports.tasks.token();
    let mut pause = TELL_PAUSE_MIN;
    while let Some(batch) = elsewhere.next(node) {
        let is_last = token.is_cancelled();
        if is_told(core, node, &batch).await {
            pause = TELL_PAUSE_MIN;
            continue;
        }
        elsewhere.put_back(node, batch);
        if is_last {
            elsewhere.untold.lock().remove(node);
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = token.cancelled() => {}
        }
        pause = (pause * 2).min(TELL_PAUSE_MAX);
    }
}

async fn is_told(core: &Core, node: &NodeId, batch: &[(Ending, Instant)]) -> bool {
    let Some(addr) = core.ports.peers.as_ref().and_then(|peers| peers.directory.address_of(node)) else { return false };
    let list: Vec<Ending> = batch.iter().map(|(ending, _)| *ending).collect();
    let timeout = Duration::from_millis(limits::OWNER_CLAIM_MS_MAX);
    match call(core, &addr, PeerOp::OWNER_ENDINGS, PeerClass::Settle, timeout, endings(&list)).await {
        Ok(answer) => take_heard(answer).is_ok(),
        Err(error) => {
            debug!(%error, "an owner has not heard what became of its messages");
            // One that does not know the call has nothing to end.
            matches!(error, veena_contract::PeerError::Refused { refusal: PeerRefusal::UnknownOp, .. })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_was_not_heard_the_oldest_is_given_up_when_there_is_no_room_for_all() {
        let (elsewhere, node) = (Elsewhere::default(), NodeId(Arc::from("b")));
        let until = Instant::now() + Duration::from_secs(600);
        let ending = |number: usize| (Ending::Token { number: number as u64 }, until);
        let queue = |numbers: std::ops::Range<usize>| numbers.map(ending).collect::<VecDeque<_>>();
        elsewhere.untold.lock().insert(node.clone(), queue(0..3));
        let batch = elsewhere.next(&node).expect("three");
        assert_eq!(batch.len(), 3);
        elsewhere.untold.lock().insert(node.clone(), queue(3..limits::OWNER_ENDINGS_QUEUED_MAX + 1));
        elsewhere.put_back(&node, batch);
        assert!(elsewhere.untold.lock()[&node] == queue(1..limits::OWNER_ENDINGS_QUEUED_MAX + 1));
    }
}
