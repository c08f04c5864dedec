//! Partitions that move between nodes (design 6).
//!
//! A move is recorded in the catalog: begun, frozen, and then flipped or aborted. Its target ([`target`]) copies the log while the owner goes
//! on, asks the owner ([`source`]) to stop, takes the rest and all that the log does not say, and only then makes itself the owner. What a node
//! has of a partition that another owns is set aside once the leader has confirmed that it is of no use any more ([`reclaim`]).
//!
//! Everything here follows the catalog: a node that begins a new life finds there, and in its directories, what is to be done.
//!
//! What must never happen: two nodes append to one partition; an owner goes on although its stop may have been recorded; a copy is served that
//! is not all that the former owner had.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use veena_contract::{
    BoxFuture, CatalogView, Move, MoveToken, NodeId, Ownership, OwnershipEpoch, PartitionAt, PartitionIndex, TopicRecord,
};

use crate::core::Core;
use crate::partition::PartitionId;

use ended::{Ended, EndedMove};
use pace::Pace;

pub mod ended;
pub mod mark;
pub mod pace;
pub mod reclaim;
pub mod source;
pub mod target;

/// The moves that this node takes part in.
#[derive(Default)]
pub struct Moves {
    /// Partitions of this node that were stopped, and under which move.
    stopped: Mutex<BTreeMap<PartitionId, Stopped>>,
    /// Partitions that come here.
    incoming: Mutex<BTreeMap<PartitionId, Arc<Incoming>>>,
    /// Moves that this node has ended.
    ended: Ended,
    /// What is read for others.
    reading: Pace,
    /// What comes here.
    writing: Pace,
    /// Changes whenever whose a partition is may have become clear.
    turn: Turn,
}

struct Turn(watch::Sender<()>);

impl Default for Turn {
    fn default() -> Self {
        Self(watch::channel(()).0)
    }
}

/// A partition that was stopped.
#[derive(Clone, Copy, Debug)]
struct Stopped {
    token: MoveToken,
    /// Changes of metadata that may be made yet, and say that it has stopped. While there are any, only the catalog can say that it goes on.
    proposals: u32,
    /// Since when.
    since: Instant,
}

/// A partition that comes here: one task is at it.
struct Incoming {
    token: MoveToken,
    /// Of whom it comes.
    epoch: OwnershipEpoch,
    /// When this process has taken it up, in Unix milliseconds.
    began_ms: u64,
    copied_bytes: AtomicU64,
    /// Since when the owner may have stopped for this process.
    stopped_since: Mutex<Option<Instant>>,
    progress: Mutex<(&'static str, u32, Option<String>)>,
}

impl Incoming {
    fn new(token: MoveToken, epoch: OwnershipEpoch, began_ms: u64) -> Arc<Self> {
        let progress = Mutex::new(("copying", 0, None));
        Arc::new(Self { token, epoch, began_ms, copied_bytes: AtomicU64::new(0), stopped_since: Mutex::default(), progress })
    }

    fn set_phase(&self, phase: &'static str) {
        self.progress.lock().0 = phase;
    }

    fn set_failed(&self, error: String) {
        let mut progress = self.progress.lock();
        progress.1 = progress.1.saturating_add(1);
        progress.2 = Some(error);
    }
}

/// How far a partition that comes to this node has got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveProgress {
    /// Which partition.
    pub partition: PartitionId,
    /// Under which move.
    pub token: MoveToken,
    /// When this process has taken it up, in Unix milliseconds.
    pub began_ms: u64,
    /// What is done now.
    pub phase: &'static str,
    /// Bytes that came, those that came again included.
    pub copied_bytes: u64,
    /// How often it did not get on.
    pub failures: u32,
    /// Why, the last time.
    pub last_error: Option<String>,
}

/// The ownership of a partition, as the catalog has it.
pub(super) fn ownership(view: &CatalogView, id: PartitionId) -> Option<(&Arc<TopicRecord>, &Ownership)> {
    let record = view.topic_by_id(id.topic)?;
    Some((record, record.owner_of(id.index)?))
}

/// The move of this token, if it is under way.
fn move_of(owner: &Ownership, token: MoveToken) -> Option<&Move> {
    owner.moving.as_ref().filter(|moving| moving.token == token)
}

fn at(record: &TopicRecord, index: PartitionIndex, epoch: OwnershipEpoch) -> PartitionAt {
    PartitionAt { tenant: record.tenant.clone(), topic: record.id, index, epoch }
}

/// Waits for the catalog, or this node, to say whose a partition is. Made before the question is looked at, so that no answer is missed.
pub struct Watch<'a> {
    changed: BoxFuture<'a, ()>,
    turn: watch::Receiver<()>,
}

impl Watch<'_> {
    /// Completes when something may have changed; says whether it has, before `until`.
    pub async fn changed(mut self, until: Instant) -> bool {
        tokio::select! {
            () = &mut self.changed => true,
            turned = self.turn.changed() => turned.is_ok(),
            () = tokio::time::sleep_until(until) => false,
        }
    }
}

impl Moves {
    /// Watches for changes from here on.
    pub fn watch<'a>(&self, core: &'a Core) -> Watch<'a> {
        let turn = self.turn.0.subscribe();
        let catalog = &core.ports.catalog;
        Watch { changed: catalog.changed(catalog.view().applied), turn }
    }

    fn turn(&self) {
        self.turn.0.send_replace(());
    }

    /// Was this partition stopped here?
    pub fn is_stopped(&self, id: PartitionId) -> bool {
        self.stopped.lock().contains_key(&id)
    }

    /// Is this what a task is at?
    fn is_incoming(&self, id: PartitionId) -> bool {
        self.incoming.lock().contains_key(&id)
    }

    /// How far the partitions that come here have got.
    pub fn progress(&self) -> Vec<MoveProgress> {
        let incoming = self.incoming.lock();
        let progress = |(partition, incoming): (&PartitionId, &Arc<Incoming>)| {
            let (phase, failures, last_error) = incoming.progress.lock().clone();
            let copied_bytes = incoming.copied_bytes.load(Ordering::Relaxed);
            let Incoming { token, began_ms, .. } = **incoming;
            MoveProgress { partition: *partition, token, began_ms, phase, copied_bytes, failures, last_error }
        };
        incoming.iter().map(progress).collect()
    }

    /// The moves that this node has ended since they could not be completed, oldest first; the last ones of this process.
    pub fn ended(&self) -> Vec<EndedMove> {
        self.ended.all()
    }

    /// Does what the catalog says: partitions that come here are fetched, those that have gone are let go, those that stay go on.
    pub fn reconcile(&self, core: &Arc<Core>, view: &CatalogView) {
        let Some(me) = core.ports.peers.as_ref().map(|peers| &peers.me) else { return };
        let stopped: Vec<(PartitionId, MoveToken)> = self.stopped.lock().iter().map(|(id, stopped)| (*id, stopped.token)).collect();
        for (id, token) in stopped {
            if ownership(view, id).is_none_or(|(_, owner)| owner.node != *me || move_of(owner, token).is_none()) {
                source::resume(core, id, token);
            }
        }
        for record in view.by_id.values() {
            for (index, owner) in (0..record.partitions).map(PartitionIndex).zip(&record.owners) {
                let Some(moving) = &owner.moving else { continue };
                let id = PartitionId { topic: record.id, index };
                if moving.to == *me {
                    self.fetch(core, id, moving.token, owner.epoch);
                } else if owner.node == *me && moving.frozen.is_some() && !self.is_stopped(id) {
                    source::stop_again(core, id, moving.token);
                }
            }
        }
    }

    fn fetch(&self, core: &Arc<Core>, id: PartitionId, token: MoveToken, epoch: OwnershipEpoch) {
        let incoming = {
            let mut all = self.incoming.lock();
            // One that was given up ends by itself, and this is looked at again.
            if all.contains_key(&id) {
                return;
            }
            let incoming = Incoming::new(token, epoch, core.ports.clock.now_ms());
            all.insert(id, Arc::clone(&incoming));
            incoming
        };
        core.metrics.moves_begun.add(1);
        target::start(core, id, incoming);
    }

    fn fetched(&self, id: PartitionId) {
        self.incoming.lock().remove(&id);
        self.turn();
    }
}

/// This node, if it is one of several.
fn me(core: &Core) -> Option<&NodeId> {
    core.ports.peers.as_ref().map(|peers| &peers.me)
}

/// A pause that doubles with each failure.
struct Pause(Duration);

impl Pause {
    const MIN: Duration = Duration::from_millis(veena_contract::limits::MOVE_RETRY_MS_MIN);
    const MAX: Duration = Duration::from_millis(veena_contract::limits::MOVE_RETRY_MS_MAX);

    fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(Self::MAX);
        pause
    }
}
