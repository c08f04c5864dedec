//! `veena-sim`: simulated crashes by seed.
#![allow(clippy::print_stdout, reason = "a command: it prints")]

use std::process::{Command as Process, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::{Parser, Subcommand};
use veena_loadtest_sim::sabotage::{self, BUGS};
use veena_loadtest_sim::sweep::{self, SEEDS_FOR_EVERY_FAULT, Sweep};
use veena_loadtest_sim::tally::Kind;
use veena_loadtest_sim::{Report, run_seed_among, verdict};

/// Runs one node or several on simulated disks, clocks, entropy and network; one seed, one run.
#[derive(Parser)]
#[command(name = "veena-sim")]
struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Runs one seed
    Run {
        /// The seed
        #[arg(long)]
        seed: u64,
        /// How many nodes
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
        nodes: u8,
        /// Prints the trace first
        #[arg(long)]
        trace: bool,
        /// Prints the report as one line of JSON
        #[arg(long)]
        json: bool,
        /// Writes the node's own log to standard error
        #[arg(long)]
        log: bool,
    },
    /// Runs the fixed seeds and many others, each in a process of its own
    Sweep {
        /// How many nodes each
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
        nodes: u8,
        /// How many seeds beside the fixed ones
        #[arg(long, default_value_t = 200)]
        seeds: u64,
        /// The first of them
        #[arg(long)]
        from: Option<u64>,
    },
    /// Runs one seed twice and compares the traces byte for byte
    Meta {
        /// The seed
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How many nodes
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
        nodes: u8,
    },
    /// Plants each bug and looks for a seed that finds it; needs a build with `--features sabotage`
    Sabotage {
        /// The most seeds for each bug; those of several nodes take longer
        #[arg(long)]
        seeds: Option<u64>,
        /// The first of them, instead of one not far before a seed that is known to find the bug
        #[arg(long)]
        from: Option<u64>,
        /// Only these bugs
        bugs: Vec<String>,
    },
}

/// How long, in real time, one seed may take; usually it is a tenth of a second, with several nodes some seconds.
const HANGS_AFTER: Duration = Duration::from_secs(120);
/// How many violations of one seed are shown.
const VIOLATIONS_SHOWN: usize = 8;

fn main() -> anyhow::Result<ExitCode> {
    let is_green = match Command::parse().what {
        What::Run { seed, nodes, trace, json, log } => run((seed, nodes.into()), trace, json, log)?,
        What::Sweep { nodes, seeds, from } => run_sweep(nodes.into(), seeds, from)?,
        What::Meta { seed, nodes } => meta(seed, nodes)?,
        What::Sabotage { seeds, from, bugs } => hunt_all(seeds, from, &bugs)?,
    };
    Ok(if is_green { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run((seed, nodes): (u64, usize), trace: bool, json: bool, log: bool) -> anyhow::Result<bool> {
    if log {
        let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
        tracing_subscriber::fmt().with_env_filter(filter).without_time().with_writer(std::io::stderr).init();
    }
    watch_over(seed, nodes);
    let (report, text) = run_seed_among(seed, nodes, trace);
    print!("{text}");
    if json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print_report(&report);
    }
    Ok(report.violations_count == 0)
}

/// A run that never gives the clock a chance to move would never end: virtual time stands still while somebody asks again at once.
fn watch_over(seed: u64, nodes: usize) {
    let _ = std::thread::spawn(move || {
        std::thread::sleep(HANGS_AFTER);
        let what = format!("the run hangs: after {HANGS_AFTER:?} of real time some task still asks again at once");
        let report = Report::broken(seed, nodes, what);
        println!("{}", serde_json::to_string(&report).unwrap_or_default());
        std::process::exit(1);
    });
}

fn print_report(report: &Report) {
    println!("seed {}: {} ms of virtual time, trace {:016x}", report.seed, report.virtual_ms, report.trace_hash);
    let faults: Vec<String> = report.faults.iter().map(|(kind, count)| format!("{kind:?} {count}")).collect();
    println!("faults: {}", faults.join(", "));
    println!("{}", verdict::of_numbers(&report.numbers));
    print_violations(report);
}

fn print_violations(report: &Report) {
    for violation in report.violations.iter().take(VIOLATIONS_SHOWN) {
        println!("  seed {}: {violation}", report.seed);
    }
    let more = report.violations.len().saturating_sub(VIOLATIONS_SHOWN);
    if more > 0 {
        println!("  seed {}: and {more} more", report.seed);
    }
    if report.violations_count > 0 {
        println!("  again: cargo run -p veena-loadtest-sim -- run --nodes {} --seed {}", report.nodes, report.seed);
    }
}

fn run_sweep(nodes: usize, seeds: u64, from: Option<u64>) -> anyhow::Result<bool> {
    let from = match from {
        Some(from) => from,
        None => new_seed()?,
    };
    let mut all = sweep::fixed_seeds(nodes);
    println!("{} fixed seeds, and {seeds} from {from} on", all.len());
    all.extend((0..seeds).map(|n| from.wrapping_add(n)));
    let mut total = Sweep::default();
    sweep::each(all, nodes, None, |report| {
        print_violations(&report);
        total.add(report);
        true
    })?;
    print_sweep(&total);
    Ok(total.is_green())
}

/// Where the new seeds of a run start: anywhere, and printed.
fn new_seed() -> anyhow::Result<u64> {
    let mut bytes = [0_u8; 4];
    getrandom::fill(&mut bytes).context("no entropy")?;
    Ok(u64::from(u32::from_le_bytes(bytes)))
}

fn print_sweep(total: &Sweep) {
    let faults: Vec<String> =
        Kind::of_nodes(total.nodes).map(|kind| format!("{kind:?} {}", total.faults.get(&kind).unwrap_or(&0))).collect();
    println!("faults: {}", faults.join(", "));
    if total.seeds >= SEEDS_FOR_EVERY_FAULT {
        for kind in total.missing() {
            println!("RED: the fault {kind:?} never came");
        }
    }
    println!("{}", verdict::of_numbers(&total.numbers));
    println!(
        "{} seeds, {} failed; {} s of virtual time; settle state hurt, and so its windows not judged, in {} seeds",
        total.seeds,
        total.failed.len(),
        total.virtual_ms / 1000,
        total.wide_windows
    );
}

fn meta(seed: u64, nodes: u8) -> anyhow::Result<bool> {
    let trace = || -> anyhow::Result<Vec<u8>> {
        let mut process = Process::new(std::env::current_exe()?);
        process.args(["run", "--trace", "--seed", &seed.to_string(), "--nodes", &nodes.to_string()]).stdin(Stdio::null());
        Ok(process.output().context("the run cannot be started")?.stdout)
    };
    let (first, second) = (trace()?, trace()?);
    ensure!(!first.is_empty(), "the trace is empty");
    if first == second {
        println!("seed {seed}: two runs, {} bytes of trace, the same", first.len());
        return Ok(true);
    }
    let lines = first.split(|byte| *byte == b'\n').zip(second.split(|byte| *byte == b'\n'));
    for (number, (one, other)) in (1..).zip(lines) {
        if one != other {
            println!("line {number} differs:\n  {}\n  {}", String::from_utf8_lossy(one), String::from_utf8_lossy(other));
            break;
        }
    }
    println!("RED: seed {seed} does not repeat ({} and {} bytes of trace)", first.len(), second.len());
    Ok(false)
}

fn hunt_all(seeds: Option<u64>, from: Option<u64>, only: &[String]) -> anyhow::Result<bool> {
    ensure!(cfg!(feature = "sabotage"), "this build has no planted bugs: build with --features sabotage");
    for name in only {
        let names: Vec<&str> = BUGS.iter().map(|bug| bug.name).collect();
        ensure!(names.contains(&name.as_str()), "no such bug: {name}; there are {}", names.join(" "));
    }
    println!("{:<27}| nodes| found by  | seed | violation", "sabotage");
    let mut is_green = true;
    for bug in BUGS.iter().filter(|bug| only.is_empty() || only.iter().any(|name| name == bug.name)) {
        let finding = sabotage::hunt(*bug, from.unwrap_or(bug.from), seeds.unwrap_or(bug.seeds_max()))?;
        println!("{finding}");
        is_green &= finding.found.is_some();
    }
    Ok(is_green)
}
