//! Which cursors there should be: one for each (attachment, parent partition) of the catalog. Runs on every catalog change; starts what is
//! missing, ends what is gone, and forgets a position only when the leader has confirmed that its attachment has ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::debug;
use veena_contract::{AttachEpoch, CatalogView, ChildLink, PartitionIndex, TopicId, TopicRecord};

use crate::core::Core;
use crate::fanout::cursor::Cursor;
use crate::message::ChildLag;
use crate::partition::PartitionId;
use crate::stats::CursorNumbers;

/// Every cursor of this node.
#[derive(Default)]
pub struct Fanout {
    cursors: Mutex<BTreeMap<(TopicId, PartitionIndex, AttachEpoch), Arc<Cursor>>>,
}

impl Fanout {
    /// Brings the cursors in line with the catalog. Returns those whose attachment is gone.
    pub fn reconcile(&self, core: &Arc<Core>, view: &CatalogView) -> Vec<Arc<Cursor>> {
        let mut wanted = BTreeMap::new();
        for record in view.by_id.values() {
            for link in &record.children {
                for index in (0..record.partitions).map(PartitionIndex) {
                    wanted.insert((record.id, index, link.epoch), link);
                }
            }
        }
        let mut cursors = self.cursors.lock();
        let gone: Vec<_> = cursors.extract_if(.., |key, _| !wanted.contains_key(key)).map(|(_, cursor)| cursor).collect();
        for cursor in &gone {
            cursor.end();
        }
        for ((parent, index, epoch), link) in wanted {
            cursors.entry((parent, index, epoch)).or_insert_with(|| {
                let cursor = Arc::new(Cursor::new(parent, index, link.clone()));
                cursor.kick(core);
                cursor
            });
        }
        gone
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

    /// Forgets the position of a cursor whose attachment is gone, once the leader has confirmed it.
    pub async fn forget(&self, core: &Arc<Core>, cursor: &Cursor) -> bool {
        match core.ports.witness.link_gone(cursor.link.epoch).await {
            Ok(gone) => {
                core.settle.forget_cursor(&gone, cursor.index);
                true
            }
            Err(error) => {
                debug!(child = %cursor.link.child, %error, "a cursor's position is kept");
                false
            }
        }
    }

    /// Every cursor in numbers, by parent and partition. Opens no log.
    pub fn numbers(&self, core: &Core, view: &CatalogView) -> Vec<CursorNumbers> {
        let cursors: Vec<_> = self.cursors.lock().values().cloned().collect();
        let numbers = |cursor: Arc<Cursor>| {
            let parent = view.topic_by_id(cursor.parent)?;
            let progress = cursor.progress();
            let log = core.topics.get(cursor.parent).and_then(|topic| topic.partition(cursor.index)?.numbers());
            Some(CursorNumbers {
                tenant: parent.tenant.clone(),
                parent: parent.name.clone(),
                child: cursor.link.child.clone(),
                partition: cursor.index,
                committed: cursor.committed.get(),
                dropped: progress.map_or(0, |(_, dropped)| dropped),
                lag: progress.zip(log).map(|((next, _), log)| log.high_watermark.0.saturating_sub(next.0)),
            })
        };
        cursors.into_iter().filter_map(numbers).collect()
    }

    /// How far one child is behind.
    pub async fn lag(&self, core: &Arc<Core>, parent: &Arc<TopicRecord>, link: &ChildLink) -> ChildLag {
        let topic = core.topics.of(core, parent);
        let mut lag =
            ChildLag { child: link.child.clone(), delay_ms: link.delay_ms, lag_messages: 0, is_complete: true, dropped_messages: 0 };
        for partition in topic.partitions() {
            let cursor = self.cursors.lock().get(&(parent.id, partition.id.index, link.epoch)).cloned();
            let progress = cursor.and_then(|cursor| cursor.progress());
            let serving = partition.open(core).await.ok();
            match (progress, serving) {
                (Some((next, dropped)), Some(serving)) => {
                    lag.lag_messages += serving.reader.high_watermark().0.saturating_sub(next.0);
                    lag.dropped_messages += dropped;
                }
                _ => lag.is_complete = false,
            }
        }
        lag
    }
}
