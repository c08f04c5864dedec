//! Leases of another node's messages: the claim at their owner, and what becomes of it.
//!
//! A claim has a number that its caller chose. The owner keeps its leases under that number until the caller tells how it ended: which of its
//! messages have reached their client, and which are given back. A caller that has got no answer tells that too, so that what was granted in
//! vain is free as soon as that is known. An end that is never heard frees nothing early: a lease that may be in a client's hands stands until
//! its own deadline.
//!
//! What must never happen: a lease ends before its deadline although its message was handed to a client; a claim that is carried out after its
//! end, or twice, takes something.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};
use tracing::debug;
use veena_contract::{Effect, NodeId, PeerAddr, PeerOp, PeerRefusal, PeerRequest, limits};

use crate::consume::deliver::{Deliveries, Held};
use crate::consume::lease::MonoMs;
use crate::consume::reserve::{self, Demand};
use crate::consume::waiters::Wanted;
use crate::core::Core;
use crate::errors::ConsumeError;
use crate::owners::bodies::Tenures;
use crate::owners::bodies::lease::{Claim, ClaimRefusal, Ending, claim_refused, claimed, heard, take_claimed, take_endings};
use crate::owners::elsewhere::Owner;
use crate::owners::{call_in_turn, owned};
use crate::partition::Partition;
use crate::topics::Topic;

/// A claim, or a token: who made it, and the number it gave it.
pub type Number = (NodeId, u64);

/// The claims of other nodes whose end this node has not heard of.
#[derive(Default)]
pub struct Claims {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    open: BTreeMap<Number, Open>,
    /// What has ended, for what comes too late; in order of its end.
    ended: BTreeSet<Number>,
    ended_first: VecDeque<Number>,
}

/// A claim without its end.
struct Open {
    /// Nothing while it is being served.
    granted: Option<Granted>,
    /// From then on no lease of it can be living, but those that were extended by whoever has them.
    lapses_at: MonoMs,
}

/// What was granted to a claim.
struct Granted {
    topic: Arc<Topic>,
    /// Each with the length of its payload.
    leases: Vec<(Held, usize)>,
}

impl Known {
    fn end(&mut self, number: &Number) {
        if self.ended.insert(number.clone()) {
            self.ended_first.push_back(number.clone());
        }
        if self.ended_first.len() > limits::OWNER_CLAIMS_ENDED_MAX
            && let Some(oldest) = self.ended_first.pop_front()
        {
            self.ended.remove(&oldest);
        }
    }
}

impl Claims {
    /// `None` for one that is known already: it is not carried out again, and not after its end.
    fn begin(&self, number: &Number, lapses_at: MonoMs) -> Option<Serving<'_>> {
        let mut known = self.known.lock();
        if known.ended.contains(number) || known.open.contains_key(number) {
            return None;
        }
        if known.open.len() >= limits::OWNER_CLAIMS_MAX {
            let soonest = known.open.iter().filter(|(_, open)| open.granted.is_some()).min_by_key(|(_, open)| open.lapses_at);
            let soonest = soonest.map(|(number, _)| number.clone())?;
            known.open.remove(&soonest);
        }
        known.open.insert(number.clone(), Open { granted: None, lapses_at });
        Some(Serving { claims: self, number: number.clone() })
    }

    /// Notes that a token has ended: a wait under it comes too late from here on.
    pub(super) fn end_token(&self, number: &Number) {
        self.known.lock().end(number);
    }

    /// Has this ended?
    pub(super) fn has_ended(&self, number: &Number) -> bool {
        self.known.lock().ended.contains(number)
    }

    /// The claim has ended: its first `written` messages have reached their client.
    fn end(&self, core: &Arc<Core>, number: &Number, written: usize) {
        let open = {
            let mut known = self.known.lock();
            known.end(number);
            known.open.remove(number)
        };
        let Some(Granted { topic, leases }) = open.and_then(|open| open.granted) else { return };
        for (at, (held, payload_bytes)) in leases.iter().enumerate() {
            if at < written {
                held.written(core, *payload_bytes);
            } else {
                held.release(core, &topic);
            }
        }
    }

    /// Forgets claims whose leases have lapsed.
    pub(super) fn forget_lapsed(&self, now: MonoMs) {
        self.known.lock().open.retain(|_, open| open.granted.is_none() || open.lapses_at > now);
    }
}

/// A claim that is being served; forgotten when dropped.
struct Serving<'a> {
    claims: &'a Claims,
    number: Number,
}

impl Serving<'_> {
    /// Keeps what was granted until the claim's end. Gives it back if that was heard meanwhile.
    fn keep(&self, granted: Granted) -> Result<(), Granted> {
        match self.claims.known.lock().open.get_mut(&self.number) {
            Some(open) => {
                open.granted = Some(granted);
                Ok(())
            }
            None => Err(granted),
        }
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        let mut known = self.claims.known.lock();
        if known.open.get(&self.number).is_some_and(|open| open.granted.is_none()) {
            known.open.remove(&self.number);
        }
    }
}

/// Serves a claim: leases what is there now, without waiting.
///
/// # Errors
/// [`PeerRefusal`].
pub(super) async fn serve(core: &Arc<Core>, request: PeerRequest) -> Result<Bytes, PeerRefusal> {
    let deadline = Instant::now() + request.remaining;
    let claim = Claim::decode(request.body)?;
    if core.is_stopping() {
        return Err(PeerRefusal::NotServing);
    }
    // Half the time for a catalog that is behind: the other half is needed to take what is there.
    let Some((topic, mut partitions)) = owned_of(core, &claim.tenures, deadline - request.remaining / 2).await else {
        return Ok(claim_refused(ClaimRefusal::NotOwner));
    };
    // Not always the same one first.
    let turn = usize::try_from(claim.number).unwrap_or(usize::MAX) % partitions.len();
    partitions.rotate_left(turn);
    if request.caller.is_gone() || Instant::now() >= deadline {
        return Err(PeerRefusal::TooLate);
    }
    let number = (request.from.clone(), claim.number);
    let lapses_at = core.now_ms().saturating_add(topic.record.load().visibility_timeout_ms).saturating_add(limits::OWNER_CLAIM_MS_MAX);
    let Some(serving) = core.queue.claims.begin(&number, lapses_at) else {
        return Ok(claim_refused(ClaimRefusal::Ended));
    };
    let token = claim.token.map(|token| (request.from, token));
    let is_in_line = token.as_ref().is_some_and(|token| core.queue.tokens.claims(core, token, topic.record.load().id));
    let wanted = match partitions.as_slice() {
        [only] => Wanted::Only(only.id.index),
        _ => Wanted::Any,
    };
    let demand = Demand { messages_max: claim.messages_max, bytes_max: claim.bytes_max };
    // Each time one more log is opened, so that what lies in it has its turn; not one that somebody is at already: it may stand still.
    let is_free = |partition: &&Arc<Partition>| {
        partition.serving().is_none() && !partition.is_asleep_and_empty() && partition.owner.try_lock().is_ok()
    };
    if let Some(partition) = partitions.iter().find(is_free) {
        // Whether it could be opened is seen below.
        let _opened = timeout_at(deadline - request.remaining / 2, partition.open(core)).await;
    }
    // What can be had at once comes before what lies in logs that are not open yet; of these, one that stands still is not waited for so long
    // that its owner would seem silent.
    let (open, closed): (Vec<_>, Vec<_>) = partitions.into_iter().partition(|partition| partition.serving().is_some());
    let mut found = reserve::attempt(core, &topic, demand, open, wanted, is_in_line).await;
    if found.as_ref().is_ok_and(Deliveries::is_empty) && !closed.is_empty() {
        let opening = reserve::attempt(core, &topic, demand, closed, wanted, is_in_line);
        found = timeout_at(deadline - request.remaining / 4, opening).await.unwrap_or(Err(ConsumeError::OwnerDown));
    }
    if let Some(token) = token.filter(|_| is_in_line) {
        core.queue.tokens.has_claimed(core, &token, found.as_ref().is_ok_and(|found| !found.is_empty()));
    }
    let found = match found {
        Ok(found) => found,
        Err(error) => return Ok(claim_refused(refusal_of(&error))),
    };
    // Nobody waits for the answer: what was found is given back by dropping it.
    if found.is_empty() || request.caller.is_gone() || Instant::now() >= deadline {
        return Ok(claimed(&[]));
    }
    let (messages, held) = found.into_held();
    let leases = held.into_iter().zip(messages.iter().map(|message| message.payload.len())).collect();
    if let Err(Granted { topic, leases }) = serving.keep(Granted { topic, leases }) {
        leases.iter().for_each(|(held, _)| held.release(core, &topic));
        return Ok(claim_refused(ClaimRefusal::Ended));
    }
    Ok(claimed(&messages))
}

fn refusal_of(error: &ConsumeError) -> ClaimRefusal {
    match error {
        ConsumeError::ReadFailed => ClaimRefusal::ReadFailed,
        ConsumeError::OwnerDown | ConsumeError::OutcomeUnknown | ConsumeError::Stopping | ConsumeError::TooManyWaiters { .. } => {
            ClaimRefusal::NotOpen
        }
        ConsumeError::TopicNotFound | ConsumeError::NoSuchPartition { .. } => ClaimRefusal::NotOwner,
    }
}

/// Those of the partitions asked for that this node owns; `None` if there are none. A catalog that is behind has until then, or for as long as
/// it is given for one partition, to catch up.
pub(super) async fn owned_of(core: &Core, tenures: &Tenures, until: Instant) -> Option<(Arc<Topic>, Vec<Arc<Partition>>)> {
    let until = until.min(Instant::now() + Duration::from_millis(limits::OWNER_CATCH_UP_MS_MAX));
    let mut of = None;
    let mut partitions = Vec::with_capacity(tenures.partitions.len());
    for tenure in tenures.each() {
        let Ok((topic, partition)) = owned(core, &tenure, until.saturating_duration_since(Instant::now())).await else { continue };
        of = Some(topic);
        partitions.push(partition);
    }
    of.map(|topic| (topic, partitions))
}

/// Hears what became of claims and tokens.
///
/// # Errors
/// [`PeerRefusal`].
pub(super) fn serve_endings(core: &Arc<Core>, request: PeerRequest) -> Result<Bytes, PeerRefusal> {
    for ending in take_endings(request.body)? {
        match ending {
            Ending::Claim { number, written } => core.queue.claims.end(core, &(request.from.clone(), number), written.into()),
            Ending::Token { number } => {
                let token = (request.from.clone(), number);
                core.queue.claims.end_token(&token);
                core.queue.tokens.remove(core, &token);
            }
        }
    }
    Ok(heard())
}

/// A claim at another node, until it has ended. One that is dropped has ended with nothing.
pub struct Claimed {
    owner: PeerAddr,
    number: u64,
    /// From then on its end is of no use to anybody.
    until: Instant,
}

impl Claimed {
    /// The first `written` messages have reached their client, the others are given back.
    pub(crate) fn end(self, core: &Arc<Core>, written: usize) {
        let written = u16::try_from(written).unwrap_or(u16::MAX);
        core.queue.elsewhere.tell(core, &self.owner, Ending::Claim { number: self.number, written }, self.until);
    }
}

/// A claim that was sent, and of which nothing is known yet. Dropped, it has ended with nothing.
struct Sent<'a> {
    core: &'a Arc<Core>,
    claimed: Option<Claimed>,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if let Some(claimed) = self.claimed.take() {
            claimed.end(self.core, 0);
        }
    }
}

/// Why another node gave nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unclaimed {
    /// It did not answer; whether it may have granted something.
    Silent(Effect),
    /// It said so.
    Refused(ClaimRefusal),
}

/// Claims messages of partitions of another node, for the consumer who was told of them through `token`, or for one who just asks. Empty if
/// there are none.
pub(super) async fn claim(
    core: &Arc<Core>,
    topic: &Arc<Topic>,
    owner: &Owner,
    demand: Demand,
    token: Option<u64>,
) -> Result<Deliveries, Unclaimed> {
    let number = core.ports.entropy.next_u64();
    let claim = Claim {
        tenures: owner.tenures.clone(),
        number,
        token,
        messages_max: demand.messages_max.clamp(1, limits::CONSUME_BATCH_MESSAGES_MAX),
        bytes_max: demand.bytes_max.min(limits::CONSUME_SCAN_BYTES_MAX),
    };
    let until = Instant::now() + Duration::from_millis(topic.record.load().visibility_timeout_ms);
    let mut sent = Sent { core, claimed: Some(Claimed { owner: owner.addr.clone(), number, until }) };
    core.queue.elsewhere.asked(&owner.addr.node);
    let timeout = Duration::from_millis(limits::OWNER_CLAIM_MS_MAX);
    let answer = call_in_turn(core, &topic.usage, &owner.addr, PeerOp::OWNER_CLAIM, timeout, claim.encode()).await;
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            debug!(%error, "an owner gives no messages");
            let effect = error.effect();
            if effect == Effect::None {
                sent.claimed = None;
            }
            core.queue.elsewhere.silent(&owner.addr.node);
            return Err(Unclaimed::Silent(effect));
        }
    };
    core.queue.elsewhere.answered(&owner.addr.node);
    match take_claimed(answer) {
        Ok(Ok(messages)) => {
            let claimed = sent.claimed.take().filter(|_| !messages.is_empty());
            Ok(claimed.map_or_else(|| Deliveries::none(core, topic), |claimed| Deliveries::claimed(core, topic, messages, claimed)))
        }
        Ok(Err(refusal)) => {
            // What the owner knows of the claim already may have been granted to it.
            if refusal != ClaimRefusal::Ended {
                sent.claimed = None;
            }
            Err(Unclaimed::Refused(refusal))
        }
        Err(malformed) => {
            debug!(node = %owner.addr.node, error = %malformed, "an owner's answer to a claim cannot be read");
            Err(Unclaimed::Silent(Effect::Possible))
        }
    }
}
