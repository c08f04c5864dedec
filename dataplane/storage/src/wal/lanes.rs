//! What is staged, in lanes that take turns: one that stages much does not make the others wait behind all of it. Deficit round robin over the
//! lanes that have something; within a lane, and with one lane alone, first come, first served. Pure.

use std::collections::{BTreeMap, VecDeque};

use super::append::Call;

/// Whose records they are, as far as turns are concerned. Opaque here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane(pub u64);

/// How many bytes a lane may take each time its turn comes; what it did not use, while it has more, it may take next time.
const TURN_BYTES: usize = 64 * 1024;

#[derive(Default)]
struct Waiting {
    calls: VecDeque<Call>,
    bytes: usize,
    /// What it may take yet.
    credit: usize,
}

/// The calls that wait for a group.
#[derive(Default)]
pub(super) struct Lanes {
    /// Taken before, and not written: they go first.
    back: VecDeque<Call>,
    waiting: BTreeMap<Lane, Waiting>,
    /// The lanes that have something, in order of their turns.
    turns: VecDeque<Lane>,
    count: usize,
    bytes: usize,
}

impl Lanes {
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many calls there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// The bytes of all of them.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes that a lane has here.
    pub fn bytes_of(&self, lane: Lane) -> usize {
        self.waiting.get(&lane).map_or(0, |waiting| waiting.bytes)
    }

    pub fn push(&mut self, lane: Lane, call: Call) {
        let waiting = self.waiting.entry(lane).or_default();
        if waiting.calls.is_empty() {
            self.turns.push_back(lane);
        }
        waiting.bytes += call.bytes;
        self.bytes += call.bytes;
        self.count += 1;
        waiting.calls.push_back(call);
    }

    /// Calls that were taken and not written: they go before everything else.
    pub fn put_back(&mut self, mut calls: VecDeque<Call>) {
        self.count += calls.len();
        self.bytes += calls.iter().map(|call| call.bytes).sum::<usize>();
        calls.append(&mut self.back);
        self.back = calls;
    }

    /// The calls of the next group: as many as fit, at least one if there is any.
    pub fn take(&mut self, bytes_max: usize) -> VecDeque<Call> {
        if self.turns.is_empty() && self.bytes <= bytes_max {
            return self.all_back();
        }
        if self.turns.len() == 1 && self.back.is_empty() && self.bytes <= bytes_max {
            return self.all_of_one();
        }
        let (mut taken, mut bytes) = (VecDeque::new(), 0);
        while let Some(call) = self.back.front() {
            if !taken.is_empty() && bytes + call.bytes > bytes_max {
                return taken;
            }
            let Some(call) = self.back.pop_front() else { break };
            self.leave(&call, &mut bytes);
            taken.push_back(call);
        }
        while let Some(lane) = self.turns.pop_front() {
            let Some(waiting) = self.waiting.get_mut(&lane) else { continue };
            waiting.credit += TURN_BYTES;
            let mut is_full = false;
            while let Some(call) = waiting.calls.front() {
                is_full = !taken.is_empty() && bytes + call.bytes > bytes_max;
                if is_full || call.bytes > waiting.credit {
                    break;
                }
                let Some(call) = waiting.calls.pop_front() else { break };
                waiting.credit -= call.bytes;
                waiting.bytes -= call.bytes;
                self.count -= 1;
                self.bytes -= call.bytes;
                bytes += call.bytes;
                taken.push_back(call);
            }
            if waiting.calls.is_empty() {
                self.waiting.remove(&lane);
            } else if is_full {
                // It goes on with the next group, where it was held up.
                waiting.credit -= TURN_BYTES.min(waiting.credit);
                self.turns.push_front(lane);
                break;
            } else {
                self.turns.push_back(lane);
            }
        }
        taken
    }

    fn leave(&mut self, call: &Call, bytes: &mut usize) {
        self.count -= 1;
        self.bytes -= call.bytes;
        *bytes += call.bytes;
    }

    fn all_back(&mut self) -> VecDeque<Call> {
        (self.count, self.bytes) = (0, 0);
        std::mem::take(&mut self.back)
    }

    fn all_of_one(&mut self) -> VecDeque<Call> {
        (self.count, self.bytes) = (0, 0);
        self.turns.clear();
        self.waiting.pop_first().map(|(_, waiting)| waiting.calls).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::sync::oneshot;

    use super::*;

    const GROUP: usize = 1024 * 1024;

    fn call(bytes: usize) -> Call {
        Call { entries: super::super::WalEntries::new(), bytes, done: oneshot::channel().0 }
    }

    fn sizes(calls: &VecDeque<Call>) -> Vec<usize> {
        calls.iter().map(|call| call.bytes).collect()
    }

    #[test]
    fn a_lane_that_stages_much_does_not_keep_another_out_of_the_next_group() {
        let mut lanes = Lanes::default();
        for _ in 0..1_000 {
            lanes.push(Lane(1), call(64 * 1024));
        }
        lanes.push(Lane(2), call(777));
        let group = lanes.take(GROUP);
        assert!(sizes(&group).contains(&777), "{} calls", group.len());
        assert!(group.len() > 10, "the group is full all the same");
        // Two that want more than there is get the same.
        for _ in 0..1_000 {
            lanes.push(Lane(2), call(1_000));
        }
        let (mut of_first, mut of_second) = (0, 0);
        for _ in 0..1 {
            for bytes in sizes(&lanes.take(GROUP)) {
                if bytes == 1_000 { of_second += bytes } else { of_first += bytes }
            }
        }
        assert!(of_second * 10 >= of_first * 8 && of_first * 10 >= of_second * 8, "{of_first} and {of_second}");
    }

    #[test]
    fn one_lane_alone_is_first_come_first_served_whatever_the_sizes() {
        let mut lanes = Lanes::default();
        let all = [9, GROUP, 1, 70_000, 2 * GROUP, 5];
        all.iter().for_each(|bytes| lanes.push(Lane::default(), call(*bytes)));
        let mut taken = Vec::new();
        while !lanes.is_empty() {
            taken.extend(sizes(&lanes.take(GROUP)));
        }
        assert_eq!(taken, all);
    }

    #[test]
    fn what_was_not_written_goes_first() {
        let mut lanes = Lanes::default();
        lanes.push(Lane(1), call(1));
        lanes.push(Lane(2), call(2));
        let mut taken = lanes.take(GROUP);
        lanes.push(Lane(1), call(3));
        taken.pop_front();
        lanes.put_back(taken);
        assert_eq!((lanes.len(), lanes.bytes()), (2, 5));
        assert_eq!(sizes(&lanes.take(GROUP)), [2, 3]);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_overtaken_in_its_lane_and_groups_keep_their_bound(
            steps in proptest::collection::vec((0..5_u64, 1..300_000_usize, 0..3_u8), 1..300)
        ) {
            let mut lanes = Lanes::default();
            let mut staged: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
            let mut taken: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
            let mut count = 0;
            // The lane of a call is in its size.
            let marked = |lane: u64, bytes: usize| bytes * 8 + usize::try_from(lane).expect("small");
            let mut take = |lanes: &mut Lanes, count: &mut usize, is_put_back: bool| {
                let mut group = lanes.take(GROUP);
                assert_eq!(group.is_empty(), *count == 0);
                assert!(group.len() == 1 || sizes(&group).iter().sum::<usize>() <= GROUP);
                if is_put_back {
                    let rest = group.split_off(group.len() / 2);
                    lanes.put_back(rest);
                }
                for bytes in sizes(&group) {
                    taken.entry(bytes as u64 % 8).or_default().push(bytes);
                    *count -= 1;
                }
            };
            for (lane, bytes, what) in steps {
                match what {
                    0 => take(&mut lanes, &mut count, bytes % 2 == 0),
                    _ => {
                        lanes.push(Lane(lane), call(marked(lane, bytes)));
                        staged.entry(lane).or_default().push(marked(lane, bytes));
                        count += 1;
                    }
                }
                prop_assert_eq!(lanes.len(), count);
            }
            while count > 0 {
                take(&mut lanes, &mut count, false);
            }
            prop_assert_eq!(lanes.bytes(), 0);
            prop_assert_eq!(staged, taken);
        }
    }
}
