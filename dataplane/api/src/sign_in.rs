//! From a request's head to its caller. Nothing that is refused here has been looked at any further.

use http::StatusCode;
use http::header::AUTHORIZATION;
use http::request::Parts;
use tokio::time::Instant;
use tracing::info;
use veena_auth::{AuthError, PasswordHash};
use veena_contract::{Actor, Effect, ErrorCode, TenantState};

use crate::problem::Problem;
use crate::rights::{Caller, Need};
use crate::route::Route;
use crate::state::ApiState;

/// Who sends this? A path that is no route, and a method that a route does not serve, are told to users only.
pub(crate) async fn caller(state: &ApiState, parts: &Parts, route: Option<Route>) -> Result<Caller, Problem> {
    if !state.config.security_enabled || route.is_some_and(|route| is_open(state, route)) {
        return Ok(Caller::Anybody);
    }
    if state.contact.is_lost() {
        return Err(Problem::security_stale());
    }
    let mut headers = parts.headers.get_all(AUTHORIZATION).iter().map(|value| value.as_bytes());
    let header = headers.next();
    if headers.next().is_some() {
        // A proxy may look at one of them, and this node at the other.
        state.metrics.signed_in(Some(AuthError::Wrong));
        return Err(Problem::unauthenticated());
    }
    let mut checked = None;
    let lookup = |actor: &Actor| {
        let view = state.view();
        // Of a tenant that goes nobody is known any more.
        let is_there = matches!(view.tenant_state(&actor.tenant), Some(TenantState::Active | TenantState::Suspended));
        checked = view.user(&actor.tenant, &actor.username).filter(|_| is_there).cloned();
        PasswordHash::try_from(&checked.as_ref()?.hash).ok()
    };
    let signed_in = state.parts.authenticator.authenticate(header, lookup).await;
    state.metrics.signed_in(signed_in.as_ref().err().copied());
    if let (Err(AuthError::Throttled { .. }), Some(user)) = (&signed_in, &checked)
        && let Some(left_out) = state.throttled_lines.lock().admit(Instant::now().into_std())
    {
        info!(left_out, user = %user.username, "too many wrong passwords were sent for this user: for a while none is looked at");
    }
    signed_in?;
    // Whoever had to wait may be somebody else by now.
    let checked = checked.ok_or_else(Problem::unauthenticated)?;
    Caller::of(state, &checked)
}

fn is_open(state: &ApiState, route: Route) -> bool {
    let is_open = |need| match need {
        Need::Anybody => true,
        Need::Counters => state.config.metrics_unauthenticated,
        _ => false,
    };
    route.methods().iter().all(|(_, need)| is_open(*need))
}

impl From<AuthError> for Problem {
    fn from(error: AuthError) -> Self {
        let text = error.to_string();
        let later = |after: std::time::Duration| u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        match error {
            AuthError::Missing | AuthError::Wrong => Self::unauthenticated(),
            AuthError::Throttled { retry_after } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, ErrorCode::RateLimited, text).retry_after_ms(later(retry_after))
            }
            AuthError::Busy { retry_after } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Overloaded, text).retry_after_ms(later(retry_after))
            }
            AuthError::Unavailable => Self::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Internal, text).effect(Effect::None),
        }
    }
}
