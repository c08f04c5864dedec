//! Limits of tenants, where requests come in; and the routes that set and show them. What is counted how is `broker::quota`'s.

use http::StatusCode;
use tokio::time::Instant;
use veena_broker::message::{Delivery, NewMessage};
use veena_broker::quota::{Exceeded, Held, Records, Use};
use veena_client::bodies::{Quota, QuotaView, SetQuota, TopicQuota};
use veena_contract::{CatalogView, Command, Effect, ErrorCode, TenantId, TopicName, limits};

use crate::answer::{self, Answer};
use crate::body::RequestBody;
use crate::catalog;
use crate::children::too_large_is_400;
use crate::edge::Call;
use crate::json;
use crate::problem::Problem;
use crate::rights::Need;
use crate::route::{Route, Verb};
use crate::tenants;

impl From<Exceeded> for Problem {
    fn from(exceeded: Exceeded) -> Self {
        let wait_ms = u64::try_from(exceeded.wait.as_millis()).unwrap_or(u64::MAX);
        Self::new(StatusCode::TOO_MANY_REQUESTS, ErrorCode::QuotaExceeded, exceeded.to_string()).retry_after_ms(wait_ms).exceeding(exceeded)
    }
}

/// Is the route one whose requests are counted? Not those that make room, or tell why there is none; nor those of operators, who could not
/// lift a limit otherwise.
const fn is_counted(route: Route, verb: Verb, need: Need) -> bool {
    let is_free = matches!(route, Route::Ack | Route::Quota | Route::Usage) || matches!(verb, Verb::Delete);
    !is_free && !matches!(need, Need::Anybody | Need::Counters | Need::Operator | Need::Root)
}

/// Is the caller's tenant, or the topic in the path, under any limits? One look at the view for those who are not, whatever limits others have.
pub(crate) fn is_limited(call: &Call<'_>) -> bool {
    let view = call.state.view();
    if !view.quotas.has(call.tenant()) {
        return false;
    }
    let records = Records::of(&view, call.tenant(), call.topic().ok().as_ref());
    records.tenant.is_some() || records.topic.is_some()
}

/// Lets a request in under its tenant's limits, or says which one keeps it out, before its body is read. A connection that was over a limit
/// just now is not answered again before the time it was told to wait has passed, or a second: whoever does not wait gains nothing.
pub(crate) async fn enter(call: &Call<'_>, route: Route, verb: Verb, need: Need) -> Result<(), Problem> {
    if !is_counted(route, verb, need) {
        return Ok(());
    }
    if let Some(until) = call.conn.and_then(|conn| conn.paused(call.tenant())) {
        tokio::select! {
            () = tokio::time::sleep_until(until) => {}
            () = call.state.stopping.cancelled() => {}
        }
    }
    let (view, topic) = (call.state.view(), call.topic().ok());
    let records = Records::of(&view, call.tenant(), topic.as_ref());
    let broker = &call.state.parts.broker;
    let now_us = broker.now_us();
    // What a request surely uses; how much it is all in all is known when it has been read.
    let least = match route {
        Route::Produce | Route::ProduceBatch => Use::produced(1, 1),
        Route::Consume => Use::delivered(1, 1),
        _ => Use::default(),
    };
    broker.quota().look(&records, &least, now_us)?;
    Ok(broker.quota().take(&Records { tenant: records.tenant, topic: None }, &Use::REQUEST, now_us)?)
}

/// A request was refused: its connection is left alone for a while, as far as its tenant's limits are concerned.
pub(crate) fn pause(call: &Call<'_>, problem: &Problem) {
    let Some(exceeded) = problem.exceeded() else { return };
    call.state.parts.broker.usage().of(call.tenant()).on_refused();
    if let Some(conn) = call.conn {
        conn.pause(call.tenant().clone(), Instant::now() + exceeded.pause);
    }
}

/// The limits that a request to a topic is under, if there are any.
fn with_limits<T>(call: &Call<'_>, topic: &TopicName, ask: impl FnOnce(&Records<'_>) -> T) -> Option<T> {
    if !call.is_limited {
        return None;
    }
    let view = call.state.view();
    Some(ask(&Records::of(&view, call.tenant(), Some(topic))))
}

/// What a produce has taken of its tenant's limits.
pub(crate) struct Taken(Option<Use>);

/// Takes what messages use. It stays taken, whatever becomes of the request and of its client, unless it is [settled](settle) otherwise.
pub(crate) fn produced(call: &Call<'_>, topic: &TopicName, messages: &[NewMessage]) -> Result<Taken, Problem> {
    let take = |records: &Records<'_>| {
        let wanted = Use::produced(messages.len() as u64, messages.iter().map(NewMessage::counted_bytes).sum());
        let broker = &call.state.parts.broker;
        broker.quota().take(records, &wanted, broker.now_us()).map(|()| wanted)
    };
    Ok(Taken(with_limits(call, topic, take).transpose()?))
}

/// Gives back what was taken for a produce that certainly stored nothing.
pub(crate) fn settle<T>(call: &Call<'_>, topic: &TopicName, taken: Taken, outcome: &Result<T, Problem>) {
    let Some(unused) = taken.0.filter(|_| outcome.as_ref().is_err_and(|problem| problem.effect == Effect::None)) else { return };
    let broker = &call.state.parts.broker;
    with_limits(call, topic, |records| broker.quota().give_back(records, &unused, broker.now_us()));
}

/// Counts messages that are delivered. Nobody knows how many there are before; so whoever comes next waits for them.
pub(crate) fn delivered(call: &Call<'_>, topic: &TopicName, messages: &[Delivery]) {
    let broker = &call.state.parts.broker;
    with_limits(call, topic, |records| {
        let used = Use::delivered(messages.len() as u64, messages.iter().map(Delivery::counted_bytes).sum());
        broker.quota().charge(records, &used, broker.now_us());
    });
}

/// A consumer is about to wait.
pub(crate) fn hold_poll(call: &Call<'_>, topic: &TopicName) -> Result<Option<Held>, Problem> {
    let broker = &call.state.parts.broker;
    Ok(with_limits(call, topic, |records| broker.quota().hold_poll(records, broker.now_us())).transpose()?.flatten())
}

/// All limits of a tenant.
fn shape(view: &CatalogView, tenant: &TenantId) -> QuotaView {
    let of_tenant = view.quota(tenant, None);
    let topics = view.quotas.of(tenant).filter_map(|record| {
        let topic = record.topic.as_ref()?.to_string();
        Some(TopicQuota { topic, revision: record.revision, quota: Quota::from(&record.quota) })
    });
    QuotaView {
        tenant: tenant.to_string(),
        revision: of_tenant.map_or(0, |record| record.revision),
        quota: of_tenant.map(|record| Quota::from(&record.quota)).unwrap_or_default(),
        topics: topics.collect(),
    }
}

/// `GET /v1/quota`: one's own.
pub(crate) fn own(call: &Call<'_>) -> Answer {
    answer::json(StatusCode::OK, &shape(&call.state.view(), call.tenant()))
}

/// `GET /v1/admin/tenants/{tenant}/quota`.
pub(crate) async fn describe(call: &Call<'_>) -> Result<Answer, Problem> {
    let tenant = tenants::named(call)?;
    let view = tenants::view_with(call, &tenant).await?;
    tenants::find(&view, &tenant)?;
    Ok(answer::json(StatusCode::OK, &shape(&view, &tenant)))
}

/// `PUT /v1/admin/tenants/{tenant}/quota`: all limits of the tenant, or of the topic that the body names.
pub(crate) async fn set(call: &Call<'_>, body: RequestBody) -> Result<Answer, Problem> {
    let tenant = tenants::named(call)?;
    let body = call.body(body, limits::JSON_BODY_BYTES_MAX).await.map_err(too_large_is_400)?;
    let asked: SetQuota = json::decode(&body)?;
    let topic = asked.topic.as_deref().map(TopicName::parse).transpose()?;
    let command = Command::SetQuota { tenant: tenant.clone(), topic, quota: Box::new((&asked.quota).into()), revision: asked.revision };
    let view = catalog::propose(call, |_| Ok(command.clone())).await?;
    Ok(answer::json(StatusCode::OK, &shape(&view, &tenant)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_room_or_lifts_a_limit_is_not_counted() {
        let mut counted = Vec::new();
        for route in Route::ALL {
            for (verb, need) in route.methods() {
                if is_counted(*route, *verb, *need) {
                    counted.push((*route, *verb));
                }
            }
        }
        for is_in in
            [(Route::Produce, Verb::Post), (Route::ProduceBatch, Verb::Post), (Route::Consume, Verb::Get), (Route::Topics, Verb::Post)]
        {
            assert!(counted.contains(&is_in), "{is_in:?}");
        }
        assert!(
            counted.iter().all(|(route, verb)| !matches!(route, Route::Ack | Route::Healthz | Route::TenantQuota) && *verb != Verb::Delete)
        );
    }
}
