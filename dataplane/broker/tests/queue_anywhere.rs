//! Consumers on any node: they get what any owner has, once, under one lease, and are woken for it; whatever the network or a node does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use veena_broker::errors::{ConsumeError, ControlError, ReplayError, SettleError};
use veena_broker::message::{ConsumeRequest, Delivery, NewMessage, ReceiptHandle, Settle};
use veena_broker::owners::bodies::Tenures;
use veena_broker::owners::bodies::lease::{Claim, ClaimRefusal, Ending, endings, take_claimed};
use veena_broker::{Broker, Deliveries};
use veena_contract::{
    CallerGone, Effect, Entropy, Offset, OwnershipEpoch, PartitionIndex, PeerClass, PeerOp, PeerRequest, TopicRecord, limits,
};

use crate::net::{Cluster, Fault, NODES, node_id, owned_by};
use crate::support::{FakeCatalog, Seeded, link, name, tenant, text, topic};

/// A topic with one partition on each node, whose leases outlast every test that does not wait for them.
fn spread() -> TopicRecord {
    TopicRecord { visibility_timeout_ms: 600_000, ..owned_by(topic("orders", 1, 3), &NODES) }
}

async fn cluster() -> Cluster {
    let cluster = Cluster::start(1).await;
    cluster.catalog.put(spread());
    cluster
}

/// Produces, and gives the message the time to get to its owner.
async fn place(broker: &Broker, partition: u32, payload: &str) {
    put(broker, partition, payload).await;
    sleep(Duration::from_millis(100)).await;
}

async fn put(broker: &Broker, partition: u32, payload: &str) {
    let payload = Bytes::copy_from_slice(payload.as_bytes());
    let message = NewMessage { key: None, partition: Some(PartitionIndex(partition)), headers: Vec::new(), idempotency_key: None, payload };
    broker.produce(&tenant(), &name("orders"), message).await.expect("accepted");
}

fn request(partition: Option<u32>, messages_max: usize, wait_ms: u64) -> ConsumeRequest {
    ConsumeRequest {
        tenant: tenant(),
        topic: name("orders"),
        partition: partition.map(PartitionIndex),
        messages_max,
        bytes_max: limits::CONSUME_SCAN_BYTES_MAX,
        wait: Duration::from_millis(wait_ms),
    }
}

async fn ask(broker: &Broker, partition: Option<u32>, wait_ms: u64) -> Result<Deliveries, ConsumeError> {
    broker.consume(request(partition, 1, wait_ms)).await
}

/// One message that reached its client.
async fn take(broker: &Broker, wait_ms: u64) -> Option<Delivery> {
    let found = ask(broker, None, wait_ms).await.expect("consume");
    let message = found.messages().first().cloned();
    found.written();
    message
}

fn park(broker: &Broker, wait_ms: u64) -> JoinHandle<Option<Delivery>> {
    let broker = broker.clone();
    tokio::spawn(async move { take(&broker, wait_ms).await })
}

async fn got(parked: JoinHandle<Option<Delivery>>) -> String {
    text(&parked.await.expect("no panic").expect("a message"))
}

fn handle(delivery: &Delivery) -> ReceiptHandle {
    delivery.lease.expect("a lease").handle
}

fn count(delivery: &Delivery) -> u32 {
    delivery.lease.expect("a lease").delivery_count
}

async fn settle(broker: &Broker, delivery: &Delivery, how: Settle) -> Result<(), SettleError> {
    broker.settle(&tenant(), &name("orders"), handle(delivery), how).await
}

/// How many leases there are, over all owners.
async fn leased(cluster: &Cluster) -> u64 {
    let stats = cluster.node("a").broker.describe(&tenant(), &name("orders"), None).await.expect("described");
    stats.iter().map(|stats| stats.expect("every owner answers").leased).sum()
}

/// Waits for a condition that has to come.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(60), waiting).await.unwrap_or_else(|_| panic!("never so: {what}"));
}

/// Waits until so many consumers stand in line at a node, its own and those of others.
async fn in_line(cluster: &Cluster, at: &str, count: usize) {
    until(&format!("{count} in line at {at}"), || cluster.node(at).broker.parked() == count).await;
}

#[tokio::test(start_paused = true)]
async fn a_consumer_parked_on_one_node_gets_what_another_took_for_a_partition_of_a_third() {
    let cluster = cluster().await;
    let consumer = park(&cluster.node("c").broker, 10_000);
    in_line(&cluster, "b", 1).await;
    let began = Instant::now();
    put(&cluster.node("a").broker, 1, "one").await;
    let message = consumer.await.expect("no panic").expect("a message");
    assert!(began.elapsed() < Duration::from_millis(100), "it was told, it did not poll");
    assert_eq!((text(&message).as_str(), message.partition, count(&message)), ("one", PartitionIndex(1), 1));
    settle(&cluster.node("a").broker, &message, Settle::Ack).await.expect("any node takes the ack");
    let stats = cluster.node("c").broker.describe(&tenant(), &name("orders"), None).await.expect("described");
    let frontiers: Vec<_> = stats.iter().map(|stats| stats.expect("every owner answers").frontier.get()).collect();
    assert_eq!(frontiers, [0, 1, 0]);
    in_line(&cluster, "b", 0).await;
    cluster.assert_only_own_logs(&spread());
}

#[tokio::test(start_paused = true)]
async fn who_came_first_is_served_first_whatever_node_it_waits_on() {
    let cluster = cluster().await;
    let mut consumers = Vec::new();
    for (place, node) in ["c", "b", "a", "b", "c", "a"].into_iter().enumerate() {
        consumers.push(park(&cluster.node(node).broker, 60_000));
        in_line(&cluster, "b", place + 1).await;
    }
    for n in 0..consumers.len() {
        put(&cluster.node("a").broker, 1, &n.to_string()).await;
        until("it was delivered", || consumers.iter().filter(|consumer| consumer.is_finished()).count() == n + 1).await;
    }
    for (n, consumer) in consumers.into_iter().enumerate() {
        assert_eq!(got(consumer).await, n.to_string());
    }
}

#[tokio::test(start_paused = true)]
async fn one_of_many_parked_consumers_is_woken_for_a_message() {
    let cluster = cluster().await;
    let consumers: Vec<_> = (0..30).map(|n| park(&cluster.node(NODES[n % 3]).broker, 60_000)).collect();
    for node in NODES {
        in_line(&cluster, node, 30).await;
    }
    let asked = cluster.net.calls(PeerOp::OWNER_CLAIM);
    for n in 0..30 {
        put(&cluster.node("a").broker, n % 3, &n.to_string()).await;
    }
    let mut texts = Vec::new();
    for consumer in consumers {
        texts.push(got(consumer).await.parse::<u32>().expect("a number"));
    }
    texts.sort_unstable();
    assert_eq!(texts, (0..30).collect::<Vec<_>>());
    let asked = cluster.net.calls(PeerOp::OWNER_CLAIM) - asked;
    assert!(asked <= 30, "{asked} claims for 30 messages");
}

/// What consumers did with each message.
#[derive(Default)]
struct Seen {
    /// Who has it, and has neither settled it nor left it.
    held: BTreeMap<String, usize>,
    acked: BTreeMap<String, usize>,
}

/// Consumes as clients do who have little patience, until everything is acked.
async fn consume_somehow(me: usize, broker: Broker, seen: Arc<Mutex<Seen>>, entropy: Arc<Seeded>) {
    loop {
        let chance = entropy.next_u64();
        let messages_max = usize::try_from(1 + chance % 3).expect("small");
        let partition = chance.is_multiple_of(5).then(|| u32::try_from(chance / 8 % 3).expect("small"));
        let asking = broker.consume(request(partition, messages_max, chance / 64 % 3_000));
        let Ok(Ok(found)) = timeout(Duration::from_millis(100 + chance / 4096 % 4_000), asking).await else {
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        if found.is_empty() || (chance / 512).is_multiple_of(8) {
            // The client has left before the answer was written.
            sleep(Duration::from_millis(20)).await;
            continue;
        }
        let messages = found.messages().to_vec();
        for message in &messages {
            let mut seen = seen.lock();
            let other = seen.held.insert(text(message), me);
            assert_eq!(other, None, "{} has two holders, {me} is the second", text(message));
            assert!(!seen.acked.contains_key(&text(message)), "{} came again after its ack", text(message));
        }
        found.written();
        for message in messages {
            sleep(Duration::from_millis(entropy.next_u64() % 200)).await;
            let how = if entropy.next_u64().is_multiple_of(6) { Settle::Nack } else { Settle::Ack };
            // From here on another may have it: of an answer that is lost, the settling may have been done.
            seen.lock().held.remove(&text(&message));
            let mut is_unknown = false;
            let outcome = loop {
                match settle(&broker, &message, how).await {
                    Err(SettleError::OutcomeUnknown) => is_unknown = true,
                    Err(SettleError::NotReached) => {}
                    outcome => break outcome,
                }
                sleep(Duration::from_millis(100)).await;
            };
            match outcome {
                Ok(()) => {}
                Err(SettleError::LeaseLost) if is_unknown => {}
                Err(error) => panic!("{}: a lease that nobody ended is gone: {error}", text(&message)),
            }
            if how == Settle::Ack {
                *seen.lock().acked.entry(text(&message)).or_default() += 1;
            }
        }
    }
}

/// Many consumers on all nodes while the network fails at random; then it works, and everything must be acked, with no lease run out.
async fn crowd(seed: u64) {
    const MESSAGES: u64 = 60;
    let cluster = Cluster::start(seed * 100).await;
    cluster.catalog.put(spread());
    let entropy = Seeded::new(seed);
    let seen = Arc::new(Mutex::new(Seen::default()));
    let mut consumers = JoinSet::new();
    for me in 0..9 {
        let broker = cluster.node(NODES[me % 3]).broker.clone();
        consumers.spawn(consume_somehow(me, broker, Arc::clone(&seen), Arc::clone(&entropy)));
    }
    let mut is_hurt = false;
    cluster.net.fail_all(&Fault::Slow(Arc::clone(&entropy)));
    for n in 0..MESSAGES {
        if n % 10 == 5 {
            is_hurt = !is_hurt;
            let random = Arc::clone(&entropy);
            cluster.net.fail_all(&if is_hurt { Fault::Flaky(random) } else { Fault::Slow(random) });
        }
        let through = NODES[usize::try_from(entropy.next_u64() % 3).expect("small")];
        put(&cluster.node(through).broker, u32::try_from(entropy.next_u64() % 3).expect("small"), &n.to_string()).await;
        sleep(Duration::from_millis(entropy.next_u64() % 400)).await;
    }
    cluster.net.fail_all(&Fault::Slow(Arc::clone(&entropy)));
    let done = async {
        while seen.lock().acked.len() < usize::try_from(MESSAGES).expect("small") {
            tokio::select! {
                Some(ended) = consumers.join_next() => ended.expect("no consumer breaks"),
                () = sleep(Duration::from_millis(100)) => {}
            }
        }
    };
    // Far less than a lease lasts.
    if timeout(Duration::from_secs(120), done).await.is_err() {
        let missing: Vec<_> = (0..MESSAGES).filter(|n| !seen.lock().acked.contains_key(&n.to_string())).collect();
        panic!("seed {seed}: {missing:?} are left while consumers wait");
    }
    let leased: u64 = cluster
        .node("a")
        .broker
        .describe(&tenant(), &name("orders"), None)
        .await
        .expect("described")
        .iter()
        .flatten()
        .map(|s| s.leased)
        .sum();
    assert_eq!(leased, 0, "seed {seed}: a lease without a holder");
    consumers.shutdown().await;
    cluster.assert_only_own_logs(&spread());
}

#[tokio::test(start_paused = true)]
async fn every_message_has_one_holder_at_a_time_and_none_is_left_whatever_the_network_loses() {
    for seed in 0..20 {
        crowd(seed).await;
    }
}

/// Consumes and acks for as long as its process lives.
async fn consume_on(broker: Broker, acked: Arc<Mutex<BTreeMap<String, usize>>>) {
    loop {
        let Ok(found) = ask(&broker, None, 2_000).await else { continue };
        let Some(message) = found.messages().first().cloned() else { continue };
        found.written();
        while let Err(SettleError::NotReached | SettleError::OutcomeUnknown) = settle(&broker, &message, Settle::Ack).await {
            sleep(Duration::from_millis(100)).await;
        }
        *acked.lock().entry(text(&message)).or_default() += 1;
    }
}

/// Produces and consumes on all nodes while one after the other dies, with its consumers, and comes back; everything is consumed.
async fn deaths(seed: u64) {
    const MESSAGES: usize = 60;
    let mut cluster = Cluster::start(seed * 100).await;
    cluster.catalog.put(TopicRecord { visibility_timeout_ms: 5_000, ..spread() });
    let entropy = Seeded::new(seed);
    let acked = Arc::new(Mutex::new(BTreeMap::new()));
    let consumers = |cluster: &Cluster, name| {
        let mut set = JoinSet::new();
        for _ in 0..3 {
            set.spawn(consume_on(cluster.node(name).broker.clone(), Arc::clone(&acked)));
        }
        set
    };
    let mut alive: BTreeMap<&str, JoinSet<()>> = NODES.iter().map(|name| (*name, consumers(&cluster, *name))).collect();
    for n in 0..MESSAGES {
        let through = NODES[usize::try_from(entropy.next_u64() % 3).expect("small")];
        put(&cluster.node(through).broker, u32::try_from(entropy.next_u64() % 3).expect("small"), &n.to_string()).await;
        sleep(Duration::from_millis(entropy.next_u64() % 300)).await;
        if n % 12 == 11 {
            let victim = NODES[usize::try_from(entropy.next_u64() % 3).expect("small")];
            NODES.iter().for_each(|other| cluster.net.fail(victim, other, Fault::Cut));
            cluster.kill(victim);
            alive.remove(victim).expect("it lives").shutdown().await;
            sleep(Duration::from_millis(entropy.next_u64() % 4_000)).await;
            cluster.net.heal();
            cluster.revive(victim).await;
            alive.insert(victim, consumers(&cluster, victim));
        }
    }
    let all_acked = async {
        while acked.lock().len() < MESSAGES {
            sleep(Duration::from_millis(100)).await;
        }
    };
    // A lease that went with its consumer's node has to run out.
    let is_done = timeout(Duration::from_secs(30), all_acked).await.is_ok();
    assert!(is_done, "seed {seed}: of {MESSAGES} messages {} were acked", acked.lock().len());
    sleep(Duration::from_secs(10)).await;
    assert_eq!(leased(&cluster).await, 0, "seed {seed}: a lease without a holder");
    let stats = cluster.node("a").broker.describe(&tenant(), &name("orders"), None).await.expect("described");
    assert!(stats.iter().flatten().all(|stats| stats.frontier == stats.high_watermark), "seed {seed}: {stats:?}");
}

#[tokio::test(start_paused = true)]
async fn everything_is_consumed_though_owners_and_consumers_die() {
    for seed in 0..12 {
        deaths(seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_dies_without_a_word_holds_a_message_up_for_no_longer_than_one_of_its_consumers_may_take_to_claim_it() {
    let cluster = cluster().await;
    // Nobody hears that its consumer has left.
    cluster.net.fail_op("c", "b", PeerOp::OWNER_WAIT, Fault::Delay(Duration::from_millis(1)));
    let mut dying: JoinSet<_> = JoinSet::new();
    for _ in 0..20 {
        let broker = cluster.node("c").broker.clone();
        dying.spawn(async move { take(&broker, 60_000).await });
    }
    in_line(&cluster, "b", 20).await;
    let next = park(&cluster.node("a").broker, 60_000);
    in_line(&cluster, "b", 21).await;
    cluster.net.fail("c", "b", Fault::Cut);
    dying.shutdown().await;
    let began = Instant::now();
    put(&cluster.node("a").broker, 1, "one").await;
    assert_eq!(got(next).await, "one");
    put(&cluster.node("a").broker, 1, "two").await;
    // Nor do those who do not stand in line have to stand back for longer.
    in_line(&cluster, "b", 0).await;
    assert!(take(&cluster.node("b").broker, 0).await.is_some());
    let bound = Duration::from_millis(limits::TOKEN_CLAIM_MS_MAX + 2 * limits::LEASE_SWEEP_MS + 100);
    assert!(began.elapsed() <= bound, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_wake_that_comes_for_a_consumer_who_has_left_is_passed_on_at_once() {
    let cluster = cluster().await;
    let leaves = park(&cluster.node("c").broker, 60_000);
    in_line(&cluster, "b", 1).await;
    let next = park(&cluster.node("a").broker, 60_000);
    in_line(&cluster, "b", 2).await;
    // It cannot say so itself.
    cluster.net.fail_op("c", "b", PeerOp::OWNER_ENDINGS, Fault::Cut);
    leaves.abort();
    sleep(Duration::from_millis(10)).await;
    let began = Instant::now();
    put(&cluster.node("a").broker, 1, "one").await;
    assert_eq!(got(next).await, "one");
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_is_served_elsewhere_gives_its_other_places_up() {
    let cluster = cluster().await;
    let consumer = park(&cluster.node("c").broker, 60_000);
    for node in NODES {
        in_line(&cluster, node, 1).await;
    }
    put(&cluster.node("a").broker, 0, "one").await;
    assert_eq!(got(consumer).await, "one");
    for node in NODES {
        in_line(&cluster, node, 0).await;
    }
    // One that was told by two owners at once takes from one, and the other tells the next.
    for _ in 0..20 {
        let consumers: Vec<_> = ["c", "c"].into_iter().map(|node| park(&cluster.node(node).broker, 60_000)).collect();
        in_line(&cluster, "a", 2).await;
        in_line(&cluster, "b", 2).await;
        let (first, second) = (cluster.node("a").broker.clone(), cluster.node("b").broker.clone());
        tokio::join!(put(&first, 0, "a"), put(&second, 1, "b"));
        let mut texts = Vec::new();
        for consumer in consumers {
            let message = timeout(Duration::from_millis(200), consumer).await.expect("at once").expect("no panic").expect("a message");
            settle(&first, &message, Settle::Ack).await.expect("acked");
            texts.push(text(&message));
        }
        texts.sort();
        assert_eq!(texts, ["a", "b"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_is_lost_is_free_again_as_soon_as_that_is_known_and_does_not_count() {
    let cluster = cluster().await;
    place(&cluster.node("b").broker, 1, "one").await;
    cluster.net.fail_op("c", "b", PeerOp::OWNER_CLAIM, Fault::LoseAnswers);
    assert!(take(&cluster.node("c").broker, 0).await.is_none());
    let began = Instant::now();
    let message = take(&cluster.node("a").broker, 5_000).await.expect("given back");
    assert!(began.elapsed() < Duration::from_millis(200), "{:?}", began.elapsed());
    assert_eq!((text(&message).as_str(), count(&message)), ("one", 1));
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_loss_cannot_be_told_stands_until_its_deadline() {
    let cluster = Cluster::start(1).await;
    cluster.catalog.put(TopicRecord { visibility_timeout_ms: 30_000, ..spread() });
    place(&cluster.node("b").broker, 1, "one").await;
    cluster.net.fail_op("c", "b", PeerOp::OWNER_CLAIM, Fault::LoseAnswers);
    cluster.net.fail_op("c", "b", PeerOp::OWNER_ENDINGS, Fault::Cut);
    let began = Instant::now();
    assert!(take(&cluster.node("c").broker, 0).await.is_none());
    assert_eq!(leased(&cluster).await, 1, "nobody knows of it");
    let message = take(&cluster.node("a").broker, 60_000).await.expect("it comes again");
    assert!(began.elapsed() >= Duration::from_secs(30), "its client might have had it");
    assert!(began.elapsed() < Duration::from_secs(32), "{:?}", began.elapsed());
    assert_eq!(count(&message), 1, "nobody has seen it before");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_comes_after_its_end_takes_nothing() {
    let cluster = cluster().await;
    place(&cluster.node("b").broker, 1, "one").await;
    let late = Duration::from_millis(3 * limits::OWNER_CLAIM_MS_MAX);
    cluster.net.fail_op("c", "b", PeerOp::OWNER_CLAIM, Fault::Delay(late));
    assert!(take(&cluster.node("c").broker, 0).await.is_none());
    sleep(late).await;
    assert_eq!(cluster.net.calls(PeerOp::OWNER_ENDINGS), 1, "the owner was told before it was asked");
    let message = take(&cluster.node("a").broker, 0).await.expect("it is free");
    assert_eq!(count(&message), 1);
}

/// A claim of node c, as it comes to b.
fn claim(number: u64) -> PeerRequest {
    let tenures = Tenures { topic: spread().id, partitions: vec![(PartitionIndex(1), OwnershipEpoch(1))] };
    let claim = Claim { tenures, number, token: None, messages_max: 1, bytes_max: 1_000 };
    request_of_c(PeerOp::OWNER_CLAIM, claim.encode())
}

fn request_of_c(op: PeerOp, body: Bytes) -> PeerRequest {
    let (from, caller) = (node_id("c"), CallerGone::default());
    PeerRequest { from, class: PeerClass::Data, op, remaining: Duration::from_secs(1), caller, body }
}

/// How many messages were granted, or why none.
async fn served(broker: &Broker, request: PeerRequest) -> Result<usize, ClaimRefusal> {
    let answer = broker.serve_peer(request).expect("a call of the engine").await.expect("served");
    take_claimed(answer).expect("an answer").map(|messages| messages.len())
}

/// How often the catalog is looked at for a claim on a log that is not open: twice to find the partition, and to open its log.
const LOOKS: u64 = 3;

/// Acts at the last of these looks.
fn at_each_look(catalog: &Arc<FakeCatalog>, looks: Arc<AtomicU64>, act: impl FnOnce() + Send + 'static) {
    let again = Arc::clone(catalog);
    catalog.while_looking(
        move || {
            if looks.fetch_add(1, Ordering::Relaxed) + 1 == LOOKS { act() } else { at_each_look(&again, looks, act) }
        },
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_comes_twice_is_carried_out_once() {
    let cluster = cluster().await;
    let owner = &cluster.node("b").broker;
    place(owner, 1, "one").await;
    place(owner, 1, "two").await;
    assert_eq!(served(owner, claim(7)).await, Ok(1));
    assert_eq!(served(owner, claim(7)).await, Err(ClaimRefusal::Ended));
    assert_eq!(leased(&cluster).await, 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_claim_has_got_is_given_back_if_its_caller_leaves_or_ends_it_meanwhile() {
    for is_ended in [false, true] {
        let mut cluster = cluster().await;
        place(&cluster.node("b").broker, 1, "one").await;
        cluster.kill("b");
        cluster.revive("b").await;
        let owner = cluster.node("b").broker.clone();
        let (claim, catalog) = (claim(7), Arc::clone(&cluster.catalog));
        let caller = claim.caller.clone();
        let looks = Arc::new(AtomicU64::new(0));
        let last_look = Arc::clone(&looks);
        let owner_for_end = owner.clone();
        // The last look is made when the log is opened: after the claim was begun.
        at_each_look(&catalog, looks, move || {
            if is_ended {
                let body = endings(&[Ending::Claim { number: 7, written: 0 }]);
                let serving = owner_for_end.serve_peer(request_of_c(PeerOp::OWNER_ENDINGS, body)).expect("a call of the engine");
                serving.now_or_never().expect("at once").expect("heard");
            } else {
                caller.set();
            }
        });
        let served = served(&owner, claim).await;
        assert_eq!(last_look.load(Ordering::Relaxed), LOOKS, "nothing happened meanwhile");
        assert!(matches!(served, Ok(0) | Err(ClaimRefusal::Ended)), "{served:?}");
        assert_eq!(leased(&cluster).await, 0, "ended: {is_ended}");
        assert_eq!(count(&take(&owner, 0).await.expect("it is free")), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn what_comes_before_a_consumer_stands_in_line_is_told_as_soon_as_it_does() {
    let cluster = cluster().await;
    for n in 0..10 {
        cluster.net.fail_op("c", "b", PeerOp::OWNER_WAIT, Fault::Delay(Duration::from_millis(330)));
        let consumer = park(&cluster.node("c").broker, 60_000);
        until("it waits", || cluster.net.calls(PeerOp::OWNER_WAIT) == 2 * (n + 1)).await;
        let began = Instant::now();
        put(&cluster.node("b").broker, 1, &n.to_string()).await;
        assert_eq!(got(consumer).await, n.to_string());
        assert!(began.elapsed() < Duration::from_millis(380), "{:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_was_woken_in_vain_waits_on_and_is_told_again() {
    let cluster = Cluster::start(1).await;
    cluster.catalog.put(TopicRecord { visibility_timeout_ms: 600_000, ..owned_by(topic("orders", 1, 2), &["b", "b"]) });
    cluster.net.fail_op("c", "b", PeerOp::OWNER_CLAIM, Fault::Delay(Duration::from_millis(300)));
    let first = park(&cluster.node("c").broker, 60_000);
    in_line(&cluster, "b", 1).await;
    let owner = cluster.node("b").broker.clone();
    let second = owner.clone();
    let second = tokio::spawn(async move { second.consume(request(None, 10, 60_000)).await });
    in_line(&cluster, "b", 2).await;
    tokio::join!(put(&owner, 0, "one"), put(&owner, 1, "two"));
    let taken = second.await.expect("no panic").expect("consume");
    assert_eq!(taken.messages().len(), 2, "who is woken takes what there is");
    taken.written();
    // The first claims now, and finds nothing.
    sleep(Duration::from_millis(500)).await;
    assert!(!first.is_finished());
    cluster.net.heal();
    let began = Instant::now();
    put(&owner, 0, "three").await;
    assert_eq!(got(first).await, "three");
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_was_woken_in_vain_again_and_again_is_told_of_the_next_message_at_once() {
    const CLAIM: Duration = Duration::from_millis(300);
    let cluster = Cluster::start(1).await;
    cluster.catalog.put(TopicRecord { visibility_timeout_ms: 600_000, ..owned_by(topic("orders", 1, 2), &["b", "b"]) });
    cluster.net.fail_op("c", "b", PeerOp::OWNER_CLAIM, Fault::Delay(CLAIM));
    let first = park(&cluster.node("c").broker, 60_000);
    in_line(&cluster, "b", 1).await;
    let owner = cluster.node("b").broker.clone();
    let claims = || cluster.net.calls(PeerOp::OWNER_CLAIM);
    for _ in 0..7 {
        let (second, before) = (owner.clone(), claims());
        let second = tokio::spawn(async move { second.consume(request(None, 10, 60_000)).await });
        in_line(&cluster, "b", 2).await;
        tokio::join!(put(&owner, 0, "taken"), put(&owner, 1, "taken"));
        second.await.expect("no panic").expect("consume").written();
        until("the first was woken", || claims() > before).await;
        sleep(CLAIM + Duration::from_millis(20)).await;
    }
    assert!(!first.is_finished());
    cluster.net.heal();
    let began = Instant::now();
    put(&owner, 0, "last").await;
    assert_eq!(got(first).await, "last");
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_consumer_of_one_partition_whose_owner_was_asked_in_vain_is_told_whether_something_may_have_been_reserved() {
    for (fault, effect) in [(Fault::Cut, Effect::None), (Fault::LoseRequests, Effect::Possible), (Fault::LoseAnswers, Effect::Possible)] {
        for is_parked in [false, true] {
            let cluster = cluster().await;
            let broker = cluster.node("c").broker.clone();
            let wait_ms = if is_parked { 60_000 } else { 0 };
            if !is_parked {
                place(&cluster.node("b").broker, 1, "one").await;
                cluster.net.fail_op("c", "b", PeerOp::OWNER_CLAIM, fault.clone());
            }
            let asking = tokio::spawn(async move { ask(&broker, Some(1), wait_ms).await.err() });
            if is_parked {
                in_line(&cluster, "b", 1).await;
                cluster.net.fail_op("c", "b", PeerOp::OWNER_CLAIM, fault.clone());
                put(&cluster.node("b").broker, 1, "one").await;
            }
            let error = asking.await.expect("no panic").expect("it cannot be had");
            match effect {
                Effect::None => assert!(matches!(error, ConsumeError::OwnerDown), "{error}"),
                Effect::Possible => assert!(matches!(error, ConsumeError::OutcomeUnknown), "{error}"),
            }
            assert_eq!(error.effect(), effect);
            assert_eq!(count(&take(&cluster.node("a").broker, 5_000).await.expect("it is free again")), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_says_it_is_none_is_not_asked_without_end() {
    let mut cluster = cluster().await;
    // It knows of a later ownership than anybody else.
    let catalog = FakeCatalog::new();
    let mut later = spread();
    later.owners[1].epoch = OwnershipEpoch(2);
    catalog.put(later);
    cluster.kill("b");
    cluster.revive_on("b", &catalog).await;
    let consumer = park(&cluster.node("c").broker, 300_000);
    sleep(Duration::from_secs(100)).await;
    let calls = cluster.net.calls(PeerOp::OWNER_WAIT) + cluster.net.calls(PeerOp::OWNER_CLAIM);
    assert!(calls < 150, "{calls} calls in 100 s");
    put(&cluster.node("a").broker, 0, "one").await;
    assert_eq!(got(consumer).await, "one");
    let refused = ask(&cluster.node("c").broker, Some(1), 0).await.err();
    assert!(matches!(refused, Some(ConsumeError::OwnerDown)), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_did_not_reach_its_client_comes_again_at_once_and_is_not_counted() {
    let cluster = cluster().await;
    for payload in ["one", "two", "three"] {
        put(&cluster.node("b").broker, 1, payload).await;
    }
    sleep(Duration::from_millis(100)).await;
    let consumer = &cluster.node("c").broker;
    let mut found = consumer.consume(request(None, 10, 0)).await.expect("consume");
    assert_eq!(found.messages().iter().map(text).collect::<Vec<_>>(), ["one", "two", "three"]);
    found.truncate(1);
    found.written();
    let again = cluster.node("a").broker.consume(request(None, 10, 1_000)).await.expect("consume");
    assert_eq!(
        again.messages().iter().map(|message| (text(message), count(message))).collect::<Vec<_>>(),
        [("two".into(), 1), ("three".into(), 1)]
    );
    drop(again);
    sleep(Duration::from_millis(100)).await;
    let owner = &cluster.node("b").broker;
    let again = owner.consume(request(None, 10, 0)).await.expect("consume");
    assert_eq!(
        again.messages().iter().map(|message| (text(message), count(message))).collect::<Vec<_>>(),
        [("two".into(), 1), ("three".into(), 1)]
    );
    again.written();
    assert_eq!(owner.metrics().messages_delivered.get(), 3, "each is counted at its owner, once");
    assert_eq!(consumer.metrics().messages_delivered.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_handed_back_message_counts_its_delivery_and_its_old_handle_is_gone() {
    let cluster = cluster().await;
    put(&cluster.node("b").broker, 1, "one").await;
    let first = take(&cluster.node("c").broker, 1_000).await.expect("a message");
    settle(&cluster.node("c").broker, &first, Settle::Extend).await.expect("extended");
    settle(&cluster.node("a").broker, &first, Settle::Nack).await.expect("handed back");
    let second = take(&cluster.node("c").broker, 1_000).await.expect("it comes again");
    assert_eq!((first.offset, count(&second)), (second.offset, 2));
    for node in NODES {
        for how in [Settle::Ack, Settle::Extend, Settle::Nack] {
            let stale = settle(&cluster.node(node).broker, &first, how).await;
            assert!(matches!(stale, Err(SettleError::LeaseLost)), "{node}: {stale:?}");
        }
    }
    settle(&cluster.node("a").broker, &second, Settle::Ack).await.expect("the living one");
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_died_has_no_leases_and_its_messages_come_again_once() {
    let mut cluster = cluster().await;
    put(&cluster.node("a").broker, 1, "one").await;
    put(&cluster.node("a").broker, 1, "two").await;
    let lost = take(&cluster.node("c").broker, 1_000).await.expect("a message");
    let acked = take(&cluster.node("c").broker, 1_000).await.expect("a message");
    settle(&cluster.node("c").broker, &acked, Settle::Ack).await.expect("acked");
    // Longer than acks stay in memory alone.
    sleep(Duration::from_secs(2)).await;
    cluster.kill("b");
    let parked = park(&cluster.node("a").broker, 60_000);
    in_line(&cluster, "a", 1).await;
    let down = settle(&cluster.node("c").broker, &lost, Settle::Ack).await.expect_err("nobody is there");
    assert!(matches!(down, SettleError::NotReached), "{down}");
    cluster.revive("b").await;
    let began = Instant::now();
    assert_eq!(got(parked).await, text(&lost), "who waited meanwhile is told, though nobody has opened the log");
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    let stale = settle(&cluster.node("c").broker, &lost, Settle::Ack).await;
    assert!(matches!(stale, Err(SettleError::LeaseLost)), "{stale:?}");
    assert!(take(&cluster.node("c").broker, 2_000).await.is_none(), "once");
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_waits_is_told_by_an_owner_that_comes_back() {
    let mut cluster = cluster().await;
    let parked = park(&cluster.node("c").broker, 600_000);
    in_line(&cluster, "b", 1).await;
    cluster.kill("b");
    sleep(Duration::from_secs(60)).await;
    cluster.revive("b").await;
    in_line(&cluster, "b", 1).await;
    let began = Instant::now();
    put(&cluster.node("a").broker, 1, "one").await;
    assert_eq!(got(parked).await, "one");
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_is_away_delays_nobody() {
    for fault in [Fault::Cut, Fault::LoseRequests] {
        let cluster = cluster().await;
        let consumer = &cluster.node("c").broker;
        cluster.net.fail("c", "b", fault.clone());
        let mut slow = 0;
        for n in 0..100 {
            put(&cluster.node("a").broker, 0, &n.to_string()).await;
            sleep(Duration::from_millis(50)).await;
            let began = Instant::now();
            let message = take(consumer, 5_000).await.expect("of the owner that is there");
            assert_eq!(text(&message), n.to_string());
            assert!(began.elapsed() <= Duration::from_millis(limits::OWNER_PATIENCE_MS + 20), "{:?} at {n}", began.elapsed());
            slow += usize::from(began.elapsed() > Duration::from_millis(20));
        }
        assert!(slow <= 1, "{slow} of a hundred waited for an owner that does not answer");
        // Nor does who is there before there is a message.
        for n in 0..10 {
            let parked = park(consumer, 5_000);
            sleep(Duration::from_millis(10)).await;
            let began = Instant::now();
            put(&cluster.node("a").broker, 0, "later").await;
            assert_eq!(got(parked).await, "later");
            assert!(began.elapsed() <= Duration::from_millis(20), "{:?} at {n}", began.elapsed());
        }
        // Of many who ask again at once, one finds out for all.
        sleep(Duration::from_millis(2 * limits::OWNER_SKIP_MS)).await;
        let asking = (0..10).map(|_| async {
            let began = Instant::now();
            assert!(take(consumer, 0).await.is_none());
            began.elapsed() > Duration::from_millis(100)
        });
        let slow = join_all(asking).await.into_iter().filter(|is_slow| *is_slow).count();
        assert!(slow <= 1, "{slow} of ten waited for an owner that does not answer");
        assert!(take(consumer, 0).await.is_none(), "of any partition: nothing there is an answer");
        for wait_ms in [0, 20_000] {
            let began = Instant::now();
            let down = ask(consumer, Some(1), wait_ms).await.err().expect("of this partition: it cannot be had");
            assert!(matches!(down, ConsumeError::OwnerDown), "{down}");
            assert!(began.elapsed() <= Duration::from_millis(limits::OWNER_CLAIM_MS_MAX + 100), "{:?}", began.elapsed());
        }
        assert!(ask(consumer, Some(0), 0).await.expect("another partition").is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_goes_away_under_a_consumer_of_one_partition_is_told() {
    let mut cluster = cluster().await;
    let broker = cluster.node("c").broker.clone();
    let pinned = tokio::spawn(async move { ask(&broker, Some(1), 60_000).await.map(|found| found.messages().len()) });
    in_line(&cluster, "b", 1).await;
    let other = park(&cluster.node("c").broker, 60_000);
    in_line(&cluster, "b", 2).await;
    cluster.kill("b");
    let ended = timeout(Duration::from_secs(62), pinned).await.expect("it ends").expect("no panic");
    assert!(matches!(ended, Err(ConsumeError::OwnerDown)), "{ended:?}");
    put(&cluster.node("a").broker, 0, "one").await;
    assert_eq!(got(other).await, "one", "who waits for any is told by the others");
}

#[tokio::test(start_paused = true)]
async fn consumers_that_wait_for_nothing_make_few_calls() {
    const CONSUMERS: u64 = 30;
    const MINUTES: u64 = 10;
    let cluster = cluster().await;
    let mut consumers = JoinSet::new();
    for n in 0..CONSUMERS {
        let broker = cluster.node(NODES[usize::try_from(n % 3).expect("small")]).broker.clone();
        consumers.spawn(async move {
            loop {
                assert!(take(&broker, 10_000).await.is_none());
            }
        });
    }
    sleep(Duration::from_secs(MINUTES * 60)).await;
    let polls = CONSUMERS * MINUTES * 6 + CONSUMERS;
    for op in [PeerOp::OWNER_CLAIM, PeerOp::OWNER_WAIT, PeerOp::OWNER_ENDINGS] {
        let calls = cluster.net.calls(op);
        assert!(calls <= polls * 2, "{op}: {calls} calls for {polls} polls at two owners each");
    }
    consumers.shutdown().await;
    let calls = || [PeerOp::OWNER_CLAIM, PeerOp::OWNER_WAIT, PeerOp::OWNER_ENDINGS].map(|op| cluster.net.calls(op));
    sleep(Duration::from_secs(5)).await;
    let before = calls();
    sleep(Duration::from_secs(600)).await;
    assert_eq!(calls(), before, "without consumers there are none");
}

#[tokio::test(start_paused = true)]
async fn consumers_do_not_hammer_an_owner_that_is_away() {
    let cluster = cluster().await;
    let mut consumers = JoinSet::new();
    for _ in 0..10 {
        let broker = cluster.node("c").broker.clone();
        consumers.spawn(async move { drop(take(&broker, 600_000).await) });
    }
    in_line(&cluster, "b", 10).await;
    cluster.net.fail("c", "b", Fault::Cut);
    let before = cluster.net.calls(PeerOp::OWNER_WAIT);
    consumers.shutdown().await;
    for _ in 0..10 {
        let broker = cluster.node("c").broker.clone();
        consumers.spawn(async move { drop(take(&broker, 600_000).await) });
    }
    sleep(Duration::from_secs(300)).await;
    let calls = cluster.net.calls(PeerOp::OWNER_WAIT) - before;
    assert!(calls <= 10 * 310, "{calls} calls in 300 s");
    consumers.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn many_leases_are_settled_at_their_owners_each_with_its_own_answer() {
    let cluster = cluster().await;
    let mut handles = Vec::new();
    for partition in [0, 1, 2, 1, 0] {
        put(&cluster.node("a").broker, partition, "x").await;
        sleep(Duration::from_millis(50)).await;
        handles.push(handle(&take(&cluster.node("c").broker, 0).await.expect("a message")));
    }
    handles.push(ReceiptHandle { nonce: 7, ..handles[1] });
    let (orders, tenant) = (name("orders"), tenant());
    let broker = &cluster.node("c").broker;
    cluster.net.fail_op("c", "b", PeerOp::OWNER_SETTLE, Fault::Cut);
    cluster.net.fail_op("c", "a", PeerOp::OWNER_SETTLE, Fault::LoseAnswers);
    let results = broker.settle_batch(&tenant, &orders, &handles, Settle::Ack).await;
    let effects: Vec<_> = results.iter().map(|result| result.as_ref().map_err(SettleError::effect).err()).collect();
    let (none, possible) = (Some(Effect::None), Some(Effect::Possible));
    assert_eq!(effects, [possible, none, None, none, possible, none]);
    assert!(results[1..2].iter().all(|result| matches!(result, Err(SettleError::NotReached))));
    cluster.net.heal();
    let calls = cluster.net.calls(PeerOp::OWNER_SETTLE);
    let results = broker.settle_batch(&tenant, &orders, &handles, Settle::Ack).await;
    let is_settled: Vec<_> = results.iter().map(Result::is_ok).collect();
    assert_eq!(is_settled, [false, true, false, true, false, false], "what may have been applied was applied");
    assert!(results.iter().filter_map(|result| result.as_ref().err()).all(|error| matches!(error, SettleError::LeaseLost)));
    assert_eq!(cluster.net.calls(PeerOp::OWNER_SETTLE) - calls, 2, "one call to each owner");
}

#[tokio::test(start_paused = true)]
async fn what_lies_in_a_log_that_nobody_has_opened_has_its_turn_though_others_are_never_empty() {
    const MANY: usize = 20;
    let mut cluster = Cluster::start(1).await;
    cluster.catalog.put(TopicRecord { visibility_timeout_ms: 600_000, ..owned_by(topic("orders", 1, 2), &["b", "b"]) });
    place(&cluster.node("b").broker, 0, "old").await;
    // So that nothing of it is dispatched again, which would open the log.
    assert!(cluster.node("b").broker.stop().await);
    cluster.kill("b");
    cluster.revive("b").await;
    for _ in 0..MANY {
        place(&cluster.node("b").broker, 1, "new").await;
    }
    let mut texts = Vec::new();
    for _ in 0..MANY {
        texts.push(text(&take(&cluster.node("c").broker, 0).await.expect("a message")));
    }
    assert!(texts.contains(&"old".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn what_becomes_of_leases_is_told_beside_bulk_and_beside_those_that_wait() {
    let cluster = cluster().await;
    place(&cluster.node("b").broker, 1, "one").await;
    let message = take(&cluster.node("c").broker, 0).await.expect("a message");
    settle(&cluster.node("c").broker, &message, Settle::Ack).await.expect("acked");
    sleep(Duration::from_millis(100)).await;
    for op in [PeerOp::OWNER_SETTLE, PeerOp::OWNER_ENDINGS] {
        assert!(cluster.net.calls(op) > 0);
        assert_eq!(cluster.net.calls_of(op, PeerClass::Settle), cluster.net.calls(op), "{op}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_is_read_again_through_any_node() {
    let cluster = cluster().await;
    put(&cluster.node("a").broker, 1, "one").await;
    sleep(Duration::from_millis(100)).await;
    let (tenant, orders) = (tenant(), name("orders"));
    for node in NODES {
        let read = |partition, offset| cluster.node(node).broker.replay(&tenant, &orders, PartitionIndex(partition), Offset(offset));
        let message = read(1, 0).await.expect("read").expect("is there");
        assert_eq!((text(&message).as_str(), message.lease), ("one", None));
        assert!(read(1, 1).await.expect("read").is_none());
        assert!(matches!(read(3, 0).await, Err(ReplayError::NoSuchPartition { partition: 3, count: 3 })));
    }
    cluster.net.fail("c", "b", Fault::Cut);
    let down = cluster.node("c").broker.replay(&tenant, &orders, PartitionIndex(1), Offset(0)).await;
    assert!(matches!(down, Err(ReplayError::OwnerDown)), "{down:?}");
}

#[tokio::test(start_paused = true)]
async fn a_description_through_any_node_says_what_each_owner_says_and_who_cannot_be_asked() {
    let cluster = cluster().await;
    for partition in [0, 1, 1, 2, 2, 2] {
        put(&cluster.node("a").broker, partition, "x").await;
    }
    sleep(Duration::from_millis(100)).await;
    let orders = name("orders");
    let describe = async |node: &str| {
        let stats = cluster.node(node).broker.describe(&tenant(), &orders, None).await.expect("described");
        stats.iter().map(|stats| stats.map(|stats| (stats.partition.get(), stats.high_watermark.get()))).collect::<Vec<_>>()
    };
    for node in NODES {
        assert_eq!(describe(node).await, [Some((0, 1)), Some((1, 2)), Some((2, 3))]);
        let offsets = cluster.node(node).broker.attach_offsets(&tenant(), &orders).await.expect("all answer");
        assert_eq!(offsets, [Offset(1), Offset(2), Offset(3)]);
        let one = cluster.node(node).broker.describe(&tenant(), &orders, Some(PartitionIndex(1))).await.expect("described");
        assert_eq!(one.iter().map(|stats| stats.expect("there").high_watermark).collect::<Vec<_>>(), [Offset(2)]);
    }
    for fault in [Fault::Cut, Fault::LoseRequests, Fault::LoseAnswers] {
        cluster.net.fail("c", "b", fault);
        assert_eq!(describe("c").await, [Some((0, 1)), None, Some((2, 3))]);
        let refused = cluster.node("c").broker.attach_offsets(&tenant(), &orders).await;
        assert!(matches!(refused, Err(ControlError::OwnerUnavailable { .. })), "{refused:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_lag_of_a_child_is_that_of_all_partitions_of_its_parent_or_said_to_be_partial() {
    let cluster = Cluster::start(1).await;
    // A delay holds everything back.
    let (mut parent, mut child) = (spread(), owned_by(topic("child", 2, 3), &["c", "a", "b"]));
    link(&mut parent, &mut child, 3_600_000, vec![Offset(0); 3]);
    cluster.catalog.put(child);
    cluster.catalog.put(parent.clone());
    for partition in [0, 1, 1, 2, 2, 2] {
        put(&cluster.node("a").broker, partition, "x").await;
    }
    sleep(Duration::from_secs(1)).await;
    let lags = async |node: &str| {
        let lags = cluster.node(node).broker.child_lags(&tenant(), &name("orders"), &parent.children).await;
        lags.iter().map(|lag| (lag.lag_messages, lag.is_complete)).collect::<Vec<_>>()
    };
    for node in NODES {
        assert_eq!(lags(node).await, [(6, true)]);
    }
    cluster.net.fail("c", "b", Fault::Cut);
    assert_eq!(lags("c").await, [(4, false)]);
}

#[tokio::test(start_paused = true)]
async fn partitions_that_are_added_elsewhere_are_waited_for_too() {
    let cluster = Cluster::start(1).await;
    let mut record = TopicRecord { visibility_timeout_ms: 600_000, ..owned_by(topic("orders", 1, 1), &["c"]) };
    cluster.catalog.put(record.clone());
    let parked = park(&cluster.node("c").broker, 60_000);
    in_line(&cluster, "c", 1).await;
    record = TopicRecord { revision: record.revision + 1, ..owned_by(record, &["c", "b"]) };
    cluster.catalog.put(record);
    in_line(&cluster, "b", 1).await;
    put(&cluster.node("a").broker, 1, "one").await;
    assert_eq!(got(parked).await, "one");
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_waits_keeps_its_place_when_other_topics_change() {
    let cluster = Cluster::start(1).await;
    // More than one call can name: others each time.
    let owners = vec!["b"; limits::OWNER_CALL_PARTITIONS_MAX + 1];
    cluster.catalog.put(owned_by(topic("orders", 1, 1), &owners));
    // Nor has it to open thousands of logs.
    cluster.net.fail("c", "b", Fault::LoseRequests);
    let parked = park(&cluster.node("c").broker, 60_000);
    until("it waits", || cluster.net.calls(PeerOp::OWNER_WAIT) == 1).await;
    for id in 2..10 {
        cluster.catalog.put(topic(&format!("other{id}"), id, 1));
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(cluster.net.calls(PeerOp::OWNER_WAIT), 1);
    parked.abort();
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_goes_ends_the_wait_of_consumers_on_every_node() {
    let cluster = cluster().await;
    let consumers: Vec<_> = NODES
        .iter()
        .map(|node| {
            let broker = cluster.node(node).broker.clone();
            tokio::spawn(async move { ask(&broker, None, 60_000).await.map(|found| found.messages().len()) })
        })
        .collect();
    in_line(&cluster, "b", 3).await;
    cluster.catalog.remove(spread().id);
    for consumer in consumers {
        let ended = timeout(Duration::from_secs(5), consumer).await.expect("it ends").expect("no panic");
        assert!(matches!(ended, Err(ConsumeError::TopicNotFound)), "{ended:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_stops_answers_its_consumers_and_leaves_no_lease_behind() {
    let cluster = cluster().await;
    put(&cluster.node("b").broker, 1, "one").await;
    sleep(Duration::from_millis(100)).await;
    let unwritten = ask(&cluster.node("c").broker, None, 0).await.expect("consume");
    assert_eq!(unwritten.messages().len(), 1);
    let parked = park(&cluster.node("c").broker, 60_000);
    let other = park(&cluster.node("a").broker, 60_000);
    in_line(&cluster, "b", 2).await;
    cluster.node("c").broker.begin_stop();
    assert!(parked.await.expect("no panic").is_none());
    drop(unwritten);
    cluster.node("c").broker.stop().await;
    assert_eq!(got(other).await, "one");
    let owner = cluster.node("b").broker.clone();
    let other = park(&cluster.node("a").broker, 5_000);
    in_line(&cluster, "b", 1).await;
    timeout(Duration::from_secs(2), owner.stop()).await.expect("an owner stops though others wait at it");
    assert!(other.await.expect("no panic").is_none());
}
