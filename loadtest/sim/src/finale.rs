//! After the faults: disks and network are whole, every node starts, everything is read and settled, every copy converges, every wake comes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use veena_broker::message::Settle;
use veena_contract::TopicRecord;
use veena_loadtest_checker::{Down, NodeChange};
use veena_storage::disk::Disk as _;
use veena_storage::wal::Wal;

use crate::chance::Chance;
use crate::clients::Client;
use crate::clock::SimClock;
use crate::disk::Watch;
use crate::door::Door;
use crate::logs;
use crate::node::Node;
use crate::world::{Machine, World, name, tenant};

/// How long, in virtual time, the node may take to converge once nothing hurts it any more.
const CONVERGE_WITHIN_US: u64 = 120_000_000;
/// How often a topic may hand one drain nothing but what it was handed before; a frontier that goes back would make that endless.
const REPEATS_MAX: u32 = 3_000;
/// How many messages one node alone is asked for at once.
const DRAIN_AT_ONCE: u64 = 100;
const JUDGE: u32 = 950;
/// How late a parked consumer may be told; sweeps take a second.
const WAKE_WITHIN: Duration = Duration::from_millis(1_500);

/// The last life. Called inside a runtime of its own.
pub async fn judge(world: Arc<World>, mut chance: Chance) {
    world.time.begin_life();
    let machine = world.machine();
    SimClock::heal(std::iter::once(machine.clock.as_ref()));
    machine.mend();
    let disk = machine.disk.lock().clone();
    let watch = Watch::new(Arc::clone(&world.time), Arc::clone(&world.trace), Arc::clone(&world.tally));
    match Node::start(&world, &watch).await {
        Err(reason) => world.complain(format!("the node does not start on a healed disk: {reason}")),
        Ok(node) => {
            world.note_dead_time(machine);
            world.history.node(&machine.name, world.time.stamp_us(), NodeChange::Started);
            if let Err(reason) = node.create_topics(&world).await {
                world.complain(format!("topics cannot be created on a healed disk: {reason}"));
            }
            *world.children.lock() = node.links();
            let door = Door::Here(node.broker.clone(), Arc::clone(&machine.name));
            drain(&world, door, DRAIN_AT_ONCE, &mut chance).await;
            node.judge_tasks(&world);
            node.judge_counters(&world, &watch);
        }
    }
    disk.crash_kill();
    *machine.disk.lock() = disk.reopen();
    world.history.node(&machine.name, world.time.stamp_us(), NodeChange::Down(Down::Killed));
    check_files(&world, machine);
    watch.end();
    world.history.end_life();
    world.time.end_life(0);
}

/// What the node has left behind once everything was dispatched.
pub(crate) fn check_files(world: &World, machine: &Machine) {
    check_wal(world, machine);
    check_parked(world, machine);
}

/// The WAL as the node left it: its checkpoint has reached the end, and nothing in it is damaged.
fn check_wal(world: &World, machine: &Machine) {
    let dir = veena_broker::layout::ingress_dir(&machine.config.data_dir);
    let disk = Arc::new(machine.disk.lock().clone());
    match Wal::open(disk, &dir, machine.config.wal, machine.entropy.as_ref()) {
        Err(error) => world.complain(format!("the WAL cannot be opened after everything was dispatched: {error}")),
        Ok((_, opened)) => {
            if opened.checkpoint != opened.end {
                world.complain(format!("the WAL's checkpoint stands at {}, its end at {}", opened.checkpoint, opened.end));
            }
            if !opened.damage.is_empty() {
                world.complain(format!("the WAL reports damage, and nothing was damaged: {:?}", opened.damage));
            }
        }
    }
}

/// No file of parked records is left once everything is committed.
fn check_parked(world: &World, machine: &Machine) {
    let dir = veena_broker::layout::parked_dir(&machine.config.data_dir);
    match machine.disk.lock().list(&dir) {
        Err(error) => world.complain(format!("parked records cannot be listed: {error}")),
        Ok(left) if !left.is_empty() => world.complain(format!("files of parked records are left: {left:?}")),
        Ok(_) => {}
    }
}

/// Reads and settles everything through this door; says whether an end came.
pub(crate) async fn settle_all(world: &Arc<World>, door: Door, at_once: u64, chance: &mut Chance) -> bool {
    Last { world: Arc::clone(world), door, at_once }.converge(chance).await
}

/// Reads and settles everything through this door, looks whether waiting consumers are told, and compares the logs with each other.
pub(crate) async fn drain(world: &Arc<World>, door: Door, at_once: u64, chance: &mut Chance) {
    let mut once = Client { world: Arc::clone(world), door: door.clone(), number: JUDGE + 6, chance: world.once.fork() };
    once.settle_once().await;
    let last = Last { world: Arc::clone(world), door, at_once };
    if !last.converge(chance).await {
        return;
    }
    last.probe_wakes(chance).await;
    if !last.converge(chance).await {
        return;
    }
    // Time for the checkpoint to follow.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let judge = last.client(JUDGE, chance);
    for record in last.topics() {
        judge.observe(record.name.as_str()).await;
    }
    logs::check(world, &last.door).await;
}

struct Last {
    world: Arc<World>,
    door: Door,
    /// How many messages are taken with one request.
    at_once: u64,
}

impl Last {
    fn client(&self, number: u32, chance: &mut Chance) -> Client {
        Client { world: Arc::clone(&self.world), door: self.door.clone(), number, chance: chance.fork() }
    }

    fn topics(&self) -> Vec<Arc<TopicRecord>> {
        self.door.catalog().map(|view| view.topics.values().cloned().collect()).unwrap_or_default()
    }

    /// Reads and acks everything until nothing is owed any more.
    async fn converge(&self, chance: &mut Chance) -> bool {
        let give_up = self.world.time.now_us() + CONVERGE_WITHIN_US;
        let (mut seen, mut repeats) = (BTreeSet::new(), BTreeMap::new());
        let mut judge = self.client(JUDGE, chance);
        loop {
            let mut is_quiet = true;
            for record in self.topics() {
                loop {
                    judge.door.turn(&mut judge.chance);
                    let asked_us = self.world.time.now_us();
                    let taken = judge.take(record.name.as_str(), self.at_once, 0, false, None).await;
                    let Some((record, deliveries)) = taken else { break };
                    is_quiet = false;
                    for delivery in &deliveries {
                        let Some(lease) = delivery.lease else { continue };
                        let is_acked = judge.settle(&record, lease.handle, Settle::Ack).await;
                        let ends_us = asked_us + record.visibility_timeout_ms * 1000;
                        // What has aged meanwhile is nobody's to ack.
                        let is_kept = record.retention_ms == 0 && self.world.time.now_us() < ends_us;
                        if !is_acked && is_kept {
                            self.world.complain(format!("a fresh lease of {} cannot be acked: {}", record.name, lease.handle));
                        }
                    }
                    let places = deliveries.iter().map(|delivery| (record.id, delivery.partition, delivery.offset));
                    let new = places.filter(|place| seen.insert(*place)).count();
                    let count = repeats.entry(record.id).or_insert(0);
                    *count += u32::from(new == 0);
                    if *count > REPEATS_MAX {
                        self.world.complain(format!("{} is never empty: what was acked comes again and again", record.name));
                        return false;
                    }
                }
            }
            let owed = self.owed().await;
            if is_quiet && owed.is_empty() {
                return true;
            }
            if self.world.time.now_us() > give_up {
                self.world.complain(format!("the node does not converge: {}", owed.join("; ")));
                return false;
            }
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
    }

    /// What is not done yet, in words.
    async fn owed(&self) -> Vec<String> {
        let mut owed = Vec::new();
        let undispatched = self.door.undispatched();
        if undispatched > 0 {
            owed.push(format!("{undispatched} records are not dispatched"));
        }
        for record in self.topics() {
            let parent = Arc::clone(&record);
            let asked = self.door.ask(move |broker| async move {
                let lags = broker.child_lags(&tenant(), &parent.name, &parent.children).await;
                (lags, broker.describe(&tenant(), &parent.name, None).await.unwrap_or_default())
            });
            let Ok((lags, described)) = asked.await else {
                owed.push(format!("nobody answers for {}", record.name));
                continue;
            };
            for lag in lags {
                if lag.lag_messages > 0 || !lag.is_complete {
                    owed.push(format!("{} lags {} messages behind {}", lag.child, lag.lag_messages, record.name));
                }
            }
            for (index, stats) in described.into_iter().enumerate() {
                match stats {
                    None => owed.push(format!("{}/{index} is not open", record.name)),
                    Some(stats) if stats.frontier < stats.high_watermark => {
                        owed.push(format!("{}/{index} is settled to {}, visible to {}", record.name, stats.frontier, stats.high_watermark));
                    }
                    Some(_) => {}
                }
            }
        }
        owed
    }

    /// A parked consumer must be told of a message, of a nack and of a lease that ran out.
    async fn probe_wakes(&self, chance: &mut Chance) {
        let Some(plan) = self.world.plan.topics.iter().find(|plan| plan.name == "alpha") else { return };
        let Some(record) = self.topics().into_iter().find(|record| record.name == name(plan.name)) else { return };
        let mut producer = self.client(JUDGE + 1, chance);
        let park = |number, chance: &mut Chance| {
            let mut client = self.client(number, chance);
            async move {
                client.door.turn(&mut client.chance);
                client.take("alpha", 1, 30_000, false, None).await
            }
        };
        let within = |extra_ms: u64| WAKE_WITHIN + Duration::from_millis(extra_ms);
        // A message.
        let sent = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            producer.door.turn(&mut producer.chance);
            producer.produce_one("alpha").await
        };
        let (found, is_sent) = tokio::join!(tokio::time::timeout(within(20), park(JUDGE + 2, chance)), sent);
        let Ok(Some((_, first))) = found else {
            return self.world.complain(format!("a parked consumer was not told of a message (accepted: {is_sent})"));
        };
        // A nack.
        let mut settler = self.client(JUDGE + 3, chance);
        let Some(lease) = first.first().and_then(|delivery| delivery.lease) else { return };
        let nack = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            settler.settle(&record, lease.handle, Settle::Nack).await
        };
        let (found, is_nacked) = tokio::join!(tokio::time::timeout(within(20), park(JUDGE + 4, chance)), nack);
        if !matches!(found, Ok(Some(_))) {
            return self.world.complain(format!("a parked consumer was not told of a nack (applied: {is_nacked})"));
        }
        // A lease that ran out.
        let found = tokio::time::timeout(within(record.visibility_timeout_ms), park(JUDGE + 5, chance)).await;
        let Ok(Some((_, last))) = found else {
            return self.world.complain("a parked consumer was not told of a lease that ran out".to_owned());
        };
        let Some(lease) = last.first().and_then(|delivery| delivery.lease) else { return };
        if !settler.settle(&record, lease.handle, Settle::Ack).await {
            self.world.complain(format!("the last lease of {} cannot be acked", name("alpha")));
        }
    }
}
