//! Housekeeping: expired leases, idle logs, retention, free room, topics that are gone. Each sweep takes no input, is idempotent, and does
//! nothing when there is nothing to do.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tracing::{error, info, warn};
use veena_contract::{Confirmed, LogIndex, TenantId, TenantState, TopicGone, TopicId, limits};
use veena_storage::disk::{DirEntry, Disk};

use crate::consume::reserve;
use crate::core::Core;
use crate::layout;
use crate::owners::moves::reclaim;
use crate::partition::{OwnerSlot, Partition, PartitionId};
use crate::tasks::OnExit;
use crate::topics::Topic;

/// Closed logs are looked at in every so many rounds of retention.
const COLD_WALK_ROUNDS: u32 = 5;
const SPACE_CHECK: Duration = Duration::from_secs(2);
const GONE_RETRY: Duration = Duration::from_secs(2);

/// Leases, idle logs, room and retention, each at its own pace.
pub async fn run(core: Arc<Core>) {
    let token = core.ports.tasks.token().clone();
    let (mut space_due, mut is_low) = (Instant::now(), false);
    while !token.is_cancelled() {
        reopen_failed(&core);
        expire_leases(&core);
        core.queue.sweep(&core);
        close_idle(&core).await;
        if Instant::now() >= space_due {
            check_space(&core, &mut is_low).await;
            space_due = Instant::now() + SPACE_CHECK;
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(limits::LEASE_SWEEP_MS)) => {}
            () = token.cancelled() => {}
        }
    }
}

/// Retention and quarantine: apart from the rest, since a walk over many logs takes its time.
pub async fn run_retention(core: Arc<Core>) {
    let token = core.ports.tasks.token().clone();
    let every = Duration::from_millis(core.config.retention_check_ms);
    let mut rounds: u32 = 0;
    let mut is_quarantine_failing = false;
    measure_quarantine(&core).await;
    while !token.is_cancelled() {
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = token.cancelled() => return,
        }
        retain(&core, rounds.is_multiple_of(COLD_WALK_ROUNDS)).await;
        clean_quarantine(&core, &mut is_quarantine_failing).await;
        rounds = rounds.wrapping_add(1);
    }
}

fn open_partitions(core: &Core) -> Vec<(Arc<Topic>, Arc<Partition>)> {
    living(core, core.open_logs())
}

fn living(core: &Core, ids: Vec<PartitionId>) -> Vec<(Arc<Topic>, Arc<Partition>)> {
    let find = |id: PartitionId| {
        let topic = core.topics.get(id.topic)?;
        let partition = topic.partition(id.index)?;
        Some((topic, partition))
    };
    ids.into_iter().filter_map(find).collect()
}

/// Logs that could not be opened after a failure are tried again, each after its back-off: nobody is woken for what they hold. One that has
/// never been open is tried while somebody waits for it. No sweep waits for one that takes long.
fn reopen_failed(core: &Arc<Core>) {
    for (topic, partition) in living(core, core.failed_logs()).into_iter().chain(open_partitions(core)) {
        if partition.take_grown() {
            core.fanout.on_published(core, partition.id);
        }
        let is_wanted = match partition.serving() {
            Some(serving) => serving.reader.is_closed(),
            None => topic.waiters.lock().parked() > 0,
        };
        if !is_wanted {
            continue;
        }
        // Who holds the writer is opening it, or uses it.
        let Ok(mut slot) = Arc::clone(&partition.owner).try_lock_owned() else { continue };
        let core_for_open = Arc::clone(core);
        core.ports.tasks.spawn("reopen", OnExit::Shutdown, async move {
            let (worker, target) = (Arc::clone(&core_for_open), Arc::clone(&partition));
            let has_opened = core_for_open.ports.write_io.run(move || target.open_slot(&worker, &mut slot).is_ok()).await;
            if has_opened {
                core_for_open.fanout.on_published(&core_for_open, partition.id);
            }
        });
    }
}

/// Ends what ran out, and wakes those who can use it.
pub fn expire_leases(core: &Core) {
    let now = core.now_ms();
    for (topic, partition) in open_partitions(core) {
        let Some(serving) = partition.serving() else { continue };
        let expired = serving.leases.lock().expire(now);
        if expired > 0 {
            core.metrics.leases_expired.add(expired as u64);
        }
        if topic.waiters.lock().parked() > 0 && reserve::is_takeable(core, &topic.record.load(), &serving) {
            topic.wake(partition.id.index, 1);
        }
    }
}

async fn close_idle(core: &Arc<Core>) {
    let idle_ms = core.config.idle_log_eviction_ms;
    if idle_ms == 0 {
        return;
    }
    let now = core.now_ms();
    for (_, partition) in open_partitions(core) {
        if now.saturating_sub(partition.last_used()) < idle_ms {
            continue;
        }
        let Ok(mut slot) = Arc::clone(&partition.owner).try_lock_owned() else { continue };
        let worker = Arc::clone(core);
        let has_closed = core.ports.write_io.run(move || partition.close_if_idle(&worker, &mut slot)).await;
        core.metrics.idle_logs_closed.add(u64::from(has_closed));
    }
}

/// `was_low` is what was found the last time. A write that found no room meanwhile may have needed more of it than is free.
async fn check_space(core: &Arc<Core>, was_low: &mut bool) {
    let worker = Arc::clone(core);
    let space = core.ports.read_io.run(move || worker.ports.disk.space(&worker.config.data_dir)).await;
    match space {
        Ok(space) => {
            core.disk_available_bytes.store(space.available, Ordering::Relaxed);
            let is_low = space.available < core.config.disk_reserve_bytes;
            core.is_disk_low.store(is_low, Ordering::Relaxed);
            if std::mem::replace(was_low, is_low) != is_low {
                if is_low {
                    warn!(
                        available = space.available,
                        reserve = core.config.disk_reserve_bytes,
                        "the data disk is nearly full: produce is refused"
                    );
                } else {
                    info!(available = space.available, "the data disk has room again: produce is accepted");
                }
            }
        }
        Err(failed) => {
            core.metrics.housekeeping_failed.add(1);
            warn!(error = %failed, "the free room of the data disk cannot be read");
        }
    }
}

/// Applies retention to open logs, and now and then to all: a log nobody uses ages too.
pub async fn retain(core: &Arc<Core>, is_cold_walk: bool) {
    let partitions = if is_cold_walk {
        let view = core.ports.catalog.view();
        let living = view.by_id.values().map(|record| core.topics.of(core, record));
        living.flat_map(|topic| topic.owned().into_iter().map(move |partition| (Arc::clone(&topic), partition))).collect()
    } else {
        open_partitions(core)
    };
    for (topic, partition) in partitions {
        if core.ports.tasks.token().is_cancelled() {
            return;
        }
        retain_one(core, &topic, &partition).await;
    }
}

async fn retain_one(core: &Arc<Core>, topic: &Arc<Topic>, partition: &Arc<Partition>) {
    let record = topic.record.load_full();
    if record.retention_ms == 0 && record.retention_bytes == 0 {
        return;
    }
    let was_closed = partition.serving().is_none();
    // A log whose writer is busy has its turn in the next round: one that hangs holds up nobody.
    let Ok(mut slot) = Arc::clone(&partition.owner).try_lock_owned() else { return };
    if matches!(*slot, OwnerSlot::Frozen { .. }) || !core.may_serve(partition.id) {
        return;
    }
    let (worker, target) = (Arc::clone(core), Arc::clone(partition));
    core.ports
        .write_io
        .run(move || {
            match worker.ports.disk.exists(&target.dir) {
                Ok(false) if was_closed => return,
                Ok(_) => {}
                Err(failed) => {
                    worker.metrics.housekeeping_failed.add(1);
                    warn!(partition = %target.dir.display(), error = %failed, "retention cannot look at a closed log; tried again later");
                    return;
                }
            }
            if target.open_slot(&worker, &mut slot).is_err() {
                // Why was logged where it was found.
                worker.metrics.housekeeping_failed.add(1);
                return;
            }
            retain_slot(&worker, &target, &mut slot, record.retention_ms, record.retention_bytes);
            if was_closed {
                target.close_if_idle(&worker, &mut slot);
            }
        })
        .await;
}

fn retain_slot(core: &Core, partition: &Arc<Partition>, slot: &mut OwnerSlot, retention_ms: u64, retention_bytes: u64) {
    let OwnerSlot::Open(owner) = slot else { return };
    match owner.log.retain(core.ports.clock.now_ms(), retention_ms, retention_bytes) {
        Ok(retained) if retained.segments > 0 => {
            core.metrics.segments_retired.add(retained.segments);
            if let Some(serving) = partition.serving() {
                let dropped = serving.leases.lock().jump_to(retained.oldest);
                core.metrics.messages_retention_dropped.add(dropped);
                partition.counts.retention_dropped.add(dropped);
                partition.queue_settle(core);
            }
        }
        Ok(_) => {}
        Err(failed) => {
            core.metrics.housekeeping_failed.add(1);
            warn!(partition = %partition.dir.display(), error = %failed, "retention could not be applied; tried again later");
        }
    }
}

/// Follows the catalog: topics that are gone end here, and what they left on disk goes once the leader has confirmed it.
pub async fn follow_catalog(core: Arc<Core>) {
    let token = core.ports.tasks.token().clone();
    let mut seen = LogIndex(0);
    let mut has_leftovers = true;
    let mut is_listing_failing = false;
    while !token.is_cancelled() {
        // Before the view: a topic that was made from a newer one would look deleted.
        let known = core.topics.all();
        let view = core.ports.catalog.view();
        seen = view.applied.max(seen);
        for (id, topic) in known {
            match view.topic_by_id(id) {
                Some(record) => drop(core.topics.of(&core, record)),
                None => end_topic(&core, id, &topic),
            }
        }
        core.moves.reconcile(&core, &view);
        core.fanout.reconcile(&core, &view);
        let has_ending = !core.fanout.forget_ended(&core).await;
        if has_leftovers {
            let are_topics_clean = remove_leftovers(&core, &mut is_listing_failing).await;
            has_leftovers = !reclaim::run(&core).await || !are_topics_clean;
        }
        tokio::select! {
            () = core.ports.catalog.changed(seen) => has_leftovers = true,
            () = tokio::time::sleep(GONE_RETRY), if has_leftovers || has_ending => {}
            () = token.cancelled() => {}
        }
    }
}

/// Closes a deleted topic's partitions for good, apart from the rest: one of them may be busy for long.
fn end_topic(core: &Arc<Core>, id: TopicId, topic: &Arc<Topic>) {
    if !topic.set_gone() {
        return;
    }
    let (core_for_end, topic) = (Arc::clone(core), Arc::clone(topic));
    core.ports.tasks.spawn("end-topic", OnExit::Shutdown, async move {
        let core = &core_for_end;
        for partition in topic.partitions() {
            let mut slot = Arc::clone(&partition.owner).lock_owned().await;
            let (worker, target) = (Arc::clone(core), Arc::clone(&partition));
            core.ports.write_io.run(move || target.close_for_ever(&worker, &mut slot)).await;
            core.orphans.take_over(core, &partition);
        }
        core.topics.remove(id);
        info!(topic = %id, "a topic was deleted: its partitions are closed");
    });
}

/// Topic directories whose incarnation is not in the catalog. Says whether none is left.
async fn remove_leftovers(core: &Arc<Core>, is_listing_failing: &mut bool) -> bool {
    let worker = Arc::clone(core);
    let found = match core.ports.read_io.run(move || list_topic_dirs(&worker)).await {
        Ok(found) => found,
        Err(failed) => {
            core.metrics.housekeeping_failed.add(1);
            if !std::mem::replace(is_listing_failing, true) {
                warn!(error = %failed, "the topic directories cannot be listed: what deleted topics left stays until they can");
            }
            return false;
        }
    };
    *is_listing_failing = false;
    let mut is_clean = true;
    for (tenant, id) in found {
        if core.ports.catalog.view().topic_by_id(id).is_some() {
            continue;
        }
        match core.ports.witness.topic_gone(&tenant, id).await {
            Ok(confirmed) if core.topics.get(id).is_none() => {
                let worker = Arc::clone(core);
                let moved = core.ports.write_io.run(move || quarantine_topic(&worker, &confirmed)).await;
                if let Err(failed) = moved {
                    core.metrics.housekeeping_failed.add(1);
                    warn!(topic = %id, error = %failed, "a deleted topic's directory could not be set aside; tried again later");
                    is_clean = false;
                }
            }
            Ok(_) | Err(_) => is_clean = false,
        }
    }
    let worker = Arc::clone(core);
    if let Err(failed) = core.ports.write_io.run(move || set_tenants_aside(&worker)).await {
        core.metrics.housekeeping_failed.add(1);
        warn!(error = %failed, "the directory of a deleted tenant could not be set aside; tried again later");
        is_clean = false;
    }
    forget_unknown(core).await && is_clean
}

/// The entries of a directory; of one that is not there, none.
pub(crate) fn list_existing(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<DirEntry>> {
    match disk.list(dir) {
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        listed => listed,
    }
}

fn list_topic_dirs(core: &Core) -> io::Result<Vec<(TenantId, TopicId)>> {
    let mut found = Vec::new();
    for tenant in tenant_dirs(core)? {
        let dir = layout::topics_dir(&core.config.data_dir).join(tenant.as_str());
        let entries = list_existing(core.ports.disk.as_ref(), &dir)?.into_iter().filter(|entry| entry.is_dir);
        found.extend(entries.filter_map(|entry| Some((tenant.clone(), entry.name.parse().ok()?))));
    }
    Ok(found)
}

/// The tenants that have a directory here.
fn tenant_dirs(core: &Core) -> io::Result<Vec<TenantId>> {
    let entries = list_existing(core.ports.disk.as_ref(), &layout::topics_dir(&core.config.data_dir))?;
    Ok(entries.into_iter().filter(|entry| entry.is_dir).filter_map(|entry| TenantId::parse(&entry.name)).collect())
}

/// Directories of tenants that go, once nothing is in them. Nothing can be made for such a tenant, and it is called gone only after that.
fn set_tenants_aside(core: &Core) -> io::Result<()> {
    for tenant in tenant_dirs(core)? {
        let view = core.ports.catalog.view();
        let goes = matches!(view.tenant_state(&tenant), Some(TenantState::Deleting) | None);
        let dir = layout::topics_dir(&core.config.data_dir).join(tenant.as_str());
        if goes && view.counts_of(&tenant).topics == 0 && list_existing(core.ports.disk.as_ref(), &dir)?.is_empty() {
            set_aside(core, &dir, &format!("tenant-{tenant}"))?;
            info!(%tenant, "the directory of a tenant that is being deleted was set aside: nothing was in it");
        }
    }
    Ok(())
}

/// What is kept in the settle journal for topics and attachments that are gone, and was not forgotten with them: this node was away. Says
/// whether none is left.
async fn forget_unknown(core: &Arc<Core>) -> bool {
    let view = core.ports.catalog.view();
    let (topics, links) = (core.settle.unknown_topics(&view), core.settle.unknown_links(&view));
    let mut is_clean = true;
    for topic in topics {
        // Whose it was is not known any more, and makes no difference: no id is given twice.
        match core.ports.witness.topic_gone(&TenantId::default_tenant(), topic).await {
            Ok(confirmed) if core.topics.get(topic).is_none() => core.settle.forget_topic(&confirmed),
            Ok(_) | Err(_) => is_clean = false,
        }
    }
    for (epoch, index) in links {
        match core.ports.witness.link_gone(epoch).await {
            Ok(confirmed) if !core.fanout.is_ending(epoch) => core.settle.forget_cursor(&confirmed, index),
            Ok(_) | Err(_) => is_clean = false,
        }
    }
    is_clean
}

fn quarantine_topic(core: &Core, why: &Confirmed<TopicGone>) -> io::Result<()> {
    let TopicGone { tenant, topic } = why.fact();
    let from = layout::topic_dir(&core.config.data_dir, tenant, *topic);
    let to = set_aside(core, &from, &format!("topic-{tenant}-{topic}"))?;
    core.forget_prepared(&from);
    core.quarantined_bytes.fetch_add(bytes_below(core, &to), Ordering::Relaxed);
    info!(%topic, applied = why.applied().0, "a deleted topic's directory was set aside");
    Ok(())
}

/// Destroying begins with a rename: what was set aside by mistake can be put back within the grace time.
pub(crate) fn set_aside(core: &Core, from: &Path, name: &str) -> io::Result<PathBuf> {
    let disk = &core.ports.disk;
    let quarantine = layout::quarantine_dir(&core.config.data_dir);
    disk.create_dir_all(&quarantine)?;
    disk.sync_dir(&core.config.data_dir)?;
    let to = quarantine.join(format!("{:013}-{name}", core.ports.clock.now_ms()));
    // 1 renamed   2 target directory synced   3 source directory synced    — a crash in between leaves the directory under one name
    disk.rename(from, &to)?;
    disk.sync_dir(&quarantine)?;
    if let Some(parent) = from.parent() {
        disk.sync_dir(parent)?;
    }
    Ok(to)
}

/// What former lives set aside.
async fn measure_quarantine(core: &Arc<Core>) {
    let worker = Arc::clone(core);
    let bytes = core.ports.read_io.run(move || bytes_below(&worker, &layout::quarantine_dir(&worker.config.data_dir))).await;
    core.quarantined_bytes.store(bytes, Ordering::Relaxed);
}

async fn clean_quarantine(core: &Arc<Core>, is_failing: &mut bool) {
    let worker = Arc::clone(core);
    match core.ports.write_io.run(move || clean_quarantine_blocking(&worker)).await {
        Ok(()) => *is_failing = false,
        Err(failed) => {
            core.metrics.housekeeping_failed.add(1);
            if !std::mem::replace(is_failing, true) {
                warn!(error = %failed, "the quarantine cannot be listed: nothing is removed from it until it can");
            }
        }
    }
}

/// One directory that was set aside.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quarantined {
    /// When, in Unix milliseconds.
    pub since_ms: u64,
    /// Its name below `quarantine`.
    pub name: String,
    /// The bytes of all files in it.
    pub bytes: u64,
}

/// The names of all directories that were set aside.
pub(crate) fn quarantined_dirs(core: &Core) -> io::Result<Vec<String>> {
    let entries = list_existing(core.ports.disk.as_ref(), &layout::quarantine_dir(&core.config.data_dir))?;
    Ok(entries.into_iter().filter(|entry| entry.is_dir).map(|entry| entry.name).collect())
}

/// Every directory that was set aside, oldest first.
pub(crate) fn quarantined(core: &Core) -> io::Result<Vec<Quarantined>> {
    let dir = layout::quarantine_dir(&core.config.data_dir);
    let entries = list_existing(core.ports.disk.as_ref(), &dir)?.into_iter().filter(|entry| entry.is_dir);
    let dated = entries.filter_map(|entry| {
        let since_ms = entry.name.split('-').next()?.parse().ok()?;
        let bytes = bytes_below(core, &dir.join(&entry.name));
        Some(Quarantined { since_ms, name: entry.name, bytes })
    });
    let mut all: Vec<Quarantined> = dated.collect();
    all.sort_unstable();
    Ok(all)
}

/// The same for those who ask. One walk at a time, and nobody waits long for it: the disk may not answer, and a call of another node is served
/// to its end.
pub(crate) async fn tell_quarantined(core: &Arc<Core>) -> Option<Vec<Quarantined>> {
    let walk = async {
        let turn = Arc::clone(&core.quarantine_walk).lock_owned().await;
        let worker = Arc::clone(core);
        let walk = move || {
            // It ends with the walk, also when nobody waits for that any more.
            let _turn = turn;
            quarantined(&worker)
        };
        core.ports.read_io.run(walk).await.ok()
    };
    timeout(Duration::from_millis(limits::QUARANTINE_TOLD_MS_MAX), walk).await.ok().flatten()
}

/// What has waited long enough goes, and the oldest when there is too much. What has nothing in it need not wait.
fn clean_quarantine_blocking(core: &Core) -> io::Result<()> {
    let disk = core.ports.disk.as_ref();
    let now = core.ports.clock.now_ms();
    let all = quarantined(core)?;
    let mut total: u64 = all.iter().map(|entry| entry.bytes).sum();
    for Quarantined { since_ms, name, bytes } in all {
        let is_over = total > core.config.quarantine_bytes_max;
        if since_ms + limits::QUARANTINE_GRACE_MS >= now && !is_over && bytes > 0 {
            continue;
        }
        let path = layout::quarantine_dir(&core.config.data_dir).join(name);
        match disk.remove_dir_all(&path) {
            Ok(()) => {
                total -= bytes;
                info!(entry = %path.display(), bytes, is_over, "a quarantined directory was removed");
            }
            Err(failed) => {
                core.metrics.housekeeping_failed.add(1);
                error!(entry = %path.display(), error = %failed, "a quarantined directory could not be removed");
            }
        }
    }
    core.quarantined_bytes.store(total, Ordering::Relaxed);
    Ok(())
}

/// The bytes of all files below a directory. What cannot be listed counts nothing here, and is counted as failed.
pub(crate) fn bytes_below(core: &Core, dir: &Path) -> u64 {
    let mut bytes = 0;
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        let entries = list_existing(core.ports.disk.as_ref(), &dir).unwrap_or_else(|failed| {
            core.metrics.housekeeping_failed.add(1);
            warn!(directory = %dir.display(), error = %failed, "a directory cannot be listed: what is in it is not counted");
            Vec::new()
        });
        for entry in entries {
            bytes += entry.len;
            if entry.is_dir {
                left.push(dir.join(entry.name));
            }
        }
    }
    bytes
}
