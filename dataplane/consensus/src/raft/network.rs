//! The network seam. There are no peers yet: nobody can be reached.

use std::future::Future;

use openraft::error::{Fatal, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use openraft::{OptionalSend, RaftNetwork, RaftNetworkFactory, Snapshot, Vote};

use super::types::{Member, MemberId, RaftTypes};

type CallError = RPCError<MemberId, Member, RaftError<MemberId>>;

/// A network without peers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoPeers;

#[derive(Debug, thiserror::Error)]
#[error("this node has no peers")]
struct NoSuchPeer;

fn unreachable() -> Unreachable {
    Unreachable::new(&NoSuchPeer)
}

impl RaftNetworkFactory<RaftTypes> for NoPeers {
    type Network = Self;

    async fn new_client(&mut self, _target: MemberId, _node: &Member) -> Self::Network {
        *self
    }
}

impl RaftNetwork<RaftTypes> for NoPeers {
    async fn append_entries(
        &mut self,
        _request: AppendEntriesRequest<RaftTypes>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<MemberId>, CallError> {
        Err(unreachable().into())
    }

    async fn vote(&mut self, _request: VoteRequest<MemberId>, _option: RPCOption) -> Result<VoteResponse<MemberId>, CallError> {
        Err(unreachable().into())
    }

    async fn full_snapshot(
        &mut self,
        _vote: Vote<MemberId>,
        _snapshot: Snapshot<RaftTypes>,
        _cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<MemberId>, StreamingError<RaftTypes, Fatal<MemberId>>> {
        Err(unreachable().into())
    }
}
