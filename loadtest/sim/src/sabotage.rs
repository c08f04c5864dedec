//! The planted bugs: each must be found by some seed. One that stays green means that the simulator is blind to it.

use std::fmt;

use crate::sweep;

/// A planted bug.
#[derive(Clone, Copy, Debug)]
pub struct Bug {
    /// What `VEENA_SABOTAGE` calls it.
    pub name: &'static str,
    /// How many nodes it takes.
    pub nodes: usize,
    /// Where its hunt begins when nothing else is asked for: not far before a seed that is known to find it.
    pub from: u64,
}

impl Bug {
    /// After so many seeds it counts as not found, unless something else is asked for.
    #[must_use]
    pub const fn seeds_max(&self) -> u64 {
        if self.nodes == 1 { 400 } else { 100 }
    }
}

const fn alone(name: &'static str, from: u64) -> Bug {
    Bug { name, nodes: 1, from }
}

const fn among(name: &'static str, from: u64) -> Bug {
    Bug { name, nodes: 3, from }
}

/// All of them.
pub const BUGS: &[Bug] = &[
    alone("ack_before_sync", 1),
    alone("no_dir_sync", 1),
    alone("watermark_before_verify", 1),
    alone("checkpoint_before_commit", 1),
    alone("cursor_before_child_commit", 1),
    alone("ack_without_nonce", 1),
    alone("appended_as_committed", 1),
    alone("frontier_moves_back", 1),
    alone("trust_page_cache", 1),
    alone("wake_lost", 1),
    alone("parked_file_goes_early", 1),
    alone("keys_forgotten_at_open", 1),
    among("leader_without_barrier", 12),
    among("flip_without_cas", 6),
    among("cursor_of_a_former_tenure", 6),
    among("reclaim_without_epoch", 2),
    among("reroute_without_moved", 8),
    among("leases_stay_behind", 2),
    among("acks_stay_behind", 2),
    among("keys_stay_behind", 2),
    among("streams_stay_behind", 2),
];

/// What became of one planted bug.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The bug.
    pub bug: Bug,
    /// The seed that found it and what it saw; `None` if none did.
    pub found: Option<(u64, String)>,
    /// How many seeds ran.
    pub seeds: u64,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bug { name, nodes, .. } = self.bug;
        match &self.found {
            Some((seed, what)) => {
                let by = if what.split_once(": ").is_some_and(|(rule, _)| rule.chars().all(char::is_alphanumeric)) {
                    "checker"
                } else {
                    "simulator"
                };
                let what: String = what.chars().take(150).collect();
                write!(f, "{name:<27}| {nodes:<5}| {by:<10}| {seed:<5}| {what}")
            }
            None => write!(f, "{name:<27}| {nodes:<5}| NOBODY    |      | green over {} seeds", self.seeds),
        }
    }
}

/// Looks for one bug with at most `seeds_max` seeds from `from` on.
///
/// # Errors
/// A seed's process cannot be started.
pub fn hunt(bug: Bug, from: u64, seeds_max: u64) -> anyhow::Result<Finding> {
    let mut finding = Finding { bug, found: None, seeds: 0 };
    sweep::each(from..from.saturating_add(seeds_max), bug.nodes, Some(bug.name), |report| {
        finding.seeds += 1;
        finding.found = report.violations.first().map(|what| (report.seed, what.clone()));
        finding.found.is_none()
    })?;
    Ok(finding)
}
