use proptest::prelude::*;
use veena_contract::Quota;

use super::*;

const SECOND: u64 = 1_000_000;

fn tenant() -> TenantId {
    TenantId::default_tenant()
}

fn topic() -> TopicName {
    TopicName::parse("a").expect("a name")
}

/// A view in which the tenant, and its topic `a`, have these limits.
fn view(of_tenant: Option<Quota>, of_topic: Option<Quota>) -> CatalogView {
    let mut view = CatalogView::default();
    for (topic, quota) in [(None, of_tenant), (Some(topic()), of_topic)] {
        if let Some(quota) = quota {
            let record = QuotaRecord { tenant: tenant(), topic: topic.clone(), quota, revision: 1 };
            view.quotas.insert(record);
        }
    }
    view
}

fn messages(messages_in_per_s: u64) -> Quota {
    Quota { messages_in_per_s: Some(messages_in_per_s), ..Quota::default() }
}

#[test]
fn who_has_no_limits_costs_nothing_and_is_not_remembered() {
    let quotas = Quotas::default();
    let view = view(None, None);
    let records = Records::of(&view, &tenant(), Some(&topic()));
    for _ in 0..10_000 {
        quotas.take(&records, &Use::produced(1_000, 1_000_000), 0).expect("no limit");
    }
    assert!(quotas.is_empty());
}

#[test]
fn what_one_limit_refuses_takes_nothing_of_the_others() {
    let quotas = Quotas::default();
    let view = view(Some(messages(100)), Some(messages(10)));
    let both = Records::of(&view, &tenant(), Some(&topic()));
    let tenant_alone = Records::of(&view, &tenant(), None);
    quotas.take(&both, &Use::produced(10, 0), 0).expect("room");
    for _ in 0..1_000 {
        let refused = quotas.take(&both, &Use::produced(1, 0), 0).expect_err("the topic is over its limit");
        assert_eq!((refused.scope, refused.limit, refused.current, refused.quota), (QuotaScope::Topic, Limit::MessagesInPerS, 10, 10));
        assert_eq!(refused.wait, Duration::from_millis(100));
    }
    quotas.take(&tenant_alone, &Use::produced(90, 0), 0).expect("what the topic refused was not taken of the tenant");
    assert_eq!(quotas.take(&tenant_alone, &Use::produced(1, 0), 0).expect_err("full").scope, QuotaScope::Tenant);
    quotas.give_back(&tenant_alone, &Use::produced(1, 0), 0);
    quotas.take(&tenant_alone, &Use::produced(1, 0), 0).expect("one was given back");
}

#[test]
fn a_batch_counts_its_messages_and_what_was_delivered_is_waited_for() {
    let quotas = Quotas::default();
    let view = view(Some(Quota { messages_in_per_s: Some(50), messages_out_per_s: Some(10), ..Quota::default() }), None);
    let records = Records::of(&view, &tenant(), Some(&topic()));
    quotas.take(&records, &Use::produced(1_000, 0), 0).expect("a full bucket takes one request that is larger");
    let refused = quotas.take(&records, &Use::produced(1, 0), SECOND).expect_err("it is paid off first");
    assert!(refused.wait > Duration::from_secs(18), "{refused:?}");
    quotas.look(&records, &Use::delivered(1, 0), 0).expect("nothing was delivered");
    quotas.charge(&records, &Use::delivered(100, 0), 0);
    assert!(quotas.look(&records, &Use::delivered(1, 0), 9 * SECOND).is_err());
    quotas.look(&records, &Use::delivered(1, 0), 10 * SECOND).expect("as much as comes in ten seconds");
}

#[test]
fn two_nodes_let_in_as_much_as_one_and_shares_end_with_the_word_of_the_leader() {
    let nodes = [Quotas::default(), Quotas::default()];
    let view = view(Some(messages(100)), None);
    let records = Records::of(&view, &tenant(), None);
    let mut taken = 0;
    for quotas in &nodes {
        quotas.set_nodes(2);
        taken += (0..1_000).filter(|_| quotas.take(&records, &Use::produced(1, 0), 0).is_ok()).count();
    }
    assert_eq!(taken, 100, "half of it each");
    assert_eq!(nodes[0].take_demand(), [(tenant(), None, [0, 1_000 * MICRO, 0, 0, 0])]);
    assert_eq!(nodes[0].take_demand(), []);
    nodes[0].give(&view, &tenant(), None, [None, Some(98 * MICRO), None, None, None], 10 * SECOND);
    let after = |at: u64| (0..1_000).filter(|_| nodes[0].take(&records, &Use::produced(1, 0), at).is_ok()).count();
    assert_eq!(after(11 * SECOND), 98);
    assert_eq!(after(13 * SECOND), 50, "an equal share again");
    // A node that was asked for nothing is told of it too, and does not forget.
    nodes[0].forget_idle(&view, 100 * SECOND);
    assert!(nodes[0].is_empty());
    nodes[0].give(&view, &tenant(), None, [None, Some(3 * MICRO), None, None, None], 100 * SECOND);
    nodes[0].forget_idle(&view, 101 * SECOND);
    assert_eq!((after(101 * SECOND), after(103 * SECOND)), (3, 3), "others may still have the rest");
    assert_eq!(after(105 * SECOND), 50);
}

#[test]
fn a_consumer_that_waits_is_counted_until_it_is_dropped() {
    let quotas = Quotas::default();
    let view = view(Some(Quota { parked_polls: Some(3), ..Quota::default() }), None);
    let records = Records::of(&view, &tenant(), None);
    let mut held: Vec<_> = (0..3).map(|_| quotas.hold_poll(&records, 0).expect("room").expect("held")).collect();
    let refused = quotas.hold_poll(&records, 0).err().expect("full");
    assert_eq!((refused.limit, refused.current, refused.allowed), (Limit::ParkedPolls, 3, 3));
    quotas.forget_idle(&view, 100 * SECOND);
    held.pop();
    held.push(quotas.hold_poll(&records, 0).expect("room again").expect("held"));
    assert!(quotas.hold_poll(&records, 0).is_err(), "who waits was not forgotten");
    drop(held);
    quotas.forget_idle(&view, 100 * SECOND);
    assert!(quotas.is_empty());
}

#[test]
fn idle_tenants_make_room_and_those_in_debt_stay() {
    let quotas = Quotas::default();
    let name = |number: usize| TenantId::parse(&format!("t{number}")).expect("a name");
    let record = |number: usize| Arc::new(QuotaRecord { tenant: name(number), topic: None, quota: messages(10), revision: 1 });
    let take = |number: usize, messages, at| {
        let record = record(number);
        quotas.take(&Records { tenant: Some(&record), topic: None }, &Use::produced(messages, 0), at)
    };
    take(0, 1_000, 0).expect("into debt");
    for number in 1..limits::QUOTA_TENANTS_MAX {
        take(number, 5, 0).expect("room");
    }
    assert_eq!(quotas.len(), limits::QUOTA_TENANTS_MAX);
    take(limits::QUOTA_TENANTS_MAX, 1, 5 * SECOND).expect("room");
    assert_eq!(quotas.len(), 2);
    assert!(take(0, 1, 5 * SECOND).is_err(), "what is owed is not forgotten");
}

proptest! {
    /// Whatever is taken, given back, charged and looked at, by whichever path: what was let in is what came and one burst.
    #[test]
    fn no_mixture_of_calls_lets_in_more_than_the_limit(rate in 1..200_u64, steps in proptest::collection::vec((0..4_u8, 1..50_u64, 0..300_000_u64), 1..200)) {
        let quotas = Quotas::default();
        let view = view(Some(messages(rate)), Some(messages(rate * 2)));
        let records = Records::of(&view, &tenant(), Some(&topic()));
        let (mut now, mut taken, mut given_back) = (0, 0, 0);
        for (call, tokens, pause) in steps {
            now += pause;
            let wanted = Use::produced(tokens, 0);
            match call {
                0 => drop(quotas.look(&records, &wanted, now)),
                1 if quotas.take(&records, &wanted, now).is_ok() => {
                    quotas.give_back(&records, &wanted, now);
                    given_back += tokens;
                }
                2 => quotas.forget_idle(&view, now),
                _ if quotas.take(&records, &wanted, now).is_ok() => taken += tokens,
                _ => {}
            }
        }
        let came = rate * now / SECOND;
        prop_assert!(taken <= came + rate.max(50) + 1, "{taken} of {came}, {given_back} given back");
    }
}

#[test]
fn connections_that_are_refused_come_back_one_after_the_other_and_none_is_left_alone_for_long() {
    let (view, quotas) = (view(Some(messages(100)), None), Quotas::default());
    let records = Records::of(&view, &tenant(), None);
    quotas.take(&records, &Use::produced(100, 0), 0).expect("a burst");
    let refused = || quotas.take(&records, &Use::produced(1, 0), 0).expect_err("over the limit");
    let pauses: Vec<u128> = (0..50).map(|_| refused().pause.as_millis()).collect();
    assert!(pauses.is_sorted() && pauses[0] == 10 && pauses[49] == 500, "{pauses:?}");
    assert!((0..200).all(|_| refused().pause <= Exceeded::PAUSE_MAX));
    // Nobody has come for a while: the next is not behind those of before.
    let late = 10_000_000;
    quotas.take(&records, &Use::produced(100, 0), late).expect("a burst");
    assert_eq!(quotas.take(&records, &Use::produced(1, 0), late).expect_err("over the limit").pause.as_millis(), 10);
}
