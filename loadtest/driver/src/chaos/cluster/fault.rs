//! What is done to the nodes of a cluster, and what must hold while it is done.

use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::nodes::{NODES, Nodes, SMALL, name};
use crate::chance::Chance;
use crate::chaos::STOP_DEADLINE;
use crate::chaos::full_disk::{self, NEARLY_FULL, NOTICED_WITHIN};
use crate::chaos::probe::{Probe, holds};
use crate::chaos::strace::{SyncErrors, SyncTarget};
use crate::recorder::Recorder;

/// How long it may take until something that was provoked shows.
const SHOWS_WITHIN: Duration = Duration::from_secs(30);
/// How long the cluster may take to be whole again. Elections and back-off take seconds; the machine is busy.
const WHOLE_WITHIN: Duration = Duration::from_secs(60);
/// How long the longest cut or freeze goes on: longer than the silence after which a connection is given up.
const HURT_MS_MAX: u64 = 9_000;

/// What is done to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum ClusterFault {
    /// kill -9 of one node; it is started again after some seconds.
    KillOne,
    /// The same for the one that leads.
    KillLeader,
    /// kill -9 of two nodes at once: nobody leads meanwhile.
    KillTwo,
    /// kill -9 of all nodes at once.
    KillAll,
    /// SIGSTOP of one node for some seconds.
    FreezeOne,
    /// The same for the one that leads.
    FreezeLeader,
    /// Nothing that one node sends reaches another; what the other sends arrives.
    CutOneWay,
    /// Two nodes do not reach each other.
    CutBothWays,
    /// One node reaches no other; clients reach it.
    Isolate,
    /// The same for the one that leads.
    IsolateLeader,
    /// The disk of one node becomes full and empty again.
    FullDisk,
    /// A sync of one node's ingress WAL fails: it refuses produce until a restart, the others go on.
    SyncErrorWal,
    /// Syncs of one node's partition logs fail: the logs are opened anew.
    SyncErrorPartition,
    /// Syncs of one node's settle journal fail: everything goes on.
    SyncErrorSettle,
    /// A sync of one node's metadata store fails: the others change topics without it.
    SyncErrorMetastore,
    /// SIGTERM to one node, started again.
    Restart,
}

impl ClusterFault {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::KillOne,
        Self::KillLeader,
        Self::KillTwo,
        Self::KillAll,
        Self::FreezeOne,
        Self::FreezeLeader,
        Self::CutOneWay,
        Self::CutBothWays,
        Self::Isolate,
        Self::IsolateLeader,
        Self::FullDisk,
        Self::SyncErrorWal,
        Self::SyncErrorPartition,
        Self::SyncErrorSettle,
        Self::SyncErrorMetastore,
        Self::Restart,
    ];
    /// Those of a short run.
    pub const SHORT: [Self; 5] = [Self::KillOne, Self::KillLeader, Self::FreezeOne, Self::CutOneWay, Self::IsolateLeader];

    /// What a node may say in its log when this happens; it is no complaint.
    #[must_use]
    pub fn log_texts(self) -> &'static [&'static str] {
        use crate::chaos::Fault;
        match self {
            Self::SyncErrorWal => Fault::SyncErrorWal.log_texts(),
            Self::SyncErrorPartition => Fault::SyncErrorPartition.log_texts(),
            Self::SyncErrorSettle => Fault::SyncErrorSettle.log_texts(),
            Self::SyncErrorMetastore => Fault::SyncErrorMetastore.log_texts(),
            Self::FullDisk => full_disk::LOG_TEXTS,
            _ => &[],
        }
    }
}

/// A cluster under load, and who hurts it.
pub(super) struct Hurt<'a> {
    pub(super) nodes: &'a mut Nodes,
    /// One for each node.
    pub(super) probes: &'a mut [Probe],
    pub(super) chance: &'a mut Chance,
    /// Where strace writes.
    pub(super) strace_log: std::path::PathBuf,
    /// What was done when, in the history's time: a history does not hold cuts.
    pub(super) told: File,
    pub(super) recorder: Arc<Recorder>,
}

impl Hurt<'_> {
    /// Does it, heals, and waits until the cluster is whole.
    pub(super) async fn inflict(&mut self, fault: ClusterFault) -> anyhow::Result<()> {
        let leader = self.nodes.settled(WHOLE_WITHIN).await?;
        let at = self.below(NODES);
        let (next, last) = ((at + 1) % NODES, (at + 2) % NODES);
        self.tell(&format!("{fault:?}, node-{} leads, at node-{}", leader + 1, at + 1))?;
        match fault {
            ClusterFault::KillOne => self.kill(&[at]).await?,
            ClusterFault::KillLeader => self.kill(&[leader]).await?,
            ClusterFault::KillTwo => self.kill(&[at, next]).await?,
            ClusterFault::KillAll => self.kill(&[at, next, last]).await?,
            ClusterFault::FreezeOne => self.freeze(at).await?,
            ClusterFault::FreezeLeader => self.freeze(leader).await?,
            ClusterFault::CutOneWay if self.chance.percent(50) => self.cut(&[(at, next)]).await?,
            ClusterFault::CutOneWay => self.cut(&[(next, at)]).await?,
            ClusterFault::CutBothWays => self.cut(&[(at, next), (next, at)]).await?,
            ClusterFault::Isolate => self.cut(&alone(at)).await?,
            ClusterFault::IsolateLeader => self.cut(&alone(leader)).await?,
            ClusterFault::FullDisk => self.fill_disk().await?,
            ClusterFault::SyncErrorWal => self.fail_wal(at).await?,
            ClusterFault::SyncErrorPartition => {
                let nth = 3 + u32::try_from(self.chance.below(6))?;
                self.fail(at, SyncTarget::Partitions, nth).await?;
            }
            // It is synced once a second, each time by any of many threads.
            ClusterFault::SyncErrorSettle => self.fail(at, SyncTarget::Settle, 2).await?,
            ClusterFault::SyncErrorMetastore => self.fail_metastore(at).await?,
            ClusterFault::Restart => {
                self.nodes.all[at].stop(STOP_DEADLINE).await?;
                self.nodes.all[at].spawn_again()?;
            }
        }
        self.tell("healed")?;
        self.nodes.settled(WHOLE_WITHIN).await.context("healed")?;
        self.tell("whole")
    }

    fn tell(&mut self, what: &str) -> anyhow::Result<()> {
        writeln!(self.told, "{} us: {what}", self.recorder.now_us()).context("cannot write down what was done")
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.chance.below(u64::try_from(end).unwrap_or(1))).unwrap_or(0)
    }

    async fn some_seconds(&mut self) {
        tokio::time::sleep(Duration::from_millis(self.chance.below(HURT_MS_MAX))).await;
    }

    async fn kill(&mut self, which: &[usize]) -> anyhow::Result<()> {
        for at in which {
            if self.chance.percent(30) {
                self.nodes.all[*at].kill_frozen(Duration::from_millis(20 + self.chance.below(300))).await?;
            } else {
                self.nodes.all[*at].kill()?;
            }
        }
        self.some_seconds().await;
        for at in which {
            // Now and then it is killed again while it starts.
            if self.chance.percent(25) {
                let after = Duration::from_millis(self.chance.below(500));
                self.nodes.all[*at].start_and_kill(after).await?;
            }
            self.nodes.all[*at].spawn_again()?;
        }
        Ok(())
    }

    async fn freeze(&mut self, at: usize) -> anyhow::Result<()> {
        let time = Duration::from_millis(300 + self.chance.below(HURT_MS_MAX));
        self.nodes.all[at].pause(time).await
    }

    async fn cut(&mut self, pairs: &[(usize, usize)]) -> anyhow::Result<()> {
        for (from, to) in pairs {
            self.nodes.net.cut(*from, *to)?;
        }
        for (from, to) in pairs {
            self.nodes.lost(*from, *to, SHOWS_WITHIN).await.context("it is cut off")?;
        }
        self.some_seconds().await;
        self.nodes.net.heal()
    }

    /// Starts node `at` under strace: syncs of these files fail.
    async fn start_failing(&mut self, at: usize, target: SyncTarget, nth: u32) -> anyhow::Result<SyncErrors> {
        self.nodes.all[at].kill()?;
        let errors = SyncErrors::plan(&self.nodes.all[at].config().data_dir, target, nth, self.strace_log.clone())?;
        self.nodes.set_watcher(at, errors.words());
        self.nodes.all[at].spawn_again()?;
        Ok(errors)
    }

    /// Ends the node that suffers; the next one does not.
    fn end_failing(&mut self, at: usize, errors: &SyncErrors) -> anyhow::Result<()> {
        ensure!(errors.failed() > 0, "no sync has failed");
        self.nodes.set_watcher(at, Vec::new());
        self.nodes.all[at].kill()?;
        self.nodes.all[at].spawn_again()
    }

    /// A sync fails, and the node goes on.
    async fn fail(&mut self, at: usize, target: SyncTarget, nth: u32) -> anyhow::Result<()> {
        let errors = self.start_failing(at, target, nth).await?;
        let started = Instant::now();
        while errors.failed() == 0 {
            ensure!(started.elapsed() < SHOWS_WITHIN, "no sync of {target:?} has failed after {SHOWS_WITHIN:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.nodes.settled(WHOLE_WITHIN).await.with_context(|| format!("a sync of {target:?} has failed"))?;
        self.end_failing(at, &errors)
    }

    async fn fail_wal(&mut self, at: usize) -> anyhow::Result<()> {
        let nth = 3 + u32::try_from(self.chance.below(20))?;
        let errors = self.start_failing(at, SyncTarget::Wal, nth).await?;
        self.probes[at].until("/readyz", |reply| reply.status == 503 && holds(reply, "ingress wal"), SHOWS_WITHIN).await?;
        let refused = self.probes[at].produce().await?;
        ensure!(refused.status == 500 && holds(&refused, "log_poisoned"), "produce on a latched WAL is answered with {refused:?}");
        // What is stored is served and settled by every node, and the others accept.
        let other = (at + 1) % NODES;
        self.probes[other].stock(2).await.context("another node's WAL is latched")?;
        self.probes[at].take_one(SHOWS_WITHIN).await.context("the WAL is latched")?;
        self.probes[other].take_one(SHOWS_WITHIN).await.context("another node's WAL is latched")?;
        self.end_failing(at, &errors)
    }

    async fn fail_metastore(&mut self, at: usize) -> anyhow::Result<()> {
        let mut nth = 3 + u32::try_from(self.chance.below(6))?;
        let other = (at + 1) % NODES;
        let errors = loop {
            let errors = self.start_failing(at, SyncTarget::Metastore, nth).await?;
            if self.metastore_latched(at, other, &errors).await? {
                break errors;
            }
            // A node whose store fails before it is in its cluster ends, and says why.
            nth += 3;
        };
        // Messages go on at all nodes, and changes at the other two.
        self.probes[at].stock(1).await.context("the metadata store is latched")?;
        self.probes[at].take_one(SHOWS_WITHIN).await.context("the metadata store is latched")?;
        let started = Instant::now();
        while let Err(err) = self.probes[other].change_topics().await {
            ensure!(started.elapsed() < SHOWS_WITHIN, "the others change no topics: {err:#}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.end_failing(at, &errors)
    }

    /// Waits until the node says that its metadata store takes no more; false if it has ended instead.
    async fn metastore_latched(&mut self, at: usize, other: usize, errors: &SyncErrors) -> anyhow::Result<bool> {
        let started = Instant::now();
        loop {
            if self.nodes.all[at].has_ended()? {
                ensure!(errors.failed() > 0, "{} ended, and no sync has failed", name(at));
                return Ok(false);
            }
            let ready = self.nodes.client(at).get("/readyz").await;
            if ready.is_ok_and(|reply| reply.status == 503 && holds(&reply, "it takes no changes any more")) {
                return Ok(true);
            }
            ensure!(started.elapsed() < SHOWS_WITHIN, "{} does not say that its metadata store takes no more", name(at));
            // Whether the change is made does not matter: it is written.
            let _ = self.probes[other].change_topics().await;
        }
    }

    async fn fill_disk(&mut self) -> anyhow::Result<()> {
        self.nodes.disk.leave(NEARLY_FULL)?;
        let refused = self.probes[SMALL].until_refused("disk_full", NOTICED_WITHIN).await.context("below the reserve")?;
        let is_right = refused.status == 503 && refused.effect.as_deref() == Some("none") && refused.retry_after.is_some();
        ensure!(is_right, "produce on a full disk is refused with {refused:?}");
        let other = (SMALL + 1) % NODES;
        self.probes[other].stock(2).await.context("another node's disk is full")?;

        self.nodes.disk.leave(0)?;
        self.some_seconds().await;
        self.probes[other].stock(1).await.context("another node's disk has not a byte free")?;
        self.nodes.disk.make_room()
    }
}

/// `at` reaches no other, and no other reaches it.
fn alone(at: usize) -> Vec<(usize, usize)> {
    (0..NODES).filter(|other| *other != at).flat_map(|other| [(at, other), (other, at)]).collect()
}
