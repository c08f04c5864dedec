//! The journal's bytes. All numbers are big-endian.
//!
//! ```text
//! file   = header group*
//! header = magic "VNJR" u32 | version u16 | flags u16 | generation u64 | snapshot_end u64 | crc u32          28 bytes
//! group  = magic "VNJG" u32 | body length u32 | entries u32 | synced_end u64 | body crc u32 | head crc u32    28 bytes
//!          body
//! body   = entry*
//! entry  = kind u8 | flags u8 (1: deleted) | key length u8 | value length u32 | key | value
//! ```
//!
//! A group's head CRC covers the file's generation and the group's position too: bytes of another file, or at another place, are no group.
//! `snapshot_end` and `synced_end` say how much of the file was synced when they were written: damage below is damage to promised data,
//! damage above belongs to writes nobody was told about.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use veena_contract::limits;

/// What the journal holds: values by kind and key.
pub type Entries = BTreeMap<(u8, Vec<u8>), Bytes>;

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = limits::SETTLE_KEY_BYTES_MAX;
/// The largest value, in bytes.
pub const VALUE_BYTES_MAX: usize = limits::SETTLE_VALUE_BYTES_MAX;
/// A group is closed once its body holds this much.
pub(super) const GROUP_BYTES_TARGET: usize = 1024 * 1024;
/// The largest body a group can have: full to the target but one byte, and one more entry.
const GROUP_BYTES_MAX: usize = GROUP_BYTES_TARGET + ENTRY_HEAD_BYTES + KEY_BYTES_MAX + VALUE_BYTES_MAX;

const FILE_MAGIC: [u8; 4] = *b"VNJR";
const GROUP_MAGIC: [u8; 4] = *b"VNJG";
const VERSION: u16 = 1;
pub(super) const FILE_HEAD_BYTES: usize = 28;
const GROUP_HEAD_BYTES: usize = 28;
const ENTRY_HEAD_BYTES: usize = 7;
const DELETED: u8 = 1;

/// How many bytes of a file one entry takes.
pub(super) fn entry_bytes(key: &[u8], value: &[u8]) -> u64 {
    (ENTRY_HEAD_BYTES + key.len() + value.len()) as u64
}

/// The file's head.
pub(super) fn encode_head(generation: u64, snapshot_end: u64) -> [u8; FILE_HEAD_BYTES] {
    let mut head = [0; FILE_HEAD_BYTES];
    head[..4].copy_from_slice(&FILE_MAGIC);
    head[4..6].copy_from_slice(&VERSION.to_be_bytes());
    head[8..16].copy_from_slice(&generation.to_be_bytes());
    head[16..24].copy_from_slice(&snapshot_end.to_be_bytes());
    let crc = crc32c::crc32c(&head[..24]);
    head[24..].copy_from_slice(&crc.to_be_bytes());
    head
}

/// Collects entries and frames them.
pub(super) struct Encoder {
    generation: u64,
    synced_end: u64,
    /// Where the next group goes.
    at: u64,
    bytes: Vec<u8>,
    group_start: Option<usize>,
    count: u32,
}

impl Encoder {
    /// An encoder for bytes that will be written at `at`.
    pub(super) fn new(generation: u64, at: u64, synced_end: u64) -> Self {
        Self { generation, synced_end, at, bytes: Vec::new(), group_start: None, count: 0 }
    }

    /// Adds one entry; key and value are within their bounds.
    pub(super) fn push(&mut self, kind: u8, key: &[u8], value: Option<&[u8]>) {
        let group_start = *self.group_start.get_or_insert_with(|| {
            let start = self.bytes.len();
            self.bytes.resize(start + GROUP_HEAD_BYTES, 0);
            start
        });
        let key_len = u8::try_from(key.len()).expect("invariant: keys are at most KEY_BYTES_MAX long");
        let value_len = u32::try_from(value.map_or(0, <[u8]>::len)).expect("invariant: values are at most VALUE_BYTES_MAX long");
        self.bytes.extend_from_slice(&[kind, if value.is_none() { DELETED } else { 0 }, key_len]);
        self.bytes.extend_from_slice(&value_len.to_be_bytes());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value.unwrap_or_default());
        self.count += 1;
        if self.bytes.len() - group_start - GROUP_HEAD_BYTES >= GROUP_BYTES_TARGET {
            self.close();
        }
    }

    /// Bytes of closed groups so far; the encoder goes on behind them.
    pub(super) fn take(&mut self) -> Vec<u8> {
        self.close();
        self.at += self.bytes.len() as u64;
        std::mem::take(&mut self.bytes)
    }

    /// How many bytes wait to be taken.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    fn close(&mut self) {
        let Some(start) = self.group_start.take() else { return };
        let body_start = start + GROUP_HEAD_BYTES;
        let body_len = u32::try_from(self.bytes.len() - body_start).expect("invariant: a group is at most GROUP_BYTES_MAX long");
        let body_crc = crc32c::crc32c(&self.bytes[body_start..]);
        let position = self.at + start as u64;
        let head = &mut self.bytes[start..body_start];
        head[..4].copy_from_slice(&GROUP_MAGIC);
        head[4..8].copy_from_slice(&body_len.to_be_bytes());
        head[8..12].copy_from_slice(&self.count.to_be_bytes());
        head[12..20].copy_from_slice(&self.synced_end.to_be_bytes());
        head[20..24].copy_from_slice(&body_crc.to_be_bytes());
        let crc = head_crc(self.generation, position, &head[..24]);
        head[24..].copy_from_slice(&crc.to_be_bytes());
        self.count = 0;
    }
}

fn head_crc(generation: u64, position: u64, head: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&generation.to_be_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &position.to_be_bytes()), head)
}

/// What a journal file holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// The map after all groups that count.
    pub entries: Entries,
    /// Ranges of promised bytes that cannot be read.
    pub damaged: Vec<Range<u64>>,
    /// Where the groups that count end; bytes from here on are a torn tail.
    pub end: u64,
}

/// The file was written by a newer Veena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("journal format {version} is not known")]
pub struct UnknownVersion {
    /// The file's version.
    pub version: u16,
}

struct Group {
    range: Range<usize>,
    synced_end: u64,
}

/// Reads a whole journal file. Never panics, whatever the bytes.
///
/// # Errors
/// [`UnknownVersion`] when the head is sound and of another version.
pub fn scan(bytes: &[u8], generation: u64) -> Result<Scan, UnknownVersion> {
    let head = read_head(bytes, generation)?;
    let mut groups = Vec::new();
    let mut at = FILE_HEAD_BYTES.min(bytes.len());
    while let Some(group) = next_group(bytes, generation, at) {
        at = group.range.end;
        groups.push(group);
    }
    let mut promised: u64 = head.unwrap_or(0);
    for group in &groups {
        promised = promised.max(group.synced_end);
    }
    let mut scan = Scan::default();
    if head.is_none() {
        scan.damaged.push(0..FILE_HEAD_BYTES as u64);
    }
    let mut end = FILE_HEAD_BYTES.min(bytes.len());
    for group in &groups {
        if group.range.start > end {
            if end as u64 >= promised {
                break;
            }
            scan.damaged.push(end as u64..group.range.start as u64);
        }
        apply(&mut scan.entries, &bytes[group.range.start + GROUP_HEAD_BYTES..group.range.end]);
        end = group.range.end;
    }
    if (end as u64) < promised {
        scan.damaged.push(end as u64..promised);
    }
    scan.end = end as u64;
    Ok(scan)
}

/// `snapshot_end` of a sound head, `None` of a damaged one.
fn read_head(bytes: &[u8], generation: u64) -> Result<Option<u64>, UnknownVersion> {
    let Some(head) = bytes.get(..FILE_HEAD_BYTES) else { return Ok(None) };
    if head[..4] != FILE_MAGIC || be_u32(head, 24) != crc32c::crc32c(&head[..24]) {
        return Ok(None);
    }
    let version = u16::from_be_bytes([head[4], head[5]]);
    if version != VERSION {
        return Err(UnknownVersion { version });
    }
    Ok((be_u64(head, 8) == generation).then(|| be_u64(head, 16)))
}

/// The first sound group at or behind `from`.
fn next_group(bytes: &[u8], generation: u64, from: usize) -> Option<Group> {
    let mut at = from;
    loop {
        if let Some(group) = group_at(bytes, generation, at) {
            return Some(group);
        }
        let rest = bytes.get(at + 1..)?;
        at += 1 + rest.windows(GROUP_MAGIC.len()).position(|window| window == GROUP_MAGIC)?;
    }
}

fn group_at(bytes: &[u8], generation: u64, at: usize) -> Option<Group> {
    let head = bytes.get(at..at.checked_add(GROUP_HEAD_BYTES)?)?;
    if head[..4] != GROUP_MAGIC || be_u32(head, 24) != head_crc(generation, at as u64, &head[..24]) {
        return None;
    }
    let body_len = usize::try_from(be_u32(head, 4)).ok().filter(|len| *len <= GROUP_BYTES_MAX)?;
    let body_start = at + GROUP_HEAD_BYTES;
    let body = bytes.get(body_start..body_start.checked_add(body_len)?)?;
    let is_sound = be_u32(head, 20) == crc32c::crc32c(body) && count_entries(body) == Some(be_u32(head, 8));
    is_sound.then(|| Group { range: at..body_start + body_len, synced_end: be_u64(head, 12) })
}

struct Entry<'a> {
    kind: u8,
    key: &'a [u8],
    /// `None` deletes.
    value: Option<&'a [u8]>,
}

/// One entry and what follows it; `None` when the bytes are not an entry.
fn split_entry(body: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    let head = body.get(..ENTRY_HEAD_BYTES)?;
    let key_len = usize::from(head[2]);
    let value_len = usize::try_from(be_u32(head, 3)).ok()?;
    if key_len > KEY_BYTES_MAX || value_len > VALUE_BYTES_MAX || head[1] & !DELETED != 0 {
        return None;
    }
    let (key, rest) = body[ENTRY_HEAD_BYTES..].split_at_checked(key_len)?;
    let (value, rest) = rest.split_at_checked(value_len)?;
    let value = (head[1] & DELETED == 0).then_some(value);
    Some((Entry { kind: head[0], key, value }, rest))
}

fn count_entries(mut body: &[u8]) -> Option<u32> {
    let mut count = 0_u32;
    while !body.is_empty() {
        (_, body) = split_entry(body)?;
        count += 1;
    }
    Some(count)
}

fn apply(entries: &mut Entries, mut body: &[u8]) {
    while let Some((entry, rest)) = split_entry(body) {
        let slot = (entry.kind, entry.key.to_vec());
        match entry.value {
            Some(value) => entries.insert(slot, Bytes::copy_from_slice(value)),
            None => entries.remove(&slot),
        };
        body = rest;
    }
}

fn be_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("invariant: four bytes"))
}

fn be_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("invariant: eight bytes"))
}
