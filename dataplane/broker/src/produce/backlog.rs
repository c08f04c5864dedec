//! Records of former lives of this node that were never dispatched: read from the WAL in pieces, never more in memory than the budget.
//!
//! What is damaged or gone in the WAL was promised, and is declared as a gap of its stream (design 3): the destination's log gets a frame
//! without records in the place of what is lost (one for a stretch in which nothing is intact), before any later record of that stream, and
//! once. Where a record was to go is known as long as its header is intact; then nobody else hears of it, and a destination that has the
//! record already does not either. Otherwise every destination hears of it for which later records of the stream are left here: it may have
//! lost something. One for which nothing later is left is not told. All damage is logged and counted, whoever is told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tracing::{error, info, warn};
use veena_contract::{StreamId, WalSeq, limits};
use veena_storage::wal::moved::{Moved, MovedError};
use veena_storage::wal::{Backlog, Destination, RecordKind, WalGap, WalRecord};

use crate::core::Core;
use crate::produce::dispatch;

const PIECE_BYTES: usize = limits::BACKLOG_PIECE_BYTES_MAX;
/// How long new records wait while the reader cannot go on.
const ORDER_PATIENCE: Duration = Duration::from_millis(limits::BACKLOG_ORDER_WAIT_MS_MAX);
const PAUSE: Duration = Duration::from_millis(20);

/// Feeds the dispatcher with everything from `from` to `end`.
pub async fn run(core: Arc<Core>, from: WalSeq, end: WalSeq) {
    info!(from = from.0, end = end.0, "dispatching records of a former life");
    let token = core.ports.tasks.token().clone();
    // A file of parked records may have to be mended with what lies before the checkpoint.
    let known_from = if core.parked.has_found() { core.wal.oldest() } else { from };
    if !learn_moved(&core, known_from, end).await {
        return;
    }
    core.moved.set_known();
    let mut position = from;
    let mut losses = Losses::default();
    let mut paused_since = None;
    while position < end && !token.is_cancelled() {
        if core.dispatch.former_bytes() > core.config.undispatched_bytes_max / limits::PARK_MEMORY_SHARE {
            let since = *paused_since.get_or_insert_with(Instant::now);
            if since.elapsed() > ORDER_PATIENCE && core.dispatch.give_up_order() {
                warn!("records of a former life cannot be dispatched: new ones no longer wait for them, and may overtake them");
            }
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = token.cancelled() => {}
            }
            continue;
        }
        paused_since = None;
        let wal = core.wal.clone();
        let piece = core.ports.read_io.run(move || wal.read_backlog(position, end, PIECE_BYTES)).await;
        match piece {
            Ok(mut piece) => {
                for gap in &piece.gaps {
                    error!(
                        stream = %gap.stream, first = gap.first.0, end = gap.end.0, destination = ?gap.destination,
                        "records of the WAL are damaged and lost"
                    );
                    core.metrics.damage_found.add(1);
                }
                position = piece.next.max(position.next());
                piece.gaps.retain(|gap| !core.moved.has_gap(gap));
                piece.records.retain(|record| !core.moved.has(record.stream, record.destination, record.seq));
                for record in losses.declare(piece) {
                    dispatch::enqueue_one(&core, record);
                }
                core.dispatch.set_backlog(Some(position));
            }
            Err(error) => {
                error!(%error, position = position.0, "the WAL cannot be read; tried again");
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_secs(1)) => {}
                    () = token.cancelled() => {}
                }
            }
        }
    }
    if position >= end {
        core.dispatch.set_backlog(None);
        info!("all records of the former life are on their way");
    }
}

/// Reads which records were moved: what stands for one comes later in the WAL than the record itself. Says whether it came to the end.
async fn learn_moved(core: &Arc<Core>, from: WalSeq, end: WalSeq) -> bool {
    let token = core.ports.tasks.token().clone();
    let mut position = from;
    while position < end && !token.is_cancelled() {
        let wal = core.wal.clone();
        let learned = match core.ports.read_io.run(move || wal.read_backlog(position, end, PIECE_BYTES)).await {
            Ok(piece) => note_moved(core, &piece).map(|()| position = piece.next.max(position.next())).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(reason) = learned {
            error!(reason, position = position.0, "the WAL cannot be read; tried again");
            tokio::select! {
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
                () = token.cancelled() => {}
            }
        }
    }
    position >= end
}

fn note_moved(core: &Core, piece: &Backlog) -> Result<(), MovedError> {
    for record in piece.records.iter().filter(|record| record.kind == RecordKind::Moved) {
        match Moved::decode(&record.body) {
            Ok(moved) => core.moved.add(record.destination.group, moved.from, moved.behind),
            Err(newer @ MovedError::UnknownVersion { .. }) => return Err(newer),
            Err(MovedError::Malformed) => {
                error!(seq = record.seq.0, "a moved record is intact and malformed; what it stands for is not known");
                core.metrics.damage_found.add(1);
            }
        }
    }
    Ok(())
}

/// Does this stand in a queue for what is lost up to its sequence? What was accepted has a body: an envelope is never empty.
pub fn is_lost(record: &WalRecord) -> bool {
    record.body.is_empty()
}

/// What stands for everything of a stream that is lost up to this sequence.
pub fn lost(stream: StreamId, seq: WalSeq, destination: Destination) -> WalRecord {
    WalRecord { seq, stream, kind: RecordKind::Accept, destination, body: Bytes::new() }
}

/// What was lost so far, and who knows of it.
#[derive(Default)]
struct Losses {
    /// Per stream, the last sequence that is lost without saying where it was to go.
    last: BTreeMap<StreamId, WalSeq>,
    /// Who knows of everything up to there.
    told: BTreeSet<(StreamId, Destination)>,
}

impl Losses {
    /// The records of a piece in order, and between them what stands for the lost ones.
    fn declare(&mut self, mut piece: Backlog) -> Vec<WalRecord> {
        let mut out = Vec::with_capacity(piece.records.len() + piece.gaps.len());
        piece.gaps.sort_unstable_by_key(|gap| gap.end);
        let mut gaps = piece.gaps.into_iter().peekable();
        for record in piece.records {
            while let Some(gap) = gaps.next_if(|gap| gap.end <= record.seq) {
                self.note(&gap, &mut out);
            }
            let last = self.last.get(&record.stream).copied();
            if let Some(last) = last.filter(|_| self.told.insert((record.stream, record.destination))) {
                out.push(lost(record.stream, last, record.destination));
            }
            out.push(record);
        }
        gaps.for_each(|gap| self.note(&gap, &mut out));
        out
    }

    fn note(&mut self, gap: &WalGap, out: &mut Vec<WalRecord>) {
        let last = WalSeq(gap.end.0 - 1);
        match gap.destination {
            // Gaps come by their ends: it knows of all that end before.
            Some(destination) => {
                self.told.insert((gap.stream, destination));
                out.push(lost(gap.stream, last, destination));
            }
            None => {
                self.told.retain(|(stream, _)| *stream != gap.stream);
                self.last.insert(gap.stream, last);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: StreamId = StreamId(7);

    fn to(partition: u32) -> Destination {
        Destination { group: 1, partition }
    }

    fn record(seq: u64, partition: u32) -> WalRecord {
        WalRecord { body: Bytes::from_static(b"x"), ..lost(STREAM, WalSeq(seq), to(partition)) }
    }

    fn gap(first: u64, end: u64, destination: Option<Destination>) -> WalGap {
        WalGap { stream: STREAM, first: WalSeq(first), end: WalSeq(end), destination }
    }

    /// Sequence, partition, and whether it stands for what is lost.
    fn told(losses: &mut Losses, records: Vec<WalRecord>, gaps: Vec<WalGap>) -> Vec<(u64, u32, bool)> {
        let out = losses.declare(Backlog { records, gaps, ..Backlog::default() });
        out.iter().map(|record| (record.seq.0, record.destination.partition, is_lost(record))).collect()
    }

    #[test]
    fn a_loss_is_told_to_its_destination_alone_when_that_is_known() {
        let gaps = vec![gap(3, 4, Some(to(1))), gap(1, 2, Some(to(1)))];
        let out = told(&mut Losses::default(), vec![record(0, 0), record(2, 0)], gaps);
        assert_eq!(out, [(0, 0, false), (1, 1, true), (2, 0, false), (3, 1, true)]);
    }

    #[test]
    fn a_loss_of_unknown_destination_is_told_once_to_each_that_has_later_records() {
        let mut losses = Losses::default();
        let out = told(&mut losses, vec![record(0, 2), record(5, 0), record(6, 0)], vec![gap(1, 3, None), gap(3, 5, None)]);
        assert_eq!(out, [(0, 2, false), (4, 0, true), (5, 0, false), (6, 0, false)], "partition 2 has none later");
        let out = told(&mut losses, vec![record(8, 0), record(9, 1)], vec![gap(7, 8, Some(to(3)))]);
        assert_eq!(out, [(7, 3, true), (8, 0, false), (4, 1, true), (9, 1, false)], "in a later piece too");
        let out = told(&mut losses, vec![record(11, 0), record(12, 3)], vec![gap(10, 11, None)]);
        assert_eq!(out, [(10, 0, true), (11, 0, false), (10, 3, true), (12, 3, false)], "and of the next loss again");
    }

    #[test]
    fn what_is_told_of_one_stretch_rises_for_each_destination() {
        let known = |first, end| gap(first, end, Some(to(0)));
        let out = told(&mut Losses::default(), vec![record(9, 0), record(10, 1)], vec![known(1, 8), gap(2, 5, None)]);
        assert_eq!(out, [(7, 0, true), (9, 0, false), (4, 1, true), (10, 1, false)]);
        let out = told(&mut Losses::default(), vec![record(9, 0), record(10, 1)], vec![known(1, 4), gap(2, 8, None)]);
        assert_eq!(out, [(3, 0, true), (7, 0, true), (9, 0, false), (7, 1, true), (10, 1, false)]);
    }

    #[test]
    fn a_loss_in_one_stream_says_nothing_of_another() {
        let other = WalRecord { stream: StreamId(8), ..record(9, 0) };
        assert_eq!(told(&mut Losses::default(), vec![other], vec![gap(1, 3, None)]), [(9, 0, false)]);
    }
}
