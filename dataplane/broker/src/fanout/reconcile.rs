//! Which cursors there should be: one for each (attachment, parent partition that this node owns) of the catalog. Runs on every catalog change;
//! starts what is missing, ends what is gone, and forgets a position only when its cursor is at rest and the leader has confirmed that its
//! attachment has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::debug;
use veena_contract::{AttachEpoch, CatalogView, ChildLink, PartitionIndex, StreamId, TopicId};

use crate::core::Core;
use crate::fanout::cursor::Cursor;
use crate::fanout::marks::Suspects;
use crate::owners::bodies::look::Lag;
use crate::partition::{Partition, PartitionId};
use crate::stats::CursorNumbers;

/// Every cursor of this node.
#[derive(Default)]
pub struct Fanout {
    /// Partitions of children that may hold marks of attachments that have ended.
    pub suspects: Suspects,
    cursors: Mutex<BTreeMap<(TopicId, PartitionIndex, AttachEpoch), Arc<Cursor>>>,
    /// Cursors whose attachment is gone, and which are not forgotten yet.
    ending: Mutex<Vec<Arc<Cursor>>>,
}

impl Fanout {
    /// Brings the cursors in line with the catalog.
    pub fn reconcile(&self, core: &Arc<Core>, view: &CatalogView) {
        let mut wanted = BTreeMap::new();
        for record in view.by_id.values() {
            for link in &record.children {
                for index in (0..record.partitions).map(PartitionIndex).filter(|index| core.is_mine(record, *index)) {
                    wanted.insert((record.id, index, link.epoch), link);
                }
            }
        }
        let mut cursors = self.cursors.lock();
        for (_, cursor) in cursors.extract_if(.., |key, _| !wanted.contains_key(key)) {
            cursor.end();
            self.ending.lock().push(cursor);
        }
        for ((parent, index, epoch), link) in wanted {
            cursors.entry((parent, index, epoch)).or_insert_with(|| {
                let cursor = Arc::new(Cursor::new(parent, index, link.clone()));
                cursor.kick(core);
                cursor
            });
        }
    }

    /// Does a cursor of this node still send under one of these streams, or may it?
    pub fn is_any_used(&self, streams: &BTreeSet<StreamId>) -> bool {
        let cursors = self.cursors.lock();
        let ending = self.ending.lock();
        cursors.values().chain(ending.iter()).any(|cursor| streams.contains(&cursor.link.stream))
    }

    /// A parent partition has new records.
    pub fn on_published(&self, core: &Arc<Core>, partition: PartitionId) {
        let first = (partition.topic, partition.index, AttachEpoch(0));
        let last = (partition.topic, partition.index, AttachEpoch(u64::MAX));
        let cursors: Vec<_> = self.cursors.lock().range(first..=last).map(|(_, cursor)| Arc::clone(cursor)).collect();
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
        self.ending.lock().is_empty()
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
            let (next, dropped) = cursor.unwrap_or_else(|| Arc::new(Cursor::new(topic, index, link.clone()))).progress(core);
            lag.messages += serving.reader.high_watermark().0.saturating_sub(next.0);
            lag.dropped += dropped;
        }
        lag
    }
}
