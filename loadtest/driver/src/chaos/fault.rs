//! What is done to the node, and what must hold while it is done.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::probe::{Probe, holds};
use super::strace::{SyncErrors, SyncTarget};
use super::{ChaosPlan, STOP_DEADLINE, full_disk};
use crate::chance::Chance;
use crate::node::NodeProcess;

/// How long it may take until something that was provoked shows.
const SHOWS_WITHIN: Duration = Duration::from_secs(20);

/// What is done to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Fault {
    /// kill -9, started again at once.
    Kill,
    /// kill -9 while it stands still: nothing that its timers would have done has happened.
    KillFrozen,
    /// SIGTERM, started again.
    Stop,
    /// SIGSTOP for a while, then SIGCONT.
    Pause,
    /// A sync of the ingress WAL fails: produce is refused until a restart, the rest goes on.
    SyncErrorWal,
    /// Syncs of partition logs fail: the logs are opened anew, produce goes on.
    SyncErrorPartition,
    /// Syncs of the settle journal fail: everything goes on.
    SyncErrorSettle,
    /// A sync of the metadata store fails: topics are not changed until a restart, messages go on.
    SyncErrorMetastore,
    /// The disk becomes full and empty again; on a node and a volume of its own.
    FullDisk,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Kill,
        Self::KillFrozen,
        Self::Stop,
        Self::Pause,
        Self::SyncErrorWal,
        Self::SyncErrorPartition,
        Self::SyncErrorSettle,
        Self::SyncErrorMetastore,
        Self::FullDisk,
    ];
    /// Those that hurt the process alone.
    pub const PROCESS: [Self; 4] = [Self::Kill, Self::KillFrozen, Self::Stop, Self::Pause];

    /// What the node must say in its log when this happens; it is no complaint.
    #[must_use]
    pub fn log_texts(self) -> &'static [&'static str] {
        match self {
            Self::SyncErrorWal => &["ingress log latched", "\"code\":\"log_poisoned\""],
            Self::SyncErrorPartition => &[
                "a partition log could not be synced",
                "partition log is latched",
                "an owner commit failed; the log is opened anew",
                "a partition log cannot be opened; tried again later",
                "an owner refused a commit; the sender asks where it stands",
            ],
            Self::SyncErrorSettle => &["settle state cannot be written, and is tried again until it can"],
            Self::SyncErrorMetastore => {
                &["a write to the metadata store failed; it takes no more until the node starts again", "While fdatasync"]
            }
            Self::Kill | Self::KillFrozen | Self::Stop | Self::Pause | Self::FullDisk => &[],
        }
    }
}

/// A node under load, and who hurts it.
pub(super) struct Hurt<'a> {
    pub(super) plan: &'a ChaosPlan,
    pub(super) node: &'a mut NodeProcess,
    pub(super) probe: &'a mut Probe,
    pub(super) chance: &'a mut Chance,
}

impl Hurt<'_> {
    /// Does it, and heals the node again.
    pub(super) async fn inflict(&mut self, fault: Fault, nth: u32) -> anyhow::Result<()> {
        let while_still = Duration::from_millis(20 + self.chance.below(400));
        match fault {
            Fault::Kill => self.node.kill()?,
            Fault::KillFrozen => self.node.kill_frozen(while_still).await?,
            Fault::Stop => self.node.stop(STOP_DEADLINE).await?,
            Fault::Pause => return self.node.pause(while_still).await,
            Fault::SyncErrorWal => self.fail_wal().await?,
            Fault::SyncErrorPartition => self.fail_partitions().await?,
            Fault::SyncErrorSettle => self.fail_settle().await?,
            Fault::SyncErrorMetastore => self.fail_metastore().await?,
            Fault::FullDisk => return self.fill_disk(nth).await,
        }
        // Now and then it is killed again while it starts.
        if self.chance.percent(25) {
            self.node.start_and_kill(Duration::from_millis(self.chance.below(60))).await?;
        }
        self.node.start_again().await
    }

    /// Starts the node under strace with this fault.
    async fn start_failing(&mut self, target: SyncTarget, nth: u32) -> anyhow::Result<SyncErrors> {
        self.node.kill()?;
        let errors = SyncErrors::plan(&self.node.config().data_dir, target, nth, self.plan.dir.join("strace.log"))?;
        self.node.config_mut().before = errors.words();
        self.node.start_again().await?;
        Ok(errors)
    }

    /// Ends the node that suffers; the next one does not.
    fn end_failing(&mut self, errors: &SyncErrors) -> anyhow::Result<()> {
        ensure!(errors.failed() > 0, "no sync has failed");
        self.node.config_mut().before = Vec::new();
        self.node.kill()
    }

    async fn wait_failed(&mut self, errors: &SyncErrors, count: usize) -> anyhow::Result<()> {
        let started = std::time::Instant::now();
        while errors.failed() < count {
            ensure!(started.elapsed() < SHOWS_WITHIN, "only {} of {count} syncs have failed after {SHOWS_WITHIN:?}", errors.failed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    async fn fail_wal(&mut self) -> anyhow::Result<()> {
        self.probe.stock(2).await?;
        let nth = 8 + u32::try_from(self.chance.below(30))?;
        let errors = self.start_failing(SyncTarget::Wal, nth).await?;
        let refused = self.probe.until_refused("log_poisoned", SHOWS_WITHIN).await?;
        ensure!(refused.status == 500, "produce after a failed sync of the WAL is answered with {refused:?}");
        self.probe.until("/readyz", |reply| reply.status == 503 && holds(reply, "ingress wal"), SHOWS_WITHIN).await?;
        // What is stored is served and settled as ever, and nothing is accepted any more.
        self.probe.take_one(SHOWS_WITHIN).await.context("the WAL is latched")?;
        let refused = self.probe.produce().await?;
        ensure!(refused.status == 500, "produce on a latched WAL is answered with {refused:?}");
        self.end_failing(&errors)
    }

    async fn fail_partitions(&mut self) -> anyhow::Result<()> {
        let nth = 3 + u32::try_from(self.chance.below(6))?;
        let errors = self.start_failing(SyncTarget::Partitions, nth).await?;
        self.wait_failed(&errors, 1).await?;
        // The failed log is opened anew and goes on; no other log has noticed.
        self.probe.stock(2).await.context("a partition's sync has failed")?;
        self.probe.take_one(SHOWS_WITHIN).await.context("a partition's sync has failed")?;
        self.wait_failed(&errors, 2).await?;
        self.probe.until("/readyz", |reply| reply.status == 200, SHOWS_WITHIN).await?;
        tokio::time::sleep(Duration::from_millis(self.chance.below(300))).await;
        self.end_failing(&errors)
    }

    async fn fail_settle(&mut self) -> anyhow::Result<()> {
        self.probe.stock(2).await?;
        let errors = self.start_failing(SyncTarget::Settle, 2).await?;
        self.wait_failed(&errors, 1).await?;
        self.probe.take_one(SHOWS_WITHIN).await.context("the settle journal's sync has failed")?;
        self.probe.stock(1).await.context("the settle journal's sync has failed")?;
        self.probe.until("/readyz", |reply| reply.status == 200, SHOWS_WITHIN).await?;
        self.end_failing(&errors)
    }

    async fn fail_metastore(&mut self) -> anyhow::Result<()> {
        self.probe.stock(2).await?;
        let nth = 3 + u32::try_from(self.chance.below(6))?;
        let errors = self.start_failing(SyncTarget::Metastore, nth).await?;
        let refused = self.probe.until_topic_refused(SHOWS_WITHIN).await?;
        ensure!(refused.status == 503, "a change of topics after a failed sync of the metadata store is answered with {refused:?}");
        self.wait_failed(&errors, 1).await?;
        self.probe.until("/readyz", |reply| reply.status == 503 && holds(reply, "metastore"), SHOWS_WITHIN).await?;
        let refused = self.probe.until_topic_refused(SHOWS_WITHIN).await?;
        ensure!(refused.status == 503 && refused.effect.as_deref() == Some("none"), "a later change is answered with {refused:?}");
        // Messages go on without it.
        self.probe.stock(1).await.context("the metadata store is latched")?;
        self.probe.take_one(SHOWS_WITHIN).await.context("the metadata store is latched")?;
        self.end_failing(&errors)
    }

    async fn fill_disk(&mut self, nth: u32) -> anyhow::Result<()> {
        let dir = self.plan.dir.join(format!("full-disk-{nth}"));
        let verdict = full_disk::run(self.plan, &dir, self.chance).await?;
        ensure!(verdict.is_clean(), "{}", told(&verdict, &dir));
        std::fs::remove_dir_all(&dir).context("cannot tidy up")
    }
}

fn told(verdict: &veena_loadtest_checker::Verdict, dir: &Path) -> String {
    let violations: Vec<String> = verdict.violations.iter().map(ToString::to_string).collect();
    format!("the ledger of the node with a full disk ({}): {verdict}\n{}", dir.display(), violations.join("\n"))
}
