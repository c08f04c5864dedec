//! Hurts a real node while clients use it, then reads everything and asks the checker.

pub mod cluster;
mod fault;
mod full_disk;
mod probe;
mod strace;
mod volume;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use veena_loadtest_checker::{Event, Rules, Verdict, check, to_jsonl};

use crate::api::{Client, NewTopic};
use crate::chance::Chance;
use crate::logs;
use crate::node::{NodeConfig, NodeProcess};
use crate::recorder::Recorder;
use crate::workload::{Plan, Workload, drain, topic_key};

pub use fault::Fault;
pub use full_disk::run as fill_disk;

use fault::Hurt;
use probe::Probe;

/// How late the node's timers may be on a machine shared with its clients and other work.
pub const TIMER_SLACK: Duration = Duration::from_millis(50);
/// What a node says when it could not tell a client in time what became of its request: any fault may do that, and the ledger judges
/// what became of it.
const UNKNOWN_OUTCOME: &str = "what became of a request is not known";
const STOP_DEADLINE: Duration = Duration::from_secs(30);

/// A run under faults.
#[derive(Clone, Debug)]
pub struct ChaosPlan {
    /// The binary.
    pub bin: PathBuf,
    /// Where data, log and history go.
    pub dir: PathBuf,
    /// How long faults go on.
    pub time: Duration,
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// How late the node's timers may be on a busy machine (see `Rules::timer_slack_us`).
    pub timer_slack: Duration,
    /// Flags for the node beyond the usual ones.
    pub flags: Vec<String>,
    /// Texts of warnings and errors in the log that are expected.
    pub log_allowed: Vec<String>,
    /// Which faults. Without any it is a soak: load and ledger alone, and nothing may be refused or stay unanswered.
    pub faults: Vec<Fault>,
}

impl ChaosPlan {
    /// Runs `bin` with everything in `dir`.
    #[must_use]
    pub fn new(bin: &Path, dir: &Path, time: Duration, seed: u64) -> Self {
        Self {
            bin: bin.to_owned(),
            dir: dir.to_owned(),
            time,
            seed,
            timer_slack: TIMER_SLACK,
            flags: Vec::new(),
            log_allowed: Vec::new(),
            faults: Fault::ALL.to_vec(),
        }
    }
}

/// What came out of it.
#[derive(Clone, Debug)]
pub struct ChaosReport<F = Fault> {
    /// The seed.
    pub seed: u64,
    /// How often each fault happened.
    pub faults: BTreeMap<F, u32>,
    /// The checker's verdict.
    pub verdict: Verdict,
    /// Warnings and errors in the log that nobody expected.
    pub log_lines: Vec<String>,
    /// How many texts are allowed in the log.
    pub log_allowed: usize,
    /// How late the node's timers were allowed to be.
    pub timer_slack: Duration,
    /// Which faults there were to be.
    pub wanted: Vec<F>,
    /// What else happened, and how often.
    pub seen: Vec<(&'static str, u64)>,
    /// What of it must have happened.
    pub must_be_seen: Vec<&'static str>,
}

impl<F: Ord + fmt::Debug> ChaosReport<F> {
    /// What is wrong; empty if nothing is. A fault that never happened is wrong too.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints: Vec<String> = self.verdict.violations.iter().map(ToString::to_string).collect();
        let counts = &self.verdict.counts;
        if !self.wanted.is_empty() {
            let missing = self.wanted.iter().filter(|fault| !self.faults.contains_key(fault));
            complaints.extend(missing.map(|fault| format!("the fault {fault:?} never happened")));
        } else if counts.sent_fail + counts.sent_unknown > 0 {
            complaints.push(format!("without faults, {} produces failed and {} stayed unknown", counts.sent_fail, counts.sent_unknown));
        }
        let missing = self.seen.iter().filter(|(what, count)| *count == 0 && self.must_be_seen.contains(what));
        complaints.extend(missing.map(|(what, _)| format!("there were no {what}")));
        let never = [(counts.sent_ok, "sent"), (counts.delivered, "delivered"), (counts.acked, "acked")];
        complaints.extend(never.iter().filter(|(count, _)| *count == 0).map(|(_, what)| format!("nothing was {what}")));
        complaints.extend(self.log_lines.iter().map(|line| format!("unexpected in the log: {line}")));
        complaints
    }
}

impl<F: Ord + fmt::Debug> fmt::Display for ChaosReport<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<String> = self.wanted.iter().map(|fault| format!("{fault:?} {}", self.faults.get(fault).unwrap_or(&0))).collect();
        writeln!(f, "seed {}", self.seed)?;
        writeln!(f, "faults: {}", faults.join(", "))?;
        if !self.seen.is_empty() {
            let seen: Vec<String> = self.seen.iter().map(|(what, count)| format!("{what} {count}")).collect();
            writeln!(f, "also: {}", seen.join(", "))?;
        }
        writeln!(f, "log: {} unexpected lines, {} texts allowed", self.log_lines.len(), self.log_allowed)?;
        writeln!(f, "windows for forgotten acks widened by {} ms for late timers", self.timer_slack.as_millis())?;
        write!(f, "{}", self.verdict)
    }
}

/// The topics of a chaos run: one with order per key, one of a single partition with short leases.
fn topics() -> Vec<NewTopic> {
    let topic = |name: &str, partitions, visibility_ms| NewTopic { name: name.to_owned(), partitions, visibility_ms, keeps_order: true };
    vec![topic("orders", 4, 2_000), topic("narrow", 1, 700)]
}

/// What a chaos run promises: every topic keeps order per key and is drained at the end.
#[must_use]
pub fn rules(timer_slack: Duration) -> Rules {
    let ordered = BTreeSet::from_iter(topics().iter().map(|topic| topic_key(&topic.name)));
    Rules { ordered, timer_slack_us: u64::try_from(timer_slack.as_micros()).unwrap_or(0), ..Rules::default() }
}

/// Runs faults and clients for the plan's time, heals, drains and judges.
///
/// # Errors
/// The node does not come back, or answers outside the contract.
pub async fn run(plan: &ChaosPlan) -> anyhow::Result<ChaosReport> {
    let mut chance = Chance::seeded(plan.seed);
    let recorder = Recorder::new("n1");
    let mut config = NodeConfig::in_dir(&plan.bin, &plan.dir);
    config.flags.clone_from(&plan.flags);
    let log = config.log.clone();
    let mut node = NodeProcess::start(config).await?.recorded(&recorder);
    let mut load = Plan { keyed: 1, keepers: 1, ..Plan::mixed(node.addr(), topics(), chance.next_u64()) };
    let mut probe = Probe::start(Client::new(node.addr()), &recorder).await?;
    let workload = Workload::start(&load, &recorder).await?;
    let faults = if plan.faults.is_empty() {
        tokio::time::sleep(plan.time).await;
        BTreeMap::new()
    } else {
        let faults = Hurt { plan, node: &mut node, probe: &mut probe, chance: &mut chance }.rounds().await;
        if faults.is_err() {
            keep_history(&plan.dir, &recorder.history())?;
        }
        faults?
    };
    workload.stop().await?;
    load.topics.push(probe::topic());
    drain(&load, &recorder, Duration::from_secs(120)).await?;
    node.stop(STOP_DEADLINE).await?;

    let history = recorder.history();
    let verdict = check(&history, &rules(plan.timer_slack));
    if !verdict.is_clean() {
        keep_history(&plan.dir, &history)?;
    }
    let hurt = (!faults.is_empty()).then_some(UNKNOWN_OUTCOME);
    let provoked = faults.keys().flat_map(|fault| fault.log_texts().iter().copied()).chain(hurt);
    let allowed: Vec<&str> = plan.log_allowed.iter().map(String::as_str).chain(provoked).collect();
    let log_lines = logs::unexpected(&log, &allowed)?;
    Ok(ChaosReport {
        seed: plan.seed,
        faults,
        verdict,
        log_lines,
        log_allowed: allowed.len(),
        timer_slack: plan.timer_slack,
        wanted: plan.faults.clone(),
        seen: Vec::new(),
        must_be_seen: Vec::new(),
    })
}

impl Hurt<'_> {
    /// Each kind of fault comes once in every round, in another order.
    async fn rounds(&mut self) -> anyhow::Result<BTreeMap<Fault, u32>> {
        let started = Instant::now();
        let mut faults = BTreeMap::new();
        loop {
            let mut round = self.plan.faults.clone();
            self.chance.shuffle(&mut round);
            for fault in round {
                tokio::time::sleep(Duration::from_millis(150 + self.chance.below(1_000))).await;
                let nth = faults.get(&fault).copied().unwrap_or(0) + 1;
                self.inflict(fault, nth).await.with_context(|| format!("after {faults:?}, at {fault:?}"))?;
                faults.insert(fault, nth);
                // The first round is always whole: every kind must have happened.
                if faults.len() == self.plan.faults.len() && started.elapsed() >= self.plan.time {
                    return Ok(faults);
                }
            }
        }
    }
}

fn keep_history(dir: &Path, history: &[Event]) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir)?;
    std::fs::write(dir.join("history.jsonl"), to_jsonl(history)).context("cannot keep the history")
}
