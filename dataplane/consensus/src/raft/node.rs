//! One member: start, lead, status, shutdown.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openraft::error::{Fatal, RaftError};
use openraft::metrics::WaitError;
use openraft::{Config, LogIdOptionExt, Membership, Raft, RaftMetrics, SnapshotPolicy, Vote};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{sleep, timeout};
use veena_contract::{FeatureLevel, LineageId, LogIndex, NodeId, PeerAddr, PeerClient};

use super::adapter::MachineAdapter;
use super::network::{NoPeers, Peers};
use super::offline::known_members;
use super::receive::Receiver;
use super::shared::Shared;
use super::store::LogStore;
use super::types::{CommandText, Member, MemberId, RaftTypes, member_id};
use super::wire::Failure;
use crate::{ConsensusConfig, ConsensusStatus, Door, Gate, KnownMember, MemberStatus, Runtime, StartError, StateMachine};

/// After this long without leadership, the only voter asks again.
const ELECT_AGAIN: Duration = Duration::from_millis(500);

/// How long a shutdown waits for a snapshot that is being written.
const RELEASE_WITHIN: Duration = Duration::from_secs(10);

/// How long a shutdown waits for the log to be closed.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// Nobody says when it is closed. It takes a few milliseconds, and a look costs one load of a pointer.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

pub(super) type Metrics = RaftMetrics<MemberId, Member>;

/// A running member. Clones are handles to the same one.
#[derive(Clone)]
pub struct Consensus {
    pub(super) raft: Raft<RaftTypes>,
    pub(super) id: MemberId,
    pub(super) node: NodeId,
    pub(super) addr: Arc<str>,
    pub(super) directory: Arc<str>,
    pub(super) left: Option<LineageId>,
    pub(super) level: FeatureLevel,
    pub(super) parts: Arc<Parts>,
    /// Behind the last entry that the log held when this member started.
    pub(super) log_end_at_start: u64,
    /// The vote that the log held when this member started.
    pub(super) vote_at_start: Option<Vote<MemberId>>,
    /// After this long without word from a majority, a leader is none.
    lease: Duration,
    /// Closed once nothing of this member holds on to the log any more.
    released: Arc<Mutex<mpsc::Receiver<()>>>,
}

/// What is around the raft library.
pub(super) struct Parts {
    /// The way to other members.
    pub peers: Arc<dyn PeerClient>,
    /// Are raft calls served? Not while the log is empty and nobody has let this node in.
    pub is_open: AtomicBool,
    /// Read points that are asked for here.
    pub barrier: Shared<Result<LogIndex, Failure>>,
    /// Confirmations of this member as the leader.
    pub confirmation: Shared<Result<LogIndex, Failure>>,
    /// A snapshot that comes in.
    pub receiver: Receiver,
    /// Who may join anew.
    pub door: Door,
    /// Which commands are taken when this member leads.
    pub gate: Gate,
    /// Held by whoever changes the members.
    pub changes: Mutex<()>,
    /// Held by the change that openraft is at.
    pub writing: Mutex<()>,
    /// Is the log closed?
    pub is_log_closed: Box<dyn Fn() -> bool + Send + Sync>,
}

impl Consensus {
    /// Starts the only member of a cluster on `log`, as [`start_among`](Self::start_among) does.
    ///
    /// # Errors
    /// [`StartError`] when the log cannot be read or is another node's.
    pub async fn start<L: LogStore>(
        config: &ConsensusConfig,
        log: L,
        machine: Box<dyn StateMachine>,
        runtime: &Runtime,
    ) -> Result<Self, StartError> {
        let member = Self::start_among(config, log, machine, runtime, Arc::new(NoPeers)).await?;
        member.refuse_the_log_of_others().await?;
        Ok(member)
    }

    /// Starts a member on `log`: restores its snapshot, applies what is known as committed, and takes part, if the log is not empty. A
    /// member with an empty log waits to be [initialized](Self::initialize) or to [`join`](Self::join). Does not wait for a leader.
    ///
    /// A log that names other members only may be a learner's that was stopped before it had learned of itself; whether it is, the leader
    /// says at the first [`barrier`](Self::barrier).
    ///
    /// # Errors
    /// [`StartError`] when the log cannot be read.
    pub async fn start_among<L: LogStore>(
        config: &ConsensusConfig,
        mut log: L,
        machine: Box<dyn StateMachine>,
        runtime: &Runtime,
        peers: Arc<dyn PeerClient>,
    ) -> Result<Self, StartError> {
        runtime.seed();
        let log_state = log.get_log_state().await.map_err(|e| StartError::Store { detail: e.to_string() })?;
        let stored = log.load_snapshot().await.map_err(|e| StartError::Store { detail: e.to_string() })?;
        let vote_at_start = log.read_vote().await.map_err(|e| StartError::Store { detail: e.to_string() })?;
        let is_blank = log_state.last_log_id.is_none() && stored.is_none();
        let (door, gate) = (machine.door(), machine.gate());
        let mut adapter = MachineAdapter::open(machine, log.clone(), stored)?;
        let (alive, released) = mpsc::channel(1);
        adapter.keep(alive);
        let settings = settings(config)?;
        let id = member_id(&config.node);
        let network = Peers(Arc::clone(&peers));
        let is_log_closed = log.closed();
        let raft = Raft::new(id, Arc::new(settings), network, log, adapter).await.map_err(|e| fatal_at_start(&e))?;
        let parts = Parts {
            peers,
            is_open: AtomicBool::new(!is_blank),
            barrier: Shared::new(),
            confirmation: Shared::new(),
            receiver: Receiver::default(),
            door,
            gate,
            changes: Mutex::default(),
            writing: Mutex::default(),
            is_log_closed,
        };
        let member = Self {
            raft,
            id,
            node: config.node.clone(),
            addr: Arc::clone(&config.addr),
            directory: Arc::clone(&config.directory),
            left: config.left,
            level: config.level,
            parts: Arc::new(parts),
            log_end_at_start: log_state.last_log_id.next_index(),
            vote_at_start,
            lease: config.election_max,
            released: Arc::new(Mutex::new(released)),
        };
        // What is known of the members is shown once the raft library runs.
        member.raft.with_raft_state(|_| ()).await.map_err(|e| fatal_at_start(&e))?;
        Ok(member)
    }

    /// Is the log empty, so that this node belongs to no cluster yet, or has lost what it had?
    #[must_use]
    pub fn is_blank(&self) -> bool {
        !self.parts.is_open.load(Ordering::Acquire)
    }

    /// Is this node the only voter, as far as it knows?
    #[must_use]
    pub fn is_only_voter(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        metrics.membership_config.membership().voter_ids().eq([self.id])
    }

    /// A member of the cluster and where it listens, as far as this node knows.
    #[must_use]
    pub fn member(&self, node: &NodeId) -> Option<PeerAddr> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        metrics.membership_config.membership().get_node(&member_id(node)).map(Member::peer).filter(|peer| peer.node == *node)
    }

    /// What every member knows of commands, as far as this node knows. One that knows less is not let in any more.
    #[must_use]
    pub fn level(&self) -> FeatureLevel {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        lowest_level(metrics.membership_config.membership()).unwrap_or_default()
    }

    /// Do the members know what this one knows of commands?
    #[must_use]
    pub fn is_level_known(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let member = metrics.membership_config.membership().get_node(&self.id);
        member.is_some_and(|member| member.level == self.level)
    }

    /// The members as the log names them, as far as this node knows.
    #[must_use]
    pub fn known_members(&self) -> Vec<KnownMember> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        known_members(metrics.membership_config.membership())
    }

    /// Was this node let in, or did it found the cluster, with the directory that it has now? As far as it knows.
    #[must_use]
    pub fn is_directory_known(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let member = metrics.membership_config.membership().get_node(&self.id);
        member.is_some_and(|member| !self.directory.is_empty() && *member.directory == *self.directory)
    }

    /// A log belongs to the members it names, an empty one to nobody yet. One that names others beside this node is of a cluster, which
    /// would go on without what is done here alone, or wait for this node in vain.
    async fn refuse_the_log_of_others(&self) -> Result<(), StartError> {
        let members: Vec<(MemberId, Member)> = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow();
            metrics.membership_config.membership().nodes().map(|(id, member)| (*id, member.clone())).collect()
        };
        if members.iter().all(|(id, _)| *id == self.id) {
            return Ok(());
        }
        self.shutdown().await;
        let is_member = members.iter().any(|(id, _)| *id == self.id);
        let members = members.into_iter().map(|(_, member)| member.name).collect::<Vec<_>>().join(", ");
        Err(if is_member { StartError::AmongOthers { members } } else { StartError::NotAMember { node: self.node.to_string(), members } })
    }

    /// Makes an empty log the log of a cluster with this one voter; does nothing to any other log.
    ///
    /// # Errors
    /// [`StartError::Store`] when the log cannot be written.
    pub async fn initialize(&self) -> Result<(), StartError> {
        if self.raft.is_initialized().await.map_err(|e| fatal_at_start(&e))? {
            return Ok(());
        }
        let me =
            Member { name: self.node.to_string(), addr: self.addr.to_string(), directory: self.directory.to_string(), level: self.level };
        match self.raft.initialize(BTreeMap::from([(self.id, me)])).await {
            Ok(()) => self.parts.is_open.store(true, Ordering::Release),
            Err(RaftError::APIError(error)) => tracing::warn!(%error, "this node founds no cluster"),
            Err(RaftError::Fatal(fatal)) => return Err(fatal_at_start(&fatal)),
        }
        Ok(())
    }

    /// Where the log ended when this member started, before anything was added to it: one past its last entry.
    #[must_use]
    pub const fn log_end_at_start(&self) -> LogIndex {
        LogIndex(self.log_end_at_start)
    }

    /// Waits until this member leads and has applied everything that its log held when it started, so that no answered change is missing.
    /// For the only voter.
    ///
    /// # Errors
    /// [`StartError::NotReady`] when that takes longer than `within`.
    pub async fn lead(&self, within: Duration) -> Result<(), StartError> {
        match timeout(within, self.lead_and_catch_up()).await {
            Ok(outcome) => outcome,
            Err(_) => Err(StartError::NotReady { within, reason: "the only voter does not lead".to_owned() }),
        }
    }

    async fn lead_and_catch_up(&self) -> Result<(), StartError> {
        while !self.status().is_leader {
            if let Some(detail) = self.status().stopped {
                return Err(StartError::Store { detail });
            }
            self.raft.trigger().elect().await.map_err(|e| fatal_at_start(&e))?;
            let me = self.id;
            match self.raft.wait(Some(ELECT_AGAIN)).metrics(|m| leads(m, me), "the only voter leads").await {
                Ok(_) | Err(WaitError::Timeout(..)) => {}
                Err(WaitError::ShuttingDown) => return Err(StartError::Store { detail: self.stop_reason() }),
            }
        }
        // An entry of an earlier term is committed by one of this term only.
        let applied = self.raft.metrics().borrow().last_applied;
        if applied.next_index() < self.log_end_at_start {
            match self.raft.client_write(CommandText::nothing()).await {
                Ok(_) => {}
                Err(RaftError::Fatal(fatal)) => return Err(fatal_at_start(&fatal)),
                Err(RaftError::APIError(error)) => return Err(StartError::Store { detail: error.to_string() }),
            }
        }
        Ok(())
    }

    /// What this member knows about itself.
    #[must_use]
    pub fn status(&self) -> ConsensusStatus {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let stopped = metrics.running_state.as_ref().err().map(ToString::to_string);
        let membership = metrics.membership_config.membership();
        let is_leader = stopped.is_none() && leads(&metrics, self.id);
        // A leader that is cut off goes on leading, and does not know that nobody follows.
        let lease_ms = u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX);
        let is_alone = is_leader && !membership.voter_ids().eq([self.id]) && metrics.millis_since_quorum_ack.is_none_or(|ms| ms > lease_ms);
        let leader = metrics.current_leader.filter(|_| stopped.is_none() && !is_alone);
        let voters: BTreeSet<MemberId> = membership.voter_ids().collect();
        let matched = |id: &MemberId| metrics.replication.as_ref().and_then(|all| all.get(id).copied().flatten());
        let members = membership.nodes().map(|(id, member)| MemberStatus {
            peer: member.peer(),
            is_voter: voters.contains(id),
            level: member.level,
            matched: matched(id).map(|at| LogIndex(at.index)),
        });
        ConsensusStatus {
            term: metrics.current_term,
            is_leader,
            has_leader: leader.is_some(),
            leader: leader.and_then(|id| membership.get_node(&id)).map(|member| member.peer().node),
            members: members.collect(),
            last_log: LogIndex(metrics.last_log_index.unwrap_or_default()),
            applied: LogIndex(metrics.last_applied.index().unwrap_or_default()),
            stopped,
        }
    }

    /// Takes a snapshot now, without waiting for it.
    pub async fn snapshot(&self) {
        if let Err(fatal) = self.raft.trigger().snapshot().await {
            tracing::debug!(%fatal, "no snapshot of a member that has stopped");
        }
    }

    /// The last position that the current snapshot holds.
    #[must_use]
    pub fn snapshot_at(&self) -> Option<LogIndex> {
        self.raft.metrics().borrow().snapshot.map(|id| LogIndex(id.index))
    }

    /// Stops this member and lets go of its log, so that it may be opened again. Changes that were answered are durable already.
    pub async fn shutdown(&self) {
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(%error, "the consensus task did not end well");
        }
        let released = async { while self.released.lock().await.recv().await.is_some() {} };
        if timeout(RELEASE_WITHIN, released).await.is_err() {
            tracing::warn!(within = ?RELEASE_WITHIN, "the consensus log is still in use after the shutdown");
        }
        // Whatever brought entries to other members ends by itself, a little later. A process must not end while a store is being closed.
        let closed = async {
            while !(self.parts.is_log_closed)() {
                sleep(LOOK_AGAIN).await;
            }
        };
        if timeout(CLOSE_WITHIN, closed).await.is_err() {
            tracing::debug!(within = ?CLOSE_WITHIN, "somebody still has the consensus log");
        }
    }

    fn stop_reason(&self) -> String {
        self.status().stopped.unwrap_or_else(|| "stopped".to_owned())
    }
}

/// What all of these members know of commands.
pub(super) fn lowest_level(membership: &Membership<MemberId, Member>) -> Option<FeatureLevel> {
    membership.nodes().map(|(_, member)| member.level).min()
}

pub(super) fn leads(metrics: &Metrics, me: MemberId) -> bool {
    metrics.state.is_leader() && metrics.current_leader == Some(me)
}

fn fatal_at_start(fatal: &Fatal<MemberId>) -> StartError {
    StartError::Store { detail: fatal.to_string() }
}

fn settings(config: &ConsensusConfig) -> Result<Config, StartError> {
    let ms = |span: Duration| u64::try_from(span.as_millis()).map_err(|_| StartError::Settings { detail: format!("{span:?} is too long") });
    let settings = Config {
        cluster_name: config.cluster.to_owned(),
        heartbeat_interval: ms(config.heartbeat)?,
        election_timeout_min: ms(config.election_min)?,
        election_timeout_max: ms(config.election_max)?,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(config.snapshot_every),
        max_in_snapshot_log_to_keep: config.entries_kept,
        ..Config::default()
    };
    settings.validate().map_err(|e| StartError::Settings { detail: e.to_string() })
}
