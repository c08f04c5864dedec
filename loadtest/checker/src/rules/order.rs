//! R6: on topics that declare it, messages of one key lie in their partition in the order in which one client sent them
//! to one node. What two nodes accept may overtake each other on the way to the owner.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Rules;
use crate::event::{Label, TopicKey};
use crate::index::{Index, Place, SentMessage};
use crate::verdict::{Rule, Verdict};

/// Topic, key, client and the node it asked.
type Sender<'a> = (&'a TopicKey, &'a Arc<str>, u32, &'a Arc<str>);
/// What one client sent to one node under one key, with where it lies.
type Line<'a> = Vec<(Label, &'a SentMessage, &'a Place)>;

pub(super) fn check(index: &Index, rules: &Rules, verdict: &mut Verdict) {
    if rules.ordered.is_empty() {
        return;
    }
    let mut first_place: BTreeMap<Label, &Place> = BTreeMap::new();
    for (place, leases) in index.leases.iter().filter(|(place, _)| rules.ordered.contains(&place.topic)) {
        for label in leases.iter().filter_map(|lease| lease.label) {
            first_place.entry(label).or_insert(place);
        }
    }
    // Only messages sent once and answered have a certain place in the order.
    let mut lines: BTreeMap<Sender<'_>, Line<'_>> = BTreeMap::new();
    for (label, message) in &index.sent {
        let (Some(key), [attempt]) = (&message.key, message.attempts.as_slice()) else { continue };
        if let Some(place) = first_place.get(label).filter(|_| attempt.outcome == crate::Outcome::Ok) {
            lines.entry((&message.topic, key, message.client, &message.node)).or_default().push((*label, message, place));
        }
    }
    for ((topic, key, client, _), mut line) in lines {
        line.sort_by_key(|(_, message, _)| message.attempts[0].at);
        for pair in line.windows(2) {
            let [(first, sent_first, place_first), (second, sent_second, place_second)] = pair else { continue };
            let is_certain = sent_first.attempts[0].until <= sent_second.attempts[0].at;
            let is_ordered = place_first.partition == place_second.partition && place_first.offset < place_second.offset;
            if is_certain && !is_ordered {
                verdict.add(Rule::Order, 1, || {
                    format!("{topic}, key {key}, client {client}: {first} was sent before {second}, but lies at {place_first} and {place_second}")
                });
            }
        }
    }
}
