//! `veena-bench`: the benchmark, its yardstick servers, chaos and soak.
#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "a command: it prints, and measures real files")]

use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use veena_loadtest_driver::bench::{self, Options, Report, SCENARIOS, Scenario};
use veena_loadtest_driver::chance::Chance;
use veena_loadtest_driver::chaos::cluster::{self, ClusterFault, ClusterPlan, NODES};
use veena_loadtest_driver::chaos::{self, ChaosPlan, ChaosReport};
use veena_loadtest_driver::yardstick;

/// Measures Veena against bare servers on the same machine, and hurts it under a ledger.
#[derive(Parser)]
#[command(name = "veena-bench")]
struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The usual scenarios, or those named
    #[command(alias = "run")]
    Bench(BenchFlags),
    /// Names the scenarios
    List,
    /// kill -9, stops, failed syncs and full disks under load, then the checker's verdict
    Chaos(ChaosFlags),
    /// Steady load with a ledger, without faults
    Soak(ChaosFlags),
    /// Judges the history that a chaos run left behind
    Check {
        /// history.jsonl
        file: PathBuf,
    },
    /// The yardstick that answers 202 and nothing else
    ServeBare {
        #[arg(long)]
        addr: SocketAddr,
    },
    /// The yardstick that answers 202 after a sync
    ServeWal {
        #[arg(long)]
        addr: SocketAddr,
        #[arg(long)]
        file: PathBuf,
        #[arg(long, value_parser = humantime::parse_duration, default_value = "0ms")]
        slow_flush: Duration,
    },
}

#[derive(clap::Args)]
struct BenchFlags {
    /// Scenarios; the usual ones if none is named
    names: Vec<String>,
    /// How many rounds
    #[arg(long, default_value_t = 5)]
    runs: u32,
    /// How long each scenario is measured in each round
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Makes every sync so much slower, as on a cloud disk
    #[arg(long, value_parser = humantime::parse_duration, default_value = "0ms")]
    slow_flush: Duration,
    /// Veena's binary; the one beside this one if not given
    #[arg(long, env = "VEENA_BIN")]
    veena: Option<PathBuf>,
    /// Where data goes; must lie on a disk. The directory of this binary if not given
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Where the report goes as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// A flag for the node; may be repeated
    #[arg(long, allow_hyphen_values = true)]
    node_flag: Vec<String>,
}

#[derive(clap::Args)]
struct ChaosFlags {
    /// For how long
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// The seed; a new one if not given
    #[arg(long, env = "VEENA_CHAOS_SEED")]
    seed: Option<u64>,
    /// Veena's binary; the one beside this one if not given
    #[arg(long, env = "VEENA_BIN")]
    veena: Option<PathBuf>,
    /// Where data, log and history go; a new directory, which stays if something is wrong
    #[arg(long)]
    dir: Option<PathBuf>,
    /// 1, or 3 that are one broker; these run in network namespaces, so that cables can be cut
    #[arg(long, default_value_t = 1)]
    nodes: usize,
    /// Of three nodes: the few faults of a short run
    #[arg(long)]
    short: bool,
    /// Only this fault; may be repeated. All if none is named
    #[arg(long)]
    only: Vec<String>,
}

/// What the gates take for skipped.
const SKIPPED: u8 = 77;

fn main() -> anyhow::Result<ExitCode> {
    match Command::parse().what {
        What::Bench(flags) => run_bench(flags),
        What::List => {
            for scenario in SCENARIOS {
                println!("{:<20} {}{}", scenario.name, scenario.about, if scenario.is_usual { "" } else { " (only when named)" });
            }
            Ok(ExitCode::SUCCESS)
        }
        What::Chaos(flags) => run_chaos(flags, true),
        What::Soak(flags) => run_chaos(flags, false),
        What::Check { file } => run_check(&file),
        What::ServeBare { addr } => yardstick::serve_bare(addr).map(|()| ExitCode::SUCCESS),
        What::ServeWal { addr, file, slow_flush } => yardstick::serve_logged(addr, &file, slow_flush).map(|()| ExitCode::SUCCESS),
    }
}

/// Generator and tests leave the machine to the server: one thread.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

fn beside(own: &Path, given: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let path = given.map_or_else(|| own.with_file_name("veena"), std::convert::identity);
    ensure!(path.is_file(), "no binary at {}: build it, or name it with --veena", path.display());
    path.canonicalize().with_context(|| format!("no binary at {}", path.display()))
}

fn run_bench(flags: BenchFlags) -> anyhow::Result<ExitCode> {
    let own = std::env::current_exe()?;
    let scenarios: Vec<&Scenario> = if flags.names.is_empty() {
        SCENARIOS.iter().filter(|scenario| scenario.is_usual).collect()
    } else {
        let found = flags.names.iter().map(|name| Scenario::by_name(name).with_context(|| format!("no scenario {name}; see `list`")));
        found.collect::<anyhow::Result<_>>()?
    };
    let dir = flags.dir.unwrap_or_else(|| own.with_file_name("bench-data"));
    std::fs::create_dir_all(&dir)?;
    ensure!(!is_in_memory(&dir)?, "{} is in memory: a benchmark of syncs needs a disk (--dir)", dir.display());
    let options = Options {
        veena: beside(&own, flags.veena)?,
        yardstick: own,
        dir,
        runs: flags.runs.max(1),
        time: Duration::from_secs(flags.seconds.max(1)),
        slow_flush: flags.slow_flush,
        node_flags: flags.node_flag,
        node_env: Vec::new(),
    };
    println!("{}", Report::heading());
    let report = runtime()?.block_on(bench::run(&options, &scenarios, |row| println!("{}", row.line())))?;
    println!("\n{}", report.table());
    if let Some(path) = flags.json {
        std::fs::write(&path, serde_json::to_string_pretty(&report)?).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let is_whole = report.medians.iter().all(|row| row.ledger.as_ref().is_none_or(|ledger| ledger.starts_with("ok")));
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn is_in_memory(dir: &Path) -> anyhow::Result<bool> {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    Ok(rustix::fs::statfs(dir)?.f_type == TMPFS_MAGIC)
}

fn run_check(file: &Path) -> anyhow::Result<ExitCode> {
    let text = std::fs::read_to_string(file).with_context(|| format!("no history at {}", file.display()))?;
    let history = veena_loadtest_checker::from_jsonl(&text)?;
    let is_of_several = history.windows(2).any(|events| events[0].node != events[1].node);
    let rules = if is_of_several { cluster::rules() } else { chaos::rules(chaos::TIMER_SLACK) };
    let verdict = veena_loadtest_checker::check(&history, &rules);
    println!("{verdict}");
    for violation in &verdict.violations {
        println!("{violation}");
    }
    Ok(if verdict.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The faults of these names.
fn named<F: ValueEnum>(names: &[String]) -> anyhow::Result<Vec<F>> {
    let known = || F::value_variants().iter().filter_map(F::to_possible_value).map(|value| value.get_name().to_owned());
    let named = |name: &String| {
        F::from_str(name, false).map_err(|_| anyhow!("no fault {name}; there are {}", known().collect::<Vec<_>>().join(" ")))
    };
    names.iter().map(named).collect()
}

fn run_chaos(flags: ChaosFlags, with_faults: bool) -> anyhow::Result<ExitCode> {
    match (flags.nodes, with_faults) {
        (1, _) => {}
        (NODES, true) if cluster::is_inside() => return run_cluster(flags),
        (NODES, true) => return run_inside(),
        _ => bail!("chaos takes 1 or {NODES} nodes, soak 1"),
    }
    let bin = beside(&std::env::current_exe()?, flags.veena)?;
    let seed = flags.seed.map_or_else(Chance::new_seed, Ok)?;
    let mut scratch = tempfile::Builder::new().prefix("veena-chaos-").tempdir()?;
    let dir = flags.dir.unwrap_or_else(|| scratch.path().to_owned());
    let mut plan = ChaosPlan::new(&bin, &dir, Duration::from_secs(flags.minutes * 60), seed);
    if !with_faults {
        plan.faults.clear();
    } else if !flags.only.is_empty() {
        plan.faults = named(&flags.only)?;
    }
    println!("seed {seed}, data in {}", dir.display());
    told(runtime()?.block_on(chaos::run(&plan)), &mut scratch)
}

/// Runs this command again where networks can be made; ends with what gates take for skipped where that is refused.
fn run_inside() -> anyhow::Result<ExitCode> {
    match cluster::inside(std::env::current_exe()?.as_os_str(), std::env::args_os().skip(1)) {
        Ok(mut command) => Err(command.exec()).context("cannot start it in namespaces of its own"),
        Err(refused) => {
            println!("skipped: {refused:#}");
            Ok(ExitCode::from(SKIPPED))
        }
    }
}

fn run_cluster(flags: ChaosFlags) -> anyhow::Result<ExitCode> {
    let bin = beside(&std::env::current_exe()?, flags.veena)?;
    let seed = flags.seed.map_or_else(Chance::new_seed, Ok)?;
    let mut scratch = tempfile::Builder::new().prefix("veena-chaos-").tempdir()?;
    let dir = flags.dir.unwrap_or_else(|| scratch.path().to_owned());
    let (faults, time) = match (flags.short, flags.only.is_empty()) {
        (true, _) => (ClusterFault::SHORT.to_vec(), Duration::ZERO),
        (false, true) => (ClusterFault::ALL.to_vec(), Duration::from_secs(flags.minutes * 60)),
        (false, false) => (named(&flags.only)?, Duration::from_secs(flags.minutes * 60)),
    };
    println!("seed {seed}, data in {}", dir.display());
    told(runtime()?.block_on(cluster::run(&ClusterPlan { bin, dir, time, seed, faults })), &mut scratch)
}

/// Prints what came out; what happened stays to be looked at if something is wrong.
fn told<F: Ord + Debug>(report: anyhow::Result<ChaosReport<F>>, scratch: &mut tempfile::TempDir) -> anyhow::Result<ExitCode> {
    if report.as_ref().map_or(true, |report| !report.complaints().is_empty()) {
        scratch.disable_cleanup(true);
    }
    let report = report?;
    println!("{report}");
    let complaints = report.complaints();
    for complaint in &complaints {
        println!("{complaint}");
    }
    Ok(if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
