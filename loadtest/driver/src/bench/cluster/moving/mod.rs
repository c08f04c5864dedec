//! A partition of 1 GiB moves to another node while clients use it: how long nobody serves it, and what becomes of messages and leases.
//!
//! A node moves what it owns when it is taken out of the cluster. So a fourth node comes, the owner is taken out, and again with the next one.
//! What the clients see is what counts: they ask the nodes that stay, again at once when they are refused. The checker has the last word on
//! messages and leases.

mod clients;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use tokio::task::JoinSet;
use veena_loadtest_checker::Rules;

use self::clients::{Load, fill};
use super::{Cluster, NODES, STOP_DEADLINE, WHOLE_WITHIN};
use crate::api::{Client, NewTopic};
use crate::bench::report::Row;
use crate::bench::server::{TOPIC, node_config};
use crate::bench::{Options, usual_share};
use crate::cluster::{env, name};
use crate::http::RequestBytes;
use crate::load::as_f64;
use crate::node::{NodeProcess, free_addr};
use crate::recorder::Recorder;

/// How often the partition moves in a run of the usual length.
const MOVES: f64 = 3.0;
const PARTITION_BYTES: f64 = 1024.0 * 1024.0 * 1024.0;
const FILL_BYTES: u32 = 32 * 1024;
const VISIBILITY_MS: u64 = 30_000;
/// Clients at each node that stays; of those who consume at once there is one.
const PRODUCERS: usize = 2;
const HOLDERS: usize = 2;
/// How long the clients are watched before the move, for comparison.
const BEFORE: Duration = Duration::from_secs(3);
/// How long they are watched after it.
const AFTER: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// A move that was aborted is begun again after a minute.
const MOVED_WITHIN: Duration = Duration::from_secs(180);
const DRAINED_WITHIN: Duration = Duration::from_secs(300);

fn topic() -> NewTopic {
    NewTopic { name: TOPIC.to_owned(), partitions: 1, visibility_ms: VISIBILITY_MS, keeps_order: true }
}

/// What is known of one move, or the worst of several.
#[derive(Clone, Copy)]
struct Outcome {
    /// From its beginning to the change of owner.
    took: Duration,
    /// As long as the catalog said that the owner had stopped.
    frozen: Duration,
    /// How long nobody served it, as the nodes tell it, if they do.
    told: Option<Duration>,
    produce_before: Duration,
    produce: Duration,
    produce_one: Duration,
    consume_before: Duration,
    consume: Duration,
    settle_before: Duration,
    settle: Duration,
    /// Leases that were held from before the stop until after the change of owner, the fewest of several moves.
    held_over: usize,
}

impl Outcome {
    fn worst(self, other: Self) -> Self {
        let max = |of: fn(Self) -> Duration| of(self).max(of(other));
        Self {
            took: max(|one| one.took),
            frozen: max(|one| one.frozen),
            told: self.told.max(other.told),
            produce_before: max(|one| one.produce_before),
            produce: max(|one| one.produce),
            produce_one: max(|one| one.produce_one),
            consume_before: max(|one| one.consume_before),
            consume: max(|one| one.consume),
            settle_before: max(|one| one.settle_before),
            settle: max(|one| one.settle),
            held_over: self.held_over.min(other.held_over),
        }
    }
}

#[derive(Deserialize)]
struct Moves {
    moves: Vec<One>,
}

#[derive(Deserialize)]
struct One {
    #[serde(default)]
    frozen: bool,
}

/// A cluster that a node joins and another one leaves, again and again.
struct Moving<'a> {
    options: &'a Options,
    /// Those that were taken out keep their place.
    cluster: Cluster,
    members: Vec<usize>,
    recorder: Arc<Recorder>,
    load: Arc<Load>,
}

impl Moving<'_> {
    /// A client of the node at `place` that asks no other.
    fn client(&self, place: usize) -> Client {
        let addrs: Vec<_> = self.cluster.nodes.iter().map(NodeProcess::addr).collect();
        Client::among(&addrs, place).staying()
    }

    async fn join(&mut self) -> anyhow::Result<()> {
        let (at, addr) = (self.cluster.nodes.len(), free_addr()?);
        let peers: Vec<_> = self.cluster.nodes.iter().map(NodeProcess::addr).chain([addr]).collect();
        let through: Vec<String> = self.members.iter().map(|member| format!("{}@{}", name(*member), peers[*member])).collect();
        let dir = self.cluster.dir.path().join(name(at));
        let mut config = node_config(self.options, &dir).flag("--node-id").flag(&name(at));
        config.env.extend(env(&peers, at));
        // The node that founded the cluster may have left it.
        config.env.push(("VEENA_CLUSTER_JOIN".to_owned(), through.join(",")));
        let node = NodeProcess::start_on(config, addr).await.with_context(|| name(at))?;
        self.cluster.clients.push(Client::new(addr));
        self.cluster.nodes.push(node);
        self.members.push(at);
        let (started, known) = (Instant::now(), self.members.len());
        loop {
            let members = self.client(self.members[0]).members().await?;
            if members.len() == known && members.iter().all(|member| member.status == "alive" && member.voter == Some(true)) {
                return Ok(());
            }
            ensure!(started.elapsed() < WHOLE_WITHIN, "{} is no voter after {WHOLE_WITHIN:?}: {members:?}", name(at));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn owner(&self) -> anyhow::Result<usize> {
        let started = Instant::now();
        loop {
            let described = self.client(self.members[0]).describe(TOPIC).await?;
            let owner = described.first().and_then(|numbers| numbers.owner_node.clone());
            if let Some(at) = self.members.iter().find(|at| owner.as_ref() == Some(&name(**at))) {
                return Ok(*at);
            }
            ensure!(started.elapsed() < WHOLE_WITHIN, "nobody owns the partition: {described:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn start_clients(&self, places: &[usize]) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        for place in places {
            tasks.spawn(self.load.clone().consume(self.client(*place)));
            for _ in 0..PRODUCERS {
                tasks.spawn(self.load.clone().produce(self.client(*place)));
            }
            for _ in 0..HOLDERS {
                tasks.spawn(self.load.clone().hold(self.client(*place)));
            }
        }
        tasks
    }

    /// Takes the owner out, under load, and watches the partition go to another node.
    async fn move_once(&mut self) -> anyhow::Result<Outcome> {
        self.join().await?;
        self.load = Load::renewed(&self.load);
        let owner = self.owner().await?;
        let staying: Vec<usize> = self.members.iter().copied().filter(|at| *at != owner).collect();
        let mut tasks = self.start_clients(&staying);
        // Everything is connected and open before it is watched.
        tokio::time::sleep(BEFORE / 3).await;
        let told_before = self.told(&staying).await?;
        let watched = Instant::now();
        tokio::time::sleep(BEFORE).await;

        let called = Instant::now();
        let target = format!("/v1/cluster/members/{}/decommission", name(owner));
        let reply = self.client(staying[0]).call(&RequestBytes::post(&target, b"")).await?;
        ensure!(reply.status == 204, "cannot decommission: {} {}", reply.status, String::from_utf8_lossy(&reply.body));
        let (begun, frozen, flipped) = self.watch(staying[0], called).await?;
        ensure!(self.owner().await? != owner, "the move was aborted; see {}", self.cluster.nodes[owner].config().log.display());
        tokio::time::sleep(AFTER).await;
        let ended = Instant::now();
        let told = self.told(&staying).await?.zip(told_before).map(|(after, before)| Duration::from_secs_f64((after - before).max(0.0)));
        self.load.end();
        while let Some(task) = tasks.join_next().await {
            task?;
        }
        self.leave(owner, staying[0]).await?;
        let held_over = self.load.held_over(frozen, flipped);
        ensure!(held_over > 0, "no lease was held while the partition changed its owner: nothing is shown");
        let Load { produced, consumed, settled, .. } = &*self.load;
        Ok(Outcome {
            took: flipped - begun,
            frozen: flipped - frozen,
            told,
            produce_before: produced.gap(watched, called),
            produce: produced.gap(begun, ended),
            produce_one: produced.gap_of_one(begun, ended),
            consume_before: consumed.gap(watched, called),
            consume: consumed.gap(begun, ended),
            settle_before: settled.gap(watched, called),
            settle: settled.gap(begun, ended),
            held_over,
        })
    }

    /// How long nobody served what has moved to these nodes so far, in seconds, if they tell.
    async fn told(&self, places: &[usize]) -> anyhow::Result<Option<f64>> {
        let mut told: Option<f64> = None;
        for place in places {
            let seconds = self.client(*place).metrics().await?.sum(|name| name == "veena_move_freeze_seconds_sum");
            told = seconds.map(|seconds| told.unwrap_or(0.0) + seconds).or(told);
        }
        Ok(told)
    }

    /// When the move began, when its owner had stopped, and when it had ended, as the node at `place` tells it.
    async fn watch(&self, place: usize, called: Instant) -> anyhow::Result<(Instant, Instant, Instant)> {
        let mut client = self.client(place);
        let (mut begun, mut frozen) = (None, None);
        loop {
            let reply = client.get("/v1/cluster/moves").await?;
            ensure!(reply.status == 200, "cannot list the moves: {}", reply.status);
            let moves = serde_json::from_slice::<Moves>(&reply.body).context("the moves of the cluster")?.moves;
            let now = Instant::now();
            match moves.first() {
                Some(one) => {
                    begun.get_or_insert(now);
                    if one.frozen {
                        frozen.get_or_insert(now);
                    }
                }
                None => {
                    if let Some(begun) = begun {
                        return Ok((begun, frozen.unwrap_or(now), now));
                    }
                }
            }
            ensure!(called.elapsed() < MOVED_WITHIN, "the partition has not moved after {MOVED_WITHIN:?}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until a node is no member any more, and stops it.
    async fn leave(&mut self, leaving: usize, staying: usize) -> anyhow::Result<()> {
        let started = Instant::now();
        while self.client(staying).members().await?.iter().any(|member| member.id == name(leaving)) {
            ensure!(started.elapsed() < WHOLE_WITHIN, "{} is still a member after {WHOLE_WITHIN:?}", name(leaving));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.members.retain(|at| *at != leaving);
        let node = &mut self.cluster.nodes[leaving];
        node.stop(STOP_DEADLINE).await?;
        // What is set aside there is as large as the partition.
        Ok(std::fs::remove_dir_all(&node.config().data_dir)?)
    }

    /// Reads what is left; how many messages there were in all.
    async fn drain(&mut self) -> anyhow::Result<u64> {
        self.load = Load::renewed(&self.load);
        self.load.hurry();
        let mut tasks = JoinSet::new();
        for place in &self.members {
            tasks.spawn(self.load.clone().consume(self.client(*place)));
        }
        let (mut client, started) = (self.client(self.members[0]), Instant::now());
        let end = loop {
            let described = client.describe(TOPIC).await?;
            if let [numbers] = described.as_slice()
                && numbers.frontier == Some(numbers.high_watermark)
                && numbers.high_watermark == numbers.next_offset
            {
                break numbers.high_watermark;
            }
            ensure!(started.elapsed() < DRAINED_WITHIN, "not all is read and acked after {DRAINED_WITHIN:?}: {described:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        self.load.end();
        while let Some(task) = tasks.join_next().await {
            task?;
        }
        Ok(end)
    }
}

/// The row: the worst of several moves.
///
/// # Errors
/// The nodes cannot be driven, or the partition does not move.
pub(in crate::bench) async fn measure(options: &Options) -> anyhow::Result<Row> {
    let share = usual_share(options);
    let moves = (1..100).take_while(|number| *number == 1 || f64::from(*number) <= MOVES * share).count();
    let names: Vec<String> = (0..NODES + moves).map(name).collect();
    let recorder = Recorder::of(names.iter().map(String::as_str));
    let mut cluster = Cluster::start(options).await?;
    cluster.clients[0].create_topic(&topic()).await?;
    let load = Load::new(&recorder);
    let mut moving = Moving { options, cluster, members: (0..NODES).collect(), recorder, load };
    let bytes = PARTITION_BYTES * share;
    let messages = (0..u64::MAX).step_by(100).find(|messages| as_f64(*messages) * f64::from(FILL_BYTES) >= bytes).unwrap_or(0);
    let clients = moving.members.iter().map(|at| moving.client(*at)).collect();
    fill(&moving.recorder, clients, messages, usize::try_from(FILL_BYTES)?).await?;

    let mut outcome = moving.move_once().await?;
    for _ in 1..moves {
        outcome = outcome.worst(moving.move_once().await?);
    }
    let end = moving.drain().await?;
    for at in &moving.members {
        moving.cluster.nodes[*at].stop(STOP_DEADLINE).await?;
    }

    let verdict = veena_loadtest_checker::check(&moving.recorder.history(), &Rules::default());
    let count = |counter: &AtomicU64| as_f64(counter.load(Ordering::Relaxed));
    let lost = moving.load.leases_lost.load(Ordering::Relaxed);
    let word = if verdict.is_clean() && lost == 0 { "ok" } else { "BROKEN" };
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    let mib = as_f64(messages) * f64::from(FILL_BYTES) / 1_048_576.0;
    let mut row = Row::default()
        .with("moves", as_f64(u64::try_from(moves)?))
        .with("mib", mib)
        .with("move_s", outcome.took.as_secs_f64())
        .with("copied_mib_s", mib / outcome.took.as_secs_f64())
        .with("frozen_ms", ms(outcome.frozen))
        .with("produce_gap_before_ms", ms(outcome.produce_before))
        .with("produce_gap_ms", ms(outcome.produce))
        .with("produce_gap_one_ms", ms(outcome.produce_one))
        .with("consume_gap_before_ms", ms(outcome.consume_before))
        .with("consume_gap_ms", ms(outcome.consume))
        .with("settle_gap_before_ms", ms(outcome.settle_before))
        .with("settle_gap_ms", ms(outcome.settle))
        .with("messages", as_f64(end))
        .with("refused", count(&moving.load.refused))
        .with("uncertain", count(&moving.load.uncertain))
        .with("held_over", as_f64(u64::try_from(outcome.held_over)?))
        .with("leases_lost", as_f64(lost));
    if let Some(told) = outcome.told {
        row = row.with("told_ms", ms(told));
    }
    row.first_error = moving.load.first_error.lock().as_ref().map(|text| text.chars().take(200).collect());
    row.ledger = Some(format!("{word} {verdict}"));
    Ok(row)
}
