//! Laying records out in frames, and tying a frame to its place.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use veena_contract::{MessageId, Offset, limits};

use super::frame::{
    DecodedFrame, FRAME_HEADER_BYTES, FrameHeader, RECORD_HAS_ID, RECORD_HAS_KEY, RECORD_HEAD_BYTES, SECTION_HEAD_BYTES, SECTION_TRACKED,
    Salt, Slot,
};
use super::wire::{len32, len64};
use super::{Codec, NewRecord, RecordKey, Section};

/// A record's own id, when it is not its stream's.
const RECORD_ID_BYTES: usize = 24;
/// A record's idempotency key.
const RECORD_KEY_BYTES: usize = 32;
/// Smaller bodies are not worth a compressor; larger ones are when an eighth is saved.
const COMPRESS_BYTES_MIN: usize = 1024;
const COMPRESS_LEVEL: i32 = 1;

/// A frame whose body is laid out but whose place is not known yet.
pub(super) struct RawFrame {
    base: Offset,
    /// Room for the header, then the body.
    buf: BytesMut,
    slots: Vec<Slot>,
    /// Idempotency keys, by the number of their record.
    keys: Vec<(usize, RecordKey)>,
    sections: u16,
    section_at: usize,
    section_records: u32,
}

/// A frame ready to be written.
pub(super) struct SealedFrame {
    pub(super) header: FrameHeader,
    /// Header and stored body.
    pub(super) bytes: Bytes,
    pub(super) decoded: Arc<DecodedFrame>,
}

/// A record that no frame can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record of {bytes} bytes is larger than a frame can hold")]
pub struct RecordTooLarge {
    /// Its size.
    pub bytes: usize,
}

/// Lays records out in as few frames as the limits allow. A section that is split says in each part where the stream then stands.
pub(super) fn lay_out(sections: &[Section], base: Offset) -> Result<Vec<RawFrame>, RecordTooLarge> {
    let mut frames = Vec::new();
    let mut budget: usize = sections.iter().map(section_bytes).sum::<usize>() + 2;
    let mut frame = RawFrame::new(base, budget);
    for section in sections {
        let first = section.records.first().map_or(0, record_bytes);
        if !frame.has_room(SECTION_HEAD_BYTES + first) {
            frame = frame.next(&mut frames, &mut budget);
        }
        frame.begin(section);
        for record in &section.records {
            let bytes = record_bytes(record);
            if bytes + SECTION_HEAD_BYTES + 2 > limits::FRAME_BYTES_MAX {
                return Err(RecordTooLarge { bytes: record.body.len() });
            }
            if !frame.has_room(bytes) {
                frame = frame.next(&mut frames, &mut budget);
                frame.begin(section);
            }
            frame.push(section, record);
        }
        frame.finish_section(section.last);
    }
    if frame.sections > 0 {
        frames.push(frame);
    }
    Ok(frames)
}

fn record_bytes(record: &NewRecord) -> usize {
    RECORD_HEAD_BYTES + record.id.map_or(0, |_| RECORD_ID_BYTES) + record.key.map_or(0, |_| RECORD_KEY_BYTES) + record.body.len()
}

fn section_bytes(section: &Section) -> usize {
    SECTION_HEAD_BYTES + section.records.iter().map(record_bytes).sum::<usize>()
}

impl RawFrame {
    fn new(base: Offset, budget: usize) -> Self {
        let mut buf = BytesMut::with_capacity(FRAME_HEADER_BYTES + budget.min(limits::FRAME_BYTES_MAX));
        buf.put_bytes(0, FRAME_HEADER_BYTES);
        buf.put_u16(0);
        Self { base, buf, slots: Vec::new(), keys: Vec::new(), sections: 0, section_at: 0, section_records: 0 }
    }

    fn body_len(&self) -> usize {
        self.buf.len() - FRAME_HEADER_BYTES
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.sections < u16::MAX && self.slots.len() < limits::FRAME_RECORDS_MAX && self.body_len() + bytes <= limits::FRAME_BYTES_MAX
    }

    /// Closes this frame and opens the one behind it.
    fn next(self, frames: &mut Vec<Self>, budget: &mut usize) -> Self {
        *budget = budget.saturating_sub(self.body_len()) + SECTION_HEAD_BYTES + 2;
        let next = Self::new(Offset(self.base.get() + len64(self.slots.len())), *budget);
        frames.push(self);
        next
    }

    fn begin(&mut self, section: &Section) {
        self.section_at = self.buf.len();
        self.section_records = 0;
        self.sections += 1;
        self.buf.put_u128(section.key.stream.0);
        self.buf.put_u32(section.key.source);
        self.buf.put_u64(section.origin.id);
        self.buf.put_u32(section.origin.ordinal);
        self.buf.put_u32(section.origin.floor);
        self.buf.put_u8(if section.is_tracked { SECTION_TRACKED } else { 0 });
        self.buf.put_u64(0);
        self.buf.put_u32(0);
    }

    fn push(&mut self, section: &Section, record: &NewRecord) {
        let implied = MessageId { stream: section.key.stream, sequence: record.sequence };
        let id = record.id.unwrap_or(implied);
        self.buf.put_u64(record.sequence);
        let has_id = if id == implied { 0 } else { RECORD_HAS_ID };
        self.buf.put_u8(has_id | record.key.map_or(0, |_| RECORD_HAS_KEY));
        if id != implied {
            self.buf.put_u128(id.stream.0);
            self.buf.put_u64(id.sequence);
        }
        if let Some(key) = record.key {
            self.buf.put_u128(key.hash);
            self.buf.put_u128(key.digest);
            self.keys.push((self.slots.len(), key));
        }
        self.buf.put_u32(len32(record.body.len()));
        let start = len32(self.body_len());
        self.buf.put_slice(&record.body);
        self.slots.push(Slot { sequence: record.sequence, id, start, len: len32(record.body.len()) });
        self.section_records += 1;
        self.finish_section(record.sequence);
    }

    /// Writes where the stream stands behind this part of the section, and how many records the part has.
    fn finish_section(&mut self, last: u64) {
        let tail = self.section_at + SECTION_HEAD_BYTES - 12;
        self.buf[tail..tail + 8].copy_from_slice(&last.to_be_bytes());
        self.buf[tail + 8..tail + 12].copy_from_slice(&self.section_records.to_be_bytes());
    }

    /// The length it will take at most.
    pub(super) fn len_max(&self) -> u64 {
        len64(self.buf.len())
    }

    /// Ties the frame to its place.
    pub(super) fn seal(mut self, codec: Codec, salt: Salt, position: u64, synced_end: u64, commit_ms: u64) -> SealedFrame {
        self.buf[FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + 2].copy_from_slice(&self.sections.to_be_bytes());
        let raw_len = self.body_len();
        let compressed = match codec {
            Codec::Zstd if raw_len >= COMPRESS_BYTES_MIN => zstd::bulk::compress(&self.buf[FRAME_HEADER_BYTES..], COMPRESS_LEVEL)
                .ok()
                .filter(|packed| packed.len() < raw_len - raw_len / 8),
            Codec::None | Codec::Zstd => None,
        };
        let stored: &[u8] = compressed.as_deref().unwrap_or(&self.buf[FRAME_HEADER_BYTES..]);
        let header = FrameHeader {
            codec: if compressed.is_some() { Codec::Zstd } else { Codec::None },
            has_keys: !self.keys.is_empty(),
            base: self.base,
            records: len32(self.slots.len()),
            raw_len: len32(raw_len),
            stored_len: len32(stored.len()),
            body_crc: crc32c::crc32c(stored),
            leader_epoch: 0,
            ownership_epoch: 0,
            synced_end,
            commit_ms,
        };
        let head = header.encode(salt, position);
        let (bytes, body) = match compressed {
            Some(packed) => {
                let mut bytes = BytesMut::with_capacity(FRAME_HEADER_BYTES + packed.len());
                bytes.put_slice(&head);
                bytes.put_slice(&packed);
                (bytes.freeze(), self.buf.freeze().slice(FRAME_HEADER_BYTES..))
            }
            None => {
                self.buf[..FRAME_HEADER_BYTES].copy_from_slice(&head);
                let bytes = self.buf.freeze();
                (bytes.clone(), bytes.slice(FRAME_HEADER_BYTES..))
            }
        };
        let decoded = DecodedFrame::new(self.base, commit_ms, body, self.slots, &self.keys);
        SealedFrame { header, bytes, decoded: Arc::new(decoded) }
    }
}

/// The same frame for another place: only the header changes.
pub(super) fn replace(header: &FrameHeader, frame: &[u8], salt: Salt, position: u64, synced_end: u64) -> Vec<u8> {
    let moved = FrameHeader { synced_end, ..*header };
    let mut out = frame.to_vec();
    out[..FRAME_HEADER_BYTES].copy_from_slice(&moved.encode(salt, position));
    out
}
