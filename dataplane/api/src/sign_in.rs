//! From a request's head to its caller. Nothing that is refused here has been looked at any further.

use std::net::IpAddr;

use http::StatusCode;
use http::header::AUTHORIZATION;
use http::request::Parts;
use tokio::time::Instant;
use tracing::info;
use veena_auth::{ApiKey, AuthError, InvalidApiKey, KeyKind, PasswordHash, Token};
use veena_contract::{Actor, CatalogView, Effect, ErrorCode, TenantState};

use crate::problem::Problem;
use crate::rights::{Caller, Need};
use crate::route::Route;
use crate::state::ApiState;

/// Who sends this, `from` there? A path that is no route, and a method that a route does not serve, are told to users only.
pub(crate) async fn caller(state: &ApiState, from: Option<IpAddr>, parts: &Parts, route: Option<Route>) -> Result<Caller, Problem> {
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
    if let Some(token) = header.and_then(Token::of_bearer) {
        let caller = by_token(state, token);
        state.metrics.signed_in(caller.is_err().then_some(AuthError::Wrong));
        return caller;
    }
    if let Some(key) = header.and_then(ApiKey::of_bearer) {
        let caller = by_key(state, key);
        state.metrics.signed_in(caller.is_err().then_some(AuthError::Wrong));
        return caller;
    }
    let mut checked = None;
    let lookup = |actor: &Actor| {
        let view = state.view();
        // Of a tenant that goes nobody is known any more.
        let is_there = matches!(view.tenant_state(&actor.tenant), Some(TenantState::Active | TenantState::Suspended));
        checked = view.user(&actor.tenant, &actor.username).filter(|_| is_there).cloned();
        PasswordHash::try_from(checked.as_ref()?.hash.as_ref()?).ok()
    };
    let signed_in = state.parts.authenticator.authenticate(header, from, lookup).await;
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

/// Who signs in with this key? Whatever is wrong with it, nobody learns what. Nothing here waits, and what is not even a key is not looked up.
fn by_key(state: &ApiState, key: Result<ApiKey, InvalidApiKey>) -> Result<Caller, Problem> {
    let key = key.ok().filter(|key| key.kind() == KeyKind::Service).ok_or_else(Problem::unauthenticated)?;
    let (view, now_ms) = (state.view(), state.parts.clock.now_ms());
    let caller = key_holder(&view, &key, now_ms)?;
    state.parts.broker.key_uses().note(&view, key.id(), now_ms);
    Ok(caller)
}

/// Who signs in with this token? As with a key: nobody learns what is wrong with one, and nothing here waits.
fn by_token(state: &ApiState, token: Token<'_>) -> Result<Caller, Problem> {
    let (view, now_ms) = (state.view(), state.parts.clock.now_ms());
    let issuer = view.token_issuer.as_ref().ok_or_else(Problem::unauthenticated)?;
    let token = state.parts.authenticator.verify_token(token, issuer, now_ms).map_err(|_| Problem::unauthenticated())?;
    Caller::of_token(&view, token, now_ms)
}

/// The service account whose key this is.
fn key_holder(view: &CatalogView, key: &ApiKey, now_ms: u64) -> Result<Caller, Problem> {
    let record = view.key(&key.id()).filter(|record| key.is(&record.hash)).ok_or_else(Problem::unauthenticated)?;
    Caller::of_key(view, record, now_ms)
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use veena_contract::{Grants, KeyRecord, TenantId, TenantRecord, UserKind, UserRecord, Username, limits};

    use veena_broker::key_uses::KeyUses;

    use super::*;

    /// Printed, for whoever wants to know: `cargo nextest run --release --no-capture a_key_is_checked`.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "how long it takes is printed")]
    fn a_key_is_checked_among_as_many_as_there_may_be() {
        const ACCOUNTS: usize = 10_000;
        const SHOWN: usize = 997;
        let (mut view, mut shown) = (CatalogView::default(), Vec::new());
        for n in 0..ACCOUNTS {
            let (tenant, username) = (TenantId::parse(&format!("t{n}")).expect("a tenant"), Username::parse("ci").expect("a name"));
            let user = UserRecord {
                tenant,
                username,
                kind: UserKind::Service,
                hash: None,
                grants: Grants::none(),
                is_root: false,
                created_at_ms: 1,
                updated_at_ms: 1,
                revision: 0,
            };
            let (tenant, state) = (user.tenant.clone(), TenantState::Active);
            let record = TenantRecord { tenant, state, revision: 1, created_at_ms: 1, updated_at_ms: 1, by_hand: false };
            view.tenants.insert(user.tenant.clone(), Arc::new(record));
            view.users.insert((user.tenant.clone(), user.username.clone()), Arc::new(user));
        }
        let accounts: Vec<Arc<UserRecord>> = view.users.values().cloned().collect();
        for n in 0..limits::KEYS_MAX {
            let key = ApiKey::random(KeyKind::Service).expect("random");
            let account = &accounts[n % ACCOUNTS];
            let (tenant, username, hash) = (account.tenant.clone(), account.username.clone(), key.hash());
            let (scopes, created_by, description) = (None, None, None);
            let record = KeyRecord {
                id: key.id(),
                tenant,
                username,
                hash,
                scopes,
                created_at_ms: 1,
                created_by,
                expires_at_ms: Some(9),
                description,
            };
            view.keys.insert(key.id(), Arc::new(record));
            if n % SHOWN == 0 {
                shown.push(format!("Bearer {}", key.expose()));
            }
        }
        let (uses, began, rounds) = (KeyUses::default(), Instant::now(), 200);
        for header in (0..rounds).flat_map(|_| &shown) {
            let key = ApiKey::of_bearer(header.as_bytes()).expect("of this scheme").expect("a key");
            let caller = key_holder(&view, &key, 5).expect("known");
            uses.note(&view, key.id(), 5);
            assert!(caller.key().is_some());
        }
        let checks = u32::try_from(rounds * shown.len()).expect("few");
        println!("one check among {} keys: {:?}", view.keys.len(), began.elapsed() / checks);
    }
}
