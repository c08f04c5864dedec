//! A cluster that has much and does nothing.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::{Cluster, NODES, VISIBILITY_MS};
use crate::api::{Client, NewTopic};
use crate::bench::limits::raise_open_files;
use crate::bench::report::Row;
use crate::bench::{Options, usual_share};
use crate::cpu;
use crate::load::as_f64;

const TOPICS: u64 = 1_000;
const PARTITIONS: u32 = 3;
const LANES: usize = 12;
/// How long nodes may still be busy with what was done before.
const SETTLE: Duration = Duration::from_secs(10);
/// As long as it takes until a node has done all that it does now and then: it looks once a minute what is too old.
const QUIET: Duration = Duration::from_secs(60);

fn topic(number: u64) -> String {
    format!("idle-{number}")
}

/// Creates every topic and uses every partition once, through all nodes.
async fn use_once(cluster: &Cluster, topics: u64) -> anyhow::Result<()> {
    let mut lanes = JoinSet::new();
    for lane in 0..LANES {
        let mut client = Client::new(cluster.nodes[lane % NODES].addr());
        let numbers = (u64::try_from(lane)?..topics).step_by(LANES);
        lanes.spawn(async move {
            for number in numbers {
                client
                    .create_topic(&NewTopic {
                        name: topic(number),
                        partitions: PARTITIONS,
                        visibility_ms: VISIBILITY_MS,
                        keeps_order: true,
                    })
                    .await?;
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

/// The row: what the busiest node takes of one processor.
///
/// # Errors
/// The nodes cannot be driven.
pub(in crate::bench) async fn measure(options: &Options) -> anyhow::Result<Row> {
    raise_open_files(8_000, 40_000)?;
    let share = usual_share(options);
    let topics = u64::try_from((0..TOPICS).filter(|number| as_f64(*number) < share * as_f64(TOPICS)).count())?;
    let mut cluster = Cluster::start(options).await?;
    use_once(&cluster, topics).await?;
    let names: Vec<String> = (0..topics).map(topic).collect();
    let (_, ledger) = cluster.lag_and_ledger(&names, topics * u64::from(PARTITIONS), 0).await?;
    tokio::time::sleep(SETTLE).await;
    let pids: Vec<u32> = cluster.nodes.iter().map(|node| node.pid()).collect();
    let spent = || pids.iter().map(|pid| cpu::of_process(*pid)).collect::<anyhow::Result<Vec<_>>>();
    let (before, started) = (spent()?, Instant::now());
    tokio::time::sleep(QUIET.mul_f64(share).max(Duration::from_secs(5))).await;
    let (after, seconds) = (spent()?, started.elapsed().as_secs_f64());
    let percents = after.iter().zip(&before).map(|(after, before)| after.saturating_sub(*before).as_secs_f64() * 100.0 / seconds);
    let row = Row::default()
        .with("topics", as_f64(topics))
        .with("cpu_percent", percents.clone().fold(0.0, f64::max))
        .with("cpu_all_percent", percents.sum());
    cluster.stop().await?;
    Ok(Row { ledger: Some(ledger), ..row })
}
