//! One owner is down while messages for it go on coming: what the other partitions notice of it, and what the WAL keeps.
//!
//! An hour is made short: the rates are real, and between the first minute and the last the messages of the time in between are sent at
//! once. By the last minute the node keeps for that owner all that it may, and refuses more, as it would for most of the hour.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tokio::task::JoinSet;

use super::{Cluster, NODES, VISIBILITY_MS, WHOLE_WITHIN, is_refused};
use crate::api::Client;
use crate::bench::flush::quantile_ms;
use crate::bench::loaded::{MESSAGE_BYTES, figures, warm_up};
use crate::bench::partitions::{Seen, Spread};
use crate::bench::report::Row;
use crate::bench::server::{TOPIC, fill, visible};
use crate::bench::{Options, usual_share};
use crate::http::{Connection, RequestBytes};
use crate::load::{self, LoadClient, Measured, Meter, Pace, ProduceBatch, Run, Step, as_f64};

/// What is sent at once to the others. It has no consumers, as those who are watched would have to read all of it first.
const FILLER: &str = "filler";
/// Messages a second for the owner that is down, and as many for the others.
const RATE: f64 = 500.0;
const CONNECTIONS: usize = 16;
/// What is sent at once is sent in larger messages.
const FILL_BYTES: u32 = 4096;
/// What the others are sent in the hour: more than a node lets one destination keep from being recycled, so that it has to be set aside.
const HOUR_BYTES: f64 = 1.25 * 1024.0 * 1024.0 * 1024.0;
/// More than any node keeps for one partition.
const STUCK_BATCHES_MAX: u32 = 2_000;
const LOOK_EVERY: Duration = Duration::from_millis(200);

fn produce_to(partition: u32) -> RequestBytes {
    let headers = ["X-Veena-Client: load", "Content-Type: application/octet-stream"];
    RequestBytes::new("POST", &format!("/v1/topics/{TOPIC}/produce?partition={partition}"), &headers, &[b'v'; MESSAGE_BYTES])
}

/// Sends to the owner that is down. A refusal without effect is as good an answer as 202.
struct Stuck {
    request: RequestBytes,
    refused: Rc<Cell<u64>>,
}

impl LoadClient for Stuck {
    async fn step(&mut self, connection: &mut Connection, meter: &mut Meter) -> anyhow::Result<Step> {
        let start = meter.start();
        let answer = connection.exchange(self.request.as_bytes()).await?;
        let is_accepted = answer.status == 202;
        let is_refused = is_refused(&answer);
        meter.answered(start, &answer, is_accepted || is_refused);
        meter.sent(u64::from(is_accepted));
        self.refused.set(self.refused.get() + u64::from(is_refused));
        Ok(Step::Done)
    }
}

/// The most that a node's WAL and its files of parked records held.
#[derive(Default)]
struct Peak {
    wal_bytes: AtomicU64,
    parked_bytes: AtomicU64,
    is_over: AtomicBool,
}

impl Peak {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of bytes")]
    async fn watch(self: Arc<Self>, mut client: Client) -> anyhow::Result<()> {
        while !self.is_over.load(Ordering::Relaxed) {
            let metrics = client.metrics().await?;
            for (name, peak) in [("veena_ingress_wal_live_bytes", &self.wal_bytes), ("veena_parked_bytes", &self.parked_bytes)] {
                let bytes = metrics.sum(|metric| metric == name).with_context(|| format!("no {name}"))?;
                peak.fetch_max(bytes as u64, Ordering::Relaxed);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }
}

/// A cluster of which one node goes down.
struct Down<'a> {
    options: &'a Options,
    cluster: Cluster,
    /// The nodes that live. The first takes what is stuck.
    living: Vec<usize>,
    /// Their partitions, and those of the filler.
    others: Vec<u32>,
    filled: Vec<u32>,
    stuck: u32,
    /// What the others were sent, at once and otherwise, and what the one that is down was.
    sent: u64,
    sent_filler: u64,
    sent_stuck: u64,
    errors: u64,
}

impl<'a> Down<'a> {
    async fn start(options: &'a Options) -> anyhow::Result<(Self, usize)> {
        let mut cluster = Cluster::start(options).await?;
        let leader = cluster.settled().await?;
        let body = serde_json::json!({
            "name": TOPIC, "partitions": NODES, "visibility_timeout_ms": VISIBILITY_MS, "reroute": "never",
        });
        let reply = cluster.clients[0].call(&RequestBytes::post_json("/v1/topics", body.to_string().as_bytes())).await?;
        ensure!(reply.status == 201, "cannot create the topic: {} {}", reply.status, String::from_utf8_lossy(&reply.body));
        let owned = cluster.owned(TOPIC, u32::try_from(NODES)?).await?;
        // An election has a scenario of its own.
        let down = (leader + 1) % NODES;
        let living: Vec<usize> = (0..NODES).filter(|at| *at != down).collect();
        let filler = cluster.create(FILLER, u32::try_from(NODES)?).await?;
        let of_living = |owned: &[Vec<u32>]| living.iter().map(|at| owned[*at][0]).collect();
        let (others, filled, stuck) = (of_living(&owned), of_living(&filler), owned[down][0]);
        Ok((Self { options, cluster, living, others, filled, stuck, sent: 0, sent_filler: 0, sent_stuck: 0, errors: 0 }, down))
    }

    fn run(&self, places: &[usize]) -> Run {
        Run {
            servers: self.cluster.servers(places),
            connections: CONNECTIONS,
            pace: Pace::Open(RATE),
            warm_up: warm_up(self.options),
            time: self.options.time,
        }
    }

    /// What the others' clients see, with or without messages for the one that is down.
    async fn phase(&mut self, name: &str, about: &str, with_stuck: bool) -> anyhow::Result<Row> {
        let run = self.run(&self.living);
        let seen = Arc::new(Seen::new(run.warm_up)?);
        let mut consumers = JoinSet::new();
        for (addr, _) in &run.servers {
            consumers.spawn(seen.clone().consume(Client::new(*addr), TOPIC.to_owned()));
        }
        let spread = Spread::new(self.others.iter().map(|partition| produce_to(*partition)).collect(), &seen);
        let others = load::run(run, |_| spread.clone());
        let (measured, stuck) = match with_stuck {
            false => (others.await?, None),
            true => {
                let stuck = self.send_stuck();
                let (others, stuck) = tokio::try_join!(others, stuck)?;
                (others, Some(stuck))
            }
        };
        self.sent += measured.sent_total;
        self.errors += measured.errors;
        self.all_visible(TOPIC, self.sent).await?;
        seen.end();
        while let Some(ended) = consumers.join_next().await {
            ended??;
        }
        let took_us = seen.took_us();
        ensure!(!took_us.is_empty(), "{name}: consumers have seen nothing");
        let mut row = Row { name: name.to_owned(), about: about.to_owned(), ..figures(&measured, CONNECTIONS) }
            .with("visible_p50_ms", quantile_ms(&took_us, 0.5))
            .with("visible_p99_ms", quantile_ms(&took_us, 0.99))
            .with("seen", as_f64(took_us.len()));
        if let Some((stuck, refused)) = stuck {
            self.sent_stuck += stuck.sent_total;
            self.errors += stuck.errors;
            row = row
                .with("stuck_accepted", as_f64(stuck.sent_total))
                .with("stuck_refused", as_f64(refused))
                .with("stuck_errors", as_f64(stuck.errors));
            row.first_error = row.first_error.or(stuck.first_error);
        }
        Ok(row)
    }

    async fn send_stuck(&self) -> anyhow::Result<(Measured, u64)> {
        let refused = Rc::new(Cell::new(0));
        let stuck = || Stuck { request: produce_to(self.stuck), refused: refused.clone() };
        let measured = load::run(self.run(&self.living[..1]), |_| stuck()).await?;
        Ok((measured, refused.get()))
    }

    async fn all_visible(&mut self, topic: &str, sent: u64) -> anyhow::Result<()> {
        let (started, topics) = (Instant::now(), [topic.to_owned()]);
        while visible(&mut self.cluster.clients[self.living[0]], &topics).await? < sent {
            ensure!(started.elapsed() < WHOLE_WITHIN, "messages of owners that live are not visible after {WHOLE_WITHIN:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// The hour in between: for the owner that is down as much as is taken, for the others what they are sent in that time.
    async fn hour(&mut self) -> anyhow::Result<()> {
        let first = self.living[0];
        let request = ProduceBatch::to(TOPIC, usize::try_from(FILL_BYTES)?, 0, &[self.stuck]).into_request();
        for _ in 0..STUCK_BATCHES_MAX {
            let reply = self.cluster.clients[first].call(&request).await?;
            if reply.status == 503 && reply.effect.as_deref() == Some("none") {
                break;
            }
            ensure!(reply.status == 202, "a batch was answered {}: {}", reply.status, String::from_utf8_lossy(&reply.body));
            self.sent_stuck += 100;
        }
        let bytes = HOUR_BYTES * usual_share(self.options);
        let messages = (0..u64::MAX).step_by(100).find(|messages| as_f64(*messages) * f64::from(FILL_BYTES) >= bytes).unwrap_or(0);
        let request = ProduceBatch::to(FILLER, usize::try_from(FILL_BYTES)?, 0, &self.filled).into_request();
        self.sent_filler = fill(self.cluster.nodes[first].addr(), &request, messages).await?;
        self.all_visible(FILLER, self.sent_filler).await
    }
}

/// Three rows: with all owners, with one that has just gone down, and with one that has long been down.
///
/// # Errors
/// The nodes cannot be driven.
pub(in crate::bench) async fn measure(options: &Options) -> anyhow::Result<Vec<Row>> {
    let (mut run, down) = Down::start(options).await?;
    let before = run.phase("owner-up", "500 messages a second to two owners of three", false).await?;
    let peak = Arc::new(Peak::default());
    let watching = tokio::spawn(peak.clone().watch(Client::new(run.cluster.nodes[run.living[0]].addr())));
    run.cluster.nodes[down].kill()?;
    let at_first = run.phase("owner-down", "the same, the third one down, 500 a second to it", true).await?;
    run.hour().await?;
    let at_last = run.phase("owner-down-full", "the same once the node keeps for that owner all that it may", true).await?;
    peak.is_over.store(true, Ordering::Relaxed);
    watching.await??;

    let started = Instant::now();
    run.cluster.nodes[down].start_again().await?;
    run.cluster.settled().await?;
    let sent = run.sent + run.sent_filler + run.sent_stuck;
    let (_, ledger) = run.cluster.lag_and_ledger(&[TOPIC, FILLER].map(str::to_owned), sent, run.errors).await?;
    let returned = started.elapsed();
    run.cluster.stop().await?;
    let mib = |bytes: &AtomicU64| as_f64(bytes.load(Ordering::Relaxed)) / 1_048_576.0;
    let mut at_last = at_last
        .with("wal_peak_mib", mib(&peak.wal_bytes))
        .with("parked_peak_mib", mib(&peak.parked_bytes))
        .with("returned_s", returned.as_secs_f64());
    at_last.ledger = Some(ledger);
    Ok(vec![before, at_first, at_last])
}
