//! What became of the moves, as the nodes show it: each is watched for itself, since it sees the changes in their order, and may miss some.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use veena_loadtest_checker::{Event, How, Op, Outcome, TopicKey};

use super::nodes::{Nodes, SEATS};
use crate::api::{Client, MoveShown};
use crate::workload::topic_key;

const LOOK_EVERY: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Flipped,
    Aborted,
}

/// What became of moves, and how often, as one node saw it.
type Seen = BTreeMap<(MoveShown, Fate), u64>;

/// Who watches.
pub(super) struct Watch {
    stop: CancellationToken,
    tasks: JoinSet<()>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

/// What was seen.
pub(super) struct Moves(Seen);

impl Watch {
    pub fn start(nodes: &Nodes) -> Self {
        let (stop, seen) = (CancellationToken::new(), Arc::new(Mutex::new(vec![Seen::new(); SEATS])));
        let mut tasks = JoinSet::new();
        for at in 0..SEATS {
            let (client, stop, seen) = (nodes.client(at).with_timeout(PATIENCE), stop.clone(), seen.clone());
            tasks.spawn(watch(client, stop, move |moving, fate| *seen.lock()[at].entry((moving, fate)).or_insert(0) += 1));
        }
        Self { stop, tasks, seen }
    }

    pub async fn end(mut self) -> anyhow::Result<Moves> {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended?;
        }
        // The same move is seen by several nodes, once by each.
        let mut all = Seen::new();
        for (key, count) in self.seen.lock().iter().flatten() {
            let known = all.entry(key.clone()).or_insert(0);
            *known = (*known).max(*count);
        }
        Ok(Moves(all))
    }
}

async fn watch(mut client: Client, stop: CancellationToken, ended: impl Fn(MoveShown, Fate)) {
    let mut under_way = BTreeSet::new();
    while stop.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
        let Ok(moves) = client.moves().await else { continue };
        let moves: BTreeSet<MoveShown> = moves.into_iter().collect();
        for gone in std::mem::replace(&mut under_way, moves).into_iter().collect::<Vec<_>>() {
            if under_way.contains(&gone) {
                continue;
            }
            let owner = owner_of(&mut client, &gone).await;
            match owner {
                Some(owner) if owner == gone.to => ended(gone, Fate::Flipped),
                Some(owner) if owner == gone.from => ended(gone, Fate::Aborted),
                // Its topic is gone, it has moved again, or the node died.
                _ => {}
            }
        }
    }
}

async fn owner_of(client: &mut Client, moving: &MoveShown) -> Option<String> {
    let partitions = client.owners(&moving.topic).await.ok()?;
    partitions.into_iter().find(|(index, _)| *index == moving.partition)?.1
}

impl Moves {
    fn count(&self, fate: Fate) -> u64 {
        self.0.iter().filter(|((_, was), _)| *was == fate).map(|(_, count)| count).sum()
    }

    pub fn flipped(&self) -> u64 {
        self.count(Fate::Flipped)
    }

    pub fn aborted(&self) -> u64 {
        self.count(Fate::Aborted)
    }

    /// The history with every owner that is known, told as if it had been seen when the partition was first looked at: a checker that
    /// knows of one owner of several would take the ends of the others for nothing.
    pub fn told_to(&self, mut events: Vec<Event>) -> Vec<Event> {
        let mut owners: BTreeMap<(TopicKey, u32), BTreeSet<&str>> = BTreeMap::new();
        for (moving, _) in self.0.keys().filter(|(_, fate)| *fate == Fate::Flipped) {
            owners.entry((topic_key(&moving.topic), moving.partition)).or_default().extend([&*moving.from, &*moving.to]);
        }
        let mut told = Vec::new();
        for event in &events {
            let Op::Observe(numbers) = &event.op else { continue };
            for owner in owners.remove(&(numbers.topic.clone(), numbers.partition)).unwrap_or_default() {
                let mut event = event.clone();
                if let Op::Observe(numbers) = &mut event.op {
                    numbers.owner = Some(owner.into());
                }
                told.push(event);
            }
        }
        events.extend(told);
        events
    }
}

/// How many extends and acks were answered ok whose partition had another owner when its lease was given.
pub(super) fn settled_across(events: &[Event]) -> u64 {
    type Owners<'a> = Vec<(u64, u64, &'a str)>;
    let mut owners: BTreeMap<(&TopicKey, u32), Owners<'_>> = BTreeMap::new();
    let mut given: BTreeMap<(&TopicKey, &str), (u32, u64)> = BTreeMap::new();
    for event in events.iter().filter(|event| event.outcome == Outcome::Ok) {
        match &event.op {
            Op::Observe(seen) => {
                if let Some(owner) = &seen.owner {
                    owners.entry((&seen.topic, seen.partition)).or_default().push((event.at, event.until, owner));
                }
            }
            Op::Consume(consumed) => {
                for message in &consumed.messages {
                    given.insert((&consumed.topic, &message.handle), (message.partition, event.at));
                }
            }
            _ => {}
        }
    }
    let is_across = |event: &&Event| {
        let Op::Settle(settled) = &event.op else { return false };
        let Some((partition, at)) = given.get(&(&settled.topic, &*settled.handle)) else { return false };
        let Some(seen) = owners.get(&(&settled.topic, *partition)) else { return false };
        let before = seen.iter().filter(|(_, until, _)| until <= at).max_by_key(|(_, until, _)| *until);
        let after = seen.iter().filter(|(begun, ..)| *begun >= event.until).min_by_key(|(begun, ..)| *begun);
        let was_ok = event.outcome == Outcome::Ok && settled.how != How::Nack;
        was_ok && before.zip(after).is_some_and(|(before, after)| before.2 != after.2)
    };
    u64::try_from(events.iter().filter(is_across).count()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use veena_loadtest_checker::{Consumed, Delivered, Digest, Observed, Settled};

    use super::*;

    fn event(at: u64, op: Op) -> Event {
        Event { at, until: at + 1, node: "node-1".into(), client: 1, op, outcome: Outcome::Ok }
    }

    fn owned(at: u64, owner: &str) -> Event {
        let (topic, owner) = (topic_key("orders"), Some(owner.into()));
        event(at, Op::Observe(Observed { topic, partition: 3, log_end: 9, high_watermark: 9, frontier: None, owner }))
    }

    fn given(at: u64, handle: &str) -> Event {
        let message = Delivered { partition: 3, offset: at, id: None, label: None, digest: Digest::of(b"x"), handle: handle.into() };
        event(at, Op::Consume(Consumed { topic: topic_key("orders"), visibility_us: 1, messages: vec![message] }))
    }

    fn settled(at: u64, handle: &str, how: How) -> Event {
        event(at, Op::Settle(Settled { topic: topic_key("orders"), handle: handle.into(), how }))
    }

    #[test]
    fn what_was_settled_with_a_handle_from_before_a_move_is_counted() {
        let mut events = vec![owned(1, "node-1"), given(10, "a"), given(12, "b"), settled(20, "a", How::Extend), owned(30, "node-1")];
        assert_eq!(settled_across(&events), 0);
        events.extend([settled(40, "a", How::Ack), settled(42, "b", How::Nack), owned(50, "node-2")]);
        assert_eq!(settled_across(&events), 1);
        events.extend([given(60, "c"), settled(70, "c", How::Ack), owned(80, "node-2")]);
        assert_eq!(settled_across(&events), 1);
    }

    #[test]
    fn every_owner_that_a_move_names_is_told() {
        let moving = MoveShown { topic: "orders".to_owned(), partition: 3, from: "node-1".to_owned(), to: "node-2".to_owned() };
        let moves = Moves(BTreeMap::from([((moving.clone(), Fate::Flipped), 2), ((moving, Fate::Aborted), 1)]));
        assert_eq!((moves.flipped(), moves.aborted()), (2, 1));
        let owners = |events: Vec<Event>| -> Vec<String> {
            let owner = |event: Event| if let Op::Observe(seen) = event.op { seen.owner.map(|owner| owner.to_string()) } else { None };
            events.into_iter().filter_map(owner).collect()
        };
        assert_eq!(owners(moves.told_to(vec![owned(1, "node-2"), owned(5, "node-2")])), ["node-2", "node-2", "node-1", "node-2"]);
    }
}
