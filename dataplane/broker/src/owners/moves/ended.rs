//! Moves that cannot be completed. Whoever finds that out, owner or target, aborts the move by itself and keeps the reason for those who ask.
//! That is safe at any moment: abort and change of owner are in one register, and of both sides the abort only says that the owner goes on.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tracing::{debug, warn};
use veena_contract::{Command, MoveToken, NodeId, Ownership, TenantId, TopicName, TopicRecord, limits};

use super::at;
use crate::core::Core;
use crate::partition::PartitionId;

/// A move that this node has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedMove {
    /// Whose topic.
    pub tenant: TenantId,
    /// The topic, as it was called.
    pub topic: TopicName,
    /// Which partition of which incarnation.
    pub partition: PartitionId,
    /// Under which move.
    pub token: MoveToken,
    /// Whose the partition stays.
    pub from: NodeId,
    /// Whose it was to be.
    pub to: NodeId,
    /// Why it ended.
    pub reason: String,
    /// When, in Unix milliseconds.
    pub ended_ms: u64,
}

/// The last of them.
#[derive(Default)]
pub struct Ended(Mutex<VecDeque<EndedMove>>);

impl Ended {
    /// All that are remembered, oldest first.
    pub fn all(&self) -> Vec<EndedMove> {
        self.0.lock().iter().cloned().collect()
    }

    /// Is it new?
    fn note(&self, ended: EndedMove) -> bool {
        let mut all = self.0.lock();
        if all.iter().any(|known| known.token == ended.token) {
            return false;
        }
        if all.len() >= limits::MOVES_ENDED_KEPT_MAX {
            all.pop_front();
        }
        all.push_back(ended);
        true
    }
}

/// Ends a move. When that cannot be recorded now it is for the caller to come again.
pub(super) async fn give_up(core: &Core, record: &TopicRecord, id: PartitionId, owner: &Ownership, token: MoveToken, reason: String) {
    let Some(moving) = super::move_of(owner, token) else { return };
    let ended = EndedMove {
        tenant: record.tenant.clone(),
        topic: record.name.clone(),
        partition: id,
        token,
        from: owner.node.clone(),
        to: moving.to.clone(),
        reason: reason.clone(),
        ended_ms: core.ports.clock.now_ms(),
    };
    let proposed = core.ports.writer.propose(Command::AbortMove { at: at(record, id.index, owner.epoch), token }).await;
    match proposed {
        Ok(_) if core.moves.ended.note(ended) => warn!(
            topic = %record.name, partition = %id.index, from = %owner.node, to = %moving.to, move = %token, reason,
            "a move cannot be completed and was aborted: the partition stays with its owner"
        ),
        Ok(_) => {}
        Err(failed) => {
            debug!(topic = %record.name, partition = %id.index, move = %token, reason, error = %failed, "a move is to be aborted, and is not known to be");
        }
    }
}
