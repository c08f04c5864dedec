//! The scenarios by name.

use std::time::Duration;

use super::report::Row;
use super::server::{Kind, Server, TOPIC};
use super::{Options, flush, parked};
use crate::api::NewTopic;
use crate::load::{self, ConsumeAck, Cycle, CycleBatch, LoadClient, Measured, Pace, ProduceBatch, ProduceOne, Run, as_f64};
use crate::recorder::Recorder;
use crate::workload::{Plan, Workload, drain};

const MESSAGE_BYTES: usize = 256;
/// More messages a second than one node can hand out singly: what the consume scenario is filled with.
const CONSUME_RATE_MAX: u64 = 40_000;

/// One scenario.
#[derive(Debug)]
pub struct Scenario {
    /// How it is called.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// Does it belong to the usual run?
    pub is_usual: bool,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Flush,
    Produce(Kind, usize),
    ConsumeAck(usize),
    Cycle(usize),
    BatchProduce(usize),
    BatchCycle(usize),
    HalfRate(usize),
    Ledger,
    Parked,
}

const fn usual(name: &'static str, what: What, about: &'static str) -> Scenario {
    Scenario { name, about, is_usual: true, what }
}

const fn special(name: &'static str, what: What, about: &'static str) -> Scenario {
    Scenario { name, about, is_usual: false, what }
}

/// All of them, in the order of the table.
pub const SCENARIOS: &[Scenario] = &[
    usual("flush", What::Flush, "how long the disk takes to sync"),
    usual("bare-64", What::Produce(Kind::Bare, 64), "(a) a bare axum handler that answers 202"),
    usual("bare-256", What::Produce(Kind::Bare, 256), "(a) at 256 connections"),
    usual("logged-64", What::Produce(Kind::Logged, 64), "(b) the same behind a group-committed log"),
    usual("logged-256", What::Produce(Kind::Logged, 256), "(b) at 256 connections"),
    usual("produce-64", What::Produce(Kind::Veena, 64), "(c) produce"),
    usual("produce-256", What::Produce(Kind::Veena, 256), "(c) at 256 connections"),
    usual("consume-ack-64", What::ConsumeAck(64), "(d) consume and ack, one message a request"),
    usual("cycle-64", What::Cycle(64), "(e) produce, consume, ack"),
    usual("batch-produce-16", What::BatchProduce(16), "(f) batches of 100: produce"),
    usual("batch-cycle-16", What::BatchCycle(16), "(f) batches of 100: produce, consume, ack"),
    usual("half-rate-64", What::HalfRate(64), "produce at half the maximum rate, open loop"),
    usual("one-connection", What::Produce(Kind::Veena, 1), "produce on one connection"),
    usual("ledger", What::Ledger, "every answer checked against the contract"),
    special("parked-polls", What::Parked, "10,000 parked long polls beside a bare server that parks"),
];

impl Scenario {
    /// The scenario called `name`.
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Self> {
        SCENARIOS.iter().find(|scenario| scenario.name == name)
    }

    /// Runs it once. `before` are the rows of this run so far.
    pub(super) async fn run(&self, options: &Options, before: &[Row]) -> anyhow::Result<Vec<Row>> {
        let row = match self.what {
            What::Flush => return flush::measure(&options.dir, options.time.min(Duration::from_secs(5))),
            What::Produce(kind, connections) => {
                let bench = Bench { options, kind, connections, pace: Pace::Closed };
                bench.run(0, |at| ProduceOne::new(TOPIC, MESSAGE_BYTES, at)).await?
            }
            What::ConsumeAck(connections) => {
                let seconds = options.time.as_secs() + warm_up(options).as_secs() + 1;
                let bench = Bench { options, kind: Kind::Veena, connections, pace: Pace::Closed };
                bench.run(seconds * CONSUME_RATE_MAX, |_| ConsumeAck::new(TOPIC, 0)).await?
            }
            What::Cycle(connections) => {
                let bench = Bench { options, kind: Kind::Veena, connections, pace: Pace::Closed };
                bench.run(0, |at| Cycle::new(TOPIC, MESSAGE_BYTES, at)).await?
            }
            What::BatchProduce(connections) => {
                let bench = Bench { options, kind: Kind::Veena, connections, pace: Pace::Closed };
                bench.run(0, |at| ProduceBatch::new(TOPIC, MESSAGE_BYTES, at)).await?
            }
            What::BatchCycle(connections) => {
                let bench = Bench { options, kind: Kind::Veena, connections, pace: Pace::Closed };
                bench.run(0, |at| CycleBatch::new(TOPIC, MESSAGE_BYTES, at)).await?
            }
            What::HalfRate(connections) => {
                let rate = match before.iter().rev().find(|row| row.name == "produce-64").and_then(|row| row.figure("rate")) {
                    Some(rate) => rate,
                    None => {
                        let bench = Bench { options, kind: Kind::Veena, connections, pace: Pace::Closed };
                        let row = bench.run(0, |at| ProduceOne::new(TOPIC, MESSAGE_BYTES, at)).await?;
                        row.figure("rate").unwrap_or_default()
                    }
                };
                let bench = Bench { options, kind: Kind::Veena, connections, pace: Pace::Open(rate / 2.0) };
                bench.run(0, |at| ProduceOne::new(TOPIC, MESSAGE_BYTES, at)).await?.with("asked_rate", rate / 2.0)
            }
            What::Ledger => ledger(options).await?,
            What::Parked => parked::measure(options).await?,
        };
        Ok(vec![Row { name: self.name.to_owned(), about: self.about.to_owned(), ..row }])
    }
}

fn warm_up(options: &Options) -> Duration {
    (options.time / 10).clamp(Duration::from_millis(300), Duration::from_secs(2))
}

struct Bench<'a> {
    options: &'a Options,
    kind: Kind,
    connections: usize,
    pace: Pace,
}

impl Bench<'_> {
    /// A fresh server, filled with `preload` messages, under load.
    async fn run<C: LoadClient + 'static>(&self, preload: u64, make: impl Fn(usize) -> C) -> anyhow::Result<Row> {
        let mut server = Server::start(self.kind, self.options).await?;
        let filled = if preload > 0 { server.preload(preload, MESSAGE_BYTES).await? } else { 0 };
        let syncs_before = server.syncs().await;
        let run = Run {
            addr: server.addr,
            pid: server.pid(),
            connections: self.connections,
            pace: self.pace,
            warm_up: warm_up(self.options),
            time: self.options.time,
        };
        let measured = load::run(run, make).await?;
        let mut row = figures(&measured, self.connections);
        row.first_error = measured.first_error.as_ref().map(|error| error.chars().take(200).collect());
        if self.kind == Kind::Veena {
            let (lag, ledger) = server.lag_and_ledger(filled + measured.sent_total, measured.errors).await?;
            row = row.with("wal_lag", lag);
            row.ledger = Some(ledger);
        }
        if let (Some(before), Some(after)) = (syncs_before, server.syncs().await) {
            row = row.with("syncs_per_1000", (after - before) * 1000.0 / as_f64(measured.requests_total.max(1)));
        }
        server.stop().await?;
        Ok(row)
    }
}

#[allow(clippy::cast_precision_loss, reason = "a number of connections")]
fn figures(measured: &Measured, connections: usize) -> Row {
    Row::default()
        .with("connections", connections as f64)
        .with("rate", measured.rate())
        .with("p50_ms", measured.latency_ms(0.5))
        .with("p99_ms", measured.latency_ms(0.99))
        .with("server_us", measured.per_request_us(measured.server_cpu))
        .with("own_us", measured.per_request_us(measured.own_cpu))
        .with("errors", as_f64(measured.errors))
}

/// A short run with every answer written down, and the checker's verdict.
async fn ledger(options: &Options) -> anyhow::Result<Row> {
    let server = Server::start(Kind::Veena, options).await?;
    let recorder = Recorder::new("n1");
    let topics = vec![NewTopic { name: "ledger".to_owned(), partitions: 3, visibility_ms: 2_000 }];
    let plan = Plan { producers: 16, consumers: 8, pause_max: Duration::ZERO, ..Plan::mixed(server.addr, topics, 1) };
    let workload = Workload::start(&plan, &recorder).await?;
    tokio::time::sleep(options.time.min(Duration::from_secs(5))).await;
    workload.stop().await?;
    drain(&plan, &recorder, Duration::from_secs(120)).await?;
    server.stop().await?;
    let rules = veena_loadtest_checker::Rules { ordered: plan.topic_keys().into_iter().collect(), ..Default::default() };
    let verdict = veena_loadtest_checker::check(&recorder.history(), &rules);
    let word = if verdict.is_clean() { "ok" } else { "BROKEN" };
    Ok(Row { ledger: Some(format!("{word} {verdict}")), ..Row::default() })
}
