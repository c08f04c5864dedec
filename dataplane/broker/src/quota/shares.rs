//! How a limit of the whole cluster is split over its nodes. Pure. Numbers are millionths of a token a second.

use std::collections::BTreeMap;

use veena_contract::NodeId;

/// A node that asks for nothing keeps this part of an equal share: its first requests need not wait until the leader has heard of them.
const IDLE_PART: u64 = 20;

/// Splits a limit by what each node was asked for: every node gets what it needs as long as the limit has it, in equal parts otherwise, and what
/// nobody needs goes to those that need something. The sum is never above the limit.
#[must_use]
pub fn split(limit: u64, demands: &[u64]) -> Vec<u64> {
    let nodes = u64::try_from(demands.len()).unwrap_or(u64::MAX);
    if nodes == 0 {
        return Vec::new();
    }
    let floor = limit / nodes / IDLE_PART;
    let mut left = limit - floor * nodes;
    let mut shares = vec![floor; demands.len()];
    // The smallest first: what they do not need is for the larger ones.
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_unstable_by_key(|node| demands[*node]);
    for (place, node) in order.iter().copied().enumerate() {
        let waiting = nodes - u64::try_from(place).unwrap_or_default();
        let more = demands[node].saturating_sub(floor).min(left / waiting);
        shares[node] += more;
        left -= more;
    }
    let total: u128 = demands.iter().map(|demand| u128::from(*demand)).sum();
    let spare = left;
    for (share, demand) in shares.iter_mut().zip(demands) {
        let part = match total {
            0 => u128::from(spare / nodes),
            total => u128::from(spare) * u128::from(*demand) / total,
        };
        *share += u64::try_from(part).unwrap_or_default();
    }
    shares
}

/// An equal share: what a node has that has not heard from the leader.
#[must_use]
pub const fn equal(limit: u64, nodes: u64) -> u64 {
    match limit.checked_div(nodes) {
        Some(share) => share,
        None => limit,
    }
}

/// What the leader has given of one limit. It gives nobody more than what the others have left, as far as they may still be using it: while
/// shares change, their sum stays within the limit.
#[derive(Debug, Default)]
pub struct Ledger {
    nodes: BTreeMap<NodeId, Given>,
}

#[derive(Clone, Copy, Debug)]
struct Given {
    demand: u64,
    share: u64,
    until_us: u64,
}

impl Ledger {
    /// Does any node need something of it?
    #[must_use]
    pub fn is_active(&self, now_us: u64) -> bool {
        self.nodes.values().any(|given| given.demand > 0 && given.until_us > now_us)
    }

    /// A node has told what it was asked for in the last second; its share from now on, for `valid_us`. `members` are all nodes, it among them.
    pub fn report(&mut self, limit: u64, members: &[NodeId], from: &NodeId, demand: u64, now_us: u64, valid_us: u64) -> u64 {
        self.nodes.retain(|node, _| members.contains(node));
        let nodes = u64::try_from(members.len().max(1)).unwrap_or(u64::MAX);
        let standing = |node: &NodeId| self.nodes.get(node).copied().filter(|given| given.until_us > now_us);
        let demands: Vec<u64> =
            members.iter().map(|node| if node == from { demand } else { standing(node).map_or(0, |given| given.demand) }).collect();
        let wanted = split(limit, &demands);
        let mut share = members.iter().position(|node| node == from).map_or(0, |at| wanted[at]);
        // One that is silent has fallen back to an equal share.
        let others = members.iter().filter(|node| *node != from);
        let given: u64 = others.map(|node| standing(node).map_or(equal(limit, nodes), |given| given.share)).fold(0, u64::saturating_add);
        share = share.min(limit.saturating_sub(given));
        self.nodes.insert(from.clone(), Given { demand, share, until_us: now_us.saturating_add(valid_us) });
        share
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    fn node(number: usize) -> NodeId {
        NodeId(Arc::from(format!("node-{number}").as_str()))
    }

    proptest! {
        #[test]
        fn shares_are_never_more_than_the_limit(limit in 0..1_000_000_000_u64, demands in proptest::collection::vec(prop_oneof![Just(0), 0..2_000_000_000_u64], 1..12)) {
            let shares = split(limit, &demands);
            prop_assert!(shares.iter().sum::<u64>() <= limit, "{shares:?}");
            // Nobody who needs less than an equal share, less what is kept for the idle, is refused it.
            let nodes = demands.len() as u64;
            let equal_part = limit / nodes - limit / nodes / IDLE_PART;
            for (share, demand) in shares.iter().zip(&demands) {
                prop_assert!(*share + nodes >= (*demand).min(equal_part), "{share} of {demand}: {shares:?}");
            }
        }

        #[test]
        fn a_node_with_all_the_demand_gets_nearly_all(limit in 1_000..1_000_000_000_u64, nodes in 1..12_usize, at in 0..12_usize, demand in 1..2_000_000_000_u64) {
            let at = at % nodes;
            let demands: Vec<u64> = (0..nodes).map(|node| if node == at { demand } else { 0 }).collect();
            let share = split(limit, &demands)[at];
            prop_assert!(share >= limit / 100 * 95 - nodes as u64, "{share} of {limit}");
        }

        /// Whatever nodes say and however long they are silent: what all of them may use at any moment, each by what it heard last or, some time
        /// after it heard nothing more, an equal share, is within the limit.
        #[test]
        fn shares_stay_within_the_limit_while_they_move(limit in 1..1_000_000_u64, nodes in 1..6_usize, steps in proptest::collection::vec((0..6_usize, 0..2_000_000_u64, 0..700_u64), 1..100)) {
            let members: Vec<NodeId> = (0..nodes).map(node).collect();
            let mut ledger = Ledger::default();
            let equal = equal(limit, nodes as u64);
            let mut shares = vec![(equal, 0); nodes];
            let mut now = 0;
            for (who, demand, pause) in steps {
                let who = who % nodes;
                for now in now..=now + pause {
                    let used = shares.iter().map(|&(share, until)| match now {
                        _ if now < until => share,
                        _ if now < until + 2_000 => equal.min(share),
                        _ => equal,
                    });
                    prop_assert!(used.sum::<u64>() <= limit, "{shares:?} at {now}");
                }
                now += pause;
                shares[who] = (ledger.report(limit, &members, &members[who], demand, now, 2_000), now + 2_000);
            }
        }
    }

    #[test]
    fn demand_that_moves_takes_the_share_with_it_within_two_reports() {
        let members = [node(0), node(1)];
        let mut ledger = Ledger::default();
        let mut ask = |who: usize, demand, now| ledger.report(1_000, &members, &members[who], demand, now, 2_000);
        ask(0, 5_000, 0);
        ask(1, 0, 1);
        assert!(ask(0, 5_000, 1_000) >= 950);
        ask(1, 5_000, 1_001);
        ask(0, 0, 2_000);
        assert!(ask(1, 5_000, 2_001) >= 950);
    }
}
