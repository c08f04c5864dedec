//! The serving side: what other members ask of this one.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use openraft::raft::{AppendEntriesRequest, VoteRequest};
use openraft::{Snapshot, Vote};
use serde::Serialize;
use tokio::time::Instant;
use veena_contract::{BoxFuture, NodeId, PeerOp, PeerRefusal, PeerRequest};

use super::leader::Leader;
use super::node::Consensus;
use super::receive::Received;
use super::types::{CommandText, MemberId, RaftTypes, member_id};
use super::wire::{self, Change, Failure, PieceAnswer, RaftAnswer};

type Served = Result<Bytes, PeerRefusal>;

impl Consensus {
    /// Is this call one of those that [`serve`](Self::serve) answers?
    #[must_use]
    pub fn serves(op: PeerOp) -> bool {
        matches!(
            op,
            PeerOp::RAFT_APPEND
                | PeerOp::RAFT_VOTE
                | PeerOp::RAFT_SNAPSHOT
                | PeerOp::METADATA_PROPOSE
                | PeerOp::METADATA_BARRIER
                | PeerOp::METADATA_MEMBERS
        )
    }

    /// Answers one call of another node. Whoever assembles the node's [`PeerService`](veena_contract::PeerService) hands the calls over that
    /// [`serves`](Self::serves) names, from the moment this member was started: it cannot become ready without being called.
    ///
    /// # Errors
    /// A [`PeerRefusal`]; then nothing was done.
    pub fn serve(&self, request: PeerRequest) -> BoxFuture<'_, Result<Bytes, PeerRefusal>> {
        Box::pin(async move {
            match request.op {
                PeerOp::RAFT_APPEND => self.serve_append(&request).await,
                PeerOp::RAFT_VOTE => self.serve_vote(&request).await,
                PeerOp::RAFT_SNAPSHOT => self.serve_snapshot(&request).await,
                PeerOp::METADATA_PROPOSE => self.serve_propose(&request).await,
                PeerOp::METADATA_BARRIER => self.serve_barrier(&request).await,
                PeerOp::METADATA_MEMBERS => self.serve_change(&request).await,
                _ => Err(PeerRefusal::UnknownOp),
            }
        })
    }

    /// A member whose log is empty takes no part before it was let in: the log may have been lost.
    fn check_open(&self) -> Result<(), PeerRefusal> {
        if self.parts.is_open.load(Ordering::Acquire) { Ok(()) } else { Err(PeerRefusal::NotServing) }
    }

    async fn serve_append(&self, request: &PeerRequest) -> Served {
        self.check_open()?;
        let append: AppendEntriesRequest<RaftTypes> = body(request)?;
        check_sender(&request.from, &append.vote)?;
        answer(&self.raft.append_entries(append).await.map_err(|error| error.to_string()))
    }

    async fn serve_vote(&self, request: &PeerRequest) -> Served {
        self.check_open()?;
        let vote: VoteRequest<MemberId> = body(request)?;
        check_sender(&request.from, &vote.vote)?;
        answer(&self.raft.vote(vote).await.map_err(|error| error.to_string()))
    }

    async fn serve_snapshot(&self, request: &PeerRequest) -> Served {
        self.check_open()?;
        let (head, piece) = wire::decode_piece(&request.body).ok_or(PeerRefusal::Malformed)?;
        check_sender(&request.from, &head.vote)?;
        let own_vote = match self.raft.with_raft_state(|state| *state.vote_ref()).await {
            Ok(vote) => vote,
            Err(fatal) => return answer(&RaftAnswer::<PieceAnswer>::Err(fatal.to_string())),
        };
        if own_vote > head.vote {
            return answer(&RaftAnswer::Ok(PieceAnswer::Done(own_vote)));
        }
        let data = match self.parts.receiver.take(&head, piece) {
            Received::Next(offset) => return answer(&RaftAnswer::Ok(PieceAnswer::Next(offset))),
            Received::TooLarge => return Err(PeerRefusal::TooLarge),
            Received::Whole(data) => data,
        };
        let snapshot = Snapshot { meta: head.meta, snapshot: Box::new(data) };
        let installed = self.raft.install_full_snapshot(head.vote, snapshot).await;
        answer(&installed.map(|done| PieceAnswer::Done(done.vote)).map_err(|fatal| fatal.to_string()))
    }

    async fn serve_propose(&self, request: &PeerRequest) -> Served {
        let command: CommandText = body(request)?;
        if !self.is_member(&request.from) {
            return answer(&Result::<(), _>::Err(self.stranger()));
        }
        // The last moment at which the caller's leaving still changes something.
        if request.caller.is_gone() || request.remaining.is_zero() {
            return Err(PeerRefusal::TooLate);
        }
        answer(&self.write_here(command, Instant::now() + request.remaining).await)
    }

    async fn serve_barrier(&self, request: &PeerRequest) -> Served {
        let () = body(request)?;
        if let Some(elsewhere) = self.elsewhere() {
            return answer(&Result::<(), _>::Err(elsewhere));
        }
        if !self.is_member(&request.from) {
            return answer(&Result::<(), _>::Err(self.stranger()));
        }
        answer(&self.confirm_here(Instant::now() + request.remaining).await)
    }

    async fn serve_change(&self, request: &PeerRequest) -> Served {
        let change: Change = body(request)?;
        match &change {
            Change::Join { name, .. } | Change::Address { name, .. } if *name != *request.from.0 => return Err(PeerRefusal::NotAdmitted),
            Change::Join { .. } => {}
            Change::Promote { .. } | Change::Remove { .. } | Change::Address { .. } => {
                if !self.is_member(&request.from) {
                    return answer(&Result::<(), _>::Err(self.stranger()));
                }
            }
        }
        if request.caller.is_gone() || request.remaining.is_zero() {
            return Err(PeerRefusal::TooLate);
        }
        // Who joins, or comes back elsewhere, knows some node, not which one leads.
        if let (Change::Join { .. } | Change::Address { .. }, Some(elsewhere)) = (&change, self.elsewhere()) {
            return answer(&Result::<(), _>::Err(elsewhere));
        }
        answer(&self.change_here(&change, Instant::now() + request.remaining).await)
    }

    /// Who leads, if it is another node.
    fn elsewhere(&self) -> Option<Failure> {
        match self.leader() {
            Leader::At(leader) => Some(Failure::Elsewhere { name: leader.node.to_string(), addr: leader.addr.to_string() }),
            Leader::Here | Leader::Unknown(_) | Leader::Stopped(_) => None,
        }
    }

    fn is_member(&self, node: &NodeId) -> bool {
        self.raft.metrics().borrow().membership_config.membership().get_node(&member_id(node)).is_some()
    }

    /// What somebody is told who is no member here. Only the leader knows for certain.
    fn stranger(&self) -> Failure {
        match self.leader() {
            Leader::Here => Failure::NotAMember,
            _ => Failure::NoLeader("another node leads".to_owned()),
        }
    }
}

fn body<T: serde::de::DeserializeOwned>(request: &PeerRequest) -> Result<T, PeerRefusal> {
    wire::decode(&request.body).ok_or(PeerRefusal::Malformed)
}

fn answer<T: Serialize>(answer: &T) -> Served {
    // What we answer can always be written; if it could not, the caller would learn nothing from how.
    Ok(wire::encode(answer).unwrap_or_default())
}

/// Nobody speaks in another's name.
fn check_sender(from: &NodeId, vote: &Vote<MemberId>) -> Result<(), PeerRefusal> {
    if vote.leader_id().voted_for() == Some(member_id(from)) { Ok(()) } else { Err(PeerRefusal::NotAdmitted) }
}
