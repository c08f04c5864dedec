//! Who owns a partition that is new. Pure: the same nodes and the same topic give the same owners.

use crate::ids::{NodeId, TopicId};
use crate::records::Ownership;

/// Owners for `count` partitions that are added to a topic behind those that it has, spread over `nodes`: each goes to a node that has the
/// fewest of this topic; among equals they go round, from behind the last one on. Where the first one goes is drawn from the topic's id, so
/// that topics of one partition do not all land on one node. Without nodes nobody owns anything.
#[must_use]
pub fn owners_of_added(nodes: &[NodeId], topic: TopicId, owned: &[Ownership], count: u32) -> Vec<NodeId> {
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
    for _ in 0..count {
        let fewest = counts.iter().min().copied().unwrap_or_default();
        while counts[next] > fewest {
            next = (next + 1) % nodes.len();
        }
        counts[next] += 1;
        owners.push(nodes[next].clone());
        next = (next + 1) % nodes.len();
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
        owners_of_added(&nodes(of), TopicId(topic), &owned(before), count).iter().map(NodeId::to_string).collect()
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
    fn no_node_has_two_more_than_another() {
        for (of, topic, count, more) in cases() {
            let members = &nodes("abcdefg")[..of];
            let first = owners_of_added(members, TopicId(topic), &[], count);
            let before: Vec<_> = first.iter().map(|node| Ownership::new(node.clone(), OwnershipEpoch(1))).collect();
            let then = owners_of_added(members, TopicId(topic), &before, more);
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
