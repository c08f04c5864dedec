//! The bytes on disk, pinned; and decoders that stand anything.

use bytes::Bytes;
use proptest::prelude::*;
use veena_contract::{LogId, MessageId, Offset, StreamId};
use veena_storage::partition::frame::{self, FrameError, FrameHeader, Salt};
use veena_storage::partition::{
    Codec, KeyMark, Keys, Mark, Marks, NewRecord, Origin, RecordKey, Section, SegmentHeader, StreamsSnapshot, recover,
};

use super::support::*;

fn hex(bytes: &[u8]) -> String {
    let lines = bytes.chunks(32).map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    lines.collect::<Vec<_>>().join("\n")
}

/// A log whose every byte is fixed: one segment, three frames, one of them without records, one compressed.
fn golden_segment() -> (Vec<u8>, Vec<(u64, u64)>) {
    let mut log = Modelled::new(veena_storage::partition::PartitionConfig { codec: Codec::Zstd, ..config(64 * 1024) });
    let id = MessageId { stream: StreamId(0xabc), sequence: 42 };
    let key = stream(0x1111_2222);
    let origin = Origin { id: 0x77, ordinal: 5, floor: 4 };
    let record = |sequence, id, body: &'static [u8]| NewRecord { sequence, id, key: None, body: Bytes::from_static(body) };
    let records = vec![record(10, None, b"first"), record(12, Some(id), b"second")];
    log.commit(&[Section { key, origin, is_tracked: true, last: 15, records }]);
    log.commit(&[advance(7, 99)]);
    log.commit(&[Section { key, origin, is_tracked: false, last: 20, records: vec![record(20, None, &[b'z'; 2000])] }]);
    let path = segments(&log.disk)[0].clone();
    let all = frames(&log.disk, &path);
    let end = all.iter().map(|(position, len)| position + len).max().expect("has frames");
    let mut bytes = bytes_of(&log.disk, &path);
    bytes.truncate(usize::try_from(end).expect("small"));
    (bytes, all)
}

#[test]
fn the_bytes_of_segments_and_frames_do_not_change() {
    let (bytes, all) = golden_segment();
    let uncompressed = usize::try_from(all[2].0).expect("small");
    assert_eq!(hex(&bytes[..uncompressed]), include_str!("../golden/partition-segment.hex").trim_end());
}

#[test]
fn a_golden_segment_is_read_as_what_it_was() {
    let text: String = include_str!("../golden/partition-segment.hex").split_whitespace().collect();
    let bytes: Vec<u8> = (0..text.len() / 2).map(|at| u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).expect("hexadecimal")).collect();
    let (header, scan) = recover::scan(&bytes).expect("known format").expect("has a header");
    assert_eq!(header.base, Offset(0));
    assert_eq!(scan.frames.iter().map(|frame| frame.header.records).collect::<Vec<_>>(), [2, 0]);
    assert_eq!(scan.sections.iter().map(|(_, section)| section.last).collect::<Vec<_>>(), [15, 99]);
    let at = usize::try_from(scan.frames[0].position).expect("small");
    let (_, decoded, _) = frame::decode(&bytes[at..], Salt::new(header.log_id, header.base), at as u64).expect("intact");
    let second = decoded.record(Offset(1)).expect("two records");
    assert_eq!((second.sequence, second.id.sequence, second.body.as_ref()), (12, 42, b"second".as_slice()));
}

fn golden_streams() -> StreamsSnapshot {
    let mark = |committed, hash| Mark { committed, hash, origin: Origin { id: 9, ordinal: 2, floor: 1 } };
    let marks = Marks::from([(stream(5), mark(17, 0xdead_beef)), (stream(6), mark(1, 0))]);
    StreamsSnapshot { log_id: LogId(0x0102_0304), base: Offset(77), last_commit_ms: 123_456, marks, keys: Keys::default() }
}

/// As the golden segment, with idempotency keys: frames with and without.
fn golden_keys() -> Vec<u8> {
    let mut log = Modelled::new(config(64 * 1024));
    let key = Some(RecordKey { hash: 0x1234, digest: 0x5678 });
    let id = Some(MessageId { stream: StreamId(0xabc), sequence: 42 });
    let record = |sequence, id, key, body: &'static [u8]| NewRecord { sequence, id, key, body: Bytes::from_static(body) };
    let records = vec![record(10, None, None, b"first"), record(12, None, key, b"second"), record(13, id, key, b"third")];
    log.commit(&[Section { key: stream(0x1111_2222), origin: Origin::default(), is_tracked: false, last: 13, records }]);
    log.commit(&[section(1, 1, 1, 3)]);
    let path = segments(&log.disk)[0].clone();
    let end = frames(&log.disk, &path).iter().map(|(position, len)| position + len).max().expect("has frames");
    let mut bytes = bytes_of(&log.disk, &path);
    bytes.truncate(usize::try_from(end).expect("small"));
    bytes
}

#[test]
fn the_bytes_of_frames_with_idempotency_keys_do_not_change() {
    assert_eq!(hex(&golden_keys()), include_str!("../golden/partition-keys.hex").trim_end());
}

#[test]
fn a_golden_segment_with_idempotency_keys_is_read_as_what_it_was() {
    let text: String = include_str!("../golden/partition-keys.hex").split_whitespace().collect();
    let bytes: Vec<u8> = (0..text.len() / 2).map(|at| u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).expect("hexadecimal")).collect();
    let (_, scan) = recover::scan(&bytes).expect("known format").expect("has a header");
    assert_eq!(scan.frames.iter().map(|frame| frame.header.has_keys).collect::<Vec<_>>(), [true, false]);
    let keys: Vec<_> =
        scan.keys.iter().map(|(frame, mark)| (*frame, mark.key.hash, mark.offset.0, mark.id.sequence, mark.commit_ms)).collect();
    assert_eq!(keys, [(0, 0x1234, 1, 12, 1_010), (0, 0x1234, 2, 42, 1_010)]);
}

#[test]
fn a_frame_whose_flags_are_not_known_is_refused_and_not_taken_for_a_torn_one() {
    let mut bytes = golden_keys();
    let (header, scan) = recover::scan(&bytes).expect("known format").expect("has a header");
    let at = usize::try_from(scan.frames[0].position).expect("small");
    bytes[at + 6..at + 8].copy_from_slice(&3_u16.to_be_bytes());
    let salt = crc32c::crc32c_append(crc32c::crc32c(&header.log_id.0.to_be_bytes()), &header.base.get().to_be_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c_append(salt, &(at as u64).to_be_bytes()), &bytes[at..at + 68]);
    bytes[at + 68..at + 72].copy_from_slice(&crc.to_be_bytes());
    assert!(matches!(recover::scan(&bytes), Err(recover::ScanError::Unsupported { reason: FrameError::Unsupported { flags: 3, .. }, .. })));
}

fn golden_streams_with_keys() -> StreamsSnapshot {
    let mut keys = Keys::default();
    let id = MessageId { stream: StreamId(8), sequence: 9 };
    keys.note(KeyMark { key: RecordKey { hash: 0x1234, digest: 0x5678 }, offset: Offset(33), commit_ms: 123_000, id });
    StreamsSnapshot { keys, ..golden_streams() }
}

#[test]
fn the_bytes_of_a_stream_table_with_idempotency_keys_do_not_change() {
    let bytes = golden_streams_with_keys().encode();
    assert_eq!(hex(&bytes), include_str!("../golden/partition-streams-keys.hex").trim_end());
    assert_eq!(StreamsSnapshot::decode(&bytes), Some(golden_streams_with_keys()));
}

#[test]
fn the_bytes_of_a_stream_table_do_not_change() {
    let bytes = golden_streams().encode();
    assert_eq!(hex(&bytes), include_str!("../golden/partition-streams.hex").trim_end());
    assert_eq!(StreamsSnapshot::decode(&bytes), Some(golden_streams()));
}

#[test]
fn the_bytes_of_an_index_do_not_change() {
    let mut log = Modelled::new(config(70_000));
    for round in 0..10 {
        log.commit(&[section(1, round + 1, 1, 10_000)]);
    }
    let path = names(&log.disk, ".idx")[0].clone();
    assert_eq!(hex(&bytes_of(&log.disk, &path)), include_str!("../golden/partition-index.hex").trim_end());
}

#[test]
fn any_flipped_bit_of_a_frame_is_caught() {
    let (bytes, all) = golden_segment();
    let (header, _) = recover::scan(&bytes).expect("known format").expect("has a header");
    let salt = Salt::new(header.log_id, header.base);
    for (position, len) in all {
        let at = usize::try_from(position).expect("small");
        let sound = &bytes[at..at + usize::try_from(len).expect("small")];
        frame::decode(sound, salt, position).expect("intact");
        for bit in 0..sound.len() * 8 {
            let mut bad = sound.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(frame::decode(&bad, salt, position).is_err(), "bit {bit}");
        }
        for cut in 0..sound.len() {
            assert!(frame::decode(&sound[..cut], salt, position).is_err(), "cut at {cut}");
        }
    }
}

#[test]
fn any_flipped_bit_of_a_header_or_a_table_is_caught() {
    let header = SegmentHeader { log_id: LogId(5), base: Offset(6), leader_epoch: 0, ownership_epoch: 0, created_ms: 7 };
    let bytes = header.encode();
    assert_eq!(SegmentHeader::decode(&bytes), Ok(header));
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes;
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(SegmentHeader::decode(&bad).is_err(), "bit {bit}");
    }
    let bytes = golden_streams_with_keys().encode();
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(StreamsSnapshot::decode(&bad), None, "bit {bit}");
    }
}

#[test]
fn a_frame_at_another_place_or_in_another_log_is_no_frame() {
    let (bytes, all) = golden_segment();
    let (header, _) = recover::scan(&bytes).expect("known format").expect("has a header");
    let (position, _) = all[1];
    let at = usize::try_from(position).expect("small");
    let frame = &bytes[at..];
    for (log_id, base, position) in [
        (header.log_id, header.base, position + 8),
        (header.log_id, Offset(1), position),
        (LogId(header.log_id.0 ^ 1), header.base, position),
    ] {
        assert_eq!(FrameHeader::decode(frame, Salt::new(log_id, base), position), Err(FrameError::HeaderCrc));
    }
}

#[test]
fn scanning_a_segment_full_of_magic_numbers_ends() {
    let (mut bytes, _) = golden_segment();
    bytes.truncate(64);
    for _ in 0..200_000 {
        bytes.extend_from_slice(&frame::FRAME_MAGIC.to_be_bytes());
    }
    let (_, scan) = recover::scan(&bytes).expect("known format").expect("has a header");
    assert_eq!((scan.frames.len(), scan.torn), (0, Some(FrameError::HeaderCrc)));
}

proptest! {
    #[test]
    fn scanning_anything_behind_a_header_never_panics(
        noise in proptest::collection::vec(any::<u8>(), 0..300),
        keep in 0usize..400,
        at in 0usize..400,
    ) {
        let (sound, _) = golden_segment();
        let mut bytes = sound.clone();
        bytes.truncate(64 + keep);
        let at = (64 + at).min(bytes.len());
        bytes.splice(at..at, noise.iter().copied());
        let _ = recover::scan(&bytes);
        let _ = recover::scan(&noise);
        let _ = frame::decode(&noise, Salt::new(LogId(1), Offset(0)), 64);
        let _ = StreamsSnapshot::decode(&noise);
    }

    #[test]
    fn any_prefix_of_a_segment_holds_a_prefix_of_its_frames(cut in 0usize..700) {
        let (bytes, all) = golden_segment();
        let cut = cut.min(bytes.len());
        let whole = all.iter().filter(|(position, len)| position + len <= cut as u64).count();
        match recover::scan(&bytes[..cut]).expect("known format") {
            Some((_, scan)) => prop_assert_eq!(scan.frames.len(), whole),
            None => prop_assert!(cut < 64),
        }
    }

    #[test]
    fn records_survive_their_frames(
        rounds in proptest::collection::vec(
            proptest::collection::vec((0u128..4, proptest::collection::vec(0usize..300, 0..6), any::<bool>()), 1..4), 1..8),
        zstd in any::<bool>(),
    ) {
        let codec = if zstd { Codec::Zstd } else { Codec::None };
        let mut log = Modelled::new(veena_storage::partition::PartitionConfig { codec, ..config(1_500) });
        let mut next = [1u64; 4];
        for round in rounds {
            let mut sections = Vec::new();
            for (number, lens, has_id) in round {
                let last = &mut next[usize::try_from(number).expect("below 4")];
                let mut records = Vec::new();
                for len in lens {
                    let id = has_id.then_some(MessageId { stream: StreamId(8), sequence: *last });
                    records.push(NewRecord { sequence: *last, id, key: None, body: body(number, *last, len) });
                    *last += 1;
                }
                sections.push(Section { key: stream(number), origin: Origin::default(), is_tracked: true, last: *last, records });
                *last += 1;
            }
            log.commit(&sections);
        }
        check_records(&log.log.reader(), &log.records);
        let opened = log.reopen();
        log.check(&opened);
    }
}
