//! One sender, a few owners, and a network that loses, repeats, delays and reorders.
//!
//! The decisions are those of the real [`SenderWindow`] and of the real stream table; what the model adds is what lies around them: the
//! source's records, what is durable where, and everything that can go wrong.

use std::collections::BTreeSet;

use veena_broker::streams::{Prev, Refusal, SenderWindow, Source, Standing, Start};
use veena_contract::LogId;

use super::explore::Model;
use super::owner::{Entry, Owner, hash};
use super::{Bounds, Rule};

/// One commit under way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Commit {
    pub log_id: LogId,
    pub prev: Prev,
    /// Sequence and message.
    pub records: Vec<(u64, u64)>,
    pub last: u64,
    pub is_gap: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    Opened(Standing),
    Committed { last: u64 },
    Refused(Refusal),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Body {
    Open,
    Commit(Commit),
    Answer(Answer),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Packet {
    /// The owner it goes to, or comes from.
    owner: usize,
    /// Does the sender still wait for what comes of it?
    is_awaited: bool,
    body: Body,
}

/// A message accepted anew for another partition. Of several of one message the last counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Moved {
    id: u64,
    to: usize,
    sequence: u64,
    written: Written,
}

/// What became of the record that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Written {
    /// Synced.
    Durable,
    /// Never written (a planted mistake).
    Nowhere,
    /// Its sync failed: a next life finds it, or does not; this one does not know, and its log takes nothing more.
    Unknown { is_found: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Sender {
    windows: Vec<SenderWindow>,
    is_waiting: Vec<bool>,
    /// Up to which sequence each owner has confirmed, as far as this life knows.
    settled: Vec<u64>,
    /// Durable: everything below is settled, and gone from the source.
    retained_from: u64,
    moved: Vec<Moved>,
    /// Durable: messages of the first partition that are in a file besides, and do not hold up the checkpoint.
    parked: BTreeSet<u64>,
    is_first_life: bool,
}

/// Where a message is owed: the partition, and under which sequence.
type Place = (usize, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Left {
    sender_crashes: u8,
    owner_crashes: u8,
    failed_syncs: u8,
    repeats: u8,
    restores: u8,
    moves: u8,
    failed_moves: u8,
    parks: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct World {
    sender: Sender,
    owners: Vec<Owner>,
    /// Sorted: the network keeps no order.
    network: Vec<Packet>,
    left: Left,
    /// Messages that an owner's restored copy had lost.
    lost_by_restore: BTreeSet<u64>,
    /// Messages that were ever moved, also when nobody remembers.
    ever_moved: BTreeSet<u64>,
    /// A rule broken by the step that led here.
    broken: Option<String>,
}

#[derive(Clone, Copy, Debug)]
pub enum Action {
    Open { owner: usize },
    Send { owner: usize, count: usize },
    DeclareGap { owner: usize },
    GiveUp { owner: usize },
    Deliver { packet: usize },
    Drop { packet: usize },
    Repeat { packet: usize },
    Sync { owner: usize },
    FailSync { owner: usize },
    FailSyncKeepTail { owner: usize },
    CrashOwner { owner: usize, kept: usize },
    Restore { owner: usize, kept: usize, is_new_log: bool },
    CrashSender,
    Checkpoint,
    Move { id: u64, to: usize },
    FailMove { id: u64, to: usize, is_found: bool },
    Park,
}

/// The model: bounds, and which mistake is planted.
pub struct Streams {
    pub bounds: Bounds,
    pub rule: Rule,
}

impl Streams {
    fn end(&self, sender: &Sender) -> u64 {
        let moved = sender.moved.iter().map(|moved| moved.sequence).max().unwrap_or(0);
        self.bounds.records.max(moved).max(sender.retained_from - 1) + 1
    }

    /// Where this message is owed by the moves that this life knows of; `None` while the last of them may have been written or not.
    fn place(&self, sender: &Sender, id: u64) -> Option<Place> {
        let mut place = Some((0, id));
        for moved in sender.moved.iter().filter(|moved| moved.id == id) {
            match moved.written {
                Written::Durable | Written::Nowhere => place = Some((moved.to, moved.sequence)),
                Written::Unknown { .. } if self.rule == Rule::FailedMoveForgotten => {}
                Written::Unknown { .. } => place = None,
            }
        }
        place
    }

    /// Records for one owner that the source still has and nobody has confirmed: (sequence, message), rising.
    fn owed(&self, sender: &Sender, owner: usize) -> Vec<(u64, u64)> {
        let is_here = |sequence: u64, id: u64| {
            let is_in_file = owner == 0 && sequence == id && sender.parked.contains(&id);
            sequence >= sender.retained_from || is_in_file
        };
        let mut owed: Vec<(u64, u64)> = Vec::new();
        for id in 1..=self.bounds.records {
            // A life that reads an original does not know yet, or any more, of a record that comes later.
            let is_read_as_new = self.rule == Rule::ReplayIgnoresMoved && !sender.is_first_life && owner == 0;
            let place = if is_read_as_new { Some((0, id)) } else { self.place(sender, id) };
            owed.extend(place.filter(|(at, sequence)| *at == owner && is_here(*sequence, id)).map(|(_, sequence)| (sequence, id)));
        }
        owed.sort_unstable();
        let held = self.held(sender, owner);
        owed.retain(|(sequence, _)| held.is_none_or(|held| *sequence < held));
        owed
    }

    /// The record of which it is unknown whether it was moved away from here: if it was not, a next life sends it, so nothing may come before it.
    fn held(&self, sender: &Sender, owner: usize) -> Option<u64> {
        if matches!(self.rule, Rule::HeldIsPassed | Rule::FailedMoveForgotten) {
            return None;
        }
        let is_unknown = |moved: &&Moved| matches!(moved.written, Written::Unknown { .. });
        let moved = sender.moved.iter().find(is_unknown)?;
        let mut earlier = sender.moved.iter().filter(|other| other.id == moved.id && other.sequence < moved.sequence);
        let (from, sequence) = earlier.next_back().map_or((0, moved.id), |earlier| (earlier.to, earlier.sequence));
        (from == owner).then_some(sequence)
    }

    fn source(&self, sender: &Sender, owner: usize) -> Source {
        // What the destination was sent before this was confirmed there, or moved.
        let here = self.owed(sender, owner).first().map_or(sender.retained_from, |(sequence, _)| sender.retained_from.min(*sequence));
        Source { begin: 1, owed_from: here, retained_from: here, end: self.end(sender) }
    }

    fn reborn(&self, retained_from: u64, moved: Vec<Moved>, parked: BTreeSet<u64>, is_first_life: bool) -> Sender {
        let owners = self.bounds.owners;
        let has_files = parked.iter().any(|id| *id < retained_from);
        let floor = (retained_from > 1 && !has_files).then(|| retained_from - 1);
        // What is read again is what lies behind the checkpoint.
        let moved = moved.into_iter().filter(|moved| moved.sequence >= retained_from).collect();
        // Of what went to other partitions nothing is kept: they are asked.
        let floor_of = |owner: usize| floor.filter(|_| owner == 0);
        let (windows, is_waiting) = (Vec::new(), vec![false; owners]);
        let settled = (0..owners).map(|owner| floor_of(owner).unwrap_or(0)).collect();
        let mut sender = Sender { windows, is_waiting, settled, retained_from, moved, parked, is_first_life };
        let earlier = (!is_first_life && self.rule != Rule::MoveFromEarlierLife).then(|| self.end(&sender) - 1);
        sender.windows = (0..owners).map(|owner| SenderWindow::new(floor_of(owner), earlier)).collect();
        sender
    }

    fn start(&self, world: &mut World, owner: usize, standing: &Standing) {
        let source = self.source(&world.sender, owner);
        let ids = self.owed(&world.sender, owner);
        let hash_of = |sequence: u64| ids.iter().find(|(owed, _)| *owed == sequence).map(|(_, id)| hash(*id));
        match world.sender.windows[owner].on_opened(standing, &source, hash_of) {
            Start::Resume { after, .. } | Start::Gap { after, .. } => world.sender.settled[owner] = after.mark().unwrap_or(0),
            Start::Stopped(_) => {}
        }
    }

    fn on_answer(&self, world: &mut World, owner: usize, answer: Answer) {
        world.sender.is_waiting[owner] = false;
        world.stop_waiting(owner);
        match answer {
            Answer::Opened(standing) => self.start(world, owner, &standing),
            Answer::Committed { last } => {
                if world.sender.windows[owner].on_committed(last) {
                    world.sender.settled[owner] = last;
                } else {
                    world.sender.windows[owner].on_lost();
                }
            }
            Answer::Refused(refusal) => {
                let source = self.source(&world.sender, owner);
                world.sender.windows[owner].on_refused(&refusal, &source, |_| None);
            }
        }
        self.skip_open(world, owner);
    }

    /// The planted sender that never asks: it says BEGIN, and goes on from its own durable floor.
    fn skip_open(&self, world: &mut World, owner: usize) {
        if self.rule == Rule::NoReopen && world.sender.windows[owner].needs_open() {
            let log_id = world.owners[owner].log_id();
            let source = self.source(&world.sender, owner);
            let made_up = Standing { log_id, appended: None, committed: None, hash: 0 };
            let mut window = SenderWindow::new(None, None);
            window.on_opened(&made_up, &source, |_| None);
            world.sender.windows[owner] = window;
        }
    }

    fn send(&self, world: &mut World, owner: usize, count: usize) {
        let position = world.sender.windows[owner].position().and_then(Prev::mark).unwrap_or(0);
        let records: Vec<(u64, u64)> =
            self.owed(&world.sender, owner).into_iter().filter(|(sequence, _)| *sequence > position).take(count).collect();
        let sequences: Vec<u64> = records.iter().map(|(sequence, _)| *sequence).collect();
        let last = *sequences.last().expect("sent only when something is owed");
        let ticket = world.sender.windows[owner].next_offer(&sequences, last).expect("sent only when ready");
        world.sender.is_waiting[owner] = true;
        let whole = Commit { log_id: ticket.log_id, prev: ticket.prev, records, last, is_gap: false };
        if self.rule == Rule::HighWaterDedup {
            // The planted pipeline: one packet a record, none of them saying what it follows.
            for (sequence, id) in &whole.records {
                world.put(owner, Body::Commit(Commit { records: vec![(*sequence, *id)], last: *sequence, ..whole.clone() }));
            }
        } else {
            world.put(owner, Body::Commit(whole));
        }
    }

    fn deliver(&self, world: &mut World, index: usize) {
        let Packet { owner, is_awaited, body } = world.network.remove(index);
        let answer = match body {
            Body::Open => Some(Answer::Opened(world.owners[owner].standing())),
            Body::Commit(commit) => {
                let lost = commit.is_gap.then(|| (commit.prev.mark().unwrap_or(0), commit.last));
                if let Some((_, through)) = lost.filter(|(_, through)| *through >= world.sender.retained_from) {
                    world.broken = Some(format!("a gap up to {through} was declared, and the source still has such records"));
                }
                world.owners[owner].on_commit(self.rule, &commit, is_awaited)
            }
            Body::Answer(answer) => return self.on_answer(world, owner, answer),
        };
        if let Some(answer) = answer {
            self.answer(world, owner, answer);
        }
    }

    fn answer(&self, world: &mut World, owner: usize, answer: Answer) {
        if let Answer::Committed { last } = answer {
            let visible = world.owners[owner].log[..world.owners[owner].synced].last().map_or(0, |entry| entry.end());
            if last > visible && !self.bounds.is_blind_to_answers {
                world.broken = Some(format!("answered {last} as committed, the high watermark is behind {visible}"));
            }
        }
        world.put(owner, Body::Answer(answer));
    }

    /// The oldest record that somebody is still owed, and that no file holds.
    fn checkpoint(&self, world: &World) -> u64 {
        let sender = &world.sender;
        let mut below = self.end(sender);
        for id in 1..=self.bounds.records {
            let is_pinned = |(owner, sequence): Place| {
                let is_elsewhere = self.rule == Rule::CheckpointPastMoved && sequence > self.bounds.records;
                let is_in_file = owner == 0 && sequence == id && sender.parked.contains(&id);
                sequence > sender.settled[owner] && sequence >= sender.retained_from && !is_elsewhere && !is_in_file
            };
            match self.place(sender, id) {
                Some(place) if is_pinned(place) => below = below.min(place.1),
                Some(_) => {}
                // Perhaps the last record that is surely there is the one that counts.
                None => below = below.min(id.max(sender.retained_from)),
            }
        }
        below
    }

    /// May this record be accepted anew for another partition?
    fn may_move(&self, sender: &Sender, owner: usize, sequence: u64, id: u64) -> bool {
        let window = &sender.windows[owner];
        let is_in_file = owner == 0 && sequence == id && sender.parked.contains(&id) && self.rule != Rule::MoveParked;
        let is_free = match self.rule {
            Rule::MoveInDoubt => !sender.is_waiting[owner] && sequence > window.confirmed().unwrap_or(0),
            _ => window.may_move(sequence),
        };
        is_free && !is_in_file && sequence > sender.settled[owner]
    }

    fn move_actions(&self, world: &World, actions: &mut Vec<Action>) {
        let sender = &world.sender;
        if sender.has_failed() {
            return;
        }
        for from in 0..self.bounds.owners {
            for (sequence, id) in self.owed(sender, from) {
                if !self.may_move(sender, from, sequence, id) {
                    continue;
                }
                for to in (0..self.bounds.owners).filter(|to| *to != from) {
                    if world.left.moves > 0 {
                        actions.push(Action::Move { id, to });
                    }
                    if world.left.failed_moves > 0 {
                        actions.extend([true, false].map(|is_found| Action::FailMove { id, to, is_found }));
                    }
                }
            }
        }
    }

    fn note_moved(&self, world: &mut World, id: u64, to: usize, written: Written) {
        let sequence = self.end(&world.sender);
        world.sender.moved.push(Moved { id, to, sequence, written });
        world.ever_moved.insert(id);
    }

    fn sender_actions(&self, world: &World, actions: &mut Vec<Action>) {
        let has_room = world.network.len() < self.bounds.packets;
        let sender = &world.sender;
        for owner in 0..self.bounds.owners {
            let window = &sender.windows[owner];
            if sender.is_waiting[owner] {
                actions.push(Action::GiveUp { owner });
                continue;
            }
            if !has_room || (owner > 0 && sender.moved.iter().all(|moved| moved.to != owner)) {
                continue;
            }
            let position = window.position().map(|position| position.mark().unwrap_or(0));
            if window.needs_open() {
                actions.push(Action::Open { owner });
            } else if window.needs_gap() {
                actions.push(Action::DeclareGap { owner });
            } else if let Some(position) = position {
                let owed = self.owed(sender, owner).iter().filter(|(sequence, _)| *sequence > position).count();
                let is_split = self.rule == Rule::HighWaterDedup;
                let most = if is_split { self.bounds.packets - world.network.len() } else { owed };
                // One at a time, or all there is: what lies between adds nothing but states.
                let mut counts = vec![1, owed.min(most)];
                counts.dedup();
                actions.extend(counts.into_iter().filter(|count| *count > 0 && owed > 0).map(|count| Action::Send { owner, count }));
            }
        }
        // A log that has failed takes nothing more until its node is started again.
        if world.left.sender_crashes > 0 || sender.has_failed() {
            actions.push(Action::CrashSender);
        }
        if self.bounds.has_checkpoints && self.checkpoint(world) > sender.retained_from {
            actions.push(Action::Checkpoint);
        }
        let is_parkable = |(sequence, id): &(u64, u64)| sequence == id && *sequence > sender.settled[0] && !sender.parked.contains(id);
        if world.left.parks > 0 && self.owed(sender, 0).iter().any(is_parkable) {
            actions.push(Action::Park);
        }
        self.move_actions(world, actions);
    }
}

impl Sender {
    /// Is it unknown whether a record of its log was written?
    fn has_failed(&self) -> bool {
        self.moved.iter().any(|moved| matches!(moved.written, Written::Unknown { .. }))
    }
}

impl World {
    fn put(&mut self, owner: usize, body: Body) {
        let packet = Packet { owner, is_awaited: true, body };
        let at = self.network.partition_point(|other| *other <= packet);
        self.network.insert(at, packet);
    }

    /// Nobody waits for this owner's answers: answers under way are ignored, so they can as well be gone, and so can opens.
    fn stop_waiting(&mut self, owner: usize) {
        self.network.retain(|packet| packet.owner != owner || matches!(packet.body, Body::Commit(_)));
        for packet in self.network.iter_mut().filter(|packet| packet.owner == owner) {
            packet.is_awaited = false;
        }
        self.network.sort_unstable();
        self.owners[owner].forget_waiting();
    }
}

impl Model for Streams {
    type State = World;
    type Action = Action;

    fn initial(&self) -> World {
        let Bounds { owners, sender_crashes, owner_crashes, failed_syncs, repeats, restores, moves, failed_moves, parks, .. } = self.bounds;
        let mut world = World {
            sender: self.reborn(1, Vec::new(), BTreeSet::new(), true),
            owners: (0..owners).map(|owner| Owner::new(LogId(owner as u128 * 100 + 1))).collect(),
            network: Vec::new(),
            left: Left { sender_crashes, owner_crashes, failed_syncs, repeats, restores, moves, failed_moves, parks },
            lost_by_restore: BTreeSet::new(),
            ever_moved: BTreeSet::new(),
            broken: None,
        };
        (0..owners).for_each(|owner| self.skip_open(&mut world, owner));
        world
    }

    fn actions(&self, world: &World) -> Vec<Action> {
        let mut actions = Vec::new();
        self.sender_actions(world, &mut actions);
        for (packet, what) in world.network.iter().enumerate() {
            // Of equal packets one is enough.
            if packet > 0 && world.network[packet - 1] == *what {
                continue;
            }
            actions.push(Action::Deliver { packet });
            // Losing an open or an answer is the same as waiting no longer for it.
            if matches!(what.body, Body::Commit(_)) {
                actions.push(Action::Drop { packet });
            }
            if world.left.repeats > 0 && world.network.len() < self.bounds.packets && matches!(what.body, Body::Commit(_)) {
                actions.push(Action::Repeat { packet });
            }
        }
        for (index, owner) in world.owners.iter().enumerate() {
            let unsynced = owner.unsynced();
            if unsynced > 0 || owner.has_waiting() {
                actions.push(Action::Sync { owner: index });
            }
            if unsynced > 0 && world.left.failed_syncs > 0 {
                actions.extend([Action::FailSync { owner: index }, Action::FailSyncKeepTail { owner: index }]);
            }
            if world.left.owner_crashes > 0 && (unsynced > 0 || owner.has_waiting()) {
                actions.extend((0..=unsynced).map(|kept| Action::CrashOwner { owner: index, kept }));
            }
            if world.left.restores > 0 {
                actions.extend((0..owner.synced).map(|kept| Action::Restore { owner: index, kept, is_new_log: false }));
                if owner.synced > 0 {
                    actions.push(Action::Restore { owner: index, kept: 0, is_new_log: true });
                }
            }
        }
        actions
    }

    fn apply(&self, world: &mut World, action: Action) -> Result<(), String> {
        match action {
            Action::Open { owner } => {
                world.sender.is_waiting[owner] = true;
                world.put(owner, Body::Open);
            }
            Action::Send { owner, count } => self.send(world, owner, count),
            Action::DeclareGap { owner } => {
                let ticket = world.sender.windows[owner].gap_offer().expect("declared only when due");
                world.sender.is_waiting[owner] = true;
                let commit = Commit { log_id: ticket.log_id, prev: ticket.prev, records: Vec::new(), last: ticket.last, is_gap: true };
                world.put(owner, Body::Commit(commit));
            }
            Action::GiveUp { owner } => {
                world.sender.is_waiting[owner] = false;
                world.stop_waiting(owner);
                world.sender.windows[owner].on_lost();
                self.skip_open(world, owner);
            }
            Action::Deliver { packet } => self.deliver(world, packet),
            Action::Drop { packet } => drop(world.network.remove(packet)),
            Action::Repeat { packet } => {
                world.left.repeats -= 1;
                let copy = world.network[packet].clone();
                world.network.insert(packet, copy);
            }
            Action::Sync { owner } => {
                for answer in world.owners[owner].on_synced() {
                    self.answer(world, owner, answer);
                }
            }
            Action::FailSync { owner } => {
                world.left.failed_syncs -= 1;
                world.owners[owner].on_sync_failed();
            }
            Action::FailSyncKeepTail { owner } => {
                world.left.failed_syncs -= 1;
                world.owners[owner].on_tail_rewritten(self.rule);
            }
            Action::CrashOwner { owner, kept } => {
                world.left.owner_crashes -= 1;
                let owner = &mut world.owners[owner];
                owner.reopen(owner.synced + kept, owner.log_id());
            }
            Action::Restore { owner, kept, is_new_log } => {
                world.left.restores -= 1;
                let owner = &mut world.owners[owner];
                let before = owner.visible();
                // A log that is created empty is another log.
                let log_id = if is_new_log { LogId(owner.log_id().0 + 1) } else { owner.log_id() };
                owner.reopen(kept, log_id);
                let lost: Vec<u64> = before.difference(&owner.visible()).copied().collect();
                owner.answered.retain(|id| !lost.contains(id));
                world.lost_by_restore.extend(lost);
            }
            Action::CrashSender => {
                if !world.sender.has_failed() {
                    world.left.sender_crashes -= 1;
                }
                let is_there = |moved: &Moved| matches!(moved.written, Written::Durable | Written::Unknown { is_found: true });
                let found = world.sender.moved.iter().copied().filter(is_there);
                let moved = found.map(|moved| Moved { written: Written::Durable, ..moved }).collect();
                let parked = world.sender.parked.clone();
                world.sender = self.reborn(world.sender.retained_from, moved, parked, false);
                for owner in 0..self.bounds.owners {
                    world.stop_waiting(owner);
                    self.skip_open(world, owner);
                }
            }
            Action::Checkpoint => world.sender.retained_from = self.checkpoint(world),
            Action::Move { id, to } => {
                world.left.moves -= 1;
                let written = if self.rule == Rule::MoveNotDurable { Written::Nowhere } else { Written::Durable };
                self.note_moved(world, id, to, written);
            }
            Action::FailMove { id, to, is_found } => {
                world.left.failed_moves -= 1;
                self.note_moved(world, id, to, Written::Unknown { is_found });
            }
            Action::Park => {
                world.left.parks -= 1;
                let owed = self.owed(&world.sender, 0).into_iter().filter(|(sequence, id)| sequence == id);
                let waiting: Vec<u64> = owed.filter(|(sequence, _)| *sequence > world.sender.settled[0]).map(|(_, id)| id).collect();
                world.sender.parked.extend(waiting);
            }
        }
        world.broken.take().map_or(Ok(()), Err)
    }

    fn check(&self, world: &World) -> Result<(), String> {
        let mut held = BTreeSet::new();
        for (index, owner) in world.owners.iter().enumerate() {
            let mut position = 0;
            for entry in &owner.log {
                if let Entry::Record { id, .. } = entry
                    && !held.insert(*id)
                {
                    return Err(format!("message {id} is held twice"));
                }
                if entry.end() <= position {
                    return Err(format!("log {index}: {entry:?} comes after sequence {position}"));
                }
                // Behind the messages come those that were moved: what is missing among them went elsewhere.
                if let (0, Entry::Record { sequence, .. }) = (index, entry)
                    && let Some(hole) = (position + 1..*sequence.min(&(self.bounds.records + 1))).find(|id| !world.ever_moved.contains(id))
                {
                    return Err(format!("log {index}: message {hole} is missing before {entry:?}, and no gap is declared"));
                }
                position = entry.end();
            }
            let visible = owner.visible();
            if let Some(id) = owner.answered.iter().find(|id| !visible.contains(id) && !owner.is_in_gap(**id)) {
                return Err(format!("message {id} was answered as committed, and log {index} does not hold it"));
            }
        }
        Ok(())
    }

    fn is_done(&self, world: &World) -> bool {
        let is_settled = !world.sender.has_failed()
            && (0..self.bounds.owners)
                .all(|owner| self.owed(&world.sender, owner).iter().all(|(sequence, _)| *sequence <= world.sender.settled[owner]));
        let is_held = |id: u64| world.owners.iter().any(|owner| owner.visible().contains(&id));
        let is_forgiven = |id: u64| world.lost_by_restore.contains(&id) && id < world.sender.retained_from;
        is_settled && (1..=self.bounds.records).all(|id| is_held(id) || is_forgiven(id))
    }

    fn kind(&self, action: Action) -> &'static str {
        match action {
            Action::Open { .. } => "open",
            Action::Send { .. } => "send",
            Action::DeclareGap { .. } => "declare gap",
            Action::GiveUp { .. } => "give up",
            Action::Deliver { .. } => "deliver",
            Action::Drop { .. } => "drop",
            Action::Repeat { .. } => "repeat",
            Action::Sync { .. } => "sync",
            Action::FailSync { .. } => "fail sync",
            Action::FailSyncKeepTail { .. } => "fail sync, keep tail",
            Action::CrashOwner { .. } => "crash owner",
            Action::Restore { .. } => "restore",
            Action::CrashSender => "crash sender",
            Action::Checkpoint => "checkpoint",
            Action::Move { .. } => "move",
            Action::FailMove { .. } => "fail move",
            Action::Park => "park",
        }
    }

    fn describe(&self, before: &World, action: Action) -> String {
        let packet = |index: usize| {
            let Packet { owner, is_awaited, body } = &before.network[index];
            let late = if *is_awaited { "" } else { "late " };
            match body {
                Body::Open => format!("open to owner {owner}"),
                Body::Commit(commit) => {
                    let sequences: Vec<u64> = commit.records.iter().map(|(sequence, _)| *sequence).collect();
                    let gap = if commit.is_gap { " (gap)" } else { "" };
                    format!("{late}commit {sequences:?} after {:?} to {}{gap} at owner {owner}", commit.prev, commit.last)
                }
                Body::Answer(answer) => format!("answer of owner {owner}: {answer:?}"),
            }
        };
        match action {
            Action::Deliver { packet: index } => format!("arrives: {}", packet(index)),
            Action::Drop { packet: index } => format!("lost: {}", packet(index)),
            Action::Repeat { packet: index } => format!("repeated: {}", packet(index)),
            Action::Send { owner, count } => format!("sender: sends {count} to owner {owner}"),
            Action::Open { owner } => format!("sender: opens at owner {owner}"),
            Action::GiveUp { owner } => format!("sender: waits no longer for owner {owner}"),
            Action::Move { id, to } => format!("sender: accepts message {id} anew for owner {to}"),
            Action::FailMove { id, to, is_found } => {
                let found = if is_found { "finds it" } else { "does not" };
                format!("sender: cannot sync that message {id} goes to owner {to}; its next life {found}")
            }
            other => format!("{other:?}"),
        }
    }
}
