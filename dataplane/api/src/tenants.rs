//! Tenants and their users, as operators manage them from outside. Everything may be said again: it is done once.

use std::ops::Bound;
use std::sync::Arc;

use http::StatusCode;
use veena_auth::PasswordHash;
use veena_client::bodies::{PasswordText, PutTenant, PutUser, Tenant, TenantList, User};
use veena_contract::{CatalogView, Command, CommandError, StoredHash, TenantId, TenantRecord, TenantState, UserKind, UserRecord, limits};

use crate::answer::{self, Answer};
use crate::body::RequestBody;
use crate::catalog;
use crate::children::too_large_is_400;
use crate::edge::Call;
use crate::problem::Problem;
use crate::query;
use crate::traces;
use crate::users;

/// `GET /v1/admin/tenants`.
pub(crate) fn list(call: &Call<'_>) -> Result<Answer, Problem> {
    let query::Page { limit, after } = query::page(call.query())?;
    let after = after.map(|token| TenantId::parse(&token).ok_or_else(query::bad_page_token)).transpose()?;
    let view = call.state.view();
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let mut rest = view.tenants.range((from, Bound::Unbounded)).map(|(_, record)| record);
    let tenants: Vec<Tenant> = rest.by_ref().take(limit).map(|record| shape(&view, record)).collect();
    let has_more = rest.next().is_some();
    let next_page_token = tenants.last().filter(|_| has_more).map_or_else(String::new, |last| last.tenant.clone());
    Ok(answer::json(StatusCode::OK, &TenantList { tenants, next_page_token }))
}

fn shape(view: &CatalogView, record: &TenantRecord) -> Tenant {
    let counts = view.counts_of(&record.tenant);
    Tenant {
        tenant: record.tenant.to_string(),
        state: record.state.as_str().to_owned(),
        revision: record.revision,
        created_at_ms: record.created_at_ms,
        updated_at_ms: record.updated_at_ms,
        topics: counts.topics as u64,
        users: counts.users as u64,
        left: None,
    }
}

/// The tenant that the path names. A name that no tenant can have names none.
pub(crate) fn named(call: &Call<'_>) -> Result<TenantId, Problem> {
    TenantId::parse(&call.path.tenant).ok_or_else(|| CommandError::TenantNotFound.into())
}

pub(crate) fn find<'a>(view: &'a CatalogView, tenant: &TenantId) -> Result<&'a Arc<TenantRecord>, Problem> {
    view.tenants.get(tenant).ok_or_else(|| CommandError::TenantNotFound.into())
}

/// A view that knows the tenant, if there is one. As for topics, a node of a cluster says that there is none only when the leader knows none
/// either.
pub(crate) async fn view_with(call: &Call<'_>, tenant: &TenantId) -> Result<Arc<CatalogView>, Problem> {
    let view = call.state.view();
    if call.state.parts.cluster.is_some() && find(&view, tenant).is_err() {
        return Ok(call.state.parts.leader.confirmed_view().await?);
    }
    Ok(view)
}

/// `GET /v1/admin/tenants/{tenant}`; of one that is being deleted, also what is left of it.
pub(crate) async fn describe(call: &Call<'_>) -> Result<Answer, Problem> {
    let tenant = named(call)?;
    let view = view_with(call, &tenant).await?;
    told(call, &view, &tenant, StatusCode::OK).await
}

async fn told(call: &Call<'_>, view: &CatalogView, tenant: &TenantId, status: StatusCode) -> Result<Answer, Problem> {
    let record = find(view, tenant)?;
    let mut body = shape(view, record);
    if record.state == TenantState::Deleting {
        let parts = &call.state.parts;
        let asked = std::slice::from_ref(tenant);
        body.left = traces::left(&parts.broker, parts.cluster.as_deref(), &parts.node, view, asked).await.pop();
    }
    Ok(answer::json(status, &body))
}

/// `PUT /v1/admin/tenants/{tenant}`.
pub(crate) async fn put(call: &Call<'_>, body: RequestBody) -> Result<Answer, Problem> {
    let tenant = TenantId::parse(&call.path.tenant)
        .ok_or_else(|| Problem::invalid("invalid tenant: want 1 to 63 of a-z 0-9 -, and the first no -"))?;
    let body = call.body(body, limits::JSON_BODY_BYTES_MAX).await.map_err(too_large_is_400)?;
    let asked: PutTenant = users::decode(&body)?;
    let state = match asked.state.as_str() {
        "active" => TenantState::Active,
        "suspended" => TenantState::Suspended,
        _ => return Err(Problem::invalid("invalid state: want active or suspended")),
    };
    let (revision, at_ms) = (revision(asked.revision)?, call.state.parts.clock.now_ms());
    let command = Command::PutTenant { tenant: tenant.clone(), state, revision, at_ms, by_hand: revision.is_none() };
    let view = catalog::propose(call, |_| Ok(command.clone())).await?;
    told(call, &view, &tenant, StatusCode::OK).await
}

pub(crate) fn revision(asked: Option<i64>) -> Result<Option<u64>, Problem> {
    asked.map(|asked| u64::try_from(asked).map_err(|_| Problem::invalid("revision must not be negative"))).transpose()
}

/// `DELETE /v1/admin/tenants/{tenant}`: begins it. The leader goes on by itself.
pub(crate) async fn delete(call: &Call<'_>) -> Result<Answer, Problem> {
    let tenant = named(call)?;
    let command = Command::DeleteTenant { tenant: tenant.clone(), at_ms: call.state.parts.clock.now_ms(), by_hand: true };
    let view = catalog::propose(call, |_| Ok(command.clone())).await?;
    told(call, &view, &tenant, StatusCode::ACCEPTED).await
}

/// `GET /v1/admin/tenants/{tenant}/users`.
pub(crate) async fn users(call: &Call<'_>) -> Result<Answer, Problem> {
    let tenant = named(call)?;
    let view = view_with(call, &tenant).await?;
    find(&view, &tenant)?;
    let users: Vec<User> = view.users_of(&tenant).filter(|user| user.is_person()).map(|user| users::shape(user)).collect();
    Ok(answer::json(StatusCode::OK, &users))
}

/// `PUT /v1/admin/tenants/{tenant}/users/{user}`.
pub(crate) async fn put_user(call: &Call<'_>, body: RequestBody) -> Result<Answer, Problem> {
    let tenant = named(call)?;
    let username = veena_contract::Username::parse(&call.path.second).map_err(|error| Problem::invalid(error.to_string()))?;
    let body = call.body(body, limits::JSON_BODY_BYTES_MAX).await.map_err(too_large_is_400)?;
    let asked: PutUser = users::decode(&body)?;
    // Read here, so that what is no password is refused before anything is looked up.
    asked.password.clone().map(users::password).transpose()?;
    let grants = asked.grants.map(users::grants).transpose()?;
    let revision = revision(asked.revision)?;
    if let Some(grants) = grants.as_ref().filter(|_| tenant == *call.tenant()) {
        call.caller.can_confer(grants)?;
    }
    let view = view_with(call, &tenant).await?;
    find(&view, &tenant)?;
    let hash = match asked.password {
        Some(password) => new_hash(call, view.user(&tenant, &username), password).await?,
        None if view.user(&tenant, &username).is_none() => return Err(Problem::invalid("password required: the user is new")),
        None => None,
    };
    let at_ms = call.state.parts.clock.now_ms();
    let command = Command::PutUser { tenant: tenant.clone(), username: username.clone(), hash, grants, revision, at_ms };
    let view = users::change(call, command).await?;
    let user = view.user(&tenant, &username).ok_or(CommandError::UserNotFound)?;
    Ok(answer::json(StatusCode::OK, &users::shape(user)))
}

/// What is to be stored of a password; nothing if the user has it already, so that it may be said again.
async fn new_hash(call: &Call<'_>, known: Option<&Arc<UserRecord>>, password: PasswordText) -> Result<Option<StoredHash>, Problem> {
    let authenticator = &call.state.parts.authenticator;
    if let Some(stored) = known.and_then(|user| PasswordHash::try_from(user.hash.as_ref()?).ok())
        && authenticator.is_of(stored, users::password(password.clone())?).await?
    {
        return Ok(None);
    }
    Ok(Some(authenticator.hash(users::password(password)?).await?.into()))
}

/// `DELETE /v1/admin/tenants/{tenant}/users/{user}`.
pub(crate) async fn delete_user(call: &Call<'_>) -> Result<Answer, Problem> {
    let (tenant, username) = (named(call)?, users::named(call, UserKind::Person)?);
    let view = view_with(call, &tenant).await?;
    find(&view, &tenant)?;
    users::change(call, Command::DeleteUser { tenant, username, kind: UserKind::Person, by_hand: true }).await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}
