//! What of a log can be made again from the rest of it: indexes, stream tables, segment headers. Nothing here cuts or drops a record.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use veena_contract::{LogId, Offset};

use super::frame::Salt;
use super::index::{self, Index};
use super::recover::{ScanError, scan_frames};
use super::segment::{FileKind, SegmentHeader, parse_name};
use super::streams::{StoreError, StreamsSnapshot, apply_scan};
use super::wire::{read_full, write_full};
use crate::disk::{Disk, OpenMode};

/// Which derived part of a segment is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SideKind {
    /// The header at the start of the segment.
    Header,
    /// The sparse index of a sealed segment.
    Index,
    /// The stream table as of the segment's first record.
    Streams,
}

/// A derived part that is missing or damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideFile {
    /// The file.
    pub path: PathBuf,
    /// Which part.
    pub kind: SideKind,
    /// The segment it belongs to.
    pub base: Offset,
    /// Is there a file, though a bad one?
    pub is_there: bool,
    /// Can it be made again?
    pub is_derivable: bool,
}

/// Why a part was not made again. The log is as before, or has the new part.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// The file system failed.
    #[error("the file cannot be read or written")]
    Io(#[from] io::Error),
    /// The segment holds a format this version does not know.
    #[error("the segment has an unknown format")]
    Unsupported,
    /// What it would be made from is not there.
    #[error("there is nothing to make it from")]
    NotDerivable,
}

impl From<ScanError> for RepairError {
    fn from(error: ScanError) -> Self {
        match error {
            ScanError::Io(error) => Self::Io(error),
            ScanError::Unsupported { .. } => Self::Unsupported,
        }
    }
}

impl From<StoreError> for RepairError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Write(error) | StoreError::Sync(error) => Self::Io(error),
        }
    }
}

/// Is this the name of a segment's file of records?
#[must_use]
pub fn is_segment_name(name: &str) -> bool {
    matches!(parse_name(name), Some((_, FileKind::Log, false)))
}

/// The derived parts of a log that are missing or damaged, in order.
///
/// # Errors
/// When the directory or a segment in it cannot be read.
pub fn side_files(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<SideFile>> {
    let log = Layout::read(disk, dir)?;
    let mut found = Vec::new();
    for (base, segment) in &log.segments {
        let is_sealed = log.segments.range(base.next()..).next().is_some();
        let log_id = segment.log_id.or(log.log_id);
        let mut note = |kind, path: PathBuf, is_derivable| {
            let is_there = disk.exists(&path)?;
            found.push(SideFile { path, kind, base: *base, is_there, is_derivable });
            Ok::<_, io::Error>(())
        };
        if segment.log_id.is_none() {
            note(SideKind::Header, FileKind::Log.path(dir, *base), log_id.is_some())?;
        }
        let table = StreamsSnapshot::load(disk, dir, *base).filter(|table| Some(table.log_id) == log_id);
        if table.is_none() {
            note(SideKind::Streams, FileKind::Streams.path(dir, *base), log_id.is_some() && log.has_history(disk, dir, *base))?;
        }
        let index = log_id.and_then(|log_id| index::load(disk, dir, log_id, *base, segment.len));
        if is_sealed && index.is_none() {
            note(SideKind::Index, FileKind::Index.path(dir, *base), log_id.is_some())?;
        }
    }
    Ok(found)
}

/// Makes one derived part again, durably. The log must not be open.
///
/// # Errors
/// [`RepairError`].
pub fn rebuild(disk: &dyn Disk, dir: &Path, part: &SideFile) -> Result<(), RepairError> {
    let log = Layout::read(disk, dir)?;
    let segment = log.segments.get(&part.base).ok_or(RepairError::NotDerivable)?;
    let log_id = segment.log_id.or(log.log_id).ok_or(RepairError::NotDerivable)?;
    match part.kind {
        SideKind::Header => rebuild_header(disk, dir, log_id, part.base)?,
        SideKind::Index => {
            let next = log.segments.range(part.base.next()..).next().map(|(next, _)| *next);
            rebuild_index(disk, dir, log_id, part.base, segment.len, next)?;
        }
        SideKind::Streams => log.rebuild_streams(disk, dir, log_id, part.base)?,
    }
    Ok(disk.sync_dir(dir)?)
}

fn rebuild_header(disk: &dyn Disk, dir: &Path, log_id: LogId, base: Offset) -> Result<(), RepairError> {
    let file = disk.open(&FileKind::Log.path(dir, base), OpenMode::ReadWrite)?;
    let header = SegmentHeader { log_id, base, leader_epoch: 0, ownership_epoch: 0, created_ms: 0 };
    write_full(file.as_ref(), &header.encode(), 0).map_err(|short| short.error)?;
    Ok(file.sync_data()?)
}

fn rebuild_index(disk: &dyn Disk, dir: &Path, log_id: LogId, base: Offset, len: u64, next: Option<Offset>) -> Result<(), RepairError> {
    let file = disk.open(&FileKind::Log.path(dir, base), OpenMode::Read)?;
    let scan = scan_frames(&file.as_ref(), Salt::new(log_id, base), base, u64::MAX)?;
    let mut index = Index::of_scan(base, &scan);
    if let Some(next) = next.filter(|_| scan.torn.is_some()) {
        index.cover(next);
    }
    index::store(disk, dir, log_id, base, len, &index)?;
    Ok(disk.open(&FileKind::Index.path(dir, base), OpenMode::ReadWrite)?.sync_data()?)
}

struct LaidSegment {
    len: u64,
    /// From its header, if that is intact.
    log_id: Option<LogId>,
}

/// The segments of a log and whose they are.
struct Layout {
    segments: BTreeMap<Offset, LaidSegment>,
    log_id: Option<LogId>,
}

impl Layout {
    fn read(disk: &dyn Disk, dir: &Path) -> io::Result<Self> {
        let mut segments = BTreeMap::new();
        for entry in disk.list(dir)?.into_iter().filter(|entry| !entry.is_dir) {
            let Some((base, FileKind::Log, false)) = parse_name(&entry.name) else { continue };
            let file = disk.open(&dir.join(&entry.name), OpenMode::Read)?;
            let mut head = [0; super::SEGMENT_HEADER_BYTES];
            let read = read_full(file.as_ref(), &mut head, 0)?;
            let header = SegmentHeader::decode(&head[..read]).ok().filter(|header| header.base == base);
            segments.insert(base, LaidSegment { len: entry.len, log_id: header.map(|header| header.log_id) });
        }
        let from_tables = || segments.keys().find_map(|base| StreamsSnapshot::load(disk, dir, *base)).map(|table| table.log_id);
        let log_id = segments.values().find_map(|segment| segment.log_id).or_else(from_tables);
        Ok(Self { segments, log_id })
    }

    /// Is there an earlier stream table, or the log's very beginning?
    fn has_history(&self, disk: &dyn Disk, dir: &Path, base: Offset) -> bool {
        let is_whole = self.segments.keys().next() == Some(&Offset(0));
        is_whole || self.segments.range(..base).any(|(base, _)| StreamsSnapshot::load(disk, dir, *base).is_some())
    }

    fn rebuild_streams(&self, disk: &dyn Disk, dir: &Path, log_id: LogId, base: Offset) -> Result<(), RepairError> {
        if !self.has_history(disk, dir, base) {
            return Err(RepairError::NotDerivable);
        }
        let own = |base: &Offset| StreamsSnapshot::load(disk, dir, *base).filter(|table| table.log_id == log_id);
        let start = self.segments.range(..base).rev().find_map(|(base, _)| own(base));
        let (from, mut last_commit_ms) = start.as_ref().map_or((Offset(0), 0), |table| (table.base, table.last_commit_ms));
        let (mut marks, mut keys) = start.map(|table| (table.marks, table.keys)).unwrap_or_default();
        for (at, _) in self.segments.range(from..base) {
            let next = self.segments.range(at.next()..).next().map_or(base, |(next, _)| *next);
            let file = disk.open(&FileKind::Log.path(dir, *at), OpenMode::Read)?;
            let scan = scan_frames(&file.as_ref(), Salt::new(log_id, *at), *at, u64::MAX)?;
            last_commit_ms = last_commit_ms.max(apply_scan(&mut marks, &mut keys, &scan, next).unwrap_or(0));
        }
        Ok(StreamsSnapshot { log_id, base, last_commit_ms, marks, keys }.store(disk, dir)?)
    }
}
