//! A disk that becomes full under load: on a node of its own, on a volume of its own, with a ledger of its own.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use veena_contract::limits;
use veena_loadtest_checker::{Verdict, check};

use super::probe::{self, Probe, holds};
use super::volume::Volume;
use super::{ChaosPlan, STOP_DEADLINE, UNKNOWN_OUTCOME, keep_history, rules, topics};
use crate::api::{Client, NewTopic};
use crate::chance::Chance;
use crate::logs;
use crate::node::{NodeConfig, NodeProcess};
use crate::recorder::Recorder;
use crate::workload::{Plan, Workload, drain};

const MIB: u64 = 1024 * 1024;
const VOLUME_BYTES: u64 = 512 * MIB;
const RESERVE_BYTES: u64 = 192 * MIB;
/// Whether the WAL takes or frees a segment: below the reserve, and above the quarter of it that is kept for changes of topics.
pub(super) const NEARLY_FULL: u64 = 116 * MIB;
/// The room is looked at every two seconds, on a machine that is busy.
pub(super) const NOTICED_WITHIN: Duration = Duration::from_secs(15);

/// The journal is written every 100 ms.
const JOURNAL_CATCHES_UP: Duration = Duration::from_secs(1);

/// The file that holds room back.
const BALLAST: &str = "data/ballast";
/// How many starts on a full disk room is held back for.
const STARTS: u64 = limits::BALLAST_BYTES / limits::METADATA_OPEN_BYTES;

/// What the node may say when its disk is full.
pub const LOG_TEXTS: &[&str] = &[
    UNKNOWN_OUTCOME,
    "the data disk is nearly full: produce is refused",
    "the data disk is full: changes of topics are refused",
    "the data disk is full: room that was held back is used to start",
    "settle state cannot be written, and is tried again until it can",
    "settle journal could not be compacted; it goes on as it is",
    "a checkpoint could not be written; records are kept longer",
    "the list of streams was not written",
    "how far the metadata was followed is not kept",
    "No space left on device",
];

/// In `dir`: fills the disk below the reserve, then to the last byte, starts the node on it, makes room again, drains and judges.
///
/// # Errors
/// The node does something else than refuse produce and go on with the rest, or namespaces are refused here.
pub async fn run(plan: &ChaosPlan, dir: &Path, chance: &mut Chance) -> anyhow::Result<Verdict> {
    let volume = Volume::create(&dir.join("volume"), VOLUME_BYTES)?;
    let recorder = Recorder::new("n1");
    let mut config = NodeConfig::in_dir(&plan.bin, dir);
    config.data_dir = volume.inside().join("data");
    config.before = volume.words();
    config.flags.clone_from(&plan.flags);
    config.env.push(("VEENA_STORAGE_RESERVE_BYTES".to_owned(), RESERVE_BYTES.to_string()));
    let log = config.log.clone();
    let mut node = NodeProcess::start(config).await?.recorded(&recorder);
    let started = Instant::now();
    while volume.bytes_of(BALLAST)? < limits::BALLAST_BYTES {
        ensure!(started.elapsed() < NOTICED_WITHIN, "no room is held back for starts on a full disk");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    let mut load = Plan::mixed(node.addr(), topics(), chance.next_u64());
    let mut probe = Probe::start(Client::new(node.addr()), &recorder).await?;
    let workload = Workload::start(&load, &recorder).await?;
    let went = fill_and_empty(&volume, &mut node, &mut probe).await;
    if let Err(err) = went {
        keep_history(dir, &recorder.history())?;
        return Err(err);
    }
    workload.stop().await?;
    load.topics.push(probe::topic());
    drain(&load, &recorder, Duration::from_secs(120)).await?;
    node.stop(STOP_DEADLINE).await?;

    let history = recorder.history();
    let verdict = check(&history, &rules(plan.timer_slack));
    if !verdict.is_clean() {
        keep_history(dir, &history)?;
    }
    let lines = logs::unexpected(&log, LOG_TEXTS)?;
    ensure!(lines.is_empty(), "unexpected in the log of the node with a full disk:\n{}", lines.join("\n"));
    Ok(verdict)
}

async fn fill_and_empty(volume: &Volume, node: &mut NodeProcess, probe: &mut Probe) -> anyhow::Result<()> {
    let topic = |name: &str| NewTopic { name: name.to_owned(), partitions: 1, visibility_ms: 1_000, keeps_order: true };
    let (gone, gone_later) = (topic("gone"), topic("gone-later"));
    for topic in [&gone, &gone_later] {
        probe.client().create_topic(topic).await?;
    }
    probe.stock(9).await?;

    volume.fill(NEARLY_FULL)?;
    refuses_produce(probe).await.context("below the reserve")?;
    probe.take_one(NOTICED_WITHIN).await.context("below the reserve")?;
    // Until it was noticed, the node wrote on: give back what that took of the room that is kept for changes.
    volume.fill(NEARLY_FULL)?;
    probe.until_deleted(&gone.name, NOTICED_WITHIN).await.context("below the reserve, with room kept for it")?;

    volume.fill(0)?;
    let refused = probe.until_topic_refused(NOTICED_WITHIN).await.context("not a byte free")?;
    ensure!(refused.status == 503 && refused.effect.as_deref() == Some("none"), "a change is refused with {refused:?}");
    probe.take_one(NOTICED_WITHIN).await.context("not a byte free")?;

    // Room that was held back lets it start, and what frees room is served.
    for number in 1..=STARTS {
        kill_with_acks_written(volume, node, probe).await?;
        volume.fill(0)?;
        let started = || format!("start {number} without a byte free");
        node.start_again_until(|reply| holds(reply, "reserve")).await.with_context(started)?;
        probe.take_one(NOTICED_WITHIN).await.with_context(started)?;
        if number == 1 {
            probe.until_deleted(&gone_later.name, NOTICED_WITHIN).await.with_context(started)?;
        }
    }

    kill_with_acks_written(volume, node, probe).await?;
    node.start_again_until(|reply| holds(reply, "reserve")).await.context("start on a full disk")?;
    refuses_produce(probe).await.context("started on a full disk")?;
    probe.take_one(NOTICED_WITHIN).await.context("started on a full disk")?;

    volume.empty()?;
    probe.until("/readyz", |reply| reply.status == 200, NOTICED_WITHIN).await.context("room again")?;
    probe.stock(1).await.context("room again")?;
    probe.client().create_topic(&gone).await.context("room again")
}

/// Acks that were answered while not a byte was free are in memory alone, as the node says. They are written once there is a little room:
/// only then may a kill bring back no more than it ever does.
async fn kill_with_acks_written(volume: &Volume, node: &mut NodeProcess, probe: &mut Probe) -> anyhow::Result<()> {
    volume.fill(NEARLY_FULL)?;
    probe.take_one(NOTICED_WITHIN).await.context("a little room again")?;
    probe.until("/readyz", |reply| !holds(reply, "settle journal"), NOTICED_WITHIN).await.context("a little room again")?;
    tokio::time::sleep(JOURNAL_CATCHES_UP).await;
    node.kill()
}

async fn refuses_produce(probe: &mut Probe) -> anyhow::Result<()> {
    let refused = probe.until_refused("disk_full", NOTICED_WITHIN).await?;
    let is_right = refused.status == 503 && refused.effect.as_deref() == Some("none") && refused.retry_after.is_some();
    ensure!(is_right, "produce on a full disk is refused with {refused:?}");
    probe.until("/readyz", |reply| reply.status == 503 && holds(reply, "reserve"), NOTICED_WITHIN).await
}
