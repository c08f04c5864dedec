//! Service accounts and their keys, and who one is. A key is shown in the answer that creates it and nowhere else; another tenant's account
//! or key is not there.

use std::sync::Arc;

use http::header::CACHE_CONTROL;
use http::{HeaderValue, StatusCode};
use veena_auth::{ApiKey, KeyKind};
use veena_broker::quota::exchange::KeysEverywhere;
use veena_client::bodies::{Account, CreateAccount, CreateKey, CreatedKey, Key, Whoami};
use veena_contract::{CatalogView, Command, CommandError, Grants, KeyId, KeyRecord, UserKind, UserRecord, Username, limits};

use crate::answer::{self, Answer};
use crate::body::RequestBody;
use crate::children::too_large_is_400;
use crate::edge::Call;
use crate::problem::Problem;
use crate::users::{self, decode, find, granted, grants, named, view_with};

/// What is secret is kept by nobody on its way.
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// `POST /v1/accounts`.
pub(crate) async fn create(call: &Call<'_>, body: RequestBody) -> Result<Answer, Problem> {
    let body = call.body(body, limits::JSON_BODY_BYTES_MAX).await.map_err(too_large_is_400)?;
    let asked: CreateAccount = decode(&body)?;
    // The names are those of users; the text speaks of an account.
    let username = Username::parse(&asked.name).map_err(|error| Problem::invalid(error.to_string().replacen("username", "name", 1)))?;
    let grants = grants(asked.grants.unwrap_or_default())?;
    call.caller.can_confer(&grants)?;
    users::insert(call, username, UserKind::Service, None, grants).await
}

pub(crate) fn shape(record: &UserRecord) -> Account {
    Account {
        name: record.username.to_string(),
        grants: granted(&record.grants),
        created_at_ms: record.created_at_ms,
        updated_at_ms: record.updated_at_ms,
    }
}

fn shape_of_key(call: &Call<'_>, key: &KeyRecord, used: &KeysEverywhere) -> Key {
    Key {
        id: key.id.to_string(),
        description: key.description.as_deref().map(str::to_owned),
        scopes: key.scopes.as_ref().map(granted),
        created_at_ms: key.created_at_ms,
        created_by: key.created_by.as_deref().map(str::to_owned),
        expires_at_ms: key.expires_at_ms,
        expired: key.is_expired(call.state.parts.clock.now_ms()),
        last_used_ms: used.last_ms.get(&key.id).copied(),
        nodes_silent: used.silent as u64,
    }
}

/// `GET /v1/accounts/{account}/keys`.
pub(crate) async fn list_keys(call: &Call<'_>) -> Result<Answer, Problem> {
    let name = named(call, UserKind::Service)?;
    let view = view_with(call, |view| find(call, view, &name, UserKind::Service).is_ok()).await?;
    find(call, &view, &name, UserKind::Service)?;
    let ids = view.keys_of(call.tenant(), &name).map(|key| key.id).collect();
    let used = call.state.parts.broker.keys_used_everywhere(ids).await;
    let keys: Vec<Key> = view.keys_of(call.tenant(), &name).map(|key| shape_of_key(call, key, &used)).collect();
    Ok(answer::json(StatusCode::OK, &keys))
}

/// `POST /v1/accounts/{account}/keys`.
pub(crate) async fn create_key(call: &Call<'_>, body: RequestBody) -> Result<Answer, Problem> {
    let username = named(call, UserKind::Service)?;
    let body = call.body(body, limits::JSON_BODY_BYTES_MAX).await.map_err(too_large_is_400)?;
    let asked: CreateKey = decode(&body)?;
    let scopes = asked.scopes.map(scopes).transpose()?;
    let description = asked.description.as_deref().map(description).transpose()?;
    let created_at_ms = call.state.parts.clock.now_ms();
    let expires_at_ms = asked.expires_in_ms.map(|life_ms| life(life_ms).map(|life_ms| created_at_ms + life_ms)).transpose()?;
    let key = ApiKey::random(KeyKind::Service)
        .map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, veena_contract::ErrorCode::Internal, error.to_string()))?;
    let (tenant, id, hash) = (call.tenant().clone(), key.id(), key.hash());
    // Who creates it is written down where the command is applied.
    let record = KeyRecord { id, tenant, username, hash, scopes, created_at_ms, created_by: None, expires_at_ms, description };
    let view = users::change(call, Command::CreateKey { key: record.clone() }).await?;
    let record = view.key(&id).ok_or(CommandError::AccountNotFound)?;
    let created = CreatedKey { record: shape_of_key(call, record, &KeysEverywhere::default()), key: key.expose().to_owned().into() };
    let mut answer = answer::json(StatusCode::CREATED, &created);
    answer.headers_mut().insert(CACHE_CONTROL, NO_STORE);
    Ok(answer)
}

/// A key that may do nothing would be a mistake.
fn scopes(asked: Vec<veena_client::bodies::Grant>) -> Result<Grants, Problem> {
    if asked.is_empty() {
        return Err(Problem::invalid("scopes must not be empty: leave it out for all that the account may do"));
    }
    grants(asked)
}

fn description(text: &str) -> Result<Arc<str>, Problem> {
    let max = limits::KEY_DESCRIPTION_BYTES_MAX;
    if text.len() > max || text.chars().any(char::is_control) {
        return Err(Problem::invalid(format!("description must be up to {max} bytes without control characters")));
    }
    Ok(text.into())
}

fn life(asked_ms: i64) -> Result<u64, Problem> {
    let max = limits::KEY_LIFE_MS_MAX;
    let life_ms = u64::try_from(asked_ms).ok().filter(|life_ms| (1..=max).contains(life_ms));
    life_ms.ok_or_else(|| Problem::invalid(format!("expires_in_ms must be 1 to {max}")))
}

/// `DELETE /v1/accounts/{account}/keys/{key}`.
pub(crate) async fn delete_key(call: &Call<'_>) -> Result<Answer, Problem> {
    let name = named(call, UserKind::Service)?;
    let missing = || Problem::new(StatusCode::NOT_FOUND, veena_contract::ErrorCode::NotFound, "key not found");
    let id = KeyId::parse(&call.path.third).map_err(|_| missing())?;
    let is_there = |view: &CatalogView| view.keys_of(call.tenant(), &name).any(|key| key.id == id);
    let view = view_with(call, is_there).await?;
    find(call, &view, &name, UserKind::Service)?;
    if !is_there(&view) {
        return Err(missing());
    }
    let command = Command::DeleteKey { tenant: call.tenant().clone(), username: name.clone(), id };
    users::change(call, command).await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}

/// `GET /v1/whoami`.
pub(crate) fn whoami(call: &Call<'_>) -> Answer {
    let (record, key) = (call.caller.record(), call.caller.key());
    let told = Whoami {
        tenant: call.tenant().to_string(),
        name: record.map(|record| record.username.to_string()),
        kind: record.map(|record| record.kind.as_str().to_owned()),
        key_id: key.map(|key| key.id.to_string()),
        grants: record.map(|record| granted(&record.grants)).unwrap_or_default(),
        scopes: key.and_then(|key| key.scopes.as_ref()).map(granted),
        root: record.is_some_and(|record| record.is_root),
        operator: call.tenant().is_default() && call.caller.may_administer().is_ok(),
        token_expires_at_ms: call.caller.token().map(|token| token.expires_at_ms()),
    };
    answer::json(StatusCode::OK, &told)
}
