//! A thousand partitions, each with a little traffic, on a slow disk: how long an accept takes, and how long until a consumer has it.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::Options;
use super::flush::quantile_ms;
use super::loaded::{MESSAGE_BYTES, figures, warm_up};
use super::report::Row;
use super::server::{Kind, Server};
use super::slow::slowed;
use crate::api::{Client, NewTopic};
use crate::http::{Connection, RequestBytes};
use crate::load::{self, LoadClient, Meter, Pace, Run, Step, label_into};
use crate::payload::label_of;

const TOPICS: u32 = 10;
const PARTITIONS: u32 = 100;
/// One message a second for each partition.
const RATE: f64 = 1000.0;
const PRODUCERS: usize = 32;
const CONSUMERS_PER_TOPIC: usize = 2;

/// Sends to one partition after the other; each message says when it was sent.
#[derive(Clone)]
pub(super) struct Spread {
    requests: Rc<Vec<RequestBytes>>,
    next: Rc<Cell<usize>>,
    zero: Instant,
}

impl Spread {
    /// These requests in turn, over all clones together, for those who watch with `seen`.
    pub(super) fn new(requests: Vec<RequestBytes>, seen: &Seen) -> Self {
        Self { requests: Rc::new(requests), next: Rc::new(Cell::new(0)), zero: seen.zero }
    }
}

impl LoadClient for Spread {
    async fn step(&mut self, connection: &mut Connection, meter: &mut Meter) -> anyhow::Result<Step> {
        let at = self.next.get();
        self.next.set((at + 1) % self.requests.len());
        let mut request = self.requests[at].clone();
        label_into(request.body_mut(), u64::try_from(self.zero.elapsed().as_micros())?);
        let start = meter.start();
        let answer = connection.exchange(request.as_bytes()).await?;
        let is_accepted = answer.status == 202;
        meter.answered(start, &answer, is_accepted);
        meter.sent(u64::from(is_accepted));
        meter.moved(u64::from(is_accepted));
        Ok(Step::Done)
    }
}

/// What consumers saw.
pub(super) struct Seen {
    zero: Instant,
    /// Messages sent before are warm-up.
    from_us: u64,
    took_us: Mutex<Histogram<u64>>,
    is_over: AtomicBool,
}

impl Seen {
    /// Consumers of messages that are sent from now on; those of the warm-up do not count.
    pub(super) fn new(warm_up: Duration) -> anyhow::Result<Self> {
        Ok(Self {
            zero: Instant::now(),
            from_us: u64::try_from(warm_up.as_micros())?,
            took_us: Mutex::new(Histogram::new_with_bounds(1, 120_000_000, 3)?),
            is_over: AtomicBool::new(false),
        })
    }

    /// Tells the consumers to end.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// How long messages took, in microseconds.
    pub(super) fn took_us(&self) -> Histogram<u64> {
        self.took_us.lock().clone()
    }

    fn note(&self, payload: &[u8]) {
        let now_us = u64::try_from(self.zero.elapsed().as_micros()).unwrap_or(u64::MAX);
        if let Some(label) = label_of(payload).filter(|label| label.0 >= self.from_us) {
            self.took_us.lock().saturating_record(now_us.saturating_sub(label.0));
        }
    }

    pub(super) async fn consume(self: Arc<Self>, mut client: Client, topic: String) -> anyhow::Result<()> {
        while !self.is_over.load(Ordering::Relaxed) {
            let Ok(messages) = client.consume(&topic, Duration::from_millis(500), 100).await? else { continue };
            messages.iter().for_each(|message| self.note(&message.payload));
            let handles: Vec<String> = messages.into_iter().filter_map(|message| message.handle).collect();
            if !handles.is_empty() {
                client.ack_batch(&topic, &handles).await?;
            }
        }
        Ok(())
    }
}

fn requests(topics: &[String]) -> Vec<RequestBytes> {
    let body = [b'v'; MESSAGE_BYTES];
    let headers = ["X-Veena-Client: load", "Content-Type: application/octet-stream"];
    let targets = (0..PARTITIONS).flat_map(|partition| topics.iter().map(move |topic| (topic, partition)));
    targets
        .map(|(topic, partition)| RequestBytes::new("POST", &format!("/v1/topics/{topic}/produce?partition={partition}"), &headers, &body))
        .collect()
}

/// The row.
///
/// # Errors
/// The node cannot be driven.
pub(super) async fn measure(options: &Options) -> anyhow::Result<Row> {
    let options = &slowed(options);
    let mut server = Server::start(Kind::Veena, options).await?;
    let topics: Vec<String> = (0..TOPICS).map(|number| format!("spread-{number}")).collect();
    for name in &topics {
        server
            .client
            .create_topic(&NewTopic { name: name.clone(), partitions: PARTITIONS, visibility_ms: 30_000, keeps_order: true })
            .await?;
    }
    let requests = requests(&topics);
    // Every partition is in use before anything is measured: a log is opened once.
    let mut sent = 0;
    for request in &requests {
        sent += u64::from(server.client.call(request).await?.status == 202);
    }
    let warm_up = warm_up(options);
    let seen = Arc::new(Seen::new(warm_up)?);
    let mut consumers = JoinSet::new();
    for topic in topics.iter().cycle().take(topics.len() * CONSUMERS_PER_TOPIC) {
        consumers.spawn(seen.clone().consume(Client::new(server.addr), topic.clone()));
    }
    let spread = Spread::new(requests, &seen);
    let servers = vec![(server.addr, server.pid())];
    let run = Run { servers, connections: PRODUCERS, pace: Pace::Open(RATE), warm_up, time: options.time };
    let measured = load::run(run, |_| spread.clone()).await?;
    sent += measured.sent_total;
    let (lag, ledger) = server.lag_and_ledger_of(&topics, sent, measured.errors).await?;
    seen.end();
    while let Some(ended) = consumers.join_next().await {
        ended??;
    }
    server.stop().await?;
    let took_us = seen.took_us();
    let mut row = figures(&measured, PRODUCERS)
        .with("wal_lag", lag)
        .with("visible_p50_ms", quantile_ms(&took_us, 0.5))
        .with("visible_p99_ms", quantile_ms(&took_us, 0.99))
        .with("seen", load::as_f64(took_us.len()));
    row.ledger = Some(ledger);
    Ok(row)
}
