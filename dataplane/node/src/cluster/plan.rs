//! What the leader has to do about the members and their partitions. Pure: what is known comes in, what is to be done comes out.

use std::collections::{BTreeMap, BTreeSet};

use veena_contract::{
    CatalogView, DrainMark, MoveToken, NodeId, Obstacle, ObstacleCode, Ownership, PartitionAt, PartitionIndex, TopicId, TopicRecord, limits,
};

/// One member, as the planner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    pub node: NodeId,
    pub is_voter: bool,
    pub is_leader: bool,
    /// Was it heard just now, and says what it is asked?
    pub is_here: bool,
    /// Has it been silent for long?
    pub is_dead: bool,
    /// Is it ready, with a clock that agrees?
    pub is_ready: bool,
    /// Is nothing left in it, and since which time of being taken out?
    pub drained: Option<DrainMark>,
}

/// Something to do. Each of them is compared with what it was planned for, so that doing it late or twice does no harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Begin to move a partition.
    Begin { at: PartitionAt, to: NodeId },
    /// End a move that cannot be completed.
    Abort { at: PartitionAt, token: MoveToken, why: &'static str },
    /// Record that a member has nothing any more and leaves: from here on nobody keeps it.
    LetGo { node: NodeId, mark: Option<DrainMark> },
    /// Take a member out that has been let go.
    Remove { node: NodeId },
    /// Forget that a node was being taken out: it is gone.
    Unmark { node: NodeId },
}

/// What is known beyond the catalog and the members: what depends on time.
#[derive(Clone, Debug, Default)]
pub(super) struct Timing {
    /// Have the members been the same, and all there, for long?
    pub is_steady: bool,
    /// Moves whose owner has stopped long ago.
    pub overdue: BTreeSet<MoveToken>,
    /// Partitions that are left where they are for now.
    pub resting: BTreeSet<(TopicId, PartitionIndex)>,
    /// To whom partitions were not moved, though it was tried: others are tried first.
    pub failed: BTreeSet<((TopicId, PartitionIndex), NodeId)>,
    /// Nodes that are marked and have been no members for long.
    pub gone: BTreeSet<NodeId>,
}

/// Plans what is to be done now.
pub(super) fn plan(view: &CatalogView, seats: &[Seat], timing: &Timing) -> Vec<Action> {
    let mut draft = Draft::new(view, seats, timing);
    draft.abort_what_is_stuck();
    draft.empty_what_drains();
    if timing.is_steady && draft.is_everybody_well() {
        draft.balance();
    }
    draft.let_go();
    draft.actions
}

/// One partition that has an owner.
struct Place<'a> {
    topic: &'a TopicRecord,
    index: PartitionIndex,
    owner: &'a Ownership,
}

impl Place<'_> {
    fn id(&self) -> (TopicId, PartitionIndex) {
        (self.topic.id, self.index)
    }

    fn at(&self) -> PartitionAt {
        PartitionAt { tenant: self.topic.tenant.clone(), topic: self.topic.id, index: self.index, epoch: self.owner.epoch }
    }
}

fn places(view: &CatalogView) -> impl Iterator<Item = Place<'_>> {
    view.by_id
        .values()
        .flat_map(|topic| (0..).zip(&topic.owners).map(|(index, owner)| Place { topic, index: PartitionIndex(index), owner }))
}

struct Draft<'a> {
    view: &'a CatalogView,
    seats: &'a [Seat],
    timing: &'a Timing,
    /// How many partitions each member has once every move has ended.
    loads: BTreeMap<&'a NodeId, usize>,
    /// How many moves each node takes part in.
    busy: BTreeMap<NodeId, usize>,
    moves: usize,
    begun: BTreeSet<(TopicId, PartitionIndex)>,
    actions: Vec<Action>,
}

impl<'a> Draft<'a> {
    fn new(view: &'a CatalogView, seats: &'a [Seat], timing: &'a Timing) -> Self {
        let mut draft = Self {
            view,
            seats,
            timing,
            loads: seats.iter().map(|seat| (&seat.node, 0)).collect(),
            busy: BTreeMap::new(),
            moves: 0,
            begun: BTreeSet::new(),
            actions: Vec::new(),
        };
        for place in places(view) {
            let moving = place.owner.moving.as_ref();
            if let Some(load) = draft.loads.get_mut(moving.map_or(&place.owner.node, |moving| &moving.to)) {
                *load += 1;
            }
            // One whose owner is down goes on when that is back, and holds up nobody until then.
            if let Some(moving) = moving
                && draft.seat(&place.owner.node).is_some_and(|seat| !seat.is_dead)
            {
                draft.moves += 1;
                *draft.busy.entry(place.owner.node.clone()).or_default() += 1;
                *draft.busy.entry(moving.to.clone()).or_default() += 1;
            }
        }
        draft
    }

    fn seat(&self, node: &NodeId) -> Option<&'a Seat> {
        seat(self.seats, node)
    }

    fn abort_what_is_stuck(&mut self) {
        for place in places(self.view) {
            let Some(moving) = &place.owner.moving else { continue };
            let target = self.seat(&moving.to);
            let owner = self.seat(&place.owner.node);
            // An owner that is not there would not go on: then the copy that it may have handed over is all there is.
            if moving.frozen.is_some() && !owner.is_some_and(|owner| owner.is_here) {
                continue;
            }
            let why = match target {
                None => "its target is no member",
                Some(target) if target.is_dead => "its target is dead",
                // What is frozen takes a moment more.
                Some(target) if self.view.draining.contains(&target.node) && moving.frozen.is_none() => "its target is being taken out",
                Some(_) if owner.is_none() => "its owner is no member",
                Some(_) if self.timing.overdue.contains(&moving.token) => "its target does not take over",
                Some(_) => continue,
            };
            self.actions.push(Action::Abort { at: place.at(), token: moving.token, why });
        }
    }

    /// Moves what nodes own that are being taken out.
    fn empty_what_drains(&mut self) {
        for place in places(self.view) {
            let from = &place.owner.node;
            if self.moves >= limits::MOVES_MAX {
                return;
            }
            let is_to_go = self.view.draining.contains(from) && self.seat(from).is_some_and(|seat| seat.is_here);
            if is_to_go && self.may_move(&place) {
                let receivers = receivers(self.view, self.seats).filter(|seat| self.has_room(&seat.node));
                let best = receivers.min_by_key(|seat| {
                    let node = &seat.node;
                    (self.has_failed(&place, node), self.loads.get(node), self.is_beside_parent(&place, node))
                });
                if let Some(best) = best {
                    self.begin(&place, &best.node);
                }
            }
        }
    }

    /// Are all members there and ready, and none of them on its way out?
    fn is_everybody_well(&self) -> bool {
        self.seats.iter().all(|seat| seat.is_here && seat.is_ready && !self.view.draining.contains(&seat.node))
    }

    /// Moves as few partitions as make the members equal: no two of them differ by more than one.
    fn balance(&mut self) {
        while self.moves < limits::MOVES_MAX {
            let most = self.loads.iter().max_by_key(|(node, load)| (**load, std::cmp::Reverse(**node))).map(|(node, load)| (*node, *load));
            let fewest = self.loads.iter().min_by_key(|(node, load)| (**load, **node)).map(|(node, load)| (*node, *load));
            let (Some((from, most)), Some((to, fewest))) = (most, fewest) else { return };
            if most <= fewest + 1 || !self.has_room(from) || !self.has_room(to) {
                return;
            }
            let of_topic = |topic: &TopicRecord, node: &NodeId| topic.owners.iter().filter(|owner| owner.node == *node).count();
            let candidates = places(self.view).filter(|place| place.owner.node == *from && self.may_move(place));
            let best = candidates.min_by_key(|place| {
                let surplus = of_topic(place.topic, from).cast_signed() - of_topic(place.topic, to).cast_signed();
                (self.has_failed(place, to), self.is_beside_parent(place, to), std::cmp::Reverse(surplus), place.id())
            });
            match best {
                Some(place) => self.begin(&place, to),
                None => return,
            }
        }
    }

    fn may_move(&self, place: &Place<'_>) -> bool {
        place.owner.moving.is_none()
            && !self.begun.contains(&place.id())
            && !self.timing.resting.contains(&place.id())
            && self.has_room(&place.owner.node)
    }

    fn has_failed(&self, place: &Place<'_>, to: &NodeId) -> bool {
        self.timing.failed.contains(&(place.id(), to.clone()))
    }

    fn has_room(&self, node: &NodeId) -> bool {
        self.busy.get(node).is_none_or(|busy| *busy < limits::MOVES_PER_NODE_MAX)
    }

    /// Would a child's partition be on the node of the parent's partition that it goes with?
    fn is_beside_parent(&self, place: &Place<'_>, node: &NodeId) -> bool {
        let parent = place.topic.parent.as_ref().and_then(|link| self.view.topic_by_id(link.parent_id));
        parent.is_some_and(|parent| parent.partner_of(place.index).is_some_and(|owner| owner.node == *node))
    }

    fn begin(&mut self, place: &Place<'a>, to: &'a NodeId) {
        self.moves += 1;
        for node in [&place.owner.node, to] {
            *self.busy.entry(node.clone()).or_default() += 1;
        }
        if let Some(load) = self.loads.get_mut(&place.owner.node) {
            *load -= 1;
        }
        *self.loads.entry(to).or_default() += 1;
        self.begun.insert(place.id());
        self.actions.push(Action::Begin { at: place.at(), to: to.clone() });
    }

    /// Takes one member out that has nothing any more, and forgets who is gone.
    fn let_go(&mut self) {
        let marked = self.view.draining.iter();
        self.actions.extend(marked.filter(|node| self.timing.gone.contains(*node)).map(|node| Action::Unmark { node: node.clone() }));
        // The leader goes last: whoever leads then has to find out everything anew.
        let mut leaving: Vec<&Seat> = self.seats.iter().filter(|seat| self.view.draining.contains(&seat.node)).collect();
        leaving.sort_by_key(|seat| seat.is_leader);
        let is_empty = |seat: &Seat| {
            let touches = |owner: &Ownership| owner.node == seat.node || owner.moving.as_ref().is_some_and(|moving| moving.to == seat.node);
            !places(self.view).any(|place| touches(place.owner))
        };
        let ready = leaving.into_iter().find(|seat| {
            seat.is_here
                && is_drained(self.view, seat)
                && is_empty(seat)
                && obstacles(self.view, self.seats, &seat.node).iter().all(is_no_obstacle_at_last)
        });
        if let Some(seat) = ready {
            let node = seat.node.clone();
            self.actions.push(if self.view.leaving.contains(&node) {
                Action::Remove { node }
            } else {
                Action::LetGo { node, mark: seat.drained }
            });
        }
    }
}

/// Has it said that nothing is left in it, of this time of being taken out?
fn is_drained(view: &CatalogView, seat: &Seat) -> bool {
    seat.drained.is_some() && view.marks.get(&seat.node) == seat.drained.as_ref()
}

/// The leader leaves by being taken out.
fn is_no_obstacle_at_last(obstacle: &Obstacle) -> bool {
    obstacle.code == ObstacleCode::LeaderTransfer
}

fn seat<'a>(seats: &'a [Seat], node: &NodeId) -> Option<&'a Seat> {
    seats.iter().find(|seat| seat.node == *node)
}

/// Who may be given partitions.
fn receivers<'a>(view: &'a CatalogView, seats: &'a [Seat]) -> impl Iterator<Item = &'a Seat> {
    seats.iter().filter(|seat| seat.is_here && seat.is_ready && !view.draining.contains(&seat.node))
}

/// What stands in the way of taking a member out, whether or not it has been asked for. Nothing, of a node that is no member.
pub(super) fn obstacles(view: &CatalogView, seats: &[Seat], node: &NodeId) -> Vec<Obstacle> {
    let Some(leaving) = seat(seats, node) else { return Vec::new() };
    let mut found = Vec::new();
    let mut add = |code, is_lasting, message: String| found.push(Obstacle { code, message, is_lasting });
    let others = || seats.iter().filter(|seat| seat.node != *node);
    let (mut owned, mut waiting, mut inbound, mut moves) = (0, 0, 0, 0);
    for place in places(view) {
        let moving = place.owner.moving.as_ref();
        moves += usize::from(moving.is_some());
        inbound += usize::from(moving.is_some_and(|moving| moving.to == *node));
        owned += usize::from(place.owner.node == *node);
        waiting += usize::from(place.owner.node == *node && moving.is_none());
    }

    // Who is being taken out does not stay, for one that is to follow. Of those that are, the first goes as soon as it can.
    let is_marked = view.draining.contains(node);
    let staying = || others().filter(|seat| is_marked || !view.draining.contains(&seat.node));
    let voters = staying().filter(|seat| seat.is_voter).count();
    let living = staying().filter(|seat| seat.is_voter && !seat.is_dead).count();
    if leaving.is_voter && voters < limits::VOTERS_MIN {
        let message = format!("{voters} voters would be left, and {} are needed: add a node first", limits::VOTERS_MIN);
        add(ObstacleCode::BelowMinVoters, staying().count() < limits::VOTERS_MIN, message);
    }
    if leaving.is_voter && living <= voters / 2 {
        add(ObstacleCode::NoHealthyMajority, false, format!("{living} of the {voters} voters that would be left are alive"));
    }
    if owned > 0 && !receivers(view, seats).any(|seat| seat.node != *node) {
        let is_lasting = others().all(|seat| view.draining.contains(&seat.node));
        add(ObstacleCode::NoReceivers, is_lasting, format!("nobody can take its {owned} partitions: no other member is ready and stays"));
    }
    if leaving.is_dead {
        if owned > 0 {
            let message = format!("it owns {owned} partitions and is dead: nobody else has what is in them");
            add(ObstacleCode::OwnerDead, true, message);
        } else {
            add(ObstacleCode::NodeStatusUnavailable, true, "it is dead, and may have messages that nobody else has".to_owned());
        }
    } else if !leaving.is_here {
        add(ObstacleCode::NodeStatusUnavailable, false, "it does not say how far it is".to_owned());
    }
    if inbound > 0 {
        add(ObstacleCode::MoveTarget, false, format!("{inbound} partitions are being moved to it"));
    }
    if waiting > 0 && moves >= limits::MOVES_MAX {
        add(ObstacleCode::MoveBudgetFull, false, format!("{waiting} partitions wait until others have been moved"));
    }
    if is_marked && leaving.is_here && owned == 0 && !is_drained(view, leaving) {
        add(ObstacleCode::DispatchBacklog, false, "not all messages that were produced at it are committed at their owners".to_owned());
    }
    if leaving.is_leader {
        add(ObstacleCode::LeaderTransfer, false, "it leads, and ends that when it leaves".to_owned());
    }
    found
}

#[cfg(test)]
mod tests;
