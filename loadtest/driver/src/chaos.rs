//! Hurts a real node while clients use it, then reads everything and asks the checker.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use veena_loadtest_checker::{Event, Rules, Verdict, check, to_jsonl};

use crate::api::NewTopic;
use crate::chance::Chance;
use crate::logs;
use crate::node::{NodeConfig, NodeProcess};
use crate::recorder::Recorder;
use crate::workload::{Plan, Workload, drain, topic_key};

/// How late the node's timers may be on a machine shared with its clients and other work.
pub const TIMER_SLACK: Duration = Duration::from_millis(150);
const STOP_DEADLINE: Duration = Duration::from_secs(30);

/// What is done to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// kill -9, started again at once.
    Kill,
    /// kill -9 while it stands still: nothing that its timers would have done has happened.
    KillFrozen,
    /// SIGTERM, started again.
    Stop,
    /// SIGSTOP for a while, then SIGCONT.
    Pause,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Kill, Self::KillFrozen, Self::Stop, Self::Pause];
}

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
    /// Without faults it is a soak: load and ledger alone, and nothing may be refused or stay unanswered.
    pub with_faults: bool,
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
            with_faults: true,
        }
    }
}

/// What came out of it.
#[derive(Clone, Debug)]
pub struct ChaosReport {
    /// The seed.
    pub seed: u64,
    /// How often each fault happened.
    pub faults: BTreeMap<Fault, u32>,
    /// The checker's verdict.
    pub verdict: Verdict,
    /// Warnings and errors in the node's log that nobody expected.
    pub log_lines: Vec<String>,
    /// How many texts are allowed in the log.
    pub log_allowed: usize,
    /// How late the node's timers were allowed to be.
    pub timer_slack: Duration,
    /// Were there to be faults?
    pub with_faults: bool,
}

impl ChaosReport {
    /// What is wrong; empty if nothing is. A fault that never happened is wrong too.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints: Vec<String> = self.verdict.violations.iter().map(ToString::to_string).collect();
        let counts = &self.verdict.counts;
        if self.with_faults {
            let missing = Fault::ALL.iter().filter(|fault| !self.faults.contains_key(fault));
            complaints.extend(missing.map(|fault| format!("the fault {fault:?} never happened")));
        } else if counts.sent_fail + counts.sent_unknown > 0 {
            complaints.push(format!("without faults, {} produces failed and {} stayed unknown", counts.sent_fail, counts.sent_unknown));
        }
        let never = [(counts.sent_ok, "sent"), (counts.delivered, "delivered"), (counts.acked, "acked")];
        complaints.extend(never.iter().filter(|(count, _)| *count == 0).map(|(_, what)| format!("nothing was {what}")));
        complaints.extend(self.log_lines.iter().map(|line| format!("unexpected in the log: {line}")));
        complaints
    }
}

impl fmt::Display for ChaosReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<String> = Fault::ALL.iter().map(|fault| format!("{fault:?} {}", self.faults.get(fault).unwrap_or(&0))).collect();
        writeln!(f, "seed {}", self.seed)?;
        writeln!(f, "faults: {}", faults.join(", "))?;
        writeln!(f, "log: {} unexpected lines, {} texts allowed", self.log_lines.len(), self.log_allowed)?;
        writeln!(f, "windows for forgotten acks widened by {} ms for late timers", self.timer_slack.as_millis())?;
        write!(f, "{}", self.verdict)
    }
}

/// The topics of a chaos run: one with order per key, one of a single partition with short leases.
fn topics() -> Vec<NewTopic> {
    let topic = |name: &str, partitions, visibility_ms| NewTopic { name: name.to_owned(), partitions, visibility_ms };
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
    let load = Plan::mixed(node.addr(), topics(), chance.next_u64());
    let workload = Workload::start(&load, &recorder).await?;
    let faults = if plan.with_faults {
        hurt(&mut node, plan.time, &mut chance).await?
    } else {
        tokio::time::sleep(plan.time).await;
        BTreeMap::new()
    };
    workload.stop().await?;
    drain(&load, &recorder, Duration::from_secs(120)).await?;
    node.stop(STOP_DEADLINE).await?;

    let history = recorder.history();
    let verdict = check(&history, &rules(plan.timer_slack));
    if !verdict.is_clean() {
        keep_history(&plan.dir, &history)?;
    }
    let allowed: Vec<&str> = plan.log_allowed.iter().map(String::as_str).collect();
    let log_lines = logs::unexpected(&log, &allowed)?;
    Ok(ChaosReport {
        seed: plan.seed,
        faults,
        verdict,
        log_lines,
        log_allowed: allowed.len(),
        timer_slack: plan.timer_slack,
        with_faults: plan.with_faults,
    })
}

/// Each kind of fault comes once in every round, in another order.
async fn hurt(node: &mut NodeProcess, time: Duration, chance: &mut Chance) -> anyhow::Result<BTreeMap<Fault, u32>> {
    let started = Instant::now();
    let mut faults = BTreeMap::new();
    loop {
        let mut round = Fault::ALL;
        chance.shuffle(&mut round);
        for fault in round {
            tokio::time::sleep(Duration::from_millis(150 + chance.below(1_000))).await;
            inflict(node, fault, chance).await.with_context(|| format!("after {faults:?}, at {fault:?}"))?;
            *faults.entry(fault).or_insert(0) += 1;
            // The first round is always whole: every kind must have happened.
            if faults.len() == Fault::ALL.len() && started.elapsed() >= time {
                return Ok(faults);
            }
        }
    }
}

async fn inflict(node: &mut NodeProcess, fault: Fault, chance: &mut Chance) -> anyhow::Result<()> {
    let while_still = Duration::from_millis(20 + chance.below(400));
    match fault {
        Fault::Kill => node.kill()?,
        Fault::KillFrozen => node.kill_frozen(while_still).await?,
        Fault::Stop => node.stop(STOP_DEADLINE).await?,
        Fault::Pause => return node.pause(while_still).await,
    }
    // Now and then it is killed again while it starts.
    if chance.percent(25) {
        node.start_and_kill(Duration::from_millis(chance.below(60))).await?;
    }
    node.start_again().await
}

fn keep_history(dir: &Path, history: &[Event]) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir)?;
    std::fs::write(dir.join("history.jsonl"), to_jsonl(history)).context("cannot keep the history")
}
