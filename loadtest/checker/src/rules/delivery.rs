//! R1 to R3: everything answered is delivered as it was sent, and nothing else is; what was not settled is delivered again.

use std::collections::BTreeSet;

use super::Rules;
use crate::event::{How, Label, Outcome, TopicKey};
use crate::index::{Index, Lease, Place};
use crate::verdict::{Rule, Verdict};

pub(super) fn check(index: &Index, rules: &Rules, verdict: &mut Verdict) {
    let mut delivered: BTreeSet<(&TopicKey, Label)> = BTreeSet::new();
    for (place, leases) in &index.leases {
        for lease in leases {
            match phantom(index, rules, place, lease) {
                None => {
                    delivered.extend(lease.label.map(|label| (&place.topic, label)));
                }
                Some(what) => verdict.add(Rule::Phantom, 1, || what),
            }
        }
    }
    if !rules.is_drained {
        return;
    }
    check_refused_acks(index, verdict);
    for (label, message) in index.sent.iter().filter(|(_, message)| message.is_ok()) {
        let children = rules.children.iter().filter(|(parent, _)| *parent == message.topic).map(|(_, child)| child);
        for topic in std::iter::once(&message.topic).chain(children) {
            if !delivered.contains(&(topic, *label)) {
                let until = message.attempts.iter().map(|a| a.until).min().unwrap_or_default();
                verdict.add(Rule::Lost, 1, || {
                    format!("message {label} to {}, answered at {until} us, never came from {topic}", message.topic)
                });
            }
        }
    }
}

/// Everything was read until nothing was left, so everything was settled. Where every ack was refused with effect none, it settled all the same.
fn check_refused_acks(index: &Index, verdict: &mut Verdict) {
    for (place, leases) in &index.leases {
        let settles = leases.iter().flat_map(|lease| index.settles_of(&place.topic, lease));
        let mut acks = settles.filter(|settle| settle.how == How::Ack).peekable();
        if acks.peek().is_some() && acks.all(|ack| ack.outcome == Outcome::Fail) {
            verdict.add(Rule::Lost, 1, || format!("{place}: every ack was refused with effect none, and it never came again"));
        }
    }
}

/// Why this delivery is of something that was not sent; `None` if it was.
fn phantom(index: &Index, rules: &Rules, place: &Place, lease: &Lease) -> Option<String> {
    let Some(label) = lease.label else {
        return Some(format!("{place} carries no label, digest {}", lease.digest));
    };
    let Some(message) = index.sent.get(&label) else {
        return Some(format!("{place} is message {label}, which nobody sent"));
    };
    let from_parent = || rules.children.iter().any(|(parent, child)| *parent == message.topic && *child == place.topic);
    // Across tenants it is R7's business; there it is told once.
    if message.topic.tenant == place.topic.tenant && message.topic != place.topic && !from_parent() {
        return Some(format!("{place} is message {label}, which was sent to {}", message.topic));
    }
    if message.digest != lease.digest {
        return Some(format!("{place} is message {label} with other bytes: sent {}, delivered {}", message.digest, lease.digest));
    }
    if message.copies_max() == 0 {
        return Some(format!("{place} is message {label}, whose every produce was refused with effect none"));
    }
    None
}
