//! Reads sealed segments again, slowly, so that damage is found before a consumer meets it. Changes nothing.
//!
//! One segment at a time, at a bounded rate, each at most once a day. A segment that is sealed never changes, so that no lock is taken; one
//! that retention removes meanwhile is simply gone.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{error, warn};
use veena_contract::{Offset, limits};
use veena_storage::disk::Disk;
use veena_storage::partition::{SegmentReport, is_segment_name, verify_sealed};

use crate::core::Core;
use crate::partition::{Partition, PartitionId};

/// How long after the start the first walk begins, and how long between two walks.
const WALK_PAUSE: Duration = Duration::from_secs(600);
/// Between two partitions that have nothing to read.
const PARTITION_PAUSE: Duration = Duration::from_millis(10);

/// What was found intact, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scrubbed {
    /// Everything below was read and checked.
    pub up_to: Offset,
    /// When the pass ended, in ms.
    pub at_ms: u64,
}

/// What one process remembers of its passes.
#[derive(Default)]
struct Passes {
    /// When each partition's last pass began.
    begun: BTreeMap<PartitionId, Instant>,
    /// Damage that was told: file and place.
    told: BTreeMap<PartitionId, BTreeSet<(PathBuf, u64)>>,
}

/// Walks over all partitions of this node for ever. Ends when the tasks are told to.
pub async fn run(core: Arc<Core>) {
    let token = core.ports.tasks.token().clone();
    let mut passes = Passes::default();
    loop {
        tokio::select! {
            () = tokio::time::sleep(WALK_PAUSE) => {}
            () = token.cancelled() => return,
        }
        tokio::select! {
            () = walk(&core, &mut passes) => {}
            () = token.cancelled() => return,
        }
    }
}

async fn walk(core: &Arc<Core>, passes: &mut Passes) {
    let view = core.ports.catalog.view();
    let living = view.by_id.values().map(|record| core.topics.of(core, record));
    let partitions: Vec<Arc<Partition>> = living.flat_map(|topic| topic.owned()).collect();
    let ids: BTreeSet<PartitionId> = partitions.iter().map(|partition| partition.id).collect();
    passes.begun.retain(|id, _| ids.contains(id));
    passes.told.retain(|id, _| ids.contains(id));
    for partition in partitions {
        let now = Instant::now();
        let is_due = passes.begun.get(&partition.id).is_none_or(|begun| now - *begun >= Duration::from_millis(limits::SCRUB_PASS_MS));
        if is_due {
            if scrub(core, &partition, passes.told.entry(partition.id).or_default()).await {
                passes.begun.insert(partition.id, now);
            }
            tokio::time::sleep(PARTITION_PAUSE).await;
        }
    }
}

/// One pass over a partition's sealed segments. Says whether it was made: the next walk tries again what could not be listed.
async fn scrub(core: &Arc<Core>, partition: &Arc<Partition>, told: &mut BTreeSet<(PathBuf, u64)>) -> bool {
    let (worker, dir) = (Arc::clone(core), partition.dir.clone());
    let sealed = match core.ports.read_io.run(move || sealed_segments(worker.ports.disk.as_ref(), &dir)).await {
        Ok(sealed) => sealed,
        Err(failed) => {
            core.metrics.housekeeping_failed.add(1);
            warn!(partition = %partition.dir.display(), error = %failed, "a partition's directory cannot be listed for a check; tried again later");
            return false;
        }
    };
    let mut up_to = None;
    let mut is_intact = true;
    for path in sealed {
        let (worker, target) = (Arc::clone(core), path.clone());
        let report = core.ports.read_io.run(move || verify_sealed(worker.ports.disk.as_ref(), &target)).await;
        match report {
            Ok(report) => {
                is_intact &= report.damage.is_empty();
                tell(core, partition, &report, told);
                if is_intact {
                    up_to = Some(report.end);
                }
                let rate = core.config.scrub_bytes_per_second.max(1);
                tokio::time::sleep(Duration::from_millis(report.bytes.saturating_mul(1000) / rate)).await;
            }
            Err(failed) if failed.kind() == io::ErrorKind::NotFound => {}
            Err(failed) => {
                is_intact = false;
                core.metrics.housekeeping_failed.add(1);
                warn!(file = %path.display(), error = %failed, "a sealed segment cannot be read for a check");
            }
        }
    }
    if let Some(up_to) = up_to {
        partition.set_scrubbed(Scrubbed { up_to, at_ms: core.ports.clock.now_ms() });
    }
    true
}

fn tell(core: &Core, partition: &Partition, report: &SegmentReport, told: &mut BTreeSet<(PathBuf, u64)>) {
    for damage in &report.damage {
        if told.insert((damage.path.clone(), damage.at)) {
            core.metrics.damage_found.add(1);
            error!(
                partition = %partition.dir.display(), file = %damage.path.display(), at = damage.at, end = damage.end,
                first = damage.first.0, next = damage.next.0, "a sealed segment is damaged: {}; what is around it is served", damage.reason
            );
        }
    }
}

/// All segments but the last, which is written to, in order; none of a log that was never begun.
fn sealed_segments(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match disk.list(dir) {
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => Vec::new(),
        listed => listed?,
    };
    let mut names: Vec<String> =
        entries.into_iter().filter(|entry| !entry.is_dir && is_segment_name(&entry.name)).map(|entry| entry.name).collect();
    names.sort_unstable();
    names.pop();
    Ok(names.into_iter().map(|name| dir.join(name)).collect())
}
