//! What goes wrong with nodes and between them, until it is dropped: ends of every kind, disks, clocks, standing still, and the network.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use veena_contract::{LeaderPort as _, TopicId};
use veena_storage::disk::Disk as _;

use super::net::Weather;
use super::{Cluster, Finds, Order, Stage};
use crate::chance::Chance;
use crate::life::{End, any_fault};
use crate::plan::Role;
use crate::tally::Kind;

/// How long a planned power cut is waited for; a node that writes nothing does not meet it.
const CUT_WITHIN: Duration = Duration::from_secs(3);
/// How long a clean stop may take: the calls of other nodes that it serves end with their callers' patience.
const STOP_WITHIN: Duration = Duration::from_secs(60);

/// Which kinds of faults a run has.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Nodes die, are killed, stop, and start again.
    pub ends: bool,
    /// Disks fail and are full.
    pub disks: bool,
    /// Wall clocks jump.
    pub clocks: bool,
    /// Nodes stand still.
    pub pauses: bool,
    /// Messages are lost and late, directions are cut.
    pub net: bool,
    /// Topics come and go.
    pub catalog: bool,
}

impl Faults {
    /// Some kinds, by chance; seldom none.
    #[must_use]
    pub fn any(chance: &mut Chance) -> Self {
        let is_calm = chance.percent(5);
        let mut some = |percent| chance.percent(percent) && !is_calm;
        Self { ends: some(75), disks: some(45), clocks: some(50), pauses: some(60), net: some(80), catalog: some(80) }
    }
}

/// Everything that is to go wrong, side by side, until dropped.
pub(super) async fn rage(cluster: Arc<Cluster>, faults: Faults, chance: &mut Chance) {
    let mut all = JoinSet::new();
    for at in 0..cluster.size() {
        all.spawn(Storm { cluster: Arc::clone(&cluster), faults, chance: chance.fork() }.over_node(at));
    }
    let storm = |chance: &mut Chance| Storm { cluster: Arc::clone(&cluster), faults, chance: chance.fork() };
    all.spawn(storm(chance).over_several());
    all.spawn(storm(chance).over_net());
    all.spawn(storm(chance).over_catalog());
    while all.join_next().await.is_some() {}
    std::future::pending::<()>().await;
}

struct Storm {
    cluster: Arc<Cluster>,
    faults: Faults,
    chance: Chance,
}

impl Storm {
    async fn rest(&mut self, from_ms: u64, to_ms: u64) {
        let pause = self.chance.ms(from_ms, to_ms);
        tokio::time::sleep(pause).await;
    }

    fn any_end(&mut self) -> End {
        *self.chance.pick(&[End::Kill, End::Kill, End::PowerCut, End::PowerCut, End::PowerCutInWrite, End::Stop])
    }

    /// What happens to one node.
    async fn over_node(mut self, at: usize) {
        loop {
            self.rest(50, 3_000).await;
            match self.cluster.stage(at) {
                Stage::Up => self.hurt(at).await,
                Stage::Failed(reason) => self.start_again(at, &reason).await,
                Stage::Down | Stage::Starting | Stage::Stopping(_) | Stage::Stopped(_) => {}
            }
        }
    }

    async fn hurt(&mut self, at: usize) {
        let world = Arc::clone(&self.cluster.world);
        let machine = &world.machines[at];
        let disk = machine.disk.lock().clone();
        match self.chance.below(12) {
            0..=3 if self.faults.ends => {
                self.end(at).await;
                let longest = *self.chance.pick(&[1_000, 2_500, 2_500, 20_000]);
                self.rest(2, longest).await;
                // The founder is told to found, whatever it finds.
                if at > 0 && self.chance.percent(15) {
                    self.start_with_nothing(at).await;
                }
                self.start(at).await;
            }
            4..=6 if self.faults.disks => disk.inject(any_fault(&mut self.chance)),
            7 if self.faults.disks => {
                let Ok(space) = disk.space(&machine.config.data_dir) else { return };
                disk.set_capacity((space.total - space.available).saturating_add(self.chance.below(64 * 1024)));
                self.rest(50, 1_500).await;
                disk.set_capacity(u64::MAX);
            }
            8 => disk.clear_faults(),
            9 if self.faults.clocks => {
                let by: i64 = *self.chance.pick(&[900, 5_000, 90_000]);
                machine.clock.jump(if self.chance.percent(50) { by } else { -by });
                world.tally.add(Kind::ClockJump);
            }
            10 | 11 if self.faults.pauses => {
                let longest = *self.chance.pick(&[300, 2_500, 12_000]);
                let span = self.chance.ms(50, longest);
                self.cluster.order(Order::Pause(at, span));
            }
            _ => {}
        }
    }

    /// A node ends somehow.
    async fn end(&mut self, at: usize) {
        let (cluster, how) = (Arc::clone(&self.cluster), self.any_end());
        if how == End::Stop {
            cluster.stop(at);
            let is_stopping = |cluster: &Cluster| matches!(cluster.stage(at), Stage::Stopping(_));
            if !cluster.until(STOP_WITHIN, |cluster| !is_stopping(cluster)).await {
                cluster.world.complain(format!("{} does not stop within {STOP_WITHIN:?}", cluster.world.machines[at].name));
            }
            let how = if self.chance.percent(35) { End::PowerCut } else { End::Kill };
            return cluster.order(Order::End(at, how));
        }
        if self.chance.percent(65) {
            cluster.doom(at, self.chance.below(40));
            let _ = cluster.until(CUT_WITHIN, |cluster| cluster.watch(at).is_none_or(|watch| watch.is_cut())).await;
            // The disk is dead, and the processor is not: what it says now, it has said.
            self.rest(0, 5).await;
        }
        cluster.order(Order::End(at, how));
    }

    /// A node starts, and at times dies while it does.
    async fn start(&mut self, at: usize) {
        let cluster = Arc::clone(&self.cluster);
        cluster.start(at);
        while self.chance.percent(15) {
            let is_cut = self.chance.percent(60);
            if is_cut {
                let call = self.chance.below(60);
                let _ = cluster.until(CUT_WITHIN, |cluster| cluster.stage(at) == Stage::Starting).await;
                cluster.doom(at, call);
            }
            let is_dying = |cluster: &Cluster| cluster.watch(at).is_none_or(|watch| watch.is_cut());
            let patience = self.chance.ms(0, 1_500);
            let _ = cluster.until(patience, is_dying).await;
            let how = match self.any_end() {
                End::Stop => End::Kill,
                how => how,
            };
            cluster.order(Order::End(at, how));
            self.rest(2, 500).await;
            cluster.start(at);
        }
    }

    /// A node that has lost its directory is not let in; then the directory is put back.
    async fn start_with_nothing(&mut self, at: usize) {
        let cluster = Arc::clone(&self.cluster);
        let patience = self.chance.ms(100, 6_000);
        cluster.order(Order::Start(at, Finds::Nothing));
        if cluster.until(patience, |cluster| matches!(cluster.stage(at), Stage::Failed(_))).await {
            cluster.world.tally.add(Kind::DirectoryLost);
        }
        cluster.order(Order::End(at, End::Kill));
        self.rest(2, 300).await;
    }

    /// A node did not start. That needs a reason.
    async fn start_again(&mut self, at: usize, reason: &str) {
        let world = &self.cluster.world;
        let is_hurt = self.cluster.watch(at).is_some_and(|watch| watch.is_cut() || watch.has_hurt());
        if !is_hurt {
            world.complain(format!("{} does not start, and nothing was in its way: {reason}", world.machines[at].name));
        }
        world.machines[at].mend();
        self.cluster.order(Order::End(at, End::Kill));
        self.rest(2, 500).await;
        self.start(at).await;
    }

    /// Several nodes end at one moment, or all.
    async fn over_several(mut self) {
        if !self.faults.ends {
            return;
        }
        loop {
            self.rest(1_000, 20_000).await;
            let size = self.cluster.size();
            let spared = if self.chance.percent(50) { self.chance.index(size) } else { size };
            let is_power = self.chance.percent(50);
            let (cluster, mut ended) = (Arc::clone(&self.cluster), 0);
            for at in (0..size).filter(|at| *at != spared) {
                ended += u64::from(cluster.stage(at) != Stage::Down);
                cluster.order(Order::End(at, if is_power { End::PowerCut } else { End::Kill }));
            }
            if ended > 1 {
                cluster.world.tally.add(if spared == size { Kind::AllEnded } else { Kind::SeveralEnded });
            }
            self.rest(2, 2_000).await;
            for at in (0..size).filter(|at| *at != spared) {
                cluster.start(at);
                self.rest(0, 400).await;
            }
        }
    }

    /// The network.
    async fn over_net(mut self) {
        if !self.faults.net {
            return;
        }
        loop {
            self.rest(100, 3_000).await;
            self.cluster.net.clear_up();
            self.rest(0, 2_000).await;
            if self.chance.percent(50) {
                self.blur();
            }
            if self.chance.percent(70) {
                self.cut();
            }
        }
    }

    /// Messages are lost and slow, everywhere.
    fn blur(&mut self) {
        let lost_percent = *self.chance.pick(&[0, 2, 10, 30]);
        let slow_percent = *self.chance.pick(&[0, 5, 30]);
        let slow_ms_max = *self.chance.pick(&[50, 700, 3_000, 15_000]);
        for (from, to) in self.ways() {
            self.cluster.net.set_weather(from, to, Weather { is_cut: false, lost_percent, slow_percent, slow_ms_max });
        }
    }

    fn ways(&self) -> Vec<(usize, usize)> {
        let size = self.cluster.size();
        (0..size).flat_map(|from| (0..size).map(move |to| (from, to))).filter(|(from, to)| from != to).collect()
    }

    /// Some directions let nothing through.
    fn cut(&mut self) {
        let ways = self.ways();
        let (one, other) = *self.chance.pick(&ways);
        let kind = *self.chance.pick(&[Kind::CutOneWay, Kind::CutBothWays, Kind::Unheard, Kind::Deaf, Kind::CutOff]);
        let is_cut = |from: usize, to: usize| match kind {
            Kind::CutOneWay => (from, to) == (one, other),
            Kind::CutBothWays => (from, to) == (one, other) || (from, to) == (other, one),
            Kind::Unheard => from == one,
            Kind::Deaf => to == one,
            _ => from == one || to == one,
        };
        for (from, to) in ways.into_iter().filter(|(from, to)| is_cut(*from, *to)) {
            self.cluster.net.set_weather(from, to, Weather { is_cut: true, ..Weather::default() });
        }
        self.cluster.world.tally.add(kind);
    }

    /// Topics come and go, asked for at any node.
    async fn over_catalog(mut self) {
        let world = Arc::clone(&self.cluster.world);
        let plans = world.plan.topics.iter().filter(|plan| matches!(plan.role, Role::Doomed | Role::Late));
        let plans: Vec<_> = plans.cloned().collect();
        if !self.faults.catalog || plans.is_empty() {
            return;
        }
        // What was answered about each incarnation: is it there?
        let mut answered = BTreeMap::new();
        loop {
            self.rest(200, 4_000).await;
            self.look(&answered).await;
            let plan = self.chance.pick(&plans).clone();
            let at = self.chance.index(self.cluster.size());
            let is_doomed = plan.role == Role::Doomed;
            let world = Arc::clone(&self.cluster.world);
            let asked = self.cluster.ask(at, move |node| async move {
                match node.topic(plan.name).map(|record| record.id) {
                    None => {
                        let created = node.create_topic(&world, &plan).await;
                        let id = node.topic(plan.name).map(|record| record.id);
                        id.filter(|_| created.is_ok()).map(|id| (id, true, true))
                    }
                    Some(id) if is_doomed => Some((id, false, node.delete_topic(&world, plan.name).await.is_ok())),
                    Some(_) => None,
                }
            });
            match asked.await {
                Ok(Some((id, is_there, true))) => {
                    let created = if is_doomed { Kind::TopicRecreated } else { Kind::ChildAttached };
                    self.cluster.world.tally.add(if is_there { created } else { Kind::TopicDeleted });
                    answered.insert(id, is_there);
                    self.look(&answered).await;
                }
                Ok(Some((id, _, false))) => drop(answered.remove(&id)),
                Ok(None) => {}
                // It may have been deleted, whichever it was.
                Err(_) => answered.retain(|_, is_there| !*is_there),
            }
        }
    }

    /// A confirmed look at any node shows what was answered before, wherever that was.
    async fn look(&mut self, answered: &BTreeMap<TopicId, bool>) {
        let at = self.chance.index(self.cluster.size());
        let looked = self.cluster.ask(at, |node| async move { node.metastore.confirmed_view().await.ok() }).await;
        let Ok(Some(view)) = looked else { return };
        let world = &self.cluster.world;
        for (id, is_there) in answered {
            if view.topic_by_id(*id).is_some() != *is_there {
                let name = &world.machines[at].name;
                world.complain(format!("{name} confirms what is older than what was answered: topic {id}, there: {is_there}"));
            }
        }
    }
}
