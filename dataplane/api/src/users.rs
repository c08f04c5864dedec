//! Users, and service accounts where they are alike: create, list, show, delete, and what they may do (http-contract 1.5). Nothing here prints a password or what is stored of one.

use std::sync::Arc;

use http::StatusCode;
use serde::Deserialize;
use tracing::info;
use veena_auth::{AuthError, Password};
use veena_client::bodies::{CreateUser, Grant, PasswordText, SetGrants, SetPassword, User};
use veena_contract::{
    CatalogView, Command, CommandError, ErrorCode, GrantText, Grants, StoredHash, UserKind, UserRecord, Username, limits,
};

use crate::accounts;
use crate::answer::{self, Answer};
use crate::body::RequestBody;
use crate::catalog;
use crate::children::too_large_is_400;
use crate::edge::Call;
use crate::json;
use crate::problem::Problem;

/// `POST /v1/users`.
pub(crate) async fn create(call: &Call<'_>, body: RequestBody) -> Result<Answer, Problem> {
    let body = call.body(body, limits::JSON_BODY_BYTES_MAX).await.map_err(too_large_is_400)?;
    let asked: CreateUser = decode(&body)?;
    let username = Username::parse(&asked.username).map_err(|error| Problem::invalid(error.to_string()))?;
    let password = password(asked.password)?;
    let grants = grants(asked.grants.unwrap_or_default())?;
    call.caller.can_confer(&grants)?;
    // A name that is taken is not worth a computation.
    if let Some(known) = call.state.view().user(call.tenant(), &username) {
        return Err(if known.is_person() { CommandError::UserExists } else { CommandError::AccountExists }.into());
    }
    if call.tenant().is_default() && username == Username::root() {
        let text = format!("the name {username} is the root admin's, whom the cluster creates itself: a moment after it has a leader");
        return Err(Problem::new(StatusCode::CONFLICT, ErrorCode::AlreadyExists, text));
    }
    let hash = Some(call.state.parts.authenticator.hash(password).await?.into());
    insert(call, username, UserKind::Person, hash, grants).await
}

/// Has a user, or a service account, created.
pub(crate) async fn insert(
    call: &Call<'_>,
    username: Username,
    kind: UserKind,
    hash: Option<StoredHash>,
    grants: Grants,
) -> Result<Answer, Problem> {
    let (tenant, at_ms) = (call.tenant().clone(), call.state.parts.clock.now_ms());
    let (created_at_ms, updated_at_ms, name) = (at_ms, at_ms, username.clone());
    let user = UserRecord { tenant, username, kind, hash, grants, is_root: false, created_at_ms, updated_at_ms, revision: 0 };
    let view = change(call, Command::CreateUser { user }).await?;
    Ok(shown(StatusCode::CREATED, find(call, &view, &name, kind)?))
}

/// Has a change of the users made, and says in the log that it was; never what a password is, or what is stored of one.
pub(crate) async fn change(call: &Call<'_>, command: Command) -> Result<Arc<CatalogView>, Problem> {
    let view = catalog::propose(call, |_| Ok(command.clone())).await?;
    let (action, tenant, user) = match &command {
        Command::CreateUser { user } => ("create", &user.tenant, &user.username),
        Command::DeleteUser { tenant, username, .. } => ("delete", tenant, username),
        Command::SetGrants { tenant, username, .. } => ("set grants", tenant, username),
        Command::SetPassword { tenant, username, .. } => ("set password", tenant, username),
        Command::PutUser { tenant, username, .. } => ("put", tenant, username),
        Command::CreateKey { key } => ("create key", &key.tenant, &key.username),
        Command::DeleteKey { tenant, username, .. } => ("delete key", tenant, username),
        _ => return Ok(view),
    };
    let actor = call.caller.username().map_or("anybody", Username::as_str);
    info!(actor, action, %user, %tenant, "a user was changed");
    Ok(view)
}

/// As for other bodies; but what is no object may be a password alone, and is not shown.
pub(crate) fn decode<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    match body.trim_ascii_start().first() {
        Some(b'{') | None => json::decode(body),
        Some(_) => Err(Problem::malformed("invalid json: expected an object")),
    }
}

pub(crate) fn password(text: PasswordText) -> Result<Password, Problem> {
    Password::new(text.into_text()).map_err(|error| Problem::invalid(error.to_string()))
}

pub(crate) fn grants(asked: Vec<Grant>) -> Result<Grants, Problem> {
    let texts: Vec<GrantText> = asked.into_iter().map(|grant| GrantText { action: grant.action, patterns: grant.patterns }).collect();
    Grants::parse(&texts).map_err(|error| Problem::invalid(error.to_string()))
}

/// Grants as they are shown.
pub(crate) fn granted(grants: &Grants) -> Vec<Grant> {
    let grants: Vec<GrantText> = grants.clone().into();
    grants.into_iter().map(|grant| Grant { action: grant.action, patterns: grant.patterns }).collect()
}

pub(crate) fn shape(record: &UserRecord) -> User {
    User {
        username: record.username.to_string(),
        grants: granted(&record.grants),
        root: record.is_root,
        created_at_ms: record.created_at_ms,
        updated_at_ms: record.updated_at_ms,
        revision: record.revision,
    }
}

fn shown(status: StatusCode, record: &UserRecord) -> Answer {
    match record.kind {
        UserKind::Person => answer::json(status, &shape(record)),
        UserKind::Service => answer::json(status, &accounts::shape(record)),
    }
}

fn not_found(kind: UserKind) -> Problem {
    match kind {
        UserKind::Person => CommandError::UserNotFound.into(),
        UserKind::Service => CommandError::AccountNotFound.into(),
    }
}

/// The user, or the service account, that the path names. A name that none can have names none.
pub(crate) fn named(call: &Call<'_>, kind: UserKind) -> Result<Username, Problem> {
    Username::parse(&call.path.second).map_err(|_| not_found(kind))
}

/// Neither is taken for the other.
pub(crate) fn find<'a>(call: &Call<'_>, view: &'a CatalogView, name: &Username, kind: UserKind) -> Result<&'a Arc<UserRecord>, Problem> {
    view.user(call.tenant(), name).filter(|user| user.kind == kind).ok_or_else(|| not_found(kind))
}

/// The newest view that this node has, if it is as one asks of it; otherwise the leader's. A node of a cluster says that something is not
/// there only when the leader does not know it either.
pub(crate) async fn view_with(call: &Call<'_>, is_there: impl Fn(&CatalogView) -> bool) -> Result<Arc<CatalogView>, Problem> {
    let view = call.state.view();
    if call.state.parts.cluster.is_some() && !is_there(&view) {
        return Ok(call.state.parts.leader.confirmed_view().await?);
    }
    Ok(view)
}

/// `GET /v1/users`, `GET /v1/accounts`.
pub(crate) fn list(call: &Call<'_>, kind: UserKind) -> Answer {
    let view = call.state.view();
    let listed = view.users_of(call.tenant()).filter(|user| user.kind == kind);
    match kind {
        UserKind::Person => answer::json(StatusCode::OK, &listed.map(|user| shape(user)).collect::<Vec<_>>()),
        UserKind::Service => answer::json(StatusCode::OK, &listed.map(|user| accounts::shape(user)).collect::<Vec<_>>()),
    }
}

/// `GET /v1/users/{user}`, `GET /v1/accounts/{account}`.
pub(crate) async fn describe(call: &Call<'_>, kind: UserKind) -> Result<Answer, Problem> {
    let name = named(call, kind)?;
    let view = view_with(call, |view| find(call, view, &name, kind).is_ok()).await?;
    Ok(shown(StatusCode::OK, find(call, &view, &name, kind)?))
}

/// `DELETE /v1/users/{user}`, `DELETE /v1/accounts/{account}`: its keys go with it.
pub(crate) async fn delete(call: &Call<'_>, kind: UserKind) -> Result<Answer, Problem> {
    let command = Command::DeleteUser { tenant: call.tenant().clone(), username: named(call, kind)?, kind, by_hand: true };
    change(call, command).await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}

/// `PUT /v1/users/{user}/grants`, `PUT /v1/accounts/{account}/grants`: all of them.
pub(crate) async fn set_grants(call: &Call<'_>, body: RequestBody, kind: UserKind) -> Result<Answer, Problem> {
    let username = named(call, kind)?;
    let body = call.body(body, limits::JSON_BODY_BYTES_MAX).await.map_err(too_large_is_400)?;
    let grants = grants(decode::<SetGrants>(&body)?.grants)?;
    call.caller.can_confer(&grants)?;
    let (tenant, at_ms) = (call.tenant().clone(), call.state.parts.clock.now_ms());
    let command = Command::SetGrants { tenant, username: username.clone(), kind, grants, at_ms };
    let view = change(call, command).await?;
    Ok(shown(StatusCode::OK, find(call, &view, &username, kind)?))
}

/// `PUT /v1/users/{user}/password`: a user who is no admin shows that they know the one they have.
pub(crate) async fn set_password(call: &Call<'_>, body: RequestBody) -> Result<Answer, Problem> {
    let username = named(call, UserKind::Person)?;
    // A service account is no user, not even to itself.
    if call.caller.record().is_some_and(|record| !record.is_person() && record.username == username) {
        return Err(CommandError::UserNotFound.into());
    }
    let body = call.body(body, limits::JSON_BODY_BYTES_MAX).await.map_err(too_large_is_400)?;
    let asked: SetPassword = decode(&body)?;
    let new = password(asked.new_password)?;
    let identity = call.identity();
    let mut turn = None;
    // Who is no admin any more shows it too.
    let checked = match call.caller.renewed(call.state)?.may_administer() {
        // Whoever was let in with a password that is being replaced does not set it back.
        Ok(()) => call.caller.actor().filter(|actor| actor.username == username).and_then(|actor| actor.checked),
        Err(_) => {
            // Whoever may do nothing else could keep the node from checking the passwords of others.
            turn = identity.as_ref().map(|identity| identity.change_password().ok_or_else(one_at_a_time)).transpose()?;
            Some(check_current(call, asked.current_password).await?)
        }
    };
    // A change that came meanwhile makes this one futile.
    call.look_again()?;
    let hash = call.state.parts.authenticator.hash(new).await?.into();
    let (tenant, at_ms) = (call.tenant().clone(), call.state.parts.clock.now_ms());
    let command = Command::SetPassword { tenant, username, hash, checked, at_ms };
    change(call, command).await?;
    drop(turn);
    Ok(answer::empty(StatusCode::NO_CONTENT))
}

fn one_at_a_time() -> Problem {
    let text = "another change of this password is under way";
    Problem::new(StatusCode::TOO_MANY_REQUESTS, ErrorCode::RateLimited, text).retry_after_ms(limits::PASSWORD_RETRY_MS)
}

/// Checks the caller's own password; what is stored of it.
async fn check_current(call: &Call<'_>, current: Option<PasswordText>) -> Result<StoredHash, Problem> {
    let incorrect = || Problem::forbidden("current password is incorrect".to_owned());
    let current = current.and_then(|text| Password::new(text.into_text()).ok()).ok_or_else(incorrect)?;
    let (actor, stored, hash) = call.caller.password().ok_or_else(Problem::unauthenticated)?;
    match call.state.parts.authenticator.check(&actor, call.source(), current, Some(&hash)).await {
        Ok(()) => Ok(stored.clone()),
        Err(AuthError::Wrong | AuthError::Missing) => Err(incorrect()),
        Err(other) => Err(other.into()),
    }
}
