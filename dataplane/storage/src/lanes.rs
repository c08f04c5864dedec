//! What waits, in lanes that take turns: one that has much waiting does not make the others wait behind all of it. Deficit round robin over the
//! lanes that have something; within a lane, and with one lane alone, first come, first served. Pure.

use std::collections::{BTreeMap, VecDeque};

/// Whose it is, as far as turns are concerned. Opaque here. The first is nobody's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane(pub u64);

/// How many bytes a lane may take each time its turn comes; what it did not use, while it has more, it may take next time.
pub const TURN_BYTES: usize = 64 * 1024;

/// What can wait in a lane.
pub(crate) trait Weigh {
    /// How much of a turn it takes.
    fn bytes(&self) -> usize;
}

struct Waiting<T> {
    items: VecDeque<T>,
    bytes: usize,
    /// What it may take yet.
    credit: usize,
    /// It is its turn, and the credit of it was given.
    is_on: bool,
}

/// What waits, lane by lane.
pub(crate) struct Lanes<T> {
    /// Taken before, and given back: they go first.
    back: VecDeque<T>,
    waiting: BTreeMap<Lane, Waiting<T>>,
    /// The lanes that have something, in order of their turns.
    turns: VecDeque<Lane>,
    count: usize,
    bytes: usize,
}

impl<T> Default for Lanes<T> {
    fn default() -> Self {
        Self { back: VecDeque::new(), waiting: BTreeMap::new(), turns: VecDeque::new(), count: 0, bytes: 0 }
    }
}

impl<T: Weigh> Lanes<T> {
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many there are.
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

    pub fn push(&mut self, lane: Lane, item: T) {
        let new = || Waiting { items: VecDeque::new(), bytes: 0, credit: 0, is_on: false };
        let waiting = self.waiting.entry(lane).or_insert_with(new);
        if waiting.items.is_empty() {
            self.turns.push_back(lane);
        }
        waiting.bytes += item.bytes();
        self.bytes += item.bytes();
        self.count += 1;
        waiting.items.push_back(item);
    }

    /// What was taken and came to nothing goes before everything else.
    pub fn put_back(&mut self, mut items: VecDeque<T>) {
        self.count += items.len();
        self.bytes += items.iter().map(Weigh::bytes).sum::<usize>();
        items.append(&mut self.back);
        self.back = items;
    }

    /// As many as fit, at least one if there is any.
    pub fn take(&mut self, bytes_max: usize) -> VecDeque<T> {
        if self.turns.is_empty() && self.bytes <= bytes_max {
            return self.all_back();
        }
        if self.turns.len() == 1 && self.back.is_empty() && self.bytes <= bytes_max {
            return self.all_of_one();
        }
        let (mut taken, mut bytes) = (VecDeque::new(), 0);
        while let Some(item) = self.pop(|_, item| taken.is_empty() || bytes + item.bytes() <= bytes_max) {
            bytes += item.bytes();
            taken.push_back(item);
        }
        taken
    }

    /// The next one whose lane may have it now; `None` when what is next may not go. `may` decides over the first of a lane.
    pub fn pop(&mut self, may: impl Fn(Lane, &T) -> bool) -> Option<T> {
        if let Some(item) = self.back.front() {
            return if may(Lane::default(), item) { self.back.pop_front().inspect(|item| self.leave(item)) } else { None };
        }
        loop {
            let lane = *self.turns.front()?;
            let waiting = self.waiting.get_mut(&lane)?;
            if !std::mem::replace(&mut waiting.is_on, true) {
                waiting.credit += TURN_BYTES;
            }
            let bytes = waiting.items.front()?.bytes();
            if bytes > waiting.credit {
                waiting.is_on = false;
                self.turns.rotate_left(1);
                continue;
            }
            // Who is kept waiting stays on: it goes on where it was held up.
            let item = waiting.items.pop_front_if(|item| may(lane, item))?;
            waiting.credit -= bytes;
            waiting.bytes -= bytes;
            if waiting.items.is_empty() {
                self.waiting.remove(&lane);
                self.turns.pop_front();
            }
            self.leave(&item);
            return Some(item);
        }
    }

    /// The lane whose turn it is gives it up to the next.
    pub fn pass(&mut self) {
        if let Some(waiting) = self.turns.front().and_then(|lane| self.waiting.get_mut(lane)) {
            waiting.is_on = false;
            // What it could not use now it does not save: it would take everything at once later.
            waiting.credit = 0;
            self.turns.rotate_left(1);
        }
    }

    /// Is there one that has something among these?
    pub fn has_any(&self, is_one: impl Fn(Lane) -> bool) -> bool {
        self.turns.iter().any(|lane| is_one(*lane))
    }

    fn leave(&mut self, item: &T) {
        self.count -= 1;
        self.bytes -= item.bytes();
    }

    fn all_back(&mut self) -> VecDeque<T> {
        (self.count, self.bytes) = (0, 0);
        std::mem::take(&mut self.back)
    }

    fn all_of_one(&mut self) -> VecDeque<T> {
        (self.count, self.bytes) = (0, 0);
        self.turns.clear();
        self.waiting.pop_first().map(|(_, waiting)| waiting.items).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GROUP: usize = 1024 * 1024;

    impl Weigh for usize {
        fn bytes(&self) -> usize {
            *self
        }
    }

    fn call(bytes: usize) -> usize {
        bytes
    }

    fn sizes(calls: &VecDeque<usize>) -> Vec<usize> {
        calls.iter().copied().collect()
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
            let mut take = |lanes: &mut Lanes<usize>, count: &mut usize, is_put_back: bool| {
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
