use std::fmt::Debug;

use bytes::Bytes;
use veena_contract::{AttachEpoch, LogId, MessageId, MoveToken, Offset, OwnershipEpoch, PartitionIndex, StreamId, TopicId};
use veena_storage::partition::{CopyFile, CopyPiece, CopySegment};

use super::Tenures;
use super::lease::{
    Claim, ClaimRefusal, Ending, Wait, Waited, claim_refused, claimed, endings, heard, take_claimed, take_endings, take_heard,
};
use super::look::{Lag, LagAsked, ask, ask_read, described, lags, read, take_ask, take_ask_read, take_described, take_lags, take_read};
use super::moves::{
    self, CopyAsked, CopyList, HandOver, MoveRefusal, MovedCursor, ask_copy, ask_freeze, handed_over, listed, refused, take_ask_copy,
    take_ask_freeze, take_handed_over, take_listed, take_piece,
};
use super::settle::{Settling, settled, take_settled};
use crate::consume::lease::MovedLease;
use crate::errors::{ReplayError, SettleError};
use crate::message::{Delivery, Leased, PartitionStats, ReceiptHandle, Settle};
use crate::owners::wire::{self, Malformed, Tenure};
use crate::partition::PartitionId;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes are these, are read as they were meant, and neither cut short nor longer.
fn is_fixed<T: PartialEq + Debug>(bytes: &Bytes, golden: &str, meant: &T, decode: impl Fn(Bytes) -> Result<T, Malformed>) {
    assert_eq!(hex(bytes), golden);
    assert_eq!(decode(bytes.clone()).as_ref(), Ok(meant));
    for len in 0..bytes.len() {
        assert!(decode(bytes.slice(..len)).is_err(), "cut to {len} bytes");
    }
    assert!(decode([bytes.as_ref(), &[0]].concat().into()).is_err(), "a byte more");
    let newer = [&[9], &bytes[1..]].concat();
    assert!(decode(newer.into()).is_err(), "another version");
}

fn tenures() -> Tenures {
    let partitions = vec![(PartitionIndex(2), OwnershipEpoch(5)), (PartitionIndex(3), OwnershipEpoch(6))];
    Tenures { topic: TopicId(1), partitions }
}

fn delivery() -> Delivery {
    let handle = ReceiptHandle { partition: PartitionIndex(2), offset: Offset(7), nonce: 9 };
    Delivery {
        partition: handle.partition,
        offset: handle.offset,
        id: MessageId { stream: StreamId(4), sequence: 8 },
        key: Some(Bytes::from_static(b"k")),
        headers: vec![("h".into(), "v".into())],
        payload: Bytes::from_static(b"pp"),
        commit_ms: 10,
        lease: Some(Leased { handle, delivery_count: 3 }),
    }
}

const DELIVERY: &str = "00000002000000000000000700000000000000000000000000000004\
     0000000000000008000000000000000a0000000000000009000000030000001d01810000000270708200000001\
     6b830000000a000100016800000001\
     76";

/// What is compared of a delivery.
fn text(message: &Delivery) -> String {
    format!("{message:?}")
}

#[test]
fn the_format_of_a_claim_and_its_answer_is_fixed() {
    let claim = Claim { tenures: tenures(), number: 16, token: Some(17), messages_max: 100, bytes_max: 4096 };
    let golden = "0100000000000000010002000000020000000000000005000000030000000000000006\
                  00000000000000100000000000000011006400001000";
    is_fixed(&claim.encode(), golden, &claim, Claim::decode);
    let newcomer = Claim { token: None, ..claim };
    assert_eq!(Claim::decode(newcomer.encode()), Ok(newcomer));

    let decode = |body| take_claimed(body).map(|result| result.map(|messages| messages.iter().map(text).collect::<Vec<_>>()));
    is_fixed(&claimed(&[delivery()]), &format!("01000001{DELIVERY}"), &Ok(vec![text(&delivery())]), decode);
    for (why, golden) in [
        (ClaimRefusal::NotOwner, "0101"),
        (ClaimRefusal::NotOpen, "0102"),
        (ClaimRefusal::ReadFailed, "0103"),
        (ClaimRefusal::Ended, "0104"),
    ] {
        is_fixed(&claim_refused(why), golden, &Err(why), decode);
    }
    let replayed = Delivery { lease: None, ..delivery() };
    assert!(decode(claimed(&[replayed])).is_err(), "what is claimed has a lease");
}

#[test]
fn the_format_of_endings_is_fixed() {
    let list = vec![Ending::Claim { number: 16, written: 3 }, Ending::Token { number: 17 }];
    is_fixed(
        &endings(&list),
        "01000201000000000000001000030200000000000000\
                               11",
        &list,
        take_endings,
    );
    is_fixed(&heard(), "01", &(), take_heard);
}

#[test]
fn the_format_of_a_wait_and_its_answer_is_fixed() {
    let wait = Wait { tenures: tenures(), is_any: true, token: 17, wait_ms: 10_000 };
    let golden = "0100000000000000010002000000020000000000000005000000030000000000000006\
                  01000000000000001100002710";
    is_fixed(&wait.encode(), golden, &wait, Wait::decode);
    assert!(Wait::decode(Wait { is_any: false, ..wait.clone() }.encode()).is_err(), "one partition is one");
    assert!(Wait::decode(Wait { token: 0, ..wait }.encode()).is_err(), "no token has this number");
    for (waited, golden) in [(Waited::Woken, "0100"), (Waited::Over, "0101"), (Waited::NotOwner, "0102"), (Waited::TooMany, "0103")] {
        is_fixed(&waited.encode(), golden, &waited, Waited::decode);
    }
}

#[test]
fn the_format_of_settling_and_its_answer_is_fixed() {
    let handle = ReceiptHandle { partition: PartitionIndex(2), offset: Offset(7), nonce: 9 };
    for (how, number) in [(Settle::Ack, "00"), (Settle::Extend, "01"), (Settle::Nack, "02")] {
        let settling = Settling { topic: TopicId(1), how, handles: vec![(handle, OwnershipEpoch(5))] };
        let golden = format!("010000000000000001{number}000100000002000000000000000500000000000000070000000000000009");
        is_fixed(&settling.encode(), &golden, &settling, Settling::decode);
    }
    let results =
        [Ok(()), Err(SettleError::LeaseLost), Err(SettleError::TopicNotFound), Err(SettleError::OwnerDown), Err(SettleError::NotReached)];
    let decode = |body| take_settled(body).map(|results| results.iter().map(|result| format!("{result:?}")).collect::<Vec<_>>());
    let meant = ["Ok(())", "Err(LeaseLost)", "Err(TopicNotFound)", "Err(NotReached)", "Err(NotReached)"].map(str::to_owned).to_vec();
    is_fixed(&settled(&results), "0100050001020303", &meant, decode);
}

#[test]
fn the_format_of_a_read_and_its_answer_is_fixed() {
    let tenure = Tenure { partition: PartitionId { topic: TopicId(1), index: PartitionIndex(2) }, epoch: OwnershipEpoch(5) };
    let meant = (tenure, Offset(7));
    is_fixed(
        &ask_read(&tenure, Offset(7)),
        "01000000000000000100000002\
                                              00000000000000050000000000000007",
        &meant,
        take_ask_read,
    );
    let decode = |mut body: Bytes| {
        wire::take_answer(&mut body)?.map_err(|_| Malformed)?;
        take_read(&mut body, Offset(7)).map(|result| format!("{result:?}"))
    };
    let replayed = Delivery { lease: None, ..delivery() };
    let no_lease = DELIVERY.replace("000000000000000900000003", "000000000000000000000000");
    for (result, golden) in [
        (Ok(None), "010000".to_owned()),
        (Ok(Some(replayed)), format!("010001{no_lease}")),
        (Err(ReplayError::AgedOut { offset: Offset(7), oldest: Offset(8) }), "0100020000000000000008".to_owned()),
        (Err(ReplayError::Unreadable { offset: Offset(7) }), "010003".to_owned()),
        (Err(ReplayError::ReadFailed), "010004".to_owned()),
        (Err(ReplayError::OwnerDown), "010005".to_owned()),
    ] {
        is_fixed(&read(&result), &golden, &format!("{result:?}"), decode);
    }
}

#[test]
fn the_format_of_a_description_is_fixed() {
    is_fixed(&ask(&tenures()), "0100000000000000010002000000020000000000000005000000030000000000000006", &tenures(), take_ask);
    let stats = PartitionStats {
        partition: PartitionIndex(2),
        segments: 1,
        oldest: Offset(2),
        log_end: Offset(3),
        high_watermark: Offset(4),
        frontier: Offset(5),
        leased: 6,
        acked_ahead: 7,
        bytes: 8,
        oldest_segment_ms: Some(9),
        verified_up_to: None,
        verified_at_ms: Some(10),
    };
    let golden = "0100020100000002000000000000000100000000000000020000000000000003\
                  00000000000000040000000000000005000000000000000600000000000000070000000000000008\
                  0100000000000000090001000000000000000a00";
    let meant = vec![Some(stats), None];
    is_fixed(&described(&meant), golden, &meant, take_described);
}

#[test]
fn the_format_of_lags_is_fixed() {
    let asked = LagAsked { tenures: tenures(), links: vec![AttachEpoch(11)] };
    let golden = "0100000000000000010002000000020000000000000005000000030000000000000006\
                  0001000000000000000b";
    is_fixed(&asked.encode(), golden, &asked, LagAsked::decode);
    let list = vec![Lag { messages: 3, dropped: 1, is_partial: true }];
    is_fixed(&lags(&list), "0100010000000000000003000000000000000101", &list, take_lags);
}

#[test]
fn the_format_of_what_moves_a_partition_is_fixed() {
    let tenure = Tenure { partition: PartitionId { topic: TopicId(1), index: PartitionIndex(2) }, epoch: OwnershipEpoch(5) };
    let (token, head) = (MoveToken(6), "010000000000000001000000020000000000000005");
    let token_hex = "00000000000000000000000000000006";
    let list = (tenure, token, CopyAsked::List);
    is_fixed(&ask_copy(&tenure, token, &CopyAsked::List), &format!("{head}{token_hex}00"), &list, take_ask_copy);
    let seal = (tenure, token, CopyAsked::Seal);
    is_fixed(&ask_copy(&tenure, token, &CopyAsked::Seal), &format!("{head}{token_hex}02"), &seal, take_ask_copy);
    let piece = CopyPiece { base: Offset(7), serial: 8, file: CopyFile::Streams, at: 9 };
    let asked = CopyAsked::Piece { source: 10, piece };
    let golden = format!("{head}{token_hex}010000000000000000000000000000000a00000000000000070000000000000008020000000000000009");
    is_fixed(&ask_copy(&tenure, token, &asked), &golden, &(tenure, token, asked), take_ask_copy);
    is_fixed(&ask_freeze(&tenure, token), &format!("{head}{token_hex}"), &(tenure, token), take_ask_freeze);

    let served = |mut body: Bytes| wire::take_answer(&mut body)?.map_err(|_| Malformed).map(|()| body);
    let segments = vec![
        CopySegment { base: Offset(0), serial: 1, len: 100, is_sealed: true },
        CopySegment { base: Offset(7), serial: 8, len: 64, is_sealed: false },
    ];
    let list = CopyList { source: 10, log_id: LogId(11), segments };
    let list_hex = "0000000000000000000000000000000a0000000000000000000000000000000b00000002\
                    00000000000000000000000000000001000000000000006401\
                    00000000000000070000000000000008000000000000004000";
    let decode = |body| take_listed(served(body)?);
    is_fixed(&listed(&list), &format!("010000{list_hex}"), &Ok(list.clone()), decode);
    for (why, golden) in [(MoveRefusal::NoSuchMove, "010001"), (MoveRefusal::NotNow, "010002"), (MoveRefusal::SegmentGone, "010003")] {
        is_fixed(&refused(why), golden, &Err(why), decode);
    }
    let decode = |body| take_piece(served(body)?);
    is_fixed(&moves::piece(b"pp"), "0100000000000270703fa0f758", &Ok(Bytes::from_static(b"pp")), decode);

    let lease = MovedLease { offset: Offset(1), nonce: 9, left_ms: 300 };
    let cursors = vec![
        MovedCursor { epoch: AttachEpoch(12), position: Some(Bytes::from_static(b"p")), sent_through: Some(3) },
        MovedCursor { epoch: AttachEpoch(13), position: None, sent_through: None },
    ];
    let hand_over = HandOver { list, end: Offset(8), settled: Bytes::from_static(b"ss"), leases: vec![lease], cursors };
    let golden = format!(
        "010000{list_hex}000000000000000800000002737300000001{}{}{}",
        "00000000000000010000000000000009000000000000012c",
        "00000002000000000000000c010000000170010000000000000003",
        "000000000000000d0000"
    );
    is_fixed(&handed_over(&hand_over), &golden, &Ok(hand_over), |body| take_handed_over(served(body)?));
}
