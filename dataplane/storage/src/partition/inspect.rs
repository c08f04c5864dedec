//! Looking at a log from outside: nothing is changed, every frame is read. For the scrubber and the command line.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use veena_contract::{LogId, Offset};

use super::Damage;
use super::frame::{FrameError, Salt};
use super::recover::{Scan, ScanError, scan_on};
use super::segment::{FRAMES_START, FileKind, SEGMENT_HEADER_BYTES, SegmentHeader, parse_name};
use super::streams::StreamsSnapshot;
use super::wire::{len64, read_full};
use crate::disk::{Disk, DiskFile, OpenMode};

/// What one segment holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    /// The file.
    pub path: PathBuf,
    /// The log it belongs to, if that can be told.
    pub log_id: Option<LogId>,
    /// The offset of its first record.
    pub base: Offset,
    /// The offset behind its last readable record.
    pub end: Offset,
    /// How many intact frames it has.
    pub frames: u64,
    /// How many records they hold.
    pub records: u64,
    /// The file's length.
    pub bytes: u64,
    /// Where a torn tail starts, in an active segment. Opening the log cuts it; nothing in it was promised.
    pub torn_at: Option<u64>,
    /// What is wrong.
    pub damage: Vec<Damage>,
}

/// What a log's directory holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionReport {
    /// The segments in order.
    pub segments: Vec<SegmentReport>,
    /// How many intact frames there are.
    pub frames: u64,
    /// How many records they hold.
    pub records: u64,
    /// What is wrong, in all segments and between them.
    pub damage: Vec<Damage>,
}

/// Reads a whole log without changing anything. Records below `promised` were once published here, as the caller knows (`Offset(0)`: it
/// knows of none): those that are not found are damage, also at the end, where they would else count as a torn tail.
///
/// # Errors
/// When the directory or a file in it cannot be read at all.
pub fn inspect(disk: &dyn Disk, dir: &Path, promised: Offset) -> io::Result<PartitionReport> {
    let mut bases = BTreeMap::new();
    for entry in disk.list(dir)?.into_iter().filter(|entry| !entry.is_dir) {
        if let Some((base, FileKind::Log, false)) = parse_name(&entry.name) {
            bases.insert(base, dir.join(entry.name));
        }
    }
    let fallback = bases.keys().find_map(|base| identity(disk, dir, *base));
    let mut report = PartitionReport::default();
    let mut expected: Option<Offset> = None;
    for (base, path) in &bases {
        let next = bases.range(base.next()..).next().map(|(next, _)| *next);
        let segment = check(disk, path, *base, fallback, next.map_or(Place::Active { promised }, Place::SealedBefore))?;
        if let Some(first) = expected.filter(|expected| expected < base) {
            let path = FileKind::Log.path(dir, first);
            report.damage.push(Damage { path, at: 0, end: 0, first, next: *base, reason: "offsets are missing between segments" });
        }
        let is_told = segment.damage.iter().any(|damage| Some(damage.next) == next);
        expected = Some(segment.end).filter(|_| !is_told);
        report.frames += segment.frames;
        report.records += segment.records;
        report.damage.extend(segment.damage.iter().cloned());
        report.segments.push(segment);
    }
    if bases.is_empty() && promised > Offset(0) {
        let path = FileKind::Log.path(dir, Offset(0));
        report.damage.push(Damage { path, at: 0, end: 0, first: Offset(0), next: promised, reason: "all segments are missing" });
    }
    Ok(report)
}

/// Reads one sealed segment and checks every frame in it.
///
/// # Errors
/// When the name is not a segment's, or the file cannot be read at all.
pub fn verify_sealed(disk: &dyn Disk, path: &Path) -> io::Result<SegmentReport> {
    let name = path.file_name().and_then(std::ffi::OsStr::to_str).and_then(parse_name);
    let Some((base, FileKind::Log, false)) = name else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not the name of a segment"));
    };
    let fallback = path.parent().and_then(|dir| identity(disk, dir, base));
    check(disk, path, base, fallback, Place::Sealed)
}

/// Checks a segment of a copy of a log, under whatever name it has. What ends at `known`, a position with the offset behind it, was found
/// intact before.
pub(super) fn verify_copy(
    disk: &dyn Disk,
    path: &Path,
    base: Offset,
    log_id: LogId,
    known: Option<(u64, Offset)>,
) -> io::Result<SegmentReport> {
    check_from(disk, path, base, Some(log_id), Place::Sealed, known)
}

/// Where the intact frames end that a copy begins with; `None` when there is anything else between them. The last one may not be whole yet.
pub(super) fn intact_end(file: &dyn DiskFile, base: Offset, log_id: LogId, known: Option<(u64, Offset)>) -> Option<(u64, Offset)> {
    let scan = scan_on(&file, Salt::new(log_id, base), known.unwrap_or((FRAMES_START, base)), u64::MAX).ok()?;
    scan.holes.is_empty().then_some((scan.end, scan.end_offset))
}

/// Where a segment stands in its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Active {
        /// Everything below was once published.
        promised: Offset,
    },
    Sealed,
    SealedBefore(Offset),
}

/// Which log a segment belongs to, from its header or its stream table.
fn identity(disk: &dyn Disk, dir: &Path, base: Offset) -> Option<LogId> {
    let header = disk.open(&FileKind::Log.path(dir, base), OpenMode::Read).ok().and_then(|file| header_of(file.as_ref()).ok()?);
    header.map(|header| header.log_id).or_else(|| StreamsSnapshot::load(disk, dir, base).map(|table| table.log_id))
}

fn header_of(file: &dyn DiskFile) -> io::Result<Option<SegmentHeader>> {
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    let read = read_full(file, &mut bytes, 0)?;
    Ok(SegmentHeader::decode(&bytes[..read]).ok())
}

fn check(disk: &dyn Disk, path: &Path, base: Offset, fallback: Option<LogId>, place: Place) -> io::Result<SegmentReport> {
    check_from(disk, path, base, fallback, place, None)
}

fn check_from(
    disk: &dyn Disk,
    path: &Path,
    base: Offset,
    fallback: Option<LogId>,
    place: Place,
    intact: Option<(u64, Offset)>,
) -> io::Result<SegmentReport> {
    let file = disk.open(path, OpenMode::Read)?;
    let bytes = file.len()?;
    let mut damage = Vec::new();
    let mut add = |at: u64, end: u64, first: Offset, next: Offset, reason: &'static str| {
        damage.push(Damage { path: path.to_path_buf(), at, end, first, next, reason });
    };
    let header = header_of(file.as_ref())?.filter(|header| header.base == base);
    if header.is_none() {
        add(0, len64(SEGMENT_HEADER_BYTES), base, base, "segment header is damaged");
    }
    let log_id = header.map(|header| header.log_id).or(fallback);
    let Some(known) = log_id else {
        add(0, bytes, base, base, "segment cannot be checked: no file says which log it belongs to");
        return Ok(report(path, None, base, bytes, None, None, damage));
    };
    let mut scan = match scan_on(&file.as_ref(), Salt::new(known, base), intact.unwrap_or((FRAMES_START, base)), u64::MAX) {
        Ok(scan) => scan,
        Err(ScanError::Io(error)) => return Err(error),
        Err(ScanError::Unsupported { position, .. }) => {
            add(position, bytes, base, base, "frame of an unknown format");
            return Ok(report(path, log_id, base, bytes, None, None, damage));
        }
    };
    if let Place::Active { promised } = place {
        scan.cut_torn(base, 0, promised);
    }
    for hole in &scan.holes {
        add(hole.start, hole.end, hole.first, hole.next, reason_text(hole.reason));
    }
    // Who promised what stands behind the last intact frame? In a sealed segment its seal did.
    let promised = match place {
        Place::Active { promised } => Some(promised).filter(|promised| *promised > scan.end_offset),
        Place::SealedBefore(next) => Some(next).filter(|_| scan.torn.is_some()),
        Place::Sealed => Some(scan.end_offset).filter(|_| scan.torn.is_some()),
    };
    if let Some(next) = promised {
        let reason = scan.torn.map_or("frames that were published are missing", reason_text);
        add(scan.end, bytes.max(scan.end), scan.end_offset, next, reason);
    }
    let torn_at = scan.torn.filter(|_| promised.is_none()).map(|_| scan.end);
    Ok(report(path, log_id, base, bytes, Some(&scan), torn_at, damage))
}

fn reason_text(reason: FrameError) -> &'static str {
    match reason {
        FrameError::Short => "frame is cut short",
        FrameError::NoMagic => "no frame where one must start",
        FrameError::HeaderCrc => "frame header does not match its CRC",
        FrameError::Unsupported { .. } => "frame of an unknown format",
        FrameError::Length => "frame length is out of bounds",
        FrameError::BodyCrc => "frame body does not match its CRC",
        FrameError::Body => "frame body is malformed",
    }
}

fn report(
    path: &Path,
    log_id: Option<LogId>,
    base: Offset,
    bytes: u64,
    scan: Option<&Scan>,
    torn_at: Option<u64>,
    damage: Vec<Damage>,
) -> SegmentReport {
    SegmentReport {
        path: path.to_path_buf(),
        log_id,
        base,
        end: scan.map_or(base, |scan| scan.end_offset),
        frames: scan.map_or(0, |scan| len64(scan.frames.len())),
        records: scan.map_or(0, |scan| scan.frames.iter().map(|frame| u64::from(frame.header.records)).sum()),
        bytes,
        torn_at,
        damage,
    }
}
