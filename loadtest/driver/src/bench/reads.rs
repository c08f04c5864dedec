//! No ack waits for a read: acks on one connection while replays and batch consumers take all they can.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use super::Options;
use super::flush::quantile_ms;
use super::loaded::warm_up;
use super::report::Row;
use super::server::{Kind, Server, TOPIC};
use crate::api::{Client, Metrics, NewTopic};
use crate::http::{Connection, RequestBytes};
use crate::load::as_f64;
use veena_loadtest_checker::How;

/// Large enough that reading them is work.
const MESSAGE_BYTES: usize = 4096;
/// What the topic holds after a run of the usual length: more than a node keeps of frames it has read.
const MESSAGES_PER_SECOND: u64 = 3_200;
const REPLAYS: u32 = 6;
const BATCH_CONSUMERS: usize = 2;
const PARTITIONS: u32 = 3;
/// A topic that is read under leases which soon run out, so that it never runs dry.
const LEASED: &str = "leased-again";
const ACK_ROUTE: &str = "route=\"POST /v1/topics/{topic}/ack\"";

/// What readers do until they are told to stop.
struct Readers {
    addr: SocketAddr,
    /// The first offset that does not exist, in each partition.
    end: u64,
    reads: AtomicU64,
    is_over: AtomicBool,
}

impl Readers {
    async fn replay(self: Arc<Self>, partition: u32, first: u64) -> anyhow::Result<()> {
        let mut connection = Connection::open(self.addr).await?;
        let mut offset = first;
        while !self.is_over.load(Ordering::Relaxed) {
            let request = RequestBytes::get(&format!("/v1/topics/{TOPIC}/consume?partition={partition}&offset={offset}"));
            let answer = connection.exchange(request.as_bytes()).await?;
            ensure!(answer.status == 200, "a replay was answered {}", answer.status);
            self.reads.fetch_add(1, Ordering::Relaxed);
            // Strides, so that a frame that was just decoded is of no use.
            offset = (offset + 4099) % self.end;
        }
        Ok(())
    }

    async fn consume(self: Arc<Self>) -> anyhow::Result<()> {
        let mut connection = Connection::open(self.addr).await?;
        let request = RequestBytes::get(&format!("/v1/topics/{LEASED}/consume?wait=100ms&max=100"));
        while !self.is_over.load(Ordering::Relaxed) {
            let answer = connection.exchange(request.as_bytes()).await?;
            ensure!(matches!(answer.status, 200 | 204), "a consume was answered {}", answer.status);
            self.reads.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// All of them, on a thread of their own: the acks are measured on another.
    fn run(self: Arc<Self>) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for number in 0..REPLAYS {
                let first = u64::from(number) * self.end / u64::from(REPLAYS);
                tasks.spawn(self.clone().replay(number % PARTITIONS, first));
            }
            for _ in 0..BATCH_CONSUMERS {
                tasks.spawn(self.clone().consume());
            }
            while let Some(ended) = tasks.join_next().await {
                ended??;
            }
            Ok(())
        })
    }
}

/// Acks one by one for `time`, or until nothing is left; how long each took, in microseconds.
async fn ack(client: &mut Client, time: Duration) -> anyhow::Result<Histogram<u64>> {
    let mut took_us = Histogram::new_with_bounds(1, 60_000_000, 3)?;
    let started = Instant::now();
    while started.elapsed() < time {
        let messages = client.consume(TOPIC, Duration::ZERO, 100).await?.map_err(|reply| anyhow::anyhow!("consume: {}", reply.status))?;
        if messages.is_empty() {
            break;
        }
        for message in messages {
            let handle = message.handle.context("a message without a receipt handle")?;
            let began = Instant::now();
            let reply = client.settle(TOPIC, &handle, How::Ack).await?;
            took_us.saturating_record(u64::try_from(began.elapsed().as_micros())?);
            ensure!(reply.status == 204, "an ack was answered {}", reply.status);
        }
    }
    Ok(took_us)
}

/// Acks that the node has answered so far: within a millisecond, and all.
fn answered(metrics: &Metrics) -> Option<(f64, f64)> {
    let name = "veena_http_request_duration_seconds";
    let within = metrics.sum_of(&format!("{name}_bucket{{{ACK_ROUTE}"), "le=\"0.001\"")?;
    Some((within, metrics.sum_of(&format!("{name}_count{{{ACK_ROUTE}"), "")?))
}

/// The row.
///
/// # Errors
/// The node cannot be driven.
pub(super) async fn measure(options: &Options) -> anyhow::Result<Row> {
    let mut server = Server::start(Kind::Veena, options).await?;
    let seconds = options.time.as_secs().max(1);
    let messages = server.preload(MESSAGES_PER_SECOND * seconds, MESSAGE_BYTES).await?;
    let leased = NewTopic { name: LEASED.to_owned(), partitions: 24, visibility_ms: 1_000, keeps_order: true };
    server.client.create_topic(&leased).await?;
    server.preload_into(LEASED, (MESSAGES_PER_SECOND * seconds).min(24_000), MESSAGE_BYTES).await?;

    // Keyless batches go round the partitions, so that each holds a third, give or take.
    let end = server.client.describe(TOPIC).await?.iter().map(|numbers| numbers.high_watermark).min().unwrap_or(0);
    ensure!(end > 0, "a partition of {messages} messages is empty");
    let readers = Arc::new(Readers { addr: server.addr, end, reads: AtomicU64::new(0), is_over: AtomicBool::new(false) });
    let shared = readers.clone();
    let thread = std::thread::spawn(move || shared.run());
    tokio::time::sleep(warm_up(options)).await;
    let before = server.client.metrics().await.ok().and_then(|metrics| answered(&metrics)).unwrap_or_default();
    let (reads_before, started) = (readers.reads.load(Ordering::Relaxed), Instant::now());
    let took_us = ack(&mut server.client, options.time).await;
    let reads = readers.reads.load(Ordering::Relaxed) - reads_before;
    let seconds = started.elapsed().as_secs_f64();
    let after = server.client.metrics().await.ok().and_then(|metrics| answered(&metrics));
    readers.is_over.store(true, Ordering::Relaxed);
    thread.join().map_err(|_| anyhow::anyhow!("the readers died"))??;
    let took_us = took_us?;
    server.stop().await?;
    let mut row = Row::default()
        .with("connections", 1.0)
        .with("rate", as_f64(took_us.len()) / seconds)
        .with("p50_ms", quantile_ms(&took_us, 0.5))
        .with("p99_ms", quantile_ms(&took_us, 0.99))
        .with("reads_per_s", as_f64(reads) / seconds);
    if let Some((within, all)) = after {
        row = row.with("owner_within_1ms_percent", (within - before.0) * 100.0 / (all - before.1).max(1.0));
    }
    Ok(row)
}
