//! One seed from its first life to its verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, RngSeed};
use veena_loadtest_checker::{Event, Op, Rules, TopicKey, Verdict, check, to_jsonl};

use crate::chance::Chance;
use crate::cluster::Cluster;
use crate::cluster::lockstep::Driver;
use crate::cluster::moves::Moves;
use crate::cluster::net::Net;
use crate::cluster::scenario;
use crate::cluster::storm::Faults;
use crate::finale;
use crate::life;
use crate::once::Once;
use crate::plan::Plan;
use crate::tally::Kind;
use crate::verdict;
use crate::world::World;

/// What one seed came to. The last line that `run` prints is this, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// How many nodes.
    pub nodes: usize,
    /// What is wrong; empty if nothing is.
    pub violations: Vec<String>,
    /// How many violations in all.
    pub violations_count: u64,
    /// How often each fault hit.
    pub faults: BTreeMap<Kind, u64>,
    /// The checker's numbers, in the order of [`verdict::numbers`].
    pub numbers: Vec<u64>,
    /// Did settle state fail to be written, so that the windows for forgotten acks were not judged?
    pub has_wide_windows: bool,
    /// Virtual time, in ms.
    pub virtual_ms: u64,
    /// The trace's hash: the same seed gives the same hash.
    pub trace_hash: u64,
}

impl Report {
    /// The report of a run that came to no verdict.
    #[must_use]
    pub fn broken(seed: u64, nodes: usize, what: String) -> Self {
        Self {
            seed,
            nodes,
            violations: vec![what],
            violations_count: 1,
            faults: BTreeMap::new(),
            numbers: Vec::new(),
            has_wide_windows: false,
            virtual_ms: 0,
            trace_hash: 0,
        }
    }
}

/// Runs a seed with one node. The trace is empty unless it is to be kept.
///
/// # Panics
/// When no runtime can be made.
#[must_use]
pub fn run_seed(seed: u64, is_trace_kept: bool) -> (Report, String) {
    let mut chance = Chance::seeded(seed);
    let mut aside = Chance::seeded(!seed);
    let world = World::new(&mut chance, &mut aside, is_trace_kept);
    for _ in 0..world.plan.lives {
        let life = chance.fork();
        in_a_runtime(chance.next_u64(), life::live(Arc::clone(&world), life, aside.fork()));
    }
    let last = chance.fork();
    in_a_runtime(chance.next_u64(), finale::judge(Arc::clone(&world), last));
    report(seed, &world)
}

/// The names of nodes among others.
const NODES: [&str; 5] = ["n1", "n2", "n3", "n4", "n5"];

/// Runs a seed with so many nodes, at least one and at most five. The trace is empty unless it is to be kept.
///
/// # Panics
/// When no runtime can be made.
#[must_use]
pub fn run_seed_among(seed: u64, nodes: usize, is_trace_kept: bool) -> (Report, String) {
    if nodes <= 1 {
        return run_seed(seed, is_trace_kept);
    }
    let mut chance = Chance::seeded(seed);
    let plan = Plan::among(&mut chance);
    let world = World::with_plan(plan, Once::of(&chance), Moves::of(&chance), &NODES[..nodes.min(NODES.len())], &mut chance, is_trace_kept);
    let net = Net::new(Arc::clone(&world), chance.fork());
    let cluster = Cluster::new(Arc::clone(&world), net);
    let faults = Faults::any(&mut chance);
    world.trace.line(&format!("{faults:?}"));
    let scenario = scenario::run(Arc::clone(&cluster), faults, chance.fork());
    Driver::new(cluster, chance.fork()).run(scenario);
    world.machines.iter().for_each(|machine| finale::check_files(&world, machine));
    world.history.end_life();
    report(seed, &world)
}

/// What the run came to.
fn report(seed: u64, world: &World) -> (Report, String) {
    let mut events = world.history.events();
    events.extend(world.moves.told_owners(&events));
    for line in to_jsonl(&events).lines() {
        world.trace.line(line);
    }
    let (verdict, problems) = (judge(world, &events), world.problems.lock().clone());
    let mut violations = problems;
    let violations_count = u64::try_from(violations.len()).unwrap_or(u64::MAX) + verdict.total();
    violations.extend(verdict.violations.iter().map(ToString::to_string));
    let report = Report {
        seed,
        nodes: world.machines.len(),
        violations_count,
        violations,
        faults: world.tally.counts(),
        numbers: verdict::numbers(&verdict),
        has_wide_windows: *world.has_hurt_settle.lock(),
        virtual_ms: world.time.now_us() / 1000,
        trace_hash: world.trace.hash(),
    };
    (report, world.trace.take())
}

/// A life's runtime: one thread, paused time, seeded choices. Dropped with everything that still runs on it, as a process is.
fn in_a_runtime(seed: u64, life: impl Future<Output = ()>) {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .rng_seed(RngSeed::from_bytes(&seed.to_be_bytes()))
        .build()
        .expect("invariant: a runtime without I/O needs nothing of the system");
    runtime.block_on(life);
}

/// Topics that were deleted, aged, or attached late are judged apart: from them not everything must come.
fn judge(world: &World, events: &[Event]) -> Verdict {
    let excused = world.excused.lock().clone();
    let children = world.children.lock().clone();
    let unordered = &(&excused | &world.unordered.lock()) | &world.grown.lock();
    let far = u64::MAX / 4;
    let has_wide_windows = *world.has_hurt_settle.lock();
    let rules = |is_drained: bool| Rules {
        is_drained,
        ordered: ordered(events, &unordered, &children),
        // A late child does not get everything: in the first part it is no child, in the second nothing must come.
        children: children.iter().filter(|(_, child)| !is_drained || !excused.contains(child)).cloned().collect(),
        kill_window_us: if has_wide_windows { far } else { 100_000 },
        power_window_us: if has_wide_windows { far } else { 1_100_000 },
        // tokio's timers are exact to the millisecond
        timer_slack_us: 2_000,
    };
    let is_of = |event: &Event, is_excused: bool| match &event.op {
        // Both sides need to know what was sent, and when the node died.
        Op::Produce(sent) => is_excused || !excused.contains(&sent.topic),
        Op::Consume(consumed) => excused.contains(&consumed.topic) == is_excused,
        Op::Settle(settled) => excused.contains(&settled.topic) == is_excused,
        Op::Observe(observed) => excused.contains(&observed.topic) == is_excused,
        Op::Names(_) => !is_excused,
        Op::Node(_) => true,
    };
    let part = |is_excused: bool| -> Vec<Event> { events.iter().filter(|event| is_of(event, is_excused)).cloned().collect() };
    let mut verdict = check(&part(false), &rules(true));
    verdict::add_violations(&mut verdict, check(&part(true), &rules(false)));
    verdict
}

/// Every root topic keeps the order of keys, unless it is one of these; a child keeps its parent's, which the logs are checked for.
fn ordered(events: &[Event], unordered: &BTreeSet<TopicKey>, children: &[(TopicKey, TopicKey)]) -> BTreeSet<TopicKey> {
    let topics = events.iter().filter_map(|event| match &event.op {
        Op::Produce(sent) => Some(&sent.topic),
        _ => None,
    });
    let is_child = |topic: &TopicKey| children.iter().any(|(_, child)| child == topic);
    topics.filter(|topic| !unordered.contains(*topic) && !is_child(topic)).cloned().collect()
}
