//! Append, read, roll, close, open.

use std::sync::Arc;

use bytes::Bytes;
use veena_contract::{MessageId, Offset, StreamId, limits};
use veena_storage::disk::mem::{MemDisk, Op};
use veena_storage::disk::real::RealDisk;
use veena_storage::disk::{Disk, OpenMode};
use veena_storage::partition::{AppendError, Codec, Marks, NewRecord, Origin, PartitionConfig, PartitionLog, ReadError, drop_finished};

use super::support::*;

#[test]
fn published_records_and_marks_are_the_same_after_reopening() {
    let mut log = Modelled::new(config(4096));
    for round in 0..40 {
        log.commit(&[section(1, round * 3 + 1, 3, 100), section(2, round + 1, 1, 0), advance(3, round)]);
    }
    assert!(segments(&log.disk).len() > 3, "the log has rolled");
    let (id, last_ms) = (log.log.log_id(), log.log.last_commit_ms());
    check_records(&log.log.reader(), &log.records);
    let opened = log.reopen();
    assert!(!opened.is_new);
    log.check(&opened);
    assert_eq!((log.log.log_id(), log.log.last_commit_ms()), (id, last_ms));
    log.commit(&[section(1, 1000, 5, 50)]);
    let opened = log.reopen();
    log.check(&opened);
}

#[test]
fn compressed_frames_read_back_as_written() {
    let mut log = Modelled::new(PartitionConfig { codec: Codec::Zstd, ..config(1024 * 1024) });
    let mut shrinks = section(1, 1, 100, 0);
    for record in &mut shrinks.records {
        record.body = Bytes::from(format!("the same words again and again {}", record.sequence));
    }
    log.commit(&[shrinks]);
    log.commit(&[section(1, 200, 50, 100)]);
    log.commit(&[section(1, 300, 1, 10)]);
    let (_, scan) = veena_storage::partition::recover::scan(&bytes_of(&log.disk, &segments(&log.disk)[0])).expect("known").expect("header");
    let codecs: Vec<Codec> = scan.frames.iter().map(|frame| frame.header.codec).collect();
    assert_eq!(codecs, [Codec::Zstd, Codec::None, Codec::None], "only what shrinks is compressed");
    check_records(&log.log.reader(), &log.records);
    let opened = log.reopen();
    log.check(&opened);
}

#[test]
fn an_append_larger_than_a_frame_is_split_and_stays_whole() {
    let mut log = Modelled::new(config(64 * 1024 * 1024));
    let count = limits::FRAME_RECORDS_MAX as u64 + 10;
    log.commit(&[section(1, 1, 2, 10), section(2, 1, count, 3), section(3, 1, 1, 1)]);
    log.commit(&[section(4, 1, 6, 1024 * 1024)]);
    assert_eq!(frames(&log.disk, &segments(&log.disk)[0]).len(), 4);
    check_records(&log.log.reader(), &log.records);
    let opened = log.reopen();
    log.check(&opened);
}

#[test]
fn a_record_that_no_frame_can_hold_is_refused_and_the_log_goes_on() {
    let mut log = Modelled::new(config(64 * 1024 * 1024));
    let huge = section(1, 1, 1, limits::FRAME_BYTES_MAX);
    assert!(matches!(log.try_commit(&[huge]), Err(AppendError::Io(_))));
    assert!(!log.log.is_latched());
    log.commit(&[section(1, 1, 1, 10)]);
    let opened = log.reopen();
    log.check(&opened);
}

#[test]
fn an_id_that_is_not_the_streams_own_is_kept() {
    let mut log = Modelled::new(config(1024 * 1024));
    let id = MessageId { stream: StreamId(77), sequence: 12 };
    let mut moved = section(1, 5, 2, 10);
    moved.records[1] = NewRecord { id: Some(id), ..moved.records[1].clone() };
    log.commit(&[moved]);
    assert_eq!(log.log.reader().read(Offset(1)).expect("visible").id, id);
    let opened = log.reopen();
    log.check(&opened);
}

#[test]
fn an_advance_without_records_moves_the_mark_and_no_offset() {
    let mut log = Modelled::new(config(1024 * 1024));
    log.commit(&[section(1, 1, 2, 10)]);
    let visible = log.commit(&[advance(1, 9)]);
    assert_eq!((visible.first, visible.end), (Offset(2), Offset(2)));
    let mark = log.marks[&stream(1)];
    assert_eq!((mark.committed, mark.hash), (9, 0));
    let opened = log.reopen();
    log.check(&opened);
}

#[test]
fn an_untracked_stream_leaves_no_mark() {
    let mut log = Modelled::new(config(1024 * 1024));
    let mut once = section(1, 1, 2, 10);
    once.is_tracked = false;
    log.commit(&[once]);
    let opened = log.reopen();
    assert!(opened.marks.is_empty());
    log.check(&opened);
}

#[test]
fn streams_that_their_source_has_finished_are_gone_after_reopening() {
    let mut log = Modelled::new(config(1024 * 1024));
    let origin = |ordinal, floor| Origin { id: 5, ordinal, floor };
    for (number, ordinal, floor) in [(1, 1, 1), (2, 2, 1), (3, 3, 2)] {
        let mut section = section(number, 1, 1, 10);
        section.origin = origin(ordinal, floor);
        log.commit(&[section]);
    }
    log.commit(&[section(9, 1, 1, 1)]);
    drop_finished(&mut log.marks);
    assert_eq!(log.marks.keys().copied().collect::<Vec<_>>(), [stream(2), stream(3), stream(9)]);
    let opened = log.reopen();
    log.check(&opened);
}

#[test]
fn commit_times_never_step_back() {
    let mut log = Modelled::new(config(1024 * 1024));
    commit(&mut log.log, &[section(1, 1, 1, 10)], 5_000, &Marks::new()).expect("commits");
    let visible = commit(&mut log.log, &[section(1, 2, 1, 10)], 4_000, &Marks::new()).expect("commits");
    assert_eq!(visible.commit_ms, 5_000);
    log.reopen();
    assert_eq!(log.log.last_commit_ms(), 5_000);
}

#[test]
fn nothing_is_visible_before_it_is_published() {
    let mut log = Modelled::new(config(1024 * 1024));
    let reader = log.log.reader();
    let appended = log.log.append(&[section(1, 1, 2, 10)], 1, &Marks::new).expect("appends");
    assert!(matches!(reader.read(Offset(0)), Err(ReadError::NotYet)));
    let synced = log.log.sync(appended).expect("syncs");
    assert!(matches!(reader.read(Offset(0)), Err(ReadError::NotYet)));
    let verified = log.log.verify(synced).expect("verifies");
    assert!(matches!(reader.read(Offset(0)), Err(ReadError::NotYet)));
    assert_eq!((reader.cached(Offset(0)), reader.high_watermark()), (None, Offset(0)));
    log.log.publish(verified);
    assert!(reader.cached(Offset(0)).is_some() && reader.read(Offset(1)).is_ok());
}

#[test]
fn a_reader_of_a_closed_log_answers_closed_and_not_absent() {
    let mut log = Modelled::new(config(1024 * 1024));
    log.commit(&[section(1, 1, 2, 10)]);
    let reader = log.log.reader();
    log.reopen();
    assert!(matches!(reader.read(Offset(0)), Err(ReadError::Closed)));
    assert!(matches!(reader.read(Offset(9)), Err(ReadError::Closed)));
    assert_eq!(reader.cached(Offset(0)), None);
    assert!(log.log.reader().read(Offset(0)).is_ok());
}

#[test]
fn cached_records_are_read_without_touching_the_disk() {
    let mut log = Modelled::new(config(1024 * 1024));
    log.commit(&[section(1, 1, 500, 20)]);
    log.disk.record_ops(true);
    let reader = log.log.reader();
    for offset in 0..500 {
        assert_eq!(reader.cached(Offset(offset)).expect("in the cache").body, log.records[usize::try_from(offset).expect("small")].body);
    }
    assert_eq!(log.disk.take_ops(), Vec::new());
}

#[test]
fn a_cold_read_brings_its_neighbours_into_the_cache() {
    let mut log = Modelled::new(config(1024 * 1024));
    for round in 0..50 {
        log.commit(&[section(1, round + 1, 1, 20)]);
    }
    log.reopen();
    let reader = log.log.reader();
    assert_eq!(reader.cached(Offset(10)), None);
    reader.read(Offset(10)).expect("readable");
    log.disk.record_ops(true);
    check_records(&reader, &log.records);
    assert_eq!(log.disk.take_ops(), Vec::new(), "one block was read, all of it is kept");
}

#[test]
fn the_cache_stays_within_its_bound() {
    let mut log = Modelled::new(config(1024 * 1024));
    let small = Arc::new(veena_storage::partition::FrameCache::new(8 * 1024));
    log.cache = Arc::clone(&small);
    log.reopen_warm();
    for round in 0..100 {
        log.commit(&[section(1, round + 1, 1, 500)]);
        assert!(small.bytes() <= 8 * 1024);
    }
    assert!(small.bytes() > 4 * 1024);
    check_records(&log.log.reader(), &log.records);
    assert!(small.bytes() <= 8 * 1024);
}

#[test]
fn a_range_is_contiguous_and_bounded() {
    let mut log = Modelled::new(config(2048));
    for round in 0..30 {
        log.commit(&[section(1, round * 2 + 1, 2, 100)]);
    }
    log.reopen();
    let reader = log.log.reader();
    let offsets = |records: Vec<veena_storage::partition::StoredRecord>| records.iter().map(|r| r.offset.get()).collect::<Vec<_>>();
    assert_eq!(offsets(reader.read_range(Offset(3), Offset(50), 20, usize::MAX).expect("reads")), (3..23).collect::<Vec<_>>());
    assert_eq!(offsets(reader.read_range(Offset(3), Offset(50), 20, 250).expect("reads")), [3, 4]);
    assert_eq!(offsets(reader.read_range(Offset(3), Offset(50), 20, 1).expect("reads")), [3], "the first is always taken");
    assert_eq!(offsets(reader.read_range(Offset(58), Offset(500), 20, usize::MAX).expect("reads")), [58, 59]);
    assert!(matches!(reader.read_range(Offset(60), Offset(70), 20, 100), Err(ReadError::NotYet)));
}

#[test]
fn opening_reads_no_sealed_segment_but_its_header() {
    let mut log = Modelled::new(config(8 * 1024));
    for round in 0..100 {
        log.commit(&[section(1, round + 1, 1, 900)]);
    }
    let sealed: Vec<_> = segments(&log.disk);
    let sealed = &sealed[..sealed.len() - 1];
    assert!(sealed.len() > 5);
    log.disk.record_ops(true);
    let opened = log.reopen();
    let ops = log.disk.take_ops();
    for path in sealed {
        assert_eq!(ops.iter().filter(|op| op.op == Op::Read && &op.path == path).count(), 1, "{}", path.display());
    }
    log.check(&opened);
}

#[test]
fn few_sealed_segments_are_open_at_once_and_all_are_read() {
    let mut log = Modelled::new(config(2 * 1024));
    for round in 0..60 {
        log.commit(&[section(1, round + 1, 1, 900)]);
    }
    log.reopen();
    for _ in 0..2 {
        log.cache = cache();
        check_records(&log.log.reader(), &log.records);
    }
}

#[test]
fn foreign_files_are_neither_read_nor_removed() {
    let mut log = Modelled::new(config(2048));
    for round in 0..20 {
        log.commit(&[section(1, round + 1, 1, 300)]);
    }
    let names = ["segment.tmp", "00000000000000000003.bad", "lost+found", "00000000000000000000.log~", "1.log"];
    for name in names {
        log.disk.open(&dir().join(name), OpenMode::CreateNew).expect("creates");
    }
    log.disk.create_dir_all(&dir().join("00000000000000000009.log")).expect("creates");
    let opened = log.reopen();
    log.check(&opened);
    for name in names {
        assert!(log.disk.exists(&dir().join(name)).expect("known"), "{name}");
    }
}

#[test]
fn a_segment_without_records_is_replaced_under_its_own_name() {
    let mut log = Modelled::new(config(2048));
    for round in 0..200 {
        log.commit(&[advance(1, round), advance(2, round * 2)]);
    }
    assert_eq!(segments(&log.disk).len(), 1);
    let opened = log.reopen();
    log.check(&opened);
    log.commit(&[section(1, 1000, 3, 10)]);
    let opened = log.reopen();
    log.check(&opened);
}

#[test]
fn an_old_segment_is_sealed_by_the_next_append() {
    let mut log = Modelled::new(PartitionConfig { segment_age_ms_max: 1_000, ..config(1024 * 1024) });
    log.commit(&[section(1, 1, 1, 10)]);
    log.commit(&[section(1, 2, 1, 10)]);
    assert_eq!(segments(&log.disk).len(), 1);
    log.now_ms += 1_000;
    log.commit(&[section(1, 3, 1, 10)]);
    assert_eq!(segments(&log.disk).len(), 2);
    let opened = log.reopen();
    log.check(&opened);
}

#[test]
fn a_full_disk_takes_nothing_and_recovers_alone() {
    let disk = MemDisk::new();
    let mut log = Modelled::on(disk.clone(), config(64 * 1024));
    log.commit(&[section(1, 1, 1, 100)]);
    for room in [0, 1, 100, 5_000, 9_999] {
        let used = disk.space(&dir()).map(|_| disk.list(&dir()).expect("lists").iter().map(|entry| entry.len).sum::<u64>()).expect("known");
        disk.set_capacity(used + room);
        let sequence = log.records.len() as u64 + 1;
        assert!(matches!(log.try_commit(&[section(1, sequence, 1, 40_000)]), Err(AppendError::NoSpace)), "room for {room}");
        assert!(!log.log.is_latched());
        check_records(&log.log.reader(), &log.records);
        disk.set_capacity(u64::MAX);
        log.commit(&[section(1, sequence, 1, 200)]);
    }
    let opened = log.reopen();
    log.check(&opened);
}

#[test]
fn a_full_disk_while_a_segment_is_started_takes_nothing_and_recovers_alone() {
    let disk = MemDisk::new();
    let mut log = Modelled::on(disk.clone(), config(8 * 1024));
    let mut refused = 0;
    for sequence in 1..200 {
        let used: u64 = disk.list(&dir()).expect("lists").iter().map(|entry| entry.len).sum();
        disk.set_capacity(used + sequence % 700);
        let sections = [section(1, sequence, 1, 700)];
        match log.try_commit(&sections) {
            Ok(_) => {}
            Err(AppendError::NoSpace) => {
                refused += 1;
                disk.set_capacity(u64::MAX);
                log.commit(&sections);
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    assert!(refused > 20);
    disk.set_capacity(u64::MAX);
    let opened = log.reopen();
    log.check(&opened);
}

#[test]
fn a_log_on_a_real_disk_is_the_same_after_reopening() {
    let home = tempfile::tempdir().expect("a directory");
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let at = home.path().join("topic").join("0");
    let config = PartitionConfig { codec: Codec::Zstd, ..config(20_000) };
    let mut records = Vec::new();
    let mut marks = Marks::new();
    for life in 0..3 {
        let (mut log, opened) = PartitionLog::open(Arc::clone(&disk), &at, config, cache(), &Dice::new(1), Offset(0)).expect("opens");
        assert_eq!((opened.is_new, opened.damage.len(), &opened.marks), (life == 0, 0, &marks));
        check_records(&log.reader(), &records);
        for round in 0..30 {
            let sections = [section(1, life * 1_000 + round * 5, 5, 300), advance(2, life * 100 + round)];
            commit(&mut log, &sections, 1_000 + life * 100 + round, &marks).expect("commits");
            records.extend(expected(&sections));
            mark(&mut marks, &sections);
        }
        check_records(&log.reader(), &records);
    }
    let (mut log, _) = PartitionLog::open(Arc::clone(&disk), &at, config, cache(), &Dice::new(1), Offset(0)).expect("opens");
    let retained = log.retain(1_250, 100, 0).expect("retains");
    assert!(retained.segments > 3 && retained.oldest > Offset(100));
    check_records(&log.reader(), &records);
}
