//! Fan-out children of a topic: attach, list, detach.

use http::StatusCode;
use veena_client::bodies::{AttachChild, Child, Children};
use veena_contract::{Command, TopicName, limits};

use crate::answer::{self, Answer};
use crate::body::RequestBody;
use crate::catalog;
use crate::cluster;
use crate::edge::Call;
use crate::json;
use crate::problem::Problem;
use crate::shape;
use crate::topics;

/// `POST /v1/topics/{parent}/children`.
pub(crate) async fn attach(call: &Call<'_>, body: RequestBody) -> Result<Answer, Problem> {
    let parent = call.topic()?;
    let body = call.body(body, limits::JSON_BODY_BYTES_MAX).await.map_err(too_large_is_400)?;
    let asked: AttachChild = json::decode(&body)?;
    if asked.child.is_empty() {
        return Err(Problem::invalid("child is required"));
    }
    let child = TopicName::parse(&asked.child)?;
    if child == parent {
        return Err(Problem::invalid("invalid argument: a topic cannot be attached to itself"));
    }
    let delay_ms = topics::delay("delay_ms", asked.delay_ms)?;
    cluster::confirm(call, &child).await?;
    let view = call.state.view();
    catalog::topic(call, &view, &parent)?;
    catalog::managed(call, &view, &child)?;
    let view = topics::propose_attached(call, &parent, delay_ms, |view, attach| {
        let child_id = catalog::managed(call, view, &child)?.id;
        Ok(Command::AttachChild { tenant: call.tenant().clone(), child: child.clone(), child_id, attach })
    })
    .await?;
    Ok(answer::json(StatusCode::OK, &shape::topic(&view, catalog::topic(call, &view, &parent)?)))
}

/// The contract has this route and those of users answer 400 where others answer 413.
pub(crate) fn too_large_is_400(mut problem: Problem) -> Problem {
    if problem.status == StatusCode::PAYLOAD_TOO_LARGE {
        problem.status = StatusCode::BAD_REQUEST;
    }
    problem
}

/// `GET /v1/topics/{parent}/children`.
pub(crate) async fn list(call: &Call<'_>) -> Result<Answer, Problem> {
    let name = call.topic()?;
    let view = call.state.view();
    let record = catalog::topic(call, &view, &name)?;
    let lags = call.state.parts.broker.child_lags(call.tenant(), &name, &record.children).await;
    let children = lags
        .into_iter()
        .map(|lag| Child {
            name: lag.child.to_string(),
            delay_ms: lag.delay_ms,
            lag_messages: lag.lag_messages,
            lag_complete: lag.is_complete,
            dropped_messages: lag.dropped_messages,
        })
        .collect();
    Ok(answer::json(StatusCode::OK, &Children { parent: name.to_string(), parent_id: record.id.to_string(), children }))
}

/// `DELETE /v1/topics/{parent}/children/{child}`.
pub(crate) async fn detach(call: &Call<'_>) -> Result<Answer, Problem> {
    topics::force(call)?;
    let (parent, child) = (call.topic()?, call.child()?);
    let command = Command::DetachChild { tenant: call.tenant().clone(), parent, child };
    catalog::propose(call, |_| Ok(command.clone())).await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}
