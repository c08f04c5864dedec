//! A segment's sparse index: where the frames are, one entry about every 32 KiB. Derived from the segment; never trusted over it.
//!
//! ```text
//!  0 magic u32       24 base offset u64      48 commit time of the first record, ms u64 (all ones: no record)
//!  4 version u16     32 segment length u64   56 commit time of the last frame, ms u64
//!  6 flags u16       40 end offset u64       64 reserved u32 (0), 68 entry count u32, 72 CRC32C of the above u32
//!  8 log id u128     76 (offset u64, position u64)*, CRC32C of the entries u32
//! ```

use std::io;
use std::path::Path;

use bytes::{BufMut, BytesMut};
use veena_contract::{LogId, Offset};

use super::frame::FrameHeader;
use super::recover::Scan;
use super::segment::{FRAMES_START, FileKind, Times};
use super::wire::{WireReader, len32, len64, read_full, write_full};
use crate::disk::{Disk, OpenMode};

/// "VIDX".
const INDEX_MAGIC: u32 = 0x5649_4458;
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 76;
const ENTRY_BYTES: usize = 16;
/// How far entries are apart.
const STEP_BYTES: u64 = 32 * 1024;
const NO_RECORD: u64 = u64::MAX;

/// One frame that can be found directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    offset: Offset,
    position: u64,
}

/// The part of a segment between two entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Where it starts in the file.
    pub(super) start: u64,
    /// Where it ends; absent for the last one.
    pub(super) end: Option<u64>,
    /// The first offset behind it; absent for the last one.
    pub(super) next: Option<Offset>,
}

/// What an index says about its segment as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexSummary {
    /// The offset behind the segment's last record.
    pub(super) end: Offset,
    pub(super) times: Times,
}

/// The index of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Index {
    entries: Vec<Entry>,
    end: Offset,
    times: Times,
}

impl Index {
    pub(super) fn new(base: Offset) -> Self {
        Self { entries: Vec::new(), end: base, times: Times::default() }
    }

    /// The index of a scanned segment.
    pub(super) fn of_scan(base: Offset, scan: &Scan) -> Self {
        let mut index = Self::new(base);
        for frame in &scan.frames {
            index.push(&frame.header, frame.position);
        }
        index
    }

    /// Notes the frame behind the last one.
    pub(super) fn push(&mut self, header: &FrameHeader, position: u64) {
        if self.entries.last().is_none_or(|last| position - last.position >= STEP_BYTES) {
            self.entries.push(Entry { offset: header.base, position });
        }
        self.end = header.end();
        self.times.last_ms = header.commit_ms;
        if header.records > 0 {
            self.times.first_ms.get_or_insert(header.commit_ms);
        }
    }

    /// Everything below `end` belonged to this segment, though some of it is unreadable: not to be taken for a missing segment.
    pub(super) fn cover(&mut self, end: Offset) {
        self.end = self.end.max(end);
    }

    pub(super) fn summary(&self) -> IndexSummary {
        IndexSummary { end: self.end, times: self.times }
    }

    /// The block that holds an offset, if the segment does.
    pub(super) fn block(&self, offset: Offset) -> Block {
        let after = self.entries.partition_point(|entry| entry.offset <= offset);
        let start = after.checked_sub(1).and_then(|at| self.entries.get(at)).map_or(FRAMES_START, |entry| entry.position);
        let next = self.entries.get(after);
        Block { start, end: next.map(|entry| entry.position), next: next.map(|entry| entry.offset) }
    }

    /// The index file's bytes for a segment of `segment_len` bytes.
    pub(super) fn encode(&self, log_id: LogId, base: Offset, segment_len: u64) -> Vec<u8> {
        let mut out = BytesMut::with_capacity(HEADER_BYTES + self.entries.len() * ENTRY_BYTES + 4);
        out.put_u32(INDEX_MAGIC);
        out.put_u16(VERSION);
        out.put_u16(0);
        out.put_u128(log_id.0);
        out.put_u64(base.get());
        out.put_u64(segment_len);
        out.put_u64(self.end.get());
        out.put_u64(self.times.first_ms.unwrap_or(NO_RECORD));
        out.put_u64(self.times.last_ms);
        out.put_u32(0);
        out.put_u32(len32(self.entries.len()));
        let crc = crc32c::crc32c(&out);
        out.put_u32(crc);
        for entry in &self.entries {
            out.put_u64(entry.offset.get());
            out.put_u64(entry.position);
        }
        let crc = crc32c::crc32c(&out[HEADER_BYTES..]);
        out.put_u32(crc);
        out.into()
    }

    /// Reads an index file; absent unless it is intact and belongs to this segment as it is.
    pub(super) fn decode(bytes: &[u8], log_id: LogId, base: Offset, segment_len: u64) -> Option<Self> {
        let (summary, count) = decode_header(bytes, log_id, base, segment_len)?;
        let (entries, crc) = bytes.get(HEADER_BYTES..)?.split_at_checked(count.checked_mul(ENTRY_BYTES)?)?;
        if crc32c::crc32c(entries).to_be_bytes() != crc {
            return None;
        }
        let mut reader = WireReader::new(entries);
        let mut index = Self { entries: Vec::with_capacity(count), end: summary.end, times: summary.times };
        for _ in 0..count {
            index.entries.push(Entry { offset: Offset(reader.u64()?), position: reader.u64()? });
        }
        let is_ordered = index.entries.windows(2).all(|pair| pair[0].offset <= pair[1].offset && pair[0].position < pair[1].position);
        let is_inside = index.entries.iter().all(|entry| (FRAMES_START..segment_len).contains(&entry.position));
        (is_ordered && is_inside).then_some(index)
    }
}

fn decode_header(bytes: &[u8], log_id: LogId, base: Offset, segment_len: u64) -> Option<(IndexSummary, usize)> {
    let header = bytes.get(..HEADER_BYTES)?;
    let (guarded, crc) = header.split_at_checked(HEADER_BYTES - 4)?;
    let mut reader = WireReader::new(header);
    let is_ours = reader.u32()? == INDEX_MAGIC && reader.u16()? == VERSION && reader.u16()? == 0;
    let fits = reader.u128()? == log_id.0 && reader.u64()? == base.get() && reader.u64()? == segment_len;
    if !is_ours || !fits || crc32c::crc32c(guarded).to_be_bytes() != crc {
        return None;
    }
    let end = Offset(reader.u64()?);
    let first_ms = Some(reader.u64()?).filter(|ms| *ms != NO_RECORD);
    let last_ms = reader.u64()?;
    let _reserved = reader.u32()?;
    let count = usize::try_from(reader.u32()?).ok()?;
    (end >= base).then_some((IndexSummary { end, times: Times { first_ms, last_ms } }, count))
}

/// Reads the whole index of a sealed segment.
pub(super) fn load(disk: &dyn Disk, dir: &Path, log_id: LogId, base: Offset, segment_len: u64) -> Option<Index> {
    let file = disk.open(&FileKind::Index.path(dir, base), OpenMode::Read).ok()?;
    let len_max = len64(HEADER_BYTES) + 4 + (segment_len / STEP_BYTES + 1) * len64(ENTRY_BYTES);
    let bytes = super::wire::read_small(file.as_ref(), len_max).ok()?;
    Index::decode(&bytes, log_id, base, segment_len)
}

/// Reads only what the index says about the segment as a whole.
pub(super) fn load_summary(disk: &dyn Disk, dir: &Path, log_id: LogId, base: Offset, segment_len: u64) -> Option<IndexSummary> {
    let file = disk.open(&FileKind::Index.path(dir, base), OpenMode::Read).ok()?;
    let mut header = [0; HEADER_BYTES];
    read_full(file.as_ref(), &mut header, 0).ok()?;
    decode_header(&header, log_id, base, segment_len).map(|(summary, _)| summary)
}

/// Writes the index of a sealed segment. It is not synced: a torn one is found by its CRC and rebuilt.
pub(super) fn store(disk: &dyn Disk, dir: &Path, log_id: LogId, base: Offset, segment_len: u64, index: &Index) -> io::Result<()> {
    let path_new = FileKind::Index.path_new(dir, base);
    match disk.remove_file(&path_new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = disk.open(&path_new, OpenMode::CreateNew)?;
    write_full(file.as_ref(), &index.encode(log_id, base, segment_len), 0).map_err(|short| short.error)?;
    disk.rename(&path_new, &FileKind::Index.path(dir, base))
}
