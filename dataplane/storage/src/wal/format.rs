//! The bytes of a segment. Big-endian throughout; `docs` and golden files pin them.
//!
//! A segment is one header block of [`SEGMENT_HEADER_BYTES`], then records, each at a multiple of 8. A record's header has a checksum of
//! its own, over the segment's generation, the record's position, and every field (the body's checksum among them): so a damaged body
//! still tells which record it was, bytes of an earlier generation are not records, and a client cannot write a body that looks like one.

use veena_contract::{StreamId, WalSeq};

use super::Destination;

/// The block that starts a segment.
pub const SEGMENT_HEADER_BYTES: usize = 4096;
/// The header of a record, before its body.
pub const RECORD_HEADER_BYTES: usize = 72;
/// Records start at multiples of this.
pub const RECORD_ALIGN: usize = 8;

const SEGMENT_MAGIC: [u8; 8] = *b"VEENAWAL";
const SEGMENT_VERSION: u32 = 1;
const RECORD_MAGIC: [u8; 4] = *b"VWR1";

/// What a segment says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The WAL it belongs to.
    pub wal_id: u64,
    /// Rises with each use of a file; part of every record's checksum.
    pub generation: u64,
    /// The generation of the segment before it; 0 is none.
    pub previous: u64,
    /// The sequence of its first record, and the end of the segment before it.
    pub first: WalSeq,
    /// The stream under which it was begun.
    pub stream: StreamId,
    /// That stream's ordinal.
    pub ordinal: u32,
}

/// Why a header block is not the header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadSegmentHeader {
    /// It is damaged, torn, or was never written.
    Damaged,
    /// It is intact and of a version this build does not know.
    Version(u32),
}

impl SegmentHeader {
    /// Appends the header block.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&SEGMENT_MAGIC);
        out.extend_from_slice(&SEGMENT_VERSION.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.wal_id.to_be_bytes());
        out.extend_from_slice(&self.generation.to_be_bytes());
        out.extend_from_slice(&self.previous.to_be_bytes());
        out.extend_from_slice(&self.first.0.to_be_bytes());
        out.extend_from_slice(&self.stream.0.to_be_bytes());
        out.extend_from_slice(&self.ordinal.to_be_bytes());
        out.resize(start + SEGMENT_HEADER_BYTES, 0);
        let crc = segment_crc(&out[start..]);
        out[start + 12..start + 16].copy_from_slice(&crc.to_be_bytes());
    }

    /// Reads a header block.
    ///
    /// # Errors
    /// [`BadSegmentHeader`].
    pub fn decode(block: &[u8]) -> Result<Self, BadSegmentHeader> {
        let Some(block) = block.get(..SEGMENT_HEADER_BYTES) else { return Err(BadSegmentHeader::Damaged) };
        if block[..8] != SEGMENT_MAGIC || segment_crc(block) != u32_at(block, 12) {
            return Err(BadSegmentHeader::Damaged);
        }
        if u32_at(block, 8) != SEGMENT_VERSION {
            return Err(BadSegmentHeader::Version(u32_at(block, 8)));
        }
        Ok(Self {
            wal_id: u64_at(block, 16),
            generation: u64_at(block, 24),
            previous: u64_at(block, 32),
            first: WalSeq(u64_at(block, 40)),
            stream: StreamId(u128_at(block, 48)),
            ordinal: u32_at(block, 64),
        })
    }
}

fn segment_crc(block: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&block[..12]), &block[16..SEGMENT_HEADER_BYTES])
}

/// The header of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Its sequence.
    pub seq: WalSeq,
    /// Everything below this was synced when the record's group was written.
    pub synced_end: WalSeq,
    /// The stream under which it was appended.
    pub stream: StreamId,
    /// That stream's ordinal.
    pub ordinal: u32,
    /// Its kind, as a number of the registry.
    pub kind: u8,
    /// Where it goes.
    pub destination: Destination,
    /// The length of its body.
    pub body_len: u32,
    /// The checksum of its body.
    pub body_crc: u32,
}

/// How many bytes a record with a body of `body_len` takes.
#[must_use]
pub const fn record_bytes(body_len: usize) -> usize {
    (RECORD_HEADER_BYTES + body_len).next_multiple_of(RECORD_ALIGN)
}

impl RecordHeader {
    /// Appends the record, whose place in the segment is `position`. The two fields about the body are taken from `body`.
    ///
    /// # Panics
    /// When the body is 4 GiB or more; appends refuse far smaller ones.
    pub fn encode(&self, out: &mut Vec<u8>, generation: u64, position: u64, body: &[u8]) {
        let start = out.len();
        let body_len = u32::try_from(body.len()).expect("invariant: bounded by WAL_RECORD_BYTES_MAX");
        let mut head = [0; RECORD_HEADER_BYTES];
        head[0..4].copy_from_slice(&RECORD_MAGIC);
        head[8..12].copy_from_slice(&crc32c::crc32c(body).to_be_bytes());
        head[12..16].copy_from_slice(&body_len.to_be_bytes());
        head[16] = self.kind;
        head[20..24].copy_from_slice(&self.ordinal.to_be_bytes());
        head[24..32].copy_from_slice(&self.seq.0.to_be_bytes());
        head[32..40].copy_from_slice(&self.synced_end.0.to_be_bytes());
        head[40..56].copy_from_slice(&self.stream.0.to_be_bytes());
        head[56..64].copy_from_slice(&self.destination.group.to_be_bytes());
        head[64..68].copy_from_slice(&self.destination.partition.to_be_bytes());
        let crc = record_crc(&head, generation, position);
        head[4..8].copy_from_slice(&crc.to_be_bytes());
        out.extend_from_slice(&head);
        out.extend_from_slice(body);
        out.resize(start + record_bytes(body.len()), 0);
    }

    /// Reads a record's header; `None` when no record of this generation starts at this position.
    #[must_use]
    pub fn decode(bytes: &[u8], generation: u64, position: u64) -> Option<Self> {
        let head: &[u8; RECORD_HEADER_BYTES] = bytes.get(..RECORD_HEADER_BYTES)?.try_into().ok()?;
        if head[..4] != RECORD_MAGIC || record_crc(head, generation, position) != u32_at(head, 4) {
            return None;
        }
        Some(Self {
            seq: WalSeq(u64_at(head, 24)),
            synced_end: WalSeq(u64_at(head, 32)),
            stream: StreamId(u128_at(head, 40)),
            ordinal: u32_at(head, 20),
            kind: head[16],
            destination: Destination { group: u64_at(head, 56), partition: u32_at(head, 64) },
            body_len: u32_at(head, 12),
            body_crc: u32_at(head, 8),
        })
    }

    /// Are these the body and padding the header speaks of? `rest` is what follows the header, padding included.
    #[must_use]
    pub fn matches(&self, rest: &[u8]) -> bool {
        let Some((body, padding)) = usize::try_from(self.body_len).ok().and_then(|len| rest.split_at_checked(len)) else { return false };
        crc32c::crc32c(body) == self.body_crc && padding.iter().all(|byte| *byte == 0)
    }
}

/// Does a record perhaps start here?
#[must_use]
pub(super) fn has_record_magic(bytes: &[u8]) -> bool {
    bytes.starts_with(&RECORD_MAGIC)
}

fn record_crc(head: &[u8; RECORD_HEADER_BYTES], generation: u64, position: u64) -> u32 {
    let mut place = [0; 16];
    place[..8].copy_from_slice(&generation.to_be_bytes());
    place[8..].copy_from_slice(&position.to_be_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&place), &head[8..])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("invariant: four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("invariant: eight bytes"))
}

fn u128_at(bytes: &[u8], at: usize) -> u128 {
    u128::from_be_bytes(bytes[at..at + 16].try_into().expect("invariant: sixteen bytes"))
}
