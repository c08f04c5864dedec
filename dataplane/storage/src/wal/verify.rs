//! Judging a log without opening it: which bad places are damage, and which belong to groups nobody was told about. Takes no lock and
//! changes nothing.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use veena_contract::WalSeq;

use super::checkpoint::CheckpointCell;
use super::format::{BadSegmentHeader, RECORD_HEADER_BYTES, RecordHeader, SEGMENT_HEADER_BYTES, SegmentHeader};
use super::open::{DamageKind, FoundSegment, WalDamage};
use super::reach::Reach;
use super::replay::{FileSource, Found, Source, scan};
use super::{CHECKPOINT_CELL, ID_CELL, RecordKind, STREAMS_CELL, WalIoError, failed, number_of, segment_name};
use crate::cell::{self, CellKind, CellRead};
use crate::disk::Disk;

/// What one segment holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedSegment {
    /// The file.
    pub path: PathBuf,
    /// The first sequence it holds or held.
    pub first: WalSeq,
    /// The position behind its last record that counts.
    pub end: WalSeq,
    /// How many intact records count.
    pub records: u64,
    /// How many of them go elsewhere than first accepted.
    pub moved: u64,
    /// The place behind the last of them.
    pub good_end: u64,
}

/// What a log holds, and what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WalVerified {
    /// The identity of the directory, if its cell can be read.
    pub wal_id: Option<u64>,
    /// The segments, oldest first.
    pub segments: Vec<VerifiedSegment>,
    /// Below this everything is dispatched, if the cell can be read.
    pub checkpoint: Option<WalSeq>,
    /// Promised bytes that cannot be read, and derived files that are damaged.
    pub damage: Vec<WalDamage>,
    /// Where the last segment's torn tail starts: a record was begun there that nobody was told about. The next start cuts it.
    pub torn: Option<(PathBuf, u64)>,
    /// The checkpoint is beyond the end of the log: its newest segments are missing, and it is not opened like that.
    pub lost_end: Option<LostEnd>,
}

/// What a checkpoint beyond the end of its log tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostEnd {
    /// Where the log ends now.
    pub end: WalSeq,
    /// Below this everything is dispatched, so all that is left of the log.
    pub checkpoint: WalSeq,
    /// Below this records were durable when the checkpoint was written.
    pub durable_end: WalSeq,
}

/// A segment's file, read to its end.
struct Walked {
    path: PathBuf,
    generation: u64,
    len: u64,
    header: Result<SegmentHeader, BadSegmentHeader>,
    first: WalSeq,
    end: WalSeq,
    records: u64,
    moved: u64,
    good_end: u64,
    holes: Vec<BadRange>,
    synced_end: WalSeq,
    has_begun_more: bool,
}

struct BadRange {
    at: u64,
    until: u64,
    first: WalSeq,
    end: WalSeq,
}

/// Reads every record of every segment and judges what is bad. `progress` is told bytes as they are read. For tools; blocks.
///
/// # Errors
/// Of the file system.
pub fn verify(disk: &Arc<dyn Disk>, dir: &Path, progress: &mut dyn FnMut(u64)) -> Result<WalVerified, WalIoError> {
    let mut verified = WalVerified::default();
    let damage = &mut verified.damage;
    let as_id = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_be_bytes);
    let wal_id = read_cell(&**disk, &dir.join(ID_CELL), CellKind::WAL_ID, DamageKind::IdCell, as_id, damage)?;
    let path = dir.join(CHECKPOINT_CELL);
    let cell = read_cell(&**disk, &path, CellKind::WAL_CHECKPOINT, DamageKind::CheckpointCell, CheckpointCell::decode, damage)?;
    read_cell(&**disk, &dir.join(STREAMS_CELL), CellKind::WAL_STREAMS, DamageKind::StreamsCell, |_| Some(()), damage)?;
    verified.wal_id = wal_id;
    verified.checkpoint = cell.map(|cell| cell.below);

    let mut names: Vec<(u64, PathBuf)> = Vec::new();
    for entry in disk.list(dir).map_err(failed(dir, "list"))?.into_iter().filter(|entry| !entry.is_dir) {
        if let Some(generation) = number_of(&entry.name, "wal") {
            names.push((generation, dir.join(&entry.name)));
        }
    }
    names.sort_unstable();
    let headers = names.iter().map(|(_, path)| header_of(&**disk, path)).collect::<Result<Vec<_>, _>>()?;
    let mut walked = Vec::new();
    for (index, (generation, path)) in names.iter().enumerate() {
        let is_foreign = |header: &SegmentHeader| wal_id.is_some_and(|id| header.wal_id != id);
        if headers[index].as_ref().is_ok_and(is_foreign) {
            continue;
        }
        let behind =
            headers[index + 1..].iter().filter_map(|header| header.as_ref().ok()).find(|header: &&SegmentHeader| !is_foreign(header));
        let limit = behind.map(|header| header.first);
        let header =
            headers[index].and_then(|header| (header.generation == *generation).then_some(header).ok_or(BadSegmentHeader::Damaged));
        walked.push(walk(&**disk, path, *generation, header, limit, progress)?);
    }
    let cell = cell.unwrap_or_default();
    verified.lost_end = lost_end(&**disk, &walked, &cell)?;
    judge(dir, walked, cell, &mut verified);
    Ok(verified)
}

/// The rule by which a log is not opened.
fn lost_end(disk: &dyn Disk, walked: &[Walked], cell: &CheckpointCell) -> Result<Option<LostEnd>, WalIoError> {
    let found = |segment: &Walked| FoundSegment {
        generation: segment.generation,
        path: segment.path.clone(),
        len: segment.len,
        header: segment.header.ok(),
        first: segment.first,
    };
    let segments: Vec<FoundSegment> = walked.iter().map(found).collect();
    let tail_start = segments.iter().rposition(|segment| segment.header.is_some()).unwrap_or(0);
    let reach = Reach::read(disk, &segments, tail_start, cell)?;
    let is_lost = reach.is_exceeded(disk, &segments, cell)?;
    let CheckpointCell { below: checkpoint, durable_end, .. } = *cell;
    Ok(is_lost.then_some(LostEnd { end: reach.decision.reached, checkpoint, durable_end }))
}

/// A small file that is damaged, or whose value is none of its kind, is noted.
fn read_cell<T>(
    disk: &dyn Disk,
    path: &Path,
    kind: CellKind,
    damage_kind: DamageKind,
    decode: impl FnOnce(&[u8]) -> Option<T>,
    damage: &mut Vec<WalDamage>,
) -> Result<Option<T>, WalIoError> {
    let value = match cell::read(disk, path, kind).map_err(failed(path, "read"))? {
        CellRead::NotThere => return Ok(None),
        CellRead::Value(bytes) => decode(&bytes),
        CellRead::Damaged { .. } => None,
    };
    if value.is_none() {
        let (first, end) = (WalSeq(0), WalSeq(0));
        damage.push(WalDamage { kind: damage_kind, path: path.to_owned(), offset: 0, bytes: 0, first, end });
    }
    Ok(value)
}

fn header_of(disk: &dyn Disk, path: &Path) -> Result<Result<SegmentHeader, BadSegmentHeader>, WalIoError> {
    let mut source = FileSource::open(disk, path)?;
    Ok(SegmentHeader::decode(source.view(0, SEGMENT_HEADER_BYTES).map_err(failed(path, "read"))?))
}

/// Reads a segment's records that lie below `limit`, where the next segment starts.
fn walk(
    disk: &dyn Disk,
    path: &Path,
    generation: u64,
    header: Result<SegmentHeader, BadSegmentHeader>,
    limit: Option<WalSeq>,
    progress: &mut dyn FnMut(u64),
) -> Result<Walked, WalIoError> {
    let mut source = FileSource::open(disk, path)?;
    let len = source.len();
    let mut told = 0;
    let mut expected = header.ok().map(|header| header.first);
    let mut walked = Walked {
        path: path.to_owned(),
        generation,
        len,
        header,
        first: expected.unwrap_or_default(),
        end: expected.unwrap_or_default(),
        records: 0,
        moved: 0,
        good_end: SEGMENT_HEADER_BYTES as u64,
        holes: Vec::new(),
        synced_end: WalSeq(0),
        has_begun_more: false,
    };
    let mut bad = None;
    let outcome = scan(&mut source, generation, SEGMENT_HEADER_BYTES as u64, &mut |found| {
        match found {
            Found::Bad { at, end } => bad = Some((at, end)),
            Found::Record { at, end, head, .. } => {
                if limit.is_some_and(|limit| head.seq >= limit) {
                    return ControlFlow::Break(());
                }
                let hole = bad.take();
                let first = expected.unwrap_or(head.seq);
                if head.seq > first || hole.is_some() {
                    let (at, until) = hole.unwrap_or((at, at));
                    walked.holes.push(BadRange { at, until, first, end: head.seq.max(first) });
                }
                if walked.records == 0 && walked.header.is_err() {
                    walked.first = head.seq;
                }
                walked.records += 1;
                walked.moved += u64::from(head.kind == RecordKind::Moved.code());
                walked.synced_end = walked.synced_end.max(head.synced_end);
                walked.end = WalSeq(head.seq.0.saturating_add(1));
                expected = Some(walked.end);
                walked.good_end = end;
                progress(end.saturating_sub(told));
                told = end;
            }
        }
        ControlFlow::Continue(())
    });
    outcome.map_err(failed(path, "read"))?;
    progress(len.saturating_sub(told));
    let next = source.view(walked.good_end, RECORD_HEADER_BYTES).map_err(failed(path, "read"))?;
    walked.has_begun_more = RecordHeader::decode(next, generation, walked.good_end).is_some();
    Ok(walked)
}

/// Every bad place below what is proven to have been synced is damage.
fn judge(dir: &Path, walked: Vec<Walked>, cell: CheckpointCell, verified: &mut WalVerified) {
    let proof = cell.durable_end;
    let proven = walked.iter().map(|segment| segment.synced_end).max().unwrap_or_default().max(proof);
    for (index, segment) in walked.iter().enumerate() {
        let mut note = |kind, path: &Path, offset: u64, until: u64, first: WalSeq, end: WalSeq| {
            let bytes = until.saturating_sub(offset);
            verified.damage.push(WalDamage { kind, path: path.to_owned(), offset, bytes, first, end });
        };
        let is_last = index + 1 == walked.len();
        if segment.header.is_err() && (segment.records > 0 || !is_last) {
            note(DamageKind::SegmentHeader, &segment.path, 0, SEGMENT_HEADER_BYTES as u64, segment.first, segment.first);
        }
        if let Some((before, previous)) = index.checked_sub(1).map(|before| &walked[before]).zip(segment.header.ok().map(|h| h.previous)) {
            let is_missing = previous != before.generation && before.end < segment.first && segment.first > cell.below;
            if is_missing {
                let path = dir.join(segment_name(previous));
                note(DamageKind::SegmentMissing, &path, 0, 0, before.end.max(cell.below), segment.first);
            }
        }
        for hole in segment.holes.iter().filter(|hole| hole.first < proven) {
            note(DamageKind::Records, &segment.path, hole.at, hole.until, hole.first, hole.end);
        }
        let next = walked.get(index + 1).filter(|next| next.header.is_ok_and(|header| header.previous == segment.generation));
        let promised = next.map_or(if is_last { proof } else { segment.end }, |next| next.first);
        if is_last && verified.lost_end.is_some() {
            // What is missing is not in this file.
            continue;
        }
        if segment.end < promised {
            note(DamageKind::Records, &segment.path, segment.good_end, segment.len, segment.end, promised);
        } else if is_last && segment.has_begun_more {
            verified.torn = Some((segment.path.clone(), segment.good_end));
        }
    }
    verified.segments = walked
        .into_iter()
        .map(|segment| VerifiedSegment {
            path: segment.path,
            first: segment.first,
            end: segment.end,
            records: segment.records,
            moved: segment.moved,
            good_end: segment.good_end,
        })
        .collect();
}
