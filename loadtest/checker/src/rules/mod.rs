//! The rules, one theme a file. Each takes the index and adds to the verdict what is certainly broken.

mod delivery;
mod identity;
mod leases;
mod offsets;
mod order;
mod tenants;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use crate::event::{Event, TopicKey};
use crate::index::Index;
use crate::verdict::Verdict;

/// What the history promises beyond the contract, and how wide the documented windows are.
#[derive(Clone, Debug)]
pub struct Rules {
    /// At the end, every topic was read until nothing was left: R1 and the density of offsets can be judged.
    pub is_drained: bool,
    /// Topics that declare order per key.
    pub ordered: BTreeSet<TopicKey>,
    /// (parent, child): children that were attached before the first produce, and so must deliver all the parent got.
    pub children: Vec<(TopicKey, TopicKey)>,
    /// Acks answered this shortly before a kill may be forgotten, in microseconds.
    pub kill_window_us: u64,
    /// Acks answered this shortly before a power cut may be forgotten, in microseconds.
    pub power_window_us: u64,
    /// How late the node's own timers may be on a busy machine; added to both windows, in microseconds.
    pub timer_slack_us: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            is_drained: true,
            ordered: BTreeSet::new(),
            children: Vec::new(),
            kill_window_us: 100_000,
            power_window_us: 1_100_000,
            timer_slack_us: 0,
        }
    }
}

/// Judges a history.
#[must_use]
pub fn check(events: &[Event], rules: &Rules) -> Verdict {
    let index = Index::of(events);
    let mut verdict = Verdict { counts: index.counts, ..Verdict::default() };
    delivery::check(&index, rules, &mut verdict);
    leases::check(&index, rules, &mut verdict);
    identity::check(&index, &mut verdict);
    order::check(&index, rules, &mut verdict);
    tenants::check(&index, &mut verdict);
    offsets::check(&index, rules, &mut verdict);
    verdict
}
