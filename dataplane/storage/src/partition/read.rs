//! Reading published records, from the cache or by blocks of about 32 KiB.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use veena_contract::{Effect, LogId, Offset, limits};

use super::StoredRecord;
use super::append::Shared;
use super::frame::DecodedFrame;
use super::index::{self, Block, Index};
use super::recover::{frames_in, scan_frames};
use super::segment::Segment;
use super::wire::{memory_len, read_full};
use crate::disk::DiskFile;

/// Reads one log's published records. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct LogReader {
    pub(super) shared: Arc<Shared>,
}

/// Why there is no record.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// At or above the high watermark.
    #[error("offset is not visible yet")]
    NotYet,
    /// Removed by retention.
    #[error("offset is below the oldest retained one, {oldest}")]
    BelowOldest {
        /// The oldest retained offset.
        oldest: Offset,
    },
    /// Damaged or missing.
    #[error("record is unreadable; the damage ends at {next}")]
    Unreadable {
        /// The first offset behind the damage.
        next: Offset,
    },
    /// The log was closed; whether the record exists is not said.
    #[error("log is closed")]
    Closed,
    /// Reading failed.
    #[error("log cannot be read")]
    Io(#[source] io::Error),
}

impl ReadError {
    /// A read changes nothing.
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Self::NotYet | Self::BelowOldest { .. } | Self::Unreadable { .. } | Self::Closed | Self::Io(_) => Effect::None,
        }
    }
}

/// One log in numbers. Never touches the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogStats {
    /// How many segments there are.
    pub segments: u64,
    /// Bytes of frames on disk.
    pub bytes: u64,
    /// The oldest retained offset.
    pub oldest: Offset,
    /// The offset the next record gets, as far as it is published.
    pub log_end: Offset,
    /// The first offset that is not visible yet.
    pub high_watermark: Offset,
    /// Commit time of the oldest segment's first record, in ms.
    pub oldest_segment_ms: Option<u64>,
}

impl LogReader {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// The log's identity.
    #[must_use]
    pub fn log_id(&self) -> LogId {
        self.shared.log_id
    }

    /// The first offset that is not visible yet.
    #[must_use]
    pub fn high_watermark(&self) -> Offset {
        Offset(self.shared.high_watermark.load(Ordering::Acquire))
    }

    /// Has the log behind this reader been dropped? Nothing is read here any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed.load(Ordering::Acquire)
    }

    /// The oldest retained offset.
    #[must_use]
    pub fn oldest(&self) -> Offset {
        self.shared.segments.read().first().map_or(Offset(0), |segment| segment.base)
    }

    /// The record if it is in memory. Never touches the disk.
    #[must_use]
    pub fn cached(&self, offset: Offset) -> Option<StoredRecord> {
        self.check(offset).ok()?;
        self.shared.cache.record(self.shared.log_id, offset)
    }

    /// One record.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn read(&self, offset: Offset) -> Result<StoredRecord, ReadError> {
        let frame = self.frame(offset)?;
        Ok(frame.record(offset).expect("invariant: the frame was chosen because it holds the offset"))
    }

    /// Records from `from` up to `end`, at most `records_max` and, after the first, at most `bytes_max` of bodies. Stops before damage and at
    /// the high watermark.
    ///
    /// # Errors
    /// [`ReadError`] of the first record; `NotYet` when the range holds no visible record.
    pub fn read_range(&self, from: Offset, end: Offset, records_max: usize, bytes_max: usize) -> Result<Vec<StoredRecord>, ReadError> {
        let end = end.min(self.high_watermark());
        let mut records = Vec::new();
        let mut bytes = 0;
        let mut offset = from;
        while offset < end && records.len() < records_max {
            let frame = match self.frame(offset) {
                Ok(frame) => frame,
                Err(error) if records.is_empty() => return Err(error),
                Err(_) => break,
            };
            while offset < end.min(frame.end()) && records.len() < records_max {
                let record = frame.record(offset).expect("invariant: the frame was chosen because it holds the offset");
                bytes += record.body.len();
                if bytes > bytes_max && !records.is_empty() {
                    return Ok(records);
                }
                records.push(record);
                offset = offset.next();
            }
        }
        if records.is_empty() && records_max > 0 { self.check(from).and(Err(ReadError::NotYet)) } else { Ok(records) }
    }

    /// The log in numbers.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        let high_watermark = self.high_watermark();
        let segments = self.shared.segments.read();
        LogStats {
            segments: u64::try_from(segments.len()).unwrap_or(u64::MAX),
            bytes: segments.iter().map(|segment| segment.readable_len()).sum(),
            oldest: segments.first().map_or(Offset(0), |segment| segment.base),
            log_end: high_watermark,
            high_watermark,
            oldest_segment_ms: segments.first().and_then(|segment| segment.summary()).and_then(|summary| summary.times.first_ms),
        }
    }

    fn check(&self, offset: Offset) -> Result<(), ReadError> {
        if self.shared.is_closed.load(Ordering::Acquire) {
            return Err(ReadError::Closed);
        }
        if offset >= self.high_watermark() {
            return Err(ReadError::NotYet);
        }
        let oldest = self.oldest();
        if offset < oldest { Err(ReadError::BelowOldest { oldest }) } else { Ok(()) }
    }

    fn frame(&self, offset: Offset) -> Result<Arc<DecodedFrame>, ReadError> {
        self.check(offset)?;
        if let Some(frame) = self.shared.cache.frame(self.shared.log_id, offset) {
            return Ok(frame);
        }
        let loaded = self.load(offset);
        if matches!(loaded, Err(ReadError::Io(_))) {
            // The log may have been closed, or the segment removed, while it was read.
            self.check(offset)?;
        }
        loaded
    }

    /// Reads the block that holds an offset; all its frames go into the cache.
    fn load(&self, offset: Offset) -> Result<Arc<DecodedFrame>, ReadError> {
        let (segment, end) = self.segment(offset)?;
        let file = self.shared.open_segment(&segment).map_err(ReadError::Io)?;
        let block = match segment.with_index(|index| index.block(offset)) {
            Some(block) => block,
            None => self.shared.load_index(&segment, end, file.as_ref()).map_err(ReadError::Io)?.block(offset),
        };
        let bytes = read_block(&segment, block, file.as_ref()).map_err(ReadError::Io)?;
        let mut found = None;
        let mut next = block.next.unwrap_or(end).min(end);
        for frame in frames_in(&bytes, segment.salt, block.start) {
            if frame.base() >= end || frame.end() == frame.base() {
                continue;
            }
            let frame = Arc::new(frame);
            if frame.base() > offset {
                next = next.min(frame.base());
            } else if offset < frame.end() {
                found = Some(Arc::clone(&frame));
            }
            self.shared.cache.insert(self.shared.log_id, frame);
        }
        found.ok_or(ReadError::Unreadable { next })
    }

    /// The segment that holds an offset, and the offset behind its last record.
    fn segment(&self, offset: Offset) -> Result<(Arc<Segment>, Offset), ReadError> {
        let segments = self.shared.segments.read();
        let after = segments.partition_point(|segment| segment.base <= offset);
        let oldest = segments.first().map_or(Offset(0), |segment| segment.base);
        let at = after.checked_sub(1).ok_or(ReadError::BelowOldest { oldest })?;
        let end = segments.get(after).map_or_else(|| self.high_watermark(), |next| next.base);
        Ok((Arc::clone(&segments[at]), end))
    }
}

fn read_block(segment: &Segment, block: Block, file: &dyn DiskFile) -> io::Result<Vec<u8>> {
    let end = block.end.unwrap_or_else(|| segment.readable_len());
    let mut bytes = vec![0; memory_len(end.saturating_sub(block.start))?];
    let read = read_full(file, &mut bytes, block.start)?;
    bytes.truncate(read);
    Ok(bytes)
}

impl Shared {
    /// The open file of a segment; of the sealed ones only the last few stay open.
    pub(super) fn open_segment(&self, segment: &Arc<Segment>) -> io::Result<Arc<dyn DiskFile>> {
        let file = segment.file(self.disk.as_ref())?;
        let is_active = self.segments.read().last().is_some_and(|last| Arc::ptr_eq(last, segment));
        if !is_active {
            let mut open = self.open_sealed.lock();
            if !open.last().is_some_and(|last| Arc::ptr_eq(last, segment)) {
                open.retain(|other| !Arc::ptr_eq(other, segment));
                open.push(Arc::clone(segment));
            }
            if open.len() > limits::SEALED_SEGMENTS_OPEN_MAX {
                open.remove(0).release();
            }
        }
        Ok(file)
    }

    /// The index of a sealed segment: from its file, or rebuilt from the segment.
    pub(super) fn load_index(&self, segment: &Segment, end: Offset, file: &dyn DiskFile) -> io::Result<Index> {
        let len = segment.readable_len();
        if let Some(index) = index::load(self.disk.as_ref(), &self.dir, self.log_id, segment.base, len) {
            segment.set_index(index.clone());
            return Ok(index);
        }
        let mut scan = scan_frames(&file, segment.salt, segment.base, len).map_err(io::Error::other)?;
        scan.frames.retain(|frame| frame.header.base < end);
        let mut index = Index::of_scan(segment.base, &scan);
        if scan.torn.is_some() {
            index.cover(end);
        }
        segment.set_index(index.clone());
        // Derived: a failure costs another scan later.
        let _ = index::store(self.disk.as_ref(), &self.dir, self.log_id, segment.base, len, &index);
        Ok(index)
    }
}
