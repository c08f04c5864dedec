//! The planted bugs: each must be found by some seed. One that stays green means that the simulator is blind to it.

use std::fmt;

use crate::sweep;

/// The planted bugs of storage and broker, by the name that `VEENA_SABOTAGE` takes.
pub const BUGS: [&str; 12] = [
    "ack_before_sync",
    "no_dir_sync",
    "watermark_before_verify",
    "checkpoint_before_commit",
    "cursor_before_child_commit",
    "ack_without_nonce",
    "appended_as_committed",
    "frontier_moves_back",
    "trust_page_cache",
    "wake_lost",
    "parked_file_goes_early",
    "keys_forgotten_at_open",
];

/// What became of one planted bug.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The bug.
    pub bug: &'static str,
    /// The seed that found it and what it saw; `None` if none did.
    pub found: Option<(u64, String)>,
    /// How many seeds ran.
    pub seeds: u64,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.found {
            Some((seed, what)) => {
                let by = if what.split_once(": ").is_some_and(|(rule, _)| rule.chars().all(char::is_alphanumeric)) {
                    "checker"
                } else {
                    "simulator"
                };
                let what: String = what.chars().take(150).collect();
                write!(f, "{:<27}| {by:<10}| {seed:<5}| {what}", self.bug)
            }
            None => write!(f, "{:<27}| NOBODY    |      | green over {} seeds", self.bug, self.seeds),
        }
    }
}

/// Looks for one bug with at most `seeds_max` seeds from `from` on.
///
/// # Errors
/// A seed's process cannot be started.
pub fn hunt(bug: &'static str, from: u64, seeds_max: u64) -> anyhow::Result<Finding> {
    let mut finding = Finding { bug, found: None, seeds: 0 };
    sweep::each(from..from.saturating_add(seeds_max), 1, Some(bug), |report| {
        finding.seeds += 1;
        finding.found = report.violations.first().map(|what| (report.seed, what.clone()));
        finding.found.is_none()
    })?;
    Ok(finding)
}
