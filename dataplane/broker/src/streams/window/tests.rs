use super::*;

const LOG: LogId = LogId(77);
const SOURCE: Source = Source { begin: 1, owed_from: 1, retained_from: 1, end: 100 };

fn standing(committed: Option<u64>) -> Standing {
    Standing { log_id: LOG, appended: committed, committed, hash: 0 }
}

fn opened(committed: Option<u64>) -> SenderWindow {
    let mut window = SenderWindow::new(None, None);
    window.on_opened(&standing(committed), &SOURCE, |_| None);
    window
}

#[test]
fn the_first_commit_of_a_life_is_preceded_by_an_open() {
    let mut window = SenderWindow::new(Some(4), None);
    assert!(window.needs_open());
    assert_eq!(window.next_offer(&[5], 5), None);
    assert_eq!(window.on_opened(&standing(Some(6)), &SOURCE, |_| None), Start::Resume { after: Prev::Seq(6), is_back: false });
    assert_eq!(window.next_offer(&[7, 9], 10), Some(Ticket { log_id: LOG, prev: Prev::Seq(6), last: 10 }));
}

#[test]
fn one_commit_is_in_flight_and_the_next_follows_what_was_confirmed() {
    let mut window = opened(None);
    assert_eq!(window.next_offer(&[1, 2], 2).map(|ticket| ticket.prev), Some(Prev::Begin));
    assert_eq!(window.next_offer(&[3], 3), None);
    assert!(!window.on_committed(1), "an answer for something else");
    assert!(window.on_committed(2));
    assert_eq!(window.next_offer(&[3], 3).map(|ticket| ticket.prev), Some(Prev::Seq(2)));
}

#[test]
fn no_answer_means_open_again() {
    let mut window = opened(None);
    let _ = window.next_offer(&[1], 1);
    window.on_lost();
    assert!(window.needs_open());
}

#[test]
fn a_record_that_may_have_arrived_is_never_moved() {
    let mut window = opened(None);
    assert!(window.may_move(1));
    let _ = window.next_offer(&[1, 2], 2);
    assert!(!window.may_move(2) && window.may_move(3));
    window.on_lost();
    assert!(!window.may_move(2) && window.may_move(3));
    window.on_opened(&standing(None), &SOURCE, |_| None);
    assert!(!window.may_move(2), "the commit may still be under way");
    let reborn = SenderWindow::new(Some(3), Some(8));
    assert!(!reborn.may_move(3) && !reborn.may_move(8) && reborn.may_move(9));
}

#[test]
fn a_refused_or_unsent_record_may_be_moved() {
    let mut window = opened(None);
    let _ = window.next_offer(&[1], 1);
    window.on_not_sent();
    assert!(window.may_move(1) && window.needs_open());
}

#[test]
fn a_sender_goes_back_when_it_still_has_the_records() {
    let mut window = SenderWindow::new(Some(9), None);
    let source = Source { owed_from: 10, ..SOURCE };
    assert_eq!(window.on_opened(&standing(Some(4)), &source, |_| None), Start::Resume { after: Prev::Seq(4), is_back: true });
}

#[test]
fn a_sender_declares_a_gap_when_it_no_longer_has_the_records() {
    let mut window = SenderWindow::new(Some(9), None);
    let source = Source { owed_from: 10, retained_from: 8, ..SOURCE };
    assert_eq!(window.on_opened(&standing(Some(4)), &source, |_| None), Start::Gap { after: Prev::Seq(4), through: 7 });
    assert_eq!(window.next_offer(&[8], 8), None, "the gap comes first");
    assert_eq!(window.gap_offer(), Some(Ticket { log_id: LOG, prev: Prev::Seq(4), last: 7 }));
    assert!(window.on_committed(7));
    assert_eq!(window.next_offer(&[8], 8).map(|ticket| ticket.prev), Some(Prev::Seq(7)));
}

#[test]
fn a_sender_that_has_gone_back_counts_from_there() {
    let mut window = SenderWindow::new(Some(9), None);
    let _ = window.on_opened(&standing(Some(4)), &SOURCE, |_| None);
    assert_eq!(window.confirmed(), Some(4));
    assert_eq!(window.position(), Some(Prev::Seq(4)));
    assert!(!window.may_move(9), "what the owner has lost may still be under way to it");
    assert!(window.may_move(10));
}

#[test]
fn a_gap_whose_declaration_is_lost_is_declared_again() {
    let mut window = SenderWindow::new(Some(9), None);
    let source = Source { owed_from: 10, retained_from: 8, ..SOURCE };
    for _ in 0..2 {
        assert_eq!(window.on_opened(&standing(Some(4)), &source, |_| None), Start::Gap { after: Prev::Seq(4), through: 7 });
        let _ = window.gap_offer();
        window.on_lost();
    }
}

#[test]
fn what_retention_took_from_a_cursor_is_a_gap_too() {
    let mut window = SenderWindow::new(Some(9), None);
    let source = Source { owed_from: 10, retained_from: 50, ..SOURCE };
    assert_eq!(window.on_opened(&standing(Some(9)), &source, |_| None), Start::Gap { after: Prev::Seq(9), through: 49 });
}

#[test]
fn settled_records_that_are_gone_are_no_gap() {
    let mut window = SenderWindow::new(None, None);
    let source = Source { owed_from: 50, retained_from: 50, ..SOURCE };
    assert_eq!(window.on_opened(&standing(Some(9)), &source, |_| None), Start::Resume { after: Prev::Seq(9), is_back: false });
}

#[test]
fn an_owner_ahead_of_its_source_stops_both() {
    let mut window = SenderWindow::new(None, None);
    let start = window.on_opened(&standing(Some(100)), &SOURCE, |_| None);
    assert_eq!(start, Start::Stopped(Stop::SourceBehind { owner: 100, end: 100 }));
    assert!(window.stopped().is_some());
    window.on_lost();
    window.on_not_sent();
    assert!(window.stopped().is_some(), "nothing but an operator ends it");
}

#[test]
fn another_record_at_the_same_sequence_stops_both() {
    let mut window = SenderWindow::new(None, None);
    let start = window.on_opened(&Standing { hash: 5, ..standing(Some(3)) }, &SOURCE, |_| Some(6));
    assert_eq!(start, Start::Stopped(Stop::Forked { at: 3 }));
}

#[test]
fn a_refusal_is_followed_by_an_open() {
    let mut window = opened(Some(3));
    let _ = window.next_offer(&[4], 4);
    let refusal = Refusal { cause: Cause::OtherLog, standing: standing(None) };
    assert_eq!(window.on_refused(&refusal, &SOURCE, |_| None), Start::Resume { after: Prev::Begin, is_back: true });
    assert!(window.needs_open());
    let _ = window.on_opened(&standing(None), &SOURCE, |_| None);
    let _ = window.next_offer(&[1], 1);
    let refusal = Refusal { cause: Cause::Finished, standing: standing(None) };
    assert_eq!(window.on_refused(&refusal, &SOURCE, |_| None), Start::Stopped(Stop::Finished));
}
