//! Records whose topic is unknown here. They are dropped only after the leader has confirmed that the incarnation is gone (design I5);
//! until then they hold the WAL's checkpoint. The leader is asked once per topic, not once per record.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tracing::{debug, info};
use veena_contract::{Confirmed, TenantId, TopicGone, TopicId, WalSeq};
use veena_storage::wal::WalRecord;
use veena_storage::wal::parked::ParkedFile;

use crate::core::Core;
use crate::partition::Partition;
use crate::produce::{dispatch, park};
use crate::tasks::OnExit;

const RETRY: Duration = Duration::from_secs(1);

/// Records that wait for the leader's word, by incarnation.
#[derive(Default)]
pub struct Orphans {
    waiting: Mutex<BTreeMap<TopicId, Waiting>>,
}

/// What waits for the leader's word on one incarnation. While an entry is there, somebody asks.
#[derive(Default)]
struct Waiting {
    /// Older than the records.
    files: Vec<Arc<ParkedFile>>,
    records: Vec<WalRecord>,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.files.is_empty() && self.records.is_empty()
    }
}

impl Orphans {
    /// The oldest record that waits.
    pub fn front(&self) -> Option<WalSeq> {
        self.waiting.lock().values().flat_map(|waiting| &waiting.records).map(|record| record.seq).min()
    }

    /// How many records and files wait; at least one for each topic that is asked about, also while its records are being dropped.
    pub fn count(&self) -> usize {
        self.waiting.lock().values().map(|waiting| (waiting.files.len() + waiting.records.len()).max(1)).sum()
    }

    /// A record whose topic is unknown here.
    pub fn add(&self, core: &Arc<Core>, record: WalRecord) {
        core.dispatch.add_bytes(record.body.len());
        self.with(core, TopicId(record.destination.group), |waiting| waiting.records.push(record));
    }

    /// A file of records whose topic is unknown here.
    pub fn add_parked(&self, core: &Arc<Core>, file: Arc<ParkedFile>) {
        self.with(core, TopicId(file.destination.group), |waiting| waiting.files.push(file));
    }

    fn with(&self, core: &Arc<Core>, topic: TopicId, change: impl FnOnce(&mut Waiting)) {
        let is_first = {
            let mut waiting = self.waiting.lock();
            let is_first = !waiting.contains_key(&topic);
            change(waiting.entry(topic).or_default());
            is_first
        };
        if is_first {
            let core_for_run = Arc::clone(core);
            core.ports.tasks.spawn("discard", OnExit::Shutdown, async move { confirm(&core_for_run, topic).await });
        }
    }

    /// A record whose topic may be known waits behind earlier ones of the topic, if any wait; else it comes back. So none overtakes them.
    pub fn follow(&self, core: &Core, record: WalRecord) -> Option<WalRecord> {
        let mut waiting = self.waiting.lock();
        let Some(earlier) = waiting.get_mut(&TopicId(record.destination.group)) else {
            return Some(record);
        };
        core.dispatch.add_bytes(record.body.len());
        earlier.records.push(record);
        None
    }

    /// The topic lives: its files and records go to their queues, and only then leave here; those that came meanwhile follow. Says whether
    /// none is left.
    fn hand_back(&self, core: &Arc<Core>, topic: TopicId) -> bool {
        loop {
            let (files, records) = match self.waiting.lock().get_mut(&topic) {
                Some(waiting) => (std::mem::take(&mut waiting.files), waiting.records.clone()),
                None => return true,
            };
            let homeless: Vec<_> = files.into_iter().filter_map(|file| park::attach_known(core, file)).collect();
            let mut handed = 0;
            for record in &records {
                let Some((topic, partition)) = core.destination(record.destination).filter(|_| homeless.is_empty()) else { break };
                dispatch::enqueue_at(core, &topic, &partition, record.clone());
                handed += 1;
            }
            let mut all = self.waiting.lock();
            let Some(waiting) = all.get_mut(&topic) else {
                return true;
            };
            core.dispatch.sub_bytes(waiting.records.drain(..handed).map(|record| record.body.len()).sum());
            waiting.files.extend(homeless);
            if waiting.is_empty() {
                all.remove(&topic);
                return true;
            }
            if handed < records.len() || !waiting.files.is_empty() {
                return false;
            }
        }
    }

    /// Drops the records of a topic that is gone. Says whether none is left.
    async fn drop_records(&self, core: &Arc<Core>, why: Confirmed<TopicGone>) -> bool {
        let (topic, applied) = (why.fact().topic, why.applied().0);
        let Waiting { files, records } = self.waiting.lock().get_mut(&topic).map(std::mem::take).unwrap_or_default();
        core.dispatch.sub_bytes(records.iter().map(|record| record.body.len()).sum());
        info!(
            %topic, applied, records = records.len(), files = files.len(),
            "records of a deleted topic are dropped, as the leader confirmed"
        );
        core.metrics.records_discarded.add(records.len() as u64);
        core.dispatch.note_progress();
        let worker = Arc::clone(core);
        let kept = if files.is_empty() { files } else { core.ports.write_io.run(move || park::drop_files(&worker, files, &why)).await };
        let mut all = self.waiting.lock();
        let Some(waiting) = all.get_mut(&topic) else {
            return true;
        };
        waiting.files.extend(kept);
        let is_done = waiting.is_empty();
        if is_done {
            all.remove(&topic);
        }
        is_done
    }

    /// Everything queued for a partition whose topic is gone.
    pub fn take_over(&self, core: &Arc<Core>, partition: &Partition) {
        let mut queue = partition.queue.lock();
        let (files, mut bytes) = queue.parked.drain();
        for file in files {
            self.add_parked(core, file);
        }
        for record in queue.drain() {
            bytes += record.body.len();
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
        let is_done = match outcome {
            _ if is_living => core.orphans.hand_back(core, topic),
            Ok(gone) => core.orphans.drop_records(core, gone).await,
            Err(error) => {
                debug!(%topic, %error, "records of an unknown topic are kept");
                false
            }
        };
        if is_done {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY) => {}
            () = token.cancelled() => {}
        }
    }
}
