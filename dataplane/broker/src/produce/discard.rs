//! Records whose topic is unknown here. They are dropped only after the leader has confirmed that the incarnation is gone (design I5);
//! until then they hold the WAL's checkpoint. The leader is asked once per topic, not once per record.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tracing::{debug, info};
use veena_contract::{Confirmed, TenantId, TopicGone, TopicId, WalSeq};
use veena_storage::wal::WalRecord;

use crate::core::Core;
use crate::partition::Partition;
use crate::produce::dispatch;
use crate::tasks::OnExit;

const RETRY: Duration = Duration::from_secs(1);

/// Records that wait for the leader's word, by incarnation.
#[derive(Default)]
pub struct Orphans {
    waiting: Mutex<BTreeMap<TopicId, Vec<WalRecord>>>,
}

impl Orphans {
    /// The oldest record that waits.
    pub fn front(&self) -> Option<WalSeq> {
        self.waiting.lock().values().flatten().map(|record| record.seq).min()
    }

    /// A record whose topic is unknown here.
    pub fn add(&self, core: &Arc<Core>, record: WalRecord) {
        let topic = TopicId(record.destination.group);
        core.dispatch.add_bytes(record.body.len());
        let is_first = {
            let mut waiting = self.waiting.lock();
            let records = waiting.entry(topic).or_default();
            records.push(record);
            records.len() == 1
        };
        if is_first {
            let core_for_run = Arc::clone(core);
            core.ports.tasks.spawn("discard", OnExit::Shutdown, async move { confirm(&core_for_run, topic).await });
        }
    }

    /// The topic lives: its records go to their queues, and only then leave here. Says whether none is left.
    fn hand_back(&self, core: &Arc<Core>, topic: TopicId) -> bool {
        let records = self.waiting.lock().get(&topic).cloned().unwrap_or_default();
        let last = records.last().map(|record| record.seq);
        for record in records {
            dispatch::enqueue_one(core, record);
        }
        let mut waiting = self.waiting.lock();
        let Some(left) = waiting.get_mut(&topic) else {
            return true;
        };
        let handed: usize = left.extract_if(.., |record| Some(record.seq) <= last).map(|record| record.body.len()).sum();
        core.dispatch.sub_bytes(handed);
        let is_done = left.is_empty();
        if is_done {
            waiting.remove(&topic);
        }
        is_done
    }

    /// Drops the records of a topic that is gone.
    fn drop_records(&self, core: &Core, why: &Confirmed<TopicGone>) {
        let topic = why.fact().topic;
        let records = self.waiting.lock().remove(&topic).unwrap_or_default();
        core.dispatch.sub_bytes(records.iter().map(|record| record.body.len()).sum());
        info!(%topic, applied = why.applied().0, records = records.len(), "records of a deleted topic are dropped, as the leader confirmed");
        core.metrics.records_discarded.add(records.len() as u64);
        core.dispatch.note_progress();
    }

    /// Everything queued for a partition whose topic is gone.
    pub fn take_over(&self, core: &Arc<Core>, partition: &Partition) {
        let mut queue = partition.queue.lock();
        let bytes = queue.bytes();
        for record in queue.drain() {
            if record.stream != core.wal_stream() {
                core.dispatch.sub_former(record.body.len());
            }
            self.add(core, record);
        }
        core.dispatch.sub_bytes(bytes);
        core.dispatch.deactivate(partition);
    }
}

/// Asks until the leader has said that the topic is gone, or the topic turns out to live.
async fn confirm(core: &Arc<Core>, topic: TopicId) {
    let token = core.ports.tasks.token();
    while !token.is_cancelled() {
        let outcome = core.ports.witness.topic_gone(&TenantId::default_tenant(), topic).await;
        let is_living = core.ports.catalog.view().topic_by_id(topic).is_some();
        if is_living {
            if core.orphans.hand_back(core, topic) {
                return;
            }
            continue;
        }
        match outcome {
            Ok(gone) => {
                core.orphans.drop_records(core, &gone);
                return;
            }
            Err(error) => debug!(%topic, %error, "records of an unknown topic are kept"),
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY) => {}
            () = token.cancelled() => {}
        }
    }
}
