//! Messages under idempotency keys, at their partition's owner: stored once within the topic's window, whatever is sent again (design 4).
//!
//! The log itself remembers the keys of its records ([`Keys`]), so nothing here outlives it or falls behind it. The window is measured in
//! commit times of the log, and ends for a key when the commit that asks is that much later than the one that stored.
//!
//! A topic that grows leads keys elsewhere. Whoever sends one says by how many partitions it was led here, and an owner that knows of more
//! takes it no more; so what a look-up by the new count does not find here will never come here, and may be stored where it leads now.
//!
//! What must never happen: a repeat is answered before what it repeats is below the high watermark; an owner forgets a key that still counts,
//! to make room or otherwise.

use std::collections::BTreeMap;

use bytes::Bytes;
use veena_contract::Offset;
use veena_storage::partition::{KeyMark, Keys, RecordKey};

use crate::produce::request::{CommitError, Placed};

/// A body, and the idempotency key it came with, if it came with one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedBody {
    /// The key.
    pub key: Option<RecordKey>,
    /// The body.
    pub body: Bytes,
}

/// What an owner is asked about idempotency keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyedRequest {
    /// To commit bodies, unless their keys are known.
    Produce {
        /// Of how many partitions a hash chose this one. Absent if the client named it.
        counted: Option<u32>,
        /// At least one.
        bodies: Vec<KeyedBody>,
    },
    /// Whether keys are known, that a hash leads to another partition since the topic has grown to `counted` partitions.
    LookUp {
        /// How many there are now.
        counted: u32,
        /// At least one.
        keys: Vec<RecordKey>,
    },
}

impl KeyedRequest {
    /// Of how many partitions this one was chosen, or is no longer.
    #[must_use]
    pub fn counted(&self) -> Option<u32> {
        match self {
            Self::Produce { counted, .. } => *counted,
            Self::LookUp { counted, .. } => Some(*counted),
        }
    }

    pub(super) fn records(&self) -> usize {
        match self {
            Self::Produce { bodies, .. } => bodies.len(),
            Self::LookUp { .. } => 0,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Produce { bodies, .. } => bodies.iter().map(|keyed| keyed.body.len() + size_of::<RecordKey>()).sum(),
            Self::LookUp { keys, .. } => size_of_val(keys.as_slice()),
        }
    }
}

/// What became of one key, or of a body without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOutcome {
    /// It was stored.
    Stored(Placed),
    /// It had been stored before, there.
    Repeated(Placed),
    /// The key stands for another message. Nothing was stored.
    Reused,
    /// The partition remembers as many keys as it may. Nothing was stored.
    Full {
        /// Until its oldest key ends.
        wait_ms: u64,
    },
    /// A look-up: the key is not known.
    Unknown,
}

/// What an owner answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedAnswer {
    /// One for each body or key, in order.
    pub outcomes: Vec<KeyOutcome>,
    /// To a look-up: no key that came by an earlier count is left, and none will come.
    pub has_ended: bool,
}

/// The answer, or why there is none.
pub type KeyedResult = Result<KeyedAnswer, CommitError>;

/// Since when an owner knows how many partitions its topic has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// How many it knows of.
    partitions: u32,
    /// Records that came by an earlier count were committed at this time or before.
    earlier_until_ms: u64,
}

impl Counted {
    /// The catalog has this many now; the last commit was at `last_commit_ms`.
    pub fn know(&mut self, partitions: u32, last_commit_ms: u64) {
        if self.partitions < partitions {
            *self = Self { partitions, earlier_until_ms: last_commit_ms };
        }
    }
}

/// What the requests of one group are judged by.
pub struct Judge<'a> {
    keys: &'a Keys,
    counted: Counted,
    window_ms: u64,
    keys_max: usize,
    /// When the group is committed.
    commit_ms: u64,
    /// What this group stores.
    staged: BTreeMap<u128, Staged>,
}

#[derive(Clone, Copy)]
struct Staged {
    digest: u128,
    at: Stored,
}

/// Which record of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The section.
    pub section: usize,
    /// Which of its records.
    pub nth: usize,
}

/// An outcome as far as it is known before the group is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DueKey {
    /// It does not depend on the group.
    Known(KeyOutcome),
    /// It is stored with the group.
    Stores(Stored),
    /// It repeats what is stored with the group.
    Repeats(Stored),
}

impl DueKey {
    /// Does the outcome depend on the group?
    #[must_use]
    pub fn is_of_group(&self) -> bool {
        !matches!(self, Self::Known(_))
    }

    /// The outcome, once the group is committed.
    #[must_use]
    pub fn outcome(self, placed: impl Fn(Stored) -> Placed) -> KeyOutcome {
        match self {
            Self::Known(outcome) => outcome,
            Self::Stores(at) => KeyOutcome::Stored(placed(at)),
            Self::Repeats(at) => KeyOutcome::Repeated(placed(at)),
        }
    }
}

impl<'a> Judge<'a> {
    /// A judge of a group that is committed at `commit_ms`, by keys of which those beyond the window are forgotten.
    #[must_use]
    pub fn new(keys: &'a Keys, counted: Counted, window_ms: u64, keys_max: usize, commit_ms: u64) -> Self {
        Self { keys, counted, window_ms, keys_max, commit_ms, staged: BTreeMap::new() }
    }

    /// Was a request led here by fewer partitions than there are?
    ///
    /// # Errors
    /// [`CommitError::Grown`]: it is to be led anew.
    pub fn check_count(&self, request: &KeyedRequest) -> Result<(), CommitError> {
        if request.counted().is_some_and(|counted| counted < self.counted.partitions) {
            return Err(CommitError::Grown);
        }
        Ok(())
    }

    /// What becomes of each body, and those that are to be stored, as `section`.
    pub fn produce(&mut self, bodies: Vec<KeyedBody>, section: usize) -> (Vec<DueKey>, Vec<KeyedBody>) {
        let mut stored = Vec::new();
        let mut due = Vec::with_capacity(bodies.len());
        for KeyedBody { key, body } in bodies {
            // Without a window no key is remembered, not in the log either.
            let key = key.filter(|_| self.window_ms > 0);
            let at = Stored { section, nth: stored.len() };
            due.push(match key.and_then(|key| self.refused(&key)) {
                Some(known) => known,
                None => {
                    if let Some(RecordKey { hash, digest }) = key {
                        self.staged.insert(hash, Staged { digest, at });
                    }
                    stored.push(KeyedBody { key, body });
                    DueKey::Stores(at)
                }
            });
        }
        (due, stored)
    }

    /// Why a key brings nothing in.
    fn refused(&self, key: &RecordKey) -> Option<DueKey> {
        if let Some(Staged { digest, at }) = self.staged.get(&key.hash) {
            return Some(if *digest == key.digest { DueKey::Repeats(*at) } else { DueKey::Known(KeyOutcome::Reused) });
        }
        match self.look_up(key) {
            KeyOutcome::Unknown if self.keys.len() + self.staged.len() >= self.keys_max => {
                let oldest_ms = self.keys.iter().next().map_or(self.commit_ms, |oldest| oldest.commit_ms);
                let wait_ms = (oldest_ms + self.window_ms).saturating_sub(self.commit_ms);
                Some(DueKey::Known(KeyOutcome::Full { wait_ms }))
            }
            KeyOutcome::Unknown => None,
            known => Some(DueKey::Known(known)),
        }
    }

    /// What the log knows of a key.
    #[must_use]
    pub fn look_up(&self, key: &RecordKey) -> KeyOutcome {
        match self.keys.find(key.hash) {
            Some(mark) if mark.key.digest == key.digest => KeyOutcome::Repeated(placed(mark)),
            Some(_) => KeyOutcome::Reused,
            None => KeyOutcome::Unknown,
        }
    }

    /// Answers a look-up.
    #[must_use]
    pub fn looked_up(&self, keys: &[RecordKey]) -> KeyedAnswer {
        let has_ended = self.keys.iter().next().is_none_or(|oldest| oldest.commit_ms > self.counted.earlier_until_ms);
        KeyedAnswer { outcomes: keys.iter().map(|key| self.look_up(key)).collect(), has_ended }
    }
}

fn placed(mark: &KeyMark) -> Placed {
    Placed { first: mark.offset, commit_ms: mark.commit_ms, stream: mark.id.stream, sequence: mark.id.sequence }
}

/// The place of one record of a section whose first record is at `first`.
#[must_use]
pub fn nth_placed(first: Placed, nth: usize) -> Placed {
    let nth = nth as u64;
    Placed { first: Offset(first.first.0 + nth), sequence: first.sequence + nth, ..first }
}

#[cfg(test)]
mod tests {
    use veena_contract::{MessageId, StreamId};

    use super::*;

    fn key(hash: u128, digest: u128) -> RecordKey {
        RecordKey { hash, digest }
    }

    fn keys(marks: &[(u128, u64)]) -> Keys {
        let mut keys = Keys::default();
        for (offset, (hash, commit_ms)) in (0..).zip(marks) {
            let id = MessageId { stream: StreamId(9), sequence: 100 + offset };
            keys.note(KeyMark { key: key(*hash, 1), offset: Offset(offset), commit_ms: *commit_ms, id });
        }
        keys
    }

    fn body(key: Option<RecordKey>) -> KeyedBody {
        KeyedBody { key, body: Bytes::from_static(b"x") }
    }

    #[test]
    fn a_key_of_the_same_group_is_a_repeat_and_one_of_another_message_is_refused() {
        let known = keys(&[(7, 10)]);
        let mut judge = Judge::new(&known, Counted::default(), 100, 10, 20);
        let bodies = vec![
            body(Some(key(1, 1))),
            body(None),
            body(Some(key(1, 1))),
            body(Some(key(1, 2))),
            body(Some(key(7, 1))),
            body(Some(key(7, 9))),
        ];
        let (due, stored) = judge.produce(bodies, 3);
        let at = |nth| Stored { section: 3, nth };
        let first = Placed { first: Offset(0), commit_ms: 10, stream: StreamId(9), sequence: 100 };
        assert_eq!(
            due,
            [
                DueKey::Stores(at(0)),
                DueKey::Stores(at(1)),
                DueKey::Repeats(at(0)),
                DueKey::Known(KeyOutcome::Reused),
                DueKey::Known(KeyOutcome::Repeated(first)),
                DueKey::Known(KeyOutcome::Reused),
            ]
        );
        assert_eq!(stored, [body(Some(key(1, 1))), body(None)]);
        let (due, stored) = judge.produce(vec![body(Some(key(1, 1)))], 4);
        assert_eq!((due, stored.len()), (vec![DueKey::Repeats(at(0))], 0), "of another request as well");
    }

    #[test]
    fn a_full_table_says_when_its_oldest_key_ends_and_still_knows_its_keys() {
        let known = keys(&[(7, 10), (8, 30)]);
        let mut judge = Judge::new(&known, Counted::default(), 100, 3, 60);
        let (due, stored) = judge.produce(vec![body(Some(key(1, 1))), body(Some(key(2, 1))), body(None), body(Some(key(8, 1)))], 0);
        assert_eq!(due[1], DueKey::Known(KeyOutcome::Full { wait_ms: 50 }));
        assert!(matches!(due[3], DueKey::Known(KeyOutcome::Repeated(_))));
        assert_eq!(stored, [body(Some(key(1, 1))), body(None)]);
    }

    #[test]
    fn without_a_window_a_key_is_not_even_stored() {
        let known = Keys::default();
        let mut judge = Judge::new(&known, Counted::default(), 0, 3, 60);
        let (due, stored) = judge.produce(vec![body(Some(key(1, 1))), body(Some(key(1, 1)))], 0);
        assert!(due.iter().all(|due| matches!(due, DueKey::Stores(_))));
        assert_eq!(stored, [body(None), body(None)]);
    }

    #[test]
    fn who_counts_fewer_partitions_than_the_owner_is_led_anew() {
        let known = keys(&[(7, 10), (8, 30)]);
        let mut counted = Counted::default();
        counted.know(3, 10);
        counted.know(5, 30);
        counted.know(5, 90);
        counted.know(4, 90);
        let judge = Judge::new(&known, counted, 100, 3, 120);
        let produce = |counted| KeyedRequest::Produce { counted, bodies: vec![body(None)] };
        assert_eq!(judge.check_count(&produce(Some(3))), Err(CommitError::Grown));
        assert_eq!(judge.check_count(&KeyedRequest::LookUp { counted: 4, keys: Vec::new() }), Err(CommitError::Grown));
        for counted in [None, Some(5), Some(6)] {
            assert_eq!(judge.check_count(&produce(counted)), Ok(()));
        }
        let answer = judge.looked_up(&[key(8, 1), key(8, 2), key(9, 1)]);
        assert!(matches!(answer.outcomes[..], [KeyOutcome::Repeated(_), KeyOutcome::Reused, KeyOutcome::Unknown]));
        assert!(!answer.has_ended, "the key of 30 came by the earlier count");
        let later = keys(&[(8, 31)]);
        assert!(Judge::new(&later, counted, 100, 3, 120).looked_up(&[key(9, 1)]).has_ended);
    }
}
