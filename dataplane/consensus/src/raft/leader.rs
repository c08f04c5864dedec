//! What only the leader can do: commit a command, and say up to where everything is committed. Asked here, done where the leader is.

use std::sync::Arc;
use std::time::Duration;

use openraft::LogIdOptionExt;
use openraft::error::{CheckIsLeaderError, ClientWriteError, Fatal, RaftError};
use openraft::metrics::WaitError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep, timeout_at};
use veena_contract::{Effect, LogIndex, NodeId, PeerAddr, PeerCall, PeerClass, PeerError, PeerOp, limits};

use super::node::{Consensus, Metrics, leads};
use super::types::{CommandText, Member, MemberId, member_id};
use super::wire::{self, Failure, Written};
use crate::{BarrierError, MemberError, ProposeError};

const LEADER_WAIT: Duration = Duration::from_millis(limits::METADATA_LEADER_WAIT_MS_MAX);
const LEADER_RETRY: Duration = Duration::from_millis(limits::METADATA_LEADER_RETRY_MS);
const CONFIRM_TRY: Duration = Duration::from_millis(limits::METADATA_CONFIRM_TRY_MS_MAX);

/// Who leads, as far as this member knows.
pub(super) enum Leader {
    Here,
    At(PeerAddr),
    Unknown(&'static str),
    Stopped(String),
}

impl Consensus {
    /// Has `command` committed and applied here, and answers with its position and the state machine's answer. Goes to the leader, wherever
    /// it is, and waits a while for one to be found. Dropping the future does not take the command back.
    ///
    /// # Errors
    /// [`ProposeError`], whose effect says whether the command may still be applied.
    pub async fn propose(&self, command: Box<RawValue>, deadline: Duration) -> Result<(LogIndex, String), ProposeError> {
        let bytes = command.get().len();
        if bytes > limits::METADATA_COMMAND_BYTES_MAX {
            return Err(ProposeError::TooLarge { bytes, bytes_max: limits::METADATA_COMMAND_BYTES_MAX });
        }
        let until = Instant::now() + deadline;
        let command = CommandText(Arc::from(command));
        let here = || self.write_here(command.clone(), until);
        let written: Result<Written, Failure> = self.at_leader(PeerOp::METADATA_PROPOSE, &command, until, here).await;
        let failed = |failure| propose_error(failure, deadline);
        let Written { at, answer } = written.map_err(failed)?;
        // Done means applied on the node that answers.
        self.applied(at, until).await.map_err(failed)?;
        Ok((at, answer))
    }

    /// A linearizable read point: when this answers, everything committed before the call is applied here. The leader's word is confirmed
    /// by a majority. All who ask while one confirmation is under way share the next.
    ///
    /// # Errors
    /// [`BarrierError`]; nothing was changed.
    pub async fn barrier(&self, deadline: Duration) -> Result<LogIndex, BarrierError> {
        let until = Instant::now() + deadline;
        let reached = async {
            let at = self.parts.barrier.ask(|| self.read_point()).await?;
            self.applied(at, until).await?;
            Ok(at)
        };
        let outcome = timeout_at(until, reached).await.unwrap_or(Err(Failure::Timeout));
        outcome.map_err(|failure| barrier_error(failure, deadline))
    }

    /// Up to where everything is committed, by the leader's confirmed word. Asked for by all who wait, so that it takes as long as it takes,
    /// and each of them waits as long as it wants.
    async fn read_point(&self) -> Result<LogIndex, Failure> {
        let patience = Instant::now() + LEADER_WAIT;
        loop {
            let attempt = Instant::now() + CONFIRM_TRY;
            let mut asked = self.ask_once(PeerOp::METADATA_BARRIER, &(), attempt, || self.confirm_here(attempt)).await;
            if let (Err(Failure::NoLeader(_)), Leader::Unknown(_)) = (&asked, self.leader()) {
                asked = self.ask_others(patience).await;
            }
            let failure = match asked {
                Err(Failure::Lost(reason) | Failure::NoLeader(reason)) => Failure::NoLeader(reason),
                Err(Failure::Timeout) => Failure::NoLeader("it is silent".to_owned()),
                Err(Failure::Elsewhere { .. }) => Failure::NoLeader(ELSEWHERE.to_owned()),
                other => return other,
            };
            // A question may be asked again, whatever became of it.
            if Instant::now() + LEADER_RETRY >= patience {
                return Err(failure);
            }
            sleep(LEADER_RETRY).await;
        }
    }

    /// Asks the other members for a read point, or for who leads: this one may be the only one that does not know. That is so for one that
    /// was taken out, which is told so by nobody else.
    async fn ask_others(&self, until: Instant) -> Result<LogIndex, Failure> {
        let members: Vec<Member> = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow();
            metrics.membership_config.membership().nodes().filter(|(id, _)| **id != self.id).map(|(_, member)| member.clone()).collect()
        };
        let mut failure = Failure::NoLeader("none is elected".to_owned());
        for member in members {
            match self.ask_through(&member.peer(), PeerOp::METADATA_BARRIER, &(), || until.min(Instant::now() + CONFIRM_TRY)).await {
                Ok(at) => return Ok(at),
                Err(Failure::NotAMember) => return Err(Failure::NotAMember),
                Err(other) => failure = other,
            }
        }
        Err(failure)
    }

    /// Asks the leader, wherever it is; again for a while, as long as nothing was done.
    pub(super) async fn at_leader<A, T, F>(&self, op: PeerOp, body: &A, until: Instant, here: impl Fn() -> F) -> Result<T, Failure>
    where
        A: Serialize,
        T: DeserializeOwned,
        F: Future<Output = Result<T, Failure>>,
    {
        let patience = until.min(Instant::now() + LEADER_WAIT);
        loop {
            match self.ask_once(op, body, until, &here).await {
                Err(Failure::NoLeader(_)) if Instant::now() + LEADER_RETRY < patience => sleep(LEADER_RETRY).await,
                other => return other,
            }
        }
    }

    async fn ask_once<A, T, F>(&self, op: PeerOp, body: &A, until: Instant, here: impl FnOnce() -> F) -> Result<T, Failure>
    where
        A: Serialize,
        T: DeserializeOwned,
        F: Future<Output = Result<T, Failure>>,
    {
        match self.leader() {
            Leader::Here => here().await,
            Leader::At(peer) => tokio::select! {
                answer = self.ask_peer(&peer, op, body, until) => answer,
                // A leader that died says nothing, and is waited for no longer than it takes the others to elect another.
                () = self.led_by_another_than(&peer) => Err(Failure::Lost(format!("{} ceased to lead before it had answered", peer.node))),
            },
            Leader::Unknown(why) => Err(Failure::NoLeader(why.to_owned())),
            Leader::Stopped(reason) => Err(Failure::Stopped(reason)),
        }
    }

    async fn led_by_another_than(&self, peer: &PeerAddr) {
        let former = member_id(&peer.node);
        let is_another = |metrics: &Metrics| metrics.current_leader.is_some_and(|leader| leader != former);
        if self.raft.metrics().wait_for(is_another).await.is_err() {
            // The member was stopped: whoever asks is told by others.
            std::future::pending::<()>().await;
        }
    }

    /// Asks `peer`, and then the leader that it names. That may be this node, which led and knows better by now: it does not ask itself.
    pub(super) async fn ask_through<A, T>(
        &self,
        peer: &PeerAddr,
        op: PeerOp,
        body: &A,
        attempt_until: impl Fn() -> Instant,
    ) -> Result<T, Failure>
    where
        A: Serialize,
        T: DeserializeOwned,
    {
        match self.ask_peer(peer, op, body, attempt_until()).await {
            Err(Failure::Elsewhere { name, addr }) if *name != *self.node.0 => {
                self.ask_peer(&at(&name, &addr), op, body, attempt_until()).await
            }
            other => other,
        }
    }

    /// Asks one other node, once.
    pub(super) async fn ask_peer<A, T>(&self, peer: &PeerAddr, op: PeerOp, body: &A, until: Instant) -> Result<T, Failure>
    where
        A: Serialize,
        T: DeserializeOwned,
    {
        let body = wire::encode(body).map_err(|error| Failure::Refused(format!("it cannot be written: {error}")))?;
        let timeout = until.saturating_duration_since(Instant::now());
        let call = PeerCall { class: PeerClass::Control, op, timeout, body };
        let bytes = match self.parts.peers.call(peer, call).await {
            Ok(bytes) => bytes,
            Err(PeerError::Silent { .. }) => return Err(Failure::Timeout),
            Err(error) => {
                return Err(match error.effect() {
                    Effect::None => Failure::NoLeader(error.to_string()),
                    Effect::Possible => Failure::Lost(error.to_string()),
                });
            }
        };
        let answer: Result<T, Failure> =
            wire::decode(&bytes).unwrap_or_else(|| Err(Failure::Lost(format!("{} answered what is no answer", peer.node))));
        // A leader that takes part no more did nothing, and another will be found.
        answer.map_err(|failure| match failure {
            Failure::Stopped(reason) => Failure::NoLeader(reason),
            other => other,
        })
    }

    pub(super) fn leader(&self) -> Leader {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        if let Err(fatal) = &metrics.running_state {
            return Leader::Stopped(fatal.to_string());
        }
        match metrics.current_leader {
            None => Leader::Unknown("none is elected"),
            Some(id) if id == self.id && leads(&metrics, id) => Leader::Here,
            Some(id) if id == self.id => Leader::Unknown("this node has just ceased to lead"),
            Some(id) => match metrics.membership_config.membership().get_node(&id) {
                Some(member) => Leader::At(member.peer()),
                None => Leader::Unknown("it is not known where it listens"),
            },
        }
    }

    /// Commits one command, if this member leads.
    pub(super) async fn write_here(&self, command: CommandText, until: Instant) -> Result<Written, Failure> {
        match self.leader() {
            Leader::Here => {}
            Leader::Stopped(reason) => return Err(Failure::Stopped(reason)),
            Leader::At(_) | Leader::Unknown(_) => return Err(Failure::NoLeader("another node leads".to_owned())),
        }
        if let Some(reason) = (self.parts.gate)(command.0.get()) {
            return Err(Failure::Refused(reason));
        }
        // One after the other: openraft syncs each by itself, and is silent towards its followers while it goes through those that wait. Were
        // there many, they would elect another for a disk that is slow, not dead.
        let Ok(_turn) = timeout_at(until, self.parts.writing.lock()).await else {
            return Err(Failure::NoLeader("other changes go before it".to_owned()));
        };
        match timeout_at(until, self.raft.client_write(command)).await {
            Ok(Ok(written)) => Ok(Written { at: LogIndex(written.log_id.index), answer: written.data.0 }),
            Ok(Err(error)) => Err(write_failure(error)),
            Err(_) => Err(Failure::Timeout),
        }
    }

    /// Up to where everything is committed, if this member leads and a majority says so.
    pub(super) async fn confirm_here(&self, until: Instant) -> Result<LogIndex, Failure> {
        match timeout_at(until, self.parts.confirmation.ask(|| self.confirm())).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Failure::Timeout),
        }
    }

    async fn confirm(&self) -> Result<LogIndex, Failure> {
        if veena_contract::sabotage::is("leader_without_barrier") {
            let applied = self.raft.metrics().borrow().last_applied;
            return Ok(LogIndex(applied.index().unwrap_or_default()));
        }
        match self.raft.get_read_log_id().await {
            Ok((at, _)) => Ok(LogIndex(at.index().unwrap_or_default().max(self.led_up_to()))),
            Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(_))) => Err(Failure::NoLeader("another node leads".to_owned())),
            Err(RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(_))) => {
                Err(Failure::NoLeader("no majority confirms it".to_owned()))
            }
            Err(RaftError::Fatal(fatal)) => Err(Failure::Stopped(fatal.to_string())),
        }
    }

    /// The end of the log of a leader that was started again and leads on. It may not know any more how much of it was committed, and
    /// answered: that mark is not synced. All of it is its own, and will be committed.
    fn led_up_to(&self) -> u64 {
        let vote = self.raft.metrics().borrow().vote;
        let leads_on = vote.is_committed() && self.vote_at_start == Some(vote);
        if leads_on { self.log_end_at_start.saturating_sub(1) } else { 0 }
    }

    /// Waits until everything up to and with `at` is applied here.
    pub(super) async fn applied(&self, at: LogIndex, until: Instant) -> Result<(), Failure> {
        let within = until.saturating_duration_since(Instant::now());
        match self.raft.wait(Some(within)).applied_index_at_least(Some(at.0), "applied here").await {
            Ok(_) => Ok(()),
            Err(WaitError::Timeout(..)) => Err(Failure::Timeout),
            Err(WaitError::ShuttingDown) => Err(Failure::Lost(format!("this node stopped before it had applied {at}"))),
        }
    }
}

/// Why a command that was handed to the raft library has no outcome.
pub(super) fn write_failure(error: RaftError<MemberId, ClientWriteError<MemberId, Member>>) -> Failure {
    match error {
        // Not certainly unapplied: an entry that gave way to another leader's here may be alive on a third member, which may lead next.
        RaftError::APIError(ClientWriteError::ForwardToLeader(_)) => {
            Failure::Lost("leadership was lost before the outcome was known".to_owned())
        }
        RaftError::APIError(ClientWriteError::ChangeMembershipError(error)) => Failure::Refused(error.to_string()),
        RaftError::Fatal(fatal) => lost(&fatal),
    }
}

fn lost(fatal: &Fatal<MemberId>) -> Failure {
    Failure::Lost(fatal.to_string())
}

/// Whom to call.
fn at(name: &str, addr: &str) -> PeerAddr {
    PeerAddr { node: NodeId(name.into()), addr: addr.into() }
}

const ELSEWHERE: &str = "another node leads by now";

fn propose_error(failure: Failure, within: Duration) -> ProposeError {
    match failure {
        Failure::NoLeader(reason) => ProposeError::NoLeader { reason },
        Failure::Refused(reason) => ProposeError::Refused { reason },
        Failure::Elsewhere { .. } => ProposeError::NoLeader { reason: ELSEWHERE.to_owned() },
        Failure::NotAMember => ProposeError::NotAMember,
        Failure::Stopped(reason) => ProposeError::Stopped { reason },
        Failure::Lost(reason) => ProposeError::Lost { reason },
        Failure::Timeout => ProposeError::Timeout { within },
    }
}

fn barrier_error(failure: Failure, within: Duration) -> BarrierError {
    match failure {
        Failure::NoLeader(reason) | Failure::Refused(reason) | Failure::Lost(reason) => BarrierError::Unconfirmed { reason },
        Failure::Elsewhere { .. } => BarrierError::Unconfirmed { reason: ELSEWHERE.to_owned() },
        Failure::NotAMember => BarrierError::NotAMember,
        Failure::Stopped(reason) => BarrierError::Stopped { reason },
        Failure::Timeout => BarrierError::Timeout { within },
    }
}

pub(super) fn member_error(failure: Failure, within: Duration) -> MemberError {
    match failure {
        Failure::NoLeader(reason) => MemberError::NoLeader { reason },
        Failure::Elsewhere { .. } => MemberError::NoLeader { reason: ELSEWHERE.to_owned() },
        Failure::NotAMember => MemberError::NotAMember,
        Failure::Refused(reason) => MemberError::Refused { reason },
        Failure::Stopped(reason) => MemberError::Stopped { reason },
        Failure::Lost(reason) => MemberError::Lost { reason },
        Failure::Timeout => MemberError::Timeout { within },
    }
}
