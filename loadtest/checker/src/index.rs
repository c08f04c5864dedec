//! A history, sorted into what the rules ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::digest::Digest;
use crate::event::{Down, Event, How, Label, NodeChange, Observed, Op, Outcome, TopicKey};
use crate::verdict::Counts;

/// One attempt to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    pub at: u64,
    pub until: u64,
    pub outcome: Outcome,
}

/// One message, with all attempts to send it.
#[derive(Debug)]
pub(crate) struct SentMessage {
    pub topic: TopicKey,
    /// The node that was asked first.
    pub node: Arc<str>,
    pub key: Option<Arc<str>>,
    pub digest: Digest,
    pub client: u32,
    /// Was every attempt made under its idempotency key?
    pub once: bool,
    pub attempts: Vec<Attempt>,
}

impl SentMessage {
    /// Is it certain that it was stored?
    pub(crate) fn is_ok(&self) -> bool {
        self.attempts.iter().any(|a| a.outcome == Outcome::Ok)
    }

    /// How many copies the attempts allow.
    pub(crate) fn copies_max(&self) -> usize {
        let attempts = self.attempts.iter().filter(|a| a.outcome != Outcome::Fail).count();
        if self.once { attempts.min(1) } else { attempts }
    }
}

/// A place in a partition log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub topic: TopicKey,
    pub partition: u32,
    pub offset: u64,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}@{}", self.topic, self.partition, self.offset)
    }
}

/// One lease, as its holder saw it. It began between `at` and `until`.
#[derive(Debug)]
pub(crate) struct Lease {
    pub at: u64,
    pub until: u64,
    pub visibility_us: u64,
    pub handle: Arc<str>,
    pub label: Option<Label>,
    pub id: Option<Arc<str>>,
    pub digest: Digest,
}

/// One settle of a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settle {
    pub at: u64,
    pub until: u64,
    pub how: How,
    pub outcome: Outcome,
}

/// The end of a process.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub node: Arc<str>,
    pub at: u64,
    pub until: u64,
    pub how: Down,
}

/// A partition's numbers, with when they were asked for and known.
#[derive(Clone, Debug)]
pub(crate) struct Observation {
    pub at: u64,
    pub until: u64,
    pub numbers: Observed,
}

/// Everything the rules need, by what they need it by.
#[derive(Debug, Default)]
pub(crate) struct Index {
    pub sent: BTreeMap<Label, SentMessage>,
    /// Leases of each place, in the order in which they became known.
    pub leases: BTreeMap<Place, Vec<Lease>>,
    pub settles: BTreeMap<(TopicKey, Arc<str>), Vec<Settle>>,
    /// In order of time.
    ends: Vec<End>,
    pauses: Vec<(Arc<str>, u64, u64)>,
    /// The nodes that owned each partition; none is told where there is one node.
    owners: BTreeMap<(TopicKey, u32), BTreeSet<Arc<str>>>,
    pub observations: BTreeMap<(TopicKey, u32), Vec<Observation>>,
    /// Topic names each tenant used.
    pub names_used: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// Topic names each tenant was shown.
    pub names_shown: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    pub counts: Counts,
}

impl Index {
    pub(crate) fn of(events: &[Event]) -> Self {
        let mut index = Self::default();
        for event in events {
            index.take(event);
        }
        for leases in index.leases.values_mut() {
            leases.sort_by_key(|lease| (lease.until, lease.at));
        }
        index.ends.sort_by_key(|end| end.at);
        for observations in index.observations.values_mut() {
            observations.sort_by_key(|o| (o.until, o.at));
        }
        index.counts.positions = u64::try_from(index.leases.len()).expect("invariant: a length fits 64 bits");
        index
    }

    fn take(&mut self, event: &Event) {
        match &event.op {
            Op::Produce(sent) => {
                match event.outcome {
                    Outcome::Ok => self.counts.sent_ok += 1,
                    Outcome::Fail => self.counts.sent_fail += 1,
                    Outcome::Unknown => self.counts.sent_unknown += 1,
                }
                self.names_used.entry(sent.topic.tenant.clone()).or_default().insert(sent.topic.topic.clone());
                let message = self.sent.entry(sent.label).or_insert_with(|| SentMessage {
                    topic: sent.topic.clone(),
                    node: event.node.clone(),
                    key: sent.key.clone(),
                    digest: sent.digest,
                    client: event.client,
                    once: true,
                    attempts: Vec::new(),
                });
                message.once &= sent.once;
                message.attempts.push(Attempt { at: event.at, until: event.until, outcome: event.outcome });
            }
            Op::Consume(consumed) => {
                for m in &consumed.messages {
                    self.counts.delivered += 1;
                    let place = Place { topic: consumed.topic.clone(), partition: m.partition, offset: m.offset };
                    self.leases.entry(place).or_default().push(Lease {
                        at: event.at,
                        until: event.until,
                        visibility_us: consumed.visibility_us,
                        handle: m.handle.clone(),
                        label: m.label,
                        id: m.id.clone(),
                        digest: m.digest,
                    });
                }
            }
            Op::Settle(settled) => {
                if settled.how == How::Ack && event.outcome == Outcome::Ok {
                    self.counts.acked += 1;
                }
                let settle = Settle { at: event.at, until: event.until, how: settled.how, outcome: event.outcome };
                self.settles.entry((settled.topic.clone(), settled.handle.clone())).or_default().push(settle);
            }
            Op::Observe(numbers) if event.outcome == Outcome::Ok => {
                let observation = Observation { at: event.at, until: event.until, numbers: numbers.clone() };
                let partition = (numbers.topic.clone(), numbers.partition);
                if let Some(owner) = &numbers.owner {
                    self.owners.entry(partition.clone()).or_default().insert(owner.clone());
                }
                self.observations.entry(partition).or_default().push(observation);
            }
            Op::Observe(_) => {}
            Op::Names(names) => self.names_shown.entry(names.tenant.clone()).or_default().extend(names.names.iter().cloned()),
            Op::Node(change) => self.take_node_change(event, *change),
        }
    }

    fn take_node_change(&mut self, event: &Event, change: NodeChange) {
        match change {
            NodeChange::Started => {}
            NodeChange::Down(how) => {
                match how {
                    Down::Stopped => self.counts.stops += 1,
                    Down::Killed => self.counts.kills += 1,
                    Down::PowerCut => self.counts.power_cuts += 1,
                }
                self.ends.push(End { node: event.node.clone(), at: event.at, until: event.until, how });
            }
            NodeChange::Paused => {
                self.counts.pauses += 1;
                self.pauses.push((event.node.clone(), event.at, event.until));
            }
        }
    }

    /// The settles of one lease.
    pub(crate) fn settles_of(&self, topic: &TopicKey, lease: &Lease) -> &[Settle] {
        self.settles.get(&(topic.clone(), lease.handle.clone())).map_or(&[], Vec::as_slice)
    }

    /// The ends of the processes that may have held state of this partition.
    pub(crate) fn ends_of(&self, topic: &TopicKey, partition: u32) -> impl Iterator<Item = &End> {
        let owners = self.owners.get(&(topic.clone(), partition));
        self.ends.iter().filter(move |end| owners.is_none_or(|owners| owners.contains(&end.node)))
    }

    /// How long `node` ran between `from` and `to`: time spent standing still does not count.
    pub(crate) fn running_us(&self, node: &str, from: u64, to: u64) -> u64 {
        let still = self.pauses.iter().filter(|(paused, ..)| **paused == *node);
        let still: u64 = still.map(|(_, at, until)| (*until).min(to).saturating_sub((*at).max(from))).sum();
        to.saturating_sub(from).saturating_sub(still)
    }
}
