//! The load clients move messages, and count what they moved.

use std::time::Duration;

use veena_loadtest_driver::api::{Client, NewTopic};
use veena_loadtest_driver::load::{self, ConsumeAck, Cycle, CycleBatch, LoadClient, Measured, Pace, ProduceBatch, ProduceOne, Run};

use crate::fake::{self, Lie};

const TOPIC: &str = "bench";

struct Bench {
    run: Run,
    client: Client,
    _broker: tokio::task::JoinSet<()>,
}

async fn bench(pace: Pace) -> Bench {
    let (addr, broker) = fake::start(Lie::None).await;
    let mut client = Client::new(addr);
    let topic = NewTopic { name: TOPIC.to_owned(), partitions: 3, visibility_ms: 30_000, keeps_order: true };
    client.create_topic(&topic).await.expect("a topic is created");
    let (warm_up, time) = (Duration::from_millis(20), Duration::from_millis(200));
    let servers = vec![(addr, std::process::id())];
    Bench { run: Run { servers, connections: 4, pace, warm_up, time }, client, _broker: broker }
}

impl Bench {
    async fn measure<C: LoadClient + 'static>(&self, make: impl Fn(usize) -> C) -> Measured {
        load::run(self.run.clone(), make).await.expect("the broker answers")
    }

    async fn stored(&mut self) -> u64 {
        self.client.describe(TOPIC).await.expect("the topic is there").iter().map(|numbers| numbers.next_offset).sum()
    }
}

#[tokio::test]
async fn single_produces_are_counted_one_by_one() {
    let mut bench = bench(Pace::Closed).await;
    let measured = bench.measure(|at| ProduceOne::new(TOPIC, 256, at)).await;
    assert_eq!((bench.stored().await, measured.errors), (measured.sent_total, 0));
    assert!(measured.messages > 0 && measured.messages <= measured.sent_total);
    assert_eq!(measured.messages, measured.requests);
    assert_eq!(measured.latency_us.len(), measured.requests);
}

#[tokio::test]
async fn a_consumer_ends_the_run_when_nothing_is_left() {
    let bench = bench(Pace::Closed).await;
    let few = Run { connections: 1, warm_up: Duration::ZERO, time: Duration::from_millis(1), ..bench.run.clone() };
    let batches = load::run(few, |at| ProduceBatch::new(TOPIC, 64, at)).await.expect("answers");
    let run = Run { warm_up: Duration::ZERO, time: Duration::from_secs(100), ..bench.run };
    let measured = load::run(run, |_| ConsumeAck::new(TOPIC, 0)).await.expect("answers");
    assert_eq!(measured.errors, 0);
    assert!(measured.seconds < 100.0 && measured.messages <= batches.sent_total);
}

#[tokio::test]
async fn a_cycle_takes_three_requests_a_message() {
    let mut bench = bench(Pace::Closed).await;
    let measured = bench.measure(|at| Cycle::new(TOPIC, 256, at)).await;
    assert_eq!(measured.errors, 0);
    assert_eq!(measured.requests_total, 3 * measured.sent_total);
    assert_eq!(bench.stored().await, measured.sent_total);
}

#[tokio::test]
async fn a_batch_cycle_moves_a_hundred_messages_a_turn() {
    let mut bench = bench(Pace::Closed).await;
    let measured = bench.measure(|at| CycleBatch::new(TOPIC, 64, at)).await;
    assert_eq!(measured.errors, 0);
    assert!(measured.sent_total >= 100 && measured.sent_total.is_multiple_of(100));
    assert_eq!(bench.stored().await, measured.sent_total);
}

#[tokio::test]
async fn an_open_loop_gives_out_no_more_turns_than_asked() {
    let mut bench = bench(Pace::Open(200.0)).await;
    let measured = bench.measure(|at| ProduceOne::new(TOPIC, 256, at)).await;
    // 220 ms at 200 a second: 44 turns, and the one at the very start.
    assert!((1..=45).contains(&measured.sent_total), "{}", measured.sent_total);
    assert_eq!(bench.stored().await, measured.sent_total);
}
