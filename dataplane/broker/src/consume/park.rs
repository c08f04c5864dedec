//! Consumers that wait for a first message.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::Notify;
use tokio::time::Instant;
use veena_contract::limits;

use crate::consume::deliver::Deliveries;
use crate::consume::reserve::{Demand, attempt, candidates, is_takeable};
use crate::consume::waiters::{Ticket, Wanted};
use crate::core::Core;
use crate::errors::ConsumeError;
use crate::message::ConsumeRequest;
use crate::topics::Topic;

/// A consumer's place among the parked; leaving it passes a baton on.
pub(crate) struct Parked<'a> {
    core: &'a Core,
    topic: &'a Topic,
    wanted: Wanted,
    ticket: Ticket,
    waker: Arc<Notify>,
}

impl<'a> Parked<'a> {
    /// Takes a place at the end of the line.
    pub(crate) fn new(core: &'a Core, topic: &'a Topic, wanted: Wanted) -> Result<Self, ConsumeError> {
        let waker = Arc::new(Notify::new());
        let ticket = park(topic, wanted, &waker)?;
        Ok(Self { core, topic, wanted, ticket, waker })
    }

    /// Completes when the consumer holds a baton, the topic is gone, or the node stops.
    pub(crate) async fn notified(&self) {
        self.waker.notified().await;
    }

    /// There was nothing to take; the place is kept.
    pub(crate) fn return_baton(&self) {
        self.topic.waiters.lock().return_baton(self.wanted, self.ticket);
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        leave(self.core, self.topic, self.wanted, self.ticket);
    }
}

/// Takes a place at the end of the line, for whoever is told through `waker`.
pub(crate) fn park(topic: &Topic, wanted: Wanted, waker: &Arc<Notify>) -> Result<Ticket, ConsumeError> {
    let mut waiters = topic.waiters.lock();
    if waiters.parked() >= limits::WAITERS_PER_TOPIC_MAX {
        return Err(ConsumeError::TooManyWaiters { limit: limits::WAITERS_PER_TOPIC_MAX });
    }
    Ok(waiters.park(wanted, Arc::clone(waker)))
}

/// Leaves the line; a baton is passed on.
pub(crate) fn leave(core: &Core, topic: &Topic, wanted: Wanted, ticket: Ticket) {
    let had_baton = topic.waiters.lock().leave(wanted, ticket);
    if had_baton {
        wake_takeable(core, topic);
    }
}

pub(crate) async fn wait(
    core: &Arc<Core>,
    topic: &Arc<Topic>,
    request: &ConsumeRequest,
    wanted: Wanted,
) -> Result<Deliveries, ConsumeError> {
    let deadline = Instant::now() + request.wait;
    let parked = Parked::new(core, topic, wanted)?;
    loop {
        // What became takeable before this consumer stood in line, or while it held a baton, is handed out here.
        wake_takeable(core, topic);
        tokio::select! {
            () = parked.notified() => {}
            () = tokio::time::sleep_until(deadline) => return Ok(Deliveries::none(core, topic)),
        }
        if let Some(found) = attempt_woken(core, topic, request.into(), wanted, &parked).await? {
            return Ok(found);
        }
    }
}

/// What a parked consumer does that was woken. `None` when it goes on waiting, in its place.
pub(crate) async fn attempt_woken(
    core: &Arc<Core>,
    topic: &Arc<Topic>,
    demand: Demand,
    wanted: Wanted,
    parked: &Parked<'_>,
) -> Result<Option<Deliveries>, ConsumeError> {
    if topic.is_gone() {
        return Err(ConsumeError::TopicNotFound);
    }
    if core.is_stopping() {
        return Ok(Some(Deliveries::none(core, topic)));
    }
    let found = attempt(core, topic, demand, candidates(core, topic, wanted), wanted, true).await?;
    if !found.is_empty() {
        return Ok(Some(found));
    }
    parked.return_baton();
    Ok(None)
}

/// Hands a baton to whoever is first in line, for each partition that has something to take.
pub fn wake_takeable(core: &Core, topic: &Topic) {
    if topic.waiters.lock().parked() == 0 {
        return;
    }
    let record = topic.record.load_full();
    let mut takeable = Vec::new();
    topic.scan(|partition| {
        if partition.serving().is_some_and(|serving| is_takeable(core, &record, &serving)) {
            takeable.push(partition.id.index);
        }
        true
    });
    for index in takeable {
        topic.wake(index, 1);
    }
}

/// Tells every parked consumer that the node stops; each answers empty.
pub fn stop_waiting(core: &Core) {
    core.is_stopping.store(true, Ordering::Release);
    for (_, topic) in core.topics.all() {
        topic.wake_all();
    }
}
