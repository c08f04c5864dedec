//! Moves of partitions between nodes: begin, freeze, and then flip or abort, whichever comes first. Each compares with what its proposer read.
//! And nodes that are emptied and leave.

use veena_contract::records::{CommandError, Frozen, Move};
use veena_contract::{DrainMark, MoveToken, NodeId, Offset, Ownership, PartitionAt, TopicRecord, sabotage};

use super::State;

const ALSO_LEAVES: &str = "is being decommissioned, too, since just now; ask again";

impl State {
    pub(super) fn begin_move(&mut self, at: &PartitionAt, to: NodeId, token: MoveToken) -> Result<(), CommandError> {
        if self.view.draining.contains(&to) {
            return Err(CommandError::NodeDraining { node: to });
        }
        self.change_owner(at, |owner| {
            match &owner.moving {
                // Asked for again.
                Some(moving) if moving.token == token && moving.to == to => return Ok(false),
                Some(_) => return Err(CommandError::OwnershipChanged),
                None if owner.node == to => return Err(CommandError::OwnershipChanged),
                None => {}
            }
            owner.moving = Some(Move { to, token, frozen: None });
            Ok(true)
        })
    }

    pub(super) fn freeze_partition(&mut self, at: &PartitionAt, token: MoveToken, end: Offset) -> Result<(), CommandError> {
        self.change_owner(at, |owner| {
            let moving = of_token(owner, token)?;
            match moving.frozen {
                Some(frozen) if frozen.end == end => return Ok(false),
                // A log that has stopped has one end.
                Some(_) => return Err(CommandError::OwnershipChanged),
                None => moving.frozen = Some(Frozen { end }),
            }
            Ok(true)
        })
    }

    pub(super) fn flip_owner(&mut self, at: &PartitionAt, token: MoveToken) -> Result<(), CommandError> {
        self.change_owner(at, |owner| {
            let is_trusting = sabotage::is("flip_without_cas");
            let moving = if is_trusting { owner.moving.as_mut().ok_or(CommandError::OwnershipChanged)? } else { of_token(owner, token)? };
            if moving.frozen.is_none() && !is_trusting {
                return Err(CommandError::OwnershipChanged);
            }
            *owner = Ownership::new(moving.to.clone(), owner.epoch.next());
            Ok(true)
        })
    }

    pub(super) fn abort_move(&mut self, at: &PartitionAt, token: MoveToken) -> Result<(), CommandError> {
        self.change_owner(at, |owner| {
            of_token(owner, token)?;
            owner.moving = None;
            Ok(true)
        })
    }

    /// Two that are asked for at once are judged one after the other here: too few could stay when both leave.
    pub(super) fn set_draining(
        &mut self,
        node: NodeId,
        draining: bool,
        mark: Option<DrainMark>,
        beside: Option<&[NodeId]>,
    ) -> Result<(), CommandError> {
        if draining {
            let is_new = |other: &&NodeId| beside.is_some_and(|beside| !beside.contains(other));
            if let Some(other) = self.view.draining.iter().find(is_new).filter(|_| !self.view.draining.contains(&node)) {
                return Err(CommandError::NodeChanged { node: other.clone(), reason: ALSO_LEAVES.to_owned() });
            }
            self.view.draining.insert(node.clone());
            if let Some(mark) = mark {
                self.view.marks.entry(node).or_insert(mark);
            }
        } else if self.view.leaving.contains(&node) {
            return Err(CommandError::NodeChanged { node, reason: "has given everything away and is leaving the cluster".to_owned() });
        } else {
            self.unmark(&node);
        }
        Ok(())
    }

    /// Forgets that a node was being taken out.
    pub(super) fn unmark(&mut self, node: &NodeId) {
        self.view.draining.remove(node);
        self.view.marks.remove(node);
        self.view.leaving.remove(node);
    }

    /// Judged here, where no command for it can come between. `mark` names the time in which the node has said that it is empty: it may have been
    /// kept since, have taken messages, and be taken out once more.
    pub(super) fn let_go(&mut self, node: NodeId, mark: Option<DrainMark>) -> Result<(), CommandError> {
        let is_its = |owner: &Ownership| owner.node == node || owner.moving.as_ref().is_some_and(|moving| moving.to == node);
        let reason = if !self.view.draining.contains(&node) {
            "is not being decommissioned"
        } else if self.view.marks.get(&node) != mark.as_ref() && !self.view.leaving.contains(&node) {
            "has been kept since it said that it has nothing"
        } else if self.view.by_id.values().flat_map(|topic| &topic.owners).any(is_its) {
            "has partitions"
        } else {
            self.view.leaving.insert(node);
            return Ok(());
        };
        Err(CommandError::NodeChanged { node, reason: reason.to_owned() })
    }

    /// Changes who owns a partition, if it is in the epoch that the proposer read. `change` says whether it has changed anything.
    fn change_owner(
        &mut self,
        at: &PartitionAt,
        change: impl FnOnce(&mut Ownership) -> Result<bool, CommandError>,
    ) -> Result<(), CommandError> {
        let mut topic = self.by_id(&at.tenant, at.topic).ok_or(CommandError::TopicNotFound)?;
        let owner = owner_mut(&mut topic, at).ok_or(CommandError::OwnershipChanged)?;
        if change(owner)? {
            self.put(topic);
        }
        Ok(())
    }
}

fn owner_mut<'a>(topic: &'a mut TopicRecord, at: &PartitionAt) -> Option<&'a mut Ownership> {
    let owner = topic.owners.get_mut(usize::try_from(at.index.get()).ok()?)?;
    (owner.epoch == at.epoch || sabotage::is("flip_without_cas")).then_some(owner)
}

fn of_token(owner: &mut Ownership, token: MoveToken) -> Result<&mut Move, CommandError> {
    owner.moving.as_mut().filter(|moving| moving.token == token).ok_or(CommandError::OwnershipChanged)
}
