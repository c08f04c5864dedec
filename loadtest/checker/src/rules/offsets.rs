//! R8: offsets are dense and never used twice; watermark and frontier never go back.

use std::collections::BTreeMap;

use super::Rules;
use crate::event::{Down, TopicKey};
use crate::index::{Index, Observation};
use crate::verdict::{Rule, Verdict};

pub(super) fn check(index: &Index, rules: &Rules, verdict: &mut Verdict) {
    check_reuse(index, verdict);
    if rules.is_drained {
        check_density(index, verdict);
    }
    check_monotone(index, verdict);
}

fn check_reuse(index: &Index, verdict: &mut Verdict) {
    for (place, leases) in &index.leases {
        let first = &leases[0];
        if let Some(other) = leases.iter().find(|lease| lease.label != first.label || (lease.id.is_some() && lease.id != first.id)) {
            verdict.add(Rule::Offsets, 1, || {
                format!("{place} was {:?} ({:?}) and then {:?} ({:?})", first.label, first.id, other.label, other.id)
            });
        }
    }
}

fn check_density(index: &Index, verdict: &mut Verdict) {
    let mut expected: BTreeMap<(&TopicKey, u32), u64> = BTreeMap::new();
    for place in index.leases.keys() {
        let next = expected.entry((&place.topic, place.partition)).or_insert(0);
        if place.offset > *next {
            let (from, to) = (*next, place.offset);
            verdict.add(Rule::Offsets, to - from, || format!("{}/{}: offsets {from}..{to} never came", place.topic, place.partition));
        }
        *next = place.offset + 1;
    }
    for ((topic, partition), observations) in &index.observations {
        let Some(last) = observations.last() else { continue };
        let reached = expected.get(&(topic, *partition)).copied().unwrap_or(0);
        let watermark = last.numbers.high_watermark;
        if reached < watermark {
            verdict.add(Rule::Offsets, watermark - reached, || {
                format!("{topic}/{partition}: visible up to {watermark}, but offsets {reached}..{watermark} never came")
            });
        }
    }
}

fn check_monotone(index: &Index, verdict: &mut Verdict) {
    for ((topic, partition), observations) in &index.observations {
        for (at, later) in observations.iter().enumerate() {
            let numbers = &later.numbers;
            let frontier = numbers.frontier.unwrap_or(0);
            if numbers.high_watermark > numbers.log_end || frontier > numbers.high_watermark {
                verdict.add(Rule::Offsets, 1, || format!("{topic}/{partition}: log end, watermark, frontier in wrong order: {numbers:?}"));
            }
            // The one before is enough, as long as it certainly came before.
            let Some(earlier) = observations[..at].iter().rev().find(|o| o.until <= later.at) else { continue };
            if later.numbers.high_watermark < earlier.numbers.high_watermark {
                verdict.add(Rule::Offsets, 1, || {
                    let (from, to) = (earlier.numbers.high_watermark, later.numbers.high_watermark);
                    format!("{topic}/{partition}: the watermark went from {from} back to {to} at {} us", later.until)
                });
            }
            check_frontier(index, (topic, *partition), earlier, later, verdict);
        }
    }
}

fn check_frontier(index: &Index, partition: (&TopicKey, u32), earlier: &Observation, later: &Observation, verdict: &mut Verdict) {
    let (Some(from), Some(to)) = (earlier.numbers.frontier, later.numbers.frontier) else { return };
    // Acks younger than the last write of settle state are forgotten by a kill or a power cut; the frontier goes back with them.
    let may_forget =
        index.ends_of(partition.0, partition.1).any(|end| end.how != Down::Stopped && end.until >= earlier.at && end.at <= later.until);
    if to < from && !may_forget {
        let (topic, partition) = partition;
        verdict.add(Rule::Offsets, 1, || format!("{topic}/{partition}: the frontier went from {from} back to {to} at {} us", later.until));
    }
}
