//! The scenarios by name.

use std::time::Duration;

use super::loaded::{Bench, MESSAGE_BYTES, warm_up};
use super::report::Row;
use super::server::{Kind, Server, TOPIC};
use super::{Options, backlog, cluster, flush, half, idle, isolation, logins, parked, partitions, reads, secured, slow, stalled};
use crate::api::NewTopic;
use crate::load::{ConsumeAck, Cycle, CycleBatch, Pace, ProduceBatch, ProduceOne};
use crate::recorder::Recorder;
use crate::workload::{Plan, Workload, drain};

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
    OneConnection,
    SlowFlushRatio,
    Partitions,
    AckUnderReads,
    Secured,
    Isolation,
    Ledger,
    Parked,
    Idle,
    Backlog,
    Stalled,
    ClusterLatency,
    LeaderKilled,
    ThreeNodes,
    BatchesElsewhere,
    Move,
    OwnerDown,
    ClusterIdle,
    Logins,
    Revocation,
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
    usual(
        "batch-cycle-10",
        What::BatchCycle(10),
        "(f) batches of 100: produce, consume, ack; as many connections as the cap of 1024 consumes allows",
    ),
    usual("half-rate-64", What::HalfRate(64), "produce at half the maximum rate, open loop"),
    usual("one-connection", What::OneConnection, "produce on one connection, beside what a sync takes"),
    usual("slow-flush-ratio", What::SlowFlushRatio, "produce at 256 connections with and without syncs that are 3 ms slower"),
    usual("partitions-1000", What::Partitions, "1,000 partitions with a message a second each, syncs 3 ms slower"),
    usual("ack-under-reads", What::AckUnderReads, "acks on one connection while replays and batch consumers take all they can"),
    usual("secured-ratio", What::Secured, "produce at 64 connections with security off and on"),
    usual("isolation", What::Isolation, "a tenant beside another that floods the node far over its limit, and alone"),
    usual("ledger", What::Ledger, "every answer checked against the contract"),
    special("parked-polls", What::Parked, "10,000 parked long polls beside a bare server that parks"),
    special("idle-partitions", What::Idle, "10,000 partitions used once, then a quiet minute; takes more than two"),
    special("start-backlog", What::Backlog, "start with 1 GiB of undispatched WAL and 2,000 sealed segments"),
    special("stalled-disk", What::Stalled, "the disk stands still for a minute under 2,000 producers"),
    special(
        "cluster-latency",
        What::ClusterLatency,
        "three nodes: produce at any to a consumer parked at any other, nothing else going on",
    ),
    special("leader-killed", What::LeaderKilled, "three nodes, the leader killed under load: metadata, and clients of those that live"),
    special("three-nodes", What::ThreeNodes, "produce through three nodes, beside one"),
    special("batches-elsewhere", What::BatchesElsewhere, "batches of 100 for owners at other nodes, beside one node"),
    special("move-1gib", What::Move, "a partition of 1 GiB moves to another node under load, several times: how long nobody serves it"),
    special("owner-down", What::OwnerDown, "three nodes, one down while messages for it go on coming; an hour made short"),
    special("cluster-idle", What::ClusterIdle, "three nodes, 1,000 topics of 3 partitions, nothing going on"),
    special("logins", What::Logins, "500 sign in for the first time at once: memory, and what others notice"),
    special("revocation", What::Revocation, "three nodes: polls whose right is taken away at another node, until they are cut"),
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
            What::Flush => return flush::measure(&options.dir, flush_time(options)),
            What::Produce(kind, connections) => {
                let bench = Bench { options, kind, connections, pace: Pace::Closed };
                bench.run(0, |at| ProduceOne::new(TOPIC, MESSAGE_BYTES, at)).await?
            }
            What::ConsumeAck(connections) => {
                let seconds = options.time.as_secs() + warm_up(options).as_secs() + 1;
                Bench::veena(options, connections).run(seconds * CONSUME_RATE_MAX, |_| ConsumeAck::new(TOPIC, 0)).await?
            }
            What::Cycle(connections) => Bench::veena(options, connections).run(0, |at| Cycle::new(TOPIC, MESSAGE_BYTES, at)).await?,
            What::BatchProduce(connections) => {
                Bench::veena(options, connections).run(0, |at| ProduceBatch::new(TOPIC, MESSAGE_BYTES, at)).await?
            }
            What::BatchCycle(connections) => {
                Bench::veena(options, connections).run(0, |at| CycleBatch::new(TOPIC, MESSAGE_BYTES, at)).await?
            }
            What::HalfRate(connections) => half::measure(options, connections, before).await?,
            What::OneConnection => {
                let row = Bench::veena(options, 1).run(0, |at| ProduceOne::new(TOPIC, MESSAGE_BYTES, at)).await?;
                let mut rows = vec![Row { name: self.name.to_owned(), about: self.about.to_owned(), ..row }];
                // What it is held against belongs to the same run.
                if before.iter().all(|row| row.name != "flush-beside-another") {
                    rows.extend(flush::measure(&options.dir, flush_time(options))?);
                }
                return Ok(rows);
            }
            What::SlowFlushRatio => return slow::measure(options).await,
            What::Isolation => isolation::measure(options).await?,
            What::Secured => return secured::measure(options).await,
            What::Partitions => partitions::measure(options).await?,
            What::AckUnderReads => reads::measure(options).await?,
            What::Ledger => ledger(options).await?,
            What::Parked => parked::measure(options).await?,
            What::Idle => idle::measure(options).await?,
            What::Backlog => backlog::measure(options).await?,
            What::Stalled => stalled::measure(options).await?,
            What::ClusterLatency => cluster::latency(options).await?,
            What::LeaderKilled => cluster::leader_killed(options).await?,
            What::ThreeNodes => return cluster::three_nodes(options).await,
            What::BatchesElsewhere => return cluster::batches_elsewhere(options).await,
            What::Move => cluster::move_1gib(options).await?,
            What::OwnerDown => return cluster::owner_down(options).await,
            What::ClusterIdle => cluster::idle(options).await?,
            What::Logins => return logins::measure(options).await,
            What::Revocation => cluster::revocation(options).await?,
        };
        Ok(vec![Row { name: self.name.to_owned(), about: self.about.to_owned(), ..row }])
    }
}

fn flush_time(options: &Options) -> Duration {
    options.time.min(Duration::from_secs(5))
}

/// A short run with every answer written down, and the checker's verdict.
async fn ledger(options: &Options) -> anyhow::Result<Row> {
    let server = Server::start(Kind::Veena, options).await?;
    let recorder = Recorder::new("n1");
    let topics = vec![NewTopic { name: "ledger".to_owned(), partitions: 3, visibility_ms: 2_000, keeps_order: true }];
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
