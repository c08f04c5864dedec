//! Opening a log: what is there, what of it counts, and where to go on.
//!
//! Only the tail is read: the last segment with a header, and what stands above it. Every segment below was synced before the next one got
//! a record, ends where the next one starts, and is verified when read.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::warn;
use veena_contract::{Entropy, StreamId, WalSeq};

use super::append::{Log, Opening, Shared};
use super::checkpoint::CheckpointCell;
use super::format::{BadSegmentHeader, SEGMENT_HEADER_BYTES, SegmentHeader};
use super::reach::Reach;
use super::replay::{FileSource, Source};
use super::segments::{Active, Segment, Spares, is_no_space, open_handles};
use super::tail::{Decision, Hole, Scanned};
use super::{
    CHECKPOINT_CELL, Handle, ID_CELL, STREAMS_CELL, Wal, WalConfig, WalIoError, WalStream, failed, number_of, segment_name, streams,
};
use crate::cell::{self, CellError, CellKind, CellRead};
use crate::disk::{Disk, DiskFile, OpenMode, create_dir_durably, write_all_at};
use veena_contract::sabotage;

/// What kind of damage was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// Records that were promised cannot be read.
    Records,
    /// The header of a segment cannot be read; its records may be intact.
    SegmentHeader,
    /// A segment between others is not there.
    SegmentMissing,
    /// The checkpoint cell cannot be read; replay starts at the oldest record.
    CheckpointCell,
    /// The list of streams did not fit the log, and was made again from it.
    StreamsCell,
    /// The identity of the directory could not be read, and was taken from its segments.
    IdCell,
}

/// Damage found at open. What is damaged in sealed segments is found when they are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalDamage {
    /// What kind.
    pub kind: DamageKind,
    /// The file.
    pub path: PathBuf,
    /// Where in the file.
    pub offset: u64,
    /// How much of it.
    pub bytes: u64,
    /// The first sequence concerned.
    pub first: WalSeq,
    /// The position behind the last sequence concerned; `first` when none is lost.
    pub end: WalSeq,
}

/// What an open found.
#[derive(Clone, Debug)]
pub struct WalOpened {
    /// The identity of the directory, minted when it was created.
    pub wal_id: u64,
    /// Below this everything is dispatched.
    pub checkpoint: WalSeq,
    /// The first position of this open.
    pub end: WalSeq,
    /// The stream of this open, minted now.
    pub stream: StreamId,
    /// Rises with each open.
    pub ordinal: u32,
    /// Older streams with records in `checkpoint..end`, oldest first.
    pub streams: Vec<WalStream>,
    /// What is damaged.
    pub damage: Vec<WalDamage>,
}

/// Why a log was not opened.
#[derive(Debug, thiserror::Error)]
pub enum WalOpenError {
    /// Another process, or this one, has it open.
    #[error("{} is in use by another process", dir.display())]
    Locked {
        /// The directory.
        dir: PathBuf,
    },
    /// The checkpoint is above everything the log holds: parts of the log are missing, or the checkpoint is of another log.
    #[error("{}: the checkpoint {checkpoint} is beyond the end of the log {end}; segments are missing or the file is of another log: put them back, or see what `veena log repair` offers", path.display())]
    CheckpointBeyondEnd {
        /// The checkpoint's file.
        path: PathBuf,
        /// What it says.
        checkpoint: WalSeq,
        /// Where the log ends.
        end: WalSeq,
    },
    /// A segment was written by a newer version.
    #[error("{} is of format version {version}, which this version does not know", path.display())]
    NewerFormat {
        /// The segment.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The file system failed.
    #[error(transparent)]
    Io(#[from] WalIoError),
    /// A cell was not written.
    #[error(transparent)]
    Cell(#[from] CellError),
}

/// A segment as found.
pub(super) struct FoundSegment {
    pub generation: u64,
    pub path: PathBuf,
    pub len: u64,
    pub header: Option<SegmentHeader>,
    pub first: WalSeq,
}

pub(super) struct Finder<'a> {
    pub disk: &'a Arc<dyn Disk>,
    pub dir: &'a Path,
    pub damage: Vec<WalDamage>,
}

#[derive(Default)]
struct Names {
    segments: Vec<(u64, PathBuf, u64)>,
    spares: Vec<PathBuf>,
    next_number: u64,
    next_generation: u64,
}

/// The log as far as its files tell.
struct Recovered {
    segments: Vec<FoundSegment>,
    decision: Decision,
    scanned: Scanned,
    /// Where appends may go on in the last segment.
    resume_at: Option<u64>,
    aside: Vec<FoundSegment>,
}

impl Wal {
    /// Opens or creates a log. Blocks. Takes the directory's lock until closed.
    ///
    /// # Errors
    /// [`WalOpenError`]; nothing of the log was changed.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, config: WalConfig, entropy: &dyn Entropy) -> Result<(Self, WalOpened), WalOpenError> {
        create_dir_durably(&*disk, dir).map_err(failed(dir, "create"))?;
        let lock = disk.lock_dir(dir).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => WalOpenError::Locked { dir: dir.to_owned() },
            _ => failed(dir, "lock")(error).into(),
        })?;
        let mut finder = Finder { disk: &disk, dir, damage: Vec::new() };
        let mut names = finder.names(config)?;
        let cell = finder.checkpoint_cell()?;
        let wal_id = finder.wal_id(&names, entropy)?;
        let recovered = finder.recover(&names, wal_id, &cell)?;
        let end = recovered.decision.end;
        let oldest = recovered.segments.first().map_or(end, |segment| segment.first);
        let checkpoint = cell.below.max(oldest).min(end);
        let table = streams::recover(&mut finder, &recovered.segments, &recovered.scanned, checkpoint, end)?;
        let stream = StreamId(entropy.next_u128());
        let ordinal = table.next_ordinal;
        write_streams(&*disk, dir, &table.listed, WalStream { stream, ordinal, first: end, end })?;
        let damage = finder.damage;
        for segment in &recovered.aside {
            let spare = dir.join(super::spare_name(names.next_number));
            names.next_number += 1;
            disk.rename(&segment.path, &spare).map_err(failed(&segment.path, "set aside"))?;
            if segment.len == config.segment_bytes {
                names.spares.push(spare);
            } else {
                disk.remove_file(&spare).map_err(failed(&spare, "remove"))?;
            }
        }
        names.next_generation = names.next_generation.max(cell.generation.saturating_add(1));
        let active = reopen_active(&*disk, &recovered)?;
        let segments = recovered.segments.into_iter().map(|found| {
            let used = active.as_ref().filter(|active| active.generation == found.generation).map_or(found.len, |active| active.position);
            Segment { generation: found.generation, first: found.first, path: found.path, used, is_durable: found.header.is_some() }
        });
        let durable_at = active.as_ref().map_or((0, 0), |active| (active.generation, active.position));
        let log = Log { segments: segments.collect(), active, next_generation: names.next_generation, next_seq: end, durable_at };
        let spares = Spares::new(Arc::clone(&disk), dir.to_owned(), config.segment_bytes, names.spares, names.next_number);
        let former = table.streams.clone();
        let dir = dir.to_owned();
        let opening = Opening { disk, dir, config, wal_id, stream, ordinal, former, checkpoint, end, log, spares, lock };
        let shared = Arc::new(Shared::new(opening));
        shared.recycle(checkpoint);
        let opened = WalOpened { wal_id, checkpoint, end, stream, ordinal, streams: table.streams, damage };
        Ok((Self { handle: Arc::new(Handle { shared, threads: Mutex::default() }) }, opened))
    }
}

fn reopen_active(disk: &dyn Disk, recovered: &Recovered) -> Result<Option<Active>, WalIoError> {
    let (Some(position), Some(last)) = (recovered.resume_at, recovered.segments.last()) else { return Ok(None) };
    let handles = open_handles(disk, &last.path).map_err(failed(&last.path, "open"))?;
    let previous = last.header.map_or(0, |header| header.previous);
    Ok(Some(Active {
        handles,
        path: last.path.clone(),
        generation: last.generation,
        previous,
        first: last.first,
        position,
        capacity: last.len,
        is_header_written: true,
        is_closing: false,
    }))
}

fn write_streams(disk: &dyn Disk, dir: &Path, former: &[WalStream], own: WalStream) -> Result<(), WalOpenError> {
    let path = dir.join(STREAMS_CELL);
    match cell::write(disk, &path, CellKind::WAL_STREAMS, &streams::encode(former.iter().chain([&own]))) {
        Ok(()) => Ok(()),
        Err(error) if is_no_space(&error.source) => {
            // a full disk must not keep a node from serving what it has: the next open makes the list again from the records
            warn!(err = &error as &dyn std::error::Error, "the list of streams was not written");
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

impl Finder<'_> {
    fn names(&self, config: WalConfig) -> Result<Names, WalIoError> {
        let mut names = Names { next_generation: 1, ..Names::default() };
        for entry in self.disk.list(self.dir).map_err(failed(self.dir, "list"))? {
            if entry.is_dir {
                continue;
            }
            let path = self.dir.join(&entry.name);
            if let Some(generation) = number_of(&entry.name, "wal") {
                names.next_generation = names.next_generation.max(generation.saturating_add(1));
                names.segments.push((generation, path, entry.len));
            } else if let Some(number) = number_of(&entry.name, "spare") {
                names.next_number = names.next_number.max(number.saturating_add(1));
                if entry.len == config.segment_bytes && names.spares.len() < config.spare_max {
                    names.spares.push(path);
                } else {
                    self.disk.remove_file(&path).map_err(failed(&path, "remove"))?;
                }
            } else if let Some(number) = number_of(&entry.name, "tmp") {
                names.next_number = names.next_number.max(number.saturating_add(1));
                self.disk.remove_file(&path).map_err(failed(&path, "remove"))?;
            }
        }
        Ok(names)
    }

    fn checkpoint_cell(&mut self) -> Result<CheckpointCell, WalIoError> {
        let path = self.dir.join(CHECKPOINT_CELL);
        let value = match cell::read(&**self.disk, &path, CellKind::WAL_CHECKPOINT).map_err(failed(&path, "read"))? {
            CellRead::NotThere => return Ok(CheckpointCell::default()),
            CellRead::Damaged { .. } => None,
            CellRead::Value(bytes) => CheckpointCell::decode(&bytes),
        };
        if value.is_none() {
            self.note(DamageKind::CheckpointCell, path);
        }
        Ok(value.unwrap_or_default())
    }

    /// Notes damage that loses no record.
    pub fn note(&mut self, kind: DamageKind, path: PathBuf) {
        self.damage.push(WalDamage { kind, path, offset: 0, bytes: 0, first: WalSeq(0), end: WalSeq(0) });
    }

    fn wal_id(&mut self, names: &Names, entropy: &dyn Entropy) -> Result<u64, WalOpenError> {
        let path = self.dir.join(ID_CELL);
        let read = cell::read(&**self.disk, &path, CellKind::WAL_ID).map_err(failed(&path, "read"))?;
        if let CellRead::Value(bytes) = &read
            && let Ok(bytes) = bytes.as_slice().try_into()
        {
            return Ok(u64::from_be_bytes(bytes));
        }
        let mut wal_id = None;
        for (generation, path, _) in names.segments.iter().rev() {
            let header = self.read_header(path)?.filter(|header| header.generation == *generation);
            wal_id = header.map(|header| header.wal_id);
            if wal_id.is_some() {
                break;
            }
        }
        if read != CellRead::NotThere || !names.segments.is_empty() {
            self.note(DamageKind::IdCell, path.clone());
        }
        let wal_id = wal_id.unwrap_or_else(|| entropy.next_u64());
        cell::write(&**self.disk, &path, CellKind::WAL_ID, &wal_id.to_be_bytes())?;
        Ok(wal_id)
    }

    fn open_file(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn DiskFile>, WalIoError> {
        self.disk.open(path, mode).map_err(failed(path, "open"))
    }

    fn read_header(&self, path: &Path) -> Result<Option<SegmentHeader>, WalOpenError> {
        let mut source = self.source(path)?;
        match SegmentHeader::decode(source.view(0, SEGMENT_HEADER_BYTES).map_err(failed(path, "read"))?) {
            Ok(header) => Ok(Some(header)),
            Err(BadSegmentHeader::Damaged) => Ok(None),
            Err(BadSegmentHeader::Version(version)) => Err(WalOpenError::NewerFormat { path: path.to_owned(), version }),
        }
    }

    /// Writes back what the cache holds and drops it, so that what is read next is what the device has.
    fn settle(&self, path: &Path) -> Result<(), WalIoError> {
        if sabotage::is("trust_page_cache") {
            return Ok(());
        }
        let file = self.open_file(path, OpenMode::ReadWrite)?;
        file.sync_data().map_err(failed(path, "sync"))?;
        file.drop_cache().map_err(failed(path, "drop the cache of"))
    }

    fn recover(&mut self, names: &Names, wal_id: u64, cell: &CheckpointCell) -> Result<Recovered, WalOpenError> {
        let (mut segments, tail_start) = self.find_segments(names, wal_id, cell.below)?;
        let reach = Reach::read(&**self.disk, &segments, tail_start, cell)?;
        if reach.is_exceeded(&**self.disk, &segments, cell)? {
            let path = self.dir.join(CHECKPOINT_CELL);
            return Err(WalOpenError::CheckpointBeyondEnd { path, checkpoint: cell.below, end: reach.decision.reached });
        }
        let Reach { scanned, decision, .. } = reach;
        self.report_holes(&segments, &scanned, &decision);
        // segments that were renamed into place and never got a record that counts; the checkpoint tells of one that did
        let counted = scanned.runs[..decision.accepted].last().map(|run| run.segment);
        let known = segments.iter().rposition(|segment| segment.header.is_some() || segment.generation == cell.generation);
        let aside = segments.split_off(counted.max(known).map_or(0, |last| last + 1));
        for index in tail_start..segments.len() {
            if segments[index].header.is_none() {
                self.mend_tail(&mut segments, index, wal_id, &scanned, &decision, cell.durable_end)?;
            }
        }
        let is_whole = decision.accepted == scanned.runs.len() && !scanned.has_stale && decision.holes.is_empty();
        let resume_at = segments.last().filter(|last| is_whole && last.header.is_some()).map(|_| {
            let last_run = scanned.runs.last().filter(|run| run.segment + 1 == segments.len());
            last_run.map_or(SEGMENT_HEADER_BYTES as u64, |run| run.end_at)
        });
        Ok(Recovered { segments, decision, scanned, resume_at, aside })
    }

    /// The segments in order of generation, and the index of the last that has a header.
    fn find_segments(&mut self, names: &Names, wal_id: u64, checkpoint: WalSeq) -> Result<(Vec<FoundSegment>, usize), WalOpenError> {
        let mut segments: Vec<FoundSegment> = Vec::new();
        let mut has_tail = false;
        let mut tail_len = 0;
        for (generation, path, len) in names.segments.iter().rev() {
            if !has_tail {
                self.settle(path)?;
            }
            let header = self.read_header(path)?;
            if header.is_some_and(|header| header.wal_id != wal_id) {
                warn!(file = %path.display(), "a segment of another log lies here; it is left alone");
                continue;
            }
            let header = header.filter(|header| header.generation == *generation);
            if !has_tail {
                tail_len += 1;
                has_tail = header.is_some();
            }
            let first = header.map_or(WalSeq(0), |header| header.first);
            segments.push(FoundSegment { generation: *generation, path: path.clone(), len: *len, header, first });
        }
        segments.reverse();
        let tail_start = segments.len() - tail_len;
        self.mend_sealed(&mut segments, tail_start, checkpoint)?;
        Ok((segments, tail_start))
    }

    /// Sealed segments without a header get their start from their records; segments that are not there are reported. Below the checkpoint
    /// nothing is missed: a power cut after a recycling may leave any subset of what was recycled.
    fn mend_sealed(&mut self, segments: &mut [FoundSegment], tail_start: usize, checkpoint: WalSeq) -> Result<(), WalOpenError> {
        for index in (0..tail_start).rev() {
            if segments[index].header.is_some() {
                continue;
            }
            let segment = &segments[index];
            let mut scanned = Scanned::default();
            scanned.add(&mut self.source(&segment.path)?, index, segment.generation).map_err(failed(&segment.path, "read"))?;
            let limit = segments[index + 1].first;
            let first = scanned.runs.first().map_or(limit, |run| run.first.min(limit));
            let bytes = SEGMENT_HEADER_BYTES as u64;
            let path = segment.path.clone();
            self.damage.push(WalDamage { kind: DamageKind::SegmentHeader, path, offset: 0, bytes, first, end: first });
            segments[index].first = first;
        }
        for index in 1..segments.len() {
            let (before, segment) = (&segments[index - 1], &segments[index]);
            let previous = segment.header.map(|header| header.previous).filter(|previous| *previous != before.generation);
            let Some(previous) = previous.filter(|_| segment.first > checkpoint) else { continue };
            let mut scanned = Scanned::default();
            scanned.add(&mut self.source(&before.path)?, index, before.generation).map_err(failed(&before.path, "read"))?;
            let first = scanned.runs.last().map_or(before.first, |run| run.end).max(checkpoint);
            if first < segment.first {
                let path = self.dir.join(segment_name(previous));
                self.damage.push(WalDamage { kind: DamageKind::SegmentMissing, path, offset: 0, bytes: 0, first, end: segment.first });
            }
        }
        Ok(())
    }

    /// A segment of the tail has records that count and no header. If the header was lost with the group it was written with, it is written
    /// again; if it was promised, it is damage, and stays as it is.
    fn mend_tail(
        &mut self,
        segments: &mut [FoundSegment],
        index: usize,
        wal_id: u64,
        scanned: &Scanned,
        decision: &Decision,
        proof: WalSeq,
    ) -> Result<(), WalOpenError> {
        let accepted = &scanned.runs[..decision.accepted];
        let previous = index.checked_sub(1).map_or(0, |before| segments[before].generation);
        let segment = &mut segments[index];
        let run = accepted.iter().find(|run| run.segment == index);
        segment.first = run.map_or(decision.end, |run| run.first);
        let proven = accepted.iter().map(|run| run.synced_end).max().unwrap_or(proof).max(proof);
        let owner = scanned.streams.iter().rfind(|seen| seen.first <= segment.first);
        let Some(owner) = owner.filter(|_| run.is_some() && proven <= segment.first) else {
            self.note(DamageKind::SegmentHeader, segment.path.clone());
            return Ok(());
        };
        let (generation, first) = (segment.generation, segment.first);
        let header = SegmentHeader { wal_id, generation, previous, first, stream: owner.stream, ordinal: owner.ordinal };
        let mut block = Vec::new();
        header.encode(&mut block);
        let file = self.open_file(&segment.path, OpenMode::ReadWrite)?;
        write_all_at(&*file, &block, 0).map_err(failed(&segment.path, "write"))?;
        file.sync_data().map_err(failed(&segment.path, "sync"))?;
        segment.header = Some(header);
        Ok(())
    }

    pub fn source(&self, path: &Path) -> Result<FileSource, WalIoError> {
        FileSource::open(&**self.disk, path)
    }

    fn report_holes(&mut self, segments: &[FoundSegment], scanned: &Scanned, decision: &Decision) {
        for Hole { first, end, after_runs } in &decision.holes {
            let before = after_runs.checked_sub(1).map(|index| scanned.runs[index]);
            let behind = scanned.runs.get(*after_runs).copied();
            let index = behind.or(before).map_or_else(|| segments.len().saturating_sub(1), |run| run.segment);
            let Some(segment) = segments.get(index) else { continue };
            let offset = before.filter(|run| run.segment == index).map_or(SEGMENT_HEADER_BYTES as u64, |run| run.end_at);
            let until = behind.filter(|run| run.segment == index).map_or(segment.len, |run| run.at);
            let (path, bytes) = (segment.path.clone(), until.saturating_sub(offset));
            self.damage.push(WalDamage { kind: DamageKind::Records, path, offset, bytes, first: *first, end: *end });
        }
    }
}
