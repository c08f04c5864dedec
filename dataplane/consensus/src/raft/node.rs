//! One member: start, propose, barrier, status, shutdown.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use openraft::error::{CheckIsLeaderError, ClientWriteError, Fatal, RaftError};
use openraft::metrics::WaitError;
use openraft::{Config, LogIdOptionExt, Raft, RaftMetrics, SnapshotPolicy};
use serde_json::value::RawValue;
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;
use veena_contract::{LogIndex, NodeId};

use super::adapter::MachineAdapter;
use super::network::NoPeers;
use super::store::LogStore;
use super::types::{CommandText, Member, MemberId, RaftTypes, member_id};
use crate::{BarrierError, ConsensusConfig, ConsensusStatus, ProposeError, Runtime, StartError, StateMachine};

/// After this long without leadership, the only voter asks again.
const ELECT_AGAIN: Duration = Duration::from_millis(500);

/// How long a shutdown waits for a snapshot that is being written.
const RELEASE_WITHIN: Duration = Duration::from_secs(10);

type Metrics = RaftMetrics<MemberId, Member>;

/// A running member. Clones are handles to the same one.
#[derive(Clone)]
pub struct Consensus {
    raft: Raft<RaftTypes>,
    id: MemberId,
    node: NodeId,
    /// Behind the last entry that the log held when this member started.
    log_end_at_start: u64,
    /// Closed once nothing of this member holds on to the log any more.
    released: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl Consensus {
    /// Starts a member on `log`: restores its snapshot, applies what is known as committed, and takes part. Does not wait for a leader.
    ///
    /// # Errors
    /// [`StartError`] when the log cannot be read or is another node's.
    pub async fn start<L: LogStore>(
        config: &ConsensusConfig,
        mut log: L,
        machine: Box<dyn StateMachine>,
        runtime: &Runtime,
    ) -> Result<Self, StartError> {
        runtime.seed();
        let log_state = log.get_log_state().await.map_err(|e| StartError::Store { detail: e.to_string() })?;
        let stored = log.load_snapshot().await.map_err(|e| StartError::Store { detail: e.to_string() })?;
        let mut adapter = MachineAdapter::open(machine, log.clone(), stored)?;
        let (alive, released) = mpsc::channel(1);
        adapter.keep(alive);
        let settings = settings(config)?;
        let id = member_id(&config.node);
        let raft = Raft::new(id, Arc::new(settings), NoPeers, log, adapter).await.map_err(|e| fatal_at_start(&e))?;
        let member = Self {
            raft,
            id,
            node: config.node.clone(),
            log_end_at_start: log_state.last_log_id.next_index(),
            released: Arc::new(Mutex::new(released)),
        };
        member.check_membership().await?;
        Ok(member)
    }

    /// A log belongs to the members it names; an empty one to nobody yet.
    async fn check_membership(&self) -> Result<(), StartError> {
        let members: Vec<(MemberId, Member)> = self
            .raft
            .with_raft_state(|state| state.membership_state.effective().nodes().map(|(id, node)| (*id, node.clone())).collect())
            .await
            .map_err(|e| fatal_at_start(&e))?;
        if members.is_empty() || members.iter().any(|(id, _)| *id == self.id) {
            return Ok(());
        }
        self.shutdown().await;
        let names: Vec<_> = members.into_iter().map(|(_, member)| member.name).collect();
        Err(StartError::NotAMember { node: self.node.to_string(), members: names.join(", ") })
    }

    /// Makes an empty log the log of a cluster with this one voter; does nothing to any other log.
    ///
    /// # Errors
    /// [`StartError::Store`] when the log cannot be written.
    pub async fn initialize(&self) -> Result<(), StartError> {
        if self.raft.is_initialized().await.map_err(|e| fatal_at_start(&e))? {
            return Ok(());
        }
        let me = Member { name: self.node.to_string() };
        match self.raft.initialize(BTreeMap::from([(self.id, me)])).await {
            Ok(()) | Err(RaftError::APIError(_)) => Ok(()),
            Err(RaftError::Fatal(fatal)) => Err(fatal_at_start(&fatal)),
        }
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
            Err(_) => Err(StartError::NotReady { within }),
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

    /// Has `command` committed and applied here, and answers with its position and the state machine's answer. Dropping the future does not
    /// take the command back.
    ///
    /// # Errors
    /// [`ProposeError`], whose effect says whether the command may still be applied.
    pub async fn propose(&self, command: Box<RawValue>, deadline: Duration) -> Result<(LogIndex, String), ProposeError> {
        let status = self.status();
        if let Some(reason) = status.stopped {
            return Err(ProposeError::Stopped { reason });
        }
        if !status.is_leader {
            return Err(ProposeError::NotLeader);
        }
        match timeout(deadline, self.raft.client_write(CommandText(Arc::from(command)))).await {
            Ok(Ok(written)) => Ok((LogIndex(written.log_id.index), written.data.0)),
            // The answer for a command that was not taken, and for one whose entry lost against another leader's: never applied.
            Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)))) => Err(ProposeError::NotLeader),
            Ok(Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(error)))) => {
                Err(ProposeError::Lost { reason: error.to_string() })
            }
            Ok(Err(RaftError::Fatal(fatal))) => Err(ProposeError::Lost { reason: fatal.to_string() }),
            Err(_) => Err(ProposeError::Timeout { within: deadline }),
        }
    }

    /// A linearizable read point: when this answers, everything committed before the call is applied here. The leader's word is confirmed
    /// by a majority.
    ///
    /// # Errors
    /// [`BarrierError`]; nothing was changed.
    pub async fn barrier(&self, deadline: Duration) -> Result<LogIndex, BarrierError> {
        if let Some(reason) = self.status().stopped {
            return Err(BarrierError::Stopped { reason });
        }
        match timeout(deadline, self.raft.ensure_linearizable()).await {
            Ok(Ok(at)) => Ok(LogIndex(at.index().unwrap_or_default())),
            Ok(Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(_) | CheckIsLeaderError::QuorumNotEnough(_)))) => {
                Err(BarrierError::Unconfirmed)
            }
            Ok(Err(RaftError::Fatal(fatal))) => Err(BarrierError::Stopped { reason: fatal.to_string() }),
            Err(_) => Err(BarrierError::Timeout { within: deadline }),
        }
    }

    /// What this member knows about itself.
    #[must_use]
    pub fn status(&self) -> ConsensusStatus {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let stopped = metrics.running_state.as_ref().err().map(ToString::to_string);
        ConsensusStatus {
            term: metrics.current_term,
            is_leader: stopped.is_none() && leads(&metrics, self.id),
            has_leader: stopped.is_none() && metrics.current_leader.is_some(),
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
    }

    fn stop_reason(&self) -> String {
        self.status().stopped.unwrap_or_else(|| "stopped".to_owned())
    }
}

fn leads(metrics: &Metrics, me: MemberId) -> bool {
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
