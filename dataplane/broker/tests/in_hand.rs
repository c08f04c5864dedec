//! What clients have in hand while its partition moves: a lease ends when they were told that it does, and one message is in one hand.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use veena_broker::Broker;
use veena_broker::errors::SettleError;
use veena_broker::message::{Delivery, Settle};
use veena_contract::{Effect, Entropy, Offset, PeerOp, TopicRecord};

use crate::moves::{INDEX, begin, dirs, owner, put, seen_by_all, spread, stored, take_of, until, until_at, wanted};
use crate::net::{Cluster, Fault, NODES};
use crate::support::{Node, Proposal, Seeded, name, tenant};

/// How long a lease lives: longer than a settle is waited for, shorter than what stands still here.
const LEASE: Duration = Duration::from_secs(12);

async fn cluster(seed: u64) -> Cluster {
    let cluster = Cluster::start_lagging(seed).await;
    let visibility_timeout_ms = u64::try_from(LEASE.as_millis()).expect("fits");
    cluster.catalog.put(TopicRecord { visibility_timeout_ms, ..spread() });
    seen_by_all().await;
    cluster
}

async fn fill(cluster: &Cluster, count: usize) {
    for n in 0..count {
        put(cluster.node("a"), &format!("{n:04}")).await;
    }
    cluster.settle_down().await;
}

async fn settle(broker: &Broker, delivery: &Delivery, how: Settle) -> Result<(), SettleError> {
    broker.settle(&tenant(), &name("orders"), delivery.lease.expect("a lease").handle, how).await
}

/// Until it is known what became of it; what was refused meanwhile was certainly not done.
async fn settle_surely(node: &Node, delivery: &Delivery, how: Settle) -> Result<(), SettleError> {
    loop {
        match settle(&node.broker, delivery, how).await {
            Err(error @ (SettleError::NotReached | SettleError::OwnerDown)) => assert_eq!(error.effect(), Effect::None),
            known => return known,
        }
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_extended_while_its_partition_moves_ends_a_timeout_after_it_was_extended_last() {
    let cluster = cluster(1).await;
    fill(&cluster, 2).await;
    let taken = take_of(cluster.node("a"), Some(INDEX), 2, 0).await;
    let [kept, left] = taken.as_slice() else { panic!("{taken:?}") };
    // So slow that a lease nobody extends ends within each move.
    for (from, to) in [("c", "b"), ("a", "c"), ("b", "a")] {
        cluster.net.fail_op(from, to, PeerOp::OWNER_COPY, Fault::Delay(LEASE / 3));
    }
    let (mut extended_at, mut again) = (Instant::now(), Vec::new());
    for (step, to) in ["c", "a", "b", "c"].into_iter().enumerate() {
        begin(&cluster, to, step as u128 + 1);
        let began = Instant::now();
        while owner(&cluster.catalog).moving.is_some() {
            // The last move has only what was extended before it began.
            if step < 3 {
                settle_surely(cluster.node(NODES[step]), kept, Settle::Extend).await.expect("it lives");
                extended_at = Instant::now();
            }
            again.extend(take_of(cluster.node(NODES[(step + 1) % 3]), Some(INDEX), 2, 0).await);
            assert!(again.iter().all(|delivery| delivery.offset == left.offset), "{again:?}");
            sleep(LEASE / 12).await;
        }
        if step == 2 {
            assert!(!again.is_empty() && began.elapsed() > LEASE / 2, "it took only {:?}", began.elapsed());
            let late = settle_surely(cluster.node("a"), left, Settle::Extend).await;
            assert!(matches!(late, Err(SettleError::LeaseLost)), "who comes too late takes no lease from another");
            cluster.net.fail_op("c", "b", PeerOp::OWNER_COPY, Fault::Delay(Duration::from_millis(50)));
            settle_surely(cluster.node("b"), kept, Settle::Extend).await.expect("it lives");
            extended_at = Instant::now();
        }
    }
    let lives = LEASE - extended_at.elapsed();
    sleep(lives - Duration::from_millis(1)).await;
    let others = take_of(cluster.node("b"), Some(INDEX), 2, 0).await;
    assert!(others.iter().all(|delivery| delivery.offset != kept.offset), "it was extended");
    // What it took to hand the partition over may come on top.
    let next = take_of(cluster.node("b"), Some(INDEX), 1, 2_000).await;
    assert_eq!(next.iter().map(|delivery| delivery.offset).collect::<Vec<_>>(), [kept.offset], "nobody extended it any more");
    assert!(extended_at.elapsed() < LEASE + Duration::from_secs(2));
    for how in [Settle::Extend, Settle::Ack] {
        assert!(matches!(settle_surely(cluster.node("a"), kept, how).await, Err(SettleError::LeaseLost)), "it is in another hand");
    }
    settle_surely(cluster.node("a"), &next[0], Settle::Ack).await.expect("its own");
}

/// What clients know: who was given what, by their own clocks, and what was acked.
#[derive(Default)]
struct Ledger {
    /// Until when a message certainly is in one hand.
    held_until: BTreeMap<Offset, Instant>,
    acked: BTreeMap<Offset, Instant>,
    /// Acks of which it is not known what became of them.
    unknown: BTreeMap<Offset, u32>,
}

impl Ledger {
    /// A message that was asked for then has come now.
    fn take(&mut self, delivery: &Delivery, asked: Instant) {
        let (offset, now) = (delivery.offset, Instant::now());
        assert!(self.acked.get(&offset).is_none_or(|acked| *acked >= asked), "{offset:?} was acked and comes again");
        // It was granted after it was asked for, and lives from then on.
        let before = self.held_until.insert(offset, asked + LEASE);
        assert!(before.is_none_or(|until| until <= now), "{offset:?} is in two hands for {:?}", before.map(|until| until - now));
    }

    fn acks(&mut self, offset: Offset) {
        *self.unknown.entry(offset).or_default() += 1;
    }

    fn is_told(&mut self, offset: Offset, told: &Result<(), SettleError>) {
        if told.as_ref().is_err_and(|error| error.effect() == Effect::Possible) {
            return;
        }
        *self.unknown.entry(offset).or_default() -= 1;
        if told.is_ok() {
            self.held_until.remove(&offset);
            assert!(self.acked.insert(offset, Instant::now()).is_none(), "{offset:?} was acked twice");
        }
    }

    /// Nothing is left that certainly comes again.
    fn is_done(&self, count: u64) -> bool {
        (0..count).map(Offset).all(|offset| self.acked.contains_key(&offset) || self.unknown.get(&offset).is_some_and(|acks| *acks > 0))
    }
}

/// Takes messages at one node, keeps each for a while and acks it at another, as long as somebody is served there.
async fn consume(at: Broker, ack_at: Broker, ledger: Arc<Mutex<Ledger>>, entropy: Arc<Seeded>) {
    loop {
        let asked = Instant::now();
        let found = at.consume(wanted(Some(INDEX), 1, 300)).await;
        // An owner that stands still cannot be asked.
        let Ok(found) = found else {
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Some(delivery) = found.messages().first().cloned() else { continue };
        ledger.lock().take(&delivery, asked);
        found.written();
        // Some are kept for longer than they may.
        sleep(LEASE * u32::try_from(entropy.next_u64() % 9).expect("small") / 8).await;
        ledger.lock().acks(delivery.offset);
        let told = settle(&ack_at, &delivery, Settle::Ack).await;
        ledger.lock().is_told(delivery.offset, &told);
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_is_in_one_hand_though_its_owner_stands_still_while_its_partition_moves() {
    let mut moved_meanwhile = 0;
    for seed in 0..24 {
        let cluster = cluster(seed * 100).await;
        let entropy = Seeded::new(seed);
        fill(&cluster, 60).await;
        let ledger = Arc::new(Mutex::new(Ledger::default()));
        let start = |at: &str, ack_at: &str| {
            let (at, ack_at) = (cluster.node(at).broker.clone(), cluster.node(ack_at).broker.clone());
            tokio::spawn(consume(at, ack_at, Arc::clone(&ledger), Arc::clone(&entropy)))
        };
        let clients: Vec<_> = [("a", "c"), ("c", "a"), ("a", "a"), ("c", "c")].map(|(at, ack_at)| start(at, ack_at)).into();
        // Those of the owner itself have nobody to ask while it stands still.
        let of_the_owner = || [("b", "a"), ("b", "b"), ("a", "b")].map(|(at, ack_at)| start(at, ack_at));
        let before = of_the_owner();
        sleep(Duration::from_millis(entropy.next_u64() % 3_000)).await;
        // Calls take their time, so that a moment can be met.
        cluster.net.fail_all(&Fault::Slow(Arc::clone(&entropy)));
        begin(&cluster, "c", 7);
        sleep(Duration::from_millis(entropy.next_u64() % 400)).await;
        before.iter().for_each(|client| client.abort());
        cluster.stand_still("b", true);
        sleep(LEASE * [1, 2, 4][usize::try_from(seed % 3).expect("small")] / 2).await;
        moved_meanwhile += u32::from(owner(&cluster.catalog).moving.is_none());
        cluster.stand_still("b", false);
        // It does not know yet what has happened.
        let after = of_the_owner();
        until_at(&cluster, "c").await;
        until("each is acked", || ledger.lock().is_done(60)).await;
        // What comes again comes now.
        sleep(2 * LEASE).await;
        let mut clients = clients;
        clients.extend(after);
        for client in clients {
            assert!(!client.is_finished(), "seed {seed}: {:?}", client.await);
            client.abort();
        }
        assert_eq!(stored(&cluster).await.len(), 60);
    }
    assert!(moved_meanwhile > 0, "in none the partition went while its owner stood still");
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_stood_still_while_its_partition_went_hands_nothing_out_and_takes_nothing() {
    let cluster = cluster(1).await;
    fill(&cluster, 6).await;
    let taken = take_of(cluster.node("b"), Some(INDEX), 2, 0).await;
    // It has stopped, and stands still before its new owner is one.
    cluster.catalog.next_proposals([Proposal::Made].into_iter().chain([Proposal::NeverSent; 1000]));
    begin(&cluster, "c", 7);
    until("it is in its place", || dirs(&cluster, "c") == ["p00001"]).await;
    cluster.stand_still("b", true);
    cluster.catalog.forget_proposals();
    until_at(&cluster, "c").await;
    seen_by_all().await;
    let there = take_of(cluster.node("a"), Some(INDEX), 2, 0).await;
    assert_eq!(there.iter().map(|delivery| delivery.offset.0).collect::<Vec<_>>(), [2, 3], "leases have moved");
    settle(&cluster.node("c").broker, &taken[0], Settle::Ack).await.expect("its lease lives");
    settle(&cluster.node("c").broker, &there[0], Settle::Ack).await.expect("its lease lives");
    sleep(LEASE).await;
    put(cluster.node("c"), "0006").await;
    cluster.stand_still("b", false);
    // What it knows is that it owns the partition, and has stopped.
    let late = cluster.node("b").broker.consume(wanted(Some(INDEX), 10, 0)).await.expect("no error");
    assert!(late.messages().is_empty(), "{:?}", late.messages());
    drop(late);
    assert!(matches!(settle_surely(cluster.node("b"), &taken[0], Settle::Ack).await, Err(SettleError::LeaseLost)), "it was acked");
    assert!(matches!(settle_surely(cluster.node("b"), &there[1], Settle::Ack).await, Err(SettleError::LeaseLost)), "its lease has ended");
    put(cluster.node("b"), "0007").await;
    cluster.settle_down().await;
    assert_eq!(stored(&cluster).await, (0..8).map(|n| format!("{n:04}")).collect::<Vec<_>>());
    let rest = take_of(cluster.node("b"), Some(INDEX), 10, 1_000).await;
    assert_eq!(rest.iter().map(|delivery| delivery.offset.0).collect::<Vec<_>>(), [1, 3, 4, 5, 6, 7]);
}
