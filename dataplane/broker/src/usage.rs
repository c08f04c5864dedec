//! What tenants have used: messages and bytes that came in and went out, and what is stored.
//!
//! What comes in is counted where it is committed, by the partition's owner, once it is visible: a record that is sent again, after a crash or
//! a move, is known there and not counted again. The counts are written down every [`limits::USAGE_TALLY_MS`] and when the node stops: a crash
//! may lose what was counted since, and counts nothing twice. What is stored is never counted up and down, but read off the logs each time;
//! at the start, off the files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use tracing::{error, info, warn};
use veena_contract::{CatalogView, Limit, TenantId, TopicId, limits};
use veena_storage::cell::{self, CellKind, CellRead};
use veena_storage::disk::{OpenMode, read_full_at};
use veena_storage::lanes::Lane;
use veena_storage::partition::{SEGMENT_HEADER_BYTES, Section, is_segment_name};

use crate::core::Core;
use crate::layout;
use crate::metrics::Counter;
use crate::partition::PartitionId;
use crate::quota::stored::StoredKey;
use crate::sweep::list_existing;

/// How much of a file is looked at at once for the end of what is in it.
const PADDING_BLOCK_BYTES: usize = 64 * 1024;

/// What one tenant has used on this node. Hot paths touch these atomics and nothing else.
#[derive(Debug, Default)]
pub struct TenantUsage {
    /// Its turn where tenants take turns; never that of another one.
    lane: Lane,
    messages_in: Counter,
    bytes_in: Counter,
    messages_copied: Counter,
    bytes_copied: Counter,
    messages_out: Counter,
    bytes_out: Counter,
    stored: AtomicU64,
    stored_peak: AtomicU64,
    /// Bytes of bodies that wait here for partitions, in memory and in files.
    queued: AtomicU64,
    /// Requests that were refused for a limit, since the process began.
    refused: Counter,
}

/// The same in numbers, as they are told and written down. Fields are added with a default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UsageNumbers {
    /// Messages of clients that were committed.
    pub messages_in: u64,
    /// Their bytes: payloads, keys and headers, as stored before compression.
    pub bytes_in: u64,
    /// Messages that were copied into children.
    pub messages_copied: u64,
    /// Their bytes.
    pub bytes_copied: u64,
    /// Messages that were delivered, each time they were; replays too.
    pub messages_out: u64,
    /// Bytes of their payloads and keys.
    pub bytes_out: u64,
    /// Bytes that logs take now.
    pub stored_bytes: u64,
    /// The most that they ever took here.
    pub stored_bytes_peak: u64,
}

impl UsageNumbers {
    /// Adds what another node has counted. Peaks of different times are no peak of all: their sum is the most that it can have been.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            messages_in: self.messages_in.saturating_add(other.messages_in),
            bytes_in: self.bytes_in.saturating_add(other.bytes_in),
            messages_copied: self.messages_copied.saturating_add(other.messages_copied),
            bytes_copied: self.bytes_copied.saturating_add(other.bytes_copied),
            messages_out: self.messages_out.saturating_add(other.messages_out),
            bytes_out: self.bytes_out.saturating_add(other.bytes_out),
            stored_bytes: self.stored_bytes.saturating_add(other.stored_bytes),
            stored_bytes_peak: self.stored_bytes_peak.saturating_add(other.stored_bytes_peak),
        }
    }
}

impl TenantUsage {
    fn from_numbers(lane: Lane, numbers: UsageNumbers) -> Self {
        let usage = Self { lane, ..Self::default() };
        usage.messages_in.add(numbers.messages_in);
        usage.bytes_in.add(numbers.bytes_in);
        usage.messages_copied.add(numbers.messages_copied);
        usage.bytes_copied.add(numbers.bytes_copied);
        usage.messages_out.add(numbers.messages_out);
        usage.bytes_out.add(numbers.bytes_out);
        usage.stored_peak.store(numbers.stored_bytes_peak, Ordering::Relaxed);
        usage
    }

    /// Its turn where tenants take turns.
    #[must_use]
    pub const fn lane(&self) -> Lane {
        self.lane
    }

    /// As it is now.
    #[must_use]
    pub fn numbers(&self) -> UsageNumbers {
        UsageNumbers {
            messages_in: self.messages_in.get(),
            bytes_in: self.bytes_in.get(),
            messages_copied: self.messages_copied.get(),
            bytes_copied: self.bytes_copied.get(),
            messages_out: self.messages_out.get(),
            bytes_out: self.bytes_out.get(),
            stored_bytes: self.stored.load(Ordering::Relaxed),
            stored_bytes_peak: self.stored_peak.load(Ordering::Relaxed),
        }
    }

    /// These sections of a log have become visible.
    pub(crate) fn on_committed(&self, sections: &[Section]) {
        for section in sections {
            let messages = section.records.len() as u64;
            let bytes = section.records.iter().map(|record| record.body.len() as u64).sum();
            // A stream that comes from no WAL is a cursor's.
            let is_copy = section.is_tracked && section.origin.id == 0;
            let (of_messages, of_bytes) =
                if is_copy { (&self.messages_copied, &self.bytes_copied) } else { (&self.messages_in, &self.bytes_in) };
            of_messages.add(messages);
            of_bytes.add(bytes);
        }
    }

    /// Bytes that wait here for partitions of the tenant, in memory and in files.
    #[must_use]
    pub fn queued(&self) -> u64 {
        self.queued.load(Ordering::Relaxed)
    }

    /// One of its queues had so many bytes, and has so many now.
    pub(crate) fn on_queued(&self, before: u64, after: u64) {
        match after.checked_sub(before) {
            Some(0) => {}
            Some(more) => drop(self.queued.fetch_add(more, Ordering::Relaxed)),
            None => drop(self.queued.fetch_sub(before - after, Ordering::Relaxed)),
        }
    }

    /// How many requests were refused for a limit, since the process began.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.get()
    }

    /// One more was.
    pub fn on_refused(&self) {
        self.refused.add(1);
    }

    /// Messages were delivered.
    pub fn on_delivered(&self, messages: u64, bytes: u64) {
        self.messages_out.add(messages);
        self.bytes_out.add(bytes);
    }
}

/// What every tenant has used on this node.
#[derive(Default)]
pub struct Usage {
    tenants: RwLock<BTreeMap<TenantId, Arc<TenantUsage>>>,
    lanes: AtomicU64,
    /// How many tenants there are above.
    known: AtomicUsize,
    /// Bytes of logs that this process has not opened yet; `None` until they were looked for.
    unopened: Mutex<Option<BTreeMap<PartitionId, u64>>>,
}

impl Usage {
    /// What a tenant uses.
    #[must_use]
    pub fn of(&self, tenant: &TenantId) -> Arc<TenantUsage> {
        if let Some(usage) = self.tenants.read().get(tenant) {
            return Arc::clone(usage);
        }
        let new = || Arc::new(TenantUsage { lane: self.next_lane(), ..TenantUsage::default() });
        let mut tenants = self.tenants.write();
        let usage = Arc::clone(tenants.entry(tenant.clone()).or_insert_with(new));
        self.known.store(tenants.len(), Ordering::Relaxed);
        usage
    }

    /// From 1: the first is nobody's.
    fn next_lane(&self) -> Lane {
        Lane(1 + self.lanes.fetch_add(1, Ordering::Relaxed))
    }

    /// Do more tenants than one use this node, of those that there are? One alone takes no turns, and all of the room.
    #[must_use]
    pub fn has_many(&self) -> bool {
        self.known.load(Ordering::Relaxed) > 1
    }

    /// In which lane something of a tenant waits.
    #[must_use]
    pub fn lane_of(&self, usage: &TenantUsage) -> Lane {
        if self.has_many() { usage.lane() } else { Lane::default() }
    }

    /// Every tenant that has used anything, by name.
    #[must_use]
    pub fn tenants(&self) -> Vec<(TenantId, Arc<TenantUsage>)> {
        self.tenants.read().iter().map(|(tenant, usage)| (tenant.clone(), Arc::clone(usage))).collect()
    }

    /// What a tenant has used, if anything.
    #[must_use]
    pub fn numbers(&self, tenant: &TenantId) -> UsageNumbers {
        self.tenants.read().get(tenant).map(|usage| usage.numbers()).unwrap_or_default()
    }

    /// What every tenant has used, by name.
    #[must_use]
    pub fn all(&self) -> BTreeMap<TenantId, UsageNumbers> {
        self.tenants.read().iter().map(|(tenant, usage)| (tenant.clone(), usage.numbers())).collect()
    }

    /// Forgets tenants that are gone, with all that they have used.
    fn keep_known(&self, view: &CatalogView) {
        let is_gone = |tenant: &TenantId| view.tenant_state(tenant).is_none();
        if self.tenants.read().keys().any(is_gone) {
            let mut tenants = self.tenants.write();
            tenants.retain(|tenant, _| !is_gone(tenant));
            self.known.store(tenants.len(), Ordering::Relaxed);
        }
    }

    fn set_stored(&self, bytes: &BTreeMap<StoredKey, u64>) {
        let known: Vec<TenantId> = self.tenants.read().keys().cloned().collect();
        let stored = bytes.keys().filter(|key| key.1.is_none()).map(|key| key.0.clone());
        for tenant in stored.chain(known).collect::<std::collections::BTreeSet<_>>() {
            let usage = self.of(&tenant);
            let stored = bytes.get(&(tenant, None)).copied().unwrap_or_default();
            usage.stored.store(stored, Ordering::Relaxed);
            usage.stored_peak.fetch_max(stored, Ordering::Relaxed);
        }
    }
}

fn cell_path(data_dir: &Path) -> PathBuf {
    data_dir.join("usage.cell")
}

/// Blocking. Reads what was written down when the engine opens. Counts that cannot be read begin anew, and that is said.
pub(crate) fn load(core: &Core) {
    let path = cell_path(&core.config.data_dir);
    let counted: BTreeMap<TenantId, UsageNumbers> = match cell::read(core.ports.disk.as_ref(), &path, CellKind::USAGE) {
        Ok(CellRead::NotThere) => return,
        Ok(CellRead::Value(value)) => match serde_json::from_slice(&value) {
            Ok(counted) => counted,
            Err(failed) => {
                return warn!(path = %path.display(), error = %failed, "what tenants have used cannot be read: it is counted from nothing");
            }
        },
        Ok(CellRead::Damaged { reason }) => {
            core.metrics.damage_found.add(1);
            return error!(path = %path.display(), reason, "what tenants have used is damaged: it is counted from nothing");
        }
        Err(failed) => {
            return error!(path = %path.display(), error = %failed, "what tenants have used cannot be read: it is counted from nothing");
        }
    };
    let usage = |numbers| Arc::new(TenantUsage::from_numbers(core.usage.next_lane(), numbers));
    let usages = counted.into_iter().map(|(tenant, numbers)| (tenant, usage(numbers)));
    let mut tenants = core.usage.tenants.write();
    *tenants = usages.collect();
    core.usage.known.store(tenants.len(), Ordering::Relaxed);
}

/// Blocking. Writes the counts down, unless they are those of `before`; says what was written last.
fn save(core: &Core, before: BTreeMap<TenantId, UsageNumbers>) -> BTreeMap<TenantId, UsageNumbers> {
    let now = core.usage.all();
    if now == before {
        return before;
    }
    let value = serde_json::to_vec(&now).expect("invariant: numbers by name are plain data");
    if value.len() > limits::CELL_BYTES_MAX {
        warn!(tenants = now.len(), "there are too many tenants for what they use to be written down");
        return before;
    }
    match cell::write(core.ports.disk.as_ref(), &cell_path(&core.config.data_dir), CellKind::USAGE, &value) {
        Ok(()) => now,
        Err(failed) => {
            core.metrics.housekeeping_failed.add(1);
            info!(error = &failed as &dyn std::error::Error, "what tenants have used cannot be written down now; tried again later");
            before
        }
    }
}

/// Blocking. Writes the counts down for the last time.
pub(crate) fn save_last(core: &Core) {
    tally(core);
    save(core, BTreeMap::new());
}

/// Adds up what is stored, and writes the counts down, each at its pace; the former sooner while somebody has a limit on it.
pub(crate) async fn run(core: Arc<Core>) {
    let token = core.ports.tasks.token().clone();
    let mut saved = BTreeMap::new();
    let mut rounds: u64 = 0;
    let rounds_max = limits::USAGE_TALLY_MS / limits::QUOTA_TALLY_MS;
    while !token.is_cancelled() {
        let view = core.ports.catalog.view();
        let is_due = rounds.is_multiple_of(rounds_max);
        if is_due || view.quotas.values().any(|record| record.quota.get(Limit::StoredBytes).is_some()) {
            let worker = Arc::clone(&core);
            let before = std::mem::take(&mut saved);
            saved = core
                .ports
                .read_io
                .run(move || {
                    tally(&worker);
                    if is_due { save(&worker, before) } else { before }
                })
                .await;
        }
        core.quota.forget_idle(&view, core.now_us());
        rounds = rounds.wrapping_add(1);
        let is_unlimited = view.quotas.is_empty() && core.quota.is_empty();
        if is_unlimited {
            rounds = 0;
        }
        let pause = if is_unlimited { limits::USAGE_TALLY_MS } else { limits::QUOTA_TALLY_MS };
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(pause)) => {}
            () = first_limit(&core), if is_unlimited => {}
            () = token.cancelled() => {}
        }
    }
}

/// Completes once somebody has a limit.
async fn first_limit(core: &Core) {
    loop {
        let view = core.ports.catalog.view();
        if !view.quotas.is_empty() {
            return;
        }
        core.ports.catalog.changed(view.applied).await;
    }
}

/// Blocking. Adds up what each tenant, and each topic with a limit, stores on this node.
pub(crate) fn tally(core: &Core) {
    let view = core.ports.catalog.view();
    let limited = view.quotas.values().filter(|record| record.quota.get(Limit::StoredBytes).is_some());
    let begun = core.stored.begin_tally(limited.map(|record| (record.tenant.clone(), record.topic.clone())));
    let bytes = stored(core, &view);
    core.usage.keep_known(&view);
    core.usage.set_stored(&bytes);
    core.stored.end_tally(begun, |key| bytes.get(key).copied().unwrap_or_default());
    *core.stored_here.lock() = bytes;
}

/// What the logs of this node take, and what waits here to be committed, by tenant, and by topic where that has a limit.
fn stored(core: &Core, view: &CatalogView) -> BTreeMap<StoredKey, u64> {
    let mut sums: BTreeMap<StoredKey, u64> = BTreeMap::new();
    let mut add = |topic: TopicId, bytes: u64| {
        let Some(record) = view.topic_by_id(topic).filter(|_| bytes > 0) else { return };
        *sums.entry((record.tenant.clone(), None)).or_default() += bytes;
        if view.quota(&record.tenant, Some(&record.name)).is_some() {
            *sums.entry((record.tenant.clone(), Some(record.name.clone()))).or_default() += bytes;
        }
    };
    let mut unopened = core.usage.unopened.lock();
    let unopened = unopened.get_or_insert_with(|| find_logs(core));
    for (id, topic) in core.topics.all() {
        for partition in topic.owned() {
            if let Some(numbers) = partition.numbers() {
                unopened.remove(&partition.id);
                add(id, numbers.bytes);
            }
        }
    }
    // A partition that was moved away, or whose topic is gone, is nobody's here.
    unopened.retain(|id, _| view.topic_by_id(id.topic).is_some_and(|record| core.is_mine(record, id.index)));
    unopened.iter().for_each(|(id, bytes)| add(id.topic, *bytes));
    for partition in core.dispatch.active() {
        add(partition.id.topic, partition.queue.lock().bytes());
    }
    sums
}

/// The logs in the data directory and their bytes. What cannot be listed counts nothing, until it is opened.
fn find_logs(core: &Core) -> BTreeMap<PartitionId, u64> {
    let list = |dir: &Path| list_existing(core.ports.disk.as_ref(), dir).unwrap_or_default();
    let root = layout::topics_dir(&core.config.data_dir);
    let below =
        |dir: PathBuf| list(&dir).into_iter().filter(|entry| entry.is_dir).map(move |entry| dir.join(entry.name)).collect::<Vec<_>>();
    let mut found = BTreeMap::new();
    for dir in below(root).into_iter().flat_map(below).flat_map(below) {
        let Some(id) = layout::partition_of(&dir) else { continue };
        // In order of their names, which is that of their records.
        let mut logs: Vec<(String, u64)> =
            list(&dir).into_iter().filter(|entry| is_segment_name(&entry.name)).map(|entry| (entry.name, entry.len)).collect();
        if let Some((name, len)) = logs.last_mut() {
            *len = without_padding(core, &dir.join(name), *len);
        }
        found.insert(id, logs.iter().map(|(_, len)| len).sum());
    }
    found
}

/// The length of a segment that was written to last without the zeros behind its records. Records that end with zeros lose those, until the log
/// is opened.
fn without_padding(core: &Core, path: &Path, len: u64) -> u64 {
    let least = (SEGMENT_HEADER_BYTES as u64).min(len);
    let Ok(file) = core.ports.disk.open(path, OpenMode::Read) else { return len };
    let mut block = vec![0; PADDING_BLOCK_BYTES];
    let mut end = len;
    while end > least {
        let begin = end.saturating_sub(PADDING_BLOCK_BYTES as u64).max(least);
        let Some(block) = usize::try_from(end - begin).ok().and_then(|len| block.get_mut(..len)) else { return len };
        let Ok(read) = read_full_at(file.as_ref(), block, begin) else { return len };
        if let Some(last) = block[..read].iter().rposition(|byte| *byte != 0) {
            return begin + last as u64 + 1;
        }
        end = begin;
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).expect("a tenant")
    }

    #[test]
    fn a_tenant_takes_no_turns_any_more_once_it_is_alone_again() {
        let usage = Usage::default();
        let stays = usage.of(&TenantId::default_tenant());
        assert_eq!(usage.lane_of(&stays), Lane::default());
        let goes = usage.of(&tenant("goes"));
        assert!(usage.lane_of(&stays) == stays.lane() && usage.lane_of(&goes) == goes.lane() && stays.lane() != goes.lane());
        usage.keep_known(&CatalogView::default());
        assert_eq!(usage.lane_of(&stays), Lane::default());
        assert!(![stays.lane(), goes.lane()].contains(&usage.of(&tenant("comes")).lane()), "nobody gets the lane of another");
    }
}
