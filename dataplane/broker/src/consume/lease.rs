//! The lease table of one partition: who holds what until when, and what is settled. Pure: time and nonces are passed in, nothing here
//! reads or writes.
//!
//! It must never hand out an offset that is settled or leased, and never let a handle settle a lease that is not its own.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use veena_contract::Offset;

/// Milliseconds on the process's monotone clock.
pub type MonoMs = u64;

/// What bounds a partition's deliveries.
#[derive(Clone, Copy, Debug)]
pub struct LeaseCaps {
    /// How many messages may be leased at once.
    pub in_flight_max: u64,
    /// How many messages may be settled ahead of the frontier before only the frontier's own message is handed out.
    pub acked_ahead_max: u64,
}

/// A lease just granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The message.
    pub offset: Offset,
    /// The lease's guard.
    pub nonce: u64,
    /// How often the message was handed out and written before.
    pub deliveries_before: u32,
}

/// The handle does not match a living lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such lease")]
pub struct NoSuchLease;

/// A lease on its way to another owner of its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedLease {
    /// The message.
    pub offset: Offset,
    /// The lease's guard, which stays.
    pub nonce: u64,
    /// How long it has left.
    pub left_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    nonce: u64,
    deadline: MonoMs,
}

/// What survives the process: everything but the leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettleState {
    /// The first offset that is not settled.
    pub frontier: u64,
    /// How far the log was published when this was written; 0 when that is not known.
    pub high_watermark: u64,
    /// Settled offsets beyond the frontier: disjoint, rising, half-open ranges.
    pub ahead: Vec<(u64, u64)>,
    /// Delivery counts of unsettled messages.
    pub deliveries: Vec<(u64, u32)>,
}

/// Leases and settled offsets of one partition.
#[derive(Debug, Default)]
pub struct LeaseTable {
    frontier: u64,
    /// Settled ranges beyond the frontier: start to end (exclusive), disjoint and not adjacent.
    ahead: BTreeMap<u64, u64>,
    ahead_count: u64,
    /// The lowest offset not handed out since this table was made.
    fresh: u64,
    leases: BTreeMap<u64, Lease>,
    /// Deadlines, with entries of ended or extended leases among them: matched against `leases` when popped.
    deadlines: BinaryHeap<Reverse<(MonoMs, u64, u64)>>,
    /// Handed out before, free again.
    returned: BTreeSet<u64>,
    deliveries: BTreeMap<u64, u32>,
    is_dirty: bool,
    is_frozen: bool,
}

impl LeaseTable {
    /// A table that continues from what was kept.
    #[must_use]
    pub fn restore(state: &SettleState) -> Self {
        let mut table = Self { frontier: state.frontier, fresh: state.frontier, ..Self::default() };
        for &(start, end) in &state.ahead {
            let (first, joined) = match table.ahead.last_key_value() {
                Some((&first, &last)) if last >= start => (first, last),
                _ => (start.max(state.frontier), start.max(state.frontier)),
            };
            if joined < end {
                table.ahead.insert(first, end);
                table.ahead_count = table.ahead_count.saturating_add(end - joined);
            }
        }
        table.absorb();
        table.deliveries = state.deliveries.iter().copied().filter(|&(offset, _)| offset >= table.frontier).collect();
        table.is_dirty = false;
        table
    }

    /// What survives the process. `high_watermark` is the log's.
    #[must_use]
    pub fn state(&self, high_watermark: Offset) -> SettleState {
        SettleState {
            frontier: self.frontier,
            high_watermark: high_watermark.0,
            ahead: self.ahead.iter().map(|(&start, &end)| (start, end)).collect(),
            deliveries: self.deliveries.iter().map(|(&offset, &count)| (offset, count)).collect(),
        }
    }

    /// Has [`state`](Self::state) changed since this was last asked?
    pub fn take_dirty(&mut self) -> bool {
        std::mem::take(&mut self.is_dirty)
    }

    /// From here on nothing changes: another node is to go on from what this table says.
    pub fn freeze(&mut self) {
        self.is_frozen = true;
    }

    /// No other node goes on from here.
    pub fn thaw(&mut self) {
        self.is_frozen = false;
    }

    /// Does nothing change any more? What is asked of the table is to be asked of another then, or later.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// The living leases, for another owner.
    #[must_use]
    pub fn leases_left(&self, now: MonoMs) -> Vec<MovedLease> {
        let living = self.leases.iter().filter(|(_, lease)| lease.deadline > now);
        living.map(|(&offset, lease)| MovedLease { offset: Offset(offset), nonce: lease.nonce, left_ms: lease.deadline - now }).collect()
    }

    /// Leases of a former owner go on here, in a table that has granted none; each with its deadline.
    pub fn take_over(&mut self, leases: &[(MovedLease, MonoMs)]) {
        for (lease, deadline) in leases.iter().filter(|(lease, _)| !self.is_settled(lease.offset.0)).copied().collect::<Vec<_>>() {
            self.leases.insert(lease.offset.0, Lease { nonce: lease.nonce, deadline });
            self.deadlines.push(Reverse((deadline, lease.offset.0, lease.nonce)));
        }
        // What lies before the last of them was handed out once, or is settled.
        let fresh = self.leases.last_key_value().map_or(self.fresh, |(&offset, _)| offset + 1);
        let mut offset = self.fresh;
        while offset < fresh {
            match self.ahead.range(..=offset).next_back() {
                Some((_, &end)) if offset < end => offset = end,
                _ => {
                    if !self.leases.contains_key(&offset) {
                        self.returned.insert(offset);
                    }
                    offset += 1;
                }
            }
        }
        self.fresh = self.fresh.max(fresh);
    }

    /// The first offset that is not settled.
    #[must_use]
    pub fn frontier(&self) -> Offset {
        Offset(self.frontier)
    }

    /// How many messages are leased.
    #[must_use]
    pub fn leased(&self) -> u64 {
        self.leases.len() as u64
    }

    /// How many messages are settled beyond the frontier.
    #[must_use]
    pub fn acked_ahead(&self) -> u64 {
        self.ahead_count
    }

    /// Leases the lowest unresolved offset below `high_watermark`, if the caps allow one.
    pub fn reserve(&mut self, now: MonoMs, high_watermark: Offset, caps: LeaseCaps, lease_ms: u64, nonce: u64) -> Option<Granted> {
        self.expire(now);
        let offset = self.candidate(high_watermark, caps)?;
        if !self.returned.remove(&offset) {
            self.fresh = offset + 1;
        }
        let deadline = now.saturating_add(lease_ms);
        self.leases.insert(offset, Lease { nonce, deadline });
        self.deadlines.push(Reverse((deadline, offset, nonce)));
        let deliveries_before = self.deliveries.get(&offset).copied().unwrap_or(0);
        Some(Granted { offset: Offset(offset), nonce, deliveries_before })
    }

    /// Would [`reserve`](Self::reserve) grant a lease?
    pub fn has_candidate(&mut self, now: MonoMs, high_watermark: Offset, caps: LeaseCaps) -> bool {
        self.expire(now);
        self.candidate(high_watermark, caps).is_some()
    }

    fn candidate(&mut self, high_watermark: Offset, caps: LeaseCaps) -> Option<u64> {
        if self.is_frozen || self.leased() >= caps.in_flight_max {
            return None;
        }
        self.skip_settled();
        let fresh = (self.fresh < high_watermark.0).then_some(self.fresh);
        let lowest = match (self.returned.first().copied(), fresh) {
            (Some(returned), Some(fresh)) => returned.min(fresh),
            (Some(returned), None) => returned,
            (None, fresh) => fresh?,
        };
        let is_held_back = self.ahead_count >= caps.acked_ahead_max && lowest != self.frontier;
        (!is_held_back).then_some(lowest)
    }

    /// Moves `fresh` over offsets that were settled before they were handed out (after a restart).
    fn skip_settled(&mut self) {
        self.fresh = self.fresh.max(self.frontier);
        while let Some((_, &end)) = self.ahead.range(..=self.fresh).next_back() {
            if end <= self.fresh {
                break;
            }
            self.fresh = end;
        }
    }

    /// Settles a leased message for ever. Says whether the lease had been the last reason to hold the partition back.
    ///
    /// # Errors
    /// [`NoSuchLease`] when the lease has ended or is another's.
    pub fn ack(&mut self, now: MonoMs, offset: Offset, nonce: u64) -> Result<(), NoSuchLease> {
        self.end(now, offset, nonce)?;
        self.settle(offset.0);
        Ok(())
    }

    /// Runs a lease anew from `now`, with the same nonce.
    ///
    /// # Errors
    /// [`NoSuchLease`] when the lease has ended or is another's.
    pub fn extend(&mut self, now: MonoMs, offset: Offset, nonce: u64, lease_ms: u64) -> Result<(), NoSuchLease> {
        self.expire(now);
        let is_frozen = self.is_frozen;
        let lease = self.leases.get_mut(&offset.0).filter(|lease| lease.nonce == nonce && !is_frozen).ok_or(NoSuchLease)?;
        lease.deadline = now.saturating_add(lease_ms);
        self.deadlines.push(Reverse((lease.deadline, offset.0, nonce)));
        self.trim_deadlines();
        Ok(())
    }

    /// Ends a lease; the message is redeliverable at once.
    ///
    /// # Errors
    /// [`NoSuchLease`] when the lease has ended or is another's.
    pub fn release(&mut self, now: MonoMs, offset: Offset, nonce: u64) -> Result<(), NoSuchLease> {
        self.end(now, offset, nonce)?;
        self.returned.insert(offset.0);
        Ok(())
    }

    /// Counts a delivery that reached its client. A lease that has ended meanwhile counts too: the client saw the message.
    pub fn delivered(&mut self, offset: Offset) {
        if self.is_frozen || self.is_settled(offset.0) {
            return;
        }
        let count = self.deliveries.entry(offset.0).or_insert(0);
        *count = count.saturating_add(1);
        self.is_dirty = true;
    }

    fn end(&mut self, now: MonoMs, offset: Offset, nonce: u64) -> Result<(), NoSuchLease> {
        self.expire(now);
        let is_ours =
            self.leases.get(&offset.0).is_some_and(|lease| lease.nonce == nonce || veena_contract::sabotage::is("ack_without_nonce"));
        if !is_ours || self.is_frozen {
            return Err(NoSuchLease);
        }
        self.leases.remove(&offset.0);
        self.trim_deadlines();
        Ok(())
    }

    /// Ended leases leave their deadlines behind; once those are the most, the heap is built anew from the living ones.
    fn trim_deadlines(&mut self) {
        if self.deadlines.len() > 64 && self.deadlines.len() > 2 * self.leases.len() {
            self.deadlines = self.leases.iter().map(|(&offset, lease)| Reverse((lease.deadline, offset, lease.nonce))).collect();
        }
    }

    /// Ends leases whose deadline has passed; their messages are redeliverable. Returns how many.
    pub fn expire(&mut self, now: MonoMs) -> usize {
        let mut ended = 0;
        if self.is_frozen {
            return ended;
        }
        while let Some(&Reverse((deadline, offset, nonce))) = self.deadlines.peek() {
            if deadline > now {
                break;
            }
            self.deadlines.pop();
            let is_current = self.leases.get(&offset).is_some_and(|lease| lease.nonce == nonce && lease.deadline == deadline);
            if is_current {
                self.leases.remove(&offset);
                self.returned.insert(offset);
                ended += 1;
            }
        }
        ended
    }

    /// Settles offsets that can never be read (damage), whoever holds them. Returns how many were not settled before.
    pub fn skip(&mut self, start: Offset, end: Offset) -> u64 {
        let (from, to) = (start.0.max(self.frontier), end.0);
        if from >= to || self.is_frozen {
            return 0;
        }
        let touching: Vec<(u64, u64)> =
            self.ahead.range(..=to).rev().map(|(&start, &end)| (start, end)).take_while(|&(_, end)| end >= from).collect();
        let (mut first, mut last, mut settled) = (from, to, 0);
        for (start, end) in touching {
            self.ahead.remove(&start);
            self.ahead_count -= end - start;
            settled += end.min(to).saturating_sub(start.max(from));
            (first, last) = (first.min(start), last.max(end));
        }
        self.ahead.insert(first, last);
        self.ahead_count += last - first;
        self.absorb();
        let (leased, returned, counted) = (self.leases.split_off(&to), self.returned.split_off(&to), self.deliveries.split_off(&to));
        drop((self.leases.split_off(&from), self.returned.split_off(&from), self.deliveries.split_off(&from)));
        self.leases.extend(leased);
        self.returned.extend(returned);
        self.deliveries.extend(counted);
        self.is_dirty = true;
        to - from - settled
    }

    /// Retention has passed: nothing below `oldest` is there any more. One step, however far. Returns how many were not settled.
    pub fn jump_to(&mut self, oldest: Offset) -> u64 {
        if oldest.0 <= self.frontier || self.is_frozen {
            return 0;
        }
        let settled: u64 = self.ahead.range(..oldest.0).map(|(&start, &end)| end.min(oldest.0) - start).sum();
        let dropped = oldest.0 - self.frontier - settled;
        self.frontier = oldest.0;
        let kept_ahead = self.ahead.split_off(&oldest.0);
        let straddling = self.ahead.last_key_value().map(|(_, &end)| end).filter(|&end| end > oldest.0);
        self.ahead = kept_ahead;
        if let Some(end) = straddling {
            self.ahead.insert(oldest.0, end);
        }
        self.ahead_count = self.ahead.iter().map(|(start, end)| end - start).sum();
        self.leases = self.leases.split_off(&oldest.0);
        self.returned = self.returned.split_off(&oldest.0);
        self.deliveries = self.deliveries.split_off(&oldest.0);
        self.absorb();
        self.is_dirty = true;
        dropped
    }

    fn is_settled(&self, offset: u64) -> bool {
        offset < self.frontier || self.ahead.range(..=offset).next_back().is_some_and(|(_, &end)| offset < end)
    }

    fn settle(&mut self, offset: u64) {
        self.is_dirty = true;
        self.deliveries.remove(&offset);
        if veena_contract::sabotage::is("frontier_moves_back") && offset % 64 == 63 {
            self.frontier = self.frontier.saturating_sub(8);
            self.fresh = self.frontier;
            return;
        }
        if offset == self.frontier {
            self.frontier += 1;
            self.absorb();
            return;
        }
        let mut start = offset;
        let mut end = offset + 1;
        if let Some((&before, &before_end)) = self.ahead.range(..offset).next_back()
            && before_end == offset
        {
            start = before;
        }
        if let Some(after_end) = self.ahead.remove(&end) {
            end = after_end;
        }
        self.ahead.insert(start, end);
        self.ahead_count += 1;
    }

    /// The frontier moves over the run that is settled right behind it.
    fn absorb(&mut self) {
        while let Some(end) = self.ahead.remove(&self.frontier) {
            self.ahead_count -= end - self.frontier;
            self.frontier = end;
        }
    }
}

#[cfg(test)]
mod tests;
