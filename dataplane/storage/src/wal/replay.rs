//! Reading segments. Takes any bytes: whatever is not a record of this generation at this place is skipped, and the next record found.
//!
//! Must never allocate by a length it has not checked, and never trust a record by its place alone.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use super::format::{RECORD_ALIGN, RECORD_HEADER_BYTES, RecordHeader, SEGMENT_HEADER_BYTES, has_record_magic, record_bytes};
use super::{WalIoError, failed};
use crate::disk::{Disk, DiskFile, OpenMode, read_full_at};

const CHUNK_BYTES: usize = 1024 * 1024;

/// Bytes that can be looked at in pieces.
#[allow(clippy::len_without_is_empty, reason = "nobody asks whether a file is empty")]
pub trait Source {
    /// How many there are.
    fn len(&self) -> u64;
    /// `want` bytes from `at` on, fewer at the end.
    ///
    /// # Errors
    /// Of the file system.
    fn view(&mut self, at: u64, want: usize) -> io::Result<&[u8]>;
}

impl Source for &[u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn view(&mut self, at: u64, want: usize) -> io::Result<&[u8]> {
        let from = usize::try_from(at).unwrap_or(usize::MAX).min(<[u8]>::len(self));
        let to = from.saturating_add(want).min(<[u8]>::len(self));
        Ok(&self[from..to])
    }
}

/// A file, read a chunk at a time.
pub(super) struct FileSource {
    file: Arc<dyn DiskFile>,
    len: u64,
    chunk: Vec<u8>,
    chunk_at: u64,
}

impl FileSource {
    /// A file of the log, for reading.
    pub fn open(disk: &dyn Disk, path: &Path) -> Result<Self, WalIoError> {
        let file = disk.open(path, OpenMode::Read).map_err(failed(path, "open"))?;
        Self::new(file).map_err(failed(path, "measure"))
    }

    pub fn new(file: Arc<dyn DiskFile>) -> io::Result<Self> {
        let len = file.len()?;
        Ok(Self { file, len, chunk: Vec::new(), chunk_at: 0 })
    }
}

impl Source for FileSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn view(&mut self, at: u64, want: usize) -> io::Result<&[u8]> {
        let left = usize::try_from(self.len.saturating_sub(at)).unwrap_or(usize::MAX);
        let want = want.min(left);
        let inside = at.checked_sub(self.chunk_at).and_then(|skip| usize::try_from(skip).ok());
        if let Some(skip) = inside.filter(|skip| skip.saturating_add(want) <= self.chunk.len()) {
            return Ok(&self.chunk[skip..skip + want]);
        }
        self.chunk.resize(want.max(CHUNK_BYTES.min(left)), 0);
        let read = read_full_at(&*self.file, &mut self.chunk, at)?;
        self.chunk.truncate(read);
        self.chunk_at = at;
        Ok(&self.chunk[..want.min(read)])
    }
}

/// What a scan comes upon.
pub enum Found<'a> {
    /// An intact record.
    Record {
        /// Its place in the segment.
        at: u64,
        /// The place behind it.
        end: u64,
        /// Its header.
        head: RecordHeader,
        /// Its body.
        body: &'a [u8],
    },
    /// Bytes that are no record, with an intact record behind them.
    Bad {
        /// Where they start.
        at: u64,
        /// Where the next record starts.
        end: u64,
    },
}

/// Shows every record of this generation from `from` on, in order of place, and the damage between them. What follows the last record is
/// not shown: it may never have been written. Answers the place behind the last record.
///
/// # Errors
/// Of the source.
pub fn scan(source: &mut dyn Source, generation: u64, from: u64, show: &mut dyn FnMut(Found<'_>) -> ControlFlow<()>) -> io::Result<u64> {
    let mut at = from.next_multiple_of(RECORD_ALIGN as u64);
    let mut good_end = at;
    loop {
        let Some((place, head)) = next_header(source, generation, at)? else { return Ok(good_end) };
        let Some(end) = record_end(source.len(), place, head.body_len) else {
            at = place + RECORD_ALIGN as u64;
            continue;
        };
        let total = usize::try_from(end - place).expect("invariant: a record is at most u32::MAX and a header long");
        let bytes = source.view(place, total)?;
        if bytes.len() < total || !head.matches(&bytes[RECORD_HEADER_BYTES..]) {
            at = end;
            continue;
        }
        if place > good_end && show(Found::Bad { at: good_end, end: place }).is_break() {
            return Ok(good_end);
        }
        let bytes = source.view(place, total)?;
        let body_len = usize::try_from(head.body_len).expect("invariant: u32 fits usize");
        let Some(body) = bytes.get(RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + body_len) else { return Ok(good_end) };
        let flow = show(Found::Record { at: place, end, head, body });
        good_end = end;
        at = end;
        if flow.is_break() {
            return Ok(good_end);
        }
    }
}

pub(super) fn record_end(len: u64, place: u64, body_len: u32) -> Option<u64> {
    let bytes = record_bytes(usize::try_from(body_len).ok()?) as u64;
    place.checked_add(bytes).filter(|end| *end <= len)
}

/// The next place, at or after `at`, where the header of a record of this generation is intact.
pub(super) fn next_header(source: &mut dyn Source, generation: u64, at: u64) -> io::Result<Option<(u64, RecordHeader)>> {
    // nearly always it is right here: look before a whole chunk is searched
    if let Some(head) = RecordHeader::decode(source.view(at, RECORD_HEADER_BYTES)?, generation, at) {
        return Ok(Some((at, head)));
    }
    let mut at = at;
    loop {
        let window = source.view(at, CHUNK_BYTES)?;
        if window.len() < RECORD_HEADER_BYTES {
            return Ok(None);
        }
        let last = window.len() - RECORD_HEADER_BYTES;
        for offset in (0..=last).step_by(RECORD_ALIGN) {
            if !has_record_magic(&window[offset..]) {
                continue;
            }
            let place = at + offset as u64;
            if let Some(head) = RecordHeader::decode(&window[offset..], generation, place) {
                return Ok(Some((place, head)));
            }
        }
        at += (last - last % RECORD_ALIGN + RECORD_ALIGN) as u64;
    }
}

/// One record of a scanned segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannedRecord {
    /// Its place in the segment.
    pub at: u64,
    /// The place behind it.
    pub end: u64,
    /// Its header.
    pub head: RecordHeader,
}

/// What a segment holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentScan {
    /// The intact records, in order of place.
    pub records: Vec<ScannedRecord>,
    /// Damage between records, as places from and to.
    pub bad: Vec<(u64, u64)>,
    /// The place behind the last record.
    pub good_end: u64,
}

/// Scans a whole segment held in memory. Takes any bytes.
#[must_use]
pub fn scan_segment(bytes: &[u8], generation: u64) -> SegmentScan {
    let mut found = SegmentScan::default();
    let mut source = bytes;
    let outcome = scan(&mut source, generation, SEGMENT_HEADER_BYTES as u64, &mut |item| {
        match item {
            Found::Record { at, end, head, .. } => found.records.push(ScannedRecord { at, end, head }),
            Found::Bad { at, end } => found.bad.push((at, end)),
        }
        ControlFlow::Continue(())
    });
    found.good_end = outcome.unwrap_or(SEGMENT_HEADER_BYTES as u64);
    found
}
