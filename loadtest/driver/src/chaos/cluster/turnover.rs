//! Nodes that come and go while others are hurt: one joins, one is decommissioned and thrown away with all it had, another one comes in its
//! place. Every partition that anybody owned moves on the way.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use veena_loadtest_checker::Outcome;

use super::kind::ClusterFault;
use super::nodes::{Nodes, SEATS, Standing};
use crate::api::{Client, outcome_of};
use crate::chance::Chance;
use crate::chaos::probe::holds;

/// How often it is looked how far they are.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// How long a question may take: the node that is asked may be hurt.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long it may take until a node votes, or has left, though others are hurt all the time: partitions whose move was aborted rest for a minute.
const COMES_WITHIN: Duration = Duration::from_secs(180);
const LEAVES_WITHIN: Duration = Duration::from_secs(420);
/// After this long without a mark a node is asked to leave once more.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(15);
const REST_MS_MAX: u64 = 4_000;
/// Of 100 nodes that leave: how many lead, are kept after all, have one of their moves aborted, are killed once they have left.
const LEADS_PERCENT: u64 = 35;
const KEPT_PERCENT: u64 = 35;
const ABORT_PERCENT: u64 = 40;
const KILLED_PERCENT: u64 = 50;
/// How long after it was asked to leave a node is kept after all, and a move is aborted.
const CHANGE_MS_MAX: u64 = 2_500;

#[derive(Debug)]
enum Phase {
    Rest { until: Instant },
    Comes { at: usize, since: Instant },
    Leaves(Leaving),
}

#[derive(Debug)]
struct Leaving {
    at: usize,
    since: Instant,
    /// When it was marked.
    marked: Option<Instant>,
    /// Nothing that was asked of it is still under way.
    is_certain: bool,
    kept_after: Option<Duration>,
    abort_after: Option<Duration>,
}

/// Who comes and who goes.
pub(super) struct Turnover {
    phase: Phase,
    looked: Instant,
    wanted: Vec<ClusterFault>,
    is_short: bool,
    /// Nobody is asked to leave, and nobody comes.
    pub is_held: bool,
    /// Once all seats are taken, nobody is asked to leave.
    pub pauses: bool,
    /// Who is not asked to leave now.
    pub spared: Vec<usize>,
    /// How often what happened.
    pub counts: BTreeMap<ClusterFault, u32>,
    /// How many moves were aborted on request.
    pub aborts: u64,
}

impl Turnover {
    /// Does of it what is `wanted`; each once, if it `is_short`.
    pub fn new(wanted: &[ClusterFault], is_short: bool) -> Self {
        let wanted: Vec<_> = wanted.iter().copied().filter(|fault| fault.is_turnover()).collect();
        let (phase, looked) = (Phase::Rest { until: Instant::now() }, Instant::now());
        let is_held = wanted.is_empty();
        Self { phase, looked, wanted, is_short, is_held, pauses: false, spared: Vec::new(), counts: BTreeMap::new(), aborts: 0 }
    }

    /// Has everything that is wanted happened?
    pub fn is_whole(&self) -> bool {
        self.wanted.iter().all(|fault| self.counts.contains_key(fault))
    }

    /// Is nobody coming or leaving?
    pub fn rests(&self) -> bool {
        matches!(self.phase, Phase::Rest { .. })
    }

    /// The seat of who comes or leaves.
    pub fn at(&self) -> Option<usize> {
        match self.phase {
            Phase::Rest { .. } => None,
            Phase::Comes { at, .. } => Some(at),
            Phase::Leaves(Leaving { at, .. }) => Some(at),
        }
    }

    /// Nobody who leaves is kept after all from now on.
    pub fn lets_go(&mut self) {
        if let Phase::Leaves(leaving) = &mut self.phase {
            leaving.kept_after = None;
        }
    }

    /// Looks how far they are, and does what comes next. Answers what is to be told.
    ///
    /// # Errors
    /// They do not get on.
    pub async fn step(&mut self, nodes: &mut Nodes, chance: &mut Chance) -> anyhow::Result<Option<String>> {
        if self.looked.elapsed() < LOOK_EVERY {
            return Ok(None);
        }
        let told = match &mut self.phase {
            Phase::Rest { until } if self.is_held || Instant::now() < *until => None,
            Phase::Rest { .. } => self.begin(nodes, chance).await?,
            Phase::Comes { at, since } => {
                let (at, since) = (*at, *since);
                self.come(nodes, chance, at, since).await?
            }
            Phase::Leaves(_) => self.leave(nodes, chance).await?,
        };
        self.looked = Instant::now();
        Ok(told)
    }

    fn rest(&mut self, chance: &mut Chance) {
        self.phase = Phase::Rest { until: Instant::now() + Duration::from_millis(chance.below(REST_MS_MAX)) };
    }

    fn count(&mut self, fault: ClusterFault) {
        *self.counts.entry(fault).or_insert(0) += 1;
        self.is_held |= self.is_short && self.is_whole();
    }

    async fn begin(&mut self, nodes: &mut Nodes, chance: &mut Chance) -> anyhow::Result<Option<String>> {
        let since = Instant::now();
        nodes.sweep().await?;
        if let Some(at) = nodes.vacant() {
            let name = nodes.join(at)?;
            self.phase = Phase::Comes { at, since };
            return Ok(Some(format!("{name} is started, and is to join")));
        }
        if self.pauses || !nodes.is_full() {
            return Ok(None);
        }
        let leader = if chance.percent(LEADS_PERCENT) { nodes.look().await.ok() } else { None };
        let Some(at) = leader.or_else(|| chance.pick(&nodes.steady())) else { return Ok(None) };
        if self.spared.contains(&at) || !nodes.steady().contains(&at) {
            return Ok(None);
        }
        nodes.seat(at).standing = Standing::Draining;
        let may_be_kept = self.wanted.contains(&ClusterFault::DecommissionCancel);
        // What is still to happen comes first.
        let is_missing = |fault| self.wanted.contains(&fault) && !self.counts.contains_key(&fault);
        let is_kept = may_be_kept
            && !is_missing(ClusterFault::Decommission)
            && (is_missing(ClusterFault::DecommissionCancel) || chance.percent(KEPT_PERCENT));
        let soon = |chance: &mut Chance| Duration::from_millis(chance.below(CHANGE_MS_MAX));
        let kept_after = is_kept.then(|| soon(chance));
        let abort_after = (may_be_kept && chance.percent(ABORT_PERCENT)).then(|| soon(chance));
        self.phase = Phase::Leaves(Leaving { at, since, marked: None, is_certain: true, kept_after, abort_after });
        Ok(Some(format!("{} is to leave{}", nodes.name(at), if leader.is_some() { ", and leads" } else { "" })))
    }

    async fn come(&mut self, nodes: &mut Nodes, chance: &mut Chance, at: usize, since: Instant) -> anyhow::Result<Option<String>> {
        let is_ready = nodes.asker(at).with_timeout(PATIENCE).get("/readyz").await.is_ok_and(|reply| reply.status == 200);
        let members = asker(nodes, chance).members().await.unwrap_or_default();
        let member = members.iter().find(|member| member.id == nodes.name(at));
        if is_ready && member.is_some_and(|member| member.status == "alive" && member.voter == Some(true)) {
            nodes.seat(at).standing = Standing::Steady;
            self.count(ClusterFault::Join);
            self.rest(chance);
            return Ok(Some(format!("{} votes, {} ms after it was started", nodes.name(at), since.elapsed().as_millis())));
        }
        ensure!(since.elapsed() < COMES_WITHIN, "{} does not vote after {COMES_WITHIN:?}: {member:?}", nodes.name(at));
        Ok(None)
    }

    async fn leave(&mut self, nodes: &mut Nodes, chance: &mut Chance) -> anyhow::Result<Option<String>> {
        let Phase::Leaves(leaving) = &mut self.phase else { return Ok(None) };
        let (at, name) = (leaving.at, nodes.name(leaving.at).to_owned());
        let mut asker = asker(nodes, chance);
        let Some(marked) = leaving.marked else {
            let answered = asker.decommission(&name).await;
            match &answered {
                Ok(reply) if reply.status == 204 => leaving.marked = Some(Instant::now()),
                Ok(reply) => leaving.is_certain &= reply.outcome() == Outcome::Fail,
                Err(err) => leaving.is_certain &= outcome_of(err) == Outcome::Fail,
            }
            let is_late = leaving.since.elapsed() > COMES_WITHIN;
            ensure!(!is_late || leaving.marked.is_some(), "{name} is not asked to leave after {COMES_WITHIN:?}: {answered:?}");
            return Ok(leaving.marked.map(|_| format!("{name} is being taken out")));
        };
        if has_left(nodes, at).await? {
            let took = marked.elapsed();
            let is_killed = chance.percent(KILLED_PERCENT);
            nodes.vacate(at, is_killed)?;
            self.count(ClusterFault::Decommission);
            self.rest(chance);
            let how = if is_killed { "was killed" } else { "was stopped" };
            return Ok(Some(format!("{name} has left within {} ms, {how} and thrown away", took.as_millis())));
        }
        let is_due = |after: &Option<Duration>| after.is_some_and(|after| marked.elapsed() >= after);
        if is_due(&leaving.kept_after) {
            // A request that is still under way might mark it anew.
            if !leaving.is_certain {
                leaving.kept_after = None;
                return Ok(None);
            }
            return match asker.keep(&name).await {
                Ok(reply) if reply.status == 204 => {
                    nodes.seat(at).standing = Standing::Steady;
                    self.count(ClusterFault::DecommissionCancel);
                    self.rest(chance);
                    Ok(Some(format!("{name} stays after all")))
                }
                // It has nothing any more and is as good as gone.
                Ok(reply) if matches!(reply.status, 404 | 409) => {
                    leaving.kept_after = None;
                    Ok(Some(format!("{name} cannot be kept any more: {}", String::from_utf8_lossy(&reply.body))))
                }
                _ => Ok(None),
            };
        }
        if is_due(&leaving.abort_after) {
            let moves = asker.moves().await.unwrap_or_default();
            if let Some(moving) = chance.pick(&moves)
                && let Ok(reply) = asker.abort(&moving).await
            {
                leaving.abort_after = None;
                self.aborts += u64::from(reply.status == 202);
                return Ok(Some(format!("the end of {moving:?} is answered with {}", reply.status)));
            }
            return Ok(None);
        }
        let members = asker.members().await.unwrap_or_default();
        let member = members.iter().find(|member| member.id == name);
        if marked.elapsed() > ASK_AGAIN_AFTER && member.is_some_and(|member| !member.draining) {
            (leaving.marked, leaving.is_certain) = (None, false);
            return Ok(Some(format!("{name} is not being taken out any more")));
        }
        if marked.elapsed() > LEAVES_WITHIN {
            let members = asker.get("/v1/cluster/members?detail=true").await.map(|reply| String::from_utf8_lossy(&reply.body).into_owned());
            let moves = asker.get("/v1/cluster/moves?detail=true").await.map(|reply| String::from_utf8_lossy(&reply.body).into_owned());
            bail!("{name} has not left after {LEAVES_WITHIN:?}: {members:?} {moves:?}");
        }
        Ok(None)
    }
}

/// Asks any of those on whom one counts, and the next one if that does not answer.
fn asker(nodes: &Nodes, chance: &mut Chance) -> Client {
    let at = chance.pick(&nodes.steady()).unwrap_or_default();
    let addrs = nodes.addrs();
    debug_assert!(addrs.len() == SEATS);
    Client::among(&addrs, at).staying().with_timeout(PATIENCE)
}

/// Does the node say that it is no member any more? One that was killed meanwhile and started again says it by its end.
async fn has_left(nodes: &mut Nodes, at: usize) -> anyhow::Result<bool> {
    if !nodes.seat(at).node.has_ended()? {
        let ready = nodes.asker(at).with_timeout(PATIENCE).get("/readyz").await;
        return Ok(ready.is_ok_and(|reply| reply.status == 503 && holds(&reply, "taken out of its cluster")));
    }
    for asked in nodes.steady() {
        let members = nodes.asker(asked).with_timeout(PATIENCE).members().await;
        if !members.is_ok_and(|members| members.iter().all(|member| member.id != nodes.name(at))) {
            return Ok(false);
        }
    }
    Ok(true)
}
