//! Records of the log set aside for one destination that takes nothing for now, so that they hold up neither the log nor memory.
//!
//! ```text
//! file   = head record* stream*
//! head   = magic "VEENAPRK" | version u32 | crc u32 | wal_id u64 | number u64 | group u64 | partition u32 | streams u32
//!          | records u64 | bytes u64 | end u64                                                                  72 bytes
//! record = as in a segment of the log; its checksum covers the file's identity in the place of a generation
//! stream = stream u128 | first u64 | last u64 | ordinal u32 | 0 u32        from `end` on, 40 bytes each
//! ```
//!
//! Big-endian. The head's CRC covers the head and the streams. A file is written under a temporary name, synced, renamed, and its name
//! synced; it never changes after that, so whatever is missing in it was promised.
//!
//! This module must never call a file written before its name is durable, and never write to a file after a failed sync.

use std::io::{self, ErrorKind};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use veena_contract::{StreamId, WalSeq};

use super::format::{RecordHeader, has_record_magic};
use super::replay::{FileSource, Found, scan};
use super::{Destination, RecordKind, WalIoError, WalReadError, WalRecord, failed};
use crate::disk::{Disk, DiskFile, OpenMode, read_full_at, write_all_at};

/// The head of a file.
pub const HEAD_BYTES: usize = 72;
const STREAM_BYTES: usize = 40;
const MAGIC: [u8; 8] = *b"VEENAPRK";
const VERSION: u32 = 1;
const EXTENSION: &str = ".parked";
const TEMP_EXTENSION: &str = ".tmp";
/// How much is written at once.
const WRITE_BYTES: usize = 1024 * 1024;

/// One stream's part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParkedStream {
    /// The stream.
    pub stream: StreamId,
    /// Its ordinal.
    pub ordinal: u32,
    /// Its first record in the file.
    pub first: WalSeq,
    /// Its last record in the file.
    pub last: WalSeq,
}

/// A durable file of records of one destination, by rising sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedFile {
    /// Where it lies.
    pub path: PathBuf,
    /// Rises with each file of a log.
    pub number: u64,
    /// Whose records they are.
    pub destination: Destination,
    /// Which streams they are of.
    pub streams: Vec<ParkedStream>,
    /// How many there are.
    pub records: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// The head cannot be read; the rest was made again from the records.
    pub is_head_damaged: bool,
    /// The end is missing: there may have been later records. See [`reach`](Self::reach).
    pub is_end_unknown: bool,
    wal_id: u64,
    end: u64,
}

/// Some of a file's records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParkedPiece {
    /// Intact records, each with the place behind it.
    pub records: Vec<(WalRecord, u64)>,
    /// Where to go on.
    pub next: u64,
    /// There is no more.
    pub is_end: bool,
    /// Places, from and to, whose records are damaged.
    pub damaged: Vec<(u64, u64)>,
}

/// Why a file of parked records was not opened.
#[derive(Debug, thiserror::Error)]
pub enum ParkedOpenError {
    /// The file system failed.
    #[error(transparent)]
    Io(#[from] WalIoError),
    /// Its records cannot be read.
    #[error(transparent)]
    Read(#[from] WalReadError),
    /// A newer version wrote it.
    #[error("{} is of format version {version}, which this version does not know", path.display())]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// Its records belong to another log, or nothing in it is intact.
    #[error("{} holds no record of this log", path.display())]
    NotOfThisLog {
        /// The file.
        path: PathBuf,
    },
}

/// The name of a file.
#[must_use]
pub fn file_name(destination: Destination, number: u64) -> String {
    format!("{:016x}-{:05}.{number:08}{EXTENSION}", destination.group, destination.partition)
}

/// Whose file has this name, and its number; `None` for a name that is none of ours.
#[must_use]
pub fn parse_name(name: &str) -> Option<(Destination, u64)> {
    let (place, number) = name.strip_suffix(EXTENSION)?.split_once('.')?;
    let (group, partition) = place.split_once('-')?;
    let destination = Destination { group: u64::from_str_radix(group, 16).ok()?, partition: partition.parse().ok()? };
    let number = number.parse().ok()?;
    (file_name(destination, number) == name).then_some((destination, number))
}

/// Is this the name of a file that was never finished?
#[must_use]
pub fn is_temp_name(name: &str) -> bool {
    name.strip_suffix(TEMP_EXTENSION).is_some_and(|name| parse_name(name).is_some())
}

/// What stands in a record's checksum where a segment has its generation: a record of another file or another log is none.
fn identity(wal_id: u64, number: u64) -> u64 {
    wal_id ^ number.rotate_left(32)
}

fn note_stream(streams: &mut Vec<ParkedStream>, record: &WalRecord, ordinal: u32) {
    match streams.iter_mut().find(|known| known.stream == record.stream) {
        Some(known) => known.last = record.seq,
        None => streams.push(ParkedStream { stream: record.stream, ordinal, first: record.seq, last: record.seq }),
    }
}

/// A file in the making. Dropped before it is finished, it leaves a temporary file that the next start removes.
pub struct ParkedWriter {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    temp: PathBuf,
    file: Arc<dyn DiskFile>,
    made: ParkedFile,
    buffer: Vec<u8>,
}

impl ParkedWriter {
    /// Begins a file of this number, which no file has had.
    ///
    /// # Errors
    /// Of the file system.
    pub fn begin(disk: Arc<dyn Disk>, dir: &Path, wal_id: u64, number: u64, destination: Destination) -> Result<Self, WalIoError> {
        let path = dir.join(file_name(destination, number));
        let temp = dir.join(format!("{}{TEMP_EXTENSION}", file_name(destination, number)));
        let file = disk.open(&temp, OpenMode::CreateNew).map_err(failed(&temp, "create"))?;
        let made = ParkedFile {
            path,
            number,
            destination,
            streams: Vec::new(),
            records: 0,
            bytes: 0,
            is_head_damaged: false,
            is_end_unknown: false,
            wal_id,
            end: HEAD_BYTES as u64,
        };
        Ok(Self { disk, dir: dir.to_owned(), temp, file, made, buffer: Vec::new() })
    }

    /// Adds a record; sequences rise.
    ///
    /// # Errors
    /// Of the file system: the file must be given up.
    pub fn add(&mut self, record: &WalRecord, ordinal: u32) -> Result<(), WalIoError> {
        let head = RecordHeader {
            seq: record.seq,
            synced_end: record.seq.next(),
            stream: record.stream,
            ordinal,
            kind: record.kind.code(),
            destination: record.destination,
            body_len: 0,
            body_crc: 0,
        };
        let position = self.made.end + self.buffer.len() as u64;
        head.encode(&mut self.buffer, identity(self.made.wal_id, self.made.number), position, &record.body);
        note_stream(&mut self.made.streams, record, ordinal);
        self.made.records += 1;
        self.made.bytes += record.body.len() as u64;
        if self.buffer.len() >= WRITE_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), WalIoError> {
        write_all_at(&*self.file, &self.buffer, self.made.end).map_err(failed(&self.temp, "write"))?;
        self.made.end += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// The file as it stands.
    #[must_use]
    pub fn made(&self) -> &ParkedFile {
        &self.made
    }

    /// Makes the file durable under its name.
    ///
    /// # Errors
    /// Of the file system. Its name may be there all the same, and may outlive a power cut: see [`remove`].
    pub fn finish(mut self) -> Result<ParkedFile, WalIoError> {
        match self.harden() {
            Ok(()) => Ok(self.made),
            Err(error) => {
                self.give_up();
                Err(error)
            }
        }
    }

    fn harden(&mut self) -> Result<(), WalIoError> {
        self.write()?;
        let mut streams = Vec::with_capacity(self.made.streams.len() * STREAM_BYTES);
        self.made.streams.iter().for_each(|stream| encode_stream(&mut streams, stream));
        // 1 temp file synced   2 renamed   3 directory synced    — a crash after 2 may show the file or not, never half of one
        write_all_at(&*self.file, &streams, self.made.end).map_err(failed(&self.temp, "write"))?;
        write_all_at(&*self.file, &encode_head(&self.made, &streams), 0).map_err(failed(&self.temp, "write"))?;
        self.file.sync_data().map_err(failed(&self.temp, "sync"))?;
        self.disk.rename(&self.temp, &self.made.path).map_err(failed(&self.temp, "rename"))?;
        self.disk.sync_dir(&self.dir).map_err(failed(&self.dir, "sync"))
    }

    /// Gives the file up.
    pub fn give_up(self) {
        let _ = self.disk.remove_file(&self.temp);
    }
}

/// Removes a file, durably; one that is not there is removed.
///
/// # Errors
/// Of the file system: it may be found again.
pub fn remove(disk: &dyn Disk, path: &Path) -> Result<(), WalIoError> {
    match disk.remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(path, "remove")(error)),
        _ => {}
    }
    let dir = path.parent().unwrap_or(Path::new("."));
    disk.sync_dir(dir).map_err(failed(dir, "sync"))
}

impl ParkedFile {
    /// Reads the head of the file at `path`, which has one of our names. Of a damaged one the records are read instead.
    ///
    /// # Errors
    /// [`ParkedOpenError`].
    pub fn open(disk: &dyn Disk, path: &Path, wal_id: u64) -> Result<Self, ParkedOpenError> {
        let not_ours = || ParkedOpenError::NotOfThisLog { path: path.to_owned() };
        let name = path.file_name().and_then(std::ffi::OsStr::to_str).unwrap_or_default();
        let (destination, number) = parse_name(name).ok_or_else(not_ours)?;
        let file = disk.open(path, OpenMode::Read).map_err(failed(path, "open"))?;
        let len = file.len().map_err(failed(path, "measure"))?;
        let mut made = Self {
            path: path.to_owned(),
            number,
            destination,
            streams: Vec::new(),
            records: 0,
            bytes: 0,
            is_head_damaged: true,
            is_end_unknown: false,
            wal_id,
            end: len,
        };
        match read_head(&*file, len).map_err(failed(path, "read"))? {
            Some(Head { version, .. }) if version != VERSION => {
                return Err(ParkedOpenError::NewerFormat { path: path.to_owned(), version });
            }
            Some(head) if (head.wal_id, head.number, head.destination) != (wal_id, number, destination) => return Err(not_ours()),
            Some(head) => {
                (made.streams, made.records, made.bytes, made.end) = (head.streams, head.records, head.bytes, head.end);
                made.is_head_damaged = false;
            }
            None => made.survey(disk, &*file, len)?,
        }
        if made.streams.is_empty() { Err(not_ours()) } else { Ok(made) }
    }

    /// As [`open`](Self::open), of whichever log the head says.
    ///
    /// # Errors
    /// [`ParkedOpenError`]; also when the head is damaged.
    pub fn open_of_any(disk: &dyn Disk, path: &Path) -> Result<Self, ParkedOpenError> {
        let file = disk.open(path, OpenMode::Read).map_err(failed(path, "open"))?;
        let len = file.len().map_err(failed(path, "measure"))?;
        let head = read_head(&*file, len).map_err(failed(path, "read"))?;
        let head = head.ok_or_else(|| ParkedOpenError::NotOfThisLog { path: path.to_owned() })?;
        Self::open(disk, path, head.wal_id)
    }

    /// Makes again, from the records, what a damaged head would tell. Where the first record is damaged too, nothing tells how far down the file
    /// goes: its first stream begins at 0.
    fn survey(&mut self, disk: &dyn Disk, file: &dyn DiskFile, len: u64) -> Result<(), WalReadError> {
        let mut from = self.start();
        let mut is_front_damaged = false;
        loop {
            let (mut streams, mut bytes) = (std::mem::take(&mut self.streams), 0);
            let piece = read(disk, self, from, WRITE_BYTES, &mut |record, ordinal| {
                note_stream(&mut streams, record, ordinal);
                bytes += record.body.len() as u64;
            })?;
            self.streams = streams;
            self.records += piece.records.len() as u64;
            self.bytes += bytes;
            is_front_damaged |= piece.damaged.first().is_some_and(|(at, _)| *at == self.start());
            from = piece.next;
            if piece.is_end {
                break;
            }
        }
        if let Some(first) = self.streams.first_mut().filter(|_| is_front_damaged) {
            first.first = WalSeq::default();
        }
        let mut rest = [0; STREAM_BYTES];
        read_full_at(file, &mut rest, from).map_err(failed(&self.path, "read"))?;
        let table_bytes = (self.streams.len() * STREAM_BYTES) as u64;
        self.is_end_unknown = len.saturating_sub(from) != table_bytes || has_record_magic(&rest);
        self.end = if self.is_end_unknown { len.max(from + table_bytes) } else { from };
        Ok(())
    }

    /// Every record from `end` on is elsewhere: what the end of the file held, if that is unknown, lies below.
    pub fn reach(&mut self, end: WalSeq) {
        if let Some(part) = self.streams.last_mut().filter(|part| self.is_end_unknown && part.last.next() < end) {
            part.last = WalSeq(end.0 - 1);
        }
    }

    /// The log it is of.
    #[must_use]
    pub fn wal_id(&self) -> u64 {
        self.wal_id
    }

    /// Where its first record stands.
    #[must_use]
    pub fn start(&self) -> u64 {
        HEAD_BYTES as u64
    }

    /// Does the file hold this record, or did it leave it out because it was committed?
    #[must_use]
    pub fn covers(&self, stream: StreamId, seq: WalSeq) -> bool {
        self.streams.iter().any(|part| part.stream == stream && (part.first..=part.last).contains(&seq))
    }

    /// Reads records from a place on, about `bytes_max` bytes of bodies at most (at least one record if there is one). Blocks.
    ///
    /// # Errors
    /// [`WalReadError`]. Damage is not an error: it is told as places.
    pub fn read(&self, disk: &dyn Disk, from: u64, bytes_max: usize) -> Result<ParkedPiece, WalReadError> {
        read(disk, self, from, bytes_max, &mut |_, _| {})
    }
}

fn read(
    disk: &dyn Disk,
    parked: &ParkedFile,
    from: u64,
    bytes_max: usize,
    show: &mut dyn FnMut(&WalRecord, u32),
) -> Result<ParkedPiece, WalReadError> {
    let path = &parked.path;
    let file = disk.open(path, OpenMode::Read).map_err(failed(path, "open"))?;
    let mut source = FileSource::new(file).map_err(failed(path, "measure"))?;
    let mut piece = ParkedPiece { next: from, is_end: true, ..ParkedPiece::default() };
    let (mut bytes, mut unknown) = (0, None);
    let outcome = scan(&mut source, identity(parked.wal_id, parked.number), from, &mut |found| {
        let (end, head, body) = match found {
            Found::Bad { at, end } => {
                piece.damaged.push((at, end));
                return ControlFlow::Continue(());
            }
            Found::Record { end, head, body, .. } => (end, head, body),
        };
        let Some(kind) = RecordKind::from_code(head.kind) else {
            unknown = Some((head.seq, head.kind));
            return ControlFlow::Break(());
        };
        let record =
            WalRecord { seq: head.seq, stream: head.stream, kind, destination: head.destination, body: Bytes::copy_from_slice(body) };
        show(&record, head.ordinal);
        bytes += body.len();
        piece.next = end;
        piece.records.push((record, end));
        piece.is_end = bytes < bytes_max || end >= parked.end;
        if piece.is_end { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    outcome.map_err(failed(path, "read"))?;
    match unknown {
        Some((seq, kind)) if piece.records.is_empty() => return Err(WalReadError::UnknownKind { seq, kind }),
        Some(_) => piece.is_end = false,
        None if piece.is_end && piece.next < parked.end => piece.damaged.push((piece.next, parked.end)),
        None => {}
    }
    Ok(piece)
}

struct Head {
    version: u32,
    wal_id: u64,
    number: u64,
    destination: Destination,
    streams: Vec<ParkedStream>,
    records: u64,
    bytes: u64,
    end: u64,
}

fn encode_stream(out: &mut Vec<u8>, part: &ParkedStream) {
    out.extend_from_slice(&part.stream.0.to_be_bytes());
    out.extend_from_slice(&part.first.0.to_be_bytes());
    out.extend_from_slice(&part.last.0.to_be_bytes());
    out.extend_from_slice(&part.ordinal.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
}

fn encode_head(made: &ParkedFile, streams: &[u8]) -> Vec<u8> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    head.extend_from_slice(&MAGIC);
    head.extend_from_slice(&VERSION.to_be_bytes());
    head.extend_from_slice(&[0; 4]);
    head.extend_from_slice(&made.wal_id.to_be_bytes());
    head.extend_from_slice(&made.number.to_be_bytes());
    head.extend_from_slice(&made.destination.group.to_be_bytes());
    head.extend_from_slice(&made.destination.partition.to_be_bytes());
    let count = u32::try_from(made.streams.len()).expect("invariant: a stream is an open of the log, and its ordinal a u32");
    head.extend_from_slice(&count.to_be_bytes());
    head.extend_from_slice(&made.records.to_be_bytes());
    head.extend_from_slice(&made.bytes.to_be_bytes());
    head.extend_from_slice(&made.end.to_be_bytes());
    let crc = head_crc(&head, streams);
    head[12..16].copy_from_slice(&crc.to_be_bytes());
    head
}

fn head_crc(head: &[u8], streams: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&head[..12]);
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &head[16..]), streams)
}

/// The head and the streams, if they are intact.
fn read_head(file: &dyn DiskFile, len: u64) -> io::Result<Option<Head>> {
    let mut head = [0; HEAD_BYTES];
    if read_full_at(file, &mut head, 0)? < HEAD_BYTES || head[..8] != MAGIC {
        return Ok(None);
    }
    let u32_at = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("invariant: four bytes"));
    let u64_at = |at: usize| u64::from_be_bytes(head[at..at + 8].try_into().expect("invariant: eight bytes"));
    let (end, count) = (u64_at(64), u64::from(u32_at(44)));
    let streams_bytes = count * STREAM_BYTES as u64;
    if end.checked_add(streams_bytes).is_none_or(|whole| whole > len) {
        return Ok(None);
    }
    let mut streams = vec![0; usize::try_from(streams_bytes).unwrap_or(0)];
    let read = read_full_at(file, &mut streams, end)?;
    if read < streams.len() || head_crc(&head, &streams) != u32_at(12) {
        return Ok(None);
    }
    Ok(Some(Head {
        version: u32_at(8),
        wal_id: u64_at(16),
        number: u64_at(24),
        destination: Destination { group: u64_at(32), partition: u32_at(40) },
        streams: streams.chunks_exact(STREAM_BYTES).map(decode_stream).collect(),
        records: u64_at(48),
        bytes: u64_at(56),
        end,
    }))
}

fn decode_stream(entry: &[u8]) -> ParkedStream {
    let u64_at = |at: usize| u64::from_be_bytes(entry[at..at + 8].try_into().expect("invariant: eight bytes"));
    ParkedStream {
        stream: StreamId(u128::from_be_bytes(entry[..16].try_into().expect("invariant: sixteen bytes"))),
        first: WalSeq(u64_at(16)),
        last: WalSeq(u64_at(24)),
        ordinal: u32::from_be_bytes(entry[32..36].try_into().expect("invariant: four bytes")),
    }
}
