//! The workload's ledger shows what a broker does: an honest one is clean, every lie is found.

use std::time::Duration;

use veena_loadtest_checker::{Rules, Verdict, check};
use veena_loadtest_driver::api::NewTopic;
use veena_loadtest_driver::recorder::Recorder;
use veena_loadtest_driver::workload::{Plan, Workload, drain};

use crate::fake::{self, Lie};

/// Clients against a broker that lies, until enough was sent.
async fn verdict_on(lie: Lie) -> Verdict {
    let (addr, _broker) = fake::start(lie).await;
    let topic = |name: &str, partitions| NewTopic { name: name.to_owned(), partitions, visibility_ms: 400, keeps_order: true };
    let plan = Plan {
        keyed: 1,
        keepers: 1,
        pause_max: Duration::from_millis(2),
        ..Plan::mixed(addr, vec![topic("orders", 3), topic("narrow", 1)], 7)
    };
    let recorder = Recorder::new("n1");
    let workload = Workload::start(&plan, &recorder).await.expect("topics are created");
    while recorder.sent().0 < 400 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    workload.stop().await.expect("every answer is one the contract knows");
    drain(&plan, &recorder, Duration::from_secs(20)).await.expect("it runs dry");
    check(&recorder.history(), &Rules { ordered: plan.topic_keys().into_iter().collect(), ..Rules::default() })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_honest_broker_gets_a_clean_verdict_over_a_full_history() {
    let verdict = verdict_on(Lie::None).await;
    assert!(verdict.is_clean(), "{verdict}\n{:#?}", verdict.violations);
    // What is sent again under its key is answered again, and stored once.
    let counts = &verdict.counts;
    assert!(counts.sent_ok >= 400 && counts.acked >= counts.positions && counts.delivered > counts.positions, "{verdict}");
    assert_eq!((verdict.counts.sent_fail, verdict.counts.sent_unknown), (0, 0), "without faults everything is answered");
}

async fn assert_found(lie: Lie, counter: fn(&Verdict) -> u64) {
    let verdict = verdict_on(lie).await;
    assert!(counter(&verdict) > 0, "{lie:?} was not found: {verdict}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_loses_messages_is_found() {
    assert_found(Lie::Loses, |v| v.lost).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_stores_messages_twice_is_found() {
    assert_found(Lie::Doubles, |v| v.duplicates_outside).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_stores_what_it_refuses_is_found() {
    assert_found(Lie::KeepsRefused, |v| v.phantom + v.duplicates_outside).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_changes_a_byte_is_found() {
    assert_found(Lie::Garbles, |v| v.phantom).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_leases_a_message_twice_is_found() {
    assert_found(Lie::LeasesTwice, |v| v.double_lease).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_forgets_acks_is_found() {
    assert_found(Lie::ForgetsAck, |v| v.redelivered_acked).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_takes_an_ack_that_it_refuses_is_found() {
    assert_found(Lie::TakesRefusedAck, |v| v.lost).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_scatters_a_key_over_partitions_is_found() {
    assert_found(Lie::Scatters, |v| v.order).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_stores_twice_what_has_an_idempotency_key_is_found() {
    assert_found(Lie::ForgetsKeys, |v| v.duplicates_outside).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_leaves_offsets_out_is_found() {
    assert_found(Lie::Skips, |v| v.offsets).await;
}
