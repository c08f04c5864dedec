//! Finding frames in bytes that may be damaged anywhere. Pure: bytes in, what they hold out.
//!
//! The rule for a bad place: frames behind it may carry a `synced_end` beyond it. If one does, bytes that were promised are gone: the
//! place is a hole, the frames behind it are served. If none does, it belongs to an append nobody was told about: everything from there
//! on is the torn tail. A bad frame is never taken for the end while something promised lies behind it. The last frames have nothing behind
//! them: of those only the caller can know, from elsewhere, that they were promised.

use std::io;

use veena_contract::{LogId, Offset};

use super::frame::{self, DecodedFrame, FRAME_HEADER_BYTES, FRAME_MAGIC, FrameError, FrameHeader, Salt, SectionHead};
use super::keys::KeyMark;
use super::segment::{FRAMES_START, SEGMENT_HEADER_BYTES, SegmentHeader};
use super::wire::{len64, memory_len, read_full};
use crate::disk::DiskFile;

const WINDOW_BYTES: usize = 1024 * 1024;

/// One intact frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannedFrame {
    /// Its position in the segment.
    pub position: u64,
    /// Its header.
    pub header: FrameHeader,
}

/// A bad place with frames behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// Where it starts in the segment.
    pub start: u64,
    /// Where the next intact frame starts.
    pub end: u64,
    /// The first offset that may be lost.
    pub first: Offset,
    /// The first offset behind it.
    pub next: Offset,
    /// What is wrong at `start`.
    pub reason: FrameError,
}

/// What a segment holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// All intact frames in order.
    pub frames: Vec<ScannedFrame>,
    /// The sections of the frames, each with the index of its frame.
    pub sections: Vec<(usize, SectionHead)>,
    /// The idempotency keys of the frames' records, each with the index of its frame.
    pub keys: Vec<(usize, KeyMark)>,
    /// Bad places with frames behind them.
    pub holes: Vec<Hole>,
    /// Where the last intact frame ends.
    pub end: u64,
    /// The offset behind the last record.
    pub end_offset: Offset,
    /// What is wrong at `end`, when bytes other than zeros follow.
    pub torn: Option<FrameError>,
}

/// Why a scan stopped.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// The file could not be read.
    #[error("segment cannot be read")]
    Io(#[from] io::Error),
    /// An intact frame or header of a newer format.
    #[error("segment has an unknown format at {position}: {reason}")]
    Unsupported {
        /// Where.
        position: u64,
        /// What.
        reason: FrameError,
    },
}

/// Bytes at positions.
pub(super) trait Source {
    fn source_len(&self) -> io::Result<u64>;
    fn read(&self, buf: &mut [u8], at: u64) -> io::Result<usize>;
}

impl Source for &[u8] {
    fn source_len(&self) -> io::Result<u64> {
        Ok(len64(self.len()))
    }

    fn read(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let from = self.get(memory_len(at)?..).unwrap_or_default();
        let len = from.len().min(buf.len());
        buf[..len].copy_from_slice(&from[..len]);
        Ok(len)
    }
}

impl Source for &dyn DiskFile {
    fn source_len(&self) -> io::Result<u64> {
        self.len()
    }

    fn read(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        read_full(*self, buf, at)
    }
}

/// What of a frame is kept by a scan.
struct Found {
    header: FrameHeader,
    sections: Vec<SectionHead>,
    keys: Vec<KeyMark>,
}

/// A moving view of a source.
struct Window<'a> {
    source: &'a dyn Source,
    buf: Vec<u8>,
    start: u64,
    end: u64,
}

impl<'a> Window<'a> {
    fn new(source: &'a dyn Source, end: u64) -> Self {
        Self { source, buf: Vec::new(), start: 0, end }
    }

    /// The bytes at `at`: `want` of them, fewer at the end.
    fn at(&mut self, at: u64, want: usize) -> io::Result<&[u8]> {
        let bytes = self.view(at, want)?;
        Ok(&bytes[..bytes.len().min(want)])
    }

    /// All bytes at hand from `at` on: at least `want`, fewer at the end.
    fn view(&mut self, at: u64, want: usize) -> io::Result<&[u8]> {
        let want = memory_len(self.end.saturating_sub(at))?.min(want);
        let is_inside = at >= self.start && at - self.start + len64(want) <= len64(self.buf.len());
        if !is_inside {
            let fill = memory_len(self.end.saturating_sub(at))?.min(want.max(WINDOW_BYTES));
            self.buf.resize(fill, 0);
            let read = self.source.read(&mut self.buf, at)?;
            self.buf.truncate(read);
            self.start = at;
        }
        let from = memory_len(at - self.start)?;
        Ok(self.buf.get(from..).unwrap_or_default())
    }

    fn frame(&mut self, salt: Salt, position: u64) -> io::Result<Result<Found, FrameError>> {
        let header = match FrameHeader::decode(self.at(position, FRAME_HEADER_BYTES)?, salt, position) {
            Ok(header) => header,
            Err(error) => return Ok(Err(error)),
        };
        let whole = self.at(position, memory_len(header.frame_len())?)?;
        let found = frame::decode(whole, salt, position);
        Ok(found.map(|(header, frame, sections)| Found { header, sections, keys: frame.keys().to_vec() }))
    }

    fn is_zero_from(&mut self, mut at: u64) -> io::Result<bool> {
        while at < self.end {
            let bytes = self.view(at, 1)?;
            if bytes.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            if bytes.is_empty() {
                break;
            }
            at += len64(bytes.len());
        }
        Ok(true)
    }

    /// The position of the next intact frame of this place whose records do not go back.
    fn next_frame(&mut self, salt: Salt, from: u64, expected: Offset) -> Result<Option<u64>, ScanError> {
        let magic = FRAME_MAGIC.to_be_bytes();
        let mut at = from;
        while at + len64(FRAME_HEADER_BYTES) <= self.end {
            let bytes = self.view(at, FRAME_HEADER_BYTES)?;
            let len = bytes.len();
            let Some(found) = bytes.windows(magic.len()).position(|four| four == magic) else {
                if len < magic.len() {
                    return Ok(None);
                }
                at += len64(len - (magic.len() - 1));
                continue;
            };
            let candidate = at + len64(found);
            match self.frame(salt, candidate)? {
                Ok(found) if found.header.base >= expected => return Ok(Some(candidate)),
                Err(reason @ FrameError::Unsupported { .. }) => return Err(ScanError::Unsupported { position: candidate, reason }),
                _ => at = candidate + 1,
            }
        }
        Ok(None)
    }
}

/// Scans the frames of a segment that starts at `base`, up to `end` in the source.
pub(super) fn scan_frames(source: &dyn Source, salt: Salt, base: Offset, end: u64) -> Result<Scan, ScanError> {
    scan_on(source, salt, (FRAMES_START, base), end)
}

/// As [`scan_frames`], from where another scan has ended: at this position, with this offset next.
pub(super) fn scan_on(source: &dyn Source, salt: Salt, from: (u64, Offset), end: u64) -> Result<Scan, ScanError> {
    let (start, next) = from;
    let mut window = Window::new(source, end.min(source.source_len()?));
    let mut scan =
        Scan { frames: Vec::new(), sections: Vec::new(), keys: Vec::new(), holes: Vec::new(), end: start, end_offset: next, torn: None };
    let mut position = start;
    while position < window.end {
        let reason = match window.frame(salt, position)? {
            Ok(found) if found.header.base >= scan.end_offset => {
                scan.push(position, found);
                position = scan.end;
                continue;
            }
            Ok(_) => FrameError::Body,
            Err(reason @ FrameError::Unsupported { .. }) => return Err(ScanError::Unsupported { position, reason }),
            Err(reason) => reason,
        };
        if window.is_zero_from(position)? {
            break;
        }
        let Some(next) = window.next_frame(salt, position + 1, scan.end_offset)? else {
            scan.torn = Some(reason);
            break;
        };
        scan.holes.push(Hole { start: position, end: next, first: scan.end_offset, next: scan.end_offset, reason });
        position = next;
    }
    Ok(scan)
}

impl Scan {
    fn push(&mut self, position: u64, Found { header, sections, keys }: Found) {
        if let Some(hole) = self.holes.last_mut().filter(|hole| hole.end == position) {
            hole.next = header.base;
        } else if header.base > self.end_offset {
            // Offsets are missing between two frames that touch: nothing is known but that.
            let (first, next) = (self.end_offset, header.base);
            self.holes.push(Hole { start: position, end: position, first, next, reason: FrameError::Body });
        }
        let index = self.frames.len();
        self.sections.extend(sections.into_iter().map(|section| (index, section)));
        self.keys.extend(keys.into_iter().map(|key| (index, key)));
        self.frames.push(ScannedFrame { position, header });
        self.end = position + header.frame_len();
        self.end_offset = header.end();
    }

    /// Applies the rule of the torn tail to a segment that may have one: drops everything behind the first hole that no frame behind it
    /// proves to have been synced. `proven` is what is known besides: everything below this position was synced; so were all records below
    /// the offset `promised`.
    pub fn cut_torn(&mut self, base: Offset, proven: u64, promised: Offset) {
        let is_proven = |scan: &Self, hole: &Hole| {
            if hole.first < promised {
                return true;
            }
            let behind = scan.frames.iter().filter(|frame| frame.position >= hole.end);
            behind.map(|frame| frame.header.synced_end).max().unwrap_or(0).max(proven) > hole.start
        };
        let Some(at) = self.holes.iter().position(|hole| hole.start < hole.end && !is_proven(self, hole)) else {
            return;
        };
        let hole = self.holes[at];
        self.holes.truncate(at);
        self.torn = Some(hole.reason);
        self.truncate(hole.start, base);
    }

    /// Forgets the frames from `end` on.
    pub(super) fn truncate(&mut self, end: u64, base: Offset) {
        self.frames.retain(|frame| frame.position < end);
        let kept = self.frames.len();
        self.sections.retain(|(frame, _)| *frame < kept);
        self.keys.retain(|(frame, _)| *frame < kept);
        self.end = self.frames.last().map_or(FRAMES_START, |last| last.position + last.header.frame_len());
        self.end_offset = self.frames.last().map_or(base, |last| last.header.end());
        self.holes.retain(|hole| hole.end < end);
    }

    /// The highest position that the frames themselves prove to have been synced.
    #[must_use]
    pub fn synced_end(&self) -> u64 {
        self.frames.iter().map(|frame| frame.header.synced_end).max().unwrap_or(FRAMES_START)
    }
}

/// The intact frames in one stretch of a segment that starts at `start`; bad places are stepped over.
pub(super) fn frames_in(bytes: &[u8], salt: Salt, start: u64) -> Vec<DecodedFrame> {
    let magic = FRAME_MAGIC.to_be_bytes();
    let mut frames = Vec::new();
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() >= FRAME_HEADER_BYTES) {
        match frame::decode(rest, salt, start + len64(at)) {
            Ok((header, frame, _)) => {
                frames.push(frame);
                at += FRAME_HEADER_BYTES + header.stored_len as usize;
            }
            Err(_) => match rest[1..].windows(magic.len()).position(|four| four == magic) {
                Some(found) => at += 1 + found,
                None => break,
            },
        }
    }
    frames
}

/// Scans the bytes of a whole segment file, header included; the torn tail, if any, is cut from the result. Never panics, whatever the
/// bytes are, and allocates in proportion to them.
///
/// # Errors
/// [`ScanError::Unsupported`] for an intact newer format.
pub fn scan(bytes: &[u8]) -> Result<Option<(SegmentHeader, Scan)>, ScanError> {
    let Some(header) = bytes.get(..SEGMENT_HEADER_BYTES).and_then(|header| SegmentHeader::decode(header).ok()) else {
        return Ok(None);
    };
    let mut scan = scan_with(bytes, header.log_id, header.base)?;
    scan.cut_torn(header.base, FRAMES_START, Offset(0));
    Ok(Some((header, scan)))
}

/// Scans the bytes of a segment file whose log and base are known from elsewhere.
///
/// # Errors
/// [`ScanError::Unsupported`] for an intact newer format.
pub fn scan_with(bytes: &[u8], log_id: LogId, base: Offset) -> Result<Scan, ScanError> {
    scan_frames(&bytes, Salt::new(log_id, base), base, len64(bytes.len()))
}
