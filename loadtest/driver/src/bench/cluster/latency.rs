//! From the send at any node to a consumer that is parked at any other, while nothing else happens.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use hdrhistogram::Histogram;
use veena_loadtest_checker::{How, Label};

use super::{Cluster, NODES};
use crate::api::Client;
use crate::bench::Options;
use crate::bench::flush::{Probe, quantile_ms};
use crate::bench::loaded::MESSAGE_BYTES;
use crate::bench::report::Row;
use crate::bench::server::TOPIC;
use crate::load::as_f64;
use crate::payload::{self, Shape};

const WAIT: Duration = Duration::from_secs(10);
/// Long enough for some hundreds of syncs.
const PROBED: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// A consumer that is parked has told the owners by then; nothing is left to be done.
const REST: Duration = Duration::from_millis(20);

/// Who sends, who waits, and who owns the partition in between.
#[derive(Clone, Copy)]
struct Way {
    from: usize,
    to: usize,
    owner: usize,
}

/// Every way from one node to another, over each owner.
fn ways() -> Vec<Way> {
    let pairs = (0..NODES).flat_map(|from| (0..NODES).filter(move |to| *to != from).map(move |to| (from, to)));
    pairs.flat_map(|(from, to)| (0..NODES).map(move |owner| Way { from, to, owner })).collect()
}

struct Idle {
    senders: Vec<Client>,
    consumers: Vec<Client>,
    lookers: Vec<Client>,
    /// The partition of each owner.
    partitions: Vec<u32>,
    sent: u64,
}

impl Idle {
    /// One message; how long until it was there.
    async fn send(&mut self, way: Way) -> anyhow::Result<Duration> {
        self.sent += 1;
        let message = payload::make(Label(self.sent), Shape::Text, MESSAGE_BYTES);
        let (consumer, sender, looker) = (&mut self.consumers[way.to], &mut self.senders[way.from], &mut self.lookers[way.to]);
        let taken = async {
            let messages = consumer.consume(TOPIC, WAIT, 1).await?.map_err(|reply| anyhow::anyhow!("consume: {}", reply.status))?;
            anyhow::Ok((messages, Instant::now()))
        };
        let sent = async {
            parked(looker).await?;
            tokio::time::sleep(REST).await;
            let sent = Instant::now();
            sender.produce_to(TOPIC, self.partitions[way.owner], &message).await?;
            anyhow::Ok(sent)
        };
        let ((mut messages, taken), sent) = tokio::try_join!(taken, sent)?;
        let taken_message = messages.pop().with_context(|| format!("no message within {WAIT:?}"))?;
        ensure!(taken_message.payload == message, "another message than the one that was sent");
        let handle = taken_message.handle.context("a message without a receipt handle")?;
        let reply = consumer.settle(TOPIC, &handle, How::Ack).await?;
        ensure!(reply.status == 204, "an ack was answered {}", reply.status);
        Ok(taken.saturating_duration_since(sent))
    }

    /// All ways in turn for `time`; how long messages took, in microseconds.
    async fn pass(&mut self, time: Duration) -> anyhow::Result<Histogram<u64>> {
        let mut took_us = Histogram::new_with_bounds(1, 60_000_000, 3)?;
        let started = Instant::now();
        for way in ways().iter().cycle() {
            took_us.saturating_record(u64::try_from(self.send(*way).await?.as_micros())?);
            if started.elapsed() >= time {
                break;
            }
        }
        Ok(took_us)
    }
}

async fn parked(looker: &mut Client) -> anyhow::Result<()> {
    let started = Instant::now();
    while looker.metrics().await?.sum(|name| name == "veena_consumers_parked").context("no metric of parked consumers")? < 1.0 {
        ensure!(started.elapsed() < WAIT, "the consumer is not parked");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// The row. What a sync takes is probed twice: while the nodes do nothing, which is what messages are held against, and beside messages, which are
/// sent once more for that.
///
/// # Errors
/// A node does not answer, or a message does not come.
pub(in crate::bench) async fn measure(options: &Options) -> anyhow::Result<Row> {
    let mut cluster = Cluster::start(options).await?;
    let owned = cluster.create(TOPIC, u32::try_from(NODES)?).await?;
    let clients = || cluster.nodes.iter().map(|node| Client::new(node.addr())).collect();
    let partitions = owned.iter().map(|partitions| partitions[0]).collect();
    let mut idle = Idle { senders: clients(), consumers: clients(), lookers: clients(), partitions, sent: 0 };
    // Logs are opened and nodes connected on the first use of each way.
    for way in ways() {
        idle.send(way).await?;
    }
    let probe = Probe::start(&options.dir)?;
    tokio::time::sleep(options.time.min(PROBED)).await;
    let flush_idle_us = probe.stop()?;
    let took_us = idle.pass(options.time).await?;
    let probe = Probe::start(&options.dir)?;
    idle.pass(options.time).await?;
    let flush_us = probe.stop()?;
    let sent = idle.sent;
    let (_, ledger) = cluster.lag_and_ledger(&[TOPIC.to_owned()], sent, 0).await?;
    cluster.stop().await?;
    let mut row = Row::default()
        .with("connections", 2.0)
        .with("p50_ms", quantile_ms(&took_us, 0.5))
        .with("p99_ms", quantile_ms(&took_us, 0.99))
        .with("messages", as_f64(took_us.len()))
        .with("flush_p99_ms", quantile_ms(&flush_idle_us, 0.99))
        .with("flush_beside_p99_ms", quantile_ms(&flush_us, 0.99));
    row.ledger = Some(ledger);
    Ok(row)
}
