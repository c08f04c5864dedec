//! A bounded number of places, handed out in turns by lane: whoever has much waiting does not make the others wait behind all of it. What takes
//! a place costs its lane a turn at least, however few its bytes are: what is shared here is time. The last eighth of the places is for lanes
//! that hold less than as many, so that one whose work takes long does not hold all of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::lanes::{Lane, Lanes, TURN_BYTES, Weigh};

/// This part of the places is left to lanes that hold less than as many.
const LIGHT_LANES_PART: usize = 8;

/// The places. Cheap to clone; clones share them.
#[derive(Clone)]
pub struct Turns {
    shared: Arc<Shared>,
}

struct Shared {
    /// How many are left to lanes that hold few.
    kept: usize,
    state: Mutex<State>,
}

struct State {
    free: usize,
    held: BTreeMap<Lane, usize>,
    waiting: Lanes<Waiter>,
}

struct Waiter {
    lane: Lane,
    bytes: usize,
    turn: oneshot::Sender<Turn>,
}

impl Weigh for Waiter {
    fn bytes(&self) -> usize {
        self.bytes.max(TURN_BYTES)
    }
}

/// A place; free again when this is dropped.
pub struct Turn {
    of: Arc<Shared>,
    lane: Lane,
    /// Given back already.
    is_over: bool,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.is_over {
            self.of.state.lock().give_back(self.lane);
            Shared::hand_out(&self.of);
        }
    }
}

fn may_have(lane: Lane, free: usize, held: &BTreeMap<Lane, usize>, kept: usize) -> bool {
    let is_light = || held.get(&lane).is_none_or(|held| *held < kept);
    free > kept || (free > 0 && (lane == Lane::default() || is_light()))
}

impl State {
    fn take(&mut self, lane: Lane) {
        self.free -= 1;
        *self.held.entry(lane).or_default() += 1;
    }

    fn give_back(&mut self, lane: Lane) {
        self.free += 1;
        if let Some(held) = self.held.get_mut(&lane) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&lane);
            }
        }
    }

    /// Who gets the next place, if anybody may.
    fn next(&mut self, kept: usize) -> Option<Waiter> {
        let Self { free, held, waiting } = self;
        let may = |lane| may_have(lane, *free, held, kept);
        if !waiting.has_any(may) {
            return None;
        }
        loop {
            if let Some(waiter) = waiting.pop(|lane, _| may(lane)) {
                self.take(waiter.lane);
                return Some(waiter);
            }
            waiting.pass();
        }
    }
}

impl Shared {
    fn hand_out(this: &Arc<Self>) {
        loop {
            let Some(Waiter { lane, turn, .. }) = this.state.lock().next(this.kept) else { return };
            // Who has left takes none.
            if let Err(mut turn) = turn.send(Turn { of: Arc::clone(this), lane, is_over: false }) {
                turn.is_over = true;
                this.state.lock().give_back(lane);
            }
        }
    }
}

impl Turns {
    /// So many places.
    #[must_use]
    pub fn new(at_once: usize) -> Self {
        let state = State { free: at_once, held: BTreeMap::new(), waiting: Lanes::default() };
        Self { shared: Arc::new(Shared { kept: at_once / LIGHT_LANES_PART, state: Mutex::new(state) }) }
    }

    /// How many wait for a place.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.state.lock().waiting.len()
    }

    /// A place, when it is the lane's turn. Whoever drops this waits no longer.
    ///
    /// # Panics
    /// Never: places are handed out as long as anybody waits.
    pub async fn turn(&self, lane: Lane, bytes: usize) -> Turn {
        let waiting = {
            let mut state = self.shared.state.lock();
            if state.waiting.is_empty() && may_have(lane, state.free, &state.held, self.shared.kept) {
                state.take(lane);
                return Turn { of: Arc::clone(&self.shared), lane, is_over: false };
            }
            let (turn, waiting) = oneshot::channel();
            state.waiting.push(lane, Waiter { lane, bytes, turn });
            waiting
        };
        Shared::hand_out(&self.shared);
        waiting.await.expect("invariant: who waits is told")
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    type Waits = Pin<Box<dyn Future<Output = Turn> + Send>>;

    fn ask(turns: &Turns, lane: u64, bytes: usize) -> Waits {
        let turns = turns.clone();
        Box::pin(async move { turns.turn(Lane(lane), bytes).await })
    }

    fn poll(waits: &mut Waits) -> Option<Turn> {
        match waits.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    /// Asks, and polls once.
    fn begin(turns: &Turns, lane: u64, bytes: usize) -> Result<Turn, Waits> {
        let mut waits = ask(turns, lane, bytes);
        poll(&mut waits).ok_or(waits)
    }

    #[test]
    fn a_flood_in_one_lane_makes_another_wait_for_one_turn_and_not_for_all() {
        let turns = Turns::new(1);
        let mut under_way = begin(&turns, 1, 1).ok();
        let mut flood: Vec<_> = (0..10_000).map(|_| begin(&turns, 1, 100).err().expect("no place")).collect();
        let mut light = begin(&turns, 2, 100).err().expect("no place");
        for _ in 0..2 {
            drop(under_way.take());
            if poll(&mut light).is_some() {
                return;
            }
            under_way = flood.iter_mut().next().and_then(poll);
            drop(flood.swap_remove(0));
        }
        panic!("two of the flood went first");
    }

    #[test]
    fn what_one_lane_holds_for_long_leaves_places_for_another() {
        let turns = Turns::new(16);
        let held: Vec<_> = (0..20).map(|_| begin(&turns, 1, 1)).collect();
        assert_eq!(held.iter().filter(|turn| turn.is_ok()).count(), 14);
        let others: Vec<_> = (0..3).map(|_| begin(&turns, 2, 1)).collect();
        assert_eq!(others.iter().filter(|turn| turn.is_ok()).count(), 2, "and not all places for the other");
        let alone = Turns::new(16);
        let all: Vec<_> = (0..20).map(|_| begin(&alone, 0, 1)).collect();
        assert_eq!(all.iter().filter(|turn| turn.is_ok()).count(), 16, "where nobody takes turns there is nobody to leave them to");
    }

    #[test]
    fn who_leaves_takes_no_place_along() {
        let turns = Turns::new(1);
        let first = begin(&turns, 1, 1).ok().expect("free");
        let leaves = begin(&turns, 2, 1).err().expect("no place");
        let told = begin(&turns, 3, 1).err().expect("no place");
        let mut stays = begin(&turns, 4, 1).err().expect("no place");
        drop(leaves);
        drop(first);
        // It has a place and never learns of it.
        drop(told);
        assert!(poll(&mut stays).is_some());
    }

    #[test]
    fn all_that_wait_are_served_and_large_ones_cost_more_turns() {
        let turns = Turns::new(1);
        let mut under_way = begin(&turns, 9, 1).ok();
        let ask = |at: u64| (at % 2, begin(&turns, 1 + at % 2, if at.is_multiple_of(2) { 4 * TURN_BYTES } else { 1 }).err());
        let mut waiting: Vec<_> = (0..40).map(ask).collect();
        let mut order = Vec::new();
        while order.len() < 40 {
            drop(under_way.take());
            let served = |(lane, waits): &mut (u64, Option<Waits>)| Some((*lane, poll(waits.as_mut()?)?));
            let at = waiting.iter_mut().enumerate().find_map(|(at, one)| served(one).map(|served| (at, served)));
            let (at, (lane, turn)) = at.expect("somebody has the place");
            waiting.remove(at);
            order.push(lane);
            under_way = Some(turn);
        }
        let small = order[..20].iter().filter(|lane| **lane == 1).count();
        assert!((14..=18).contains(&small), "{order:?}");
    }
}
