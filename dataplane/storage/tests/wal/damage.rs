use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use veena_contract::WalSeq;
use veena_storage::cell::{self, CellKind};
use veena_storage::disk::mem::MemDisk;
use veena_storage::disk::{Disk, OpenMode};
use veena_storage::wal::format::{RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, record_bytes};
use veena_storage::wal::{DamageKind, Destination, RecordKind, WalEntries, WalEntry, WalOpenError, verify};

use super::{DIR, file_bytes, overwrite, rig, segments, text, try_rig};

fn checkpoint_path() -> std::path::PathBuf {
    Path::new(DIR).join("checkpoint")
}

/// A log of one segment: ten groups of one record.
fn ten_records(disk: &MemDisk) {
    let log = rig(disk, 1);
    for index in 0..10 {
        log.append(&[&format!("record {index} with some body.")]).expect("durable");
    }
    log.wal.close();
}

#[test]
fn any_flipped_bit_is_noticed_and_the_neighbours_survive() {
    let base = MemDisk::new();
    ten_records(&base);
    let bytes = file_bytes(&base, &segments(&base)[0]);
    let size = record_bytes("record 0 with some body.".len());
    let flips = (0..96 * 8).step_by(7).chain((SEGMENT_HEADER_BYTES * 8..(SEGMENT_HEADER_BYTES + 10 * size) * 8).step_by(11));
    for bit in flips {
        let disk = MemDisk::new();
        ten_records(&disk);
        let path = segments(&disk)[0].clone();
        assert_eq!(file_bytes(&disk, &path), bytes, "the log repeats");
        disk.flip_bit(&path, bit as u64).expect("flipped");
        let log = rig(&disk, 2);
        let found: BTreeSet<String> = log.bodies().into_iter().collect();
        let hit = (bit / 8).checked_sub(SEGMENT_HEADER_BYTES).map(|at| at / size);
        let expected: BTreeSet<String> =
            (0..10).filter(|index| Some(*index) != hit).map(|i| format!("record {i} with some body.")).collect();
        assert_eq!(found, expected, "bit {bit}");
        let (_, gaps) = log.backlog();
        match hit {
            None => assert!(
                log.opened.damage.iter().any(|damage| damage.kind == DamageKind::SegmentHeader || damage.kind == DamageKind::IdCell)
            ),
            Some(9) => assert!(gaps.is_empty(), "the last group cannot be told from a torn one"),
            Some(index) => {
                let damage = log.opened.damage.first().expect("reported");
                let at = (SEGMENT_HEADER_BYTES + index * size) as u64;
                assert_eq!((damage.kind, &damage.path, damage.offset, damage.bytes), (DamageKind::Records, &path, at, size as u64));
                assert_eq!((damage.first, damage.end), (WalSeq(index as u64), WalSeq(index as u64 + 1)));
                assert_eq!(gaps.iter().map(|gap| (gap.first, gap.end)).collect::<Vec<_>>(), [(damage.first, damage.end)]);
                assert_eq!(gaps[0].stream, log.opened.streams[0].stream);
                let is_header_intact = (bit / 8 - SEGMENT_HEADER_BYTES) % size >= RECORD_HEADER_BYTES;
                assert_eq!(gaps[0].destination, is_header_intact.then_some(Destination { group: 7, partition: 3 }));
            }
        }
        // what is appended next disturbs nobody
        log.append(&["afterwards"]).expect("durable");
        log.wal.close();
        let log = rig(&disk, 3);
        let mut bodies = log.bodies();
        assert_eq!(bodies.pop().as_deref(), Some("afterwards"), "bit {bit}");
        assert_eq!(bodies.into_iter().collect::<BTreeSet<_>>(), expected, "bit {bit}");
    }
}

#[test]
fn damaged_bodies_in_a_row_are_told_by_where_they_were_to_go() {
    let disk = MemDisk::new();
    let log = rig(&disk, 1);
    let to = |partition| Destination { group: 7, partition };
    for partition in [0, 1, 2, 1, 1, 2, 0] {
        let entry = WalEntry { kind: RecordKind::Accept, destination: to(partition), body: Bytes::from_static(b"eight by") };
        let mut staged = log.wal.stage(WalEntries::from_iter([entry])).expect("staged");
        log.wal.flush_now();
        staged.try_outcome().expect("flushed").expect("durable");
    }
    log.wal.close();
    let path = segments(&disk)[0].clone();
    let place = |seq: usize| SEGMENT_HEADER_BYTES + seq * record_bytes(8);
    for seq in 1..=5 {
        // Of the fourth record nothing is left.
        let byte = if seq == 4 { place(seq) } else { place(seq) + RECORD_HEADER_BYTES };
        disk.flip_bit(&path, byte as u64 * 8).expect("flipped");
    }
    let (records, gaps) = rig(&disk, 2).backlog();
    assert_eq!(records.iter().map(|record| record.seq.0).collect::<Vec<_>>(), [0, 6]);
    let told: Vec<_> = gaps.iter().map(|gap| (gap.destination, gap.first.0, gap.end.0)).collect();
    assert_eq!(told, [(Some(to(1)), 1, 4), (Some(to(2)), 2, 6), (None, 4, 5)]);
}

#[test]
fn a_last_write_torn_at_any_byte_costs_nothing_that_was_promised() {
    let base = MemDisk::new();
    ten_records(&base);
    let bytes = file_bytes(&base, &segments(&base)[0]);
    let size = record_bytes("record 0 with some body.".len());
    let last = SEGMENT_HEADER_BYTES + 7 * size;
    for kept in last..=SEGMENT_HEADER_BYTES + 10 * size {
        let disk = MemDisk::new();
        ten_records(&disk);
        let path = segments(&disk)[0].clone();
        overwrite(&disk, &path, &vec![0; bytes.len() - kept], kept as u64);
        let log = rig(&disk, 2);
        let count = (kept - SEGMENT_HEADER_BYTES) / size;
        assert_eq!(log.bodies().len(), count, "{kept} bytes");
        assert!(log.opened.damage.is_empty() && log.backlog().1.is_empty(), "a torn tail is not damage");
        let range = log.append(&["next"]).expect("durable");
        assert_eq!(range.first, WalSeq(count as u64));
        log.wal.close();
        assert_eq!(rig(&disk, 3).bodies().len(), count + 1, "{kept} bytes");
    }
}

#[test]
fn a_length_field_of_nonsense_is_damage_and_not_a_giant_buffer() {
    for value in [0, 1, 0x7fff_ffff, 0xffff_ffff_u32] {
        let disk = MemDisk::new();
        ten_records(&disk);
        let size = record_bytes("record 0 with some body.".len());
        let at = (SEGMENT_HEADER_BYTES + 4 * size + 12) as u64;
        overwrite(&disk, &segments(&disk)[0], &value.to_be_bytes(), at);
        assert_eq!(rig(&disk, 2).bodies().len(), 9, "{value:#x}");
    }
}

#[test]
fn leftovers_of_a_cut_group_never_come_back() {
    let disk = MemDisk::new();
    let log = rig(&disk, 1);
    log.append(&["promised"]).expect("durable");
    // one group of three records, whose first was lost by the power cut
    log.append(&["torn 1", "torn 2", "torn 3"]).expect("durable");
    log.wal.close();
    let path = segments(&disk)[0].clone();
    let at = SEGMENT_HEADER_BYTES + record_bytes("promised".len());
    overwrite(&disk, &path, &vec![0; record_bytes("torn 1".len())], at as u64);
    let mut disk = disk;
    let mut lives = vec!["promised".to_owned()];
    for life in 0..5 {
        let log = rig(&disk, 10 + life);
        assert_eq!(log.bodies(), lives, "life {life}");
        assert!(log.opened.damage.is_empty());
        let body = format!("life {life}");
        log.append(&[&body]).expect("durable");
        lives.push(body);
        disk.crash_kill();
        disk = disk.reopen();
    }
    assert!(segments(&disk).len() > 1, "what follows a cut with leftovers starts a new segment");
}

#[test]
fn damage_to_a_record_after_a_cut_does_not_bring_the_cut_group_back() {
    let disk = MemDisk::new();
    let log = rig(&disk, 1);
    log.append(&["promised"]).expect("durable");
    log.append(&["torn 1", "torn 2", "torn 3"]).expect("durable");
    log.wal.close();
    let path = segments(&disk)[0].clone();
    let at = SEGMENT_HEADER_BYTES + record_bytes("promised".len());
    overwrite(&disk, &path, &vec![0; record_bytes("torn 1".len())], at as u64);
    let log = rig(&disk, 2);
    log.append(&["second life"]).expect("durable");
    log.append(&["second life goes on"]).expect("durable");
    log.wal.close();
    let newest = segments(&disk).pop().expect("a segment");
    disk.flip_bit(&newest, (SEGMENT_HEADER_BYTES as u64 + 80) * 8).expect("flipped");
    let log = rig(&disk, 3);
    assert_eq!(log.bodies(), ["promised", "second life goes on"]);
    let gaps = log.backlog().1;
    assert_eq!(gaps.iter().map(|gap| (gap.first, gap.end)).collect::<Vec<_>>(), [(WalSeq(1), WalSeq(2))]);
}

/// A log of several segments; two records fit into each.
fn many_segments(disk: &MemDisk) -> Vec<String> {
    let log = rig(disk, 1);
    let bodies: Vec<String> = (0..9).map(|index| format!("{index}:{}", "m".repeat(1800))).collect();
    for body in &bodies {
        log.append(&[body]).expect("durable");
    }
    log.wal.close();
    bodies
}

#[test]
fn a_missing_middle_segment_is_a_gap_and_the_rest_is_served() {
    let disk = MemDisk::new();
    let bodies = many_segments(&disk);
    let missing = segments(&disk)[1].clone();
    disk.remove_file(&missing).expect("removed");
    let log = rig(&disk, 2);
    let damage = log.opened.damage.clone();
    assert_eq!(damage.len(), 1, "{damage:?}");
    assert_eq!((damage[0].kind, &damage[0].path), (DamageKind::SegmentMissing, &missing));
    assert_eq!((damage[0].first, damage[0].end), (WalSeq(2), WalSeq(4)));
    let (records, gaps) = log.backlog();
    let expected: Vec<_> = bodies.iter().enumerate().filter(|(index, _)| !(2..4).contains(index)).map(|(_, body)| body.clone()).collect();
    assert_eq!(records.iter().map(text).collect::<Vec<_>>(), expected);
    assert_eq!(gaps.iter().map(|gap| (gap.first, gap.end)).collect::<Vec<_>>(), [(WalSeq(2), WalSeq(4))]);
}

#[test]
fn damage_in_a_sealed_segment_is_found_when_it_is_read() {
    let disk = MemDisk::new();
    let bodies = many_segments(&disk);
    let sealed = segments(&disk)[1].clone();
    disk.flip_bit(&sealed, (SEGMENT_HEADER_BYTES as u64 + 500) * 8).expect("flipped");
    let log = rig(&disk, 2);
    assert!(log.opened.damage.is_empty());
    let (records, gaps) = log.backlog();
    assert_eq!(records.len(), bodies.len() - 1);
    assert_eq!(gaps.iter().map(|gap| (gap.first, gap.end)).collect::<Vec<_>>(), [(WalSeq(2), WalSeq(3))]);
}

#[test]
fn a_sealed_segment_without_its_header_keeps_its_records() {
    for index in 0..5 {
        let disk = MemDisk::new();
        let bodies = many_segments(&disk);
        let path = segments(&disk)[index].clone();
        overwrite(&disk, &path, &[0; SEGMENT_HEADER_BYTES], 0);
        let log = rig(&disk, 2);
        assert_eq!(log.bodies(), bodies, "segment {index}");
        let is_reported = log.opened.damage.iter().any(|damage| damage.kind == DamageKind::SegmentHeader && damage.path == path);
        assert_eq!(is_reported, index < 4, "a single group without its header looks like a torn one; segment {index}");
        log.append(&["more"]).expect("durable");
        log.wal.close();
        assert_eq!(rig(&disk, 3).bodies().len(), bodies.len() + 1, "segment {index}");
    }
}

#[test]
fn a_checkpoint_beyond_the_end_is_refused_by_name() {
    let disk = MemDisk::new();
    ten_records(&disk);
    write_checkpoint(&disk, 1_000, 1_000, 99, 5_000);
    let error = try_rig(&disk, 2).err().expect("refused");
    assert!(matches!(error, WalOpenError::CheckpointBeyondEnd { checkpoint: WalSeq(1000), end: WalSeq(10), .. }), "{error}");
    assert!(error.to_string().contains("/data/wal/checkpoint"), "{error}");
    let before = file_bytes(&disk, &segments(&disk)[0]);
    assert!(try_rig(&disk, 3).is_err());
    assert_eq!(file_bytes(&disk, &segments(&disk)[0]), before, "nothing is touched");
}

fn write_checkpoint(disk: &MemDisk, below: u64, durable_end: u64, generation: u64, position: u64) {
    let value: Vec<u8> = [below, durable_end, generation, position].iter().flat_map(|number| number.to_be_bytes()).collect();
    cell::write(disk, &checkpoint_path(), CellKind::WAL_CHECKPOINT, &value).expect("written");
}

#[test]
fn a_checkpoint_above_its_own_proof_is_damage_and_costs_at_most_a_repeat() {
    let disk = MemDisk::new();
    ten_records(&disk);
    write_checkpoint(&disk, 1_000, 10, 1, 8192);
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let verified = verify(&shared, Path::new(DIR), &mut |_| ()).expect("verified");
    assert_eq!(verified.damage.iter().map(|damage| damage.kind).collect::<Vec<_>>(), [DamageKind::CheckpointCell]);
    let log = rig(&disk, 2);
    assert_eq!(log.opened.damage.iter().map(|damage| damage.kind).collect::<Vec<_>>(), [DamageKind::CheckpointCell]);
    assert_eq!((log.opened.checkpoint, log.bodies().len()), (WalSeq(0), 10));
}

#[test]
fn a_checkpoint_beyond_the_end_that_stands_in_a_segment_the_log_has_left_is_refused() {
    let disk = MemDisk::new();
    let log = rig(&disk, 1);
    for _ in 0..3 {
        log.append(&[&"m".repeat(1800)]).expect("durable");
    }
    log.wal.close();
    assert_eq!(segments(&disk).len(), 2);
    write_checkpoint(&disk, 50, 50, 1, 8192);
    assert!(matches!(try_rig(&disk, 2), Err(WalOpenError::CheckpointBeyondEnd { .. })));
    // Nor when nothing of the next segment counts but its header.
    let body = vec![0; 8192 - SEGMENT_HEADER_BYTES];
    overwrite(&disk, &segments(&disk)[1], &body, SEGMENT_HEADER_BYTES as u64);
    assert!(matches!(try_rig(&disk, 3), Err(WalOpenError::CheckpointBeyondEnd { .. })));
}

#[test]
fn a_newest_segment_that_is_damaged_from_its_first_byte_on_stays_where_it_is() {
    let disk = MemDisk::new();
    let bodies = many_segments(&disk);
    let log = rig(&disk, 2);
    log.wal.checkpoint(WalSeq(bodies.len() as u64)).expect("moved");
    log.wal.close();
    let newest = segments(&disk).pop().expect("a segment");
    overwrite(&disk, &newest, &[0xa5; 8192], 0);
    for life in 3..5 {
        let log = rig(&disk, life);
        assert_eq!((log.opened.checkpoint, log.opened.end), (WalSeq(9), WalSeq(9)), "life {life}");
        assert!(log.opened.damage.iter().any(|damage| damage.path == newest), "life {life}");
        log.wal.close();
    }
    let log = rig(&disk, 5);
    assert_eq!(log.append(&["next"]).expect("durable").first, WalSeq(9));
    log.wal.close();
    assert_eq!(rig(&disk, 6).bodies(), ["next"]);
}

#[test]
fn a_checkpoint_of_an_older_time_below_the_oldest_segment_begins_at_that_segment() {
    let disk = MemDisk::new();
    let bodies = many_segments(&disk);
    let log = rig(&disk, 2);
    log.wal.checkpoint(WalSeq(1)).expect("moved");
    let older = file_bytes(&disk, &checkpoint_path());
    log.wal.checkpoint(WalSeq(6)).expect("moved");
    log.wal.close();
    let newer = file_bytes(&disk, &checkpoint_path());
    assert_eq!(older.len(), newer.len());
    overwrite(&disk, &checkpoint_path(), &older, 0);
    let log = rig(&disk, 3);
    assert!(log.opened.damage.is_empty(), "{:?}", log.opened.damage);
    assert_eq!(log.bodies(), bodies[6..]);
    log.append(&["more"]).expect("durable");
    log.wal.checkpoint(WalSeq(10)).expect("all of it can be dispatched");
    log.wal.close();
    assert_eq!(rig(&disk, 4).bodies(), Vec::<String>::new());
}

#[test]
fn segments_that_are_all_gone_under_a_checkpoint_are_refused() {
    let disk = MemDisk::new();
    ten_records(&disk);
    let log = rig(&disk, 2);
    log.wal.checkpoint(WalSeq(5)).expect("moved");
    log.wal.close();
    disk.remove_file(&segments(&disk)[0]).expect("removed");
    assert!(matches!(try_rig(&disk, 3), Err(WalOpenError::CheckpointBeyondEnd { .. })));
}

#[test]
fn a_damaged_last_record_below_the_checkpoint_does_not_stop_the_node_and_its_sequence_is_not_used_again() {
    let disk = MemDisk::new();
    ten_records(&disk);
    let log = rig(&disk, 2);
    log.wal.checkpoint(WalSeq(10)).expect("moved");
    log.wal.close();
    let at = SEGMENT_HEADER_BYTES + 9 * record_bytes("record 0 with some body.".len());
    disk.flip_bit(&segments(&disk)[0], at as u64 * 8).expect("flipped");
    let log = rig(&disk, 3);
    assert_eq!((log.opened.end, log.opened.checkpoint), (WalSeq(10), WalSeq(10)));
    assert_eq!(log.opened.damage.iter().map(|damage| damage.kind).collect::<Vec<_>>(), [DamageKind::Records]);
    assert_eq!(log.append(&["next"]).expect("durable").first, WalSeq(10));
    log.wal.close();
    assert_eq!(rig(&disk, 4).bodies(), ["next"]);
}

#[test]
fn the_checkpoint_proves_the_last_group_too() {
    let disk = MemDisk::new();
    ten_records(&disk);
    let log = rig(&disk, 2);
    log.wal.checkpoint(WalSeq(3)).expect("moved");
    log.wal.close();
    let at = SEGMENT_HEADER_BYTES + 9 * record_bytes("record 0 with some body.".len());
    disk.flip_bit(&segments(&disk)[0], at as u64 * 8).expect("flipped");
    let log = rig(&disk, 3);
    assert_eq!(log.opened.end, WalSeq(10));
    let damage = &log.opened.damage[0];
    assert_eq!((damage.first, damage.end, damage.offset), (WalSeq(9), WalSeq(10), at as u64));
    let (records, gaps) = log.backlog();
    assert_eq!((records.len(), gaps.len()), (6, 1));
}

#[test]
fn small_files_that_are_empty_missing_or_garbage_cost_at_most_a_repeat() {
    for name in ["id", "checkpoint", "streams"] {
        for with in [None, Some(&b""[..]), Some(&b"x"[..]), Some(&[0xa5; 64][..])] {
            let disk = MemDisk::new();
            let bodies = many_segments(&disk);
            let log = rig(&disk, 2);
            log.append(&["second stream"]).expect("durable");
            log.wal.checkpoint(WalSeq(4)).expect("moved");
            log.wal.close();
            let path = Path::new(DIR).join(name);
            disk.remove_file(&path).expect("removed");
            if let Some(bytes) = with {
                disk.open(&path, OpenMode::CreateNew).expect("created");
                overwrite(&disk, &path, bytes, 0);
            }
            let again = rig(&disk, 3);
            assert_eq!(again.opened.wal_id, log.opened.wal_id, "{name} {with:?}");
            let found = again.bodies();
            assert!(
                found.ends_with(&bodies[4..].iter().cloned().chain(["second stream".to_owned()]).collect::<Vec<_>>()),
                "{name} {with:?}"
            );
            assert!(again.opened.ordinal > log.opened.ordinal, "{name} {with:?}");
            let streams: Vec<_> = again.opened.streams.iter().map(|entry| (entry.ordinal, entry.end.0)).collect();
            assert_eq!(streams, [(1, 9), (2, 10)], "{name} {with:?}");
            assert!(again.backlog().1.is_empty(), "{name} {with:?}");
            let is_reported = !again.opened.damage.is_empty();
            assert_eq!(is_reported, name != "checkpoint" || with.is_some(), "{name} {with:?}");
        }
    }
}

#[test]
fn a_segment_of_a_newer_version_is_refused_by_name() {
    let disk = MemDisk::new();
    ten_records(&disk);
    let path = segments(&disk)[0].clone();
    let mut block = file_bytes(&disk, &path)[..SEGMENT_HEADER_BYTES].to_vec();
    block[11] = 2;
    let crc = crc32c::crc32c_append(crc32c::crc32c(&block[..12]), &block[16..]);
    block[12..16].copy_from_slice(&crc.to_be_bytes());
    overwrite(&disk, &path, &block, 0);
    let error = try_rig(&disk, 2).err().expect("refused");
    assert!(matches!(&error, WalOpenError::NewerFormat { path: named, version: 2 } if *named == path), "{error}");
}
