//! Moves the runtimes of all nodes on together. A runtime whose time is paused goes on until nothing is left to do, and then to its next
//! timer: told to sleep for a millisecond, it does exactly what it has to do in that millisecond. So the nodes take turns, in an order drawn
//! anew each time; what they say to each other arrives between the turns. One that stands still gets no turn, and finds its clock gone on.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, RngSeed, Runtime};
use tokio::time::Instant;
use veena_loadtest_checker::{Down, NodeChange};

use super::{Cluster, Finds, Order, Seat, Stage, member};
use crate::chance::Chance;
use crate::disk::Watch;
use crate::life::{End, crash_disk};
use crate::tally::Kind;

const TICK: Duration = Duration::from_millis(1);
const TICK_US: u64 = 1_000;
/// No run takes as much virtual time as this.
const TICKS_MAX: u64 = 2_000_000;

/// A runtime that goes on when it is told to.
struct Steps {
    runtime: Runtime,
    /// How late it is in it.
    now: Instant,
}

impl Steps {
    fn new(seed: u64) -> Self {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .rng_seed(RngSeed::from_bytes(&seed.to_be_bytes()))
            .build()
            .expect("invariant: a runtime without I/O needs nothing of the system");
        let now = runtime.block_on(async { Instant::now() });
        Self { runtime, now }
    }

    /// One tick; before it, what was missed goes by at once.
    fn step(&mut self, missed: Duration) {
        self.now += missed + TICK;
        let until = self.now;
        self.runtime.block_on(async move {
            if !missed.is_zero() {
                tokio::time::advance(missed).await;
            }
            tokio::time::sleep_until(until).await;
        });
    }
}

/// A node that stands still.
struct Still {
    since_us: u64,
    missed: Duration,
    left: Duration,
}

/// A running process.
struct Process {
    steps: Steps,
    watch: Arc<Watch>,
    finds: Finds,
    still: Option<Still>,
}

/// Drives a cluster.
pub struct Driver {
    cluster: Arc<Cluster>,
    chance: Chance,
    processes: Vec<Option<Process>>,
    outside: Steps,
    tick: u64,
}

impl Driver {
    /// Nothing runs yet.
    #[must_use]
    pub fn new(cluster: Arc<Cluster>, mut chance: Chance) -> Self {
        let processes = (0..cluster.size()).map(|_| None).collect();
        let outside = Steps::new(chance.next_u64());
        Self { cluster, chance, processes, outside, tick: 0 }
    }

    /// Runs what happens outside of the nodes to its end, and the nodes with it; then all nodes die.
    pub fn run(mut self, scenario: impl Future<Output = ()> + Send + 'static) {
        let mut scenario = Some(self.outside.runtime.spawn(scenario));
        while let Some(running) = scenario.take_if(|running| !running.is_finished()) {
            if self.tick == TICKS_MAX {
                self.cluster.world.complain("the run does not end".to_owned());
                return;
            }
            self.step();
            scenario = Some(running);
        }
        (0..self.processes.len()).for_each(|at| self.end(at, End::Kill, false));
        if let Some(ended) = scenario
            && let Err(failed) = self.outside.runtime.block_on(ended)
        {
            self.cluster.world.complain(format!("the scenario broke: {failed}"));
        }
    }

    fn step(&mut self) {
        self.cluster.world.time.set_us(self.tick * TICK_US);
        self.cluster.net.deliver(self.tick);
        let mut turns: Vec<usize> = (0..self.processes.len()).collect();
        for left in (1..turns.len()).rev() {
            turns.swap(left, self.chance.index(left + 1));
        }
        turns.into_iter().for_each(|at| self.turn(at));
        self.outside.step(Duration::ZERO);
        let orders = std::mem::take(&mut *self.cluster.orders.lock());
        for order in orders {
            match order {
                Order::Start(at, finds) => self.start(at, finds),
                Order::End(at, how) => self.end(at, how, true),
                Order::Pause(at, span) => self.pause(at, span),
            }
        }
        self.tick += 1;
    }

    fn turn(&mut self, at: usize) {
        let Some(process) = &mut self.processes[at] else { return };
        let mut missed = Duration::ZERO;
        if let Some(still) = &mut process.still {
            if !still.left.is_zero() {
                still.left = still.left.saturating_sub(TICK);
                still.missed += TICK;
                return;
            }
            missed = still.missed;
            self.cluster.world.history.node(&self.cluster.world.machines[at].name, still.since_us, NodeChange::Paused);
            process.still = None;
        }
        process.steps.step(missed);
    }

    fn start(&mut self, at: usize, finds: Finds) {
        if self.processes[at].is_some() {
            return;
        }
        let world = &self.cluster.world;
        let watch = Watch::new(Arc::clone(&world.time), Arc::clone(&world.trace), Arc::clone(&world.tally));
        let steps = Steps::new(self.chance.next_u64());
        let seat = Seat {
            stage: Stage::Starting,
            handle: Some(steps.runtime.handle().clone()),
            watch: Some(Arc::clone(&watch)),
            is_doomed: finds == Finds::Nothing,
            ..Seat::default()
        };
        *self.cluster.seats[at].lock() = seat;
        world.trace.line(&format!("{} {} starts and finds {finds:?}", world.time.now_us(), world.machines[at].name));
        drop(steps.runtime.spawn(member::boot(Arc::clone(&self.cluster), at, finds, Arc::clone(&watch))));
        self.processes[at] = Some(Process { steps, watch, finds, still: None });
    }

    fn pause(&mut self, at: usize, span: Duration) {
        let world = &self.cluster.world;
        if let Some(process) = self.processes[at].as_mut().filter(|process| process.still.is_none()) {
            process.still = Some(Still { since_us: world.time.stamp_us(), missed: Duration::ZERO, left: span });
            world.tally.add(Kind::Pause);
        }
    }

    /// The process ends here and now; with it, what it had in memory.
    fn end(&mut self, at: usize, how: End, is_counted: bool) {
        let Some(process) = self.processes[at].take() else { return };
        let world = Arc::clone(&self.cluster.world);
        let (machine, watch) = (&world.machines[at], &process.watch);
        self.cluster.net.hang_up(at);
        let Seat { stage, node, .. } = std::mem::take(&mut *self.cluster.seats[at].lock());
        if process.finds == Finds::Nothing {
            // It leaves nothing that anybody will find.
            watch.end();
            return;
        }
        if let Some(still) = &process.still {
            world.history.node(&machine.name, still.since_us, NodeChange::Paused);
        }
        if let Some(node) = node {
            if stage == Stage::Up {
                node.judge_tasks(&world);
            }
            node.judge_counters(&world, watch);
            if is_counted && node.metastore.status().leader == Some(machine.id()) {
                world.tally.add(Kind::LeaderEnded);
            }
        }
        let chance = &mut self.chance;
        let mut random = || chance.next_u64();
        let mut disk = machine.disk.lock();
        let (kind, down) = match (&stage, how) {
            (Stage::Stopped(_), End::PowerCut | End::PowerCutInWrite) => {
                disk.crash_power(&mut random);
                (Kind::StopThenPowerCut, Down::Stopped)
            }
            (Stage::Stopped(_), _) => {
                disk.crash_kill();
                (Kind::Stop, Down::Stopped)
            }
            _ => crash_disk(&disk, how, watch.is_cut(), &mut random),
        };
        *disk = disk.reopen();
        drop(disk);
        if matches!(how, End::PowerCut | End::PowerCutInWrite) {
            // The mark of what was committed is written and not synced.
            machine.catalog_log.lose_committed(self.chance.below(4));
        }
        // A stop that could not write settle state forgets as a crash does; the node said so.
        let down = if down == Down::Stopped && watch.has_hurt_settle() { Down::PowerCut } else { down };
        if watch.has_hurt_settle() {
            *world.has_hurt_settle.lock() = true;
        }
        if is_counted {
            world.tally.add(kind);
            if matches!(stage, Stage::Starting | Stage::Failed(_)) {
                world.tally.add(Kind::DeathAtStart);
            }
        }
        let now = world.time.stamp_us();
        world.trace.line(&format!("{now} {} {kind:?}", machine.name));
        machine.died_at.lock().get_or_insert(now);
        let since = if let Stage::Stopped(since) = stage { since } else { now };
        world.history.node(&machine.name, since, NodeChange::Down(down));
        watch.end();
        drop(process.steps);
    }
}
