use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use veena_contract::{StreamId, WalSeq};
use veena_storage::disk::mem::{Fault, FaultKind, MemDisk, Op};
use veena_storage::disk::{Disk, OpenMode, write_all_at};
use veena_storage::wal::parked::{HEAD_BYTES, ParkedFile, ParkedOpenError, ParkedWriter, file_name, is_temp_name, parse_name, remove};
use veena_storage::wal::{Destination, RecordKind, WalReadError, WalRecord};

use super::{assert_golden, file_bytes};

const DIR: &str = "/data/parked";
const WAL_ID: u64 = 0x0123_4567_89ab_cdef;
const DESTINATION: Destination = Destination { group: 7, partition: 3 };

fn record(stream: u128, seq: u64, body: &[u8]) -> WalRecord {
    let (stream, kind, body) = (StreamId(stream), RecordKind::Accept, Bytes::copy_from_slice(body));
    WalRecord { seq: WalSeq(seq), stream, kind, destination: DESTINATION, body }
}

fn records() -> Vec<WalRecord> {
    vec![record(1, 10, b"first"), record(1, 12, b"the second record"), record(2, 30, b""), record(2, 31, &[7; 100])]
}

fn disk() -> MemDisk {
    let disk = MemDisk::new();
    disk.create_dir_all(Path::new(DIR)).expect("created");
    ["/", "/data"].iter().for_each(|dir| disk.sync_dir(Path::new(dir)).expect("synced"));
    disk
}

fn writer(disk: &MemDisk, number: u64) -> ParkedWriter {
    ParkedWriter::begin(Arc::new(disk.clone()), Path::new(DIR), WAL_ID, number, DESTINATION).expect("begun")
}

fn written(disk: &MemDisk, records: &[WalRecord]) -> ParkedFile {
    let mut writer = writer(disk, 5);
    for record in records {
        writer.add(record, u32::try_from(record.stream.0).expect("small")).expect("added");
    }
    writer.finish().expect("finished")
}

fn open(disk: &MemDisk, path: &Path) -> Result<ParkedFile, ParkedOpenError> {
    ParkedFile::open(disk, path, WAL_ID)
}

/// All records, in pieces of at most `bytes_max`, and the damage.
fn read_all(disk: &MemDisk, file: &ParkedFile, bytes_max: usize) -> (Vec<WalRecord>, Vec<(u64, u64)>) {
    let (mut records, mut damaged, mut from) = (Vec::new(), Vec::new(), file.start());
    loop {
        let piece = file.read(disk, from, bytes_max).expect("read");
        records.extend(piece.records.into_iter().map(|(record, _)| record));
        damaged.extend(piece.damaged);
        from = piece.next;
        if piece.is_end {
            return (records, damaged);
        }
    }
}

#[test]
fn a_file_of_parked_records_has_the_golden_bytes() {
    let disk = disk();
    let file = written(&disk, &records());
    assert_golden("parked.hex", &file_bytes(&disk, &file.path));
}

#[test]
fn what_was_written_is_read_after_a_power_cut_in_pieces_of_any_size() {
    let disk = disk();
    let file = written(&disk, &records());
    disk.crash_power(&mut || 0);
    let disk = disk.reopen();
    let again = open(&disk, &file.path).expect("opens");
    assert_eq!(again, file);
    assert_eq!((again.records, again.bytes, again.number), (4, 122, 5));
    for bytes_max in [1, 5, 6, 22, 23, 1000] {
        assert_eq!(read_all(&disk, &again, bytes_max), (records(), Vec::new()), "{bytes_max} bytes at once");
    }
    let covers = |stream, seq| again.covers(StreamId(stream), WalSeq(seq));
    assert!(covers(1, 10) && covers(1, 11) && covers(1, 12) && covers(2, 30));
    assert!(!covers(1, 9) && !covers(1, 13) && !covers(1, 30) && !covers(2, 12) && !covers(3, 10));
}

#[test]
fn any_flipped_bit_is_seen_and_costs_at_most_its_own_record() {
    let clean = disk();
    let file = written(&clean, &records());
    let bytes = file_bytes(&clean, &file.path);
    for bit in 0..bytes.len() as u64 * 8 {
        let disk = disk();
        written(&disk, &records());
        disk.flip_bit(&file.path, bit).expect("flipped");
        let found = open(&disk, &file.path).unwrap_or_else(|error| panic!("bit {bit}: {error}"));
        let (left, damaged) = read_all(&disk, &found, 20);
        let lost = records().len() - left.len();
        let mut expected = records();
        expected.retain(|record| left.contains(record));
        assert_eq!(left, expected, "bit {bit}: nothing false, in order");
        let is_in_records = (HEAD_BYTES as u64 * 8..).contains(&bit) && !found.is_head_damaged;
        assert_eq!((lost, damaged.len()), if is_in_records { (1, 1) } else { (0, 0) }, "bit {bit}");
    }
}

#[test]
fn a_file_that_was_cut_tells_what_is_missing() {
    let clean = disk();
    let file = written(&clean, &records());
    let bytes = file_bytes(&clean, &file.path);
    for len in 0..bytes.len() {
        let disk = disk();
        let cut = disk.open(&file.path, OpenMode::CreateNew).expect("created");
        write_all_at(cut.as_ref(), &bytes[..len], 0).expect("written");
        match open(&disk, &file.path) {
            Ok(found) => {
                for bytes_max in [1, 1000] {
                    let (left, damaged) = read_all(&disk, &found, bytes_max);
                    assert!(found.is_head_damaged && left == records()[..left.len()] && !left.is_empty(), "{len} bytes");
                    assert_eq!(damaged.len(), 1, "{len} bytes: {damaged:?}");
                }
            }
            Err(error) => assert!(matches!(error, ParkedOpenError::NotOfThisLog { .. }) && len < HEAD_BYTES + 80, "{len} bytes: {error}"),
        }
    }
}

#[test]
fn a_file_of_another_log_or_another_place_is_refused() {
    let disk = disk();
    let file = written(&disk, &records());
    let refused = |path: &Path, wal_id| matches!(ParkedFile::open(&disk, path, wal_id), Err(ParkedOpenError::NotOfThisLog { .. }));
    assert!(refused(&file.path, WAL_ID + 1));
    for other in [file_name(DESTINATION, 6), file_name(Destination { group: 8, ..DESTINATION }, 5)] {
        let other = Path::new(DIR).join(other);
        disk.rename(&file.path, &other).expect("renamed");
        assert!(refused(&other, WAL_ID), "{}", other.display());
        disk.rename(&other, &file.path).expect("renamed");
    }
    assert!(!refused(&file.path, WAL_ID));
}

#[test]
fn a_newer_version_is_named_and_not_guessed_at() {
    let disk = disk();
    let file = written(&disk, &records());
    let mut bytes = file_bytes(&disk, &file.path);
    bytes[11] = 2;
    let end = usize::try_from(u64::from_be_bytes(bytes[64..72].try_into().expect("eight"))).expect("small");
    let crc = crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..HEAD_BYTES]), &bytes[end..]);
    bytes[12..16].copy_from_slice(&crc.to_be_bytes());
    write_all_at(disk.open(&file.path, OpenMode::ReadWrite).expect("opens").as_ref(), &bytes, 0).expect("written");
    assert!(matches!(open(&disk, &file.path), Err(ParkedOpenError::NewerFormat { version: 2, .. })));
}

#[test]
fn a_record_of_an_unknown_kind_is_waited_for() {
    let disk = disk();
    let file = written(&disk, &records());
    let mut bytes = file_bytes(&disk, &file.path);
    // The second record, written by a version that knows kind 9.
    let at = HEAD_BYTES + 80;
    let body = b"the second record";
    let head = veena_storage::wal::format::RecordHeader {
        seq: WalSeq(12),
        synced_end: WalSeq(13),
        stream: StreamId(1),
        ordinal: 1,
        kind: 9,
        destination: DESTINATION,
        body_len: 0,
        body_crc: 0,
    };
    let mut record = Vec::new();
    head.encode(&mut record, WAL_ID ^ (5 << 32), at as u64, body);
    bytes[at..at + record.len()].copy_from_slice(&record);
    write_all_at(disk.open(&file.path, OpenMode::ReadWrite).expect("opens").as_ref(), &bytes, 0).expect("written");
    let file = open(&disk, &file.path).expect("opens");
    let piece = file.read(&disk, file.start(), 1000).expect("read");
    assert_eq!((piece.records.len(), piece.is_end), (1, false));
    let refused = file.read(&disk, piece.next, 1000).expect_err("not skipped");
    assert!(matches!(refused, WalReadError::UnknownKind { seq: WalSeq(12), kind: 9 }));
}

#[test]
fn a_file_is_whole_or_not_there_whatever_call_fails_or_crashes() {
    let path = Path::new(DIR).join(file_name(DESTINATION, 5));
    for cut_at in 0..10 {
        for kept in 0..2 {
            let disk = disk();
            disk.cut_power_at(cut_at);
            let made = ParkedWriter::begin(Arc::new(disk.clone()), Path::new(DIR), WAL_ID, 5, DESTINATION).and_then(|mut writer| {
                records().iter().try_for_each(|record| writer.add(record, 1))?;
                writer.finish()
            });
            disk.crash_power_in_write(&mut || kept);
            let disk = disk.reopen();
            let is_there = disk.exists(&path).expect("asked");
            assert!(is_there || made.is_err(), "cut at {cut_at}: what was called durable is there");
            if is_there {
                let file = open(&disk, &path).expect("opens");
                assert_eq!(read_all(&disk, &file, 1000), (records(), Vec::new()), "cut at {cut_at}");
            }
        }
    }
    for op in [Op::Create, Op::Write, Op::Sync, Op::Rename, Op::SyncDir] {
        let disk = disk();
        disk.inject(Fault { op, path_contains: DIR.into(), after: 0, times: 1, kind: FaultKind::Eio });
        let made = ParkedWriter::begin(Arc::new(disk.clone()), Path::new(DIR), WAL_ID, 5, DESTINATION)
            .and_then(|mut writer| records().iter().try_for_each(|record| writer.add(record, 1)).and_then(|()| writer.finish()));
        assert!(made.is_err(), "{op:?}");
        let left: Vec<PathBuf> = disk.list(Path::new(DIR)).expect("listed").iter().map(|entry| entry.name.clone().into()).collect();
        assert!(left.is_empty() || op == Op::SyncDir, "{op:?}: {left:?}");
    }
}

#[test]
fn a_removed_file_does_not_come_back() {
    let disk = disk();
    let file = written(&disk, &records());
    remove(&disk, &file.path).expect("removed");
    remove(&disk, &file.path).expect("it is not there");
    disk.crash_power(&mut || 0);
    assert!(!disk.reopen().exists(&file.path).expect("asked"));
}

#[test]
fn names_are_read_as_they_are_written() {
    let name = file_name(Destination { group: 0xabc, partition: 12 }, 345);
    assert_eq!(name, "0000000000000abc-00012.00000345.parked");
    assert_eq!(parse_name(&name), Some((Destination { group: 0xabc, partition: 12 }, 345)));
    assert_eq!(
        parse_name(&file_name(Destination { group: u64::MAX, partition: u32::MAX }, u64::MAX)).map(|(_, number)| number),
        Some(u64::MAX)
    );
    for other in
        ["", ".parked", "0000000000000ABC-00012.00000345.parked", "0000000000000abc-12.345.parked", "readme", &format!("{name}.tmp")]
    {
        assert_eq!(parse_name(other), None, "{other}");
    }
    assert!(is_temp_name(&format!("{name}.tmp")) && !is_temp_name(&name) && !is_temp_name("other.tmp"));
}
