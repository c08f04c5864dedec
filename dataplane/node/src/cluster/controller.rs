//! The leader looks after partitions and members: what has to move is begun, what is stuck is ended, who has nothing left is let go. The
//! moves themselves are made by those between whom they are made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use veena_contract::{
    CatalogView, CatalogWriter, Command, Entropy, FeatureLevel, LeaderPort, MoveToken, NodeId, OwnershipEpoch, PartitionIndex,
    ProposeError, TopicId, limits,
};
use veena_metastore::Metastore;

use super::plan::{Action, Seat, Timing, plan};
use super::watch::Watch;

const EVERY: Duration = Duration::from_millis(limits::CONTROL_EVERY_MS);
const FROZEN: Duration = Duration::from_millis(limits::MOVE_FROZEN_MS_MAX);
const REST: Duration = Duration::from_millis(limits::MOVE_REST_MS);
const REST_MAX: Duration = Duration::from_millis(limits::MOVE_REST_MS_MAX);
const STEADY: Duration = Duration::from_millis(limits::REBALANCE_AFTER_MS);
const GONE: Duration = Duration::from_millis(limits::DRAINED_MARK_MS);

/// What a leader remembers from one look to the next, to know how long something lasts. A new leader begins anew.
#[derive(Debug, Default)]
struct Memory {
    moves: BTreeMap<MoveToken, Moving>,
    resting: BTreeMap<(TopicId, PartitionIndex), Rest>,
    /// The members as they were last, and since when.
    members: Option<(Vec<Seat>, Instant)>,
    gone: BTreeMap<NodeId, Instant>,
}

#[derive(Clone, Debug)]
struct Moving {
    at: (TopicId, PartitionIndex),
    to: NodeId,
    epoch: OwnershipEpoch,
    frozen_since: Option<Instant>,
}

/// A partition whose moves were aborted. Each time it is left alone for longer: what keeps it may last.
#[derive(Clone, Debug)]
struct Rest {
    until: Instant,
    pause: Duration,
    epoch: OwnershipEpoch,
    /// To whom it was not moved.
    failed: BTreeSet<NodeId>,
}

impl Memory {
    /// Takes note of what is there now.
    fn look(&mut self, view: &CatalogView, seats: &[Seat], now: Instant) -> Timing {
        self.look_at_moves(view, now);
        self.gone.retain(|node, _| view.draining.contains(node));
        for node in &view.draining {
            if seats.iter().any(|seat| seat.node == *node) {
                self.gone.remove(node);
            } else {
                self.gone.entry(node.clone()).or_insert(now);
            }
        }
        if self.members.as_ref().is_none_or(|(before, _)| before != seats) {
            self.members = Some((seats.to_vec(), now));
        }
        let lasts = |since: &Instant, long: Duration| now.duration_since(*since) >= long;
        Timing {
            is_steady: self.members.as_ref().is_some_and(|(_, since)| lasts(since, STEADY)),
            overdue: self
                .moves
                .iter()
                .filter(|(_, moving)| moving.frozen_since.is_some_and(|since| lasts(&since, FROZEN)))
                .map(|(token, _)| *token)
                .collect(),
            resting: self.resting.iter().filter(|(_, rest)| rest.until > now).map(|(at, _)| *at).collect(),
            failed: self.resting.iter().flat_map(|(at, rest)| rest.failed.iter().map(|to| (*at, to.clone()))).collect(),
            gone: self.gone.iter().filter(|(_, since)| lasts(since, GONE)).map(|(node, _)| node.clone()).collect(),
        }
    }

    fn look_at_moves(&mut self, view: &CatalogView, now: Instant) {
        let mut before = std::mem::take(&mut self.moves);
        for topic in view.by_id.values() {
            for (index, owner) in (0..).zip(&topic.owners) {
                let Some(moving) = &owner.moving else { continue };
                let known = before.remove(&moving.token).and_then(|known| known.frozen_since);
                let frozen_since = moving.frozen.map(|_| known.unwrap_or(now));
                let at = (topic.id, PartitionIndex(index));
                let to = moving.to.clone();
                self.moves.insert(moving.token, Moving { at, to, epoch: owner.epoch, frozen_since });
            }
        }
        let epoch_of =
            |at: (TopicId, PartitionIndex)| view.topic_by_id(at.0).and_then(|topic| topic.owner_of(at.1)).map(|owner| owner.epoch);
        // Remembered for longer than it rests, so that it rests longer the next time.
        self.resting.retain(|at, rest| epoch_of(*at) == Some(rest.epoch) && rest.until + REST_MAX > now);
        // A move that is there no more without a change of the owner was aborted, by whomever: it is not begun again at once.
        for ended in before.into_values().filter(|ended| epoch_of(ended.at) == Some(ended.epoch)) {
            let anew = Rest { until: now, pause: REST / 2, epoch: ended.epoch, failed: BTreeSet::new() };
            let rest = self.resting.entry(ended.at).or_insert(anew);
            rest.pause = (rest.pause * 2).min(REST_MAX);
            rest.until = now + rest.pause;
            rest.failed.insert(ended.to);
        }
    }
}

/// The leader's part of a node; idle on all others.
pub(super) struct Controller {
    pub me: NodeId,
    pub metastore: Metastore,
    pub watch: Arc<Watch>,
    pub entropy: Arc<dyn Entropy>,
}

impl Controller {
    pub async fn run(self, stop: CancellationToken) {
        let mut memory = Memory::default();
        while stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
            if stop.run_until_cancelled(self.look(&mut memory)).await.is_none() {
                return;
            }
        }
    }

    async fn look(&self, memory: &mut Memory) {
        if self.metastore.status().leader.as_ref() != Some(&self.me) || self.metastore.level() < FeatureLevel::MOVES {
            *memory = Memory::default();
            return;
        }
        // Nothing is concluded from what is not there in a view that is behind.
        let Ok(view) = self.metastore.confirmed_view().await else { return };
        let seats = self.watch.seats(&self.metastore.status());
        let timing = memory.look(&view, &seats, Instant::now());
        for action in plan(&view, &seats, &timing) {
            if !self.carry_out(action).await {
                return;
            }
        }
    }

    /// Does what was planned, and says whether to go on. What failed is planned again, if it is still to be done.
    async fn carry_out(&self, action: Action) -> bool {
        let command = match action {
            Action::Begin { at, to } => {
                info!(topic = %at.topic, partition = %at.index, to = %to, "a partition is to be moved");
                Command::BeginMove { at, to, token: MoveToken(self.entropy.next_u128()) }
            }
            Action::Abort { at, token, why } => {
                warn!(topic = %at.topic, partition = %at.index, move = %token, why, "a move is aborted");
                Command::AbortMove { at, token }
            }
            Action::Unmark { node } => Command::NodeGone { node },
            Action::LetGo { node, mark } => Command::LetGo { node, mark },
            Action::Remove { node } => {
                return match self.metastore.remove(&node).await {
                    Ok(()) => {
                        info!(%node, "a node was taken out of the cluster");
                        node != self.me
                    }
                    Err(error) => {
                        debug!(%node, %error, "a node is not taken out yet");
                        false
                    }
                };
            }
        };
        match self.metastore.propose(command).await {
            Ok(_) => true,
            // It has changed since: the next look shows how.
            Err(ProposeError::Refused(error)) => {
                debug!(%error, "what was planned is out of date");
                true
            }
            Err(error) => {
                debug!(%error, "what was planned cannot be done now");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
