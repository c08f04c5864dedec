//! Evidence for destruction (design I5). Nothing is deleted on a node's own view: the leader confirms the fact first, and only a
//! [`Confirmed`] value opens a delete. The procedure and the private constructor live together in this module.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::catalog::LeaderPort;
use crate::ids::{AttachEpoch, LogIndex, MoveToken, NodeId, OwnershipEpoch, PartitionIndex, StreamId, TenantId, TopicId};

/// The fact that an incarnation of a topic is gone for good. Monotone: an id never comes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicGone {
    /// Whose topic it was.
    pub tenant: TenantId,
    /// The incarnation.
    pub topic: TopicId,
}

/// The fact that an attachment of a child has ended. Monotone: an epoch never comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkGone {
    /// The attachment.
    pub epoch: AttachEpoch,
}

/// The fact that no child is attached under these streams any more. Monotone: each stream is minted for one attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamsEnded {
    /// The streams of attachments that have ended.
    pub streams: BTreeSet<StreamId>,
}

/// Which copy of a partition it is, on the node that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {
    /// The one that its node served as the owner, under this epoch and no later one.
    Served(OwnershipEpoch),
    /// The one that its node has begun under this move, and has never served.
    Incoming(MoveToken),
}

/// The fact that a copy of a partition of a living topic will never be served again: the partition went to another node after it was served,
/// or the move that brought it has ended without it. Monotone: epochs only rise, and a token never comes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyMoved {
    /// The topic.
    pub topic: TopicId,
    /// Which partition of it.
    pub index: PartitionIndex,
    /// Who has the copy.
    pub holder: NodeId,
    /// Which one.
    pub copy: Copy,
}

/// A fact that the leader has confirmed by a linearizable read.
#[derive(Clone, Debug)]
pub struct Confirmed<F> {
    fact: F,
    applied: LogIndex,
}

impl<F> Confirmed<F> {
    /// What was confirmed.
    pub fn fact(&self) -> &F {
        &self.fact
    }

    /// The metastore position at which it was confirmed.
    pub fn applied(&self) -> LogIndex {
        self.applied
    }
}

/// The leader could not confirm. There is one right way to handle this: keep the data, try again later.
#[derive(Clone, Debug, thiserror::Error)]
#[error("unconfirmed: {reason}")]
pub struct Unconfirmed {
    /// Why: no leader, no answer, or the fact is not so.
    pub reason: String,
}

/// Asks the leader before anything is destroyed.
#[derive(Clone)]
pub struct Witness {
    port: Arc<dyn LeaderPort>,
}

impl Witness {
    /// A witness that asks through `port`.
    #[must_use]
    pub fn new(port: Arc<dyn LeaderPort>) -> Self {
        Self { port }
    }

    /// Confirms that this incarnation of a topic no longer exists.
    ///
    /// # Errors
    /// [`Unconfirmed`] when the leader does not answer, or the topic still lives.
    pub async fn topic_gone(&self, tenant: &TenantId, topic: TopicId) -> Result<Confirmed<TopicGone>, Unconfirmed> {
        let view = self.port.confirmed_view().await.map_err(|error| Unconfirmed { reason: error.to_string() })?;
        if view.topic_by_id(topic).is_some() {
            return Err(Unconfirmed { reason: format!("topic {topic} still exists") });
        }
        Ok(Confirmed { fact: TopicGone { tenant: tenant.clone(), topic }, applied: view.applied })
    }

    /// Confirms that no topic has a child under this attachment any more.
    ///
    /// # Errors
    /// [`Unconfirmed`] when the leader does not answer, or the attachment still lives.
    pub async fn link_gone(&self, epoch: AttachEpoch) -> Result<Confirmed<LinkGone>, Unconfirmed> {
        let view = self.port.confirmed_view().await.map_err(|error| Unconfirmed { reason: error.to_string() })?;
        if view.by_id.values().any(|topic| topic.children.iter().any(|link| link.epoch == epoch)) {
            return Err(Unconfirmed { reason: format!("attachment {epoch} still exists") });
        }
        Ok(Confirmed { fact: LinkGone { epoch }, applied: view.applied })
    }

    /// Confirms which of these streams no attachment has any more. Asked of streams that something was sent under: one whose attachment is
    /// still to come would look the same.
    ///
    /// # Errors
    /// [`Unconfirmed`] when the leader does not answer.
    pub async fn streams_ended(&self, mut streams: BTreeSet<StreamId>) -> Result<Confirmed<StreamsEnded>, Unconfirmed> {
        let view = self.port.confirmed_view().await.map_err(|error| Unconfirmed { reason: error.to_string() })?;
        for link in view.by_id.values().flat_map(|topic| &topic.children) {
            streams.remove(&link.stream);
        }
        Ok(Confirmed { fact: StreamsEnded { streams }, applied: view.applied })
    }

    /// Confirms that a copy which `holder` has of a partition will never be served again. Of a topic that is gone, that is to be
    /// [confirmed](Self::topic_gone).
    ///
    /// # Errors
    /// [`Unconfirmed`] when the leader does not answer, or the copy is, or may become, what is served.
    pub async fn copy_moved(
        &self,
        topic: TopicId,
        index: PartitionIndex,
        holder: &NodeId,
        copy: Copy,
    ) -> Result<Confirmed<CopyMoved>, Unconfirmed> {
        let view = self.port.confirmed_view().await.map_err(|error| Unconfirmed { reason: error.to_string() })?;
        let unconfirmed = |reason: &str| Err(Unconfirmed { reason: format!("{topic}/{index}: {reason}") });
        let Some(owner) = view.topic_by_id(topic).and_then(|record| record.owner_of(index)) else {
            return unconfirmed("no owner is known");
        };
        if owner.node == *holder {
            return unconfirmed("the copy is its owner's");
        }
        match copy {
            Copy::Served(epoch) if owner.epoch <= epoch => return unconfirmed("nobody owned it since"),
            Copy::Incoming(token) if owner.moving.as_ref().is_some_and(|moving| moving.token == token) => {
                return unconfirmed("the copy is being made");
            }
            Copy::Served(_) | Copy::Incoming(_) => {}
        }
        Ok(Confirmed { fact: CopyMoved { topic, index, holder: holder.clone(), copy }, applied: view.applied })
    }
}
