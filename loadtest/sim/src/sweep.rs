//! Many seeds, each in a process of its own, two at a time.

use std::collections::BTreeMap;
use std::io;
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;

use crate::run::Report;
use crate::tally::Kind;
use crate::verdict;

/// How many seeds run at once.
const AT_ONCE: usize = 2;
/// From this many seeds on, every kind of fault must have come.
pub const SEEDS_FOR_EVERY_FAULT: usize = 40;

/// The seeds that every short run takes, each with its story.
const FIXED: &str = include_str!("../seeds.txt");
/// The same, for several nodes.
const FIXED_AMONG: &str = include_str!("../seeds-among.txt");

/// The fixed seeds for so many nodes.
///
/// # Panics
/// When a line does not begin with a number; the files are part of the program.
#[must_use]
pub fn fixed_seeds(nodes: usize) -> Vec<u64> {
    let text = if nodes == 1 { FIXED } else { FIXED_AMONG };
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let first = |line: &str| line.split_whitespace().next().and_then(|word| word.parse().ok());
    lines.map(|line| first(line).expect("invariant: a line of fixed seeds begins with a seed")).collect()
}

/// Runs one seed in a process of its own, with a planted bug if one is named.
///
/// # Errors
/// The process cannot be started.
fn start(seed: u64, nodes: usize, sabotage: Option<&str>) -> io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["run", "--json", "--seed", &seed.to_string(), "--nodes", &nodes.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    match sabotage {
        Some(bug) => command.env("VEENA_SABOTAGE", bug),
        None => command.env_remove("VEENA_SABOTAGE"),
    };
    command.spawn()
}

fn finish(seed: u64, nodes: usize, child: Child) -> anyhow::Result<Report> {
    let output = child.wait_with_output().context("a seed's process cannot be waited for")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if let Some(report) = text.lines().last().and_then(|line| serde_json::from_str::<Report>(line).ok()) {
        return Ok(report);
    }
    let last_words = String::from_utf8_lossy(&output.stderr);
    let what = format!("the run ended without a report ({}): {}", output.status, last_words.lines().last().unwrap_or_default());
    Ok(Report::broken(seed, nodes, what))
}

/// Runs seeds, two at a time, and gives each report to `told` in order, until it answers false.
///
/// # Errors
/// A process cannot be started.
pub fn each(
    seeds: impl IntoIterator<Item = u64>,
    nodes: usize,
    sabotage: Option<&str>,
    mut told: impl FnMut(Report) -> bool,
) -> anyhow::Result<()> {
    let mut seeds = seeds.into_iter();
    let mut running = std::collections::VecDeque::new();
    loop {
        while running.len() < AT_ONCE {
            let Some(seed) = seeds.next() else { break };
            running.push_back((seed, start(seed, nodes, sabotage).context("a seed's process cannot be started")?));
        }
        let Some((seed, child)) = running.pop_front() else { return Ok(()) };
        if !told(finish(seed, nodes, child)?) {
            for (_, mut child) in running {
                let _ = child.kill();
                let _ = child.wait();
            }
            return Ok(());
        }
    }
}

/// What many seeds came to.
#[derive(Clone, Debug, Default)]
pub struct Sweep {
    /// How many seeds ran.
    pub seeds: usize,
    /// With how many nodes each.
    pub nodes: usize,
    /// The failing ones.
    pub failed: Vec<Report>,
    /// How often each fault hit, over all.
    pub faults: BTreeMap<Kind, u64>,
    /// The checker's numbers, over all.
    pub numbers: Vec<u64>,
    /// In how many seeds settle state was hurt, so that the windows for forgotten acks were not judged.
    pub wide_windows: usize,
    /// Virtual time of all, in ms.
    pub virtual_ms: u64,
}

impl Sweep {
    /// Adds one seed.
    pub fn add(&mut self, report: Report) {
        self.seeds += 1;
        self.nodes = report.nodes;
        for (kind, count) in &report.faults {
            *self.faults.entry(*kind).or_insert(0) += count;
        }
        verdict::add_numbers(&mut self.numbers, &report.numbers);
        self.wide_windows += usize::from(report.has_wide_windows);
        self.virtual_ms += report.virtual_ms;
        if report.violations_count > 0 {
            self.failed.push(report);
        }
    }

    /// Kinds of faults that never came.
    #[must_use]
    pub fn missing(&self) -> Vec<Kind> {
        Kind::of_nodes(self.nodes).filter(|kind| !self.faults.contains_key(kind)).collect()
    }

    /// Is everything as it must be? Many seeds must have seen every kind of fault.
    #[must_use]
    pub fn is_green(&self) -> bool {
        self.seeds > 0 && self.failed.is_empty() && (self.seeds < SEEDS_FOR_EVERY_FAULT || self.missing().is_empty())
    }
}
