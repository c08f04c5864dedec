//! Who owns a partition that is new. Pure: the same nodes and the same topic give the same owners.

use crate::ids::{NodeId, PartitionIndex, TopicId};
use crate::records::{Ownership, partner_of};

/// Owners for `count` partitions that are added to a topic behind those that it has, spread over `nodes`: each goes to a node that has the
/// fewest of this topic; among equals they go round, from behind the last one on. Where the first one goes is drawn from the topic's id, so
/// that topics of one partition do not all land on one node. Without nodes nobody owns anything.
///
/// A child's partition does not go where the `parent`'s is that it goes with, as far as that leaves the nodes equal: whoever loses a node
/// loses one of the two then.
#[must_use]
pub fn owners_of_added(nodes: &[NodeId], topic: TopicId, owned: &[Ownership], parent: &[Ownership], count: u32) -> Vec<NodeId> {
    let mut nodes: Vec<&NodeId> = nodes.iter().collect();
    nodes.sort_unstable();
    nodes.dedup();
    if nodes.is_empty() {
        return Vec::new();
    }
    let mut counts: Vec<u32> = vec![0; nodes.len()];
    for owner in owned {
        if let Ok(at) = nodes.binary_search(&&owner.node) {
            counts[at] += 1;
        }
    }
    let mut next = match owned.last() {
        // behind the last owner, also if that one is no member any more
        Some(last) => nodes.partition_point(|node| **node <= last.node) % nodes.len(),
        None => usize::try_from(topic.0 % nodes.len() as u64).unwrap_or_default(),
    };
    let mut owners = Vec::new();
    for index in (0..count).map(|added| u32::try_from(owned.len()).unwrap_or(u32::MAX).saturating_add(added)) {
        let fewest = counts.iter().min().copied().unwrap_or_default();
        let partner = partner_of(parent, PartitionIndex(index)).map(|owner| &owner.node);
        let round = || (0..nodes.len()).map(|step| (next + step) % nodes.len()).filter(|at| counts[*at] == fewest);
        let at = round().find(|at| Some(nodes[*at]) != partner).or_else(|| round().next()).unwrap_or(next);
        counts[at] += 1;
        owners.push(nodes[at].clone());
        next = (at + 1) % nodes.len();
    }
    owners
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::ids::OwnershipEpoch;

    fn nodes(names: &str) -> Vec<NodeId> {
        names.chars().map(|name| NodeId(Arc::from(name.to_string()))).collect()
    }

    fn owned(names: &str) -> Vec<Ownership> {
        nodes(names).into_iter().map(|node| Ownership::new(node, OwnershipEpoch(1))).collect()
    }

    fn added(of: &str, topic: u64, before: &str, count: u32) -> String {
        owners_of_added(&nodes(of), TopicId(topic), &owned(before), &[], count).iter().map(NodeId::to_string).collect()
    }

    #[test]
    fn partitions_go_round_from_a_place_that_the_topic_gives() {
        assert_eq!(added("abc", 0, "", 4), "abca");
        assert_eq!(added("abc", 1, "", 3), "bca");
        assert_eq!(added("cab", 5, "", 1), "c", "in whatever order they are named");
        assert_eq!(added("", 1, "", 3), "", "a node alone");
    }

    #[test]
    fn growth_goes_on_behind_the_last_owner_and_evens_out() {
        assert_eq!(added("abc", 7, "bc", 2), "ab");
        assert_eq!(added("abcd", 7, "bca", 3), "dab", "a node that came later is served first");
        assert_eq!(added("acd", 7, "ab", 2), "cd", "the last owner is no member any more");
        assert_eq!(added("ab", 7, "bz", 3), "aba", "z has left");
    }

    #[test]
    fn a_partition_of_a_child_is_not_where_its_parents_is_if_that_can_be() {
        let child = |of: &str, topic, parent: &str, count| -> String {
            owners_of_added(&nodes(of), TopicId(topic), &[], &owned(parent), count).iter().map(NodeId::to_string).collect()
        };
        assert_eq!(child("abc", 0, "abca", 4), "bcab");
        assert_eq!(child("abc", 1, "bcab", 4), "cabc");
        assert_eq!(child("ab", 0, "ab", 4), "baba", "each with the parent's partition that it goes with");
        assert_eq!(child("a", 0, "a", 2), "aa", "there is no other node");
        assert_eq!(child("abc", 0, "aaa", 3), "bca", "the nodes stay equal");
        assert_eq!(child("abc", 0, "zzz", 2), "ab", "the parent's owner is no member any more");
    }

    #[test]
    fn no_node_has_two_more_than_another() {
        let parents = [owned(""), owned("abcdefg"), owned("a")];
        for ((of, topic, count, more), parent) in cases().flat_map(|case| parents.iter().map(move |parent| (case, parent))) {
            let members = &nodes("abcdefg")[..of];
            let first = owners_of_added(members, TopicId(topic), &[], parent, count);
            let before: Vec<_> = first.iter().map(|node| Ownership::new(node.clone(), OwnershipEpoch(1))).collect();
            let then = owners_of_added(members, TopicId(topic), &before, parent, more);
            assert_eq!((first.len(), then.len()), (count as usize, more as usize));
            let mut counts: BTreeMap<&NodeId, u32> = members.iter().map(|node| (node, 0)).collect();
            for node in first.iter().chain(&then) {
                *counts.get_mut(node).expect("a member") += 1;
            }
            let (most, fewest) = (counts.values().max().expect("a node"), counts.values().min().expect("a node"));
            assert!(most - fewest <= 1, "{counts:?}");
        }
    }

    fn cases() -> impl Iterator<Item = (usize, u64, u32, u32)> {
        (1..=7)
            .flat_map(|of| (0..7).flat_map(move |topic| (0..12).flat_map(move |count| (0..12).map(move |more| (of, topic, count, more)))))
    }
}
