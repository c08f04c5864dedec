//! R4 and R5: one holder at a time, and no message again after its ack.

use super::Rules;
use crate::event::{Down, How, Outcome};
use crate::index::{Index, Lease, Place, Settle};
use crate::verdict::{Rule, Verdict};

/// A lease's end may be rounded down to the millisecond.
const EXPIRY_ROUNDING_US: u64 = 1_000;

pub(super) fn check(index: &Index, rules: &Rules, verdict: &mut Verdict) {
    for (place, leases) in index.leases.iter().filter(|(_, leases)| leases.len() > 1) {
        for (at, later) in leases.iter().enumerate().skip(1) {
            let mut holders = leases[..at].iter().filter(|earlier| is_held_when(index, place, earlier, later));
            if let Some(earlier) = holders.next_back() {
                verdict.add(Rule::DoubleLease, 1, || {
                    format!(
                        "{place}: {} (asked {} us, given {} us) still held when {} was given at {} us",
                        earlier.handle, earlier.at, earlier.until, later.handle, later.until
                    )
                });
            }
            check_redelivery(index, rules, place, leases, at, verdict);
        }
    }
}

/// Was `earlier` certainly unexpired and unreleased at every moment at which `later` may have begun?
fn is_held_when(index: &Index, place: &Place, earlier: &Lease, later: &Lease) -> bool {
    let settles = index.settles_of(&place.topic, earlier);
    let extended = settles.iter().filter(|s| s.how == How::Extend && s.outcome == Outcome::Ok).map(|s| s.at);
    let renewed_at = extended.chain([earlier.at]).max().unwrap_or(earlier.at);
    let unexpired_until = (renewed_at + earlier.visibility_us).saturating_sub(EXPIRY_ROUNDING_US);
    let released = settles.iter().filter(|s| s.how != How::Extend && s.outcome != Outcome::Fail).map(|s| s.at);
    let ended = index.ends_of(&place.topic, place.partition).filter(|end| end.until >= earlier.at).map(|end| end.at);
    let held_until = released.chain(ended).chain([unexpired_until]).min().unwrap_or(unexpired_until);
    // Known later, but begun first, and run out before the other began?
    let may_precede = later.at <= earlier.until && earlier.until >= later.at + later.visibility_us;
    later.until < held_until && !may_precede
}

fn check_redelivery(index: &Index, rules: &Rules, place: &Place, leases: &[Lease], at: usize, verdict: &mut Verdict) {
    let again = &leases[at];
    let mut inside = None;
    for lease in leases.iter().filter(|lease| lease.handle != again.handle) {
        for ack in index.settles_of(&place.topic, lease).iter().filter(|s| s.how == How::Ack && s.outcome == Outcome::Ok) {
            let ended_between = index.ends_of(&place.topic, place.partition).any(|end| end.until >= again.at && end.at <= ack.until);
            let is_after =
                again.at >= ack.until || (again.until > ack.until && again.until - again.at < again.visibility_us && !ended_between);
            if !is_after {
                continue;
            }
            match forgotten(index, rules, place, ack, again.until) {
                Some(age) => inside = Some(inside.unwrap_or(0).max(age)),
                None => {
                    verdict.add(Rule::RedeliveredAcked, 1, || {
                        format!(
                            "{place}: acked with {} at {} us, came again at {} us as {}",
                            lease.handle, ack.until, again.until, again.handle
                        )
                    });
                    return;
                }
            }
        }
    }
    if let Some(age) = inside {
        verdict.counts.redelivered_inside += 1;
        verdict.counts.oldest_lost_ack_us = verdict.counts.oldest_lost_ack_us.max(age);
    }
}

/// If an end of the partition's owner may have forgotten the ack before the delivery: how old the ack was then, at least.
fn forgotten(index: &Index, rules: &Rules, place: &Place, ack: &Settle, again: u64) -> Option<u64> {
    // The node took the ack somewhere between asking and knowing: an answer can be read after its sender has died.
    let between = index.ends_of(&place.topic, place.partition).filter(|end| end.until >= ack.at && end.at <= again);
    between
        .filter_map(|end| {
            let window = match end.how {
                Down::Stopped => return None,
                Down::Killed => rules.kill_window_us,
                Down::PowerCut => rules.power_window_us,
            };
            let age = index.running_us(&end.node, ack.until, end.at);
            (age <= window + rules.timer_slack_us).then_some(age)
        })
        .min()
}
