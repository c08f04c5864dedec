//! The handle: start, status, shutdown.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use veena_consensus::{BarrierError, Consensus, ConsensusConfig, LogStore, MemberError, MemberStatus, Runtime, StartError};
use veena_contract::{
    BoxFuture, FeatureLevel, LineageId, LogIndex, NodeId, Origin, PeerAddr, PeerClient, PeerRefusal, PeerRequest, limits,
};

use crate::hold::{Held, Hold};
use crate::replica::Replica;
use crate::state::{CatalogMachine, FormerLife, Operation};

/// Settings of the metastore of one node.
#[derive(Clone, Debug)]
pub struct MetastoreConfig {
    /// This node and how it takes part.
    pub consensus: ConsensusConfig,
    /// How long a change may take before its outcome is called unknown.
    pub propose_within: Duration,
    /// How long a confirmed read may take.
    pub confirm_within: Duration,
}

impl MetastoreConfig {
    /// The settings that production uses.
    #[must_use]
    pub fn new(node: NodeId) -> Self {
        Self {
            consensus: ConsensusConfig::new(node, "metastore"),
            propose_within: Duration::from_millis(limits::METADATA_PROPOSE_MS_MAX),
            confirm_within: Duration::from_millis(limits::METADATA_CONFIRM_MS_MAX),
        }
    }
}

/// What the metastore of this node knows about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetastoreStatus {
    /// The current term.
    pub term: u64,
    /// The end of the log.
    pub last_log: LogIndex,
    /// The last entry applied.
    pub applied: LogIndex,
    /// Is any leader known?
    pub has_leader: bool,
    /// The leader, if one is known.
    pub leader: Option<NodeId>,
    /// Who takes part.
    pub members: Vec<MemberStatus>,
    /// Why it takes no changes any more, if so: its log failed, or it was shut down.
    pub latched: Option<String>,
    /// Which life of the metastore this is.
    pub lineage: Option<LineageId>,
}

struct Inner {
    config: MetastoreConfig,
    consensus: Consensus,
    replica: Arc<Replica>,
    held: Arc<Held>,
    runtime: Runtime,
}

/// The metastore of this node. Clones are handles to the same one. Implements [`Catalog`](veena_contract::Catalog),
/// [`CatalogWriter`](veena_contract::CatalogWriter) and [`LeaderPort`](veena_contract::LeaderPort).
#[derive(Clone)]
pub struct Metastore {
    inner: Arc<Inner>,
}

impl Metastore {
    /// Starts the metastore on `log`. When this answers, the node leads as the only voter and has applied every change that was ever
    /// answered; an empty log becomes a new metastore with a lineage of its own.
    ///
    /// # Errors
    /// [`StartError`] when the log cannot be used or leadership does not come in time.
    pub async fn start<L: LogStore>(config: MetastoreConfig, log: L, runtime: Runtime) -> Result<Self, StartError> {
        let (replica, held) = (Arc::new(Replica::new()), Arc::<Held>::default());
        let machine = Box::new(CatalogMachine::new(replica.clone(), held.clone()));
        let consensus = Consensus::start(&config.consensus, log, machine, &runtime).await?;
        let metastore = Self { inner: Arc::new(Inner { config, consensus, replica, held, runtime: runtime.clone() }) };
        if let Err(error) = metastore.begin(&runtime).await {
            metastore.shutdown().await;
            return Err(error);
        }
        let status = metastore.status();
        tracing::info!(term = status.term, applied = %status.applied, lineage = ?status.lineage, "metastore is ready");
        Ok(metastore)
    }

    /// Opens the metastore of a node of a cluster on `log`, without waiting for anything: its calls can be [served](Self::serve) from here
    /// on, without which it would never become ready. [`found`](Self::found) or [`enter`](Self::enter) comes next.
    ///
    /// # Errors
    /// [`StartError`] when the log cannot be used.
    pub async fn open<L: LogStore>(
        config: MetastoreConfig,
        log: L,
        runtime: &Runtime,
        peers: Arc<dyn PeerClient>,
    ) -> Result<Self, StartError> {
        let (replica, held) = (Arc::new(Replica::new()), Arc::<Held>::default());
        let machine = Box::new(CatalogMachine::new(replica.clone(), held.clone()));
        let consensus = Consensus::start_among(&config.consensus, log, machine, runtime, peers).await?;
        Ok(Self { inner: Arc::new(Inner { config, consensus, replica, held, runtime: runtime.clone() }) })
    }

    /// Founds a cluster with this node as its only voter, if the log is empty; then, and for a node that is its cluster's only voter
    /// anyway, as [`start`](Self::start) does. A node of a larger cluster [enters](Self::enter) it again.
    ///
    /// # Errors
    /// [`StartError`] when the log cannot be used or leadership does not come in time.
    pub async fn found(&self, runtime: &Runtime) -> Result<(), StartError> {
        if self.consensus().is_blank() || self.consensus().is_only_voter() {
            self.begin(runtime).await?;
            let within = self.config().consensus.ready_within;
            return Ok(self.consensus().announce_address(within).await?);
        }
        self.enter(&[]).await
    }

    /// Is the log empty, so that this node belongs to no cluster yet, or has lost what it had?
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.consensus().is_blank()
    }

    /// Is this node's cluster without any other voter, as far as it knows?
    #[must_use]
    pub fn is_only_voter(&self) -> bool {
        self.consensus().is_only_voter()
    }

    /// See [`Consensus::is_directory_known`].
    #[must_use]
    pub fn is_directory_known(&self) -> bool {
        self.consensus().is_directory_known()
    }

    /// What every member knows of commands; see [`Consensus::level`]. A node alone knows that of itself: its log still says what the program
    /// knew that made it.
    #[must_use]
    pub fn level(&self) -> FeatureLevel {
        let members = self.consensus().known_members();
        let is_alone = !members.is_empty() && members.iter().all(|member| member.peer.node == self.config().consensus.node);
        if is_alone { self.config().consensus.level } else { self.consensus().level() }
    }

    /// Tells the others where this node listens and what it knows of commands, if they do not know the latter: the leader that was told at
    /// this node's start may have been of an older version, which takes no notice of it.
    ///
    /// # Errors
    /// [`MemberError`].
    pub async fn announce_level(&self) -> Result<(), MemberError> {
        if self.consensus().is_level_known() {
            return Ok(());
        }
        self.consensus().announce_address(self.config().propose_within).await
    }

    /// Is this node a member, as far as this one knows?
    #[must_use]
    pub fn is_member(&self, node: &NodeId) -> bool {
        self.consensus().member(node).is_some()
    }

    /// Takes part in a cluster: joins it through one of the `known` nodes if the log is empty, tells it where this node listens now, and
    /// waits until everything that was committed when this was called is applied here. May be called again when it was not in time.
    ///
    /// # Errors
    /// [`StartError`] when it is not let in, or no leader is found in time.
    pub async fn enter(&self, known: &[PeerAddr]) -> Result<(), StartError> {
        let within = self.config().consensus.ready_within;
        self.consensus().join(known, within).await?;
        let until = Instant::now() + within;
        loop {
            match self.catch_up(until).await {
                Err(StartError::NotReady { .. }) if Instant::now() < until => {}
                other => return other,
            }
        }
    }

    /// One attempt to have everything; `NotReady` if the others may only be starting too.
    async fn catch_up(&self, until: Instant) -> Result<(), StartError> {
        let left = || until.saturating_duration_since(Instant::now());
        let not_ready = |reason: String| StartError::NotReady { within: self.config().consensus.ready_within, reason };
        // Nothing comes from a leader that does not know where this node is, so that is told first.
        match self.consensus().announce_address(left()).await {
            Ok(()) => {}
            Err(MemberError::NotAMember) => return Err(StartError::Member(MemberError::NotAMember)),
            Err(MemberError::Stopped { reason }) => return Err(StartError::Store { detail: reason }),
            Err(error) => return Err(not_ready(error.to_string())),
        }
        match self.consensus().barrier(left()).await {
            Ok(at) => drop(self.replica().reached(at).await),
            Err(BarrierError::NotAMember) => return Err(StartError::Member(MemberError::NotAMember)),
            Err(BarrierError::Stopped { reason }) => return Err(StartError::Store { detail: reason }),
            Err(error) => return Err(not_ready(error.to_string())),
        }
        Ok(())
    }

    /// Answers a call of another node's metastore; see [`Consensus::serve`]. `None` if it is none of them.
    #[must_use]
    pub fn serve(&self, request: PeerRequest) -> Option<BoxFuture<'_, Result<Bytes, PeerRefusal>>> {
        Consensus::serves(request.op).then(|| self.consensus().serve(request))
    }

    /// Makes a learner a voter.
    ///
    /// # Errors
    /// [`MemberError`].
    pub async fn promote(&self, node: &NodeId) -> Result<(), MemberError> {
        self.consensus().promote(node, self.config().propose_within).await
    }

    /// Takes a member out of the cluster.
    ///
    /// # Errors
    /// [`MemberError`].
    pub async fn remove(&self, node: &NodeId) -> Result<(), MemberError> {
        self.consensus().remove(node, self.config().propose_within).await
    }

    async fn begin(&self, runtime: &Runtime) -> Result<(), StartError> {
        self.consensus().initialize().await?;
        self.consensus().lead(self.config().consensus.ready_within).await?;
        if self.replica().lineage().is_none() {
            let lineage = LineageId(runtime.entropy().next_u128());
            self.commit(Operation::Lineage(lineage), &Origin::Node).await.map_err(|e| StartError::Store { detail: e.to_string() })?;
        }
        Ok(())
    }

    /// Stops taking part. Every change that was answered is durable already; what is asked for later is refused.
    pub async fn shutdown(&self) {
        self.consensus().shutdown().await;
    }

    /// Refuses changes before they leave this node, and those of others while it leads, for as long as there is a reason: a disk that is
    /// nearly full, say. A write that failed for want of space would latch the log, which only a restart ends.
    pub fn hold_changes(&self, hold: Option<Hold>) {
        self.held().set(hold);
    }

    pub(crate) fn held(&self) -> &Held {
        &self.inner.held
    }

    /// What this node's metastore knows about itself.
    #[must_use]
    pub fn status(&self) -> MetastoreStatus {
        let status = self.consensus().status();
        MetastoreStatus {
            term: status.term,
            last_log: status.last_log,
            applied: status.applied,
            has_leader: status.has_leader,
            leader: status.leader,
            members: status.members,
            latched: status.stopped,
            lineage: self.lineage(),
        }
    }

    /// Which life of the metastore this is. Always there once [`start`](Self::start) has answered.
    #[must_use]
    pub fn lineage(&self) -> Option<LineageId> {
        self.replica().lineage()
    }

    /// The lives of the metastore that this one goes on from, oldest first.
    #[must_use]
    pub fn former(&self) -> Vec<FormerLife> {
        self.replica().state().former().to_vec()
    }

    /// Where the log ended when this node started, before anything was added to it: one past its last entry.
    #[must_use]
    pub fn log_end_at_start(&self) -> LogIndex {
        self.consensus().log_end_at_start()
    }

    /// Takes a snapshot now, without waiting for it.
    pub async fn snapshot(&self) {
        self.consensus().snapshot().await;
    }

    /// The last position that the current snapshot holds.
    #[must_use]
    pub fn snapshot_at(&self) -> Option<LogIndex> {
        self.consensus().snapshot_at()
    }

    /// The time of day, for the audit trail.
    pub(crate) fn now_ms(&self) -> u64 {
        self.inner.runtime.now_ms()
    }

    pub(crate) fn config(&self) -> &MetastoreConfig {
        &self.inner.config
    }

    pub(crate) fn consensus(&self) -> &Consensus {
        &self.inner.consensus
    }

    pub(crate) fn replica(&self) -> &Arc<Replica> {
        &self.inner.replica
    }
}
