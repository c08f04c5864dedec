use std::sync::Arc;

use futures_util::FutureExt;
use veena_contract::{BoxFuture, CatalogView, LeaderPort, ProposeError, Witness};

use super::*;

const LOG: LogId = LogId(77);

fn key(stream: u128) -> StreamKey {
    StreamKey { stream: StreamId(stream), source: 0 }
}

fn origin(ordinal: u32, floor: u32) -> Origin {
    Origin { id: 9, ordinal, floor }
}

fn offer(prev: Prev, sequences: &[u64]) -> Offer<'_> {
    let last = sequences.last().copied().or(prev.mark()).unwrap_or(0);
    Offer { key: key(1), origin: origin(1, 1), log_id: LOG, prev, sequences, last, last_hash: 0 }
}

fn table_with(committed: u64, appended: u64) -> StreamTable {
    let mut table = StreamTable::from_marks(LOG, Marks::new());
    table.on_appended(key(1), origin(1, 1), committed, 11);
    table.on_all_committed();
    if appended > committed {
        table.on_appended(key(1), origin(1, 1), appended, 12);
    }
    table
}

fn cause(verdict: Verdict) -> Option<Cause> {
    match verdict {
        Verdict::Refuse(refusal) => Some(refusal.cause),
        Verdict::Append { .. } | Verdict::Known => None,
    }
}

#[test]
fn a_stream_begins_once_and_follows_itself() {
    let table = StreamTable::from_marks(LOG, Marks::new());
    assert_eq!(table.judge(&offer(Prev::Begin, &[3, 7])), Verdict::Append { skip: 0, after: Prev::Begin });
    let table = table_with(7, 7);
    assert_eq!(table.judge(&offer(Prev::Seq(7), &[8])), Verdict::Append { skip: 0, after: Prev::Seq(7) });
}

#[test]
fn known_records_are_cut_one_by_one() {
    let table = table_with(3, 7);
    assert_eq!(table.judge(&offer(Prev::Begin, &[3, 5, 7, 9])), Verdict::Append { skip: 3, after: Prev::Seq(7) });
    assert_eq!(table.judge(&offer(Prev::Seq(3), &[5, 7])), Verdict::Known);
    assert_eq!(table.judge(&offer(Prev::Begin, &[3])), Verdict::Known);
}

#[test]
fn a_known_record_is_committed_only_below_the_high_watermark() {
    let mut table = table_with(3, 7);
    assert!(table.is_committed(&key(1), 3));
    assert!(!table.is_committed(&key(1), 7));
    table.on_committed(&key(1), 7);
    assert!(table.is_committed(&key(1), 7));
}

#[test]
fn what_follows_something_unknown_is_refused_with_the_standing() {
    let table = table_with(3, 7);
    let Verdict::Refuse(refusal) = table.judge(&offer(Prev::Seq(8), &[9])) else { panic!("must be refused") };
    assert_eq!(refusal.cause, Cause::PrevAhead);
    assert_eq!(refusal.standing, Standing { log_id: LOG, appended: Some(7), committed: Some(3), hash: 11 });
    let empty = StreamTable::from_marks(LOG, Marks::new());
    assert_eq!(cause(empty.judge(&offer(Prev::Seq(0), &[1]))), Some(Cause::UnknownStream));
}

#[test]
fn an_offer_to_another_log_is_refused() {
    let table = table_with(3, 3);
    let stray = Offer { log_id: LogId(78), ..offer(Prev::Seq(3), &[4]) };
    assert_eq!(cause(table.judge(&stray)), Some(Cause::OtherLog));
}

#[test]
fn a_failed_sync_takes_appended_back_to_committed() {
    let mut table = table_with(3, 7);
    table.on_appended(key(2), origin(2, 1), 1, 5);
    table.rollback();
    assert_eq!(table.open(&key(1)).appended, Some(3));
    assert_eq!(table.open(&key(2)).appended, None);
    assert_eq!(table.judge(&offer(Prev::Begin, &[3, 5, 7])), Verdict::Append { skip: 1, after: Prev::Seq(3) });
}

#[test]
fn an_advance_carries_no_record() {
    let table = table_with(3, 3);
    let advance = Offer { last: 9, ..offer(Prev::Seq(3), &[]) };
    assert_eq!(table.judge(&advance), Verdict::Append { skip: 0, after: Prev::Seq(3) });
    let heartbeat = Offer { last: 3, ..offer(Prev::Seq(3), &[]) };
    assert_eq!(table.judge(&heartbeat), Verdict::Known);
    let cut = Offer { last: 9, ..offer(Prev::Begin, &[2, 3]) };
    assert_eq!(table.judge(&cut), Verdict::Append { skip: 2, after: Prev::Seq(3) });
}

#[test]
fn another_record_under_a_known_sequence_is_a_fork() {
    let table = table_with(3, 3);
    assert_eq!(table.judge(&Offer { last_hash: 11, ..offer(Prev::Begin, &[3]) }), Verdict::Known);
    assert_eq!(cause(table.judge(&Offer { last_hash: 12, ..offer(Prev::Begin, &[3]) })), Some(Cause::Forked));
}

#[test]
fn malformed_offers_are_refused() {
    let table = table_with(3, 3);
    for bad in [
        offer(Prev::Seq(3), &[5, 5]),
        offer(Prev::Seq(3), &[6, 5]),
        offer(Prev::Seq(3), &[3]),
        Offer { last: 4, ..offer(Prev::Seq(3), &[5]) },
        Offer { last: 2, ..offer(Prev::Seq(3), &[]) },
    ] {
        assert_eq!(cause(table.judge(&bad)), Some(Cause::Malformed), "{bad:?}");
    }
}

#[test]
fn a_finished_stream_leaves_and_its_late_offer_stays_out() {
    let mut table = table_with(3, 3);
    table.on_appended(key(2), origin(2, 2), 1, 5);
    assert_eq!(table.len(), 2, "a floor counts once it is committed");
    table.on_all_committed();
    assert_eq!(table.len(), 1);
    assert_eq!(cause(table.judge(&offer(Prev::Begin, &[1]))), Some(Cause::Finished));
    let reopened = StreamTable::from_marks(LOG, table.committed_marks());
    assert_eq!(cause(reopened.judge(&offer(Prev::Begin, &[1]))), Some(Cause::Finished));
    assert_eq!(reopened, table);
}

#[test]
fn streams_without_an_origin_are_never_finished_by_others() {
    let mut table = StreamTable::from_marks(LOG, Marks::new());
    table.on_appended(key(1), Origin { id: 0, ordinal: 0, floor: 0 }, 1, 0);
    table.on_appended(key(2), Origin { id: 0, ordinal: 5, floor: 5 }, 1, 0);
    table.on_all_committed();
    assert_eq!(table.len(), 2);
}

#[test]
fn marks_hold_what_is_committed_and_nothing_else() {
    let mut table = table_with(3, 7);
    table.on_appended(key(2), origin(2, 1), 1, 5);
    let marks = table.committed_marks();
    assert_eq!(marks.len(), 1);
    assert_eq!(marks[&key(1)], Mark { committed: 3, hash: 11, origin: origin(1, 1) });
}

/// A leader that knows of no attachment.
struct NoLinks;

impl LeaderPort for NoLinks {
    fn confirmed_view(&self) -> BoxFuture<'_, Result<Arc<CatalogView>, ProposeError>> {
        Box::pin(async { Ok(Arc::default()) })
    }

    fn not_ready_reason(&self) -> Option<String> {
        None
    }
}

fn ended(streams: &[u128]) -> Confirmed<StreamsEnded> {
    let asked = streams.iter().copied().map(StreamId).collect();
    let asking = Witness::new(Arc::new(NoLinks));
    asking.streams_ended(asked).now_or_never().expect("answers at once").expect("confirms")
}

fn attached(stream: u128) -> Offer<'static> {
    Offer { key: key(stream), origin: Origin::default(), ..offer(Prev::Begin, &[1]) }
}

#[test]
fn attachments_that_end_make_room_for_others_for_ever() {
    let mut table = StreamTable::from_marks(LOG, Marks::new());
    for stream in 1..=70_000 {
        assert_eq!(table.judge(&attached(stream)), Verdict::Append { skip: 0, after: Prev::Begin }, "attachment {stream}");
        table.on_appended(key(stream), Origin::default(), 1, 0);
        table.on_all_committed();
        table.forget(&ended(&[stream]));
    }
    assert!(table.is_empty());
    assert_eq!(table.committed_marks(), Marks::new(), "the next snapshot is without them");
}

#[test]
fn a_full_table_takes_a_new_stream_once_an_attachment_has_ended() {
    let mark = Mark { committed: 1, hash: 0, origin: Origin::default() };
    let full = (1..=STREAMS_PER_LOG_MAX as u128).map(|stream| (key(stream), mark)).collect();
    let mut table = StreamTable::from_marks(LOG, full);
    assert_eq!(cause(table.judge(&attached(70_000))), Some(Cause::TableFull));
    table.forget(&ended(&[7]));
    assert_eq!(table.judge(&attached(70_000)), Verdict::Append { skip: 0, after: Prev::Begin });
}

#[test]
fn only_what_is_committed_of_attachments_that_ended_is_forgotten() {
    let mut table = table_with(3, 3);
    for source in 0..3 {
        table.on_appended(StreamKey { stream: StreamId(2), source }, Origin::default(), 1, 0);
    }
    table.on_appended(key(3), Origin::default(), 1, 0);
    table.on_all_committed();
    table.on_appended(key(4), Origin::default(), 1, 0);
    assert_eq!(table.attached(), [2, 3, 4].map(StreamId).into(), "the stream of a WAL is none");
    // Stream 1 is that of a WAL: no attachment has it, and that says nothing.
    table.forget(&ended(&[1, 2, 4]));
    assert_eq!(table.open(&key(1)).committed, Some(3));
    assert_eq!(table.open(&key(2)).appended, None, "from every partition of the parent");
    assert_eq!(table.open(&key(3)).committed, Some(1), "it was not said to have ended");
    assert_eq!(table.open(&key(4)).appended, Some(1), "its commit is under way");
}
