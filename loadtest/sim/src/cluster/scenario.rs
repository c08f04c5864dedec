//! A run of several nodes, from an empty cluster to the last look: founded, used while it is hurt, healed, drained, compared.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use veena_broker::message::Settle;
use veena_contract::{PartitionIndex, limits};

use super::storm::{Faults, rage};
use super::{Cluster, Order, Stage, growth, moves};
use crate::chance::Chance;
use crate::clients::Client;
use crate::clock::SimClock;
use crate::door::Door;
use crate::finale;
use crate::life::End;
use crate::once;

/// How long a node may take to come up when nothing is in its way.
const UP_WITHIN: Duration = Duration::from_secs(60);
const TRIES_MAX: u32 = 100;
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// How long all nodes may take to know the same.
const SAME_WITHIN: Duration = Duration::from_secs(30);
/// How many messages are taken at once at the end: each is acked over the network, in time.
const DRAIN_AT_ONCE: u64 = 16;
/// The topic that every plan has.
const PROBED: &str = "alpha";
/// How long a message may be held up by a consumer that was told of it and is dead: until its claim is given up, and a sweep sees it.
const PASSED_ON_WITHIN: Duration = Duration::from_millis(limits::TOKEN_CLAIM_MS_MAX + 2 * limits::LEASE_SWEEP_MS);
const OBSERVER: u32 = 900;
const PROBE: u32 = 970;
const CONSUMERS: u32 = 100;

/// Runs it all. Called in the runtime outside of all nodes.
pub(crate) async fn run(cluster: Arc<Cluster>, faults: Faults, mut chance: Chance) {
    if !found(&cluster, &mut chance).await {
        return;
    }
    let has_moves = cluster.world.moves.is_on;
    let mut watch = JoinSet::new();
    if has_moves {
        watch.spawn(moves::watch(Arc::clone(&cluster)));
    }
    let mut clients = JoinSet::new();
    start_clients(&cluster, &mut chance, &mut clients);
    let span = chance.ms(3_000, 25_000);
    let mut stirred = JoinSet::new();
    if has_moves {
        stirred.spawn(moves::stir(Arc::clone(&cluster)));
        stirred.spawn(moves::haunt(Arc::clone(&cluster), faults));
        stirred.spawn(moves::replace(Arc::clone(&cluster), faults));
    }
    if cluster.world.moves.has_growth {
        let chance = cluster.world.moves.fork();
        stirred.spawn(growth::stir(Arc::clone(&cluster), chance));
    }
    let _ = tokio::time::timeout(span, rage(Arc::clone(&cluster), faults, &mut chance)).await;
    stirred.shutdown().await;
    clients.shutdown().await;
    if !heal(&cluster, &mut chance).await {
        return;
    }
    if has_moves {
        moves::end_all(&cluster).await;
    }
    if let Some(node) = cluster.node(0) {
        *cluster.world.children.lock() = node.links();
    }
    let door = Door::Among(Arc::clone(&cluster), 0);
    if finale::settle_all(&cluster.world, door.clone(), DRAIN_AT_ONCE, &mut chance).await {
        probe_dead_waiter(&cluster, &mut chance).await;
        finale::drain(&cluster.world, door, DRAIN_AT_ONCE, &mut chance).await;
    }
    moves::check_ownership(&cluster).await;
}

/// Founds the cluster, lets the others in, and creates what the plan has.
async fn found(cluster: &Arc<Cluster>, chance: &mut Chance) -> bool {
    let size = cluster.size();
    for at in 0..size {
        cluster.start(at);
        if at == 0 && !all_up(cluster, 1).await {
            return false;
        }
    }
    if !all_up(cluster, size).await {
        return false;
    }
    let has_voters = |cluster: &Cluster| {
        let voters = |node: crate::node::Node| node.metastore.status().members.iter().filter(|member| member.is_voter).count();
        cluster.nodes().all(|node| voters(node) == size)
    };
    if !cluster.until(UP_WITHIN, has_voters).await {
        cluster.world.complain("not every node becomes a voter, and nothing is in the way".to_owned());
        return false;
    }
    create_topics(cluster, chance).await
}

async fn create_topics(cluster: &Arc<Cluster>, chance: &mut Chance) -> bool {
    let mut reason = String::new();
    for _ in 0..TRIES_MAX {
        let (at, world) = (chance.index(cluster.size()), Arc::clone(&cluster.world));
        match cluster.ask(at, move |node| async move { node.create_topics(&world).await }).await {
            Ok(Ok(())) => return is_same_everywhere(cluster).await,
            Ok(Err(why)) => reason = why,
            Err(_) => "the node asked is gone".clone_into(&mut reason),
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
    cluster.world.complain(format!("topics cannot be created, and nothing is in the way: {reason}"));
    false
}

/// Do the first so many nodes come up?
async fn all_up(cluster: &Arc<Cluster>, count: usize) -> bool {
    let is_up = |cluster: &Cluster| (0..count).all(|at| cluster.stage(at) == Stage::Up);
    if cluster.until(UP_WITHIN, is_up).await {
        return true;
    }
    let stages: Vec<Stage> = (0..count).map(|at| cluster.stage(at)).collect();
    cluster.world.complain(format!("not every node starts, and nothing is in the way: {stages:?}"));
    false
}

/// Does every node come to show the same topics?
async fn is_same_everywhere(cluster: &Arc<Cluster>) -> bool {
    let is_same = |cluster: &Cluster| {
        let views: Vec<_> = cluster.nodes().map(|node| node.broker.catalog()).collect();
        views.windows(2).all(|pair| pair[0].applied == pair[1].applied && pair[0].topics == pair[1].topics)
    };
    if cluster.until(SAME_WITHIN, is_same).await {
        return true;
    }
    let applied: Vec<_> = cluster.nodes().map(|node| node.broker.catalog().applied).collect();
    cluster.world.complain(format!("the nodes do not come to show the same topics: applied {applied:?}"));
    false
}

fn start_clients(cluster: &Arc<Cluster>, chance: &mut Chance, clients: &mut JoinSet<()>) {
    let plan = &cluster.world.plan;
    let client = |number: u32, chance: Chance| {
        let (world, door) = (Arc::clone(&cluster.world), Door::Among(Arc::clone(cluster), 0));
        Client { world, door, number, chance }
    };
    if cluster.world.once.is_on {
        for number in 0..once::CLIENTS {
            clients.spawn(client(once::CLIENT + number, cluster.world.once.fork()).produce_once_each());
        }
    }
    let mut client = |number: u32| client(number, chance.fork());
    for number in 1..=plan.producers {
        clients.spawn(client(number).produce());
    }
    let mut number = CONSUMERS;
    for topic in &plan.topics {
        for _ in 0..plan.consumers {
            clients.spawn(client(number).consume(topic.name));
            number += 1;
        }
    }
    clients.spawn(client(OBSERVER).watch());
}

/// Mends everything. A node whose disk was hurt is started again, as an operator does; of the others, some are.
async fn heal(cluster: &Arc<Cluster>, chance: &mut Chance) -> bool {
    cluster.net.clear_up();
    SimClock::heal(cluster.world.machines.iter().map(|machine| machine.clock.as_ref()));
    for (at, machine) in cluster.world.machines.iter().enumerate() {
        machine.mend();
        let is_hurt = cluster.is_doomed(at) || cluster.watch(at).is_some_and(|watch| watch.has_hurt() || watch.is_cut());
        let goes_on = matches!(cluster.stage(at), Stage::Up | Stage::Starting);
        if is_hurt || !goes_on || chance.percent(40) {
            cluster.order(Order::End(at, *chance.pick(&[End::Kill, End::PowerCut])));
        }
    }
    tokio::time::sleep(TRY_AGAIN).await;
    (0..cluster.size()).for_each(|at| cluster.start(at));
    all_up(cluster, cluster.size()).await && create_topics(cluster, chance).await
}

/// A consumer waits, and another one waits before it at a node that dies: the message that the dead one is told of is not held up for long.
async fn probe_dead_waiter(cluster: &Arc<Cluster>, chance: &mut Chance) {
    let (world, size) = (&cluster.world, cluster.size());
    let Some(record) = cluster.node(0).and_then(|node| node.topic(PROBED)) else { return };
    let index = PartitionIndex(0);
    let Some(owner) = record.owner_of(index).and_then(|owner| cluster.place_of(&owner.node)) else { return };
    let dies = (owner + 1 + chance.index(size - 1)) % size;
    let mut client = |at: usize, number: u32| {
        let door = Door::Among(Arc::clone(cluster), at);
        Client { world: Arc::clone(world), door, number, chance: chance.fork() }
    };
    let mut park = |at: usize, number: u32| {
        let mut waiting = client(at, number);
        async move { waiting.take(PROBED, 1, 60_000, false, None).await }
    };
    let (before, behind) = (park(dies, PROBE), park(owner, PROBE + 1));
    let mut waiting = JoinSet::new();
    waiting.spawn(before);
    tokio::time::sleep(TRY_AGAIN).await;
    let mut producer = client(owner, PROBE + 2);
    let sent = async {
        tokio::time::sleep(TRY_AGAIN).await;
        cluster.order(Order::End(dies, End::Kill));
        producer.produce_to(PROBED, index).await
    };
    match tokio::join!(tokio::time::timeout(PASSED_ON_WITHIN, behind), sent) {
        (Ok(Some((record, found))), true) => {
            let mut settler = client(owner, PROBE + 3);
            for lease in found.iter().filter_map(|delivery| delivery.lease) {
                settler.settle(&record, lease.handle, Settle::Ack).await;
            }
        }
        (_, is_sent) => world.complain(format!("a message was held up by a dead consumer that waited before (accepted: {is_sent})")),
    }
    waiting.shutdown().await;
    cluster.start(dies);
    let _ = all_up(cluster, size).await;
}
