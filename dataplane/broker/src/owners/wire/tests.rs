use proptest::prelude::*;

use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn tenure() -> Tenure {
    Tenure { partition: PartitionId { topic: TopicId(0xab), index: PartitionIndex(2) }, epoch: OwnershipEpoch(3) }
}

fn key() -> StreamKey {
    StreamKey { stream: StreamId(7), source: 5 }
}

fn some_commit() -> StreamCommit {
    let id = Some(MessageId { stream: StreamId(8), sequence: 6 });
    let records = vec![
        NewRecord { sequence: 12, id, key: None, body: Bytes::from_static(b"x") },
        NewRecord { sequence: 13, id: None, key: None, body: Bytes::from_static(b"yz") },
    ];
    let origin = Origin { id: 1, ordinal: 2, floor: 1 };
    StreamCommit { key: key(), origin, log_id: LogId(9), prev: Prev::Seq(11), last: 14, is_gap: false, records }
}

const HEAD: &str = "0100000000000000ab000000020000000000000003";
const STREAM: &str = "0000000000000000000000000000000700000005";

#[test]
fn the_requests_are_fixed() {
    assert_eq!(hex(&open(&tenure(), key())), format!("{HEAD}{STREAM}"));
    let records = "000000000000000c010000000000000000000000000000000800000000000000060000000178\
                   000000000000000d0000000002797a";
    let commit_text = format!(
        "{HEAD}{STREAM}00000000000000010000000200000001\
         0000000000000000000000000000000901000000000000000b000000000000000e0000000002{records}"
    );
    assert_eq!(hex(&commit(&tenure(), &some_commit())), commit_text);
    let bodies = [Bytes::from_static(b"x"), Bytes::from_static(b"yz")];
    assert_eq!(hex(&produce(&tenure(), &bodies)), format!("{HEAD}00000002000000017800000002797a"));

    let mut body = produce(&tenure(), &bodies);
    assert_eq!(take_request(&mut body), Ok(tenure()));
    assert_eq!(take_produce(body), Ok(bodies.to_vec()));
    let mut body = commit(&tenure(), &some_commit());
    take_request(&mut body).expect("its head");
    assert_eq!(take_commit(body).expect("whole").records, some_commit().records);
}

#[test]
fn the_answers_are_fixed() {
    assert_eq!(hex(&not_owner()), "0101");
    let stands = Standing { log_id: LogId(9), appended: Some(3), committed: None, hash: 4 };
    let text = "0000000000000000000000000000000901000000000000000300\
                00000004";
    assert_eq!(hex(&standing(&Ok(stands))), format!("010000{text}"));
    assert_eq!(hex(&standing(&Err(CommitError::NotOpen))), "01000101");
    assert_eq!(hex(&commit_answer(&CommitAnswer::Committed(None))), "010000");
    let placed = Placed { first: Offset(1), commit_ms: 2, stream: StreamId(7), sequence: 3 };
    let placed_text = "0100010000000000000001000000000000000200000000000000000000000000000007\
                       0000000000000003";
    assert_eq!(hex(&commit_answer(&CommitAnswer::Committed(Some(placed)))), placed_text);
    let refused = CommitAnswer::Refused(Refusal { cause: Cause::PrevAhead, standing: stands });
    assert_eq!(hex(&commit_answer(&refused)), format!("01000202{text}"));
    assert_eq!(hex(&commit_answer(&CommitAnswer::Failed(CommitError::NoSpace))), "01000302");
}

#[test]
fn the_numbers_of_errors_and_causes_never_change() {
    assert_eq!(CommitError::ALL.map(CommitError::number), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    assert_eq!(Cause::ALL.map(Cause::number), [1, 2, 3, 4, 5, 6, 7]);
    for number in 0..=u8::MAX {
        assert_eq!(CommitError::of_number(number).map(CommitError::number), (1..=11).contains(&number).then_some(number));
        assert_eq!(Cause::of_number(number).map(Cause::number), (1..=7).contains(&number).then_some(number));
    }
}

#[test]
fn what_is_cut_or_goes_on_is_malformed() {
    let whole = commit(&tenure(), &some_commit()).slice(REQUEST_BYTES..);
    assert!(take_commit(whole.clone()).is_ok());
    for len in 0..whole.len() {
        assert!(take_commit(whole.slice(..len)).is_err(), "{len} bytes");
    }
    let longer: Bytes = whole.iter().copied().chain([0]).collect();
    assert!(take_commit(longer).is_err());
    assert!(take_produce(Bytes::from_static(&[0, 0, 0, 0])).is_err(), "nothing to commit");
    assert!(take_produce(Bytes::from_static(&[0, 0, 0, 1, 0, 0, 0, 0])).is_err(), "an empty body stands for a lost one");
    assert!(take_commit_answer(Bytes::from_static(&[3, 99])).is_err(), "an error that only newer nodes know");
    let mut newer = Bytes::from_static(&[2, 0, 0]);
    assert!(take_answer(&mut newer).is_err());
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let bytes = Bytes::from(bytes);
        let _ = (take_open(bytes.clone()).is_ok(), take_commit(bytes.clone()).is_ok(), take_produce(bytes.clone()).is_ok());
        let _ = (take_standing(bytes.clone()).is_ok(), take_commit_answer(bytes.clone()).is_ok(), take_answer(&mut bytes.clone()).is_ok());
    }
}
