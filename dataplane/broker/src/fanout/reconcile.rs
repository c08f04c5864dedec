//! Which cursors there should be: one for each (attachment, parent partition that this node owns) of the catalog. Runs on every catalog change;
//! starts what is missing, ends what is gone, and forgets a position only when its cursor is at rest and the leader has confirmed that its
//! attachment has ended. The cursors of a partition that moves stop where it was, and go on from there where it is.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::debug;
use veena_contract::{AttachEpoch, CatalogView, ChildLink, Ownership, PartitionIndex, StreamId, TopicId, TopicRecord};

use crate::core::Core;
use crate::fanout::cursor::Cursor;
use crate::fanout::marks::Suspects;
use crate::fanout::position;
use crate::owners::bodies::look::Lag;
use crate::owners::bodies::moves::MovedCursor;
use crate::partition::{Partition, PartitionId};
use crate::stats::CursorNumbers;

/// The keys of a partition's cursors.
fn of(partition: PartitionId) -> RangeInclusive<(TopicId, PartitionIndex, AttachEpoch)> {
    let key = |epoch| (partition.topic, partition.index, AttachEpoch(epoch));
    key(0)..=key(u64::MAX)
}

/// Every cursor of this node.
#[derive(Default)]
pub struct Fanout {
    /// Partitions of children that may hold marks of attachments that have ended.
    pub suspects: Suspects,
    cursors: Mutex<BTreeMap<(TopicId, PartitionIndex, AttachEpoch), Arc<Cursor>>>,
    /// Cursors whose attachment is gone, and which are not forgotten yet.
    ending: Mutex<Vec<Arc<Cursor>>>,
    /// Cursors whose partition is another node's now, or on its way there, and which have not come to rest.
    leaving: Mutex<Vec<Arc<Cursor>>>,
    /// Cursors that come here with their partition: the last parent offset that each may have sent where it was.
    expected: Mutex<BTreeMap<(TopicId, PartitionIndex, AttachEpoch), u64>>,
}

impl Fanout {
    /// Brings the cursors in line with the catalog.
    pub fn reconcile(&self, core: &Arc<Core>, view: &CatalogView) {
        let mut wanted = BTreeMap::new();
        for record in view.by_id.values() {
            for link in &record.children {
                let runs_here = |index: &PartitionIndex| {
                    let id = PartitionId { topic: record.id, index: *index };
                    let is_frozen = record.owner_of(*index).is_some_and(Ownership::is_frozen);
                    core.is_mine(record, *index) && !is_frozen && !core.moves.is_stopped(id)
                };
                for index in (0..record.partitions).map(PartitionIndex).filter(runs_here) {
                    wanted.insert((record.id, index, link.epoch), link);
                }
            }
        }
        let mut cursors = self.cursors.lock();
        for (_, cursor) in cursors.extract_if(.., |key, _| !wanted.contains_key(key)) {
            cursor.end();
            let is_attached = view.topic_by_id(cursor.parent).is_some_and(|parent| cursor.is_of(parent));
            let list = if is_attached { &self.leaving } else { &self.ending };
            list.lock().push(cursor);
        }
        for ((parent, index, epoch), link) in wanted {
            cursors.entry((parent, index, epoch)).or_insert_with(|| {
                let sent_through = self.expected.lock().remove(&(parent, index, epoch));
                let cursor = Arc::new(Cursor::new(parent, index, link.clone(), sent_through));
                cursor.kick(core);
                cursor
            });
        }
    }

    /// Stops the cursors that read a partition which is to move, and says where each stands. They send nothing more; what is under way may
    /// still arrive.
    pub fn stop(&self, core: &Core, record: &TopicRecord, partition: PartitionId) -> Vec<MovedCursor> {
        let PartitionId { topic, index } = partition;
        let moved = |link: &ChildLink| {
            let cursor = self.cursors.lock().get(&(topic, index, link.epoch)).cloned();
            let cursor = cursor.unwrap_or_else(|| Arc::new(Cursor::new(topic, index, link.clone(), None)));
            let (position, sent_through) = cursor.stop(core);
            MovedCursor { epoch: link.epoch, position: position.as_ref().map(position::encode), sent_through }
        };
        record.children.iter().map(moved).collect()
    }

    /// A partition is another node's now: the cursors that read it here are over.
    pub fn let_go(&self, partition: PartitionId) {
        for (_, cursor) in self.cursors.lock().extract_if(of(partition), |_, _| true) {
            cursor.end();
            self.leaving.lock().push(cursor);
        }
        self.expected.lock().retain(|(topic, index, _), _| PartitionId { topic: *topic, index: *index } != partition);
    }

    /// Cursors come here with their partition.
    pub fn expect(&self, partition: PartitionId, sent: impl Iterator<Item = (AttachEpoch, u64)>) {
        self.expected.lock().extend(sent.map(|(epoch, sent)| ((partition.topic, partition.index, epoch), sent)));
    }

    /// Does a cursor of this node still send under one of these streams, or may it?
    pub fn is_any_used(&self, streams: &BTreeSet<StreamId>) -> bool {
        let cursors = self.cursors.lock();
        let ending = self.ending.lock();
        let leaving = self.leaving.lock();
        cursors.values().chain(ending.iter()).chain(leaving.iter()).any(|cursor| streams.contains(&cursor.link.stream))
    }

    /// A parent partition has new records.
    pub fn on_published(&self, core: &Arc<Core>, partition: PartitionId) {
        let cursors: Vec<_> = self.cursors.lock().range(of(partition)).map(|(_, cursor)| Arc::clone(cursor)).collect();
        for cursor in cursors {
            cursor.kick(core);
        }
    }

    /// Forgets the cursors whose attachment is gone, and their positions, once they are at rest and the leader has confirmed the end. Says
    /// whether none is left.
    pub async fn forget_ended(&self, core: &Arc<Core>) -> bool {
        let ending = self.ending.lock().clone();
        for cursor in ending.iter().filter(|cursor| cursor.is_at_rest()) {
            match core.ports.witness.link_gone(cursor.link.epoch).await {
                Ok(gone) => {
                    core.settle.forget_cursor(&gone, cursor.index);
                    self.ending.lock().retain(|other| !Arc::ptr_eq(other, cursor));
                    self.suspects.add_open(core, cursor.link.child_id);
                }
                Err(error) => debug!(child = %cursor.link.child, %error, "a cursor's position is kept"),
            }
        }
        self.leaving.lock().retain(|cursor| !cursor.is_at_rest());
        self.ending.lock().is_empty() && self.leaving.lock().is_empty()
    }

    /// Has this node cursors of an attachment that are not at rest yet?
    pub fn is_ending(&self, epoch: AttachEpoch) -> bool {
        let (cursors, ending, leaving) = (self.cursors.lock(), self.ending.lock(), self.leaving.lock());
        cursors.values().chain(ending.iter()).chain(leaving.iter()).any(|cursor| cursor.link.epoch == epoch)
    }

    /// Every cursor in numbers, by parent and partition. Opens no log.
    pub fn numbers(&self, core: &Core, view: &CatalogView) -> Vec<CursorNumbers> {
        let cursors: Vec<_> = self.cursors.lock().values().cloned().collect();
        let numbers = |cursor: Arc<Cursor>| {
            let parent = view.topic_by_id(cursor.parent)?;
            let (next, dropped) = cursor.progress(core);
            let log = core.topics.get(cursor.parent).and_then(|topic| topic.partition(cursor.index)?.numbers());
            Some(CursorNumbers {
                tenant: parent.tenant.clone(),
                parent: parent.name.clone(),
                child: cursor.link.child.clone(),
                partition: cursor.index,
                committed: cursor.committed.get(),
                dropped,
                lag: log.map(|log| log.high_watermark.0.saturating_sub(next.0)),
            })
        };
        cursors.into_iter().filter_map(numbers).collect()
    }

    /// How far one child is behind partitions of its parent that this node owns.
    pub async fn lag(&self, core: &Arc<Core>, partitions: &[Arc<Partition>], link: &ChildLink) -> Lag {
        let mut lag = Lag::default();
        for partition in partitions {
            let Ok(serving) = partition.open(core).await else {
                lag.is_partial = true;
                continue;
            };
            let PartitionId { topic, index } = partition.id;
            let cursor = self.cursors.lock().get(&(topic, index, link.epoch)).cloned();
            let (next, dropped) = cursor.unwrap_or_else(|| Arc::new(Cursor::new(topic, index, link.clone(), None))).progress(core);
            lag.messages += serving.reader.high_watermark().0.saturating_sub(next.0);
            lag.dropped += dropped;
        }
        lag
    }
}
