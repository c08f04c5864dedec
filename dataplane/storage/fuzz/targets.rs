// What each fuzz target does with its input; shared with the plain test that replays the checked-in inputs.
//
// Most formats carry a CRC, which a fuzzer does not guess. So every target takes its input twice: as it is, and with the checksums put
// right, so that what lies behind them is reached.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use veena_contract::{LogId, Offset, StreamId, WalSeq};
use veena_storage::cell::{self, CellKind};
use veena_storage::disk::mem::MemDisk;
use veena_storage::disk::{Disk, OpenMode, read_full_at, write_all_at};
use veena_storage::envelope::Envelope;
use veena_storage::journal;
use veena_storage::partition::frame::{self, FrameHeader, Salt};
use veena_storage::partition::{
    Codec, FrameCache, Marks, NewRecord, Origin, PartitionConfig, PartitionLog, Section, SegmentHeader, StreamKey, StreamsSnapshot, recover,
};
use veena_storage::wal::format::{RecordHeader, SEGMENT_HEADER_BYTES, SegmentHeader as WalHeader};
use veena_storage::wal::moved::Moved;
use veena_storage::wal::parked::{self, ParkedFile, ParkedOpenError};
use veena_storage::wal::{Destination, RecordKind, Wal, WalConfig, WalEntry, WalReadError, replay};

/// A target: its name, and what it does.
pub type Target = (&'static str, fn(&[u8]));

/// All targets of this crate.
pub const TARGETS: [Target; 11] = [
    ("wal_scan", wal_scan),
    ("wal_cells", wal_cells),
    ("parked_file", parked_file),
    ("moved_body", moved_body),
    ("frame_decode", frame_decode),
    ("recover_scan", recover_scan),
    ("side_file", side_file),
    ("journal_scan", journal_scan),
    ("cell_decode", cell_decode),
    ("envelope_decode", envelope_decode),
    ("streams_snapshot", streams_snapshot),
];

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(len.min(bytes.len()));
    *bytes = rest;
    taken
}

fn number(bytes: &mut &[u8]) -> u64 {
    let mut padded = [0; 8];
    let taken = take(bytes, 8);
    padded[..taken.len()].copy_from_slice(taken);
    u64::from_be_bytes(padded)
}

/// A WAL segment: what is found lies in the file, in order, and does not overlap.
pub fn wal_scan(bytes: &[u8]) {
    let check = |bytes: &[u8], generation| {
        let found = replay::scan_segment(bytes, generation);
        let mut end = SEGMENT_HEADER_BYTES as u64;
        for record in &found.records {
            assert!(record.at >= end && record.end > record.at && record.end <= bytes.len() as u64);
            end = record.end;
        }
        assert!(found.records.is_empty() || found.good_end == end);
    };
    let _ = WalHeader::decode(bytes);
    check(bytes, 1);
    let mut input = bytes;
    let mut segment = vec![0; SEGMENT_HEADER_BYTES];
    while !input.is_empty() && segment.len() < 64 * 1024 {
        let choice = take(&mut input, 1)[0];
        let len = usize::from(choice >> 1);
        if choice & 1 == 0 {
            segment.extend_from_slice(take(&mut input, len));
            continue;
        }
        let header = RecordHeader {
            seq: WalSeq(number(&mut input)),
            synced_end: WalSeq(number(&mut input)),
            stream: StreamId(u128::from(number(&mut input))),
            ordinal: 1,
            kind: choice,
            destination: Destination { group: 1, partition: 2 },
            body_len: 0,
            body_crc: 0,
        };
        let at = segment.len() as u64;
        let body = take(&mut input, len);
        header.encode(&mut segment, 1, at, body);
    }
    check(&segment, 1);
}

/// A WAL of two lives, one of whose small files has the input as its value: it is opened or refused, and what is opened can be read and
/// opened again.
pub fn wal_cells(bytes: &[u8]) {
    let mut value = bytes;
    let (name, kind) = match take(&mut value, 1).first().map_or(0, |byte| byte % 3) {
        0 => ("id", CellKind::WAL_ID),
        1 => ("checkpoint", CellKind::WAL_CHECKPOINT),
        _ => ("streams", CellKind::WAL_STREAMS),
    };
    let disk = MemDisk::new();
    let dir = Path::new("/wal");
    let config = WalConfig { segment_bytes: 8192, rotate_bytes_min: 6000, spare_max: 1, ..WalConfig::default() };
    let open = || Wal::open(Arc::new(disk.clone()), dir, config, &Zero);
    for _life in 0..2 {
        let (wal, _) = open().expect("a WAL as it was left");
        wal.start_by_hand(Arc::new(|_| ()));
        for body in [100, 3000, 3000] {
            let body = Bytes::from(vec![0; body]);
            let entry = WalEntry { kind: RecordKind::Accept, destination: Destination { group: 1, partition: 2 }, body };
            let _staged = wal.stage([entry].into_iter().collect()).expect("staged");
            wal.flush_now();
        }
        wal.checkpoint(WalSeq(1)).expect("moved");
        wal.close();
    }
    let path = disk.list(dir).expect("listed").into_iter().find(|entry| entry.name.starts_with(name)).expect("the cell is there").name;
    cell::write(&disk, &dir.join(path), kind, value).expect("written");
    let Ok((wal, first)) = open() else { return };
    assert!(first.checkpoint <= first.end);
    let mut next = first.checkpoint;
    while next < first.end {
        let piece = wal.read_backlog(next, first.end, 4096).expect("read");
        assert!(piece.next > next, "a step goes forward");
        next = piece.next;
    }
    wal.close();
    drop(wal);
    let (_, second) = open().expect("what was opened once is opened again");
    assert_eq!((second.checkpoint, second.end), (first.checkpoint, first.end));
}

/// The body of a record that goes elsewhere: what is read is written back byte for byte.
pub fn moved_body(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    if let Ok(moved) = Moved::decode(&bytes) {
        assert!(!moved.body.is_empty());
        assert_eq!(moved.encode(), bytes);
    }
}

const PARKED_WAL: u64 = 1;
const PARKED_NUMBER: u64 = 5;
const PARKED_TO: Destination = Destination { group: 1, partition: 2 };

/// A file of parked records: what is read goes forward, lies in the file, and is the same in pieces of any size.
pub fn parked_file(bytes: &[u8]) {
    for file in [bytes.to_vec(), parked_of(bytes)] {
        let disk = MemDisk::new();
        let path = Path::new("/parked").join(parked::file_name(PARKED_TO, PARKED_NUMBER));
        disk.create_dir_all(Path::new("/parked")).expect("created");
        let written = disk.open(&path, OpenMode::CreateNew).expect("created");
        write_all_at(written.as_ref(), &file, 0).expect("written");
        let opened = match ParkedFile::open(&disk, &path, PARKED_WAL) {
            Ok(opened) => opened,
            Err(ParkedOpenError::Io(error)) => panic!("{error}"),
            Err(_) => continue,
        };
        let all = parked_records(&disk, &opened, usize::MAX, file.len() as u64);
        assert_eq!(parked_records(&disk, &opened, 1, file.len() as u64), all);
        assert_eq!(ParkedFile::open(&disk, &path, PARKED_WAL).expect("opened once"), opened);
    }
}

/// The sequences and places of a file's records, read in pieces of this size, up to the first that this version does not know.
fn parked_records(disk: &MemDisk, file: &ParkedFile, bytes_max: usize, len: u64) -> Vec<(WalSeq, u64)> {
    let (mut all, mut at) = (Vec::new(), file.start());
    loop {
        let piece = match file.read(disk, at, bytes_max) {
            Ok(piece) => piece,
            Err(WalReadError::UnknownKind { .. }) => return all,
            Err(error) => panic!("{error}"),
        };
        for (record, behind) in piece.records {
            assert!(behind > at && behind <= len, "{behind} behind {at}, of {len}");
            at = behind;
            all.push((record.seq, behind));
        }
        assert!(piece.damaged.iter().all(|(from, to)| from < to), "{:?}", piece.damaged);
        assert_eq!(piece.next, at);
        if piece.is_end {
            return all;
        }
    }
}

/// A file whose head is right about where it lies and whose checksums are; its records, its streams and its counts come from the input.
fn parked_of(mut input: &[u8]) -> Vec<u8> {
    let mut file = b"VEENAPRK".to_vec();
    let version = 1 + u32::from(take(&mut input, 1) == [0xff]);
    file.extend_from_slice(&version.to_be_bytes());
    file.extend_from_slice(&[0; 4]);
    for number in [PARKED_WAL, PARKED_NUMBER, PARKED_TO.group] {
        file.extend_from_slice(&number.to_be_bytes());
    }
    file.extend_from_slice(&PARKED_TO.partition.to_be_bytes());
    let streams = take(&mut input, 1).first().map_or(0, |byte| byte & 3);
    file.extend_from_slice(&u32::from(streams).to_be_bytes());
    for _ in 0..2 {
        file.extend_from_slice(&number(&mut input).to_be_bytes());
    }
    let end_by = u64::from(take(&mut input, 1).first().copied().unwrap_or_default());
    file.extend_from_slice(&[0; 8]);
    let mut table = Vec::new();
    for ordinal in 0..u32::from(streams) {
        for number in [0, number(&mut input), number(&mut input), number(&mut input)] {
            table.extend_from_slice(&number.to_be_bytes());
        }
        table.extend_from_slice(&ordinal.to_be_bytes());
        table.extend_from_slice(&[0; 4]);
    }
    while !input.is_empty() {
        let choice = take(&mut input, 1)[0];
        let len = usize::from(choice >> 2);
        if choice & 3 == 0 {
            file.extend_from_slice(take(&mut input, len));
            continue;
        }
        let header = RecordHeader {
            seq: WalSeq(number(&mut input)),
            synced_end: WalSeq(0),
            stream: StreamId(u128::from(take(&mut input, 1).first().copied().unwrap_or_default())),
            ordinal: 1,
            kind: choice & 3,
            destination: PARKED_TO,
            body_len: 0,
            body_crc: 0,
        };
        let at = file.len() as u64;
        header.encode(&mut file, PARKED_WAL ^ PARKED_NUMBER.rotate_left(32), at, take(&mut input, len));
    }
    // Most often the end is where the records end.
    let end = (file.len() as u64).saturating_sub(end_by.saturating_sub(200));
    file[64..72].copy_from_slice(&end.to_be_bytes());
    file.truncate(usize::try_from(end).expect("small").max(parked::HEAD_BYTES));
    file.extend_from_slice(&table);
    let crc = crc32c::crc32c(&file[..12]);
    let crc = crc32c::crc32c_append(crc32c::crc32c_append(crc, &file[16..parked::HEAD_BYTES]), &table);
    file[12..16].copy_from_slice(&crc.to_be_bytes());
    file
}

/// One frame, its header made from the input so that its CRCs are right.
fn framed(mut input: &[u8], base: Offset, salt: Salt, position: u64) -> Vec<u8> {
    let flags = take(&mut input, 1).first().copied().unwrap_or(0);
    let codec = if flags & 1 == 1 { Codec::Zstd } else { Codec::None };
    let has_keys = flags & 2 == 2;
    let counts = number(&mut input).to_be_bytes();
    let records = u32::from(u16::from_be_bytes([counts[0], counts[1]]));
    let extra = u32::from_be_bytes([0, counts[2], counts[3], counts[4]]);
    let stored_len = u32::try_from(input.len()).expect("inputs are small");
    let raw_len = if codec == Codec::None { stored_len } else { stored_len.saturating_add(extra) };
    let header = FrameHeader {
        codec,
        has_keys,
        base,
        records,
        raw_len,
        stored_len,
        body_crc: crc32c::crc32c(input),
        leader_epoch: 0,
        ownership_epoch: 0,
        synced_end: number(&mut &counts[..]),
        commit_ms: 1,
    };
    [&header.encode(salt, position)[..], input].concat()
}

/// One frame of a partition: every record it promises can be taken out of it.
pub fn frame_decode(bytes: &[u8]) {
    let salt = Salt::new(LogId(7), Offset(3));
    for bytes in [bytes.to_vec(), framed(bytes, Offset(5), salt, 64)] {
        let Ok((header, decoded, _)) = frame::decode(&bytes, salt, 64) else { continue };
        assert_eq!((header.base, header.end()), (decoded.base(), decoded.end()));
        let mut offset = decoded.base();
        while offset < decoded.end() {
            assert!(decoded.record(offset).is_some(), "{offset}");
            offset = offset.next();
        }
        assert!(decoded.record(offset).is_none());
    }
}

/// A partition's segment: scanned as bytes, and opened as the active segment of a log, twice: what is found the second time is the same.
pub fn recover_scan(bytes: &[u8]) {
    let _ = recover::scan(bytes);
    let _ = recover::scan_with(bytes, LogId(7), Offset(0));
    let header = SegmentHeader { log_id: LogId(7), base: Offset(0), leader_epoch: 0, ownership_epoch: 0, created_ms: 0 };
    let mut segment = header.encode().to_vec();
    let salt = Salt::new(LogId(7), Offset(0));
    let mut input = bytes;
    let mut base = Offset(0);
    while !input.is_empty() {
        let choice = take(&mut input, 1)[0];
        let part = take(&mut input, usize::from(choice));
        if choice & 3 == 0 {
            segment.extend_from_slice(part);
            continue;
        }
        let position = segment.len() as u64;
        let frame = framed(part, base, salt, position);
        if let Ok((header, _, _)) = frame::decode(&frame, salt, position) {
            base = header.end();
        }
        segment.extend_from_slice(&frame);
    }
    let disk = MemDisk::new();
    let dir = Path::new("/log");
    disk.create_dir_all(dir).expect("created");
    let file = disk.open(&dir.join(format!("{:020}.log", 0)), OpenMode::CreateNew).expect("created");
    write_all_at(file.as_ref(), &segment, 0).expect("written");
    file.sync_data().expect("synced");
    let open = || {
        let config = PartitionConfig { segment_bytes_max: 1 << 20, segment_age_ms_max: 0, codec: Codec::None };
        let cache = Arc::new(FrameCache::new(1 << 16));
        PartitionLog::open(Arc::new(disk.clone()), dir, config, cache, &Zero, Offset(0))
    };
    let Ok((log, first)) = open() else { return };
    let (end, keys) = (log.log_end(), log.keys().clone());
    drop(log);
    let (log, second) = open().expect("what was opened once is opened again");
    assert_eq!((log.log_end(), second.marks, log.keys()), (end, first.marks, &keys));
}

/// The bytes of a file.
fn file_bytes(disk: &MemDisk, path: &Path) -> Vec<u8> {
    let file = disk.open(path, OpenMode::Read).expect("opened");
    let mut bytes = vec![0; usize::try_from(file.len().expect("has a length")).expect("small")];
    read_full_at(file.as_ref(), &mut bytes, 0).expect("read");
    bytes
}

/// A log of several segments. The index or the stream table of the first one is the input, with its checksums put right: every offset is
/// answered with its own record, or with an error.
pub fn side_file(bytes: &[u8]) {
    const RECORDS: u64 = 12;
    let mut input = bytes;
    let is_index = take(&mut input, 1).first().is_none_or(|byte| byte & 1 == 0);
    let disk = MemDisk::new();
    let dir = Path::new("/log");
    disk.create_dir_all(dir).expect("created");
    let config = PartitionConfig { segment_bytes_max: 400, segment_age_ms_max: 0, codec: Codec::None };
    let open = || PartitionLog::open(Arc::new(disk.clone()), dir, config, Arc::new(FrameCache::new(1 << 16)), &Zero, Offset(0));
    let (mut log, _) = open().expect("a new log");
    for sequence in 0..RECORDS {
        let records = vec![NewRecord { sequence, id: None, key: None, body: Bytes::from(vec![u8::try_from(sequence).expect("few"); 60]) }];
        let key = StreamKey { stream: StreamId(5), source: 0 };
        let section = Section { key, origin: Origin::default(), is_tracked: true, last: sequence, records };
        let appended = log.append(&[section], sequence, &Marks::new).expect("appended");
        let synced = log.sync(appended).expect("synced");
        let verified = log.verify(synced).expect("verified");
        log.publish(verified);
    }
    drop(log);
    let path = dir.join(format!("{:020}.{}", 0, if is_index { "idx" } else { "streams" }));
    let mended = if is_index { index_of(&file_bytes(&disk, &path), input) } else { guarded_streams(input) };
    disk.remove_file(&path).expect("removed");
    let file = disk.open(&path, OpenMode::CreateNew).expect("created");
    write_all_at(file.as_ref(), &mended, 0).expect("written");
    let Ok((log, _)) = open() else { return };
    assert!(log.log_end() >= Offset(RECORDS), "no offset is given twice");
    let reader = log.reader();
    for offset in 0..RECORDS {
        if let Ok(record) = reader.read(Offset(offset)) {
            assert_eq!((record.offset, record.sequence), (Offset(offset), offset));
        }
    }
    let mut next = Offset(0);
    while let Ok(records) = reader.read_range(next, Offset(RECORDS), 5, 1000) {
        let Some(last) = records.last() else { break };
        assert!(records.iter().all(|record| record.sequence == record.offset.get()));
        next = last.offset.next();
    }
}

/// An index file: what identifies the segment is as it was, the rest is the input.
fn index_of(intact: &[u8], mut input: &[u8]) -> Vec<u8> {
    const IDENTITY_BYTES: usize = 40;
    let mut file = intact[..IDENTITY_BYTES].to_vec();
    for _ in 0..3 {
        file.extend_from_slice(&number(&mut input).to_be_bytes());
    }
    let entries: Vec<u8> =
        std::iter::from_fn(|| (!input.is_empty()).then(|| number(&mut input) & 0xffff)).flat_map(u64::to_be_bytes).collect();
    let entries = &entries[..entries.len() / 16 * 16];
    file.extend_from_slice(&0_u32.to_be_bytes());
    file.extend_from_slice(&u32::try_from(entries.len() / 16).expect("inputs are small").to_be_bytes());
    let crc = crc32c::crc32c(&file);
    file.extend_from_slice(&crc.to_be_bytes());
    file.extend_from_slice(entries);
    file.extend_from_slice(&crc32c::crc32c(entries).to_be_bytes());
    file
}

struct Zero;

impl veena_contract::Entropy for Zero {
    fn next_u64(&self) -> u64 {
        0
    }
}

/// A settle journal: what counts ends inside the file.
pub fn journal_scan(bytes: &[u8]) {
    for bytes in [bytes.to_vec(), grouped(bytes)] {
        if let Ok(scan) = journal::scan(&bytes, 1) {
            assert!(scan.end <= bytes.len() as u64);
            assert!(scan.damaged.iter().all(|range| range.start < range.end));
        }
    }
}

/// A journal file of generation 1 whose groups have the input as bodies.
fn grouped(bytes: &[u8]) -> Vec<u8> {
    let mut input = bytes;
    let mut file = b"VNJR\0\x01\0\0".to_vec();
    file.extend_from_slice(&1_u64.to_be_bytes());
    file.extend_from_slice(&(number(&mut input) & 0xffff).to_be_bytes());
    let crc = crc32c::crc32c(&file);
    file.extend_from_slice(&crc.to_be_bytes());
    while !input.is_empty() {
        let choice = take(&mut input, 1)[0];
        let body = take(&mut input, usize::from(choice));
        let at = file.len() as u64;
        let mut head = b"VNJG".to_vec();
        head.extend_from_slice(&u32::try_from(body.len()).expect("small").to_be_bytes());
        head.extend_from_slice(&u32::from(choice & 7).to_be_bytes());
        head.extend_from_slice(&at.to_be_bytes());
        head.extend_from_slice(&crc32c::crc32c(body).to_be_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&1_u64.to_be_bytes()), &at.to_be_bytes());
        let crc = crc32c::crc32c_append(crc, &head);
        file.extend_from_slice(&head);
        file.extend_from_slice(&crc.to_be_bytes());
        file.extend_from_slice(body);
    }
    file
}

/// A cell: its value is the rest of the file.
pub fn cell_decode(bytes: &[u8]) {
    let mut mended = bytes.to_vec();
    if mended.len() >= 16 {
        mended[..8].copy_from_slice(b"VCEL\0\x01\0\x02");
        let crc = crc32c::crc32c_append(crc32c::crc32c(&mended[..12]), &mended[16..]);
        mended[12..16].copy_from_slice(&crc.to_be_bytes());
    }
    for bytes in [bytes, &mended] {
        if let Ok(value) = cell::decode(bytes, CellKind::WAL_CHECKPOINT) {
            assert_eq!(value, &bytes[16..]);
        }
    }
}

/// An envelope: what is read is written back with the same meaning.
pub fn envelope_decode(bytes: &[u8]) {
    if let Ok(envelope) = Envelope::decode(&Bytes::copy_from_slice(bytes)) {
        assert_eq!(Envelope::decode(&envelope.encode()).as_ref(), Ok(&envelope));
    }
}

/// The file of a stream table, with the input as its content.
fn guarded_streams(bytes: &[u8]) -> Vec<u8> {
    let guarded = [&b"VSTR\0\x01\0\0"[..], bytes].concat();
    [&guarded[..], &crc32c::crc32c(&guarded).to_be_bytes()].concat()
}

/// A stream table: what is read is written back with the same meaning.
pub fn streams_snapshot(bytes: &[u8]) {
    let mended = guarded_streams(bytes);
    for bytes in [bytes, &mended] {
        if let Some(table) = StreamsSnapshot::decode(bytes) {
            assert_eq!(StreamsSnapshot::decode(&table.encode()).as_ref(), Some(&table));
        }
    }
}
