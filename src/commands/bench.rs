//! `veena bench`: produce, and consume, against a running node. A quick look; `make bench` is the measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use tokio::task::JoinSet;
use tokio::time::Instant;
use veena_client::bodies::{BatchEntry, ProduceBatch};
use veena_client::{Client, ClientError, ProduceOptions, SettleMode};

use super::Global;
use crate::output::{self, Failure, Outcome};

/// What to measure.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The topic; it must exist. Its messages stay unless --consume.
    topic: String,
    /// How many messages.
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    count: u64,
    /// Bytes of each message.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1_048_576), value_name = "BYTES")]
    size: u32,
    /// How many connections at once.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096), value_name = "N")]
    workers: u32,
    /// Messages of one request.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100), value_name = "N")]
    batch: u32,
    /// Consume and ack as many messages afterwards.
    #[arg(long)]
    consume: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Produce,
    Consume,
}

struct Shared {
    client: Client,
    args: BenchArgs,
    payload: Bytes,
    taken: AtomicU64,
    bar: ProgressBar,
}

/// Measures.
pub async fn run(global: &Global, args: BenchArgs) -> Outcome {
    let client = global.client()?;
    client.topic(&args.topic, None).await?;
    let consume = args.consume;
    let size = usize::try_from(args.size).unwrap_or(usize::MAX);
    let bar = output::progress(args.count, "produce");
    let mut shared = Shared { client, args, payload: Bytes::from(vec![b'x'; size]), taken: AtomicU64::new(0), bar };
    shared = stage(global, shared, Stage::Produce).await?;
    if consume {
        shared.taken = AtomicU64::new(0);
        shared.bar = output::progress(shared.args.count, "consume");
        stage(global, shared, Stage::Consume).await?;
    }
    Ok(())
}

async fn stage(global: &Global, shared: Shared, stage: Stage) -> Result<Shared, Failure> {
    let shared = Arc::new(shared);
    let began = Instant::now();
    let mut workers = JoinSet::new();
    for _ in 0..shared.args.workers {
        workers.spawn(work(Arc::clone(&shared), stage));
    }
    let mut latencies = new_histogram();
    while let Some(finished) = workers.join_next().await {
        latencies.add(finished.map_err(anyhow::Error::from)??).map_err(anyhow::Error::from)?;
    }
    let elapsed = began.elapsed();
    shared.bar.finish_and_clear();
    report(global, &shared.args, stage, elapsed, &latencies)?;
    Arc::into_inner(shared).ok_or_else(|| Failure::Failed(anyhow::anyhow!("a worker has not ended")))
}

fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000, 3).expect("invariant: these bounds are valid")
}

async fn work(shared: Arc<Shared>, stage: Stage) -> Result<Histogram<u64>, ClientError> {
    let mut latencies = new_histogram();
    let batch = u64::from(shared.args.batch);
    loop {
        let before = shared.taken.fetch_add(batch, Ordering::Relaxed);
        let wanted = shared.args.count.saturating_sub(before).min(batch);
        if wanted == 0 {
            return Ok(latencies);
        }
        let began = Instant::now();
        let done = match stage {
            Stage::Produce => produce(&shared, wanted).await?,
            Stage::Consume => consume(&shared, wanted).await?,
        };
        latencies.saturating_record(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX));
        shared.bar.inc(done);
        if done == 0 {
            return Ok(latencies);
        }
        // What came short is left to whoever comes next.
        shared.taken.fetch_sub(wanted - done, Ordering::Relaxed);
    }
}

async fn produce(shared: &Shared, wanted: u64) -> Result<u64, ClientError> {
    let topic = &shared.args.topic;
    if shared.args.batch == 1 {
        shared.client.produce(topic, shared.payload.clone(), &ProduceOptions::default()).await?;
        return Ok(1);
    }
    let size = usize::try_from(wanted).unwrap_or(usize::MAX);
    let batch = ProduceBatch { messages: vec![BatchEntry::from_bytes(&shared.payload); size] };
    Ok(shared.client.produce_batch(topic, &batch).await?.accepted)
}

/// Leases and acks up to `wanted` messages; 0 when none came in time.
async fn consume(shared: &Shared, wanted: u64) -> Result<u64, ClientError> {
    let topic = &shared.args.topic;
    let max = u32::try_from(wanted).unwrap_or(u32::MAX);
    let messages = shared.client.consume_batch(topic, max, Duration::from_secs(2), None).await?;
    let handles: Vec<String> = messages.iter().filter_map(|message| message.receipt_handle.clone()).collect();
    match &handles[..] {
        [] => Ok(0),
        [one] => shared.client.ack(topic, one).await.map(|()| 1),
        _ => {
            let results = shared.client.settle_batch(topic, handles, SettleMode::Ack).await?;
            let acked = results.iter().filter(|result| result.status == 204).count();
            Ok(u64::try_from(acked).unwrap_or(u64::MAX))
        }
    }
}

fn report(global: &Global, args: &BenchArgs, stage: Stage, elapsed: Duration, latencies: &Histogram<u64>) -> Outcome {
    let name = if stage == Stage::Produce { "produce" } else { "consume+ack" };
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no exactness")]
    let rate = (args.count as f64 / elapsed.as_secs_f64()).round();
    let (p50, p99, max) = (latencies.value_at_quantile(0.5), latencies.value_at_quantile(0.99), latencies.max());
    if global.json {
        return output::json(&serde_json::json!({
            "stage": name, "messages": args.count, "size": args.size, "workers": args.workers, "batch": args.batch,
            "seconds": elapsed.as_secs_f64(), "messages_per_second": rate, "p50_us": p50, "p99_us": p99, "max_us": max,
        }));
    }
    output::line(format!(
        "{name}: {} messages of {} bytes in {:.2} s, {rate} messages/s; per request p50 {p50} us, p99 {p99} us, max {max} us",
        args.count,
        args.size,
        elapsed.as_secs_f64()
    ))
}
