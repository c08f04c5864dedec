//! The leader is killed: how long until metadata can be changed again, and whether produce and consume at the nodes that live ever stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::{Cluster, NODES, WHOLE_WITHIN};
use crate::api::{Client, NewTopic};
use crate::bench::loaded::MESSAGE_BYTES;
use crate::bench::report::Row;
use crate::bench::{Options, usual_share};
use crate::load::as_f64;

/// How often the leader is killed in a run of the usual length.
const KILLS: f64 = 3.0;
/// How long the clients are watched before the kill, for comparison.
const BEFORE: Duration = Duration::from_secs(3);
/// How long they are watched after it: longer than it takes until a silent node is given up.
const AFTER: Duration = Duration::from_secs(8);
/// How long a client rests between two messages.
const REST: Duration = Duration::from_millis(10);
const WAIT: Duration = Duration::from_millis(500);
/// A client that gets nothing done for so long stands still. No election is over as fast: nobody asks to lead before 500 ms of silence, and the
/// leader has spoken at most 150 ms before it was killed.
const GAP: Duration = Duration::from_millis(350);

/// When something last went well, and how long it took until it did again.
struct Stream {
    last: Instant,
    longest: Duration,
    gaps: u64,
}

impl Stream {
    fn new() -> Self {
        Self { last: Instant::now(), longest: Duration::ZERO, gaps: 0 }
    }

    fn went_on(&mut self) {
        let gap = self.last.elapsed();
        self.longest = self.longest.max(gap);
        self.gaps += u64::from(gap >= GAP);
        self.last = Instant::now();
    }
}

/// The longest gap of several streams, and how many were long.
#[derive(Clone, Copy, Default)]
struct Gaps {
    longest: Duration,
    count: u64,
}

impl Gaps {
    fn worst(self, other: Self) -> Self {
        Self { longest: self.longest.max(other.longest), count: self.count + other.count }
    }
}

/// Streams of one kind, one for each place and partition that must go on.
#[derive(Default)]
struct Streams(Mutex<Vec<((usize, u32), Stream)>>);

impl Streams {
    fn add(&self, place: usize, partition: u32) {
        self.0.lock().push(((place, partition), Stream::new()));
    }

    fn went_on(&self, place: usize, partition: u32) {
        let mut all = self.0.lock();
        all.iter_mut().filter(|(key, _)| *key == (place, partition)).for_each(|(_, stream)| stream.went_on());
    }

    /// The gaps so far, also those that have not ended; counts anew from now on.
    fn take(&self) -> Gaps {
        let mut gaps = Gaps::default();
        for (_, stream) in self.0.lock().iter_mut() {
            stream.went_on();
            let Stream { longest, gaps: count, .. } = std::mem::replace(stream, Stream::new());
            gaps = gaps.worst(Gaps { longest, count });
        }
        gaps
    }
}

/// Clients of the nodes that will live, and what they get done.
#[derive(Default)]
struct Watched {
    produce: Streams,
    consume: Streams,
    accepted: AtomicU64,
    /// Anything but what was asked for.
    refused: AtomicU64,
    /// Perhaps stored all the same.
    uncertain: AtomicU64,
    first: Mutex<Option<String>>,
    is_over: AtomicBool,
}

impl Watched {
    fn refused(&self, what: String) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        self.first.lock().get_or_insert(what);
    }

    /// Sends to these partitions in turn. Requests are rendered by hand, as one that is refused is not sent again.
    async fn produce(self: Arc<Self>, mut client: Client, place: usize, topic: String, partitions: Vec<u32>) -> anyhow::Result<()> {
        let body = [b'v'; MESSAGE_BYTES];
        for partition in partitions.iter().cycle() {
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            let target = format!("/v1/topics/{topic}/produce?partition={partition}");
            match client.call(&crate::http::RequestBytes::post(&target, &body)).await {
                Ok(reply) if reply.status == 202 => {
                    self.accepted.fetch_add(1, Ordering::Relaxed);
                    self.produce.went_on(place, *partition);
                }
                Ok(reply) => {
                    self.uncertain.fetch_add(u64::from(reply.effect.as_deref() != Some("none")), Ordering::Relaxed);
                    self.refused(format!("produce: {} {}", reply.status, String::from_utf8_lossy(&reply.body)));
                }
                Err(err) => {
                    self.uncertain.fetch_add(1, Ordering::Relaxed);
                    self.refused(format!("produce: {err}"));
                }
            }
            tokio::time::sleep(REST).await;
        }
        Ok(())
    }

    async fn consume(self: Arc<Self>, mut client: Client, place: usize, topic: String) -> anyhow::Result<()> {
        while !self.is_over.load(Ordering::Relaxed) {
            let messages = match client.consume(&topic, WAIT, 100).await {
                Ok(Ok(messages)) => messages,
                Ok(Err(reply)) => {
                    self.refused(format!("consume: {} {}", reply.status, String::from_utf8_lossy(&reply.body)));
                    tokio::time::sleep(REST).await;
                    continue;
                }
                Err(err) => {
                    self.refused(format!("consume: {err:#}"));
                    continue;
                }
            };
            messages.iter().for_each(|message| self.consume.went_on(place, message.partition));
            let handles: Vec<String> = messages.into_iter().filter_map(|message| message.handle).collect();
            if !handles.is_empty() {
                match client.ack_batch(&topic, &handles).await {
                    Ok(statuses) if statuses.iter().all(|status| *status == 204) => {}
                    Ok(statuses) => self.refused(format!("ack: {statuses:?}")),
                    Err(err) => self.refused(format!("ack: {err}")),
                }
            }
        }
        Ok(())
    }
}

/// Consumers at one node have a topic of their own, so that none takes from another what it is watched for.
fn topic(consumers_at: usize) -> String {
    format!("taken-at-{consumers_at}")
}

/// Creates a topic until that works; how long that takes.
async fn control_works(mut client: Client, name: String, killed: Instant) -> anyhow::Result<Duration> {
    let topic = NewTopic { name, partitions: 1, visibility_ms: super::VISIBILITY_MS, keeps_order: true };
    while let Err(err) = client.create_topic(&topic).await {
        ensure!(killed.elapsed() < WHOLE_WITHIN, "no topic can be created after {WHOLE_WITHIN:?}: {err:#}");
        tokio::time::sleep(REST).await;
    }
    Ok(killed.elapsed())
}

/// What came of one kill, or of all.
#[derive(Default)]
struct Outcome {
    control: Duration,
    produce_before: Gaps,
    consume_before: Gaps,
    produce: Gaps,
    consume: Gaps,
    accepted: u64,
    refused: u64,
    uncertain: u64,
    first: Option<String>,
}

impl Outcome {
    fn worst(self, other: Self) -> Self {
        Self {
            control: self.control.max(other.control),
            produce_before: self.produce_before.worst(other.produce_before),
            consume_before: self.consume_before.worst(other.consume_before),
            produce: self.produce.worst(other.produce),
            consume: self.consume.worst(other.consume),
            accepted: self.accepted + other.accepted,
            refused: self.refused + other.refused,
            uncertain: self.uncertain + other.uncertain,
            first: self.first.or(other.first),
        }
    }
}

/// Kills the leader under load, waits, and starts it again.
async fn kill(cluster: &mut Cluster, owned: &[Vec<Vec<u32>>], number: u32) -> anyhow::Result<Outcome> {
    let leader = cluster.settled().await?;
    let living: Vec<usize> = (0..NODES).filter(|at| *at != leader).collect();
    let watched = Arc::new(Watched::default());
    let mut tasks = JoinSet::new();
    for to in &living {
        let partitions: Vec<u32> = living.iter().flat_map(|owner| owned[*to][*owner].clone()).collect();
        partitions.iter().for_each(|partition| watched.consume.add(*to, *partition));
        tasks.spawn(watched.clone().consume(Client::new(cluster.nodes[*to].addr()), *to, topic(*to)));
        for from in &living {
            // Each sender of each topic is watched by itself.
            let place = from * NODES + to;
            partitions.iter().for_each(|partition| watched.produce.add(place, *partition));
            tasks.spawn(watched.clone().produce(Client::new(cluster.nodes[*from].addr()), place, topic(*to), partitions.clone()));
        }
    }
    // Everything is connected and open before it is watched.
    tokio::time::sleep(BEFORE / 3).await;
    let _ = (watched.produce.take(), watched.consume.take());
    tokio::time::sleep(BEFORE).await;
    let (produce_before, consume_before) = (watched.produce.take(), watched.consume.take());
    cluster.nodes[leader].kill()?;
    let killed = Instant::now();
    let mut controls = JoinSet::new();
    for at in &living {
        controls.spawn(control_works(Client::new(cluster.nodes[*at].addr()), format!("control-{number}-{at}"), killed));
    }
    tokio::time::sleep(AFTER).await;
    let mut control = Duration::ZERO;
    while let Some(ended) = controls.join_next().await {
        control = control.max(ended??);
    }
    let (produce, consume) = (watched.produce.take(), watched.consume.take());
    watched.is_over.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    cluster.nodes[leader].start_again().await?;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let first = watched.first.lock().clone();
    let (accepted, refused, uncertain) = (count(&watched.accepted), count(&watched.refused), count(&watched.uncertain));
    Ok(Outcome { control, produce_before, consume_before, produce, consume, accepted, refused, uncertain, first })
}

/// The row: the worst of several kills.
///
/// # Errors
/// The nodes cannot be driven, or metadata cannot be changed any more.
pub(in crate::bench) async fn measure(options: &Options) -> anyhow::Result<Row> {
    let mut cluster = Cluster::start(options).await?;
    let mut owned = Vec::new();
    for at in 0..NODES {
        owned.push(cluster.create(&topic(at), u32::try_from(NODES)?).await?);
    }
    let mut outcome = Outcome::default();
    let mut kills = 0;
    while kills == 0 || f64::from(kills) < KILLS * usual_share(options) {
        outcome = outcome.worst(kill(&mut cluster, &owned, kills).await?);
        kills += 1;
    }
    cluster.settled().await?;
    let topics: Vec<String> = (0..NODES).map(topic).collect();
    let (_, ledger) = cluster.lag_and_ledger(&topics, outcome.accepted, outcome.uncertain).await?;
    cluster.stop().await?;
    let ms = |gaps: Gaps| gaps.longest.as_secs_f64() * 1000.0;
    let mut row = Row::default()
        .with("kills", f64::from(kills))
        .with("control_s", outcome.control.as_secs_f64())
        .with("produce_gap_before_ms", ms(outcome.produce_before))
        .with("produce_gap_ms", ms(outcome.produce))
        .with("consume_gap_before_ms", ms(outcome.consume_before))
        .with("consume_gap_ms", ms(outcome.consume))
        .with("gaps", as_f64(outcome.produce.count + outcome.consume.count))
        .with("messages", as_f64(outcome.accepted))
        .with("refused", as_f64(outcome.refused));
    row.first_error = outcome.first.map(|text| text.chars().take(200).collect());
    row.ledger = Some(ledger);
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_never_goes_on_has_a_gap_and_one_that_does_has_none() {
        let streams = Streams::default();
        streams.add(0, 1);
        streams.add(0, 2);
        streams.0.lock()[0].1.last -= GAP;
        streams.went_on(0, 2);
        let gaps = streams.take();
        assert_eq!(gaps.count, 1);
        assert!(gaps.longest >= GAP);
        let gaps = streams.take();
        assert_eq!(gaps.count, 0, "counted anew");
    }
}
