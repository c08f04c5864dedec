//! What this node has of partitions that another owns: set aside, once the leader has confirmed that it will never be served again. A copy that
//! does not say which one it is stays where it is.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tracing::{debug, info, warn};
use veena_contract::{Confirmed, Copy, CopyMoved, MoveToken, OwnershipEpoch, TopicRecord, Unconfirmed};

use super::mark::Mark;
use super::{mark, me, move_of, source};
use crate::core::Core;
use crate::layout;
use crate::partition::{Partition, PartitionId};
use crate::sweep;

/// Why there is no room yet for a copy that comes.
#[derive(Debug, thiserror::Error)]
pub(super) enum InTheWay {
    /// The file system.
    #[error("the directory of the topic cannot be changed: {0}")]
    Io(#[from] io::Error),
    /// The leader.
    #[error("what a former move left cannot be set aside: {0}")]
    Unconfirmed(#[from] Unconfirmed),
    /// It is another copy by now.
    #[error("what a former move left has changed meanwhile")]
    Changed,
}

/// A copy of a partition on the disk.
struct Found {
    dir: PathBuf,
    /// Of the move whose copy is made there; `None` for a directory that has the partition's name.
    token: Option<MoveToken>,
    /// What it holds, as far as it says.
    copy: Option<Copy>,
    /// Was it stopped here to be handed over?
    is_stopped: bool,
}

/// Blocking. Every copy of every partition of a topic that is here.
fn copies(core: &Core, record: &TopicRecord) -> io::Result<Vec<(PartitionId, Found)>> {
    let root = layout::topic_dir(&core.config.data_dir, &record.tenant, record.id);
    let mut found = Vec::new();
    for entry in sweep::list_existing(core.ports.disk.as_ref(), &root)?.into_iter().filter(|entry| entry.is_dir) {
        let Some((index, token)) = layout::copy_of(&entry.name) else { continue };
        let dir = root.join(&entry.name);
        let said = match token {
            Some(token) => Some(Mark { copy: Copy::Incoming(token), is_stopped: false }),
            None => mark::read(core.ports.disk.as_ref(), &dir)?,
        };
        let (copy, is_stopped) = (said.map(|said| said.copy), said.is_some_and(|said| said.is_stopped));
        found.push((PartitionId { topic: record.id, index }, Found { dir, token, copy, is_stopped }));
    }
    Ok(found)
}

/// Sets aside what is of no use any more, of all topics. Says whether nothing is left to be looked at again.
pub async fn run(core: &Arc<Core>) -> bool {
    let Some(me) = me(core).cloned() else { return true };
    let view = core.ports.catalog.view();
    let mut is_clean = true;
    for record in view.by_id.values().filter(|record| record.owners.iter().any(|owner| owner.node != me)) {
        let (worker, target) = (Arc::clone(core), Arc::clone(record));
        let found = match core.ports.read_io.run(move || copies(&worker, &target)).await {
            Ok(found) => found,
            Err(failed) => {
                core.metrics.housekeeping_failed.add(1);
                warn!(topic = %record.id, error = %failed, "a topic's directory cannot be looked at; tried again later");
                is_clean = false;
                continue;
            }
        };
        for (id, found) in found {
            let Some(copy) = found.copy.filter(|_| !core.is_mine(record, id.index)) else { continue };
            if core.moves.is_incoming(id) && !veena_contract::sabotage::is("reclaim_without_epoch") {
                // Until whoever is at it has found out that its move is over.
                is_clean &= record.owner_of(id.index).and_then(|owner| owner.moving.as_ref()).is_some_and(|moving| moving.to == me);
                continue;
            }
            if let Err(kept) = set_aside(core, record, id, found, copy).await {
                debug!(topic = %id.topic, partition = %id.index, reason = %kept, "a copy of a partition is kept");
                is_clean = false;
            }
        }
    }
    is_clean
}

/// Makes room for the copy of a move: what other moves left of the partition goes. Says whether the copy is in its place already, with all that
/// belongs to it. Then it stays there: who placed it may have proposed the change of owner, which may be recorded at any moment.
pub(super) async fn make_way(core: &Arc<Core>, record: &Arc<TopicRecord>, id: PartitionId, token: MoveToken) -> Result<bool, InTheWay> {
    let (worker, target) = (Arc::clone(core), Arc::clone(record));
    let found = core.ports.read_io.run(move || copies(&worker, &target)).await?;
    let mut is_placed = false;
    for (_, found) in found.into_iter().filter(|(of, found)| *of == id && found.token != Some(token)) {
        if found.copy == Some(Copy::Incoming(token)) || is_served_already(record, id, token, &found) {
            // Its name may not be durable yet.
            let (disk, root) = (Arc::clone(&core.ports.disk), found.dir.parent().map(Path::to_owned));
            core.ports.write_io.run(move || root.map_or(Ok(()), |root| disk.sync_dir(&root))).await?;
            is_placed = true;
            continue;
        }
        // One that does not say which it is was never handed over by this node, and another one owns the partition.
        let copy = found.copy.unwrap_or(Copy::Served(OwnershipEpoch(0)));
        set_aside(core, record, id, found, copy).await?;
    }
    Ok(is_placed)
}

/// Is this what the move has brought here in a former life of the metadata, of which this one knows the beginning of the move alone? This node
/// has served it in the next epoch, which no other can have had, and has not handed it over since: nobody has a newer copy. The stop is
/// recorded, and its owner serves nothing until the move has ended.
fn is_served_already(record: &TopicRecord, id: PartitionId, token: MoveToken, found: &Found) -> bool {
    let owner = record.owner_of(id.index);
    let frozen = owner.filter(|owner| move_of(owner, token).is_some_and(|moving| moving.frozen.is_some()));
    frozen.is_some_and(|owner| found.token.is_none() && !found.is_stopped && found.copy == Some(Copy::Served(owner.epoch.next())))
}

async fn set_aside(core: &Arc<Core>, record: &Arc<TopicRecord>, id: PartitionId, found: Found, copy: Copy) -> Result<(), InTheWay> {
    let Some(me) = me(core) else { return Ok(()) };
    let asked = if veena_contract::sabotage::is("reclaim_without_epoch") { Copy::Served(OwnershipEpoch(0)) } else { copy };
    let confirmed = core.ports.witness.copy_moved(id.topic, id.index, me, asked).await?;
    let topic = core.topics.of(core, record);
    let Some(partition) = topic.partition(id.index) else { return Ok(()) };
    let mut slot = Arc::clone(&partition.owner).lock_owned().await;
    let (worker, children) = (Arc::clone(core), Arc::clone(record));
    core.ports
        .write_io
        .run(move || {
            if found.token.is_none() {
                // Another copy may have come under the name since.
                if mark::read(worker.ports.disk.as_ref(), &found.dir)?.map(|said| said.copy) != found.copy {
                    return Err(InTheWay::Changed);
                }
                source::let_go(&worker, &partition, &mut slot);
                forget_settled(&worker, &partition, &children, &confirmed);
            }
            Ok(quarantine(&worker, &found.dir, found.token.is_some(), &confirmed)?)
        })
        .await
}

/// What was kept of the copy beside it goes with it.
fn forget_settled(core: &Core, partition: &Partition, record: &TopicRecord, why: &Confirmed<CopyMoved>) {
    if let Some(kept) = core.settle.promise(partition.id) {
        core.settle.forget(kept.log);
    }
    core.settle.forget_promise(partition.id);
    for link in &record.children {
        core.settle.forget_moved_cursor(why, link.epoch);
    }
}

/// What is no whole copy (`is_part`) is of use to nobody, its owner has it: on a disk that is nearly full it goes at once.
fn quarantine(core: &Core, from: &Path, is_part: bool, why: &Confirmed<CopyMoved>) -> io::Result<()> {
    let fact = why.fact();
    let name = from.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let to = sweep::set_aside(core, from, &format!("copy-{}-{name}", fact.topic))?;
    core.forget_prepared(from);
    if is_part && core.is_disk_low.load(Ordering::Relaxed) {
        core.ports.disk.remove_dir_all(&to)?;
        info!(topic = %fact.topic, partition = %fact.index, applied = why.applied().0, "what was copied of a partition that does not come here was removed");
        return Ok(());
    }
    core.quarantined_bytes.fetch_add(sweep::bytes_below(core, &to), Ordering::Relaxed);
    info!(topic = %fact.topic, partition = %fact.index, copy = ?fact.copy, applied = why.applied().0, "a copy of a partition that another node owns was set aside");
    Ok(())
}
