//! Who owns a partition, the calls to its owner, and serving them.
//!
//! Whoever wants something of a partition asks [`Core::place_of`] first: this node, another, or nobody who can be called now. A call to
//! another node names the partition and the epoch of the ownership that its sender believes in ([`Tenure`]). The receiver serves it only if
//! its own catalog says the same; anything else it refuses before it does anything.
//!
//! What must never happen: a log of a partition that another node owns is opened here; a call that may have had an effect is told as one that
//! had none.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout};
use tracing::debug;
use veena_contract::{
    BoxFuture, OwnershipEpoch, PartitionIndex, PeerAddr, PeerCall, PeerClass, PeerError, PeerOp, PeerRefusal, PeerRequest, TopicRecord,
    limits,
};

use crate::core::Core;
use crate::owners::wire::{Malformed, Tenure};
use crate::partition::{Partition, PartitionId};
use crate::quota::exchange;
use crate::topics::Topic;
use crate::usage::TenantUsage;

pub mod bodies;
pub mod claims;
pub mod elsewhere;
pub mod keyed;
pub mod look;
pub mod moves;
pub mod reach;
pub mod settle;
pub mod stream;
pub mod tokens;
pub mod wire;

/// Where a partition's owner is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// It is this node.
    Mine,
    /// It is another.
    At {
        /// Where.
        addr: PeerAddr,
        /// Since which change of ownership.
        epoch: OwnershipEpoch,
    },
    /// It is unknown, or not known where it listens.
    Nowhere,
}

/// The partition's owner is another node than the one asked, or was at another epoch. Nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node asked does not own the partition at this epoch")]
pub struct NotOwner;

impl Core {
    /// Where the owner of a topic's partition is, by the record at hand.
    #[must_use]
    pub fn place_of(&self, record: &TopicRecord, index: PartitionIndex) -> Place {
        let Some(peers) = &self.ports.peers else { return Place::Mine };
        match record.owner_of(index) {
            Some(owner) if owner.node == peers.me => Place::Mine,
            Some(owner) => match peers.directory.address_of(&owner.node) {
                Some(addr) => Place::At { addr, epoch: owner.epoch },
                None => Place::Nowhere,
            },
            None => Place::Nowhere,
        }
    }

    /// Does this node own a topic's partition, by the record at hand?
    #[must_use]
    pub fn is_mine(&self, record: &TopicRecord, index: PartitionIndex) -> bool {
        self.ports.peers.as_ref().is_none_or(|peers| record.owner_of(index).is_some_and(|owner| owner.node == peers.me))
    }

    /// Does this node serve a partition now, as far as the catalog says: is it its own, and not on its way to another node?
    #[must_use]
    pub fn may_serve(&self, id: PartitionId) -> bool {
        let Some(peers) = &self.ports.peers else { return true };
        let view = self.ports.catalog.view();
        let owner = view.topic_by_id(id.topic).and_then(|record| record.owner_of(id.index));
        owner.is_some_and(|owner| owner.node == peers.me && !owner.is_frozen())
    }

    /// May this node open the log of a partition? Only that of its own. Asked where logs are opened; whoever comes so far with another has
    /// looked before the partition moved.
    #[must_use]
    pub fn may_open(&self, id: PartitionId) -> bool {
        let may_serve = self.may_serve(id);
        if !may_serve {
            debug!(topic = %id.topic, partition = %id.index, "a log of a partition that this node does not serve is not opened");
        }
        may_serve
    }
}

/// Calls another node, and waits at most `timeout` for its answer. The effect of an error is that of [`PeerError::effect`].
///
/// # Errors
/// [`PeerError`].
pub async fn call(core: &Core, to: &PeerAddr, op: PeerOp, class: PeerClass, timeout: Duration, body: Bytes) -> Result<Bytes, PeerError> {
    let Some(peers) = &core.ports.peers else {
        return Err(PeerError::Unreachable { node: to.node.clone(), reason: "this node is alone".into() });
    };
    peers.client.call(to, PeerCall { class, op, timeout, body }).await
}

/// As [`call`], about messages of a tenant: when it is its turn among all that this node has to say to that one. Until then nothing is sent.
///
/// # Errors
/// As there; [`PeerError::Busy`] when the turn does not come in time.
pub async fn call_in_turn(
    core: &Core,
    usage: &TenantUsage,
    to: &PeerAddr,
    op: PeerOp,
    timeout: Duration,
    body: Bytes,
) -> Result<Bytes, PeerError> {
    let until = Instant::now() + timeout;
    let turns = core.turns_at(&to.node);
    let turn = tokio::time::timeout_at(until, turns.turn(core.usage.lane_of(usage), body.len())).await;
    let _turn = turn.map_err(|_| PeerError::Busy { node: to.node.clone() })?;
    call(core, to, op, PeerClass::Data, until.saturating_duration_since(Instant::now()), body).await
}

/// The partition that a call is for, if this node owns it at the epoch that the caller knows. A catalog here that is older than the caller's
/// is given a moment to catch up.
///
/// # Errors
/// [`NotOwner`].
pub async fn owned(core: &Core, tenure: &Tenure, remaining: Duration) -> Result<(Arc<Topic>, Arc<Partition>), NotOwner> {
    let patience = remaining.min(Duration::from_millis(limits::OWNER_CATCH_UP_MS_MAX));
    let until = Instant::now() + patience;
    loop {
        let view = core.ports.catalog.view();
        match judge(core, &view, tenure) {
            Judged::Mine(topic, partition) => return Ok((topic, partition)),
            Judged::NotMine => return Err(NotOwner),
            Judged::Behind => {}
        }
        tokio::select! {
            () = core.ports.catalog.changed(view.applied) => {}
            () = tokio::time::sleep_until(until) => return Err(NotOwner),
            () = core.ports.tasks.token().cancelled() => return Err(NotOwner),
        }
    }
}

enum Judged {
    Mine(Arc<Topic>, Arc<Partition>),
    NotMine,
    /// The caller may have seen what this node has not yet.
    Behind,
}

fn judge(core: &Core, view: &veena_contract::CatalogView, tenure: &Tenure) -> Judged {
    let Some(peers) = &core.ports.peers else { return Judged::NotMine };
    let Some(record) = view.topic_by_id(tenure.partition.topic) else { return Judged::Behind };
    let Some(owner) = record.owner_of(tenure.partition.index) else { return Judged::Behind };
    if owner.epoch < tenure.epoch {
        return Judged::Behind;
    }
    if owner.epoch > tenure.epoch || owner.node != peers.me {
        return Judged::NotMine;
    }
    let topic = core.topics.of(core, record);
    match topic.partition(tenure.partition.index).filter(|_| !topic.is_gone()) {
        Some(partition) => Judged::Mine(topic, partition),
        None => Judged::NotMine,
    }
}

/// Serves a call of another node; `None` if it is not one of the engine's.
pub fn serve(core: &Arc<Core>, request: PeerRequest) -> Option<BoxFuture<'_, Result<Bytes, PeerRefusal>>> {
    let (op, remaining) = (request.op, request.remaining);
    let serving: BoxFuture<'_, _> = match op {
        PeerOp::OWNER_OPEN => Box::pin(stream::serve_open(core, request)),
        PeerOp::OWNER_COMMIT => Box::pin(stream::serve_commit(core, request)),
        PeerOp::OWNER_PRODUCE => Box::pin(stream::serve_produce(core, request)),
        PeerOp::OWNER_PRODUCE_KEYED => Box::pin(keyed::serve_produce(core, request)),
        PeerOp::OWNER_LOOK_UP_KEYS => Box::pin(keyed::serve_look_up(core, request)),
        PeerOp::OWNER_CLAIM => Box::pin(claims::serve(core, request)),
        PeerOp::OWNER_ENDINGS => Box::pin(async move { claims::serve_endings(core, request) }),
        PeerOp::OWNER_WAIT => Box::pin(tokens::serve(core, request)),
        PeerOp::OWNER_SETTLE => Box::pin(settle::serve(core, request)),
        PeerOp::OWNER_READ => Box::pin(look::serve_read(core, request)),
        PeerOp::OWNER_DESCRIBE => Box::pin(look::serve_describe(core, request)),
        PeerOp::CURSOR_LAG => Box::pin(look::serve_lags(core, request)),
        PeerOp::OWNER_COPY => Box::pin(moves::source::serve_copy(core, request)),
        PeerOp::OWNER_FREEZE => Box::pin(moves::source::serve_freeze(core, request)),
        PeerOp::QUOTA_SHARES => Box::pin(exchange::serve_shares(core, request)),
        PeerOp::USAGE => Box::pin(exchange::serve_usage(core, request)),
        _ => return None,
    };
    Some(Box::pin(async move {
        // A node that stops waits for what it serves, so that nothing is written once it has stopped.
        let Some(_held) = core.ports.tasks.hold() else { return Err(PeerRefusal::NotServing) };
        match op {
            PeerOp::OWNER_COMMIT | PeerOp::OWNER_PRODUCE | PeerOp::OWNER_PRODUCE_KEYED | PeerOp::OWNER_SETTLE | PeerOp::OWNER_FREEZE => {
                serving.await
            }
            // The others change nothing, or give back what they took. A log that stands still would keep all that come for it, and with them
            // the room of those that come for other logs.
            _ => timeout(remaining, serving).await.unwrap_or(Err(PeerRefusal::TooLate)),
        }
    }))
}

impl From<Malformed> for PeerRefusal {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}
