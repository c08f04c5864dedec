//! I3: nothing is appended twice. One message id has one place in a topic; one sent message has no more places than attempts,
//! and one if it was sent under an idempotency key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::event::{Label, TopicKey};
use crate::index::{Index, Place};
use crate::verdict::{Rule, Verdict};

#[derive(Default)]
struct Copies<'a> {
    places: BTreeSet<&'a Place>,
    by_id: BTreeMap<&'a Arc<str>, BTreeSet<&'a Place>>,
}

pub(super) fn check(index: &Index, verdict: &mut Verdict) {
    let mut copies: BTreeMap<(&TopicKey, Label), Copies<'_>> = BTreeMap::new();
    let mut owners: BTreeMap<(&TopicKey, &Arc<str>), Label> = BTreeMap::new();
    for (place, leases) in &index.leases {
        for lease in leases {
            let Some(label) = lease.label else { continue };
            let entry = copies.entry((&place.topic, label)).or_default();
            entry.places.insert(place);
            let Some(id) = &lease.id else { continue };
            entry.by_id.entry(id).or_default().insert(place);
            let owner = *owners.entry((&place.topic, id)).or_insert(label);
            if owner != label {
                verdict.add(Rule::Offsets, 1, || format!("{place}: id {id} is message {label} here and message {owner} elsewhere"));
            }
        }
    }
    for ((topic, label), copies) in &copies {
        let allowed = index.sent.get(label).map_or(1, |message| message.copies_max()).max(1);
        let beyond_attempts = copies.places.len().saturating_sub(allowed);
        let beyond_ids: usize = copies.by_id.values().map(|places| places.len() - 1).sum();
        let beyond = beyond_attempts.max(beyond_ids);
        let repeats = copies.places.len() - 1 - beyond.min(copies.places.len() - 1);
        verdict.counts.repeats_allowed += as_u64(repeats);
        if beyond > 0 {
            let places: Vec<String> = copies.places.iter().map(ToString::to_string).collect();
            let ids: Vec<&str> = copies.by_id.keys().map(|id| &***id).collect();
            verdict.add(Rule::Duplicate, as_u64(beyond), || {
                format!("{topic}: message {label} (ids {}) is at {}; {allowed} allowed", ids.join(" "), places.join(" "))
            });
        }
    }
}

fn as_u64(length: usize) -> u64 {
    u64::try_from(length).expect("invariant: a length fits 64 bits")
}
