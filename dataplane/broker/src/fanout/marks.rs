//! Marks of attachments that have ended leave the stream tables of their children (design 4): a log keeps so many marks and no more, and a
//! child may be attached and detached for as long as it lives.
//!
//! Level-triggered: a table is compared with the catalog when its log is opened and when an attachment of its topic ends. What is in the
//! table and not in the catalog is forgotten once the leader has confirmed the end (a catalog that is behind shows no attachment either) and
//! every cursor of this node that sent under it is at rest (a late commit would come in as that of a new stream). What cursors of other nodes
//! send is refused from the moment this node sees that the attachment has ended.
//!
//! Forgetting is in memory. The log's next snapshot is the first without the mark; a log that is opened anew before it was written (after a
//! crash, or closed for idleness) has the mark again, and is looked at again. A closed log waits until it is opened.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::debug;
use veena_contract::{StreamId, TopicId};

use crate::core::Core;
use crate::partition::{OwnerSlot, PartitionId};
use crate::streams::StreamTable;

/// How soon a partition is looked at again whose writer was busy, whose cursors had not come to rest, or whose leader did not answer.
const RETRY: Duration = Duration::from_secs(2);

/// Partitions whose tables may hold marks of attachments that have ended.
#[derive(Default)]
pub struct Suspects {
    partitions: Mutex<BTreeSet<PartitionId>>,
    work: Notify,
}

impl Suspects {
    /// This partition is to be looked at.
    pub fn add(&self, partition: PartitionId) {
        self.partitions.lock().insert(partition);
        self.work.notify_one();
    }

    /// An attachment of this topic has ended. Its logs that are closed are looked at when they are opened.
    pub fn add_open(&self, core: &Core, topic: TopicId) {
        let partitions = core.topics.get(topic).map(|topic| topic.owned()).unwrap_or_default();
        partitions.iter().filter(|partition| partition.serving().is_some()).for_each(|partition| self.add(partition.id));
    }

    /// A log was opened, with this table.
    pub fn on_opened(&self, core: &Core, partition: PartitionId, table: &StreamTable) {
        if !not_attached(core, partition.topic, table).is_empty() {
            self.add(partition);
        }
    }
}

/// Looks at what is suspected, for as long as the node runs.
pub async fn run(core: Arc<Core>) {
    let token = core.ports.tasks.token().clone();
    let suspects = &core.fanout.suspects;
    let mut has_left = false;
    loop {
        tokio::select! {
            () = suspects.work.notified() => {}
            () = tokio::time::sleep(RETRY), if has_left => {}
            () = token.cancelled() => return,
        }
        has_left = false;
        let partitions = std::mem::take(&mut *suspects.partitions.lock());
        for partition in partitions {
            if !forget(&core, partition).await {
                suspects.partitions.lock().insert(partition);
                has_left = true;
            }
        }
    }
}

/// Is this the stream of an attachment of the topic, as this node sees the catalog?
pub fn is_attached(core: &Core, topic: TopicId, stream: StreamId) -> bool {
    let view = core.ports.catalog.view();
    let parent = view.topic_by_id(topic).and_then(|child| view.topic_by_id(child.parent.as_ref()?.parent_id));
    parent.is_some_and(|parent| parent.children.iter().any(|link| link.child_id == topic && link.stream == stream))
}

/// Streams of attachments that the table has and the catalog, as this node sees it, has not.
fn not_attached(core: &Core, topic: TopicId, table: &StreamTable) -> BTreeSet<StreamId> {
    let mut streams = table.attached();
    let view = core.ports.catalog.view();
    let parent = view.topic_by_id(topic).and_then(|child| view.topic_by_id(child.parent.as_ref()?.parent_id));
    for link in parent.iter().flat_map(|parent| &parent.children).filter(|link| link.child_id == topic) {
        streams.remove(&link.stream);
    }
    streams
}

/// Says whether there is nothing left to forget in this partition.
async fn forget(core: &Arc<Core>, id: PartitionId) -> bool {
    let Some(partition) = core.topics.get(id.topic).and_then(|topic| topic.partition(id.index)) else {
        return true;
    };
    let suspected = {
        let Ok(slot) = timeout(RETRY, partition.owner.lock()).await else { return false };
        let OwnerSlot::Open(owner) = &*slot else { return true };
        not_attached(core, id.topic, &owner.table)
    };
    if suspected.is_empty() {
        return true;
    }
    let count = suspected.len();
    let ended = match core.ports.witness.streams_ended(suspected).await {
        Ok(ended) => ended,
        Err(error) => {
            debug!(partition = %partition.dir.display(), %error, "marks of streams are kept");
            return false;
        }
    };
    // A cursor that is made from here on finds no attachment, and sends nothing.
    if core.fanout.is_any_used(&ended.fact().streams) {
        return false;
    }
    let Ok(mut slot) = timeout(RETRY, partition.owner.lock()).await else { return false };
    if let OwnerSlot::Open(owner) = &mut *slot {
        owner.table.forget(&ended);
    }
    ended.fact().streams.len() == count
}
