//! Reading parked records. What is damaged in a file is taken from the WAL as long as that still holds it; what neither has is declared as
//! lost, as what is damaged in the WAL is.

use std::ops::Range;

use veena_contract::WalSeq;
use veena_storage::disk::Disk;
use veena_storage::wal::parked::{ParkedFile, ParkedPiece};
use veena_storage::wal::{Backlog, Wal, WalGap, WalReadError, WalRecord};

use crate::produce::backlog::{is_lost, lost};
use crate::produce::moved::MovedRecords;

/// A place in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// How far from its start.
    pub at: u64,
    /// The record before it, if there is one.
    pub after: Option<WalSeq>,
}

/// Some of a file's records, in order, with those of the WAL in the places of damaged ones.
#[derive(Default)]
pub struct Mended {
    /// As the file tells it, but complete as far as can be.
    pub piece: ParkedPiece,
    /// What neither the file nor the WAL has.
    pub lost: Vec<WalGap>,
}

/// Something is missing in a piece.
struct Hole {
    /// Where in the file.
    at: u64,
    /// Before which of the intact records.
    index: usize,
    /// What it may be.
    sequences: Range<WalSeq>,
}

fn holes(file: &ParkedFile, after: Option<WalSeq>, piece: &ParkedPiece) -> Vec<Hole> {
    let hole = |&(at, _): &(u64, u64)| {
        let index = piece.records.partition_point(|(_, behind)| *behind <= at);
        let before = index.checked_sub(1).map(|before| piece.records[before].0.seq).or(after);
        // What is before may be of an earlier file.
        let first = before.map(WalSeq::next).max(file.streams.first().map(|part| part.first)).unwrap_or_default();
        let next = piece.records.get(index).map(|(record, _)| record.seq);
        let end = next.or_else(|| Some(file.streams.last()?.last.next())).unwrap_or_default();
        Hole { at, index, sequences: first..end }
    };
    piece.damaged.iter().map(hole).collect()
}

/// Reads records from a place on: about `bytes_max` bytes of bodies of the file, and as many of the WAL. Blocks.
///
/// # Errors
/// [`WalReadError`], of the file or of the WAL.
pub fn read(
    disk: &dyn Disk,
    wal: &Wal,
    moved: &MovedRecords,
    file: &ParkedFile,
    from: Place,
    bytes_max: usize,
) -> Result<Mended, WalReadError> {
    let mut piece = file.read(disk, from.at, bytes_max)?;
    let holes = holes(file, from.after, &piece);
    let mut intact = std::mem::take(&mut piece.records).into_iter();
    let (mut taken, mut room, mut lost) = (0, bytes_max, Vec::new());
    for (nth, hole) in holes.into_iter().enumerate() {
        piece.records.extend(intact.by_ref().take(hole.index - taken));
        taken = hole.index;
        let found = from_wal(wal, moved, file, &hole.sequences, room)?;
        room = room.saturating_sub(found.records.iter().map(|record| record.body.len()).sum());
        lost.extend(found.gaps);
        // Whoever goes on behind one of them comes to the hole again, and finds what is left of it.
        piece.records.extend(found.records.into_iter().map(|record| (record, hole.at)));
        if found.next < hole.sequences.end {
            piece.damaged.truncate(nth + 1);
            (piece.next, piece.is_end) = (hole.at, false);
            return Ok(Mended { piece, lost });
        }
    }
    piece.records.extend(intact);
    Ok(Mended { piece, lost })
}

/// What the WAL has of the file's records at these sequences, and in the places of those it has not, what stands for them.
fn from_wal(wal: &Wal, moved: &MovedRecords, file: &ParkedFile, wanted: &Range<WalSeq>, bytes_max: usize) -> Result<Backlog, WalReadError> {
    loop {
        let start = wanted.start.max(wal.oldest()).min(wanted.end);
        let mut found = Backlog { next: start, ..Backlog::default() };
        found.gaps.extend(of_file(file, None, wanted.start..start));
        let mut bytes = 0;
        while found.next < wanted.end && (bytes < bytes_max || found.records.is_empty()) {
            let step = wal.read_backlog(found.next, wanted.end, bytes_max)?;
            found.next = step.next.max(found.next.next());
            let gaps = step.gaps.iter().filter(|gap| gap.destination.is_none_or(|destination| destination == file.destination));
            found.gaps.extend(gaps.flat_map(|gap| of_file(file, Some(gap), gap.first..gap.end)));
            found.gaps.extend(step.lost_below.into_iter().flat_map(|range| of_file(file, None, range)));
            // Of another stream nothing is known to be left in the file; its owner may have been told that it is finished.
            let is_ours =
                |record: &WalRecord| record.destination == file.destination && file.streams.iter().any(|part| part.stream == record.stream);
            // What was moved before the file was written never was in it.
            let is_left = |record: &WalRecord| is_ours(record) && !moved.has(record.stream, record.destination, record.seq);
            let ours = step.records.into_iter().filter(is_left);
            found.records.extend(ours.inspect(|record| bytes += record.body.len()));
        }
        if start < wanted.end && wal.oldest() > start {
            // Recycled while it was read.
            continue;
        }
        found.records.extend(found.gaps.iter().map(|gap| lost(gap.stream, WalSeq(gap.end.0 - 1), file.destination)));
        found.records.sort_by_key(|record| (record.seq, is_lost(record)));
        found.records.dedup_by_key(|record| record.seq);
        return Ok(found);
    }
}

/// The part of a stretch that the file covers, of the stream of `gap` or of all.
fn of_file(file: &ParkedFile, gap: Option<&WalGap>, Range { start, end }: Range<WalSeq>) -> impl Iterator<Item = WalGap> {
    let parts = file.streams.iter().filter(move |part| gap.is_none_or(|gap| gap.stream == part.stream));
    let clipped = parts.map(move |part| WalGap {
        stream: part.stream,
        first: part.first.max(start),
        end: part.last.next().min(end),
        destination: Some(file.destination),
    });
    clipped.filter(|gap| gap.first < gap.end)
}
