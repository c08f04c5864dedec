//! Probes and counters. Nothing here waits for anything.

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use veena_client::bodies::Health;
use veena_contract::ErrorCode;

use crate::answer::{self, Answer};
use crate::edge::Call;
use crate::metrics;
use crate::problem::Problem;

/// Does the process answer, and does it mean to go on?
pub(crate) fn healthz(call: &Call<'_>) -> Answer {
    if call.state.stopping.is_cancelled() {
        return answer::json(StatusCode::SERVICE_UNAVAILABLE, &health("shutting down"));
    }
    answer::json(StatusCode::OK, &health("ok"))
}

fn health(status: &str) -> Health {
    Health { status: status.to_owned(), degraded: Vec::new() }
}

/// What works, but not as it should.
fn degraded(call: &Call<'_>) -> Vec<String> {
    let parts = &call.state.parts;
    let is_expired = parts.tls.as_ref().is_some_and(|tls| tls.is_expired(parts.clock.now_ms()));
    is_expired.then(|| "client_tls_certificate_expired".to_owned()).into_iter().collect()
}

/// Does the node take work? If not, why.
pub(crate) fn readyz(call: &Call<'_>) -> Result<Answer, Problem> {
    let reason = if call.state.stopping.is_cancelled() {
        Some("shutting down".to_owned())
    } else {
        let parts = &call.state.parts;
        let of_cluster = || parts.cluster.as_ref().and_then(|cluster| cluster.not_ready_reason());
        // Of a node that was taken out, that comes first: it has no leader either.
        of_cluster().or_else(|| parts.leader.not_ready_reason()).or_else(|| parts.broker.not_ready_reason())
    };
    match reason {
        Some(reason) => Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::NotReady, reason)),
        None => Ok(answer::json(StatusCode::OK, &Health { degraded: degraded(call), ..health("ready") })),
    }
}

/// The counters, when they are served on this port.
pub(crate) async fn metrics(call: &Call<'_>) -> Result<Answer, Problem> {
    if !call.state.config.metrics_on_api_port {
        return Err(Problem::new(StatusCode::NOT_FOUND, ErrorCode::NotFound, "404 page not found").plain());
    }
    // Ten thousand topics are megabytes of text: not on a thread that serves others.
    let state = call.state.clone();
    // With security on, nobody but operators may know of tenants: neither those who need not sign in, nor other users of `default`.
    let config = &call.state.config;
    let is_operator = !config.security_enabled || (call.caller.username().is_some() && call.caller.may_operate().is_ok());
    let with_tenants = config.metrics_tenant_labels && is_operator;
    let rendered = tokio::task::spawn_blocking(move || metrics::render(&state, with_tenants)).await;
    let crashed = |_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Internal, "internal server panic");
    let text = Bytes::from(rendered.map_err(crashed)?);
    let mut answer = answer::json_bytes(StatusCode::OK, crate::answer::AnswerBody::plain(text));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
    Ok(answer)
}
