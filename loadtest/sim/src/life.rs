//! One life under faults: from a start, which may fail, to an end, which may be a crash at any call of the disk.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use veena_loadtest_checker::{Down, NodeChange};
use veena_storage::disk::Disk;
use veena_storage::disk::mem::{Fault, FaultKind, MemDisk, Op};

use crate::chance::Chance;
use crate::clients::Client;
use crate::disk::Watch;
use crate::door::Door;
use crate::node::Node;
use crate::once;
use crate::plan::Role;
use crate::tally::Kind;
use crate::world::World;

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The process is killed.
    Kill,
    /// The power goes.
    PowerCut,
    /// The power goes inside the last write.
    PowerCutInWrite,
    /// It is told to stop.
    Stop,
}

const OBSERVER: u32 = 900;
const CONSUMERS: u32 = 100;

/// Lives once. Called inside a runtime of its own, which is dropped afterwards with all that is left of the node.
pub async fn live(world: Arc<World>, mut chance: Chance, mut aside: Chance) {
    world.time.begin_life();
    let machine = world.machine();
    machine.mend();
    let disk = machine.disk.lock().clone();
    let watch = Watch::new(Arc::clone(&world.time), Arc::clone(&world.trace), Arc::clone(&world.tally));
    let end = *chance.pick(&[End::Kill, End::Kill, End::PowerCut, End::PowerCut, End::PowerCutInWrite, End::Stop, End::Stop]);
    let life = Life { world: Arc::clone(&world), watch, end };
    let mut is_hurt = false;
    if end != End::Stop && chance.percent(15) {
        disk.cut_power_at(chance.below(60));
    } else if chance.percent(12) {
        is_hurt = true;
        disk.inject(any_fault(&mut chance));
    }
    match Node::start(&world, &life.watch).await {
        Ok(node) => {
            let started = world.time.stamp_us();
            world.note_dead_time(machine);
            world.history.node(&machine.name, started, NodeChange::Started);
            life.run(&node, &mut chance, &mut aside).await;
            node.judge_counters(&world, &life.watch);
        }
        Err(reason) => {
            if !life.watch.is_cut() && !is_hurt {
                world.complain(format!("the node does not start, and nothing was in its way: {reason}"));
            }
            world.tally.add(Kind::DeathAtStart);
            life.crash(&mut chance);
        }
    }
    if life.watch.has_hurt_settle() {
        *world.has_hurt_settle.lock() = true;
    }
    life.watch.end();
    world.history.end_life();
    world.time.end_life(chance.between(0, 3_000_000));
}

struct Life {
    world: Arc<World>,
    watch: Arc<Watch>,
    end: End,
}

impl Life {
    async fn run(&self, node: &Node, chance: &mut Chance, aside: &mut Chance) {
        let mut clients = JoinSet::new();
        // A child of the start must be there before the first message.
        let mut tries = 0;
        while let Err(reason) = node.create_topics(&self.world).await {
            tries += 1;
            if tries == 4 {
                self.world.machine().disk.lock().clear_faults();
            }
            if self.watch.is_cut() || tries > 80 {
                if !self.watch.is_cut() {
                    self.world.complain(format!("topics cannot be created: {reason}"));
                }
                return self.crash(chance);
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        self.start_clients(node, chance, &mut clients);
        let is_inside = self.end != End::Stop && chance.percent(65);
        let span = chance.ms(200, 4_000) + if self.world.plan.has_stuck { aside.ms(2_000, 15_000) } else { Duration::ZERO };
        let both = async { tokio::join!(self.turmoil(node, chance), self.hold(aside)) };
        let turmoil = tokio::time::timeout(span, both);
        tokio::select! {
            biased;
            () = self.watch.cut() => {}
            ended = turmoil => drop(ended),
        }
        node.judge_tasks(&self.world);
        if self.end == End::Stop {
            return self.stop(node, chance).await;
        }
        if is_inside && !self.watch.is_cut() {
            self.world.machine().disk.lock().cut_power_at(chance.below(40));
            let _ = tokio::time::timeout(Duration::from_secs(3), self.watch.cut()).await;
        }
        if self.watch.is_cut() {
            for _ in 0..chance.below(30) {
                tokio::task::yield_now().await;
            }
            let look = self.client(node, OBSERVER + 1, chance).last_look();
            let _ = tokio::time::timeout(Duration::from_millis(5), look).await;
        }
        self.crash(chance);
    }

    fn client(&self, node: &Node, number: u32, chance: &mut Chance) -> Client {
        let door = Door::Here(node.broker.clone(), Arc::clone(&self.world.machine().name));
        Client { world: Arc::clone(&self.world), door, number, chance: chance.fork() }
    }

    fn start_clients(&self, node: &Node, chance: &mut Chance, clients: &mut JoinSet<()>) {
        for number in 1..=self.world.plan.producers {
            clients.spawn(self.client(node, number, chance).produce());
        }
        if self.world.once.is_on {
            for number in 0..once::CLIENTS {
                clients.spawn(self.client(node, once::CLIENT + number, &mut self.world.once.fork()).produce_once_each());
            }
        }
        let mut number = CONSUMERS;
        for topic in &self.world.plan.topics {
            for _ in 0..self.world.plan.consumers {
                clients.spawn(self.client(node, number, chance).consume(topic.name));
                number += 1;
            }
        }
        clients.spawn(self.client(node, OBSERVER, chance).watch());
    }

    /// Faults and changes of the catalog, until dropped.
    async fn turmoil(&self, node: &Node, chance: &mut Chance) {
        let disk = self.world.machine().disk.lock().clone();
        let is_calm = chance.percent(20);
        loop {
            let pause = chance.ms(10, 700);
            tokio::time::sleep(pause).await;
            if is_calm {
                continue;
            }
            match chance.below(12) {
                0..=4 => disk.inject(any_fault(chance)),
                5 => self.fill(&disk, chance).await,
                6 => {
                    let by: i64 = *chance.pick(&[900, 5_000, 90_000]);
                    self.world.machine().clock.jump(if chance.percent(50) { by } else { -by });
                    self.world.tally.add(Kind::ClockJump);
                }
                7 => {
                    let at = self.world.time.stamp_us();
                    let still = chance.ms(50, 2_500);
                    tokio::time::advance(still).await;
                    self.world.history.node(&self.world.machine().name, at, NodeChange::Paused);
                    self.world.tally.add(Kind::Pause);
                }
                8 | 9 => self.change_catalog(node, chance).await,
                _ => disk.clear_faults(),
            }
        }
    }

    /// Now and then the logs of one partition index take nothing, long enough that it is parked, until dropped. At times the files of parked
    /// records are hurt too.
    async fn hold(&self, aside: &mut Chance) {
        if !self.world.plan.has_stuck {
            return;
        }
        let disk = self.world.machine().disk.lock().clone();
        loop {
            tokio::time::sleep(aside.ms(0, 1_500)).await;
            let path_contains = format!("/p{:05}", aside.below(3));
            let ends = tokio::time::Instant::now() + aside.ms(1_500, 9_000);
            while tokio::time::Instant::now() < ends {
                for op in [Op::Create, Op::Write, Op::Sync] {
                    disk.inject(Fault { op, path_contains: path_contains.clone(), after: 0, times: 20, kind: FaultKind::Eio });
                }
                if aside.percent(5) {
                    disk.inject(parked_fault(aside));
                }
                tokio::time::sleep(aside.ms(20, 200)).await;
            }
            disk.clear_faults();
        }
    }

    /// The disk is full for a while, and then has room.
    async fn fill(&self, disk: &MemDisk, chance: &mut Chance) {
        let Ok(space) = disk.space("/data".as_ref()) else { return };
        disk.set_capacity((space.total - space.available).saturating_add(chance.below(64 * 1024)));
        let pause = chance.ms(50, 1_500);
        tokio::time::sleep(pause).await;
        disk.set_capacity(u64::MAX);
    }

    async fn change_catalog(&self, node: &Node, chance: &mut Chance) {
        let world = &self.world;
        let plans: Vec<_> = world.plan.topics.iter().filter(|plan| matches!(plan.role, Role::Doomed | Role::Late)).collect();
        if plans.is_empty() {
            return;
        }
        let plan = *chance.pick(&plans);
        let (is_there, is_doomed) = (node.topic(plan.name).is_some(), plan.role == Role::Doomed);
        if is_there && is_doomed {
            if node.delete_topic(world, plan.name).await.is_ok() {
                world.tally.add(Kind::TopicDeleted);
            }
        } else if !is_there && node.create_topic(world, plan).await.is_ok() {
            world.tally.add(if is_doomed { Kind::TopicRecreated } else { Kind::ChildAttached });
        }
    }

    /// The life ends by a crash, here and now.
    fn crash(&self, chance: &mut Chance) {
        let (world, is_cut) = (&self.world, self.watch.is_cut());
        let machine = world.machine();
        let mut disk = machine.disk.lock();
        let (kind, down) = crash_disk(&disk, self.end, is_cut, &mut || chance.next_u64());
        *disk = disk.reopen();
        world.tally.add(kind);
        world.trace.line(&format!("{} {kind:?}", world.time.now_us()));
        let now = world.time.stamp_us();
        machine.died_at.lock().get_or_insert(now);
        world.history.node(&machine.name, now, NodeChange::Down(down));
    }

    /// The life ends by a clean stop; sometimes the power goes right after it.
    async fn stop(&self, node: &Node, chance: &mut Chance) {
        let world = &self.world;
        let at = world.time.stamp_us();
        if let Err(reason) = node.stop().await {
            world.complain(reason);
        }
        // A stop that could not write settle state forgets as a crash does; the node said so.
        let down = if self.watch.has_hurt_settle() { Down::PowerCut } else { Down::Stopped };
        let machine = world.machine();
        let mut disk = machine.disk.lock();
        if chance.percent(35) {
            disk.crash_power(&mut || chance.next_u64());
            world.tally.add(Kind::StopThenPowerCut);
        } else {
            disk.crash_kill();
            world.tally.add(Kind::Stop);
        }
        *disk = disk.reopen();
        machine.died_at.lock().get_or_insert(world.time.stamp_us());
        world.history.node(&machine.name, at, NodeChange::Down(down));
    }
}

/// What an unclean end does to the disk, and what it is called.
pub(crate) fn crash_disk(disk: &MemDisk, end: End, is_cut: bool, random: &mut dyn FnMut() -> u64) -> (Kind, Down) {
    match end {
        End::Kill | End::Stop => {
            disk.crash_kill();
            (if is_cut { Kind::KillInside } else { Kind::Kill }, Down::Killed)
        }
        End::PowerCut => {
            disk.crash_power(random);
            (if is_cut { Kind::PowerCutInside } else { Kind::PowerCut }, Down::PowerCut)
        }
        End::PowerCutInWrite => {
            disk.crash_power_in_write(random);
            (Kind::PowerCutInWrite, Down::PowerCut)
        }
    }
}

/// A fault of the files of parked records.
fn parked_fault(aside: &mut Chance) -> Fault {
    let op = *aside.pick(&[Op::Create, Op::Write, Op::Sync, Op::Rename, Op::SyncDir, Op::Remove, Op::Read]);
    let kind = if op == Op::Write && aside.percent(50) { FaultKind::Error(std::io::ErrorKind::StorageFull) } else { FaultKind::Eio };
    Fault { op, path_contains: "/parked".to_owned(), after: aside.below(4), times: *aside.pick(&[1, 1, 5]), kind }
}

/// A fault of the file system: of which calls, on which files, how often.
pub(crate) fn any_fault(chance: &mut Chance) -> Fault {
    let areas = ["/ingress", "/topics", "/topics", "/topics", "/settle", ""];
    let path_contains = (*chance.pick(&areas)).to_owned();
    let (op, kind) = match chance.below(11) {
        0..=3 => (Op::Sync, FaultKind::Eio),
        4 => (Op::SyncDir, FaultKind::Eio),
        5 => (Op::Write, FaultKind::Eio),
        6 => (Op::Write, FaultKind::ErrorAfter(chance.index(300))),
        7 | 8 => (Op::Write, FaultKind::ShortWrite(1 + chance.index(100))),
        9 => (Op::Read, FaultKind::Eio),
        _ => (Op::Create, FaultKind::Eio),
    };
    let times = if matches!(kind, FaultKind::ShortWrite(_)) { chance.between(1, 40) } else { *chance.pick(&[1, 1, 2, 20]) };
    Fault { op, path_contains, after: chance.below(12), times, kind }
}
