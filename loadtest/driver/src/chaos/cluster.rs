//! Hurts three or four real nodes that are one broker while clients use them all, and while nodes join and leave, so that partitions move;
//! then reads everything and asks the checker.

mod fault;
mod kind;
mod moves;
mod net;
mod nodes;
mod small_disk;
mod turnover;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tokio_util::sync::CancellationToken;
use veena_loadtest_checker::{Event, Label, Op, Rules, check};

use super::probe::{self, Probe};
use super::{ChaosReport, STOP_DEADLINE, UNKNOWN_OUTCOME, keep_history};
use crate::api::NewTopic;
use crate::chance::Chance;
use crate::logs;
use crate::recorder::Recorder;
use crate::workload::{Changes, NewChild, Plan, Workload, drain, topic_key};

pub use kind::ClusterFault;
pub use net::{inside, is_inside};
pub use nodes::NODES;

use fault::Hurt;
use moves::{Moves, Watch};
use nodes::{Nodes, SEATS};
use turnover::Turnover;

/// How late a node's timers may be where three nodes, their clients and other work share a machine.
pub const TIMER_SLACK: Duration = Duration::from_millis(250);

/// How long a client waits before it asks another node.
const PATIENCE: Duration = Duration::from_secs(4);
/// How long everything that was accepted may take to be where it belongs, once nothing hurts the nodes any more.
const CONVERGES_WITHIN: Duration = Duration::from_secs(180);
const DRAINS_WITHIN: Duration = Duration::from_secs(480);

/// Texts of warnings that every node of such a run logs.
const LOG_TEXTS: &[&str] = &[
    "other machines are let in and security is off",
    UNKNOWN_OUTCOME,
    "this node was taken out of its cluster",
    // Its target has no room.
    "a move cannot be completed and was aborted",
];

const FLIPPED: &str = "moves flipped";
const ACROSS: &str = "settled with handles from before a move";
const KEYED: &str = "messages under idempotency keys";
const REPEATED: &str = "of them sent again";
/// What a run shows nothing without, when nodes leave.
const MUST_BE_SEEN: [&str; 3] = [FLIPPED, KEYED, REPEATED];

const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Counters that must stay at zero as long as nothing is damaged.
const ZERO: [&str; 5] = [
    "veena_streams_forked_total",
    "veena_stream_gaps_total",
    "veena_damage_found_total",
    "veena_messages_corrupt_skipped_total",
    "veena_fanout_records_dropped_total",
];

/// A run under faults.
#[derive(Clone, Debug)]
pub struct ClusterPlan {
    /// The binary.
    pub bin: PathBuf,
    /// Where data, logs and history go.
    pub dir: PathBuf,
    /// How long faults go on.
    pub time: Duration,
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// Which faults.
    pub faults: Vec<ClusterFault>,
}

const PARENT: &str = "events";

fn topic(name: &str, partitions: u32, visibility_ms: u64) -> NewTopic {
    NewTopic { name: name.to_owned(), partitions, visibility_ms, keeps_order: true }
}

fn children() -> Vec<NewChild> {
    let child = |topic, delay_ms| NewChild { parent: PARENT.to_owned(), topic, delay_ms };
    vec![child(topic("copies", 3, 2_000), 0), child(topic("later", 2, 2_000), 1_000)]
}

/// What such a run promises. Order holds for what one client sends to one node, and not for the parent, whose messages may go to other
/// partitions while an owner is away; of which node a partition is tells the history.
#[must_use]
pub fn rules() -> Rules {
    let rules = super::rules(TIMER_SLACK);
    let children = children().into_iter().map(|child| (topic_key(&child.parent), topic_key(&child.topic.name))).collect();
    Rules { children, ..rules }
}

/// Runs faults and clients for the plan's time, heals, waits until everything has arrived, drains and judges.
///
/// # Errors
/// The cluster does not become whole again, or answers outside the contract; or this process runs in no namespace of its own.
pub async fn run(plan: &ClusterPlan) -> anyhow::Result<ChaosReport<ClusterFault>> {
    let mut chance = Chance::seeded(plan.seed);
    let names: Vec<String> = (0..SEATS).map(nodes::name).collect();
    let recorder = Recorder::of(names.iter().map(String::as_str));
    let mut nodes = Nodes::start(&plan.bin, &plan.dir, &recorder).await?;
    let watch = Watch::start(&nodes);
    let hurt = hurt(plan, &mut nodes, &recorder, &mut chance).await;
    let moves = watch.end().await?;
    let history = recorder.history();
    let across = moves::settled_across(&history);
    let history = moves.told_to(history);
    let (faults, aborts) = match hurt {
        Ok(hurt) => hurt,
        Err(err) => {
            keep_history(&plan.dir, &history)?;
            return Err(err);
        }
    };
    let verdict = check(&history, &rules());
    if !verdict.is_clean() {
        keep_history(&plan.dir, &history)?;
    }
    let provoked = faults.keys().flat_map(|fault| fault.log_texts().iter().copied());
    let allowed: Vec<&str> = LOG_TEXTS.iter().copied().chain(provoked).collect();
    let mut log_lines = Vec::new();
    for (at, log) in nodes.logs().iter().enumerate() {
        log_lines.extend(logs::unexpected(log, &allowed)?.into_iter().map(|line| format!("{}: {line}", nodes::name(at))));
    }
    let seen = seen(&moves, aborts, across, &history);
    let moves_are_wanted = plan.faults.contains(&ClusterFault::Decommission);
    Ok(ChaosReport {
        seed: plan.seed,
        faults,
        verdict,
        log_lines,
        log_allowed: allowed.len(),
        timer_slack: TIMER_SLACK,
        wanted: plan.faults.clone(),
        must_be_seen: seen.iter().filter(|(what, _)| moves_are_wanted && MUST_BE_SEEN.contains(what)).map(|(what, _)| *what).collect(),
        seen,
    })
}

async fn hurt(
    plan: &ClusterPlan,
    nodes: &mut Nodes,
    recorder: &Arc<Recorder>,
    chance: &mut Chance,
) -> anyhow::Result<(BTreeMap<ClusterFault, u32>, u64)> {
    let started = Instant::now();
    while let Err(missing) = nodes.look().await {
        ensure!(started.elapsed() < CONVERGES_WITHIN, "started, and after {CONVERGES_WITHIN:?}: {missing:#}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let topics = super::topics().into_iter().chain([NewTopic { keeps_order: false, ..topic(PARENT, 4, 2_000) }]).collect();
    let mut load = Plan {
        addrs: nodes.addrs(),
        children: children(),
        patience: PATIENCE,
        producers: 5,
        keyed: 2,
        consumers: 5,
        keepers: 2,
        pause_max: Duration::from_millis(20),
        ..Plan::mixed(nodes.addrs()[0], topics, chance.next_u64())
    };
    let mut probes = vec![Probe::start(nodes.client(0), recorder).await?];
    probes.extend((1..SEATS).map(|at| Probe::beside(nodes.client(at), recorder)));
    let workload = Workload::start(&load, recorder).await?;
    let stop = CancellationToken::new();
    let changes = tokio::spawn(Changes::make(load.clone(), chance.fork(), stop.clone()));
    let strace_log = plan.dir.join("strace.log");
    let told = File::create(plan.dir.join("faults.log"))?;
    let turnover = Turnover::new(&plan.faults, plan.time.is_zero());
    let mut hurt = Hurt { nodes, turnover, probes: &mut probes, chance, strace_log, told, recorder: recorder.clone() };
    let mut faults = hurt.rounds(plan).await?;
    hurt.turned().await?;
    hurt.turnover.lets_go();
    hurt.at_rest().await?;
    hurt.turnover.is_held = true;
    hurt.whole(CONVERGES_WITHIN).await.context("healed")?;
    stop.cancel();
    workload.stop().await?;
    let changes = changes.await?;
    converged(hurt.nodes).await?;
    load.topics.push(probe::topic());
    drain(&load, recorder, DRAINS_WITHIN).await?;
    hurt.whole(CONVERGES_WITHIN).await.context("drained")?;
    faults.append(&mut hurt.turnover.counts);
    let aborts = hurt.turnover.aborts;
    for at in nodes.present() {
        let wrong = changes.wrong_at(&mut nodes.client(at)).await?;
        ensure!(wrong.is_empty(), "at {}: {}", nodes.name(at), wrong.join("; "));
        let metrics = nodes.client(at).metrics().await?;
        for counter in ZERO {
            let value = metrics.sum(|name| name == counter).with_context(|| format!("{} has no {counter}", nodes.name(at)))?;
            ensure!(value <= 0.0, "{} counts {counter} {value}, and nothing was damaged", nodes.name(at));
        }
    }
    for at in nodes.present() {
        nodes.seat(at).node.stop(STOP_DEADLINE).await?;
    }
    Ok((faults, aborts))
}

/// What happened beyond the faults, by name.
fn seen(moves: &Moves, aborts: u64, across: u64, history: &[Event]) -> Vec<(&'static str, u64)> {
    let mut attempts: BTreeMap<Label, u64> = BTreeMap::new();
    for event in history {
        if let Op::Produce(sent) = &event.op
            && sent.once
        {
            *attempts.entry(sent.label).or_insert(0) += 1;
        }
    }
    let count = |wanted: fn(&u64) -> bool| attempts.values().filter(|attempts| wanted(attempts)).count() as u64;
    vec![
        (FLIPPED, moves.flipped()),
        ("moves aborted", moves.aborted()),
        ("of them asked for", aborts),
        (ACROSS, across),
        (KEYED, count(|_| true)),
        (REPEATED, count(|attempts| *attempts > 1)),
    ]
}

/// Waits until every record is at its partition's owner, every child has what its parent has, and no partition moves.
async fn converged(nodes: &mut Nodes) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let mut missing = Vec::new();
        for at in nodes.present() {
            let metrics = nodes.client(at).metrics().await?;
            let waiting = metrics.sum(|name| name == "veena_ingress_dispatch_backlog_records" || name == "veena_parked_bytes");
            if waiting.context("no metrics of the backlog")? > 0.0 {
                missing.push(format!("records of {} are not dispatched: {waiting:?}", nodes.name(at)));
            }
            let moves = nodes.client(at).moves().await?;
            if !moves.is_empty() {
                missing.push(format!("moves are under way at {}: {moves:?}", nodes.name(at)));
            }
        }
        let asked = nodes.present().first().copied().unwrap_or_default();
        match nodes.client(asked).lag_of_children(PARENT).await? {
            Some(0) => {}
            lag => missing.push(format!("children lag behind: {lag:?}")),
        }
        if missing.is_empty() {
            return Ok(());
        }
        ensure!(started.elapsed() < CONVERGES_WITHIN, "after {CONVERGES_WITHIN:?}: {}", missing.join("; "));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

impl Hurt<'_> {
    /// Each kind of fault comes once in every round, in another order; a lull when it can.
    async fn rounds(&mut self, plan: &ClusterPlan) -> anyhow::Result<BTreeMap<ClusterFault, u32>> {
        let started = Instant::now();
        let mut faults = BTreeMap::new();
        let kinds: Vec<_> = plan.faults.iter().copied().filter(|fault| !fault.is_turnover()).collect();
        if kinds.is_empty() {
            self.pass(plan.time).await?;
        }
        let mut round = Vec::new();
        // The first round is always whole: every kind must have happened.
        while faults.len() < kinds.len() || started.elapsed() < plan.time {
            if round.is_empty() {
                round.clone_from(&kinds);
                self.chance.shuffle(&mut round);
            }
            // In the first half of a round whoever leaves is not held up for it.
            let is_early = round.len() > kinds.len().div_ceil(2);
            let waits = round.contains(&ClusterFault::Lull) && (is_early || !self.may_lull());
            let next = round.iter().rposition(|fault| !waits || *fault != ClusterFault::Lull);
            let pause = Duration::from_millis(150 + self.chance.below(1_000));
            self.pass(pause).await?;
            if let Some(next) = next {
                let fault = round.remove(next);
                self.inflict(fault).await.with_context(|| format!("after {faults:?}, at {fault:?}"))?;
                *faults.entry(fault).or_insert(0) += 1;
            }
        }
        self.turnover.pauses = false;
        Ok(faults)
    }
}
