//! Ten thousand partitions that were used once: what they cost when nobody uses them any more.

use std::time::{Duration, Instant};

use anyhow::ensure;
use tokio::task::JoinSet;

use super::limits::raise_open_files;
use super::report::Row;
use super::server::{Kind, Server};
use super::{Options, usual_share};
use crate::api::{Client, NewTopic};
use crate::cpu;
use crate::load::as_f64;

const TOPICS: u64 = 100;
const PARTITIONS: u32 = 100;
/// The shortest time after which a node closes an idle log.
const EVICTION: Duration = Duration::from_secs(60);
/// How long after that all must be closed.
const EVICTION_SLACK: Duration = Duration::from_secs(120);
const LANES: u64 = 16;
const QUIET: Duration = Duration::from_secs(60);

fn topic(number: u64) -> String {
    format!("idle-{number}")
}

/// Sends one message to every partition of every topic.
async fn use_once(server: &mut Server, topics: u64) -> anyhow::Result<()> {
    for number in 0..topics {
        server
            .client
            .create_topic(&NewTopic { name: topic(number), partitions: PARTITIONS, visibility_ms: 30_000, keeps_order: true })
            .await?;
    }
    let addr = server.addr;
    let mut lanes = JoinSet::new();
    for lane in 0..LANES {
        lanes.spawn(async move {
            let mut client = Client::new(addr);
            for number in (lane..topics).step_by(usize::try_from(LANES)?) {
                for partition in 0..PARTITIONS {
                    client.produce_to(&topic(number), partition, b"once").await?;
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = lanes.join_next().await {
        ended??;
    }
    Ok(())
}

/// The row.
///
/// # Errors
/// The node cannot be driven, or keeps logs open for good.
pub(super) async fn measure(options: &Options) -> anyhow::Result<Row> {
    raise_open_files(1_000, 40_000)?;
    let share = usual_share(options);
    // At least a hundredth, so that a short run shows something.
    let topics = (0..TOPICS).filter(|number| as_f64(*number) < share * as_f64(TOPICS)).count().max(1);
    let topics = u64::try_from(topics)?;
    let config = tempfile::Builder::new().prefix("idle-").suffix(".json").tempfile_in(&options.dir)?;
    let settings = serde_json::json!({ "storage": { "idle_log_eviction_ms": u64::try_from(EVICTION.as_millis())? } });
    std::fs::write(config.path(), settings.to_string())?;
    let mut eager = options.clone();
    eager.node_flags.extend(["--config".to_owned(), config.path().display().to_string()]);
    let mut server = Server::start(Kind::Veena, &eager).await?;
    let pid = server.pid();
    use_once(&mut server, topics).await?;
    let names: Vec<String> = (0..topics).map(topic).collect();
    let sent = topics * u64::from(PARTITIONS);
    let (_, ledger) = server.lag_and_ledger_of(&names, sent, 0).await?;

    let (quiet, open_at_first) = (Instant::now(), cpu::open_files(pid, "/topics/")?);
    let mut open = open_at_first;
    while open > 0 && quiet.elapsed() < EVICTION + EVICTION_SLACK {
        tokio::time::sleep(Duration::from_secs(1)).await;
        open = cpu::open_files(pid, "/topics/")?;
    }
    let closed_after = quiet.elapsed();
    let (before, started) = (cpu::of_process(pid)?, Instant::now());
    tokio::time::sleep(QUIET.mul_f64(share).max(Duration::from_secs(3))).await;
    let spent = cpu::of_process(pid)?.saturating_sub(before);
    let percent = spent.as_secs_f64() * 100.0 / started.elapsed().as_secs_f64();
    open = cpu::open_files(pid, "/topics/")?;
    ensure!(open_at_first > 0, "no log was open to begin with: nothing is shown");
    server.stop().await?;
    let mut row = Row::default()
        .with("partitions", as_f64(sent))
        .with("open_at_first", as_f64(u64::try_from(open_at_first)?))
        .with("open_files", as_f64(u64::try_from(open)?))
        .with("closed_after_s", closed_after.as_secs_f64())
        .with("cpu_percent", percent);
    row.ledger = Some(ledger);
    Ok(row)
}
