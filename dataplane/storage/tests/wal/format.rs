use std::path::Path;

use bytes::Bytes;
use proptest::prelude::*;
use veena_contract::{MessageId, StreamId, WalSeq};
use veena_storage::disk::mem::MemDisk;
use veena_storage::wal::Destination;
use veena_storage::wal::format::{RecordHeader, SEGMENT_HEADER_BYTES, SegmentHeader, record_bytes};
use veena_storage::wal::moved::{MOVED_BYTES_MAX, Moved, MovedError, MovedFrom};
use veena_storage::wal::replay::scan_segment;
use veena_storage::wal::{RecordKind, WalEntry, verify};

use super::{assert_golden, file_bytes, rig, segments};

#[test]
fn a_segment_has_the_golden_bytes() {
    let disk = MemDisk::new();
    let log = rig(&disk, 42);
    log.append(&["first", "the second record"]).expect("durable");
    log.append(&["third"]).expect("durable");
    let bytes = file_bytes(&disk, &segments(&disk)[0]);
    assert!(bytes[96..SEGMENT_HEADER_BYTES].iter().all(|byte| *byte == 0));
    let end = SEGMENT_HEADER_BYTES + record_bytes(5) * 2 + record_bytes(17);
    assert!(bytes[end..].iter().all(|byte| *byte == 0));
    assert_golden("wal-segment-header.hex", &bytes[..96]);
    assert_golden("wal-records.hex", &bytes[SEGMENT_HEADER_BYTES..end]);
}

#[test]
fn the_cells_of_a_log_have_the_golden_bytes() {
    let disk = MemDisk::new();
    let log = rig(&disk, 42);
    log.append(&["first", "second", "third"]).expect("durable");
    log.wal.checkpoint(WalSeq(2)).expect("moved");
    for name in ["id", "streams", "checkpoint"] {
        assert_golden(&format!("wal-{name}-cell.hex"), &file_bytes(&disk, &Path::new(super::DIR).join(name)));
    }
}

fn moved(behind: Option<u64>) -> Moved {
    Moved {
        id: MessageId { stream: StreamId(9), sequence: 4 },
        from: MovedFrom { stream: StreamId(9), seq: WalSeq(4), partition: 6 },
        behind: behind.map(WalSeq),
        body: Bytes::from_static(b"first"),
    }
}

#[test]
fn a_moved_record_has_the_golden_bytes() {
    let disk = MemDisk::new();
    let log = rig(&disk, 42);
    let entry = |moved: &Moved| {
        let destination = Destination { group: 7, partition: 3 };
        WalEntry { kind: RecordKind::Moved, destination, body: moved.encode() }
    };
    let bodies = [moved(None), moved(Some(3))];
    let _staged = log.wal.stage(bodies.iter().map(entry).collect()).expect("staged");
    log.wal.flush_now();
    let bytes = file_bytes(&disk, &segments(&disk)[0]);
    let end = SEGMENT_HEADER_BYTES + bodies.iter().map(|moved| record_bytes(moved.encode().len())).sum::<usize>();
    assert_golden("wal-moved.hex", &bytes[SEGMENT_HEADER_BYTES..end]);
    let read: Vec<_> = log.told.lock().iter().map(|record| (record.kind, Moved::decode(&record.body))).collect();
    assert_eq!(read, bodies.map(|moved| (RecordKind::Moved, Ok(moved))));
    log.wal.close();
    let disk: std::sync::Arc<dyn veena_storage::disk::Disk> = std::sync::Arc::new(disk);
    let verified = verify(&disk, Path::new(super::DIR), &mut |_| ()).expect("read");
    assert_eq!((verified.segments[0].records, verified.segments[0].moved), (2, 2), "a tool tells them apart");
}

#[test]
fn a_moved_record_of_another_version_or_cut_short_is_refused() {
    let bytes = moved(Some(3)).encode();
    assert_eq!(bytes.len(), MOVED_BYTES_MAX + 5);
    for end in 0..MOVED_BYTES_MAX + 1 {
        assert_eq!(Moved::decode(&bytes.slice(..end)), Err(MovedError::Malformed), "{end}");
    }
    let mut newer = bytes.to_vec();
    newer[0] = 2;
    assert_eq!(Moved::decode(&newer.into()), Err(MovedError::UnknownVersion { version: 2 }));
    let mut flagged = bytes.to_vec();
    flagged[MOVED_BYTES_MAX - 9] = 2;
    assert_eq!(Moved::decode(&flagged.into()), Err(MovedError::Malformed));
}

fn header(seq: u64) -> RecordHeader {
    RecordHeader {
        seq: WalSeq(seq),
        synced_end: WalSeq(3),
        stream: StreamId(9),
        ordinal: 2,
        kind: 1,
        destination: Destination { group: 5, partition: 6 },
        body_len: 0,
        body_crc: 0,
    }
}

#[test]
fn a_record_is_one_only_in_its_generation_and_at_its_place() {
    let mut bytes = Vec::new();
    header(4).encode(&mut bytes, 11, 4096, b"body");
    let read = RecordHeader::decode(&bytes, 11, 4096).expect("a record");
    assert_eq!((read.seq, read.body_len), (WalSeq(4), 4));
    assert!(read.matches(&bytes[72..]));
    assert!(RecordHeader::decode(&bytes, 10, 4096).is_none());
    assert!(RecordHeader::decode(&bytes, 11, 4104).is_none());
}

#[test]
fn any_flipped_bit_of_a_record_is_seen() {
    let mut bytes = Vec::new();
    header(4).encode(&mut bytes, 11, 4096, b"body");
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let is_seen = RecordHeader::decode(&flipped, 11, 4096).is_none_or(|head| !head.matches(&flipped[72..]));
        assert!(is_seen, "bit {bit}");
    }
}

#[test]
fn any_flipped_bit_of_a_segment_header_is_seen() {
    let header = SegmentHeader { wal_id: 1, generation: 2, previous: 1, first: WalSeq(5), stream: StreamId(6), ordinal: 7 };
    let mut bytes = Vec::new();
    header.encode(&mut bytes);
    assert_eq!(SegmentHeader::decode(&bytes), Ok(header));
    for bit in (0..bytes.len() * 8).filter(|bit| *bit < 1000 || bit % 37 == 0) {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(SegmentHeader::decode(&flipped).is_err(), "bit {bit}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_scan_takes_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..9000), generation in any::<u64>()) {
        let found = scan_segment(&bytes, generation);
        prop_assert!(found.records.is_empty());
    }

    #[test]
    fn a_scan_of_damaged_records_finds_only_records_that_were_written(
        lens in proptest::collection::vec(0_usize..300, 1..20),
        damage in proptest::collection::vec((0_usize..6000, any::<u8>()), 0..8),
        cut in 0_usize..8000,
    ) {
        let mut bytes = vec![0; SEGMENT_HEADER_BYTES];
        let mut written = Vec::new();
        for (index, len) in lens.iter().enumerate() {
            let at = bytes.len();
            header(index as u64).encode(&mut bytes, 3, at as u64, &vec![b'x'; *len]);
            written.push((at, bytes.len()));
        }
        let mut hit = bytes.clone();
        for (at, value) in damage {
            if let Some(byte) = hit.get_mut(SEGMENT_HEADER_BYTES + at) {
                *byte = value;
            }
        }
        hit.truncate(SEGMENT_HEADER_BYTES.max(hit.len().saturating_sub(cut)));
        let found = scan_segment(&hit, 3);
        let intact: Vec<u64> = written
            .iter()
            .enumerate()
            .filter(|(_, (at, end))| hit.get(*at..*end) == Some(&bytes[*at..*end]))
            .map(|(index, _)| index as u64)
            .collect();
        prop_assert_eq!(found.records.iter().map(|record| record.head.seq.0).collect::<Vec<_>>(), intact);
    }
}
