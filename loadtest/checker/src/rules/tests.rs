use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;

use super::{Rules, check};
use crate::{
    Consumed, Delivered, Digest, Down, Event, How, Label, Names, NodeChange, Observed, Op, Outcome, Sent, Settled, TopicKey, Verdict,
};

const MS: u64 = 1_000;
const VISIBILITY: u64 = 1_000 * MS;

/// A history under construction; times in milliseconds, each event one millisecond long unless said.
#[derive(Default)]
struct History(Vec<Event>);

impl History {
    fn push(mut self, client: u32, at: u64, until: u64, op: Op, outcome: Outcome) -> Self {
        self.0.push(Event { at: at * MS, until: until * MS, node: Arc::from("n1"), client, op, outcome });
        self
    }

    fn sent(self, at: u64, label: u64, outcome: Outcome) -> Self {
        self.sent_with_key(at, label, None, outcome)
    }

    fn sent_with_key(self, at: u64, label: u64, key: Option<&str>, outcome: Outcome) -> Self {
        let sent = Sent { topic: topic(), label: Label(label), key: key.map(Arc::from), digest: digest(label), once: false };
        self.push(1, at, at + 1, Op::Produce(sent), outcome)
    }

    fn got(self, at: u64, offset: u64, label: u64, nonce: u64) -> Self {
        self.came(topic(), at, at + 1, delivered(offset, label, nonce))
    }

    fn came(self, topic: TopicKey, at: u64, until: u64, message: Delivered) -> Self {
        let consumed = Consumed { topic, visibility_us: VISIBILITY, messages: vec![message] };
        self.push(2, at, until, Op::Consume(consumed), Outcome::Ok)
    }

    fn settled(self, at: u64, offset: u64, nonce: u64, how: How, outcome: Outcome) -> Self {
        let settled = Settled { topic: topic(), handle: handle(offset, nonce), how };
        self.push(2, at, at + 1, Op::Settle(settled), outcome)
    }

    fn acked(self, at: u64, offset: u64, nonce: u64) -> Self {
        self.settled(at, offset, nonce, How::Ack, Outcome::Ok)
    }

    fn down(self, at: u64, how: Down) -> Self {
        self.push(0, at, at + 1, Op::Node(NodeChange::Down(how)), Outcome::Ok)
    }

    fn observed(self, at: u64, high_watermark: u64, frontier: u64) -> Self {
        self.observed_at(at, high_watermark, frontier, None)
    }

    fn observed_at(self, at: u64, high_watermark: u64, frontier: u64, owner: Option<&str>) -> Self {
        let (log_end, owner) = (high_watermark, owner.map(Arc::from));
        let numbers = Observed { topic: topic(), partition: 0, log_end, high_watermark, frontier: Some(frontier), owner };
        self.push(3, at, at + 1, Op::Observe(numbers), Outcome::Ok)
    }

    /// The last event was at this node.
    fn at_node(mut self, node: &str) -> Self {
        self.0.last_mut().expect("an event").node = Arc::from(node);
        self
    }

    fn verdict(&self) -> Verdict {
        check(&self.0, &Rules::default())
    }
}

fn topic() -> TopicKey {
    TopicKey::new("default", "orders")
}

fn digest(label: u64) -> Digest {
    Digest::of(format!("payload of {label}").as_bytes())
}

fn handle(offset: u64, nonce: u64) -> Arc<str> {
    Arc::from(format!("0:{offset}:{nonce}"))
}

fn delivered(offset: u64, label: u64, nonce: u64) -> Delivered {
    let id = Some(Arc::from(format!("id-{label}")));
    Delivered { partition: 0, offset, id, label: Some(Label(label)), digest: digest(label), handle: handle(offset, nonce) }
}

/// Only `rule`'s counter is `count`; everything else is clean.
fn assert_only(verdict: &Verdict, pick: fn(&Verdict) -> u64, count: u64) {
    assert_eq!(pick(verdict), count, "{verdict}\n{:#?}", verdict.violations);
    assert_eq!(verdict.total(), count, "{verdict}\n{:#?}", verdict.violations);
    assert!(!verdict.violations.is_empty());
}

fn assert_clean(verdict: &Verdict) {
    assert!(verdict.is_clean(), "{verdict}\n{:#?}", verdict.violations);
}

#[test]
fn a_message_sent_delivered_and_acked_once_is_clean() {
    let history = History::default()
        .sent(0, 1, Outcome::Ok)
        .sent(2, 2, Outcome::Ok)
        .got(4, 0, 1, 10)
        .acked(6, 0, 10)
        .got(8, 1, 2, 11)
        .acked(10, 1, 11);
    let verdict = history.verdict();
    assert_clean(&verdict);
    assert_eq!((verdict.counts.sent_ok, verdict.counts.delivered, verdict.counts.acked), (2, 2, 2));
    assert!(verdict.to_string().starts_with("lost 0, phantom 0, double lease 0, duplicates outside I3 0, "), "{verdict}");
}

// R1

#[test]
fn an_answered_message_that_never_comes_is_lost() {
    let history = History::default().sent(0, 1, Outcome::Ok).sent(2, 2, Outcome::Ok).got(4, 0, 1, 10);
    assert_only(&history.verdict(), |v| v.lost, 1);
}

#[test]
fn without_a_drain_nothing_is_called_lost() {
    let history = History::default().sent(0, 1, Outcome::Ok);
    assert_clean(&check(&history.0, &Rules { is_drained: false, ..Rules::default() }));
}

#[test]
fn a_message_that_a_child_never_delivers_is_lost() {
    let child = TopicKey::new("default", "child");
    let rules = Rules { children: vec![(topic(), child.clone())], ..Rules::default() };
    let history = History::default().sent(0, 1, Outcome::Ok).got(2, 0, 1, 10);
    assert_only(&check(&history.0, &rules), |v| v.lost, 1);
    let whole = history.came(child, 4, 5, delivered(0, 1, 11));
    assert_clean(&check(&whole.0, &rules));
}

#[test]
fn an_unanswered_message_may_be_missing_or_present() {
    assert_clean(&History::default().sent(0, 1, Outcome::Unknown).verdict());
    assert_clean(&History::default().sent(0, 1, Outcome::Unknown).got(2, 0, 1, 10).verdict());
}

// R2

#[test]
fn a_message_nobody_sent_is_a_phantom() {
    assert_only(&History::default().got(0, 0, 9, 10).verdict(), |v| v.phantom, 1);
}

#[test]
fn a_message_with_other_bytes_is_a_phantom_and_the_right_one_is_lost() {
    let mut message = delivered(0, 1, 10);
    message.digest = Digest::of(b"something else");
    let verdict = History::default().sent(0, 1, Outcome::Ok).came(topic(), 2, 3, message).verdict();
    assert_eq!((verdict.phantom, verdict.lost, verdict.total()), (1, 1, 2), "{verdict}");
}

#[test]
fn a_message_without_a_label_is_a_phantom() {
    let message = Delivered { label: None, id: None, ..delivered(0, 1, 10) };
    assert_only(&History::default().came(topic(), 2, 3, message).verdict(), |v| v.phantom, 1);
}

#[test]
fn a_message_that_comes_from_another_topic_of_the_tenant_is_a_phantom() {
    let elsewhere = TopicKey::new("default", "elsewhere");
    let history = History::default().sent(0, 1, Outcome::Ok).got(2, 0, 1, 10).came(elsewhere, 4, 5, delivered(0, 1, 11));
    assert_only(&history.verdict(), |v| v.phantom, 1);
}

// R3

#[test]
fn a_refused_message_that_is_delivered_is_a_phantom() {
    assert_only(&History::default().sent(0, 1, Outcome::Fail).got(2, 0, 1, 10).verdict(), |v| v.phantom, 1);
}

#[test]
fn a_message_refused_once_and_then_accepted_is_delivered_once() {
    let history = History::default().sent(0, 1, Outcome::Fail).sent(2, 1, Outcome::Ok).got(4, 0, 1, 10);
    assert_clean(&history.verdict());
}

// R4

#[test]
fn a_second_lease_before_the_first_has_run_out_is_found() {
    let history = History::default().sent(0, 1, Outcome::Ok).got(2, 0, 1, 10).got(500, 0, 1, 11);
    assert_only(&history.verdict(), |v| v.double_lease, 1);
}

#[test]
fn one_lease_given_to_two_clients_is_found() {
    let history = History::default().sent(0, 1, Outcome::Ok).got(2, 0, 1, 10).got(2, 0, 1, 10);
    assert_only(&history.verdict(), |v| v.double_lease, 1);
}

#[test]
fn a_lease_after_the_first_has_run_out_is_clean() {
    assert_clean(&History::default().sent(0, 1, Outcome::Ok).got(2, 0, 1, 10).got(1_002, 0, 1, 11).verdict());
}

#[test]
fn an_extended_lease_holds_longer() {
    let extended = |outcome| {
        let history = History::default().sent(0, 1, Outcome::Ok).got(2, 0, 1, 10).settled(900, 0, 10, How::Extend, outcome);
        history.got(1_500, 0, 1, 11).verdict()
    };
    assert_only(&extended(Outcome::Ok), |v| v.double_lease, 1);
    assert_clean(&extended(Outcome::Fail));
    assert_clean(&extended(Outcome::Unknown));
}

#[test]
fn a_lease_given_back_may_be_given_out_at_once() {
    for outcome in [Outcome::Ok, Outcome::Unknown] {
        let history = History::default().sent(0, 1, Outcome::Ok).got(2, 0, 1, 10).settled(5, 0, 10, How::Nack, outcome).got(6, 0, 1, 11);
        assert_clean(&history.verdict());
    }
    let refused = History::default().sent(0, 1, Outcome::Ok).got(2, 0, 1, 10).settled(5, 0, 10, How::Nack, Outcome::Fail).got(6, 0, 1, 11);
    assert_only(&refused.verdict(), |v| v.double_lease, 1);
}

#[test]
fn leases_end_with_the_process() {
    for how in [Down::Killed, Down::PowerCut, Down::Stopped] {
        let history = History::default().sent(0, 1, Outcome::Ok).got(2, 0, 1, 10).down(5, how).got(8, 0, 1, 11);
        assert_clean(&history.verdict());
    }
}

#[test]
fn a_lease_that_may_have_begun_after_the_other_ran_out_is_clean() {
    // A long poll: asked early, given late.
    let history = History::default().sent(0, 1, Outcome::Ok).got(2, 0, 1, 10);
    assert_clean(&history.came(topic(), 3, 1_500, delivered(0, 1, 11)).verdict());
}

// R5

#[test]
fn an_acked_message_that_comes_again_is_found() {
    let history = History::default().sent(0, 1, Outcome::Ok).got(2, 0, 1, 10).acked(4, 0, 10).got(6, 0, 1, 11);
    assert_only(&history.verdict(), |v| v.redelivered_acked, 1);
}

#[test]
fn an_ack_of_unknown_outcome_promises_nothing() {
    let history =
        History::default().sent(0, 1, Outcome::Ok).got(2, 0, 1, 10).settled(4, 0, 10, How::Ack, Outcome::Unknown).got(6, 0, 1, 11);
    assert_clean(&history.verdict());
}

/// Acked at `acked`, ended at 5 s, delivered again.
fn redelivered_over(how: Down, acked: u64) -> Verdict {
    let history = History::default().sent(0, 1, Outcome::Ok).got(acked - 2, 0, 1, 10).acked(acked - 1, 0, 10).down(5_000, how);
    history.got(5_010, 0, 1, 11).verdict()
}

#[test]
fn a_kill_may_forget_acks_of_the_last_100_ms_and_no_older() {
    let inside = redelivered_over(Down::Killed, 4_900);
    assert_clean(&inside);
    assert_eq!((inside.counts.redelivered_inside, inside.counts.oldest_lost_ack_us), (1, 100 * MS));
    assert_only(&redelivered_over(Down::Killed, 4_899), |v| v.redelivered_acked, 1);
}

#[test]
fn a_power_cut_may_forget_acks_of_the_last_1100_ms_and_no_older() {
    assert_clean(&redelivered_over(Down::PowerCut, 3_900));
    assert_only(&redelivered_over(Down::PowerCut, 3_899), |v| v.redelivered_acked, 1);
}

#[test]
fn an_ack_whose_answer_was_read_after_the_kill_may_be_forgotten() {
    let settled = Settled { topic: topic(), handle: handle(0, 10), how: How::Ack };
    let history = History::default().sent(0, 1, Outcome::Ok).got(2, 0, 1, 10).down(20, Down::Killed);
    let history = history.push(2, 15, 25, Op::Settle(settled), Outcome::Ok).got(40, 0, 1, 11);
    assert_clean(&history.verdict());
    assert_eq!(history.verdict().counts.redelivered_inside, 1);
}

#[test]
fn an_ack_sent_after_the_kill_may_not_be_forgotten() {
    let history = History::default().sent(0, 1, Outcome::Ok).got(2, 0, 1, 10).down(20, Down::Killed);
    let history = history.got(25, 0, 1, 11).acked(30, 0, 11).got(40, 0, 1, 12);
    assert_only(&history.verdict(), |v| v.redelivered_acked, 1);
}

#[test]
fn of_several_nodes_only_the_end_of_the_owner_may_forget_acks() {
    for (node, redelivered_acked) in [("n1", 0), ("n2", 1)] {
        let history = History::default().observed_at(0, 1, 0, Some("n1")).sent(0, 1, Outcome::Ok).got(2, 0, 1, 10).acked(4, 0, 10);
        let history = history.down(20, Down::Killed).at_node(node).got(30, 0, 1, 11).acked(40, 0, 11);
        assert_eq!(history.verdict().redelivered_acked, redelivered_acked, "{node} was killed");
    }
}

#[test]
fn of_several_nodes_only_the_end_of_the_owner_ends_a_lease() {
    for (node, double_lease) in [("n1", 0), ("n2", 1)] {
        let history = History::default().observed_at(0, 1, 0, Some("n1")).sent(0, 1, Outcome::Ok).got(2, 0, 1, 10);
        let history = history.down(20, Down::Killed).at_node(node).got(30, 0, 1, 11).acked(40, 0, 11);
        assert_eq!(history.verdict().double_lease, double_lease, "{node} was killed");
    }
}

#[test]
fn an_ack_that_was_refused_and_settled_all_the_same_is_found() {
    let refused = |history: History| history.settled(4, 0, 10, How::Ack, Outcome::Fail);
    let taken = refused(History::default().sent(0, 1, Outcome::Ok).got(2, 0, 1, 10));
    assert_eq!(taken.verdict().lost, 1);
    let again = refused(History::default().sent(0, 1, Outcome::Ok).got(2, 0, 1, 10)).got(1_100, 0, 1, 11).acked(1_102, 0, 11);
    assert!(again.verdict().is_clean(), "{:?}", again.verdict().violations);
}

#[test]
fn a_clean_stop_may_forget_nothing() {
    assert_only(&redelivered_over(Down::Stopped, 4_999), |v| v.redelivered_acked, 1);
}

#[test]
fn time_in_which_the_node_stood_still_does_not_age_an_ack() {
    let history = History::default().sent(0, 1, Outcome::Ok).got(2, 0, 1, 10).acked(49, 0, 10);
    let history = history.push(0, 100, 900, Op::Node(NodeChange::Paused), Outcome::Ok).down(940, Down::Killed).got(960, 0, 1, 11);
    assert_clean(&history.verdict());
    assert_eq!(history.verdict().counts.oldest_lost_ack_us, 90 * MS);
}

#[test]
fn an_ack_forgotten_by_one_kill_does_not_excuse_the_next_ack() {
    let history = History::default().sent(0, 1, Outcome::Ok).got(2, 0, 1, 10).acked(4, 0, 10).down(50, Down::Killed);
    let history = history.got(60, 0, 1, 11).acked(62, 0, 11).got(70, 0, 1, 12);
    assert_only(&history.verdict(), |v| v.redelivered_acked, 1);
}

// I3

#[test]
fn one_id_at_two_offsets_is_a_duplicate_even_if_the_produce_was_repeated() {
    let history = History::default().sent(0, 1, Outcome::Unknown).sent(2, 1, Outcome::Ok).got(4, 0, 1, 10).got(6, 1, 1, 11);
    assert_only(&history.verdict(), |v| v.duplicates_outside, 1);
}

#[test]
fn one_produce_at_two_offsets_is_a_duplicate() {
    let second = Delivered { id: Some(Arc::from("another")), ..delivered(1, 1, 11) };
    for outcome in [Outcome::Ok, Outcome::Unknown] {
        let history = History::default().sent(0, 1, outcome).got(4, 0, 1, 10).came(topic(), 6, 7, second.clone());
        assert_only(&history.verdict(), |v| v.duplicates_outside, 1);
    }
}

#[test]
fn what_is_sent_under_an_idempotency_key_is_stored_once_however_often_it_is_tried() {
    let sent = || Sent { topic: topic(), label: Label(1), key: None, digest: digest(1), once: true };
    let tried = History::default()
        .push(1, 1, 2, Op::Produce(sent()), Outcome::Unknown)
        .push(1, 3, 4, Op::Produce(sent()), Outcome::Ok)
        .got(10, 0, 1, 1)
        .acked(12, 0, 1);
    assert_clean(&tried.verdict());
    let other_id = Delivered { id: Some(Arc::from("another")), ..delivered(1, 1, 2) };
    let twice = tried.came(topic(), 20, 21, other_id).acked(22, 1, 2);
    assert_only(&twice.verdict(), |verdict| verdict.duplicates_outside, 1);
}

#[test]
fn a_clients_repeat_of_an_unanswered_produce_may_be_stored_twice_but_not_three_times() {
    let copy = |offset: u64| Delivered { id: Some(Arc::from(format!("copy {offset}"))), ..delivered(offset, 1, 10 + offset) };
    let history =
        History::default().sent(0, 1, Outcome::Unknown).sent(2, 1, Outcome::Ok).came(topic(), 4, 5, copy(0)).came(topic(), 6, 7, copy(1));
    assert_clean(&history.verdict());
    assert_eq!(history.verdict().counts.repeats_allowed, 1);
    assert_only(&history.came(topic(), 8, 9, copy(2)).verdict(), |v| v.duplicates_outside, 1);
}

#[test]
fn a_refused_attempt_allows_no_second_copy() {
    let second = Delivered { id: Some(Arc::from("another")), ..delivered(1, 1, 11) };
    let history = History::default().sent(0, 1, Outcome::Fail).sent(2, 1, Outcome::Ok).got(4, 0, 1, 10).came(topic(), 6, 7, second);
    assert_only(&history.verdict(), |v| v.duplicates_outside, 1);
}

// R6

fn ordered(first: (u32, u64), second: (u32, u64)) -> Verdict {
    let at = |(partition, offset): (u32, u64), label| Delivered { partition, ..delivered(offset, label, 10 + label) };
    let history = History::default().sent_with_key(0, 1, Some("k"), Outcome::Ok).sent_with_key(2, 2, Some("k"), Outcome::Ok);
    let history = history.came(topic(), 4, 5, at(first, 1)).came(topic(), 6, 7, at(second, 2));
    check(&history.0, &Rules { ordered: BTreeSet::from([topic()]), ..Rules::default() })
}

#[test]
fn messages_of_one_key_in_another_order_are_found() {
    assert_clean(&ordered((0, 0), (0, 1)));
    assert_only(&ordered((0, 1), (0, 0)), |v| v.order, 1);
}

#[test]
fn messages_of_one_key_in_two_partitions_are_found() {
    assert_only(&ordered((0, 0), (1, 0)), |v| v.order, 1);
}

#[test]
fn messages_that_went_to_two_nodes_may_overtake_each_other() {
    let history = History::default().sent_with_key(0, 1, Some("k"), Outcome::Ok).sent_with_key(2, 2, Some("k"), Outcome::Ok).at_node("n2");
    let history = history.came(topic(), 4, 5, delivered(1, 1, 11)).came(topic(), 6, 7, delivered(0, 2, 12));
    assert_clean(&check(&history.0, &Rules { ordered: BTreeSet::from([topic()]), ..Rules::default() }));
}

#[test]
fn topics_without_declared_order_are_not_judged() {
    let history = History::default().sent_with_key(0, 1, Some("k"), Outcome::Ok).sent_with_key(2, 2, Some("k"), Outcome::Ok);
    assert_clean(&history.got(4, 1, 1, 10).got(6, 0, 2, 11).verdict());
}

// R7

#[test]
fn a_message_of_another_tenant_is_found() {
    let other = TopicKey::new("other", "orders");
    let history = History::default().sent(0, 1, Outcome::Ok).got(2, 0, 1, 10).came(other, 4, 5, delivered(0, 1, 11));
    assert_only(&history.verdict(), |v| v.tenant, 1);
}

#[test]
fn a_name_of_another_tenant_is_found() {
    let shown = |names: &[&str]| {
        let names = Names { tenant: Arc::from("other"), names: names.iter().map(|n| Arc::from(*n)).collect() };
        let history = History::default().sent(0, 1, Outcome::Unknown);
        history.push(1, 2, 3, Op::Names(names), Outcome::Ok).verdict()
    };
    assert_clean(&shown(&["own"]));
    assert_only(&shown(&["own", "orders"]), |v| v.tenant, 1);
}

// R8

#[test]
fn a_hole_in_the_offsets_is_found() {
    let history = History::default().sent(0, 1, Outcome::Ok).sent(2, 2, Outcome::Ok).got(4, 0, 1, 10).got(6, 3, 2, 11);
    assert_only(&history.verdict(), |v| v.offsets, 2);
}

#[test]
fn visible_offsets_that_never_came_are_found() {
    let history = History::default().sent(0, 1, Outcome::Ok).got(4, 0, 1, 10).observed(6, 3, 1);
    assert_only(&history.verdict(), |v| v.offsets, 2);
}

#[test]
fn an_offset_used_for_two_messages_is_found() {
    let history =
        History::default().sent(0, 1, Outcome::Ok).sent(2, 2, Outcome::Ok).got(4, 0, 1, 10).down(6, Down::Killed).got(8, 0, 2, 11);
    assert_only(&history.verdict(), |v| v.offsets, 1);
}

#[test]
fn a_watermark_that_goes_back_is_found_even_over_a_power_cut() {
    let history = History::default().observed(0, 2, 0).down(2, Down::PowerCut).observed(4, 1, 0);
    assert_only(&check(&history.0, &Rules { is_drained: false, ..Rules::default() }), |v| v.offsets, 1);
}

#[test]
fn a_frontier_may_go_back_over_a_kill_but_not_over_a_clean_stop() {
    let undrained = Rules { is_drained: false, ..Rules::default() };
    let over = |how| check(&History::default().observed(0, 2, 2).down(2, how).observed(4, 2, 1).0, &undrained);
    assert_clean(&over(Down::Killed));
    assert_only(&over(Down::Stopped), |v| v.offsets, 1);
    assert_only(&check(&History::default().observed(0, 2, 2).observed(4, 2, 1).0, &undrained), |v| v.offsets, 1);
}

#[test]
fn a_frontier_above_the_watermark_is_found() {
    let undrained = Rules { is_drained: false, ..Rules::default() };
    assert_only(&check(&History::default().observed(0, 2, 3).0, &undrained), |v| v.offsets, 1);
}

/// A broker that keeps every promise: what it does is clean, whatever the clients do.
fn honest(script: &[(u8, u8)]) -> History {
    let mut history = History::default();
    let mut now = 0;
    let mut log: Vec<(u64, u64, bool)> = Vec::new(); // label, leased until, settled
    let mut nonce = 0;
    for (label, (action, which)) in (1..).zip(script) {
        now += 2;
        match action % 5 {
            0 => {
                history = history.sent(now, label, Outcome::Ok);
                log.push((label, 0, false));
            }
            1 => history = history.sent(now, label, Outcome::Fail),
            2 => history = history.down(now, Down::Killed),
            _ => {
                if let Some(at) = log.iter().position(|(_, leased, settled)| !settled && *leased <= now) {
                    nonce += 1;
                    let offset = u64::try_from(at).expect("a short log");
                    history = history.got(now, offset, log[at].0, nonce);
                    log[at].1 = now + 1_000 + 2;
                    if which % 2 == 0 {
                        history = history.acked(now + 1, offset, nonce);
                        log[at].2 = true;
                        now += 2;
                    }
                }
            }
        }
    }
    for (at, (label, ..)) in log.iter().enumerate().filter(|(_, (_, _, settled))| !settled) {
        nonce += 1;
        history = history.got(now + 2_000, u64::try_from(at).expect("a short log"), *label, nonce);
    }
    history
}

proptest! {
    #[test]
    fn an_honest_broker_is_never_accused(script in proptest::collection::vec(any::<(u8, u8)>(), 0..60)) {
        let verdict = honest(&script).verdict();
        prop_assert!(verdict.is_clean(), "{verdict}\n{:#?}", verdict.violations);
    }

    #[test]
    fn a_message_dropped_from_an_honest_history_is_always_noticed(script in proptest::collection::vec(any::<(u8, u8)>(), 1..60), pick in any::<prop::sample::Index>()) {
        let mut history = honest(&script);
        let labels: Vec<Label> = history.0.iter().filter_map(|e| match (&e.op, e.outcome) {
            (Op::Produce(sent), Outcome::Ok) => Some(sent.label),
            _ => None,
        }).collect();
        prop_assume!(!labels.is_empty());
        let victim = *pick.get(&labels);
        history.0.retain(|e| !matches!(&e.op, Op::Consume(c) if c.messages[0].label == Some(victim)));
        prop_assert_eq!(history.verdict().lost, 1);
    }
}
