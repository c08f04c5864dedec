//! The idempotency keys of a log: which record each of them brought in. They are written with their records, so that whatever keeps the
//! records keeps them too; each stream table holds those of all earlier segments, so that they outlive what retention removes.
//!
//! How long a key counts is its owner's to say. What is kept here is bounded by number alone, the latest ones.

use std::collections::{BTreeMap, VecDeque};

use bytes::{BufMut, BytesMut};
use veena_contract::{MessageId, Offset, StreamId, limits};

use super::frame::DecodedFrame;
use super::wire::{WireReader, len32};

/// What an entry takes in a file.
pub(super) const KEY_ENTRY_BYTES: usize = 72;

/// The idempotency key of one record, and what it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey {
    /// Hash of the key as the client gave it.
    pub hash: u128,
    /// Digest of the message: a repeat has the same.
    pub digest: u128,
}

/// A key, and the record that it brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyMark {
    /// The key.
    pub key: RecordKey,
    /// Where the record is, or was.
    pub offset: Offset,
    /// When it was committed, in ms.
    pub commit_ms: u64,
    /// Its id for life.
    pub id: MessageId,
}

/// The keys of one log, oldest first; of a key that came twice, the later record.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    by_hash: BTreeMap<u128, KeyMark>,
    /// In order of their records; one that came again later is no longer that of `by_hash`.
    order: VecDeque<(u128, Offset)>,
}

impl PartialEq for Keys {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Keys {}

impl Keys {
    /// The record that a key brought in.
    #[must_use]
    pub fn find(&self, hash: u128) -> Option<&KeyMark> {
        self.by_hash.get(&hash)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_hash.len()
    }

    /// Are there none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    /// All of them, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &KeyMark> {
        self.order.iter().filter_map(|(hash, offset)| self.by_hash.get(hash).filter(|mark| mark.offset == *offset))
    }

    /// Notes a key. Noting keys that are known, again, in their order, changes nothing.
    pub fn note(&mut self, mark: KeyMark) {
        if self.order.back().is_some_and(|(_, newest)| *newest >= mark.offset) {
            return;
        }
        self.by_hash.insert(mark.key.hash, mark);
        self.order.push_back((mark.key.hash, mark.offset));
        while self.order.len() > limits::DEDUP_KEYS_MAX {
            self.forget_oldest();
        }
    }

    /// Notes the keys of a frame.
    pub(super) fn note_frame(&mut self, frame: &DecodedFrame) {
        frame.keys().iter().for_each(|mark| self.note(*mark));
    }

    /// Forgets the keys whose records were committed at this time or before.
    pub fn forget_through(&mut self, commit_ms: u64) {
        while let Some((hash, offset)) = self.order.front() {
            if self.by_hash.get(hash).is_some_and(|mark| mark.offset == *offset && mark.commit_ms > commit_ms) {
                return;
            }
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((hash, offset)) = self.order.pop_front() else { return };
        if self.by_hash.get(&hash).is_some_and(|mark| mark.offset == offset) {
            self.by_hash.remove(&hash);
        }
    }

    /// `count u32`, and for each `hash u128 | digest u128 | offset u64 | commit time u64 | id: stream u128, sequence u64`.
    pub(super) fn encode_into(&self, out: &mut BytesMut) {
        out.put_u32(len32(self.len()));
        for mark in self.iter() {
            out.put_u128(mark.key.hash);
            out.put_u128(mark.key.digest);
            out.put_u64(mark.offset.get());
            out.put_u64(mark.commit_ms);
            out.put_u128(mark.id.stream.0);
            out.put_u64(mark.id.sequence);
        }
    }

    pub(super) fn read(reader: &mut WireReader<'_>) -> Option<Self> {
        let mut keys = Self::default();
        for _ in 0..reader.u32()? {
            let key = RecordKey { hash: reader.u128()?, digest: reader.u128()? };
            let (offset, commit_ms) = (Offset(reader.u64()?), reader.u64()?);
            let id = MessageId { stream: StreamId(reader.u128()?), sequence: reader.u64()? };
            keys.note(KeyMark { key, offset, commit_ms, id });
        }
        Some(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(hash: u128, offset: u64, commit_ms: u64) -> KeyMark {
        let id = MessageId { stream: StreamId(1), sequence: offset };
        KeyMark { key: RecordKey { hash, digest: hash + 1 }, offset: Offset(offset), commit_ms, id }
    }

    fn offsets(keys: &Keys) -> Vec<u64> {
        keys.iter().map(|mark| mark.offset.0).collect()
    }

    #[test]
    fn a_key_that_comes_again_later_is_that_of_the_later_record_alone() {
        let mut keys = Keys::default();
        for noted in [mark(7, 1, 10), mark(8, 2, 20), mark(7, 5, 30)] {
            keys.note(noted);
        }
        assert_eq!((keys.len(), offsets(&keys)), (2, vec![2, 5]));
        keys.forget_through(10);
        assert_eq!(keys.find(7).map(|mark| mark.offset), Some(Offset(5)), "the earlier record's time is over, not the key's");
        keys.forget_through(20);
        assert_eq!(offsets(&keys), [5]);
        keys.forget_through(30);
        assert!(keys.is_empty() && keys.find(7).is_none());
    }

    #[test]
    fn noting_what_is_known_again_changes_nothing() {
        let mut keys = Keys::default();
        let all = [mark(1, 1, 1), mark(2, 2, 1), mark(1, 3, 2)];
        all.iter().for_each(|noted| keys.note(*noted));
        let before = keys.clone();
        all.iter().for_each(|noted| keys.note(*noted));
        assert_eq!(keys, before);
    }

    #[test]
    fn of_more_keys_than_are_kept_the_latest_stay() {
        let mut keys = Keys::default();
        let count = limits::DEDUP_KEYS_MAX as u64 + 3;
        (0..count).for_each(|at| keys.note(mark(u128::from(at), at, 1)));
        assert_eq!((keys.len(), keys.iter().next().map(|mark| mark.offset.0)), (limits::DEDUP_KEYS_MAX, Some(3)));
    }

    #[test]
    fn keys_survive_their_file() {
        let mut keys = Keys::default();
        [mark(7, 1, 10), mark(8, 2, 20), mark(7, 5, 30)].iter().for_each(|noted| keys.note(*noted));
        let mut bytes = BytesMut::new();
        keys.encode_into(&mut bytes);
        assert_eq!(bytes.len(), 4 + 2 * KEY_ENTRY_BYTES);
        let read = Keys::read(&mut WireReader::new(&bytes)).expect("intact");
        assert_eq!(read, keys);
    }
}
