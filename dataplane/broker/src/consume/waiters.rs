//! Parked consumers of one topic: first come, first served, one queue for consumers of any partition and one for each partition asked
//! for by name, so that a consumer of an empty partition never blocks the others. Pure: waking is returned, not done.
//!
//! A wake is a baton. Whoever holds one tries to reserve; it passes the baton on when it leaves, if there is still something to take.
//! A waiter that was woken in vain keeps its place.

use std::collections::BTreeMap;

use veena_contract::PartitionIndex;

/// A parked consumer's place in line. Rises with arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// What a parked consumer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wanted {
    /// A message of any partition.
    Any,
    /// A message of this partition.
    Only(PartitionIndex),
}

/// The lines of parked consumers. `W` is what wakes one.
#[derive(Debug)]
pub struct Waiters<W> {
    next: u64,
    /// In order of arrival within each line; the flag says whether a baton is out.
    lines: BTreeMap<Wanted, BTreeMap<Ticket, (W, bool)>>,
    parked: usize,
}

impl<W> Default for Waiters<W> {
    fn default() -> Self {
        Self { next: 0, lines: BTreeMap::new(), parked: 0 }
    }
}

impl<W: Clone> Waiters<W> {
    /// How many consumers are parked.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.parked
    }

    /// Parks a consumer at the end of its line.
    pub fn park(&mut self, wanted: Wanted, waker: W) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        self.lines.entry(wanted).or_default().insert(ticket, (waker, false));
        self.parked += 1;
        ticket
    }

    /// A consumer leaves its line, served or not. Says whether it held a baton, which its caller must then pass on.
    #[must_use]
    pub fn leave(&mut self, wanted: Wanted, ticket: Ticket) -> bool {
        let Some(line) = self.lines.get_mut(&wanted) else {
            return false;
        };
        let held = line.remove(&ticket);
        if line.is_empty() {
            self.lines.remove(&wanted);
        }
        self.parked -= usize::from(held.is_some());
        held.is_some_and(|(_, has_baton)| has_baton)
    }

    /// A woken consumer found nothing: it keeps its place and can be woken again.
    pub fn return_baton(&mut self, wanted: Wanted, ticket: Ticket) {
        if let Some((_, has_baton)) = self.lines.get_mut(&wanted).and_then(|line| line.get_mut(&ticket)) {
            *has_baton = false;
        }
    }

    /// Must a newcomer that wants this partition queue up behind others?
    #[must_use]
    pub fn is_claimed(&self, partition: PartitionIndex) -> bool {
        self.lines.contains_key(&Wanted::Any) || self.lines.contains_key(&Wanted::Only(partition))
    }

    /// Hands out at most `count` batons for messages of one partition: whoever arrived first of those that can use them.
    #[must_use]
    pub fn wake(&mut self, partition: PartitionIndex, count: usize) -> Vec<W> {
        let mut woken = Vec::new();
        while woken.len() < count {
            let first_of = |line: Option<&BTreeMap<Ticket, (W, bool)>>| {
                line.and_then(|line| line.iter().find(|(_, (_, has_baton))| !has_baton).map(|(&ticket, _)| ticket))
            };
            let any = first_of(self.lines.get(&Wanted::Any)).map(|ticket| (ticket, Wanted::Any));
            let only = Wanted::Only(partition);
            let pinned = first_of(self.lines.get(&only)).map(|ticket| (ticket, only));
            let Some((ticket, wanted)) = [any, pinned].into_iter().flatten().min() else {
                break;
            };
            if let Some((waker, has_baton)) = self.lines.get_mut(&wanted).and_then(|line| line.get_mut(&ticket)) {
                *has_baton = true;
                woken.push(waker.clone());
            }
        }
        woken
    }

    /// Every parked consumer, to be told that the topic is gone or the node stops.
    #[must_use]
    pub fn all(&self) -> Vec<W> {
        self.lines.values().flat_map(BTreeMap::values).map(|(waker, _)| waker.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P0: PartitionIndex = PartitionIndex(0);
    const P1: PartitionIndex = PartitionIndex(1);

    #[test]
    fn the_first_to_arrive_is_the_first_to_be_woken() {
        let mut waiters = Waiters::default();
        waiters.park(Wanted::Any, 'a');
        waiters.park(Wanted::Only(P0), 'b');
        waiters.park(Wanted::Any, 'c');
        assert_eq!(waiters.wake(P0, 2), vec!['a', 'b']);
        assert_eq!(waiters.wake(P0, 5), vec!['c'], "nobody is woken twice");
    }

    #[test]
    fn a_consumer_of_an_empty_partition_blocks_nobody() {
        let mut waiters = Waiters::default();
        waiters.park(Wanted::Only(P1), 'a');
        waiters.park(Wanted::Any, 'b');
        assert_eq!(waiters.wake(P0, 1), vec!['b']);
        assert!(waiters.is_claimed(P1));
    }

    #[test]
    fn a_leaver_says_whether_it_held_the_baton() {
        let mut waiters = Waiters::default();
        let a = waiters.park(Wanted::Any, 'a');
        let b = waiters.park(Wanted::Any, 'b');
        assert_eq!(waiters.wake(P0, 1), vec!['a']);
        assert!(!waiters.leave(Wanted::Any, b));
        assert!(waiters.leave(Wanted::Any, a));
        assert_eq!(waiters.parked(), 0);
        assert!(!waiters.is_claimed(P0));
    }

    #[test]
    fn a_consumer_woken_in_vain_keeps_its_place() {
        let mut waiters = Waiters::default();
        let a = waiters.park(Wanted::Any, 'a');
        waiters.park(Wanted::Any, 'b');
        assert_eq!(waiters.wake(P0, 1), vec!['a']);
        waiters.return_baton(Wanted::Any, a);
        assert_eq!(waiters.wake(P0, 1), vec!['a']);
    }
}
