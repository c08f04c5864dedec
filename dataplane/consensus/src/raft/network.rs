//! The raft library's calls to other members, over the peer plane.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use openraft::error::{Fatal, NetworkError, PayloadTooLarge, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use openraft::{OptionalSend, RaftNetwork, RaftNetworkFactory, Snapshot, Vote};
use serde::Serialize;
use serde::de::DeserializeOwned;
use veena_contract::{BoxFuture, PeerAddr, PeerCall, PeerClass, PeerClient, PeerError, PeerOp, limits};

use super::types::{Member, MemberId, RaftTypes};
use super::wire::{self, PieceAnswer, PieceHead, RaftAnswer};

type CallError = RPCError<MemberId, Member, RaftError<MemberId>>;

/// How often a snapshot is begun anew within one attempt, when the other side has lost what it had of it.
const SNAPSHOT_STARTS_MAX: u32 = 3;

/// Nobody can be reached: for a cluster of one.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPeers;

impl PeerClient for NoPeers {
    fn call<'a>(&'a self, to: &'a PeerAddr, _call: PeerCall) -> BoxFuture<'a, Result<Bytes, PeerError>> {
        Box::pin(async { Err(PeerError::Unreachable { node: to.node.clone(), reason: "this node has no peers".to_owned() }) })
    }
}

/// Why a call of the raft library has no answer.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error("{0} takes part no more: {1}")]
    Stopped(String, String),
    #[error("{0} answered what is no answer")]
    BadAnswer(String),
    #[error("an entry of {0} bytes fits into no call")]
    TooLarge(usize),
    #[error("the call cannot be written: {0}")]
    Encode(#[from] serde_json::Error),
    #[error("{0} does not keep the pieces of a snapshot")]
    Forgets(String),
}

impl LinkError {
    /// Whoever did not answer in time has taken that time already; everybody else is left alone for a while.
    fn is_slow(&self) -> bool {
        matches!(self, Self::Peer(PeerError::Silent { .. }))
    }
}

impl From<LinkError> for CallError {
    fn from(error: LinkError) -> Self {
        if error.is_slow() { NetworkError::new(&error).into() } else { Unreachable::new(&error).into() }
    }
}

impl From<LinkError> for StreamingError<RaftTypes, Fatal<MemberId>> {
    fn from(error: LinkError) -> Self {
        if error.is_slow() { NetworkError::new(&error).into() } else { Unreachable::new(&error).into() }
    }
}

/// Makes the way to each member.
pub(super) struct Peers(pub(super) Arc<dyn PeerClient>);

impl RaftNetworkFactory<RaftTypes> for Peers {
    type Network = Link;

    async fn new_client(&mut self, _target: MemberId, node: &Member) -> Self::Network {
        Link { peers: Arc::clone(&self.0), to: node.peer() }
    }
}

/// The way to one member, at the address that the membership had when it was made; the raft library makes it anew when that changes.
pub(super) struct Link {
    peers: Arc<dyn PeerClient>,
    to: PeerAddr,
}

impl Link {
    async fn call<T: DeserializeOwned>(&self, op: PeerOp, body: Bytes, timeout: Duration) -> Result<T, LinkError> {
        let name = || self.to.node.to_string();
        let bytes = self.peers.call(&self.to, PeerCall { class: PeerClass::Control, op, timeout, body }).await?;
        let answer: RaftAnswer<T> = wire::decode(&bytes).ok_or_else(|| LinkError::BadAnswer(name()))?;
        answer.map_err(|reason| LinkError::Stopped(name(), reason))
    }

    async fn ask<A: Serialize, T: DeserializeOwned>(&self, op: PeerOp, body: &A, timeout: Duration) -> Result<T, LinkError> {
        self.call(op, wire::encode(body)?, timeout).await
    }

    async fn send_snapshot(&self, vote: Vote<MemberId>, snapshot: Snapshot<RaftTypes>) -> Result<SnapshotResponse<MemberId>, LinkError> {
        let data = *snapshot.snapshot;
        let (mut offset, mut starts) = (0, 1);
        loop {
            let end = data.len().min(offset + limits::METADATA_SNAPSHOT_PIECE_BYTES);
            let is_last = end == data.len();
            let head = PieceHead { vote, meta: snapshot.meta.clone(), offset: offset as u64, is_last };
            let piece = wire::encode_piece(&head, &data[offset..end])?;
            let within = if is_last { limits::METADATA_SNAPSHOT_INSTALL_MS_MAX } else { limits::METADATA_SNAPSHOT_PIECE_MS_MAX };
            match self.call(PeerOp::RAFT_SNAPSHOT, piece, Duration::from_millis(within)).await? {
                PieceAnswer::Done(vote) => return Ok(SnapshotResponse::new(vote)),
                PieceAnswer::Next(next) if next == end as u64 && !is_last => offset = end,
                // It has nothing of this snapshot: it was started again, or another snapshot came in between.
                PieceAnswer::Next(_) if starts < SNAPSHOT_STARTS_MAX => (offset, starts) = (0, starts + 1),
                PieceAnswer::Next(_) => return Err(LinkError::Forgets(self.to.node.to_string())),
            }
        }
    }
}

impl RaftNetwork<RaftTypes> for Link {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<RaftTypes>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<MemberId>, CallError> {
        let body = wire::encode(&request).map_err(LinkError::from)?;
        if body.len() > limits::METADATA_APPEND_BYTES_MAX && request.entries.len() > 1 {
            return Err(PayloadTooLarge::new_entries_hint(request.entries.len() as u64 / 2).into());
        }
        if body.len() > limits::PEER_CONTROL_BYTES_MAX {
            return Err(LinkError::TooLarge(body.len()).into());
        }
        Ok(self.call(PeerOp::RAFT_APPEND, body, option.hard_ttl()).await?)
    }

    async fn vote(&mut self, request: VoteRequest<MemberId>, option: RPCOption) -> Result<VoteResponse<MemberId>, CallError> {
        Ok(self.ask(PeerOp::RAFT_VOTE, &request, option.hard_ttl()).await?)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote<MemberId>,
        snapshot: Snapshot<RaftTypes>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<MemberId>, StreamingError<RaftTypes, Fatal<MemberId>>> {
        tokio::select! {
            closed = cancel => Err(closed.into()),
            sent = self.send_snapshot(vote, snapshot) => Ok(sent?),
        }
    }

    fn backoff(&self) -> Backoff {
        let spans = std::iter::successors(Some(limits::METADATA_BACKOFF_MS_MIN), |ms| Some((ms * 2).min(limits::METADATA_BACKOFF_MS_MAX)));
        Backoff::new(spans.map(Duration::from_millis))
    }
}
