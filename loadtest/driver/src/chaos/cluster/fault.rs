//! What is done to the nodes of a cluster, and what must hold while it is done.

use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::kind::ClusterFault;
use super::nodes::{Nodes, SMALL, Standing};
use super::turnover::Turnover;
use crate::chance::Chance;
use crate::chaos::STOP_DEADLINE;
use crate::chaos::full_disk::{NEARLY_FULL, NOTICED_WITHIN};
use crate::chaos::probe::{Probe, holds};
use crate::chaos::strace::{SyncErrors, SyncTarget};
use crate::recorder::Recorder;

/// How long it may take until something that was provoked shows.
const SHOWS_WITHIN: Duration = Duration::from_secs(30);
/// How long the cluster may take to be whole again. Elections and back-off take seconds; the machine is busy.
const WHOLE_WITHIN: Duration = Duration::from_secs(60);
/// How long the longest cut or freeze goes on: longer than the silence after which a connection is given up.
const HURT_MS_MAX: u64 = 9_000;
/// How long partitions may take to move for balance after everybody is well, with all it takes to find out; and those that rest.
const BALANCES_WITHIN: Duration = Duration::from_secs(180);
/// How long those who come or leave may take once nobody is hurt on purpose any more.
const TURNS_WITHIN: Duration = Duration::from_secs(420);
/// Of 100 faults of any one node, how many hit the one that comes or leaves.
const TURNING_PERCENT: u64 = 40;
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A cluster under load, and who hurts it.
pub(super) struct Hurt<'a> {
    pub(super) nodes: &'a mut Nodes,
    pub(super) turnover: Turnover,
    /// One for each seat.
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
        match fault {
            ClusterFault::FullDisk => self.until_steady(SMALL).await?,
            ClusterFault::Lull => return self.lull().await,
            _ => {}
        }
        let leader = self.whole(WHOLE_WITHIN).await?;
        let order = self.order(fault);
        let (at, next) = (order[0], order[1]);
        self.tell(&format!("{fault:?}, {} leads, at {}, then {}", self.nodes.name(leader), self.nodes.name(at), self.nodes.name(next)))?;
        match fault {
            ClusterFault::KillOne => self.kill(&[at]).await?,
            ClusterFault::KillLeader => self.kill(&[leader]).await?,
            ClusterFault::KillTwo => self.kill(&[at, next]).await?,
            ClusterFault::KillAll => self.kill(&order).await?,
            ClusterFault::FreezeOne => self.freeze(at).await?,
            ClusterFault::FreezeLeader => self.freeze(leader).await?,
            ClusterFault::CutOneWay => self.cut(&[(at, next)]).await?,
            ClusterFault::CutBothWays => self.cut(&[(at, next), (next, at)]).await?,
            ClusterFault::Isolate => self.cut(&alone(at, &order)).await?,
            ClusterFault::IsolateLeader => self.cut(&alone(leader, &order)).await?,
            ClusterFault::FullDisk => self.fill_disk(next).await?,
            ClusterFault::SyncErrorWal => self.fail_wal(at, next).await?,
            ClusterFault::SyncErrorPartition => {
                let nth = 3 + u32::try_from(self.chance.below(6))?;
                let at = self.busy(at).await;
                self.fail(at, SyncTarget::Partitions, nth).await?;
            }
            // It is synced once a second, each time by any of many threads.
            ClusterFault::SyncErrorSettle => {
                let at = self.busy(at).await;
                self.fail(at, SyncTarget::Settle, 2).await?;
            }
            ClusterFault::SyncErrorMetastore => self.fail_metastore(at, next).await?,
            ClusterFault::Restart => {
                let node = &mut self.nodes.seat(at).node;
                node.stop(STOP_DEADLINE).await?;
                node.spawn_again()?;
            }
            ClusterFault::Lull | ClusterFault::Join | ClusterFault::Decommission | ClusterFault::DecommissionCancel => {}
        }
        self.turnover.spared.clear();
        self.tell("healed")?;
        self.whole(WHOLE_WITHIN).await.context("healed")?;
        self.tell("whole")
    }

    /// Those that may be hurt, in the order in which it is their turn. Of what must hold while one is hurt, only those know on whom one counts.
    fn order(&mut self, fault: ClusterFault) -> Vec<usize> {
        let needs_steady = matches!(
            fault,
            ClusterFault::FullDisk
                | ClusterFault::SyncErrorWal
                | ClusterFault::SyncErrorPartition
                | ClusterFault::SyncErrorSettle
                | ClusterFault::SyncErrorMetastore
        );
        let mut order = if needs_steady { self.nodes.steady() } else { self.nodes.running() };
        self.chance.shuffle(&mut order);
        if fault == ClusterFault::FullDisk {
            order.sort_by_key(|at| *at != SMALL);
        } else if let Some(turning) = self.turnover.at().filter(|_| self.chance.percent(TURNING_PERCENT)) {
            order.sort_by_key(|at| *at != turning);
        }
        if needs_steady {
            self.turnover.spared = order[..2].to_vec();
        }
        order
    }

    /// A node that owns a partition with traffic; `other` if there is no telling.
    async fn busy(&mut self, other: usize) -> usize {
        let owners = self.nodes.asker(other).owners("orders").await.unwrap_or_default();
        let owners: Vec<usize> = owners.iter().filter_map(|(_, owner)| self.nodes.at(owner.as_deref()?)).collect();
        let steady = self.nodes.steady();
        let owners: Vec<usize> = owners.into_iter().filter(|at| steady.contains(at)).collect();
        let at = self.chance.pick(&owners).unwrap_or(other);
        self.turnover.spared = vec![at];
        at
    }

    fn tell(&mut self, what: &str) -> anyhow::Result<()> {
        writeln!(self.told, "{} us: {what}", self.recorder.now_us()).context("cannot write down what was done")
    }

    /// Those who come and those who leave get on.
    async fn step(&mut self) -> anyhow::Result<()> {
        match self.turnover.step(self.nodes, self.chance).await? {
            Some(what) => self.tell(&what),
            None => Ok(()),
        }
    }

    /// Lets so much time pass.
    pub(super) async fn pass(&mut self, time: Duration) -> anyhow::Result<()> {
        let started = Instant::now();
        while let Some(left) = time.checked_sub(started.elapsed()) {
            self.step().await?;
            tokio::time::sleep(left.min(LOOK_EVERY)).await;
        }
        Ok(())
    }

    /// Waits until everybody on whom one counts is ready, sees all others of them, and names the same leader. Answers who leads.
    pub(super) async fn whole(&mut self, deadline: Duration) -> anyhow::Result<usize> {
        let started = Instant::now();
        loop {
            let missing = match self.nodes.look().await {
                Ok(leader) => return Ok(leader),
                Err(missing) => missing,
            };
            self.nodes.ended()?;
            if started.elapsed() > deadline {
                return Err(missing.context(format!("the cluster is not whole after {deadline:?}")));
            }
            self.pass(LOOK_EVERY).await?;
        }
    }

    /// Waits until nobody comes or leaves; until then nobody is hurt.
    pub(super) async fn at_rest(&mut self) -> anyhow::Result<()> {
        let started = Instant::now();
        while !self.turnover.rests() || self.nodes.is_leaving() {
            self.nodes.sweep().await?;
            ensure!(started.elapsed() < TURNS_WITHIN, "somebody still comes or leaves after {TURNS_WITHIN:?}");
            self.pass(LOOK_EVERY).await?;
            self.nodes.ended()?;
        }
        Ok(())
    }

    /// Waits until everything that comes and goes has come or gone as it was to.
    pub(super) async fn turned(&mut self) -> anyhow::Result<()> {
        let started = Instant::now();
        while !self.turnover.is_whole() {
            ensure!(started.elapsed() < TURNS_WITHIN, "of those who come and leave there were only {:?}", self.turnover.counts);
            self.pass(LOOK_EVERY).await?;
            self.nodes.ended()?;
        }
        Ok(())
    }

    async fn until_steady(&mut self, at: usize) -> anyhow::Result<()> {
        while self.nodes.get(at).is_none_or(|seat| seat.standing != Standing::Steady) {
            self.pass(LOOK_EVERY).await?;
            self.nodes.ended()?;
        }
        Ok(())
    }

    async fn some_seconds(&mut self) -> anyhow::Result<()> {
        let time = Duration::from_millis(self.chance.below(HURT_MS_MAX));
        self.pass(time).await
    }

    /// Is it time for a lull, with all seats taken and nobody on the way? Until then nobody is asked to leave.
    pub(super) fn may_lull(&mut self) -> bool {
        self.turnover.pauses = true;
        self.turnover.rests() && (self.nodes.is_full() || self.turnover.is_held)
    }

    /// Waits until partitions move for balance, or there is nothing to move.
    async fn lull(&mut self) -> anyhow::Result<()> {
        let at = self.whole(WHOLE_WITHIN).await?;
        self.tell("Lull")?;
        let started = Instant::now();
        loop {
            let members = self.nodes.asker(at).members().await?;
            let owned = || members.iter().map(|member| member.owned_partitions);
            let is_even = owned().max() <= owned().min().map(|least| least + 1);
            let moves = self.nodes.asker(at).moves().await?.len();
            if moves > 0 || is_even {
                let owned: Vec<u64> = owned().collect();
                self.tell(&format!("{moves} partitions move after {} ms, members own {owned:?}", started.elapsed().as_millis()))?;
                self.turnover.pauses = false;
                return Ok(());
            }
            ensure!(started.elapsed() < BALANCES_WITHIN, "nothing moves for balance within {BALANCES_WITHIN:?}: {members:?}");
            self.pass(LOOK_EVERY).await?;
        }
    }

    async fn kill(&mut self, which: &[usize]) -> anyhow::Result<()> {
        let names: Vec<String> = which.iter().map(|at| self.nodes.name(*at).to_owned()).collect();
        for at in which {
            let frozen = self.chance.percent(30).then(|| Duration::from_millis(20 + self.chance.below(300)));
            let node = &mut self.nodes.seat(*at).node;
            match frozen {
                Some(time) => node.kill_frozen(time).await?,
                None => node.kill()?,
            }
        }
        self.some_seconds().await?;
        for (at, name) in which.iter().zip(names) {
            // Now and then it is killed again while it starts.
            let again = self.chance.percent(25).then(|| Duration::from_millis(self.chance.below(500)));
            // One that has left stays where it is.
            let Some(seat) = self.nodes.get(*at).filter(|seat| seat.name == name) else { continue };
            if let Some(after) = again {
                seat.node.start_and_kill(after).await?;
            }
            seat.node.spawn_again()?;
        }
        Ok(())
    }

    async fn freeze(&mut self, at: usize) -> anyhow::Result<()> {
        let time = Duration::from_millis(300 + self.chance.below(HURT_MS_MAX));
        let frozen = self.nodes.seat(at).node.freeze()?;
        self.pass(time).await?;
        // It answers nothing while it stands still, so it is still there.
        self.nodes.seat(at).node.thaw(frozen)
    }

    async fn cut(&mut self, pairs: &[(usize, usize)]) -> anyhow::Result<()> {
        for (from, to) in pairs {
            self.nodes.net.cut(*from, *to)?;
        }
        for (from, to) in pairs {
            let started = Instant::now();
            let names = |nodes: &Nodes| [*from, *to].map(|at| nodes.name(at).to_owned());
            let of = names(self.nodes);
            // One that has left meanwhile is not missed.
            while names(self.nodes) == of {
                match self.nodes.has_lost(*from, *to).await {
                    Some(true) => break,
                    None if started.elapsed() >= SHOWS_WITHIN => break,
                    Some(false) | None => {}
                }
                ensure!(started.elapsed() < SHOWS_WITHIN, "{of:?}: the first reaches the second, and is cut off, after {SHOWS_WITHIN:?}");
                self.pass(LOOK_EVERY).await?;
            }
        }
        self.some_seconds().await?;
        self.nodes.net.heal()
    }

    /// Starts node `at` under strace: syncs of these files fail.
    async fn start_failing(&mut self, at: usize, target: SyncTarget, nth: u32) -> anyhow::Result<SyncErrors> {
        self.nodes.seat(at).node.kill()?;
        let errors = SyncErrors::plan(&self.nodes.seat(at).node.config().data_dir, target, nth, self.strace_log.clone())?;
        self.nodes.set_watcher(at, errors.words());
        self.nodes.seat(at).node.spawn_again()?;
        Ok(errors)
    }

    /// Ends the node that suffers; the next one does not.
    fn end_failing(&mut self, at: usize, errors: &SyncErrors) -> anyhow::Result<()> {
        ensure!(errors.failed() > 0, "no sync has failed");
        self.nodes.set_watcher(at, Vec::new());
        self.nodes.seat(at).node.kill()?;
        self.nodes.seat(at).node.spawn_again()
    }

    /// A sync fails, and the node goes on.
    async fn fail(&mut self, at: usize, target: SyncTarget, nth: u32) -> anyhow::Result<()> {
        let errors = self.start_failing(at, target, nth).await?;
        let started = Instant::now();
        while errors.failed() == 0 {
            ensure!(started.elapsed() < SHOWS_WITHIN, "no sync of {target:?} has failed after {SHOWS_WITHIN:?}");
            self.pass(LOOK_EVERY).await?;
        }
        self.whole(WHOLE_WITHIN).await.with_context(|| format!("a sync of {target:?} has failed"))?;
        self.end_failing(at, &errors)
    }

    async fn fail_wal(&mut self, at: usize, other: usize) -> anyhow::Result<()> {
        let nth = 3 + u32::try_from(self.chance.below(20))?;
        let errors = self.start_failing(at, SyncTarget::Wal, nth).await?;
        self.probes[at].until("/readyz", |reply| reply.status == 503 && holds(reply, "ingress wal"), SHOWS_WITHIN).await?;
        let refused = self.probes[at].produce().await?;
        ensure!(refused.status == 500 && holds(&refused, "log_poisoned"), "produce on a latched WAL is answered with {refused:?}");
        // What is stored is served and settled by every node, and the others accept.
        self.probes[other].stock(2).await.context("another node's WAL is latched")?;
        self.probes[at].take_one(SHOWS_WITHIN).await.context("the WAL is latched")?;
        self.probes[other].take_one(SHOWS_WITHIN).await.context("another node's WAL is latched")?;
        self.end_failing(at, &errors)
    }

    async fn fail_metastore(&mut self, at: usize, other: usize) -> anyhow::Result<()> {
        let mut nth = 3 + u32::try_from(self.chance.below(6))?;
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
            if self.nodes.seat(at).node.has_ended()? {
                ensure!(errors.failed() > 0, "{} ended, and no sync has failed", self.nodes.name(at));
                return Ok(false);
            }
            let ready = self.nodes.client(at).get("/readyz").await;
            if ready.is_ok_and(|reply| reply.status == 503 && holds(&reply, "it takes no changes any more")) {
                return Ok(true);
            }
            ensure!(started.elapsed() < SHOWS_WITHIN, "{} does not say that its metadata store takes no more", self.nodes.name(at));
            // Whether the change is made does not matter: it is written.
            let _ = self.probes[other].change_topics().await;
        }
    }

    async fn fill_disk(&mut self, other: usize) -> anyhow::Result<()> {
        self.nodes.disk.leave(NEARLY_FULL)?;
        let refused = self.probes[SMALL].until_refused("disk_full", NOTICED_WITHIN).await.context("below the reserve")?;
        let is_right = refused.status == 503 && refused.effect.as_deref() == Some("none") && refused.retry_after.is_some();
        ensure!(is_right, "produce on a full disk is refused with {refused:?}");
        self.probes[other].stock(2).await.context("another node's disk is full")?;

        self.nodes.disk.leave(0)?;
        self.some_seconds().await?;
        self.probes[other].stock(1).await.context("another node's disk has not a byte free")?;
        self.nodes.disk.make_room()
    }
}

/// `at` reaches no other of them, and no other reaches it.
fn alone(at: usize, all: &[usize]) -> Vec<(usize, usize)> {
    all.iter().filter(|other| **other != at).flat_map(|other| [(at, *other), (*other, at)]).collect()
}
