//! Bits flip, headers vanish, files are cut or gone: what is intact is served, what is not is named, nothing false is handed out.

use std::path::Path;

use veena_contract::Offset;
use veena_storage::disk::mem::MemDisk;
use veena_storage::disk::{Disk, OpenMode};
use veena_storage::partition::{LogReader, OpenError, PartitionOpened, ReadError, inspect, verify_sealed};

use super::support::*;

/// Three segments: two sealed, one active with three appends.
fn three_segments() -> Modelled {
    let mut log = Modelled::new(config(1_000));
    for round in 0..4 {
        log.commit(&[section(1, round * 2 + 1, 2, 100), section(2, round + 1, 1, 30)]);
    }
    for round in 4..7 {
        log.commit(&[section(1, round * 2 + 1, 2, 40), advance(3, round)]);
    }
    assert_eq!(segments(&log.disk).len(), 3);
    assert!(frames(&log.disk, &segments(&log.disk)[2]).len() > 1);
    log
}

/// Reads everything; returns the offsets that cannot be read. What can be read is right.
fn unreadable(reader: &LogReader, records: &[Expected]) -> Vec<u64> {
    let mut lost = Vec::new();
    let end = reader.high_watermark();
    assert!(end <= Offset(records.len() as u64));
    let mut offset = reader.oldest();
    while offset < end {
        match reader.read(offset) {
            Ok(stored) => {
                let expected = &records[usize::try_from(offset.get()).expect("small")];
                assert_eq!((stored.sequence, stored.id, &stored.body), (expected.sequence, expected.id, &expected.body));
                offset = offset.next();
            }
            Err(ReadError::Unreadable { next }) => {
                assert!(next > offset && next <= end, "{next} is behind {offset}");
                lost.extend(offset.get()..next.get());
                offset = next;
            }
            Err(error) => panic!("offset {offset}: {error:?}"),
        }
    }
    lost
}

fn file_len(disk: &MemDisk, path: &Path) -> u64 {
    disk.open(path, OpenMode::Read).expect("opens").len().expect("has a length")
}

#[test]
fn one_flipped_bit_in_a_segment_costs_at_most_its_own_frame() {
    let names = segments(&three_segments().disk);
    for (which, path) in names.iter().enumerate() {
        let len = file_len(&three_segments().disk, path);
        for byte in 0..len {
            let mut log = three_segments();
            let frames = frames(&log.disk, path);
            log.disk.flip_bit(path, byte * 8 + byte % 8).expect("flips");
            let opened = log.reopen();
            let hit = frames.iter().any(|(position, len)| (*position..position + len).contains(&byte));
            let is_last = which == 2 && frames.last().is_some_and(|(position, len)| byte >= *position && byte < position + len);
            let lost = unreadable(&log.log.reader(), &log.records);
            if is_last {
                // Nothing behind it proves that it was promised: it is the torn tail.
                assert_eq!((lost.len(), log.log.log_end()), (0, Offset(log.records.len() as u64 - 2)), "byte {byte}");
            } else {
                assert_eq!(log.log.log_end(), Offset(log.records.len() as u64), "byte {byte} of {which}");
                assert_eq!(!lost.is_empty(), hit, "byte {byte} of {which}");
                assert!(lost.len() <= 3, "byte {byte} of {which}: {lost:?}");
            }
            if which == 2 && hit && !is_last {
                assert_eq!(opened.damage.len(), 1);
                assert_eq!((&opened.damage[0].path, opened.damage[0].first.get()), (path, lost[0]));
            }
            if which == 2 && !hit && byte >= 64 {
                continue;
            }
            if byte < 64 {
                assert_eq!(opened.damage.len(), 1, "byte {byte} of {which}: the header is reported");
                assert_eq!(opened.marks, log.marks);
            }
        }
    }
}

#[test]
fn a_damaged_log_goes_on_where_it_stood() {
    let mut log = three_segments();
    let path = segments(&log.disk)[2].clone();
    let (position, _) = frames(&log.disk, &path)[0];
    log.disk.flip_bit(&path, (position + 80) * 8).expect("flips");
    log.reopen();
    let end = log.log.log_end();
    let visible = commit(&mut log.log, &[section(1, 100, 2, 10)], 9_000, &log.marks).expect("commits");
    assert_eq!(visible.first, end);
    log.records.extend(expected(&[section(1, 100, 2, 10)]));
    for _ in 0..2 {
        log.reopen();
        assert_eq!(unreadable(&log.log.reader(), &log.records).len(), 2);
    }
}

#[test]
fn one_flipped_bit_in_a_side_file_changes_nothing() {
    let all: Vec<_> = [names(&three_segments().disk, ".idx"), names(&three_segments().disk, ".streams")].concat();
    assert_eq!(all.len(), 5);
    for path in all {
        for byte in 0..file_len(&three_segments().disk, &path) {
            let mut log = three_segments();
            log.disk.flip_bit(&path, byte * 8 + byte % 8).expect("flips");
            let opened = log.reopen();
            log.check(&opened);
        }
    }
}

#[test]
fn side_files_that_are_missing_or_empty_or_of_another_segment_are_rebuilt() {
    let all: Vec<_> = [names(&three_segments().disk, ".idx"), names(&three_segments().disk, ".streams")].concat();
    for path in &all {
        for case in 0..4 {
            let mut log = three_segments();
            match case {
                0 => log.disk.remove_file(path).expect("removes"),
                1 => log.disk.truncate(path, 0).expect("truncates"),
                2 => log.disk.truncate(path, 1).expect("truncates"),
                _ => {
                    let other = all.iter().find(|other| *other != path && other.extension() == path.extension()).expect("there is one");
                    let bytes = bytes_of(&log.disk, other);
                    log.disk.truncate(path, 0).expect("truncates");
                    overwrite(&log.disk, path, &bytes, 0);
                }
            }
            let opened = log.reopen();
            log.check(&opened);
            let opened = log.reopen();
            log.check(&opened);
        }
    }
    let mut log = three_segments();
    for path in &all {
        log.disk.remove_file(path).expect("removes");
    }
    let opened = log.reopen();
    log.check(&opened);
}

#[test]
fn a_segment_cut_at_any_byte_of_its_last_frames_keeps_all_complete_ones() {
    let path = segments(&three_segments().disk)[2].clone();
    let all = frames(&three_segments().disk, &path);
    let ends: Vec<u64> = std::iter::once(64).chain(all.iter().map(|(position, len)| position + len)).collect();
    let last = *ends.last().expect("has frames");
    for len in 64..=last {
        let mut log = three_segments();
        log.disk.truncate(&path, len).expect("truncates");
        let opened = log.reopen();
        assert_eq!(opened.damage, Vec::new());
        let kept = ends.iter().filter(|end| **end <= len).count() - 1;
        let lost = 2 * (all.len() - kept) as u64;
        assert_eq!(log.log.log_end(), Offset(log.records.len() as u64 - lost), "cut at {len}");
        assert_eq!(unreadable(&log.log.reader(), &log.records), Vec::<u64>::new());
        let marks = opened.marks;
        let visible = commit(&mut log.log, &[section(5, 1, 1, 10)], 9_000, &marks).expect("commits");
        assert_eq!(visible.end, Offset(log.records.len() as u64 - lost + 1));
        let again = log.reopen();
        assert_eq!((again.damage.len(), log.log.log_end()), (0, visible.end));
    }
}

#[test]
fn wild_lengths_in_a_header_neither_stop_the_start_nor_take_memory() {
    let path = segments(&three_segments().disk)[2].clone();
    for frame in 0..3 {
        for field in [16, 20, 24] {
            for value in [0, 1, 0x7fff_ffff, 0xffff_ffff_u32] {
                let mut log = three_segments();
                let all = frames(&log.disk, &path);
                let Some((position, _)) = all.get(frame) else { continue };
                overwrite(&log.disk, &path, &value.to_be_bytes(), position + field);
                log.reopen();
                let lost = unreadable(&log.log.reader(), &log.records);
                assert!(lost.len() <= 2);
            }
        }
    }
}

#[test]
fn a_zeroed_header_with_frames_behind_it_is_not_the_end() {
    let mut log = three_segments();
    let path = segments(&log.disk)[2].clone();
    let (position, _) = frames(&log.disk, &path)[0];
    overwrite(&log.disk, &path, &[0; 72], position);
    let len = file_len(&log.disk, &path);
    let opened = log.reopen();
    assert_eq!(log.log.log_end(), Offset(log.records.len() as u64));
    assert_eq!(unreadable(&log.log.reader(), &log.records).len(), 2);
    assert_eq!((opened.damage.len(), opened.damage[0].at), (1, position));
    assert_eq!(file_len(&log.disk, &path), len, "nothing is cut");
}

#[test]
fn a_range_stops_before_damage_and_goes_on_behind_it() {
    let mut log = three_segments();
    let path = segments(&log.disk)[0].clone();
    let all = frames(&log.disk, &path);
    assert!(all.len() >= 2);
    log.disk.flip_bit(&path, (all[1].0 + 90) * 8).expect("flips");
    log.reopen();
    let reader = log.log.reader();
    assert_eq!(reader.read_range(Offset(0), Offset(9), 100, usize::MAX).expect("reads").len(), 3);
    match reader.read_range(Offset(3), Offset(9), 100, usize::MAX) {
        Err(ReadError::Unreadable { next }) => assert_eq!(next, Offset(6)),
        other => panic!("{other:?}"),
    }
    assert!(reader.read_range(Offset(6), Offset(9), 100, usize::MAX).is_ok());
}

#[test]
fn a_missing_segment_is_reported_and_the_rest_is_served() {
    let mut log = three_segments();
    let names = segments(&log.disk);
    log.disk.remove_file(&names[1]).expect("removes");
    let opened = log.reopen();
    assert_eq!(opened.damage.iter().map(|damage| damage.reason).collect::<Vec<_>>(), ["segment is missing"]);
    let lost = unreadable(&log.log.reader(), &log.records);
    assert_eq!((lost[0], lost[lost.len() - 1] + 1), (opened.damage[0].first.get(), opened.damage[0].next.get()));
    assert_eq!(opened.marks, log.marks, "the stream table is in the segments behind");
}

#[test]
fn a_segment_of_another_log_is_set_aside() {
    let mut log = three_segments();
    let path = segments(&log.disk)[1].clone();
    let other = MemDisk::new();
    let (other_log, _) = veena_storage::partition::PartitionLog::open(
        std::sync::Arc::new(other.clone()),
        &dir(),
        config(1_000),
        cache(),
        &Dice::new(12345),
        Offset(0),
    )
    .expect("opens");
    drop(other_log);
    let bytes = bytes_of(&other, &segments(&other)[0]);
    overwrite(&log.disk, &path, &bytes, 0);
    let opened = log.reopen();
    assert!(opened.damage.iter().any(|damage| damage.reason.contains("another log")));
    assert_eq!(log.log.log_end(), Offset(log.records.len() as u64));
    assert!(!unreadable(&log.log.reader(), &log.records).is_empty());
    assert_eq!(names(&log.disk, ".foreign").len(), 1);
}

#[test]
fn a_frame_inside_a_payload_is_never_served() {
    let mut log = Modelled::new(config(64 * 1024));
    log.commit(&[section(1, 1, 1, 50)]);
    let path = segments(&log.disk)[0].clone();
    let (position, len) = frames(&log.disk, &path)[0];
    let whole = bytes_of(&log.disk, &path);
    let from = usize::try_from(position).expect("small");
    let frame = whole[from..from + usize::try_from(len).expect("small")].to_vec();
    let mut evil = section(1, 2, 1, 0);
    evil.records[0].body = frame.into();
    log.commit(&[evil]);
    log.commit(&[section(1, 3, 1, 50)]);
    let (position, _) = frames(&log.disk, &path)[1];
    overwrite(&log.disk, &path, &[0; 72], position);
    log.reopen();
    assert_eq!(unreadable(&log.log.reader(), &log.records), [1]);
}

#[test]
fn a_last_segment_of_which_nothing_can_be_read_gives_no_offset_twice() {
    let mut log = three_segments();
    let path = segments(&log.disk)[2].clone();
    let len = file_len(&log.disk, &path);
    overwrite(&log.disk, &path, &vec![0xaa; usize::try_from(len).expect("small")], 0);
    let opened = log.reopen();
    assert!(opened.damage.iter().any(|damage| damage.reason == "segment is unreadable"));
    let end = log.log.log_end();
    assert!(end >= Offset(log.records.len() as u64));
    let reader = log.log.reader();
    let first_lost = opened.damage.last().expect("reported").first;
    assert!(matches!(reader.read(first_lost), Err(ReadError::Unreadable { next }) if next == end));
    for offset in 0..first_lost.get() {
        reader.read(Offset(offset)).expect("the sealed segments are served");
    }
    let visible = commit(&mut log.log, &[section(1, 900, 1, 10)], 9_000, &opened.marks).expect("commits");
    assert_eq!(visible.first, end);
    let _: PartitionOpened = log.reopen();
    assert_eq!(log.log.log_end(), end.next());
    assert!(log.log.reader().read(end).is_ok());
}

#[test]
fn a_log_that_no_file_identifies_is_refused_and_left_alone() {
    let mut log = Modelled::new(config(64 * 1024));
    log.commit(&[section(1, 1, 3, 50)]);
    let path = segments(&log.disk)[0].clone();
    overwrite(&log.disk, &path, &[0xff; 64], 0);
    log.disk.remove_file(&names(&log.disk, ".streams")[0]).expect("removes");
    let before = bytes_of(&log.disk, &path);
    assert!(matches!(open(&log.disk, log.config, &cache()), Err(OpenError::Unidentified { .. })));
    assert_eq!(bytes_of(&log.disk, &path), before);
}

#[test]
fn a_newer_format_is_refused_and_left_alone() {
    let mut log = Modelled::new(config(64 * 1024));
    log.commit(&[section(1, 1, 3, 50)]);
    let path = segments(&log.disk)[0].clone();
    let mut header = bytes_of(&log.disk, &path)[..64].to_vec();
    header[5] = 2;
    let crc = crc32c::crc32c(&header[..60]);
    header[60..].copy_from_slice(&crc.to_be_bytes());
    overwrite(&log.disk, &path, &header, 0);
    assert!(matches!(open(&log.disk, log.config, &cache()), Err(OpenError::Unsupported { .. })));
    assert_eq!(segments(&log.disk), [path]);
}

#[test]
fn inspection_names_file_and_place_and_changes_nothing() {
    let log = three_segments();
    let names = segments(&log.disk);
    let sound = inspect(&log.disk, &dir(), Offset(0)).expect("reads");
    assert_eq!((sound.damage.len(), sound.segments.len(), sound.records), (0, 3, log.records.len() as u64));
    let (position, _) = frames(&log.disk, &names[0])[1];
    log.disk.flip_bit(&names[0], (position + 100) * 8).expect("flips");
    log.disk.record_ops(true);
    let report = inspect(&log.disk, &dir(), Offset(0)).expect("reads");
    assert_eq!(report.damage.len(), 1);
    assert_eq!((&report.damage[0].path, report.damage[0].at), (&names[0], position));
    let sealed = verify_sealed(&log.disk, &names[0]).expect("reads").damage;
    assert_eq!((&sealed[0].path, sealed[0].at), (&names[0], position));
    assert_eq!(verify_sealed(&log.disk, &names[1]).expect("reads").damage, Vec::new());
    let changed = log.disk.take_ops().iter().any(|op| {
        use veena_storage::disk::mem::Op;
        !matches!(op.op, Op::Open | Op::Read | Op::List)
    });
    assert!(!changed);
    assert!(verify_sealed(&log.disk, Path::new("/log/else")).is_err());
}
