//! Files of a node that does not run: damage is named by file and place, derived parts are made again, nothing is cut.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use veena_contract::{Offset, StreamId, WalSeq};
use veena_storage::disk::mem::MemDisk;
use veena_storage::disk::{Disk, OpenMode};
use veena_storage::journal::{Journal, JournalConfig};
use veena_storage::offline::{self, FileKind, Finding, Span, Survey};
use veena_storage::partition::{self, Codec, FrameCache, Marks, NewRecord, Origin, PartitionConfig, PartitionLog, Section, StreamKey};
use veena_storage::wal::parked::ParkedWriter;
use veena_storage::wal::{self, Destination, RecordKind, Wal, WalConfig, WalEntry, WalOpenError, WalRecord};

use crate::support::Seeded;

const DATA: &str = "/data";
const PARTITION: &str = "/data/topics/default/1/p00000";

const WAL: WalConfig = WalConfig {
    segment_bytes: 8192,
    rotate_bytes_min: 6000,
    spare_max: 2,
    staged_bytes_max: 1024 * 1024,
    undispatched_bytes_max: 16 * 1024 * 1024,
};

fn ingress() -> PathBuf {
    Path::new(DATA).join("ingress")
}

/// A node's directory: a WAL of several segments, a settle journal of several groups, a partition of several segments.
fn node() -> MemDisk {
    let disk = MemDisk::new();
    disk.create_dir_all(Path::new(PARTITION)).expect("created");
    write_wal(&disk);
    write_parked(&disk);
    let (mut journal, _) = Journal::open(Arc::new(disk.clone()), &Path::new(DATA).join("settle"), JournalConfig::default()).expect("opens");
    for key in 0..4_u8 {
        journal.append(&[(1, &[key], Some(b"settled"))]).expect("appended");
        journal.sync().expect("synced");
    }
    write_partition(&disk);
    disk
}

fn write_wal(disk: &MemDisk) {
    let (wal, _) = Wal::open(Arc::new(disk.clone()), &ingress(), WAL, &Seeded::new(1)).expect("opens");
    wal.start_by_hand(Arc::new(|_| {}));
    for number in 0..12_u8 {
        let destination = Destination { group: 1, partition: 0 };
        let entry = WalEntry { kind: RecordKind::Accept, destination, body: Bytes::from(vec![number; 1000]) };
        let mut staged = wal.stage([entry].into_iter().collect()).expect("staged");
        wal.flush_now();
        staged.try_outcome().expect("flushed").expect("synced");
    }
    wal.close();
}

/// Two records of the WAL, set aside.
fn write_parked(disk: &MemDisk) {
    let dir = Path::new(DATA).join("parked");
    disk.create_dir_all(&dir).expect("created");
    let wal_id =
        wal::verify(&(Arc::new(disk.clone()) as Arc<dyn Disk>), &Path::new(DATA).join("ingress"), &mut |_| {}).expect("read").wal_id;
    let destination = Destination { group: 1, partition: 0 };
    let mut writer = ParkedWriter::begin(Arc::new(disk.clone()), &dir, wal_id.expect("has an identity"), 1, destination).expect("begun");
    for seq in 3..5 {
        let (stream, kind, body) = (StreamId(9), RecordKind::Accept, Bytes::from(vec![6; 500]));
        writer.add(&WalRecord { seq: WalSeq(seq), stream, kind, destination, body }, 1).expect("added");
    }
    writer.finish().expect("finished");
}

fn write_partition(disk: &MemDisk) {
    let config = PartitionConfig { segment_bytes_max: 1000, segment_age_ms_max: 0, codec: Codec::None };
    let cache = Arc::new(FrameCache::new(1024 * 1024));
    let (mut log, _) =
        PartitionLog::open(Arc::new(disk.clone()), Path::new(PARTITION), config, cache, &Seeded::new(2), Offset(0)).expect("opens");
    let mut marks = Marks::new();
    for sequence in 1..9_u64 {
        let key = StreamKey { stream: StreamId(9), source: 0 };
        let record = NewRecord { sequence, id: None, key: None, body: Bytes::from(vec![7; 300]) };
        let section = Section { key, origin: Origin::default(), is_tracked: true, last: sequence, records: vec![record] };
        let appended = log.append(std::slice::from_ref(&section), 1_000 + sequence, &|| marks.clone()).expect("appended");
        let synced = log.sync(appended).expect("synced");
        let verified = log.verify(synced).expect("verified");
        log.publish(verified);
        marks.insert(key, partition::Mark::after(&section, marks.get(&key)));
    }
}

fn survey(disk: &MemDisk) -> Survey {
    survey_promised(disk, Offset(0))
}

/// A survey that knows up to where the partition was published.
fn survey_promised(disk: &MemDisk, promised: Offset) -> Survey {
    let found = offline::find(disk, Path::new(DATA)).expect("ours");
    let mut told = 0;
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let survey = offline::survey(&disk, &found, &|_| promised, &mut |bytes| told += bytes).expect("read");
    assert!(told > 0 && told <= found.bytes, "{told} of {}", found.bytes);
    survey
}

fn files(survey: &Survey, kind: FileKind) -> Vec<PathBuf> {
    survey.files.iter().filter(|file| file.kind == kind).map(|file| file.path.clone()).collect()
}

fn place_of(disk: &MemDisk, path: &Path, wanted: &[u8]) -> u64 {
    let bytes = bytes_of(disk, path);
    let at = bytes.windows(wanted.len()).position(|window| window == wanted).expect("it is there");
    u64::try_from(at).expect("small")
}

fn bytes_of(disk: &MemDisk, path: &Path) -> Vec<u8> {
    let file = disk.open(path, OpenMode::Read).expect("opens");
    let mut bytes = vec![0; usize::try_from(file.len().expect("a length")).expect("small")];
    assert_eq!(file.read_at(&mut bytes, 0).expect("reads"), bytes.len());
    bytes
}

/// The one finding, which holds the flipped byte.
fn only(survey: &Survey, path: &Path, byte: u64) -> Finding {
    assert_eq!(survey.findings.len(), 1, "{:?}", survey.findings);
    let finding = survey.findings[0].clone();
    assert_eq!(finding.path, path);
    assert!((finding.at..finding.end).contains(&byte), "{finding:?} does not hold byte {byte}");
    finding
}

#[test]
fn a_clean_directory_is_clean() {
    let survey = survey(&node());
    assert_eq!(survey.findings, Vec::new());
    assert_eq!(survey.derived, Vec::new());
    assert!(files(&survey, FileKind::Wal).len() > 1);
    assert_eq!(files(&survey, FileKind::Settle).len(), 1);
    assert!(files(&survey, FileKind::Partition).len() > 2);
    let of = |kind| survey.files.iter().filter(|file| file.kind == kind).map(|file| file.records).sum::<u64>();
    assert_eq!((of(FileKind::Wal), of(FileKind::Settle), of(FileKind::Partition)), (12, 4, 8));
    assert_eq!(of(FileKind::Parked), 2);
}

#[test]
fn a_flipped_bit_in_a_file_of_parked_records_is_named() {
    let disk = node();
    let path = files(&survey(&disk), FileKind::Parked)[0].clone();
    let byte = place_of(&disk, &path, &[6; 500]) + 100;
    disk.flip_bit(&path, byte * 8 + 3).expect("flipped");
    only(&survey(&disk), &path, byte);
    let disk = node();
    disk.flip_bit(&path, 20 * 8).expect("flipped");
    only(&survey(&disk), &path, 20);
}

#[test]
fn a_flipped_bit_in_a_sealed_partition_segment_is_named() {
    let disk = node();
    let path = files(&survey(&disk), FileKind::Partition)[1].clone();
    let byte = place_of(&disk, &path, &[7; 300]) + 100;
    disk.flip_bit(&path, byte * 8 + 3).expect("flipped");
    let finding = only(&survey(&disk), &path, byte);
    let Span::Offsets(first, next) = finding.span else { panic!("{finding:?}") };
    assert_eq!(next.0 - first.0, 1, "one record is concerned: {finding:?}");
}

#[test]
fn a_flipped_bit_in_a_wal_segment_is_named() {
    let clean = node();
    for path in &files(&survey(&clean), FileKind::Wal)[..2] {
        let disk = node();
        // In the body of its first record, with others behind it.
        let byte = 4096 + 72 + 10;
        disk.flip_bit(path, byte * 8).expect("flipped");
        let finding = only(&survey(&disk), path, byte);
        assert!(matches!(finding.span, Span::Sequences(first, end) if end.0 - first.0 == 1), "{finding:?}");
    }
}

#[test]
fn a_wal_segment_that_is_missing_is_named() {
    let disk = node();
    let path = files(&survey(&disk), FileKind::Wal)[1].clone();
    disk.remove_file(&path).expect("removed");
    let findings = survey(&disk).findings;
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].path, path);
    assert!(matches!(findings[0].span, Span::Sequences(first, end) if first < end && first > WalSeq(0)), "{findings:?}");
}

/// A WAL of several segments with a checkpoint at `below`.
fn checkpointed(below: u64) -> MemDisk {
    let disk = node();
    let (wal, _) = Wal::open(Arc::new(disk.clone()), &ingress(), WAL, &Seeded::new(3)).expect("opens");
    wal.checkpoint(WalSeq(below)).expect("moved");
    wal.close();
    disk
}

#[test]
fn a_wal_is_named_as_one_without_its_newest_segments_exactly_when_a_node_does_not_start_on_it() {
    let (mut refused, mut opened) = (0, 0);
    for below in [1, 4, 9, 12] {
        for gone in 0.. {
            let disk = checkpointed(below);
            let segments = files(&survey(&disk), FileKind::Wal);
            if gone > segments.len() {
                break;
            }
            segments.iter().rev().take(gone).for_each(|path| disk.remove_file(path).expect("removed"));
            let survey = survey(&disk);
            let again = Wal::open(Arc::new(disk.reopen()), &ingress(), WAL, &Seeded::new(4));
            let is_refused = matches!(&again, Err(WalOpenError::CheckpointBeyondEnd { .. }));
            assert_eq!(survey.lost_end.is_some(), is_refused, "checkpoint {below}, {gone} segments gone: {survey:?}");
            let Some(lost) = survey.lost_end else {
                opened += 1;
                continue;
            };
            refused += 1;
            assert_eq!((lost.checkpoint, lost.durable_end), (WalSeq(below), WalSeq(12)));
            assert!(lost.end < lost.checkpoint);
            let named = survey.findings.iter().filter(|finding| finding.path.starts_with(ingress())).count();
            assert_eq!(named, 1, "{:?}", survey.findings);
        }
    }
    assert!(refused > 0 && opened > 0, "{refused} refused, {opened} opened");
}

#[test]
fn a_wal_without_its_newest_segments_is_set_aside_whole_and_a_new_one_begins() {
    let disk = checkpointed(12);
    disk.remove_file(files(&survey(&disk), FileKind::Wal).last().expect("a segment")).expect("removed");
    let before: Vec<_> = disk.list(&ingress()).expect("listed");
    let aside = offline::set_wal_aside(&disk, &ingress(), Path::new("/data/quarantine"), 17, false).expect("set aside");
    assert_eq!(aside, Path::new("/data/quarantine/0000000000017-ingress"));
    assert_eq!(disk.list(&aside).expect("listed"), before, "nothing of it is changed");
    assert_eq!((survey(&disk).findings, survey(&disk).lost_end), (Vec::new(), None));
    let (wal, opened) = Wal::open(Arc::new(disk.clone()), &ingress(), WAL, &Seeded::new(4)).expect("opens");
    assert_eq!((opened.end, opened.checkpoint, opened.streams), (WalSeq(0), WalSeq(0), Vec::new()));
    assert_eq!(opened.damage, Vec::new());
    wal.close();
}

#[test]
fn a_flipped_bit_in_the_settle_journal_is_named() {
    let disk = node();
    let path = files(&survey(&disk), FileKind::Settle)[0].clone();
    let byte = place_of(&disk, &path, b"settled") + 2;
    disk.flip_bit(&path, byte * 8).expect("flipped");
    only(&survey(&disk), &path, byte);
}

#[test]
fn a_torn_tail_is_no_damage() {
    let disk = node();
    let clean = survey(&disk);
    let path = files(&clean, FileKind::Partition).pop().expect("a segment");
    // All segments hold as much; the last is longer by what is allocated ahead.
    let full = clean.files.iter().find(|file| file.kind == FileKind::Partition).expect("a segment").bytes;
    disk.truncate(&path, full - 5).expect("cut");
    let survey = survey(&disk);
    assert_eq!(survey.findings, Vec::new());
    assert!(survey.files.iter().any(|file| file.path == path && file.torn_at.is_some()), "{survey:?}");
}

#[test]
fn a_flipped_bit_in_the_last_frame_is_named_once_its_end_is_known() {
    let disk = node();
    let path = files(&survey(&disk), FileKind::Partition).pop().expect("a segment");
    let bytes = bytes_of(&disk, &path);
    let at = bytes.windows(300).rposition(|window| window == [7; 300]).expect("the last record");
    let byte = u64::try_from(at).expect("small") + 17;
    disk.flip_bit(&path, byte * 8).expect("flipped");
    assert_eq!(survey(&disk).findings, Vec::new(), "nobody says that it was published");
    let finding = only(&survey_promised(&disk, Offset(8)), &path, byte);
    assert_eq!(finding.span, Span::Offsets(Offset(7), Offset(8)));
    assert!(survey_promised(&disk, Offset(8)).files.iter().all(|file| file.torn_at.is_none()));
    assert_eq!(survey_promised(&disk, Offset(7)).findings, Vec::new(), "it lies behind what was published");
}

#[test]
fn last_segments_that_are_missing_are_named_once_the_end_is_known() {
    let disk = node();
    let paths = files(&survey(&disk), FileKind::Partition);
    for path in paths.iter().rev() {
        disk.remove_file(path).expect("removed");
        let findings = survey_promised(&disk, Offset(8)).findings;
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(matches!(findings[0].span, Span::Offsets(first, Offset(8)) if first < Offset(8)), "{findings:?}");
    }
}

#[test]
fn derived_parts_are_made_again_as_they_were() {
    let clean = node();
    let names: Vec<String> = clean.list(Path::new(PARTITION)).expect("listed").into_iter().map(|entry| entry.name).collect();
    let sides = names.iter().filter(|name| name.ends_with(".idx") || name.ends_with(".streams"));
    let mut made = 0;
    for name in sides {
        let path = Path::new(PARTITION).join(name);
        for case in 0..3 {
            let disk = node();
            match case {
                0 => disk.remove_file(&path).expect("removed"),
                1 => disk.truncate(&path, 1).expect("cut"),
                _ => disk.flip_bit(&path, 8 * 40).expect("flipped"),
            }
            let before = survey(&disk);
            assert_eq!(before.derived.len(), 1, "{name}: {before:?}");
            assert_eq!(before.derived[0].part.path, path);
            assert_eq!(before.findings.len(), usize::from(case > 0), "a missing derived file is no damage: {before:?}");
            offline::rebuild(&disk, &before.derived[0]).expect("made again");
            let after = survey(&disk);
            assert_eq!((after.findings, after.derived), (Vec::new(), Vec::new()), "{name}");
            assert_eq!(bytes_of(&disk, &path), bytes_of(&clean, &path), "{name} is as it was");
            made += 1;
        }
    }
    assert!(made >= 12, "{made} parts were made again");
}

#[test]
fn a_segment_header_is_made_again_and_the_records_stay() {
    let disk = node();
    let path = files(&survey(&disk), FileKind::Partition)[1].clone();
    disk.flip_bit(&path, 8 * 20).expect("flipped");
    let before = survey(&disk);
    only(&before, &path, 20);
    assert_eq!(before.derived.len(), 1, "{:?}", before.derived);
    offline::rebuild(&disk, &before.derived[0]).expect("made again");
    let after = survey(&disk);
    assert_eq!((after.findings, after.derived), (Vec::new(), Vec::new()));
    assert_eq!(after.files.iter().filter(|file| file.kind == FileKind::Partition).map(|file| file.records).sum::<u64>(), 8);
}

#[test]
fn a_copy_of_a_damaged_range_is_kept_and_the_file_is_left_as_it_is() {
    let disk = node();
    let path = files(&survey(&disk), FileKind::Partition)[0].clone();
    let byte = place_of(&disk, &path, &[7; 300]) + 100;
    disk.flip_bit(&path, byte * 8).expect("flipped");
    let before = bytes_of(&disk, &path);
    let finding = only(&survey(&disk), &path, byte);
    let kept = offline::keep_copy(&disk, Path::new("/data/quarantine"), &finding, 17).expect("copied").expect("there is something");
    assert!(kept.starts_with("/data/quarantine/0000000000017-damage"), "{}", kept.display());
    let range = usize::try_from(finding.at).expect("small")..usize::try_from(finding.end).expect("small");
    assert_eq!(bytes_of(&disk, &kept), before[range]);
    assert_eq!(bytes_of(&disk, &path), before);
    let again = offline::keep_copy(&disk, Path::new("/data/quarantine"), &finding, 17).expect("copied again");
    assert_eq!(again, Some(kept));
}

#[test]
fn one_partition_is_looked_at_alone_and_a_foreign_directory_is_refused() {
    let disk = node();
    let found = offline::find(&disk, Path::new(PARTITION)).expect("a partition");
    assert_eq!((found.wal, found.settle, found.partitions), (None, None, vec![PathBuf::from(PARTITION)]));
    assert!(matches!(offline::find(&disk, Path::new("/data/settle")), Err(offline::OfflineError::NotOurs { .. })));
    let first = partition::inspect(&disk, Path::new(PARTITION), Offset(0)).expect("read").segments[0].base;
    assert_eq!(first, Offset(0));
}
