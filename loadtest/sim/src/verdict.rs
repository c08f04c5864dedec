//! The checker's verdicts of many seeds, as one.

use veena_loadtest_checker::{Counts, Verdict};

/// The numbers of a verdict, in the order of its fields.
#[must_use]
pub fn numbers(verdict: &Verdict) -> Vec<u64> {
    let Verdict { lost, phantom, double_lease, duplicates_outside, redelivered_acked, order, tenant, offsets, counts: c, .. } = verdict;
    vec![
        *lost,
        *phantom,
        *double_lease,
        *duplicates_outside,
        *redelivered_acked,
        *order,
        *tenant,
        *offsets,
        c.sent_ok,
        c.sent_fail,
        c.sent_unknown,
        c.delivered,
        c.positions,
        c.acked,
        c.redelivered_inside,
        c.oldest_lost_ack_us,
        c.repeats_allowed,
        c.stops,
        c.kills,
        c.power_cuts,
        c.pauses,
    ]
}

/// The verdict of these numbers.
#[must_use]
pub fn of_numbers(numbers: &[u64]) -> Verdict {
    let at = |index: usize| numbers.get(index).copied().unwrap_or(0);
    Verdict {
        lost: at(0),
        phantom: at(1),
        double_lease: at(2),
        duplicates_outside: at(3),
        redelivered_acked: at(4),
        order: at(5),
        tenant: at(6),
        offsets: at(7),
        counts: Counts {
            sent_ok: at(8),
            sent_fail: at(9),
            sent_unknown: at(10),
            delivered: at(11),
            positions: at(12),
            acked: at(13),
            redelivered_inside: at(14),
            oldest_lost_ack_us: at(15),
            repeats_allowed: at(16),
            stops: at(17),
            kills: at(18),
            power_cuts: at(19),
            pauses: at(20),
        },
        violations: Vec::new(),
    }
}

/// Adds the numbers of one seed to those of many; of the oldest forgotten ack the oldest counts.
pub fn add_numbers(sum: &mut Vec<u64>, numbers: &[u64]) {
    const OLDEST: usize = 15;
    sum.resize(sum.len().max(numbers.len()), 0);
    for (at, (total, number)) in sum.iter_mut().zip(numbers).enumerate() {
        *total = if at == OLDEST { (*total).max(*number) } else { *total + number };
    }
}

/// Adds what another part of the same history broke, and what was delivered in it.
pub fn add_violations(verdict: &mut Verdict, other: Verdict) {
    verdict.lost += other.lost;
    verdict.phantom += other.phantom;
    verdict.double_lease += other.double_lease;
    verdict.duplicates_outside += other.duplicates_outside;
    verdict.redelivered_acked += other.redelivered_acked;
    verdict.order += other.order;
    verdict.tenant += other.tenant;
    verdict.offsets += other.offsets;
    let (counts, more) = (&mut verdict.counts, other.counts);
    // The second part holds everything that was sent; the node's ends are in both.
    (counts.sent_ok, counts.sent_fail, counts.sent_unknown) = (more.sent_ok, more.sent_fail, more.sent_unknown);
    counts.delivered += more.delivered;
    counts.positions += more.positions;
    counts.acked += more.acked;
    counts.redelivered_inside += more.redelivered_inside;
    counts.oldest_lost_ack_us = counts.oldest_lost_ack_us.max(more.oldest_lost_ack_us);
    counts.repeats_allowed += more.repeats_allowed;
    verdict.violations.extend(other.violations);
}
