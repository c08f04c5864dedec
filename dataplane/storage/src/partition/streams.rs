//! The stream table as a file: where each stream stood before a segment's first frame.
//!
//! ```text
//!  0 magic u32      24 base offset u64               44 (stream u128, source u32, committed u64, hash u32,
//!  4 version u16    32 commit time before it, ms u64     origin: id u64, ordinal u32, floor u32)*
//!  6 flags u16      40 entry count u32                   CRC32C of all of the above u32
//!  8 log id u128
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use bytes::{BufMut, BytesMut};
use veena_contract::{LogId, Offset, StreamId, limits};

use super::frame::SectionHead;
use super::keys::{KEY_ENTRY_BYTES, Keys};
use super::recover::Scan;
use super::segment::FileKind;
use super::wire::{WireReader, len32, read_small, write_full};
use super::{Origin, Section, StreamKey};
use crate::disk::{Disk, OpenMode};

/// "VSTR".
const STREAMS_MAGIC: u32 = 0x5653_5452;
const VERSION: u16 = 1;
/// Idempotency keys follow. A table without any is written as version 1.
const VERSION_KEYS: u16 = 2;
const HEADER_BYTES: usize = 44;
const ENTRY_BYTES: usize = 48;

/// Where one stream stands in this log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The sequence after which the stream stands.
    pub committed: u64,
    /// CRC32C of the body of the record at `committed`; 0 when that is no record.
    pub hash: u32,
    /// Where the stream comes from.
    pub origin: Origin,
}

/// A stream table.
pub type Marks = BTreeMap<StreamKey, Mark>;

impl Mark {
    /// The mark a section leaves behind. A sequence below the one that stands changes nothing but the origin.
    #[must_use]
    pub fn after(section: &Section, previous: Option<&Mark>) -> Self {
        let last_record = section.records.last().map(|record| (record.sequence, crc32c::crc32c(&record.body)));
        Self::advance(section.last, last_record, section.origin, previous)
    }

    fn advance(last: u64, last_record: Option<(u64, u32)>, origin: Origin, previous: Option<&Mark>) -> Self {
        let hash = last_record.filter(|(sequence, _)| *sequence == last).map_or(0, |(_, hash)| hash);
        match previous {
            Some(mark) if mark.committed > last || (mark.committed == last && hash == 0) => Self { origin, ..*mark },
            _ => Self { committed: last, hash, origin },
        }
    }
}

/// Applies a frame's section to a stream table. Applying it again changes nothing.
pub(super) fn apply(marks: &mut Marks, section: &SectionHead) {
    if section.is_tracked {
        let mark = Mark::advance(section.last, section.last_record, section.origin, marks.get(&section.key));
        marks.insert(section.key, mark);
    }
}

/// Applies the frames of a scan up to the offset `end`, to a stream table and the keys beside it. Applying them again changes nothing.
/// Returns the commit time of the last one.
pub(super) fn apply_scan(marks: &mut Marks, keys: &mut Keys, scan: &Scan, end: Offset) -> Option<u64> {
    let is_before = |frame: usize| {
        let header = &scan.frames[frame].header;
        header.base < end || (header.records == 0 && header.base == end)
    };
    scan.sections.iter().filter(|(frame, _)| is_before(*frame)).for_each(|(_, section)| apply(marks, section));
    scan.keys.iter().filter(|(frame, _)| is_before(*frame)).for_each(|(_, mark)| keys.note(*mark));
    let applied = (0..scan.frames.len()).filter(|frame| is_before(*frame));
    applied.map(|frame| scan.frames[frame].header.commit_ms).max()
}

/// Drops the streams that their sources have declared finished: those of an origin whose ordinal is below the highest floor it has told.
pub fn drop_finished(marks: &mut Marks) {
    let mut floors: BTreeMap<u64, u32> = BTreeMap::new();
    for mark in marks.values() {
        let floor = floors.entry(mark.origin.id).or_default();
        *floor = mark.origin.floor.max(*floor);
    }
    marks.retain(|_, mark| floors.get(&mark.origin.id).is_none_or(|floor| mark.origin.ordinal >= *floor));
}

/// A stream table at one offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamsSnapshot {
    /// The log.
    pub log_id: LogId,
    /// All records below this offset are reflected.
    pub base: Offset,
    /// Commit time of the last frame before `base`, in ms.
    pub last_commit_ms: u64,
    /// The table.
    pub marks: Marks,
    /// The idempotency keys of records below `base`, as far as they were remembered.
    pub keys: Keys,
}

impl StreamsSnapshot {
    /// The file's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let bytes = self.marks.len() * ENTRY_BYTES + 4 + self.keys.len() * KEY_ENTRY_BYTES;
        let mut out = BytesMut::with_capacity(HEADER_BYTES + bytes + 4);
        out.put_u32(STREAMS_MAGIC);
        out.put_u16(if self.keys.is_empty() { VERSION } else { VERSION_KEYS });
        out.put_u16(0);
        out.put_u128(self.log_id.0);
        out.put_u64(self.base.get());
        out.put_u64(self.last_commit_ms);
        out.put_u32(len32(self.marks.len()));
        for (key, mark) in &self.marks {
            out.put_u128(key.stream.0);
            out.put_u32(key.source);
            out.put_u64(mark.committed);
            out.put_u32(mark.hash);
            out.put_u64(mark.origin.id);
            out.put_u32(mark.origin.ordinal);
            out.put_u32(mark.origin.floor);
        }
        if !self.keys.is_empty() {
            self.keys.encode_into(&mut out);
        }
        let crc = crc32c::crc32c(&out);
        out.put_u32(crc);
        out.into()
    }

    /// Reads a file's bytes; absent unless they are intact.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (guarded, crc) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
        if crc32c::crc32c(guarded).to_be_bytes() != crc {
            return None;
        }
        let mut reader = WireReader::new(guarded);
        let (magic, version, reserved) = (reader.u32()?, reader.u16()?, reader.u16()?);
        if magic != STREAMS_MAGIC || !(VERSION..=VERSION_KEYS).contains(&version) || reserved != 0 {
            return None;
        }
        let (log_id, base, last_commit_ms) = (LogId(reader.u128()?), Offset(reader.u64()?), reader.u64()?);
        let count = reader.u32()?;
        let mut marks = Marks::new();
        for _ in 0..count {
            let key = StreamKey { stream: StreamId(reader.u128()?), source: reader.u32()? };
            let (committed, hash) = (reader.u64()?, reader.u32()?);
            let origin = Origin { id: reader.u64()?, ordinal: reader.u32()?, floor: reader.u32()? };
            marks.insert(key, Mark { committed, hash, origin });
        }
        let keys = if version == VERSION_KEYS { Keys::read(&mut reader)? } else { Keys::default() };
        (reader.remaining() == 0).then_some(Self { log_id, base, last_commit_ms, marks, keys })
    }

    /// Reads the snapshot of a segment; absent unless it is there, intact and of this base.
    pub(super) fn read(disk: &dyn Disk, dir: &Path, base: Offset) -> io::Result<Option<Self>> {
        let file = match disk.open(&FileKind::Streams.path(dir, base), OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        if file.len()? > limits::STREAM_TABLE_BYTES_MAX {
            return Ok(None);
        }
        let bytes = read_small(file.as_ref(), limits::STREAM_TABLE_BYTES_MAX)?;
        Ok(Self::decode(&bytes).filter(|snapshot| snapshot.base == base))
    }

    /// As [`read`](Self::read), for whoever has another way: what cannot be read counts as absent.
    pub(super) fn load(disk: &dyn Disk, dir: &Path, base: Offset) -> Option<Self> {
        Self::read(disk, dir, base).ok().flatten()
    }

    /// Writes the snapshot beside its segment. The name is durable once the caller has synced the directory.
    pub(super) fn store(&self, disk: &dyn Disk, dir: &Path) -> Result<(), StoreError> {
        let path_new = FileKind::Streams.path_new(dir, self.base);
        match disk.remove_file(&path_new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(StoreError::Write(error)),
            _ => {}
        }
        // 1 written   2 synced   3 renamed   - a crash before 3 leaves a `.new` that the next open removes
        let file = disk.open(&path_new, OpenMode::CreateNew).map_err(StoreError::Write)?;
        write_full(file.as_ref(), &self.encode(), 0).map_err(|short| StoreError::Write(short.error))?;
        file.sync_data().map_err(StoreError::Sync)?;
        disk.rename(&path_new, &FileKind::Streams.path(dir, self.base)).map_err(StoreError::Write)
    }
}

/// Why a file was not stored; only a failed sync latches.
#[derive(Debug)]
pub(super) enum StoreError {
    Write(io::Error),
    Sync(io::Error),
}
