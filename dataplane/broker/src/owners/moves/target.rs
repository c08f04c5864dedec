//! Fetching a partition: its log while the owner goes on, then the owner's stop, the rest of the log and all that the log does not say. When
//! all of it is on this disk under the partition's name, synced and checked, this node makes itself the owner, against the very move that it has
//! fetched it for. Whatever fails is tried again until the catalog says that the move has ended.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tracing::{debug, info, warn};
use veena_contract::{
    Command, Copy, Effect, Ownership, PeerAddr, PeerClass, PeerError, PeerOp, ProposeError, TopicRecord, limits, sabotage,
};
use veena_storage::partition::{CopySegment, IncomingError, IncomingLog};

use super::{Incoming, Pause, at, ended, mark, me, move_of, ownership, reclaim, source};
use crate::consume::lease::{MonoMs, SettleState};
use crate::consume::promised::Promise;
use crate::consume::{frontier, park};
use crate::core::Core;
use crate::layout;
use crate::owners::bodies::moves::{self as bodies, CopyAsked, CopyList, HandOver, MoveRefusal};
use crate::owners::call;
use crate::owners::wire::{self, Malformed, Tenure};
use crate::partition::{Partition, PartitionId};
use crate::settle;
use crate::tasks::OnExit;

/// Why a move does not get on now.
#[derive(Debug, thiserror::Error)]
enum Hindrance {
    #[error("the address of the owner is not known")]
    NoAddress,
    #[error(transparent)]
    Call(#[from] PeerError),
    #[error("the owner's answer cannot be read")]
    Malformed(#[from] Malformed),
    #[error("the node asked does not own the partition")]
    NotOwner,
    #[error(transparent)]
    Refused(#[from] MoveRefusal),
    #[error(transparent)]
    Copy(#[from] IncomingError),
    #[error(transparent)]
    InTheWay(#[from] reclaim::InTheWay),
    #[error("{needed} bytes are to come, {available} are free on this node's disk, and {reserve} of them are to stay so")]
    NoRoom { needed: u64, available: u64, reserve: u64 },
    #[error("the free room of this node's disk cannot be read: {0}")]
    Room(std::io::Error),
    #[error("the copy cannot be put in its place: {0}")]
    Install(std::io::Error),
    #[error("what belongs to the partition cannot be written")]
    NotDurable,
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

impl Hindrance {
    /// Was the owner certainly not stopped by the question for the partition that was answered so?
    fn is_unstopped(&self) -> bool {
        match self {
            Self::NotOwner | Self::Refused(MoveRefusal::NoSuchMove) => true,
            Self::Call(failed) => failed.effect() == Effect::None,
            _ => false,
        }
    }
}

/// How often a move has failed in ways that do not end by themselves.
#[derive(Default)]
struct Failures {
    /// The copy was all there, and was not the log.
    misfits: u32,
    /// Files could not be read or written, one time after the other.
    files: u32,
}

impl Failures {
    /// Is the move to be given up after this?
    fn is_enough(&mut self, hindrance: &Hindrance, is_stopped: bool) -> bool {
        match hindrance {
            Hindrance::NoRoom { .. } => return true,
            Hindrance::Copy(IncomingError::Mismatch { .. }) => self.misfits += 1,
            // One that has stopped is given up by the leader, who has an eye on the time.
            Hindrance::Copy(_)
            | Hindrance::Room(_)
            | Hindrance::Install(_)
            | Hindrance::NotDurable
            | Hindrance::InTheWay(reclaim::InTheWay::Io(_))
            | Hindrance::Refused(MoveRefusal::Unreadable)
                if !is_stopped =>
            {
                self.files += 1;
            }
            _ => {}
        }
        self.misfits >= limits::MOVE_MISFITS_MAX || self.files >= limits::MOVE_FAILURES_MAX
    }
}

/// How far the copy is.
enum Stage {
    /// It is made.
    Copying {
        log: Option<IncomingLog>,
        /// Rounds that went well, and those that were asked to be sealed.
        rounds: u32,
        /// Has the last round gone well? Before that the owner is not stopped: what cannot be read there, or written here, would be found out
        /// while nobody serves the partition.
        is_tried: bool,
    },
    /// It is in its place, and the change of owner is to be recorded.
    Installed,
}

/// Starts the one task that fetches a partition.
pub(super) fn start(core: &Arc<Core>, id: PartitionId, incoming: Arc<Incoming>) {
    let core_for_run = Arc::clone(core);
    core.ports.tasks.spawn("fetch-partition", OnExit::Shutdown, async move {
        let core = &core_for_run;
        run(core, id, &incoming).await;
        core.moves.fetched(id);
        if !core.ports.tasks.token().is_cancelled() {
            // Another move of it may have begun meanwhile.
            core.moves.reconcile(core, &core.ports.catalog.view());
        }
    });
}

async fn run(core: &Arc<Core>, id: PartitionId, incoming: &Incoming) {
    let stop = core.ports.tasks.token();
    let mut pause = Pause(Pause::MIN);
    let mut stage = Stage::Copying { log: None, rounds: 0, is_tried: false };
    let mut failures = Failures::default();
    while !stop.is_cancelled() {
        let view = core.ports.catalog.view();
        let Some((record, owner)) = ownership(&view, id) else { return };
        let Some(partition) = core.topics.of(core, record).partition(id.index) else { return };
        if Some(&owner.node) == me(core) {
            core.metrics.moves_flipped.add(1);
            return arrive(core, &partition, record, incoming).await;
        }
        if move_of(owner, incoming.token).is_none_or(|moving| Some(&moving.to) != me(core)) {
            partition.has_arrived();
            // In another epoch it had come here, and has left again unseen.
            let ended = if owner.epoch == incoming.epoch { &core.metrics.moves_aborted } else { &core.metrics.moves_flipped };
            ended.add(1);
            info!(partition = %partition.dir.display(), token = %incoming.token, "a partition does not come here after all");
            return;
        }
        let stepped = tokio::select! {
            stepped = step(core, record, owner, &partition, incoming, &mut stage) => stepped,
            () = stop.cancelled() => return,
        };
        match stepped {
            Ok(()) => {
                pause = Pause(Pause::MIN);
                failures.files = 0;
            }
            Err(hindrance) => {
                // What is in its place is no more given up: that this node owns it may be recorded already.
                if matches!(stage, Stage::Copying { .. }) && failures.is_enough(&hindrance, owner.is_frozen()) {
                    let giving_up = ended::give_up(core, record, id, owner, incoming.token, hindrance.to_string());
                    tokio::select! {
                        () = giving_up => {}
                        () = stop.cancelled() => return,
                    }
                }
                debug!(partition = %partition.dir.display(), error = %hindrance, "a partition that is to come here does not get on");
                incoming.set_failed(hindrance.to_string());
                tokio::select! {
                    () = tokio::time::sleep(pause.next()) => {}
                    () = stop.cancelled() => return,
                }
            }
        }
    }
}

/// One step: a round of copying, the copy's end, or the change of owner.
async fn step(
    core: &Arc<Core>,
    record: &Arc<TopicRecord>,
    owner: &Ownership,
    partition: &Arc<Partition>,
    incoming: &Incoming,
    stage: &mut Stage,
) -> Result<(), Hindrance> {
    let id = partition.id;
    let tenure = Tenure { partition: id, epoch: owner.epoch };
    let Stage::Copying { log, rounds, is_tried } = stage else {
        incoming.set_phase("taking over");
        let flip = Command::FlipOwner { at: at(record, id.index, owner.epoch), token: incoming.token };
        core.ports.writer.propose(flip).await?;
        return Ok(());
    };
    if log.is_none() && reclaim::make_way(core, record, id, incoming.token).await? {
        // Its owner is not needed any more, and may never come back.
        *stage = Stage::Installed;
        return Ok(());
    }
    let addr = core.ports.peers.as_ref().and_then(|peers| peers.directory.address_of(&owner.node)).ok_or(Hindrance::NoAddress)?;
    let from = From { core, addr, tenure, incoming };
    if !owner.is_frozen() && (!*is_tried || *rounds < limits::MOVE_ROUNDS_MAX) {
        incoming.set_phase("copying");
        let list = from.list().await?;
        let missing = open(core, partition, incoming, log, &list).await?;
        if !*is_tried || missing > limits::MOVE_REST_BYTES_MAX {
            *is_tried = false;
            pull(&from, log, &list, false).await?;
            (*is_tried, *rounds) = (true, *rounds + 1);
            return Ok(());
        }
        // What is not sealed is synced, read back and checked only once nobody serves it, and read again when it is opened here.
        let rest_max = core.config.partition.segment_bytes_max * limits::MOVE_REST_BYTES_MAX / limits::SEGMENT_BYTES_MAX;
        if list.segments.last().is_some_and(|active| active.len > rest_max) {
            // Also when it cannot be sealed: it is asked for in the end as it is.
            *rounds += 1;
            let list = from.seal().await?;
            *is_tried = false;
            pull(&from, log, &list, false).await?;
            *is_tried = true;
            return Ok(());
        }
    }
    incoming.set_phase("taking the rest");
    incoming.stopped_since.lock().get_or_insert_with(Instant::now);
    let handed = from.hand_over().await.inspect_err(|hindrance| {
        // Asked for the next time, it stops then.
        if hindrance.is_unstopped() && !owner.is_frozen() {
            *incoming.stopped_since.lock() = None;
        }
    })?;
    let received = core.now_ms();
    open(core, partition, incoming, log, &handed.list).await?;
    pull(&from, log, &handed.list, true).await?;
    install(core, record, partition, incoming, log.take(), handed, received).await?;
    *stage = Stage::Installed;
    Ok(())
}

/// The owner, and what is asked of it.
struct From<'a> {
    core: &'a Arc<Core>,
    addr: PeerAddr,
    tenure: Tenure,
    incoming: &'a Incoming,
}

impl From<'_> {
    async fn ask(&self, op: PeerOp, timeout_ms: u64, body: Bytes) -> Result<Bytes, Hindrance> {
        let mut answer = call(self.core, &self.addr, op, PeerClass::Data, Duration::from_millis(timeout_ms), body).await?;
        wire::take_answer(&mut answer)?.map_err(|_| Hindrance::NotOwner)?;
        Ok(answer)
    }

    async fn copy(&self, asked: &CopyAsked) -> Result<Bytes, Hindrance> {
        self.ask(PeerOp::OWNER_COPY, limits::MOVE_PIECE_MS_MAX, bodies::ask_copy(&self.tenure, self.incoming.token, asked)).await
    }

    async fn list(&self) -> Result<CopyList, Hindrance> {
        Ok(bodies::take_listed(self.copy(&CopyAsked::List).await?)??)
    }

    async fn seal(&self) -> Result<CopyList, Hindrance> {
        Ok(bodies::take_listed(self.copy(&CopyAsked::Seal).await?)??)
    }

    async fn hand_over(&self) -> Result<HandOver, Hindrance> {
        let body = bodies::ask_freeze(&self.tenure, self.incoming.token);
        Ok(bodies::take_handed_over(self.ask(PeerOp::OWNER_FREEZE, limits::MOVE_FREEZE_MS_MAX, body).await?)??)
    }
}

/// Goes on with the copy, or begins it. Says how much of what is listed is missing.
async fn open(
    core: &Arc<Core>,
    partition: &Partition,
    incoming: &Incoming,
    log: &mut Option<IncomingLog>,
    list: &CopyList,
) -> Result<u64, Hindrance> {
    if log.as_ref().is_none_or(|log| log.log_id() != list.log_id) {
        *log = None;
        let (disk, dir, log_id) = (Arc::clone(&core.ports.disk), layout::incoming_dir(&partition.dir, incoming.token), list.log_id);
        *log = Some(core.ports.write_io.run(move || IncomingLog::open(disk, &dir, log_id)).await?);
    }
    let missing = log.as_ref().map_or(0, |log| log.missing_bytes(&list.segments));
    has_room(core, missing).await?;
    Ok(missing)
}

/// A copy leaves this node the room that it keeps free, or is not made.
async fn has_room(core: &Arc<Core>, needed: u64) -> Result<(), Hindrance> {
    let worker = Arc::clone(core);
    let space = core.ports.read_io.run(move || worker.ports.disk.space(&worker.config.data_dir)).await.map_err(Hindrance::Room)?;
    let (available, reserve) = (space.available, core.config.disk_reserve_bytes);
    if available < reserve.saturating_add(needed) {
        return Err(Hindrance::NoRoom { needed, available, reserve });
    }
    Ok(())
}

/// Takes all of what is listed. After a failure to write, the copy is looked at anew.
async fn pull(from: &From<'_>, log: &mut Option<IncomingLog>, list: &CopyList, is_final: bool) -> Result<(), Hindrance> {
    let segments: Arc<[CopySegment]> = list.segments.as_slice().into();
    let mut came = None;
    loop {
        let Some(mut copy) = log.take() else { return Ok(()) };
        let (source, listed) = (list.source, Arc::clone(&segments));
        let work = move || -> Result<_, IncomingError> {
            if let Some((piece, bytes)) = came {
                let bytes: Bytes = bytes;
                copy.write(&piece, &bytes, bytes.len() < limits::MOVE_PIECE_BYTES)?;
            }
            let wanted = copy.next(source, &listed, is_final)?;
            Ok((copy, wanted))
        };
        if from.core.is_disk_low.load(Ordering::Relaxed) {
            // It may have been found by others, or have room again by now.
            has_room(from.core, 0).await?;
        }
        let writing = from.core.ports.write_io.run(work);
        let written = if is_final { writing.await } else { from.core.moves.writing.take(&from.core.metrics, writing).await };
        if let Err(IncomingError::Io(full)) = &written
            && full.kind() == std::io::ErrorKind::StorageFull
        {
            from.core.on_no_space();
        }
        let (copy, wanted) = written?;
        *log = Some(copy);
        let Some(piece) = wanted else { return Ok(()) };
        let bytes = bodies::take_piece(from.copy(&CopyAsked::Piece { source, piece }).await?)??;
        from.incoming.copied_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        from.core.metrics.move_bytes_copied.add(bytes.len() as u64);
        came = Some((piece, bytes));
    }
}

/// Puts the copy in its place, with all that belongs to it.
async fn install(
    core: &Arc<Core>,
    record: &Arc<TopicRecord>,
    partition: &Arc<Partition>,
    incoming: &Incoming,
    log: Option<IncomingLog>,
    handed: HandOver,
    received: MonoMs,
) -> Result<(), Hindrance> {
    let Some(mut log) = log else { return Err(Hindrance::NotDurable) };
    let settled = frontier::decode(&handed.settled).map_err(|_| Malformed)?;
    let slot = Arc::clone(&partition.owner).lock_owned().await;
    let (worker, target, record, token) = (Arc::clone(core), Arc::clone(partition), Arc::clone(record), incoming.token);
    core.ports
        .write_io
        .run(move || {
            let mut slot = slot;
            log.complete(&handed.list.segments, handed.end)?;
            let (disk, dir) = (worker.ports.disk.as_ref(), layout::incoming_dir(&target.dir, token));
            // 1 what it is   2 what belongs to it, synced   3 its name   - before 3 the copy is gone on with, after 3 it is what is taken over
            mark::write(disk, &dir, Copy::Incoming(token)).map_err(|failed| Hindrance::Install(failed.source))?;
            // What this node has in memory of a former tenure is of no use any more.
            source::let_go(&worker, &target, &mut slot);
            keep(&worker, &record, target.id, &handed, &settled);
            if !settle::flush(&worker) {
                return Err(Hindrance::NotDurable);
            }
            worker.fanout.expect(target.id, handed.cursors.iter().filter_map(|cursor| Some((cursor.epoch, cursor.sent_through?))));
            let leases = if sabotage::is("leases_stay_behind") { Vec::new() } else { handed.leases };
            target.arrive(leases.into_iter().map(|lease| (lease, received.saturating_add(lease.left_ms))).collect());
            place(&worker, &dir, &target).map_err(Hindrance::Install)
        })
        .await
}

/// What was kept of a former tenure of this node is replaced.
fn keep(core: &Core, record: &TopicRecord, id: PartitionId, handed: &HandOver, settled: &SettleState) {
    if !sabotage::is("acks_stay_behind") {
        core.settle.keep(handed.list.log_id, settled);
    }
    core.settle.keep_promise(id, &Promise { log: handed.list.log_id, end: handed.end });
    if sabotage::is("cursor_of_a_former_tenure") {
        return;
    }
    for link in &record.children {
        let moved = handed.cursors.iter().find(|cursor| cursor.epoch == link.epoch);
        core.settle.replace_cursor(link.epoch, id.index, moved.and_then(|cursor| cursor.position.clone()));
    }
}

fn place(core: &Core, from: &std::path::Path, partition: &Partition) -> std::io::Result<()> {
    let disk = &core.ports.disk;
    if disk.exists(&partition.dir)? {
        return Err(std::io::ErrorKind::AlreadyExists.into());
    }
    disk.rename(from, &partition.dir)?;
    partition.dir.parent().map_or(Ok(()), |parent| disk.sync_dir(parent))
}

/// This node owns the partition now.
async fn arrive(core: &Arc<Core>, partition: &Arc<Partition>, record: &Arc<TopicRecord>, incoming: &Incoming) {
    let topic = core.topics.of(core, record);
    core.fanout.reconcile(core, &core.ports.catalog.view());
    let opened = partition.open(core).await;
    // Not known of a stop for a former life of this node, nor of a log that is opened later.
    if let Some(since) = incoming.stopped_since.lock().filter(|_| opened.is_ok()) {
        core.metrics.move_freeze_seconds.observe(since.elapsed());
    }
    match opened {
        Ok(_) => info!(partition = %partition.dir.display(), "a partition has come here and is served"),
        Err(error) => {
            warn!(partition = %partition.dir.display(), %error, "a partition has come here and is served once its log can be opened")
        }
    }
    core.moves.turn();
    core.fanout.on_published(core, partition.id);
    park::wake_takeable(core, &topic);
}
