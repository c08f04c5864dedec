//! Partitions go to other nodes while everything else happens. Any node begins moves and aborts some; the engines do the rest. Whose each
//! partition was is written down, and when nothing is in the way any more every move comes to an end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use veena_broker::layout;
use veena_contract::{
    CatalogView, CatalogWriter as _, Command, LogIndex, Move, MoveToken, NodeId, OwnershipEpoch, PartitionAt, PartitionIndex, TopicId,
    TopicRecord,
};
use veena_loadtest_checker::{Event, Op, Outcome, TopicKey};
use veena_storage::disk::Disk as _;

use super::net::Weather;
use super::storm::Faults;
use super::{Cluster, LOOK_AGAIN, Order};
use crate::chance::Chance;
use crate::life::End;
use crate::node::Node;
use crate::tally::Kind;
use crate::world::{Machine, key_of, tenant};

/// How long a move may take when nothing is in its way: what failed before is tried again after pauses and patience of seconds.
const END_WITHIN: Duration = Duration::from_secs(60);
/// How long one that was aborted may still be seen.
const ABORT_WITHIN: Duration = Duration::from_secs(30);
/// How long what other nodes own may lie on a disk: it is looked for after each change of the catalog, and every 2 s while something is left.
const SET_ASIDE_WITHIN: Duration = Duration::from_secs(30);
/// No message is longer on its way than this: from then on nobody begins a move that was asked for before.
const LATE_WITHIN: Duration = Duration::from_secs(16);
const LOOK_AT_DISKS_AGAIN: Duration = Duration::from_millis(100);

type Partition = (TopicId, PartitionIndex);

/// What a seed decides about moves, and what was seen of them.
pub struct Moves {
    /// Are there any?
    pub is_on: bool,
    /// Do topics get more partitions meanwhile?
    pub has_growth: bool,
    chance: Mutex<Chance>,
    seen: Mutex<Seen>,
}

/// What the catalog showed.
#[derive(Default)]
struct Seen {
    applied: LogIndex,
    under_way: BTreeMap<MoveToken, (Partition, OwnershipEpoch)>,
    /// Moves that are over.
    over: Vec<(PartitionAt, MoveToken)>,
    owners: BTreeMap<(TopicKey, u32), BTreeSet<Arc<str>>>,
}

impl Moves {
    /// What a seed decides. Drawn beside everything else, so that seeds without moves keep their stories.
    #[must_use]
    pub fn of(aside: &Chance) -> Self {
        let mut chance = Chance::seeded(!aside.clone().next_u64());
        let is_on = chance.percent(50);
        let has_growth = is_on && chance.clone().fork().percent(50);
        Self { is_on, has_growth, chance: Mutex::new(chance), seen: Mutex::default() }
    }

    /// The chance of one more of those that stir.
    pub(super) fn fork(&self) -> Chance {
        self.chance.lock().fork()
    }

    /// Every node that owned a partition, told as if each had been seen when the partition was first looked at: a checker that knows of one
    /// owner of several would take the ends of the others for nothing.
    #[must_use]
    pub fn told_owners(&self, events: &[Event]) -> Vec<Event> {
        let mut untold = self.seen.lock().owners.clone();
        let mut told = Vec::new();
        for event in events.iter().filter(|event| event.outcome == Outcome::Ok) {
            let Op::Observe(numbers) = &event.op else { continue };
            for owner in untold.remove(&(numbers.topic.clone(), numbers.partition)).unwrap_or_default() {
                let mut event = event.clone();
                if let Op::Observe(numbers) = &mut event.op {
                    numbers.owner = Some(owner);
                }
                told.push(event);
            }
        }
        told
    }
}

impl Seen {
    fn take(&mut self, view: &CatalogView, cluster: &Cluster) {
        let tally = &cluster.world.tally;
        let mut under_way = BTreeMap::new();
        for record in view.by_id.values() {
            for (index, owner) in (0..record.partitions).map(PartitionIndex).zip(&record.owners) {
                self.owners.entry((key_of(record), index.get())).or_default().insert(Arc::clone(&owner.node.0));
                if let Some(moving) = &owner.moving {
                    under_way.insert(moving.token, ((record.id, index), owner.epoch));
                    if !self.under_way.contains_key(&moving.token) {
                        tally.add(Kind::MoveBegun);
                    }
                }
            }
        }
        for (token, ((topic, index), epoch)) in std::mem::replace(&mut self.under_way, under_way) {
            if self.under_way.contains_key(&token) {
                continue;
            }
            let owner = view.topic_by_id(topic).and_then(|record| record.owner_of(index));
            // Those of a topic that is gone have gone with it.
            if let Some(owner) = owner {
                tally.add(if owner.epoch == epoch { Kind::MoveAborted } else { Kind::MoveFlipped });
                self.over.push((PartitionAt { tenant: tenant(), topic, index, epoch }, token));
            }
        }
        self.applied = view.applied;
    }
}

/// Looks at what the catalog shows, for ever.
pub(super) async fn watch(cluster: Arc<Cluster>) {
    loop {
        let mut views: Vec<Arc<CatalogView>> = cluster.nodes().map(|node| node.broker.catalog()).collect();
        views.sort_by_key(|view| view.applied);
        for view in views {
            let mut seen = cluster.world.moves.seen.lock();
            if view.applied > seen.applied {
                seen.take(&view, &cluster);
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Begins moves and aborts some, for ever.
pub(super) async fn stir(cluster: Arc<Cluster>) {
    let mut chance = cluster.world.moves.fork();
    let longest = *chance.pick(&[200, 1_000, 3_000]);
    loop {
        let pause = chance.ms(10, longest);
        tokio::time::sleep(pause).await;
        let at = chance.index(cluster.size());
        let Some(node) = cluster.node(at) else { continue };
        let view = node.broker.catalog();
        let command = match chance.below(100) {
            0..15 => any_abort(&view, &mut chance),
            15..30 => any_late(&cluster, &mut chance),
            _ => any_begin(&cluster, &view, &mut chance),
        };
        if let Some(command) = command {
            // Whatever is answered: what became of it shows in the catalog.
            let _ = cluster.ask(at, move |node| async move { propose(&node, command).await }).await;
        }
    }
}

/// The moves of stopped partitions that were not known yet, as whichever node is furthest shows them.
fn newly_stopped(cluster: &Cluster, known: &mut BTreeSet<MoveToken>) -> Vec<(PartitionAt, NodeId, Move)> {
    let view = cluster.nodes().map(|node| node.broker.catalog()).max_by_key(|view| view.applied);
    let stopped = view.iter().flat_map(|view| view.moves()).filter(|(.., moving)| moving.frozen.is_some() && known.insert(moving.token));
    stopped.map(|(record, index, owner, moving)| (at(record, index, owner.epoch), owner.node.clone(), moving.clone())).collect()
}

/// Hurts those who move a partition at the worst moment, for ever: its owner has stopped, and nobody has taken it over.
pub(super) async fn haunt(cluster: Arc<Cluster>, faults: Faults) {
    let mut chance = cluster.world.moves.fork();
    let mut known = BTreeSet::new();
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        for (_, owner, moving) in newly_stopped(&cluster, &mut known) {
            let ends = [cluster.place_of(&owner), cluster.place_of(&moving.to)];
            let [Some(owner), Some(target)] = ends else { continue };
            if !chance.percent(30) {
                continue;
            }
            // At times all of it has come, and the change of owner is what is missing.
            let longest = *chance.pick(&[0, 40]);
            tokio::time::sleep(chance.ms(0, longest)).await;
            let (paused, dead) = match chance.below(5) {
                0 => (Some(owner), None),
                1 => (Some(target), None),
                2 => (None, Some(owner)),
                3 => (None, Some(target)),
                _ => (Some(target), Some(owner)),
            };
            if let Some(at) = paused.filter(|_| faults.pauses) {
                cluster.world.tally.add(Kind::MoveHurt);
                cluster.order(Order::Pause(at, chance.ms(100, 4_000)));
            }
            if let Some(at) = dead.filter(|_| faults.ends) {
                cluster.world.tally.add(Kind::MoveHurt);
                cluster.order(Order::End(at, *chance.pick(&[End::Kill, End::PowerCut])));
                let longest = *chance.pick(&[100, 4_000]);
                tokio::time::sleep(chance.ms(2, longest)).await;
                cluster.start(at);
            }
        }
    }
}

/// Replaces moves of stopped partitions by others, for ever: what was asked for by those who took part in the one may arrive when the next is
/// under way.
pub(super) async fn replace(cluster: Arc<Cluster>, faults: Faults) {
    let mut chance = cluster.world.moves.fork();
    let mut known = BTreeSet::new();
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        for (at, owner, moving) in newly_stopped(&cluster, &mut known) {
            if !chance.percent(25) {
                continue;
            }
            if faults.net && chance.percent(60) {
                let slow_ms_max = *chance.pick(&[50, 300, 1_500]);
                cluster.net.slow_down(Weather { slow_percent: 40, slow_ms_max, ..Weather::default() });
            }
            let longest = *chance.pick(&[20, 500]);
            tokio::time::sleep(chance.ms(0, longest)).await;
            let others: Vec<_> = cluster.world.machines.iter().map(Machine::id).filter(|id| *id != owner).collect();
            let begin = Command::BeginMove { at: at.clone(), to: chance.pick(&others).clone(), token: any_token(&mut chance) };
            for command in [Command::AbortMove { at, token: moving.token }, begin] {
                let asked = chance.index(cluster.size());
                // Whatever is answered: what became of it shows in the catalog.
                let _ = cluster.ask(asked, move |node| async move { propose(&node, command).await }).await;
            }
        }
    }
}

fn any_token(chance: &mut Chance) -> MoveToken {
    MoveToken(u128::from(chance.next_u64()) << 64 | u128::from(chance.next_u64()))
}

async fn propose(node: &Node, command: Command) -> bool {
    node.metastore.propose(command).await.is_ok()
}

fn any_abort(view: &CatalogView, chance: &mut Chance) -> Option<Command> {
    let aborts: Vec<Command> = aborts(view).collect();
    (!aborts.is_empty()).then(|| chance.pick(&aborts).clone())
}

/// What somebody may still ask for who has not heard that the move is over: it must change nothing.
fn any_late(cluster: &Cluster, chance: &mut Chance) -> Option<Command> {
    let over = cluster.world.moves.seen.lock().over.clone();
    if over.is_empty() {
        return None;
    }
    let (at, token) = chance.pick(&over).clone();
    Some(if chance.percent(70) { Command::FlipOwner { at, token } } else { Command::AbortMove { at, token } })
}

fn aborts(view: &CatalogView) -> impl Iterator<Item = Command> {
    view.moves().map(|(record, index, owner, moving)| Command::AbortMove { at: at(record, index, owner.epoch), token: moving.token })
}

fn any_begin(cluster: &Cluster, view: &CatalogView, chance: &mut Chance) -> Option<Command> {
    let topics: Vec<&Arc<TopicRecord>> = view.topics.values().collect();
    if topics.is_empty() {
        return None;
    }
    let record = *chance.pick(&topics);
    let index = PartitionIndex(u32::try_from(chance.below(u64::from(record.partitions))).unwrap_or(0));
    let owner = record.owner_of(index).filter(|owner| owner.moving.is_none())?;
    let others: Vec<_> = cluster.world.machines.iter().map(Machine::id).filter(|id| *id != owner.node).collect();
    let token = any_token(chance);
    Some(Command::BeginMove { at: at(record, index, owner.epoch), to: chance.pick(&others).clone(), token })
}

fn at(record: &TopicRecord, index: PartitionIndex, epoch: OwnershipEpoch) -> PartitionAt {
    PartitionAt { tenant: record.tenant.clone(), topic: record.id, index, epoch }
}

/// Every move comes to an end, now that nothing is in its way.
pub(super) async fn end_all(cluster: &Arc<Cluster>) {
    tokio::time::sleep(LATE_WITHIN).await;
    let is_none = |cluster: &Cluster| {
        let views: Vec<_> = cluster.nodes().map(|node| node.broker.catalog()).collect();
        views.len() == cluster.size() && views.iter().all(|view| view.applied == views[0].applied && view.moves().next().is_none())
    };
    if cluster.until(END_WITHIN, is_none).await {
        return;
    }
    cluster.world.complain(format!("moves do not come to an end, and nothing is in their way: {}", left(cluster).join("; ")));
    let commands: Vec<Command> = cluster.node(0).map(|node| aborts(&node.broker.catalog()).collect()).unwrap_or_default();
    for command in commands {
        let _ = cluster.ask(0, move |node| async move { propose(&node, command).await }).await;
    }
    if !cluster.until(ABORT_WITHIN, is_none).await {
        cluster.world.complain(format!("moves cannot be aborted, and nothing is in the way: {}", left(cluster).join("; ")));
    }
}

/// The moves under way, and how far they have got, in words.
fn left(cluster: &Cluster) -> Vec<String> {
    let moves = |node: Node| {
        let view = node.broker.catalog();
        let told = view.moves().map(|(record, index, owner, moving)| {
            format!("{}/{index} ({}) from {} of epoch {} to {moving:?}", record.name, record.id, owner.node, owner.epoch)
        });
        let told = told.chain(node.broker.moves().iter().map(|progress| format!("{progress:?}"))).collect::<Vec<_>>();
        format!("at {} {told:?}", view.applied.0)
    };
    cluster.nodes().map(moves).collect()
}

/// Nobody keeps a log of a partition that another node owns, or a copy of one that has not come.
pub(super) async fn check_ownership(cluster: &Cluster) {
    let mut patience = if cluster.world.moves.is_on { SET_ASIDE_WITHIN } else { Duration::ZERO };
    loop {
        let strays = strays(cluster);
        if strays.is_empty() {
            return;
        }
        let Some(left) = patience.checked_sub(LOOK_AT_DISKS_AGAIN) else {
            return strays.into_iter().for_each(|stray| cluster.world.complain(stray));
        };
        patience = left;
        tokio::time::sleep(LOOK_AT_DISKS_AGAIN).await;
    }
}

fn strays(cluster: &Cluster) -> Vec<String> {
    let mut strays = Vec::new();
    let Some(view) = cluster.node(0).map(|node| node.broker.catalog()) else { return strays };
    for record in view.topics.values() {
        for machine in &cluster.world.machines {
            let dir = layout::topic_dir(&machine.config.data_dir, &tenant(), record.id);
            for entry in machine.disk.lock().list(&dir).unwrap_or_default() {
                let Some((index, token)) = layout::copy_of(&entry.name) else { continue };
                let is_its = record.owner_of(index).is_none_or(|owner| owner.node == machine.id());
                if !is_its || token.is_some() {
                    let whose = if is_its { "which has not come there" } else { "which another node owns" };
                    strays.push(format!("{} has {} of {}, {whose}", machine.name, entry.name, record.name));
                }
            }
        }
    }
    strays
}
