//! The one layer around every request: route, caller, guard, rights, handler, counters. It knows no operation.

use std::convert::Infallible;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body::Body;
use tokio::time::Instant;
use tracing::{error, warn};
use veena_contract::{ErrorCode, LogIndex, Origin, TenantId, TopicName, TopicRecord, UserKind};

use crate::answer::Answer;
use crate::body::{self, BodyLimits, RequestBody};
use crate::conn::{Conn, Identity};
use crate::metrics::{Metrics, Row};
use crate::problem::Problem;
use crate::rights::{self, Caller, Need};
use crate::route::{self, Matched, Route, Verb};
use crate::state::ApiState;
use crate::{
    accounts, ack, audit, backup, children, cluster, consume, explain, health, issuer, produce, produce_batch, quota, sign_in, tenants,
    topic_patch, topics, usage, users,
};

/// Names a request whose change or refusal can be looked for: in the audit trail, in the log.
const REQUEST_ID: http::HeaderName = http::HeaderName::from_static(veena_client::headers::REQUEST_ID);

/// One request on its way to a handler.
pub(crate) struct Call<'a> {
    pub(crate) state: &'a ApiState,
    pub(crate) conn: Option<&'a Arc<Conn>>,
    pub(crate) parts: &'a Parts,
    pub(crate) caller: Caller,
    id: &'a RequestId,
    /// Is the tenant, or the topic in the path, under any limits?
    pub(crate) is_limited: bool,
    /// What the path names, as written there.
    pub(crate) path: &'a Matched<'a>,
    need: Need,
    /// The metadata in which the caller was found and let in, or older.
    let_in_at: LogIndex,
}

impl Call<'_> {
    /// The topic named in the path. A name that no topic can have names no topic.
    pub(crate) fn topic(&self) -> Result<TopicName, Problem> {
        TopicName::parse(&self.path.topic).map_err(|_| Problem::topic_not_found())
    }

    /// The child named in the path.
    pub(crate) fn child(&self) -> Result<TopicName, Problem> {
        TopicName::parse(&self.path.second).map_err(|_| Problem::topic_not_found())
    }

    /// Whose things this request is about: the caller's alone.
    pub(crate) fn tenant(&self) -> &TenantId {
        self.caller.tenant().unwrap_or(&self.state.tenant)
    }

    /// The caller's topic of this name, as far as this node knows.
    pub(crate) fn known_topic(&self, name: &TopicName) -> Option<Arc<TopicRecord>> {
        self.state.view().topic(self.tenant(), name).cloned()
    }

    pub(crate) fn query(&self) -> Option<&str> {
        self.parts.uri.query()
    }

    /// Does the caller name itself as a client library?
    pub(crate) fn names_its_client(&self) -> bool {
        names_its_client(&self.parts.headers)
    }

    /// The whole body, up to `bytes_max`, of a caller who may still send it.
    pub(crate) async fn body(&self, body: RequestBody, bytes_max: usize) -> Result<bytes::Bytes, Problem> {
        let limits = BodyLimits { bytes_max, stall: self.state.config.read_timeout, reserve: None };
        let body = body::read(body, limits).await?;
        self.look_again()?;
        Ok(body)
    }

    /// Would the caller be let in now? To be asked after a wait that the caller can draw out: a body may take a minute. Costs next to nothing
    /// while the metadata does not change; a key and a token end without that.
    ///
    /// # Errors
    /// 401 or 403, as at the beginning.
    pub(crate) fn look_again(&self) -> Result<(), Problem> {
        if matches!(self.caller, Caller::Anybody) {
            return Ok(());
        }
        if self.state.contact.is_lost() {
            return Err(Problem::security_stale());
        }
        let has_expired = self.caller.ends_at_ms().is_some_and(|end_ms| end_ms <= self.state.parts.clock.now_ms());
        if self.state.view().applied == self.let_in_at && !has_expired {
            return Ok(());
        }
        let now = Call { caller: self.caller.renewed(self.state)?, ..*self };
        rights::check(&now, self.need)?;
        rights::check_topic(&now, self.need)
    }

    /// Whose requests in flight this one counts with.
    pub(crate) fn identity(&self) -> Option<Arc<Identity>> {
        match self.caller.actor() {
            Some(actor) => Some(self.state.users.of(&actor)),
            None => self.conn.map(|conn| Arc::clone(&conn.identity)),
        }
    }

    /// From where it is sent.
    pub(crate) fn source(&self) -> Option<IpAddr> {
        self.conn.and_then(|conn| conn.identity.address)
    }

    /// For whom a change is proposed.
    pub(crate) fn origin(&self) -> Origin {
        Origin::Asked {
            caller: self.caller.actor(),
            source: self.source(),
            request: Some(self.id.get(self.state)),
            key: self.caller.key().map(|key| key.id.to_string().into()),
        }
    }

    /// 64 random bits.
    pub(crate) fn random(&self) -> u64 {
        self.state.parts.entropy.next_u64()
    }
}

/// The name of one request, made when it is needed: to tell a refusal, or a change.
#[derive(Default)]
struct RequestId(OnceLock<u64>);

impl RequestId {
    fn get(&self, state: &ApiState) -> u64 {
        *self.0.get_or_init(|| state.parts.entropy.next_u64())
    }
}

/// Answers one request. Dropping the future means the client has left.
pub(crate) fn handle<'a>(
    state: &'a ApiState,
    conn: Option<&'a Arc<Conn>>,
    request: Request<RequestBody>,
) -> impl Future<Output = Answer> + Send + 'a {
    // Taken apart before the future is made, which would keep the request in both forms; a block, as the future of an `async fn` keeps its
    // arguments beside what they are moved to.
    let (parts, body) = request.into_parts();
    async move {
        let began = Instant::now();
        let matched = route::find(parts.uri.path());
        let served = matched.as_ref().and_then(|m| m.route.verb(&parts.method));
        let row = match (&matched, served) {
            (Some(matched), Some((verb, _))) => Row::of(matched.route, verb),
            _ => Row::UNMATCHED,
        };
        let mut counted =
            Counted { metrics: &state.metrics, row, began, status: 499, bytes_in: content_length(&parts.headers), bytes_out: 0 };
        state.metrics.begin();
        let (sends_body, id) = (!body.is_end_stream(), RequestId::default());

        let outcome =
            match AssertUnwindSafe(admit_and_dispatch(state, conn, &parts, &id, matched.as_ref(), served, body)).catch_unwind().await {
                Ok(outcome) => outcome,
                Err(_panic) => {
                    state.metrics.panics.add(1);
                    error!(route = row.template(), "a handler panicked");
                    Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Internal, "internal server panic"))
                }
            };
        let mut answer = outcome.unwrap_or_else(|problem| refuse(state, &id, row, problem));
        if let Some(id) = id.0.get() {
            answer.headers_mut().insert(REQUEST_ID, HeaderValue::try_from(format!("{id:016x}")).expect("invariant: hexadecimal digits"));
        }
        if state.stopping.is_cancelled() {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if sends_body
            && answer.status().as_u16() >= 400
            && let Some(conn) = conn
        {
            conn.linger_at_close();
        }
        counted.status = answer.status().as_u16();
        if parts.method == Method::HEAD {
            answer.body_mut().ride_on_head();
        } else {
            counted.bytes_out = answer.body().len() as u64;
        }
        answer
    }
}

fn refuse(state: &ApiState, id: &RequestId, row: Row, problem: Problem) -> Answer {
    let instance = id.get(state);
    if problem.code == ErrorCode::OutcomeUnknown {
        // Another node did not answer: that is no failure of this one, and its client is told what to make of it.
        if let Some(left_out) = state.unknown_lines.lock().admit(Instant::now().into_std()) {
            warn!(left_out, route = row.template(), error = %problem.text, "what became of a request is not known");
        }
    } else if problem.status.is_server_error()
        && problem.status != StatusCode::SERVICE_UNAVAILABLE
        && let Some(left_out) = state.failure_lines.lock().admit(Instant::now().into_std())
    {
        let instance = format_args!("{instance:016x}");
        error!(%instance, left_out, route = row.template(), code = problem.code.as_str(), error = %problem.text, "a request failed");
    }
    problem.into_answer(instance)
}

async fn admit_and_dispatch(
    state: &ApiState,
    conn: Option<&Arc<Conn>>,
    parts: &Parts,
    id: &RequestId,
    matched: Option<&Matched<'_>>,
    served: Option<(Verb, Need)>,
    body: RequestBody,
) -> Result<Answer, Problem> {
    if head_bytes(parts) > state.config.max_header_bytes {
        let text = "431 Request Header Fields Too Large";
        return Err(Problem::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, ErrorCode::HeadersTooLarge, text).plain().closing());
    }
    let route = matched.map(|matched| matched.route);
    let denied = |problem: Problem, caller: Option<&Caller>, asked| {
        let actor = caller.and_then(Caller::actor).or_else(|| problem.proven().cloned());
        state.denials.count(state.parts.clock.now_ms(), actor, asked, &problem);
        problem
    };
    let let_in_at = state.view().applied;
    let caller = sign_in::caller(state, conn.and_then(|conn| conn.identity.address), parts, route)
        .await
        .map_err(|problem| denied(problem, None, route.zip(served.map(|(verb, _)| verb))))?;
    let (matched, verb, need) = admit(state, parts, matched, served)?;
    if !matches!(matched.route, Route::Healthz | Route::Readyz | Route::Metrics)
        && let Some(reason) = state.parts.cluster.as_ref().and_then(|cluster| cluster.taken_out())
    {
        return Err(cluster::taken_out(reason));
    }
    let mut call = Call { state, conn, parts, caller, id, is_limited: false, path: matched, need, let_in_at };
    let outcome = serve(&mut call, matched.route, verb, body).await;
    outcome.map_err(|problem| denied(problem, Some(&call.caller), Some((matched.route, verb))))
}

/// A known caller's request: what they may, what their tenant may use, and the handler.
async fn serve(call: &mut Call<'_>, route: Route, verb: Verb, body: RequestBody) -> Result<Answer, Problem> {
    rights::check(call, call.need)?;
    confirm_topic(call).await?;
    rights::check_topic(call, call.need)?;
    call.is_limited = quota::is_limited(call);
    if !call.is_limited {
        return dispatch(call, route, verb, body).await;
    }
    Box::pin(quota::enter(call, route, verb, call.need)).await.inspect_err(|problem| quota::pause(call, problem))?;
    dispatch(call, route, verb, body).await.inspect_err(|problem| quota::pause(call, problem))
}

/// What is refused of a known caller before a handler is asked: unknown path, cross-site writes, wrong method.
fn admit<'a>(
    state: &ApiState,
    parts: &Parts,
    matched: Option<&'a Matched<'a>>,
    served: Option<(Verb, Need)>,
) -> Result<(&'a Matched<'a>, Verb, Need), Problem> {
    let Some(matched) = matched else {
        return Err(Problem::new(StatusCode::NOT_FOUND, ErrorCode::NotFound, "404 page not found").plain());
    };
    let writes = matches!(parts.method, Method::POST | Method::PUT | Method::PATCH);
    if writes && state.config.cross_site_guard && !is_safe_across_sites(&parts.headers) {
        let text = "unsupported media type: send Content-Type application/json or application/octet-stream, or name the client in X-Narad-Client or X-Veena-Client";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, ErrorCode::UnsupportedMediaType, text));
    }
    let (verb, need) = served.ok_or_else(|| Problem::method_not_allowed(matched.route.allow()))?;
    Ok((matched, verb, need))
}

/// Asks the leader for the topic in the path, if this node of a cluster does not know it.
async fn confirm_topic(call: &Call<'_>) -> Result<(), Problem> {
    // An invalid name is the handler's to refuse.
    if call.state.parts.cluster.is_some()
        && let Ok(name) = TopicName::parse(&call.path.topic)
        && call.known_topic(&name).is_none()
    {
        Box::pin(cluster::confirm(call, &name)).await?;
    }
    Ok(())
}

/// The hot routes run inside this future; the others get one of their own, so that a parked connection stays small.
async fn dispatch(call: &Call<'_>, route: Route, verb: Verb, body: RequestBody) -> Result<Answer, Problem> {
    match (route, verb) {
        (Route::Produce, _) => produce::produce(call, body).await,
        (Route::Consume, _) => consume::consume(call).await,
        (Route::Ack, _) => ack::ack(call, body).await,
        (Route::ProduceBatch, _) => Box::pin(produce_batch::produce_batch(call, body)).await,
        (Route::Topics, Verb::Post) => Box::pin(topics::create(call, body)).await,
        (Route::Topics, _) => topics::list(call),
        (Route::Topic, Verb::Patch) => Box::pin(topic_patch::patch(call, body)).await,
        (Route::Topic, Verb::Delete) => Box::pin(topics::delete(call)).await,
        (Route::Topic, _) => Box::pin(topics::describe(call)).await,
        (Route::Schema, _) => topics::schema(call),
        (Route::Children, Verb::Post) => Box::pin(children::attach(call, body)).await,
        (Route::Children, _) => Box::pin(children::list(call)).await,
        (Route::Child, _) => Box::pin(children::detach(call)).await,
        (Route::ClusterMembers, _) => Box::pin(cluster::members(call)).await,
        (Route::ClusterBackup, _) => Box::pin(backup::backup(call)).await,
        (Route::ClusterMoves, _) => cluster::moves(call).await,
        (Route::ClusterDecommission, Verb::Delete) => Box::pin(cluster::recommission(call)).await,
        (Route::ClusterDecommission, _) => Box::pin(cluster::decommission(call)).await,
        (Route::ClusterForget, _) => Box::pin(cluster::forget(call)).await,
        (Route::ClusterAbort, _) => Box::pin(cluster::abort(call)).await,
        (Route::Users, Verb::Post) => Box::pin(users::create(call, body)).await,
        (Route::Users, _) => Ok(users::list(call, UserKind::Person)),
        (Route::User, Verb::Delete) => Box::pin(users::delete(call, UserKind::Person)).await,
        (Route::User, _) => Box::pin(users::describe(call, UserKind::Person)).await,
        (Route::Grants, _) => Box::pin(users::set_grants(call, body, UserKind::Person)).await,
        (Route::Password, _) => Box::pin(users::set_password(call, body)).await,
        (Route::Tenants, _) => tenants::list(call),
        (Route::Tenant, Verb::Put) => Box::pin(tenants::put(call, body)).await,
        (Route::Tenant, Verb::Delete) => Box::pin(tenants::delete(call)).await,
        (Route::Tenant, _) => Box::pin(tenants::describe(call)).await,
        (Route::TenantUsers, _) => Box::pin(tenants::users(call)).await,
        (Route::TenantUser, Verb::Delete) => Box::pin(tenants::delete_user(call)).await,
        (Route::TenantUser, _) => Box::pin(tenants::put_user(call, body)).await,
        (Route::Accounts, Verb::Post) => Box::pin(accounts::create(call, body)).await,
        (Route::Accounts, _) => Ok(users::list(call, UserKind::Service)),
        (Route::Account, Verb::Delete) => Box::pin(users::delete(call, UserKind::Service)).await,
        (Route::Account, _) => Box::pin(users::describe(call, UserKind::Service)).await,
        (Route::AccountGrants, _) => Box::pin(users::set_grants(call, body, UserKind::Service)).await,
        (Route::Keys, Verb::Post) => Box::pin(accounts::create_key(call, body)).await,
        (Route::Keys, _) => Box::pin(accounts::list_keys(call)).await,
        (Route::Key, _) => Box::pin(accounts::delete_key(call)).await,
        (Route::Whoami, _) => Ok(accounts::whoami(call)),
        (Route::Audit, _) => Box::pin(audit::own(call)).await,
        (Route::AdminAudit, _) => Box::pin(audit::of_tenant(call)).await,
        (Route::Explain, _) => Box::pin(explain::explain(call)).await,
        (Route::TenantQuota, Verb::Put) => Box::pin(quota::set(call, body)).await,
        (Route::TenantQuota, _) => Box::pin(quota::describe(call)).await,
        (Route::AdminUsage, _) => Ok(Box::pin(usage::all(call)).await),
        (Route::Quota, _) => Ok(quota::own(call)),
        (Route::Usage, _) => Ok(Box::pin(usage::own(call)).await),
        (Route::TokenIssuer, Verb::Put) => Box::pin(issuer::put(call, body)).await,
        (Route::TokenIssuer, Verb::Delete) => Box::pin(issuer::delete(call)).await,
        (Route::TokenIssuer, _) => Box::pin(issuer::describe(call)).await,
        (Route::Healthz, _) => Ok(health::healthz(call)),
        (Route::Readyz, _) => health::readyz(call),
        (Route::Metrics, _) => Box::pin(health::metrics(call)).await,
    }
}

/// The size of the head as it was sent, near enough.
fn head_bytes(parts: &Parts) -> usize {
    let target = parts.uri.path().len() + parts.uri.query().map_or(0, |query| query.len() + 1);
    let headers: usize = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    parts.method.as_str().len() + target + 12 + headers
}

fn is_safe_across_sites(headers: &HeaderMap) -> bool {
    let has_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(|value| {
        let media = value.split(';').next().unwrap_or_default().trim();
        media.eq_ignore_ascii_case("application/json") || media.eq_ignore_ascii_case("application/octet-stream")
    });
    has_type || names_its_client(headers)
}

fn names_its_client(headers: &HeaderMap) -> bool {
    ["x-narad-client", "x-veena-client"].iter().any(|name| headers.get(*name).is_some_and(|value| !value.is_empty()))
}

fn content_length(headers: &HeaderMap) -> u64 {
    headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0)
}

/// Counts a request when it ends, also when its client leaves.
struct Counted<'a> {
    metrics: &'a Metrics,
    row: Row,
    began: Instant,
    status: u16,
    bytes_in: u64,
    bytes_out: u64,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.metrics.end(self.row, self.status, self.began.elapsed(), self.bytes_in, self.bytes_out);
    }
}

/// The plane as a router, for tests and for merging with other planes. Leases of an answer count once its body was taken; only
/// [`crate::serve`] knows about sockets.
pub fn router(state: ApiState) -> axum::Router {
    axum::Router::new().fallback_service(tower::service_fn(move |request: Request<axum::body::Body>| {
        let state = state.clone();
        async move {
            let is_head = request.method() == Method::HEAD;
            let answer = handle(&state, None, request.map(RequestBody::Boxed)).await;
            let answer = if is_head { answer.map(|_| axum::body::Body::empty()) } else { answer.map(axum::body::Body::new) };
            Ok::<_, Infallible>(answer)
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_parked_request_is_small() {
        fn bytes<F>(_: impl Fn(&'static ApiState, Option<&'static Arc<Conn>>, Request<RequestBody>) -> F) -> usize {
            size_of::<F>()
        }
        let bytes = bytes(handle);
        assert!(bytes <= 3072, "one request in flight takes {bytes} bytes, and there may be ten thousand parked");
    }

    #[test]
    fn a_write_that_a_web_page_could_send_is_not_safe() {
        for pairs in [&[][..], &[("content-type", "text/plain")], &[("x-narad-client", "")], &[("content-type", "application/jsonx")]] {
            assert!(!is_safe_across_sites(&headers(pairs)), "{pairs:?}");
        }
        for pairs in [
            &[("content-type", "application/json; charset=utf-8")][..],
            &[("content-type", "Application/Octet-Stream")],
            &[("x-narad-client", "go")],
            &[("x-veena-client", "cli")],
        ] {
            assert!(is_safe_across_sites(&headers(pairs)), "{pairs:?}");
        }
    }
}
