//! The sender's side: one stream into one destination, one commit in flight.

use veena_contract::LogId;

use super::{Cause, Prev, Refusal, Standing};

/// What the sender knows about its own source when it looks at an owner's standing. All sequences are the source's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The first sequence the stream could have.
    pub begin: u64,
    /// From here on the destination may still be owed records. For a WAL its checkpoint, for a cursor the sequence behind its durable
    /// position.
    pub owed_from: u64,
    /// From here on the sender can send every record the source ever had for the destination. Not what lies somewhere on a disk: a record
    /// that the sender does not send when told to go back is a silent hole.
    pub retained_from: u64,
    /// The first sequence the source has not written yet.
    pub end: u64,
}

/// How a sender goes on after an `open` or a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Send what comes after `after`; what is at or below it is committed.
    Resume {
        /// The owner's committed position.
        after: Prev,
        /// The owner has less than it once confirmed: what lies above `after` must be sent again, whatever was noted about it. Said once.
        is_back: bool,
    },
    /// Records between `after` and `through` are gone at the source and missing at the owner: declare that first
    /// ([`SenderWindow::gap_offer`]), then send everything that comes after `through`, also what was confirmed before.
    Gap {
        /// The owner's committed position.
        after: Prev,
        /// The last sequence that is lost.
        through: u64,
    },
    /// Neither side may go on; an operator must look.
    Stopped(Stop),
}

/// Why a stream stands still, visibly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Stop {
    /// Both sides hold a record of this sequence, and not the same.
    #[error("forked: the owner holds another record at sequence {at}")]
    Forked {
        /// Where.
        at: u64,
    },
    /// The owner has more than the source ever wrote: the source is an older copy of itself.
    #[error("source_behind: the owner has sequence {owner}, the source ends before {end}")]
    SourceBehind {
        /// The owner's position.
        owner: u64,
        /// The source's end.
        end: u64,
    },
    /// The source once said that this stream is finished, and now sends under it.
    #[error("source_behind: the owner was told that this stream is finished")]
    Finished,
}

/// What a commit must carry besides its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The destination's log.
    pub log_id: LogId,
    /// What it follows.
    pub prev: Prev,
    /// The position after it.
    pub last: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum State {
    /// Nothing is known for certain: ask first.
    Unopened,
    /// The next commit may go out.
    Ready { log_id: LogId, prev: Prev },
    /// A gap must be declared before the next commit.
    Gap { log_id: LogId, prev: Prev, through: u64 },
    /// A commit is out.
    InFlight { log_id: LogId, last: u64 },
    /// For good, or until an operator acts.
    Stopped(Stop),
}

/// The sender's view of one stream at one destination. Answers must be paired with their requests by the caller: an answer that comes
/// after [`SenderWindow::on_lost`] is not shown to the window.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SenderWindow {
    state: State,
    /// What the owner has confirmed. When it comes back with less, it stays until the sender has gone back or declared the gap.
    confirmed: Option<u64>,
    /// Up to here a commit may have reached the owner without the sender knowing.
    doubt: Option<u64>,
}

impl SenderWindow {
    /// A window at the start of a sender's life.
    ///
    /// `confirmed` is the durable position of this stream at this destination, if one is kept. `doubt` is the last sequence that an earlier
    /// life may have sent: it can still be under way, so it may not be moved elsewhere.
    #[must_use]
    pub fn new(confirmed: Option<u64>, doubt: Option<u64>) -> Self {
        let doubt = doubt.filter(|doubt| confirmed.is_none_or(|confirmed| *doubt > confirmed));
        Self { state: State::Unopened, confirmed, doubt }
    }

    /// Must an `open` be answered before anything else is sent?
    #[must_use]
    pub fn needs_open(&self) -> bool {
        self.state == State::Unopened
    }

    /// Behind which sequence the next commit begins, when one may go out.
    #[must_use]
    pub fn position(&self) -> Option<Prev> {
        if let State::Ready { prev, .. } = self.state { Some(prev) } else { None }
    }

    /// Must a gap be declared before the next commit?
    #[must_use]
    pub fn needs_gap(&self) -> bool {
        matches!(self.state, State::Gap { .. })
    }

    /// Why the stream stands still, if it does.
    #[must_use]
    pub fn stopped(&self) -> Option<Stop> {
        match self.state {
            State::Stopped(stop) => Some(stop),
            State::Unopened | State::Ready { .. } | State::Gap { .. } | State::InFlight { .. } => None,
        }
    }

    /// The sequence up to which the owner has confirmed.
    #[must_use]
    pub fn confirmed(&self) -> Option<u64> {
        self.confirmed
    }

    /// May the record of this sequence be accepted anew for another destination? Only when no attempt, of this life or an earlier one, can
    /// have had an effect.
    #[must_use]
    pub fn may_move(&self, sequence: u64) -> bool {
        let settled = |mark: Option<u64>| mark.is_none_or(|mark| sequence > mark);
        let in_flight = if let State::InFlight { last, .. } = self.state { Some(last) } else { None };
        settled(self.confirmed) && settled(self.doubt) && settled(in_flight)
    }

    /// The owner has answered an `open`. `hash_of` gives the hash of a record the source still has.
    ///
    /// # Panics
    /// When no `open` was due.
    pub fn on_opened(&mut self, standing: &Standing, source: &Source, hash_of: impl Fn(u64) -> Option<u32>) -> Start {
        assert!(self.needs_open(), "an open is answered once, and only when it was due");
        let start = self.judge(standing, source, hash_of);
        let log_id = standing.log_id;
        self.state = match start {
            Start::Resume { after, .. } => State::Ready { log_id, prev: after },
            Start::Gap { after, through } => State::Gap { log_id, prev: after, through },
            Start::Stopped(stop) => State::Stopped(stop),
        };
        match start {
            Start::Resume { .. } => self.believe(standing.committed),
            // What was confirmed once is the proof of the loss, until the gap is written.
            Start::Gap { .. } | Start::Stopped(_) => {}
        }
        start
    }

    /// The next commit, if one may go out: `sequences` above the window's position, strictly rising, and `last` at or above them. Records
    /// that are the source's no longer (moved, voided) are left out of `sequences`; the position still passes them.
    #[must_use]
    pub fn next_offer(&mut self, sequences: &[u64], last: u64) -> Option<Ticket> {
        let State::Ready { log_id, prev } = self.state else { return None };
        let above = |sequence: u64| prev.mark().is_none_or(|prev| sequence > prev);
        let fits = sequences.is_sorted_by(|a, b| a < b) && sequences.iter().all(|s| above(*s) && *s <= last) && above(last);
        debug_assert!(fits, "sequences rise from the window's position to the offer's end");
        if !fits {
            return None;
        }
        self.state = State::InFlight { log_id, last };
        Some(Ticket { log_id, prev, last })
    }

    /// The declaration of a gap, if one is due: a commit without records, marked as a gap, which the owner writes, counts and reports.
    #[must_use]
    pub fn gap_offer(&mut self) -> Option<Ticket> {
        let State::Gap { log_id, prev, through } = self.state else { return None };
        self.state = State::InFlight { log_id, last: through };
        Some(Ticket { log_id, prev, last: through })
    }

    /// The owner says that the commit in flight is below its high watermark. False when the answer does not fit what is in flight: treat it
    /// as no answer.
    #[must_use]
    pub fn on_committed(&mut self, last: u64) -> bool {
        let State::InFlight { log_id, last: sent } = self.state else { return false };
        if last != sent {
            return false;
        }
        self.state = State::Ready { log_id, prev: Prev::Seq(last) };
        self.believe(Some(last));
        true
    }

    /// The owner refused the commit in flight: nothing of it was stored. Says what its standing means; unless the stream has stopped, an
    /// `open` comes next, and its answer counts.
    pub fn on_refused(&mut self, refusal: &Refusal, source: &Source, hash_of: impl Fn(u64) -> Option<u32>) -> Start {
        let committed = refusal.standing.committed;
        let start = match refusal.cause {
            Cause::Finished => Start::Stopped(Stop::Finished),
            Cause::Forked => Start::Stopped(Stop::Forked { at: refusal.standing.appended.or(committed).unwrap_or(source.begin) }),
            Cause::OtherLog | Cause::PrevAhead | Cause::UnknownStream | Cause::TableFull | Cause::Malformed => {
                self.judge(&refusal.standing, source, hash_of)
            }
        };
        self.state = if let Start::Stopped(stop) = start { State::Stopped(stop) } else { State::Unopened };
        start
    }

    /// No answer, an answer that says nothing certain, a changed owner: what was in flight may have been committed, or may be yet.
    pub fn on_lost(&mut self) {
        match self.state {
            State::InFlight { last, .. } => {
                self.doubt = self.doubt.max(Some(last));
                self.state = State::Unopened;
            }
            State::Ready { .. } | State::Gap { .. } => self.state = State::Unopened,
            State::Unopened | State::Stopped(_) => {}
        }
    }

    /// What was in flight certainly never left, or was refused without being looked at (owner down): it can be sent again or moved.
    pub fn on_not_sent(&mut self) {
        if !matches!(self.state, State::Stopped(_)) {
            self.state = State::Unopened;
        }
    }

    /// From here on the owner's position is what counts, also when it is lower than before. What it has lost may still be under way.
    fn believe(&mut self, committed: Option<u64>) {
        if committed < self.confirmed {
            self.doubt = self.doubt.max(self.confirmed);
        }
        self.confirmed = committed;
        self.doubt = self.doubt.filter(|doubt| Some(*doubt) > committed);
    }

    /// The rule for an owner's standing.
    fn judge(&self, standing: &Standing, source: &Source, hash_of: impl Fn(u64) -> Option<u32>) -> Start {
        let Standing { appended, committed, hash, .. } = *standing;
        if let Some(owner) = appended.max(committed).filter(|owner| *owner >= source.end) {
            return Start::Stopped(Stop::SourceBehind { owner, end: source.end });
        }
        if let Some(at) = committed
            && hash != 0
            && hash_of(at).is_some_and(|own| own != 0 && own != hash)
        {
            return Start::Stopped(Stop::Forked { at });
        }
        let after = Prev::from(committed);
        let behind = committed.map_or(source.begin, |committed| committed.saturating_add(1));
        let is_back = committed < self.confirmed;
        let owed_from = if is_back { behind } else { behind.max(source.owed_from) };
        if source.retained_from > owed_from {
            return Start::Gap { after, through: source.retained_from - 1 };
        }
        Start::Resume { after, is_back }
    }
}

#[cfg(test)]
mod tests;
