//! The nodes of a cluster, each in a network namespace of its own. One seat more than stays: nodes leave it for good, and others come.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tokio::task::JoinHandle;

use super::net::{self, Net};
use super::small_disk::SmallDisk;
use crate::api::Client;
use crate::chaos::STOP_DEADLINE;
use crate::cluster;
use crate::node::{NodeConfig, NodeProcess};
use crate::recorder::Recorder;

pub use crate::cluster::{NODES, name};

/// How many nodes there are at most.
pub const SEATS: usize = NODES + 1;
/// The seat whose disk can become full.
pub const SMALL: usize = 2;
/// Below this a node takes no messages.
pub const RESERVE_BYTES: u64 = 192 * 1024 * 1024;

const HTTP_PORT: u16 = 7942;
const PEER_PORT: u16 = 7943;
/// How long a node may take to answer what it only needs to look up.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// Whether a node is one of those on whom everybody counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has been started, and is not known to vote.
    Joining,
    /// It is.
    Steady,
    /// It may have been asked to leave.
    Draining,
}

/// A node, as long as it is there.
pub struct Seat {
    /// What its cluster calls it.
    pub name: String,
    /// Its process.
    pub node: NodeProcess,
    /// How it stands.
    pub standing: Standing,
}

/// Running nodes. The order matters at the end: processes, then what they stand on.
pub struct Nodes {
    seats: Vec<Option<Seat>>,
    /// The seat of one that has left, and its end.
    leaving: Option<(usize, JoinHandle<anyhow::Result<()>>)>,
    /// What joins them.
    pub net: Net,
    /// The disk of one of them.
    pub disk: SmallDisk,
    bin: PathBuf,
    dir: PathBuf,
    recorder: Arc<Recorder>,
    /// The logs of all that ever were, in the order of their names.
    logs: Vec<PathBuf>,
}

impl Nodes {
    /// Founds a cluster with everything in `dir`.
    ///
    /// # Errors
    /// It does not come to be.
    pub async fn start(bin: &Path, dir: &Path, recorder: &Arc<Recorder>) -> anyhow::Result<Self> {
        let seats = (0..SEATS).map(|_| None).collect();
        let (net, disk) = (Net::create(SEATS)?, SmallDisk::create(&dir.join("small-disk"))?);
        let (bin, dir, recorder) = (bin.to_owned(), dir.to_owned(), recorder.clone());
        let mut nodes = Self { seats, leaving: None, net, disk, bin, dir, recorder, logs: Vec::new() };
        for at in 0..NODES {
            let name = nodes.join(at)?;
            nodes.seat(at).node.wait_ready(STARTS_WITHIN).await.context(name)?;
            nodes.seat(at).standing = Standing::Steady;
        }
        Ok(nodes)
    }

    /// Starts a node that nobody knows on a seat that is free, and waits for nothing. The first one founds, the others join. Answers its name.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn join(&mut self, at: usize) -> anyhow::Result<String> {
        let name = name(self.logs.len());
        let mut config = NodeConfig::in_dir(&self.bin, &self.dir.join(&name)).flag("--insecure-listen").flag("--node-id").flag(&name);
        config.before = self.net.words(at);
        let known: Vec<_> = self.steady().into_iter().map(|at| (self.name(at).to_owned(), net::addr(at, PEER_PORT))).collect();
        config.env = cluster::env_among(net::addr(at, PEER_PORT), &known);
        if at == SMALL {
            config.data_dir = self.disk.path().join(&name);
            config.env.push(("VEENA_STORAGE_RESERVE_BYTES".to_owned(), RESERVE_BYTES.to_string()));
        }
        self.logs.push(config.log.clone());
        self.recorder.rename(at, &name);
        let node = NodeProcess::spawn_on(config, net::addr(at, HTTP_PORT))?.recorded_as(&self.recorder, at);
        self.seats[at] = Some(Seat { name: name.clone(), node, standing: Standing::Joining });
        Ok(name)
    }

    /// Ends a node that has left, by a signal or at once, and throws away what it had. That takes a while, until which its seat is not free.
    ///
    /// # Errors
    /// It cannot be killed.
    pub fn vacate(&mut self, at: usize, is_killed: bool) -> anyhow::Result<()> {
        let Some(Seat { name, mut node, .. }) = self.seats[at].take() else { return Ok(()) };
        if is_killed {
            node.kill()?;
        }
        let ended = tokio::spawn(async move {
            if !node.has_ended()? {
                node.stop(STOP_DEADLINE).await.with_context(|| format!("{name} has left the cluster and is stopped"))?;
            }
            std::fs::remove_dir_all(&node.config().data_dir).with_context(|| format!("the data of {name}"))
        });
        self.leaving = Some((at, ended));
        Ok(())
    }

    /// Looks whether a node that has left has ended.
    ///
    /// # Errors
    /// It did not end as it should.
    pub async fn sweep(&mut self) -> anyhow::Result<()> {
        match self.leaving.take() {
            Some((_, ended)) if ended.is_finished() => ended.await?,
            left => {
                self.leaving = left;
                Ok(())
            }
        }
    }

    /// Has one left that has not ended yet?
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Is a node at every seat?
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.seats.iter().all(Option::is_some)
    }

    /// A seat that is free.
    #[must_use]
    pub fn vacant(&self) -> Option<usize> {
        (0..SEATS).find(|at| self.seats[*at].is_none() && self.leaving.as_ref().is_none_or(|(left, _)| left != at))
    }

    fn seats_where(&self, wanted: impl Fn(&Seat) -> bool) -> Vec<usize> {
        (0..SEATS).filter(|at| self.seats[*at].as_ref().is_some_and(&wanted)).collect()
    }

    /// The seats of those that were started and have not left.
    #[must_use]
    pub fn present(&self) -> Vec<usize> {
        self.seats_where(|_| true)
    }

    /// The same without one that has left and ended by itself.
    #[must_use]
    pub fn running(&mut self) -> Vec<usize> {
        let mut present = self.present();
        present.retain(|at| self.seats[*at].as_mut().is_some_and(|seat| matches!(seat.node.has_ended(), Ok(false))));
        present
    }

    /// The seats of those on whom everybody counts.
    #[must_use]
    pub fn steady(&self) -> Vec<usize> {
        self.seats_where(|seat| seat.standing == Standing::Steady)
    }

    /// The node at `at`, if there is one.
    pub fn get(&mut self, at: usize) -> Option<&mut Seat> {
        self.seats[at].as_mut()
    }

    /// The node at `at`.
    ///
    /// # Panics
    /// There is none.
    pub fn seat(&mut self, at: usize) -> &mut Seat {
        self.get(at).expect("invariant: asked for one that is there")
    }

    /// The name of the node at `at`; of a free seat, a word for that.
    #[must_use]
    pub fn name(&self, at: usize) -> &str {
        self.seats[at].as_ref().map_or("nobody", |seat| &seat.name)
    }

    /// The seat of the node called `name`.
    #[must_use]
    pub fn at(&self, name: &str) -> Option<usize> {
        self.seats_where(|seat| seat.name == name).first().copied()
    }

    /// Where clients reach them, also those that will come.
    #[must_use]
    pub fn addrs(&self) -> Vec<SocketAddr> {
        (0..SEATS).map(|at| net::addr(at, HTTP_PORT)).collect()
    }

    /// A client of whoever sits at `at`, and of no other.
    #[must_use]
    pub fn client(&self, at: usize) -> Client {
        Client::among(&self.addrs(), at).staying()
    }

    /// The same, in a hurry.
    #[must_use]
    pub fn asker(&self, at: usize) -> Client {
        self.client(at).with_timeout(LOOK_PATIENCE)
    }

    /// The logs of all that ever were.
    #[must_use]
    pub fn logs(&self) -> &[PathBuf] {
        &self.logs
    }

    /// Looks whether everybody on whom one counts is ready, sees all others of them, and names the same leader. Answers where that is.
    ///
    /// # Errors
    /// They are not; the error says what is missing.
    pub async fn look(&self) -> anyhow::Result<usize> {
        let mut leaders = BTreeSet::new();
        let steady = self.steady();
        for at in &steady {
            let ready = self.asker(*at).get("/readyz").await.with_context(|| self.name(*at).to_owned())?;
            ensure!(ready.status == 200, "{} is not ready: {}", self.name(*at), String::from_utf8_lossy(&ready.body));
            let members = self.asker(*at).members().await.with_context(|| self.name(*at).to_owned())?;
            for other in &steady {
                let member = members.iter().find(|member| member.id == self.name(*other));
                let is_well = member.is_some_and(|member| member.status == "alive" && member.voter == Some(true));
                ensure!(is_well, "{} is told by {}: {member:?}", self.name(*other), self.name(*at));
            }
            let leader = members.into_iter().find(|member| member.leader == Some(true));
            leaders.insert(leader.with_context(|| format!("{} knows no leader", self.name(*at)))?.id);
        }
        let mut leaders = leaders.into_iter();
        let (Some(leader), None) = (leaders.next(), leaders.next()) else { bail!("they name several leaders") };
        self.at(&leader).with_context(|| format!("{leader} leads, and has left"))
    }

    /// Has a process ended that should not have? One that leaves may.
    ///
    /// # Errors
    /// It has.
    pub fn ended(&mut self) -> anyhow::Result<()> {
        for seat in self.seats.iter_mut().flatten().filter(|seat| seat.standing != Standing::Draining) {
            ensure!(!seat.node.has_ended()?, "{} ended by itself; its log is {}", seat.name, seat.node.config().log.display());
        }
        Ok(())
    }

    /// Does the node at `asked` say that it does not reach the one at `lost`, or know of none there? `None` while it says nothing, as one that
    /// is cut off before it has joined.
    pub async fn has_lost(&self, asked: usize, lost: usize) -> Option<bool> {
        let members = self.asker(asked).members().await.ok()?;
        Some(!members.iter().any(|member| member.id == self.name(lost) && member.status == "alive"))
    }

    /// Words before the node's own: where it runs, then who watches it.
    pub fn set_watcher(&mut self, at: usize, watcher: Vec<String>) {
        let words = self.net.words(at);
        self.seat(at).node.config_mut().before = words.into_iter().chain(watcher).collect();
    }
}
