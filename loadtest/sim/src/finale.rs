//! After the faults: the disk is whole, the node starts, everything is read and settled, every copy converges, every wake comes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use veena_broker::message::Settle;
use veena_contract::TopicRecord;
use veena_loadtest_checker::{Down, NodeChange};
use veena_storage::disk::Disk as _;
use veena_storage::wal::Wal;

use crate::chance::Chance;
use crate::clients::Client;
use crate::disk::Watch;
use crate::life::note_dead_time;
use crate::logs;
use crate::node::Node;
use crate::world::{World, name, tenant};

/// How long, in virtual time, the node may take to converge once nothing hurts it any more.
const CONVERGE_WITHIN_US: u64 = 120_000_000;
/// How often one drain may ask a topic; a frontier that goes back would make it endless.
const DRAIN_ROUNDS_MAX: u32 = 3_000;
const JUDGE: u32 = 950;
/// How late a parked consumer may be told; sweeps take a second.
const WAKE_WITHIN: Duration = Duration::from_millis(1_500);

/// The last life. Called inside a runtime of its own.
pub async fn judge(world: Arc<World>, mut chance: Chance) {
    world.time.begin_life();
    world.time.heal();
    let disk = world.disk.lock().clone();
    disk.clear_faults();
    disk.set_capacity(u64::MAX);
    let watch = Watch::new(Arc::clone(&world.time), Arc::clone(&world.trace), Arc::clone(&world.tally));
    match Node::start(&world, &watch).await {
        Err(reason) => world.complain(format!("the node does not start on a healed disk: {reason}")),
        Ok(node) => {
            note_dead_time(&world);
            world.history.node(world.time.stamp_us(), NodeChange::Started);
            let last = Last { world: Arc::clone(&world), node: &node };
            last.judge(&mut chance).await;
            node.judge_tasks(&world);
            node.judge_counters(&world, &watch);
        }
    }
    disk.crash_kill();
    *world.disk.lock() = disk.reopen();
    world.history.node(world.time.stamp_us(), NodeChange::Down(Down::Killed));
    check_wal(&world);
    check_parked(&world);
    watch.end();
    world.history.end_life();
    world.time.end_life(0);
}

/// The WAL as the node left it: its checkpoint has reached the end, and nothing in it is damaged.
fn check_wal(world: &World) {
    let dir = veena_broker::layout::ingress_dir(&world.plan.config.data_dir);
    let disk = Arc::new(world.disk.lock().clone());
    match Wal::open(disk, &dir, world.plan.config.wal, world.entropy.as_ref()) {
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
fn check_parked(world: &World) {
    let dir = veena_broker::layout::parked_dir(&world.plan.config.data_dir);
    match world.disk.lock().list(&dir) {
        Err(error) => world.complain(format!("parked records cannot be listed: {error}")),
        Ok(left) if !left.is_empty() => world.complain(format!("files of parked records are left: {left:?}")),
        Ok(_) => {}
    }
}

struct Last<'a> {
    world: Arc<World>,
    node: &'a Node,
}

impl Last<'_> {
    async fn judge(&self, chance: &mut Chance) {
        if let Err(reason) = self.node.create_topics(&self.world).await {
            self.world.complain(format!("topics cannot be created on a healed disk: {reason}"));
        }
        *self.world.children.lock() = self.node.links();
        let chance_once = self.world.once.fork();
        let mut once = Client { world: Arc::clone(&self.world), broker: self.node.broker.clone(), number: JUDGE + 6, chance: chance_once };
        once.settle_once().await;
        if !self.converge(chance).await {
            return;
        }
        self.probe_wakes(chance).await;
        if !self.converge(chance).await {
            return;
        }
        // Time for the checkpoint to follow.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let judge = self.client(JUDGE, chance);
        for record in self.topics() {
            judge.observe(record.name.as_str()).await;
        }
        logs::check(&self.world, &self.node.broker).await;
    }

    fn client(&self, number: u32, chance: &mut Chance) -> Client {
        Client { world: Arc::clone(&self.world), broker: self.node.broker.clone(), number, chance: chance.fork() }
    }

    fn topics(&self) -> Vec<Arc<TopicRecord>> {
        self.node.broker.catalog().topics.values().cloned().collect()
    }

    /// Reads and acks everything until nothing is owed any more.
    async fn converge(&self, chance: &mut Chance) -> bool {
        let give_up = self.world.time.now_us() + CONVERGE_WITHIN_US;
        let mut rounds = BTreeMap::new();
        let mut judge = self.client(JUDGE, chance);
        loop {
            let mut is_quiet = true;
            for record in self.topics() {
                while let Some((record, deliveries)) = judge.take(record.name.as_str(), 100, 0, false, None).await {
                    is_quiet = false;
                    for delivery in &deliveries {
                        let Some(lease) = delivery.lease else { continue };
                        if !judge.settle(&record, lease.handle, Settle::Ack).await {
                            self.world.complain(format!("a fresh lease of {} cannot be acked: {}", record.name, lease.handle));
                        }
                    }
                    let count = rounds.entry(record.id).or_insert(0);
                    *count += 1;
                    if *count > DRAIN_ROUNDS_MAX {
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
        let broker = &self.node.broker;
        let mut owed = Vec::new();
        if broker.undispatched() > 0 {
            owed.push(format!("{} records are not dispatched", broker.undispatched()));
        }
        for record in self.topics() {
            for lag in broker.child_lags(&tenant(), &record.name, &record.children).await {
                if lag.lag_messages > 0 || !lag.is_complete {
                    owed.push(format!("{} lags {} messages behind {}", lag.child, lag.lag_messages, record.name));
                }
            }
            for (index, stats) in broker.describe(&tenant(), &record.name, None).await.unwrap_or_default().into_iter().enumerate() {
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
        let Some(record) = self.node.topic(plan.name) else { return };
        let mut producer = self.client(JUDGE + 1, chance);
        let park = |number, chance: &mut Chance| {
            let mut client = self.client(number, chance);
            async move { client.take("alpha", 1, 30_000, false, None).await }
        };
        let within = |extra_ms: u64| WAKE_WITHIN + Duration::from_millis(extra_ms);
        // A message.
        let sent = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            producer.produce_one("alpha").await
        };
        let (found, is_sent) = tokio::join!(tokio::time::timeout(within(20), park(JUDGE + 2, chance)), sent);
        let Ok(Some((_, first))) = found else {
            return self.world.complain(format!("a parked consumer was not told of a message (accepted: {is_sent})"));
        };
        // A nack.
        let settler = self.client(JUDGE + 3, chance);
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
