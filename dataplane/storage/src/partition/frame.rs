//! One frame: what one append writes and one CRC guards. A frame holds sections (one per stream), a section holds records.
//!
//! ```text
//! header, 72 bytes                                  body, `stored_len` bytes (compressed when the codec says so)
//!   0 magic u32         32 leader epoch u64           section count u16
//!   4 version u8        40 ownership epoch u64        section*
//!   5 codec u8          48 synced_end u64               stream u128, source u32, origin (id u64, ordinal u32, floor u32),
//!   6 flags u16         56 commit time, ms u64          flags u8, last u64, record count u32
//!   8 base offset u64   64 reserved u32 (0)             record*
//!  16 record count u32  68 CRC32C of the header           sequence u64, flags u8, [id: stream u128, sequence u64],
//!  20 raw len u32                                         [idempotency key: hash u128, digest u128], body len u32, body
//!  24 stored len u32
//!  28 CRC32C of the stored bytes u32
//! ```
//!
//! The header's CRC is salted with the log's id, the segment's base offset and the frame's position: bytes that a client sends, or that lie
//! in another log or at another place, are never taken for a frame. `synced_end` is the position in this segment below which everything
//! was known to be synced when the frame was written.
//!
//! A frame with idempotency keys says so in its header's flags: they carry a rule, so a version that does not know them must not go on as if
//! they were not there. A frame without any has the bytes it had before there were keys.
//!
//! Nothing here trusts a length: decoding never panics and never allocates more than the limits allow.

use bytes::{BufMut, Bytes, BytesMut};
use veena_contract::{LogId, MessageId, Offset, StreamId, limits};

use super::wire::{WireReader, len32, len64};
use super::{Codec, KeyMark, Origin, RecordKey, StoredRecord, StreamKey};

/// "VFRM".
pub const FRAME_MAGIC: u32 = 0x5646_524d;
/// The length of a frame's header.
pub const FRAME_HEADER_BYTES: usize = 72;

const VERSION: u8 = 1;
pub(super) const SECTION_HEAD_BYTES: usize = 49;
pub(super) const SECTION_TRACKED: u8 = 1;
pub(super) const RECORD_HEAD_BYTES: usize = 13;
pub(super) const RECORD_HAS_ID: u8 = 1;
pub(super) const RECORD_HAS_KEY: u8 = 2;
/// Flag of a header: there are records with idempotency keys.
const FRAME_HAS_KEYS: u16 = 1;

/// What ties a frame to its place: the log and the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Salt(u32);

impl Salt {
    /// The salt of one segment.
    #[must_use]
    pub fn new(log_id: LogId, segment_base: Offset) -> Self {
        let seed = crc32c::crc32c(&log_id.0.to_be_bytes());
        Self(crc32c::crc32c_append(seed, &segment_base.get().to_be_bytes()))
    }

    fn at(self, position: u64) -> u32 {
        crc32c::crc32c_append(self.0, &position.to_be_bytes())
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// How the body is stored.
    pub codec: Codec,
    /// Have some of its records idempotency keys?
    pub has_keys: bool,
    /// The offset of the first record; of the next one when there is none.
    pub base: Offset,
    /// How many records.
    pub records: u32,
    /// The body's length before compression.
    pub raw_len: u32,
    /// The body's length as stored.
    pub stored_len: u32,
    /// CRC32C of the stored bytes.
    pub body_crc: u32,
    /// Reserved for replicas: the epoch of the leader that wrote the frame.
    pub leader_epoch: u64,
    /// Reserved: the epoch of the ownership under which it was written.
    pub ownership_epoch: u64,
    /// The position in this segment below which everything was known to be synced.
    pub synced_end: u64,
    /// Commit time of all records, in ms.
    pub commit_ms: u64,
}

/// The bytes are not a frame of this place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Fewer bytes than a frame needs.
    #[error("frame is cut short")]
    Short,
    /// No frame starts here.
    #[error("no frame starts here")]
    NoMagic,
    /// The header's CRC does not match.
    #[error("frame header does not match its CRC")]
    HeaderCrc,
    /// A frame of a newer format. It is intact: nothing may be cut here.
    #[error("frame of an unknown format: version {version}, codec {codec}, flags {flags:#06x}")]
    Unsupported {
        /// What was found.
        version: u8,
        /// What was found.
        codec: u8,
        /// What was found.
        flags: u16,
    },
    /// A length is out of bounds.
    #[error("frame length is out of bounds")]
    Length,
    /// The body's CRC does not match.
    #[error("frame body does not match its CRC")]
    BodyCrc,
    /// The body does not decompress, or is not made of sections.
    #[error("frame body is malformed")]
    Body,
}

impl FrameHeader {
    /// The frame's length, header and body.
    #[must_use]
    pub fn frame_len(&self) -> u64 {
        len64(FRAME_HEADER_BYTES) + u64::from(self.stored_len)
    }

    /// The offset behind the last record.
    #[must_use]
    pub fn end(&self) -> Offset {
        Offset(self.base.get() + u64::from(self.records))
    }

    /// The header's bytes for one place.
    #[must_use]
    pub fn encode(&self, salt: Salt, position: u64) -> [u8; FRAME_HEADER_BYTES] {
        let mut out = BytesMut::with_capacity(FRAME_HEADER_BYTES);
        out.put_u32(FRAME_MAGIC);
        out.put_u8(VERSION);
        out.put_u8(self.codec.number());
        out.put_u16(if self.has_keys { FRAME_HAS_KEYS } else { 0 });
        out.put_u64(self.base.get());
        out.put_u32(self.records);
        out.put_u32(self.raw_len);
        out.put_u32(self.stored_len);
        out.put_u32(self.body_crc);
        out.put_u64(self.leader_epoch);
        out.put_u64(self.ownership_epoch);
        out.put_u64(self.synced_end);
        out.put_u64(self.commit_ms);
        out.put_u32(0);
        let crc = crc32c::crc32c_append(salt.at(position), &out);
        out.put_u32(crc);
        out.as_ref().try_into().expect("invariant: the fields above are 72 bytes")
    }

    /// Reads a header at its place. Whatever is returned has the right CRC and lengths within the limits.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn decode(bytes: &[u8], salt: Salt, position: u64) -> Result<Self, FrameError> {
        let header = bytes.get(..FRAME_HEADER_BYTES).ok_or(FrameError::Short)?;
        Self::read(header, salt, position).ok_or(FrameError::Short)?
    }

    fn read(header: &[u8], salt: Salt, position: u64) -> Option<Result<Self, FrameError>> {
        let mut reader = WireReader::new(header);
        if reader.u32()? != FRAME_MAGIC {
            return Some(Err(FrameError::NoMagic));
        }
        let (guarded, crc) = header.split_at_checked(FRAME_HEADER_BYTES - 4)?;
        if crc32c::crc32c_append(salt.at(position), guarded).to_be_bytes() != crc {
            return Some(Err(FrameError::HeaderCrc));
        }
        let (version, codec, flags) = (reader.u8()?, reader.u8()?, reader.u16()?);
        let known = Codec::from_number(codec).filter(|_| version == VERSION && flags & !FRAME_HAS_KEYS == 0);
        let Some(known) = known else {
            return Some(Err(FrameError::Unsupported { version, codec, flags }));
        };
        let header = Self {
            codec: known,
            has_keys: flags & FRAME_HAS_KEYS != 0,
            base: Offset(reader.u64()?),
            records: reader.u32()?,
            raw_len: reader.u32()?,
            stored_len: reader.u32()?,
            body_crc: reader.u32()?,
            leader_epoch: reader.u64()?,
            ownership_epoch: reader.u64()?,
            synced_end: reader.u64()?,
            commit_ms: reader.u64()?,
        };
        Some(header.check_lengths())
    }

    fn check_lengths(self) -> Result<Self, FrameError> {
        let bytes_max = len32(limits::FRAME_BYTES_MAX);
        let fits = self.raw_len <= bytes_max
            && self.stored_len <= self.raw_len
            && self.records <= len32(limits::FRAME_RECORDS_MAX)
            && self.base.get().checked_add(u64::from(self.records)).is_some();
        if fits { Ok(self) } else { Err(FrameError::Length) }
    }
}

/// Where one record lies in its frame's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) sequence: u64,
    pub(super) id: MessageId,
    pub(super) start: u32,
    pub(super) len: u32,
}

/// A frame in memory: its body as one buffer, and where each record lies in it.
#[derive(Debug, PartialEq, Eq)]
pub struct DecodedFrame {
    base: Offset,
    commit_ms: u64,
    body: Bytes,
    slots: Vec<Slot>,
    keys: Vec<KeyMark>,
}

impl DecodedFrame {
    /// `keys` are those of records, by their number in the frame.
    pub(super) fn new(base: Offset, commit_ms: u64, body: Bytes, slots: Vec<Slot>, keys: &[(usize, RecordKey)]) -> Self {
        let mark = |(index, key): &(usize, RecordKey)| {
            let id = slots.get(*index)?.id;
            Some(KeyMark { key: *key, offset: Offset(base.get() + len64(*index)), commit_ms, id })
        };
        let keys = keys.iter().filter_map(mark).collect();
        Self { base, commit_ms, body, slots, keys }
    }

    /// The idempotency keys of its records, in their order.
    #[must_use]
    pub fn keys(&self) -> &[KeyMark] {
        &self.keys
    }

    /// The offset of the first record.
    #[must_use]
    pub fn base(&self) -> Offset {
        self.base
    }

    /// The offset behind the last record.
    #[must_use]
    pub fn end(&self) -> Offset {
        Offset(self.base.get() + len64(self.slots.len()))
    }

    /// How much memory it holds, roughly.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.body.len() + self.slots.len() * std::mem::size_of::<Slot>() + self.keys.len() * std::mem::size_of::<KeyMark>() + 256
    }

    /// One record, sharing the frame's memory.
    #[must_use]
    pub fn record(&self, offset: Offset) -> Option<StoredRecord> {
        let index = usize::try_from(offset.get().checked_sub(self.base.get())?).ok()?;
        let slot = self.slots.get(index)?;
        let start = slot.start as usize;
        Some(StoredRecord {
            offset,
            sequence: slot.sequence,
            id: slot.id,
            commit_ms: self.commit_ms,
            body: self.body.slice(start..start + slot.len as usize),
        })
    }
}

/// A section without its records: what the stream table needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectionHead {
    /// Whose stream.
    pub key: StreamKey,
    /// Where the stream comes from.
    pub origin: Origin,
    /// Does the stream table keep it?
    pub is_tracked: bool,
    /// The sequence after which the stream stands.
    pub last: u64,
    /// Sequence and body hash of its last record.
    pub last_record: Option<(u64, u32)>,
}

/// Reads one whole frame at its place: checks both CRCs, decompresses, finds sections and records.
///
/// # Errors
/// [`FrameError`].
pub fn decode(bytes: &[u8], salt: Salt, position: u64) -> Result<(FrameHeader, DecodedFrame, Vec<SectionHead>), FrameError> {
    let header = FrameHeader::decode(bytes, salt, position)?;
    let stored = bytes.get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + header.stored_len as usize).ok_or(FrameError::Short)?;
    let (frame, sections) = decode_stored(&header, stored)?;
    Ok((header, frame, sections))
}

/// The same for a header that was already read and the stored bytes behind it.
pub(super) fn decode_stored(header: &FrameHeader, stored: &[u8]) -> Result<(DecodedFrame, Vec<SectionHead>), FrameError> {
    if crc32c::crc32c(stored) != header.body_crc {
        return Err(FrameError::BodyCrc);
    }
    let raw_len = header.raw_len as usize;
    let body = match header.codec {
        Codec::None => Bytes::copy_from_slice(stored),
        Codec::Zstd => Bytes::from(zstd::bulk::decompress(stored, raw_len).map_err(|_| FrameError::Body)?),
    };
    if body.len() != raw_len {
        return Err(FrameError::Body);
    }
    let FrameBody { sections, slots, keys } = read_body(&body, header.records, header.has_keys).ok_or(FrameError::Body)?;
    Ok((DecodedFrame::new(header.base, header.commit_ms, body, slots, &keys), sections))
}

/// What a body is made of.
struct FrameBody {
    sections: Vec<SectionHead>,
    slots: Vec<Slot>,
    /// Idempotency keys, by the number of their record.
    keys: Vec<(usize, RecordKey)>,
}

fn read_body(body: &[u8], records: u32, has_keys: bool) -> Option<FrameBody> {
    let mut reader = WireReader::new(body);
    let section_count = usize::from(reader.u16()?);
    if section_count > reader.remaining() / SECTION_HEAD_BYTES || records as usize > reader.remaining() / RECORD_HEAD_BYTES {
        return None;
    }
    let mut sections = Vec::with_capacity(section_count);
    let mut slots = Vec::with_capacity(records as usize);
    let mut keys = Vec::new();
    for _ in 0..section_count {
        let key = StreamKey { stream: StreamId(reader.u128()?), source: reader.u32()? };
        let origin = Origin { id: reader.u64()?, ordinal: reader.u32()?, floor: reader.u32()? };
        let flags = reader.u8()?;
        let last = reader.u64()?;
        let count = reader.u32()?;
        if count as usize > records as usize - slots.len() {
            return None;
        }
        let mut last_record = None;
        for index in 0..count {
            let (slot, record_key) = read_record(&mut reader, key.stream, has_keys)?;
            keys.extend(record_key.map(|key| (slots.len(), key)));
            if index + 1 == count {
                let start = slot.start as usize;
                last_record = Some((slot.sequence, crc32c::crc32c(body.get(start..start + slot.len as usize)?)));
            }
            slots.push(slot);
        }
        sections.push(SectionHead { key, origin, is_tracked: flags & SECTION_TRACKED != 0, last, last_record });
    }
    (reader.remaining() == 0 && slots.len() == records as usize).then_some(FrameBody { sections, slots, keys })
}

fn read_record(reader: &mut WireReader<'_>, stream: StreamId, has_keys: bool) -> Option<(Slot, Option<RecordKey>)> {
    let sequence = reader.u64()?;
    let flags = reader.u8()?;
    let id = if flags & RECORD_HAS_ID != 0 {
        MessageId { stream: StreamId(reader.u128()?), sequence: reader.u64()? }
    } else {
        MessageId { stream, sequence }
    };
    let key = match flags & RECORD_HAS_KEY != 0 {
        true if !has_keys => return None,
        true => Some(RecordKey { hash: reader.u128()?, digest: reader.u128()? }),
        false => None,
    };
    let len = reader.len32()?;
    let start = len32(reader.position());
    reader.take(len)?;
    Some((Slot { sequence, id, start, len: len32(len) }, key))
}
