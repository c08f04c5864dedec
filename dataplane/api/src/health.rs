//! Probes and counters. Nothing here waits for anything.

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use veena_contract::ErrorCode;

use crate::answer::{self, Answer};
use crate::bodies::Health;
use crate::edge::Call;
use crate::metrics;
use crate::problem::Problem;

/// Does the process answer, and does it mean to go on?
pub(crate) fn healthz(call: &Call<'_>) -> Answer {
    if call.state.stopping.is_cancelled() {
        return answer::json(StatusCode::SERVICE_UNAVAILABLE, &Health { status: "shutting down" });
    }
    answer::json(StatusCode::OK, &Health { status: "ok" })
}

/// Does the node take work? If not, why.
pub(crate) fn readyz(call: &Call<'_>) -> Result<Answer, Problem> {
    let reason = if call.state.stopping.is_cancelled() {
        Some("shutting down".to_owned())
    } else if let Some(reason) = call.state.parts.leader.not_ready_reason() {
        Some(format!("metastore: node is not ready: {reason}"))
    } else {
        call.state.parts.broker.not_ready_reason()
    };
    match reason {
        Some(reason) => Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::NotReady, reason)),
        None => Ok(answer::json(StatusCode::OK, &Health { status: "ready" })),
    }
}

/// The counters, when they are served on this port.
pub(crate) fn metrics(call: &Call<'_>) -> Result<Answer, Problem> {
    if !call.state.config.metrics_on_api_port {
        return Err(Problem::new(StatusCode::NOT_FOUND, ErrorCode::NotFound, "404 page not found").plain());
    }
    let text = Bytes::from(metrics::render(call.state));
    let mut answer = answer::json_bytes(StatusCode::OK, crate::answer::AnswerBody::plain(text));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
    Ok(answer)
}
