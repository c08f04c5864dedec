//! The benchmark: named scenarios, each a row or two; medians over several rounds; what must be reached, and whether it was.

mod backlog;
mod cluster;
mod flush;
mod half;
mod idle;
mod isolation;
mod limits;
mod loaded;
mod logins;
mod parked;
mod partitions;
mod reads;
mod report;
mod scenario;
mod secured;
mod server;
mod slow;
mod stalled;
mod target;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

pub use report::{Report, Row, medians};
pub use scenario::{SCENARIOS, Scenario};
pub use target::{Target, targets};

/// How the benchmark is run.
#[derive(Clone, Debug, Serialize)]
pub struct Options {
    /// Veena's binary.
    pub veena: PathBuf,
    /// The binary that serves the yardsticks.
    pub yardstick: PathBuf,
    /// Where data goes: a directory on the disk that is to be measured.
    pub dir: PathBuf,
    /// How many rounds.
    pub runs: u32,
    /// How long each scenario is measured.
    pub time: Duration,
    /// By how much every sync is made slower.
    pub slow_flush: Duration,
    /// Flags for the node beyond the usual ones.
    pub node_flags: Vec<String>,
    /// Environment for the node.
    pub node_env: Vec<(String, String)>,
}

/// How long a scenario is measured unless something else is asked for.
const USUAL_TIME: Duration = Duration::from_secs(20);

/// Scenarios of a fixed size do this share of it when they are to be short; never more than all.
fn usual_share(options: &Options) -> f64 {
    (options.time.as_secs_f64() / USUAL_TIME.as_secs_f64()).min(1.0)
}

/// Runs the scenarios, round by round, and tells of each row as it comes.
///
/// # Errors
/// A scenario cannot be run; the error names it.
pub async fn run(options: &Options, scenarios: &[&Scenario], told: impl Fn(&Row)) -> anyhow::Result<Report> {
    let mut rows = Vec::new();
    for round in 1..=options.runs {
        for scenario in scenarios {
            let new = scenario.run(options, &rows).await.map_err(|err| err.context(format!("scenario {}", scenario.name)))?;
            for mut row in new {
                row.round = round;
                told(&row);
                rows.push(row);
            }
        }
    }
    Ok(Report::new(options.clone(), rows))
}
