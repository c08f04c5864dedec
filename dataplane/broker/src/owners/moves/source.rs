//! Giving a partition away: its log while it is written, then the partition itself.
//!
//! The order is what matters. It stops in memory first; what belongs to it is made durable; only then the stop is proposed, and only when it is
//! recorded the partition is handed over. Whoever is not sure whether it was recorded stays stopped: the catalog alone says that it goes on,
//! never a clock. A new life of this node finds the stop in the catalog, and answers from what is on its disk; leases have ended with the life
//! that granted them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout};
use tracing::{debug, error, info, warn};
use veena_contract::{Command, Effect, MoveToken, NodeId, Offset, OwnershipEpoch, PeerRefusal, PeerRequest, limits};
use veena_storage::partition::{AppendError, ReadError};

use super::{Stopped, at, ended, mark, me, move_of, ownership};
use crate::consume::frontier;
use crate::consume::park;
use crate::consume::promised::Promise;
use crate::core::Core;
use crate::owners::bodies::moves::{self as bodies, CopyAsked, CopyList, HandOver, MoveRefusal};
use crate::owners::owned;
use crate::owners::wire::{self, Tenure};
use crate::partition::{OwnerSlot, Partition, PartitionId};
use crate::settle;
use crate::tasks::OnExit;
use crate::topics::Topic;

/// How long a partition's writer may be busy before whoever asks for the partition is told to come again.
const SLOT_WAIT: Duration = Duration::from_secs(2);

/// Does the catalog here know of the move that is asked for? One that is behind has a moment to catch up.
async fn knows(core: &Core, id: PartitionId, token: MoveToken, to: &NodeId, patience: Duration) -> bool {
    let until = Instant::now() + patience.min(Duration::from_millis(limits::OWNER_CATCH_UP_MS_MAX));
    loop {
        let watch = core.moves.watch(core);
        let view = core.ports.catalog.view();
        if ownership(&view, id).and_then(|(_, owner)| move_of(owner, token)).is_some_and(|moving| moving.to == *to) {
            return true;
        }
        if !watch.changed(until).await {
            return false;
        }
    }
}

/// Serves a question for part of a copy.
///
/// # Errors
/// [`PeerRefusal`].
pub(in crate::owners) async fn serve_copy(core: &Arc<Core>, request: PeerRequest) -> Result<Bytes, PeerRefusal> {
    let (tenure, token, asked) = bodies::take_ask_copy(request.body)?;
    let Ok((_, partition)) = owned(core, &tenure, request.remaining / 4).await else { return Ok(wire::not_owner()) };
    if !knows(core, tenure.partition, token, &request.from, request.remaining / 4).await {
        return Ok(bodies::refused(MoveRefusal::NoSuchMove));
    }
    let Ok(serving) = partition.open(core).await else { return Ok(bodies::refused(MoveRefusal::Unreadable)) };
    partition.touch(core.now_ms());
    let reader = serving.reader.clone();
    match asked {
        CopyAsked::List => Ok(bodies::listed(&list(core, &reader))),
        CopyAsked::Seal => Ok(match seal(core, &partition).await {
            Ok(()) => bodies::listed(&list(core, &reader)),
            Err(refusal) => bodies::refused(refusal),
        }),
        CopyAsked::Piece { source, piece } if source == core.direct_stream.0 => {
            let reading = core.ports.read_io.run(move || reader.copy_bytes(&piece, limits::MOVE_PIECE_BYTES));
            let is_stopped = core.moves.is_stopped(partition.id);
            match if is_stopped { reading.await } else { core.moves.reading.take(&core.metrics, reading).await } {
                Ok(Some(bytes)) => Ok(bodies::piece(&bytes)),
                Ok(None) => Ok(bodies::refused(MoveRefusal::SegmentGone)),
                Err(failed) => {
                    if matches!(failed, ReadError::Closed) {
                        return Ok(bodies::refused(MoveRefusal::NotNow));
                    }
                    debug!(partition = %partition.dir.display(), error = %failed, "a partition that moves cannot be read now");
                    Ok(bodies::refused(MoveRefusal::Unreadable))
                }
            }
        }
        CopyAsked::Piece { .. } => Ok(bodies::refused(MoveRefusal::SegmentGone)),
    }
}

/// Ends the segment that is written to, so that all of it can be copied, and the copy be checked, while this node goes on with the next one.
async fn seal(core: &Arc<Core>, partition: &Arc<Partition>) -> Result<(), MoveRefusal> {
    let mut slot = timeout(SLOT_WAIT, Arc::clone(&partition.owner).lock_owned()).await.map_err(|_| MoveRefusal::NotNow)?;
    let now_ms = core.ports.clock.now_ms();
    let (worker, target) = (Arc::clone(core), Arc::clone(partition));
    let sealing = core.ports.write_io.run(move || {
        let OwnerSlot::Open(owner) = &mut *slot else { return Ok(()) };
        let sealed = owner.log.seal_active(now_ms, owner.table.committed_marks());
        match sealed {
            Ok(()) => {}
            Err(AppendError::NoSpace) => worker.on_no_space(),
            // As after a commit that has failed: the next one finds a log that takes it.
            Err(_) => target.fail_slot(&worker, &mut slot),
        }
        sealed
    });
    sealing.await.map_err(|failed| {
        warn!(partition = %partition.dir.display(), error = %failed, "a segment of a partition that moves cannot be sealed now");
        MoveRefusal::NotNow
    })
}

fn list(core: &Core, reader: &veena_storage::partition::LogReader) -> CopyList {
    CopyList { source: core.direct_stream.0, log_id: reader.log_id(), segments: reader.copy_list() }
}

/// Serves a question for the partition itself.
///
/// # Errors
/// [`PeerRefusal`].
pub(in crate::owners) async fn serve_freeze(core: &Arc<Core>, request: PeerRequest) -> Result<Bytes, PeerRefusal> {
    let (tenure, token) = bodies::take_ask_freeze(request.body)?;
    let Ok((topic, partition)) = owned(core, &tenure, request.remaining / 4).await else { return Ok(wire::not_owner()) };
    if !knows(core, tenure.partition, token, &request.from, request.remaining / 4).await {
        return Ok(bodies::refused(MoveRefusal::NoSuchMove));
    }
    if let Some(reason) = unfit(core, &partition, token).await {
        let view = core.ports.catalog.view();
        if let Some((record, owner)) = ownership(&view, tenure.partition) {
            ended::give_up(core, record, tenure.partition, owner, token, reason.to_owned()).await;
        }
        return Ok(bodies::refused(MoveRefusal::Damaged));
    }
    Ok(match hand_over(core, &topic, &partition, &tenure, token).await {
        Ok(hand_over) => bodies::handed_over(&hand_over),
        Err(refusal) => bodies::refused(refusal),
    })
}

/// Why no whole copy can be made of the log, found out before the partition is stopped. One that has stopped is handed over as it is: whoever
/// takes it finds the same.
async fn unfit(core: &Arc<Core>, partition: &Arc<Partition>, token: MoveToken) -> Option<&'static str> {
    let view = core.ports.catalog.view();
    let (_, owner) = ownership(&view, partition.id)?;
    if core.moves.is_stopped(partition.id) || move_of(owner, token)?.frozen.is_some() {
        return None;
    }
    let reason = damaged_end(core, partition).await?;
    // Opened anew, the log goes on in another segment, and what is before that is copied as it is.
    if partition.open_anew(core).await.is_err() {
        return Some(reason);
    }
    damaged_end(core, partition).await
}

async fn damaged_end(core: &Core, partition: &Partition) -> Option<&'static str> {
    let reader = partition.serving()?.reader.clone();
    // What cannot be read now is told when it is copied.
    core.ports.read_io.run(move || reader.damaged_end()).await.unwrap_or_default()
}

/// Stops the partition, has that recorded, and answers with all that its new owner needs.
async fn hand_over(
    core: &Arc<Core>,
    topic: &Arc<Topic>,
    partition: &Arc<Partition>,
    tenure: &Tenure,
    token: MoveToken,
) -> Result<HandOver, MoveRefusal> {
    let id = partition.id;
    let began = Instant::now();
    let mut slot = timeout(SLOT_WAIT, Arc::clone(&partition.owner).lock_owned()).await.map_err(|_| MoveRefusal::NotNow)?;
    let (worker, target, epoch) = (Arc::clone(core), Arc::clone(partition), tenure.epoch);
    let stopped = core.ports.write_io.run(move || stop(&worker, &target, &mut slot, epoch, token)).await;
    let handed = match stopped {
        Ok(handed) => record(core, topic, id, epoch, token, handed.end).await.map(|()| handed),
        Err(Stop::NotStopped(refusal)) => return Err(refusal),
        Err(Stop::NotDurable) => {
            core.moves.end_proposal(id, token);
            Err(MoveRefusal::Unreadable)
        }
    };
    if handed.is_ok() {
        info!(partition = %partition.dir.display(), %token, took = ?began.elapsed(), "a partition was stopped and handed over");
        if veena_contract::sabotage::is("thaw_by_timer") {
            thaw_by_timer(core, partition);
        }
    } else {
        // Unless it may have been recorded, it goes on.
        resume(core, id, token);
    }
    handed
}

/// Why a partition was not stopped for good.
enum Stop {
    /// Nothing has changed.
    NotStopped(MoveRefusal),
    /// It has stopped, and what belongs to it cannot be written.
    NotDurable,
}

/// Blocking. The caller holds the slot: the commit that was under way has ended.
fn stop(
    core: &Arc<Core>,
    partition: &Arc<Partition>,
    slot: &mut OwnerSlot,
    epoch: OwnershipEpoch,
    token: MoveToken,
) -> Result<HandOver, Stop> {
    let view = core.ports.catalog.view();
    let still = ownership(&view, partition.id).filter(|(_, owner)| owner.epoch == epoch && move_of(owner, token).is_some());
    let Some((record, owner)) = still.filter(|(_, owner)| Some(&owner.node) == me(core)) else {
        return Err(Stop::NotStopped(MoveRefusal::NoSuchMove));
    };
    let disk = core.ports.disk.as_ref();
    let frozen = owner.moving.as_ref().and_then(|moving| moving.frozen);
    // It was stopped in another life of the metadata, and has gone: a log that is made now would be an empty one, and end the move.
    let is_missing = || matches!(slot, OwnerSlot::Closed) && !disk.exists(&partition.dir).unwrap_or(true);
    if frozen.is_some_and(|frozen| frozen.end > Offset(0)) && is_missing() {
        return Err(Stop::NotStopped(MoveRefusal::NotNow));
    }
    let (serving, end) = partition.freeze_slot(core, slot, token).map_err(|_| Stop::NotStopped(MoveRefusal::Unreadable))?;
    core.moves.begin_proposal(partition.id, token);
    let cursors = core.fanout.stop(core, record, partition.id);
    let log_id = serving.reader.log_id();
    let (settled, mut leases) = {
        let leases = serving.leases.lock();
        (leases.state(end), leases.leases_left(core.now_ms()))
    };
    leases.truncate(limits::MOVE_LEASES_MAX);
    core.settle.keep(log_id, &settled);
    core.settle.keep_promise(partition.id, &Promise { log: log_id, end });
    let was_stopped = mark::stop(disk, &partition.dir, epoch).map_err(|failed| {
        warn!(partition = %partition.dir.display(), error = %failed, "a partition cannot be handed over now");
        Stop::NotDurable
    })?;
    if !settle::flush(core) {
        return Err(Stop::NotDurable);
    }
    if was_stopped && frozen.is_some_and(|frozen| frozen.end != end) {
        // Nobody has gone on here since it was stopped, and yet it ends elsewhere than this move says: it was another one, of another life.
        debug!(partition = %partition.dir.display(), %token, "a partition was stopped for another move than the metadata know of");
        return Err(Stop::NotDurable);
    }
    Ok(HandOver { list: list(core, &serving.reader), end, settled: frontier::encode(&settled), leases, cursors })
}

/// Has the stop recorded, unless it is.
async fn record(
    core: &Arc<Core>,
    topic: &Topic,
    id: PartitionId,
    epoch: OwnershipEpoch,
    token: MoveToken,
    end: Offset,
) -> Result<(), MoveRefusal> {
    let at = at(&topic.record.load(), id.index, epoch);
    let recorded = || {
        let view = core.ports.catalog.view();
        ownership(&view, id).and_then(|(_, owner)| move_of(owner, token)?.frozen)
    };
    if recorded().is_none() {
        let proposed = core.ports.writer.propose(Command::FreezePartition { at: at.clone(), token, end }).await;
        if let Err(failed) = proposed {
            debug!(topic = %id.topic, partition = %id.index, error = %failed, "the stop of a partition is not known to be recorded");
            if failed.effect() == Effect::Possible {
                return Err(MoveRefusal::NotNow);
            }
        }
    }
    core.moves.end_proposal(id, token);
    match recorded() {
        Some(frozen) if frozen.end == end => Ok(()),
        Some(frozen) => {
            // A proposal of a former life, that came late: records were taken since. Nobody has got a copy up to there.
            error!(
                topic = %id.topic, partition = %id.index, recorded = frozen.end.0, end = end.0,
                "a partition was recorded to end before its end: its move is aborted"
            );
            let aborted = core.ports.writer.propose(Command::AbortMove { at, token }).await;
            debug!(?aborted, "asked for an abort");
            Err(MoveRefusal::NotNow)
        }
        None => Err(MoveRefusal::NotNow),
    }
}

impl super::Moves {
    /// A stop is about to be proposed. The caller holds the slot.
    fn begin_proposal(&self, id: PartitionId, token: MoveToken) {
        let mut all = self.stopped.lock();
        let anew = Stopped { token, proposals: 0, since: Instant::now() };
        let stopped = all.entry(id).or_insert(anew);
        if stopped.token != token {
            // It has not gone on between the two moves.
            *stopped = Stopped { since: stopped.since, ..anew };
        }
        stopped.proposals += 1;
    }

    /// What became of the proposal is certain, and shows in the catalog here.
    fn end_proposal(&self, id: PartitionId, token: MoveToken) {
        if let Some(stopped) = self.stopped.lock().get_mut(&id).filter(|stopped| stopped.token == token) {
            stopped.proposals = stopped.proposals.saturating_sub(1);
        }
    }

    /// Nothing is stopped here any more. The caller holds the slot. Says since when it was.
    fn forget_stopped(&self, id: PartitionId) -> Option<Instant> {
        self.stopped.lock().remove(&id).map(|stopped| stopped.since)
    }
}

/// Whose a stopped partition is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Stays,
    GoesOn,
    HasGone,
}

fn fate(core: &Core, id: PartitionId, token: MoveToken) -> Fate {
    let view = core.ports.catalog.view();
    // What belongs to a topic that is gone is ended elsewhere.
    let Some((_, owner)) = ownership(&view, id) else { return Fate::Stays };
    if Some(&owner.node) != me(core) {
        return Fate::HasGone;
    }
    let is_certain = core.moves.stopped.lock().get(&id).is_some_and(|stopped| stopped.token == token && stopped.proposals == 0);
    match move_of(owner, token) {
        None => Fate::GoesOn,
        Some(moving) if moving.frozen.is_none() && is_certain => Fate::GoesOn,
        Some(_) => Fate::Stays,
    }
}

/// Does with a stopped partition what the catalog says.
pub(super) fn resume(core: &Arc<Core>, id: PartitionId, token: MoveToken) {
    let core_for_run = Arc::clone(core);
    core.ports.tasks.spawn("resume-partition", OnExit::Shutdown, async move {
        let core = &core_for_run;
        let Some(topic) = core.topics.get(id.topic) else {
            core.moves.forget_stopped(id);
            return;
        };
        let Some(partition) = topic.partition(id.index) else { return };
        let mut slot = Arc::clone(&partition.owner).lock_owned().await;
        if core.moves.stopped.lock().get(&id).is_none_or(|stopped| stopped.token != token) {
            return;
        }
        match fate(core, id, token) {
            Fate::Stays => return,
            Fate::GoesOn => {
                let (worker, target) = (Arc::clone(core), Arc::clone(&partition));
                if let Err(failed) = core.ports.write_io.run(move || mark::serve(&worker, &target)).await {
                    debug!(partition = %partition.dir.display(), error = %failed, "a partition that goes on says yet that it has stopped");
                }
                partition.thaw_slot(&mut slot);
                if let Some(since) = core.moves.forget_stopped(id) {
                    core.metrics.move_freeze_seconds.observe(since.elapsed());
                }
                info!(partition = %partition.dir.display(), %token, "a partition that was to move goes on here");
            }
            Fate::HasGone => {
                let (worker, target) = (Arc::clone(core), Arc::clone(&partition));
                core.ports.write_io.run(move || let_go(&worker, &target, &mut slot)).await;
                info!(partition = %partition.dir.display(), %token, "a partition has moved to another node");
            }
        }
        core.moves.turn();
        core.fanout.reconcile(core, &core.ports.catalog.view());
        park::wake_takeable(core, &topic);
    });
}

/// Blocking. Another node owns the partition, or may at any moment: nothing of it stays in memory.
pub(super) fn let_go(core: &Core, partition: &Partition, slot: &mut OwnerSlot) {
    partition.let_go(core, slot);
    core.moves.forget_stopped(partition.id);
    core.fanout.let_go(partition.id);
}

/// The catalog says that a partition of this node has stopped, and this life of the node has not stopped it.
pub(super) fn stop_again(core: &Arc<Core>, id: PartitionId, token: MoveToken) {
    let core_for_run = Arc::clone(core);
    core.ports.tasks.spawn("stop-partition", OnExit::Shutdown, async move {
        let core = &core_for_run;
        let view = core.ports.catalog.view();
        let Some((record, owner)) = ownership(&view, id) else { return };
        let topic = core.topics.of(core, record);
        let Some(partition) = topic.partition(id.index) else { return };
        let tenure = Tenure { partition: id, epoch: owner.epoch };
        if let Err(refusal) = hand_over(core, &topic, &partition, &tenure, token).await {
            debug!(partition = %partition.dir.display(), error = %refusal, "a partition is stopped when its new owner asks for it");
        }
    });
}

/// The planted bug.
fn thaw_by_timer(core: &Arc<Core>, partition: &Arc<Partition>) {
    let (core_for_run, partition) = (Arc::clone(core), Arc::clone(partition));
    core.ports.tasks.spawn("thaw", OnExit::Log, async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        partition.thaw_slot(&mut *partition.owner.lock().await);
        core_for_run.moves.forget_stopped(partition.id);
    });
}
