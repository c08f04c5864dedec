//! Who calls, what each route needs of them, and whether they have it. The decisions are `auth`'s; this finds what they are made of.

use std::sync::Arc;

use http::StatusCode;
use veena_auth::{
    Action, Decision, Denied, NotHeld, PasswordHash, Principal, SignedToken, can_confer, decide, may_administer, may_copy_metadata,
    may_manage, may_operate, may_see, may_see_counters,
};
use veena_contract::{
    Actor, CatalogView, ErrorCode, Forbidden, Grants, KeyRecord, StoredHash, TenantId, TenantState, TopicName, TopicRecord, UserRecord,
    Username,
};

use crate::catalog;
use crate::edge::Call;
use crate::problem::Problem;
use crate::state::ApiState;

/// What a caller needs for a route and a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing, not even a name.
    Anybody,
    /// To be a user of the tenant `default`, unless the counters were opened to everybody.
    Counters,
    /// To be a user. What they may not see is left out.
    User,
    /// A grant of this action on the topic in the path.
    Do(Action),
    /// A grant of `create` on the name in the body, and to manage the parent named there. The handler asks.
    Create,
    /// Any grant on the topic in the path, or to own it.
    See,
    /// To own the topic in the path. Whether the child in the body is theirs too, the handler asks.
    Manage,
    /// To own the parent or the child in the path.
    ManageEither,
    /// To be the user in the path, or an admin.
    Oneself,
    /// To be an admin.
    Admin,
    /// To be the root admin.
    Root,
    /// To be an admin of the tenant `default`.
    Operator,
}

/// On whose behalf a request is served.
#[derive(Clone)]
pub(crate) enum Caller {
    /// Security is off, or the route is open: nobody was asked for.
    Anybody,
    /// This user or service account.
    User(Arc<UserRecord>, Principal, Means),
}

/// With what somebody has signed in.
#[derive(Clone)]
pub(crate) enum Means {
    /// A user, with the password.
    Password,
    /// A service account, with one of its keys.
    Key(Arc<KeyRecord>),
    /// Either, with a token that says so.
    Token(Arc<SignedToken>),
}

impl Caller {
    /// The user of this record, as the newest view knows them.
    ///
    /// # Errors
    /// There is no such user any more, or the password is another; or nobody of the user's tenant may do anything now.
    pub(crate) fn of(state: &ApiState, known: &UserRecord) -> Result<Self, Problem> {
        let view = state.view();
        let is_same = |record: &&Arc<UserRecord>| record.kind == known.kind && record.hash == known.hash;
        let record = view.user(&known.tenant, &known.username).filter(is_same);
        Self::from_record(&view, record.ok_or_else(Problem::unauthenticated)?, Means::Password)
    }

    /// The service account of this key, as this view knows it.
    ///
    /// # Errors
    /// There is no such key any more, or it has expired; or the tenant is suspended.
    pub(crate) fn of_key(view: &CatalogView, known: &KeyRecord, now_ms: u64) -> Result<Self, Problem> {
        let key = view.key(&known.id).filter(|key| ***key == *known && !key.is_expired(now_ms)).ok_or_else(Problem::unauthenticated)?;
        let account = view.user(&key.tenant, &key.username).filter(|user| !user.is_person()).ok_or_else(Problem::unauthenticated)?;
        Self::from_record(view, account, Means::Key(Arc::clone(key)))
    }

    /// Whom this token names, as this view knows them. That is never the root admin: whoever says whose tokens are taken need not be root, and
    /// would be by a token of their own.
    ///
    /// # Errors
    /// The token is over, its key is not good any more, or there is nobody of that name; or the tenant is suspended.
    pub(crate) fn of_token(view: &CatalogView, token: Arc<SignedToken>, now_ms: u64) -> Result<Self, Problem> {
        let actor = token.actor();
        let record = view.user(&actor.tenant, &actor.username).filter(|user| !user.is_root);
        let record = record.filter(|_| token.stands(view.token_issuer.as_ref(), now_ms)).ok_or_else(Problem::unauthenticated)?;
        Self::from_record(view, record, Means::Token(token))
    }

    fn from_record(view: &CatalogView, record: &Arc<UserRecord>, means: Means) -> Result<Self, Problem> {
        match view.tenant_state(&record.tenant) {
            Some(TenantState::Active) => {}
            Some(TenantState::Suspended) => return Err(Problem::tenant_suspended().said_to(record.actor())),
            Some(TenantState::Deleting) | None => return Err(Problem::unauthenticated()),
        }
        let (tenant, username, grants) = (record.tenant.clone(), record.username.clone(), record.grants.clone());
        let scopes = if let Means::Key(key) = &means { key.scopes.clone() } else { None };
        let principal = Principal { tenant, username, is_root: record.is_root, grants, scopes };
        Ok(Self::User(Arc::clone(record), principal, means))
    }

    /// The same caller, as the newest view knows them.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn renewed(&self, state: &ApiState) -> Result<Self, Problem> {
        match self {
            Self::Anybody => Ok(Self::Anybody),
            Self::User(record, _, Means::Password) => Self::of(state, record),
            Self::User(_, _, Means::Key(key)) => Self::of_key(&state.view(), key, state.parts.clock.now_ms()),
            Self::User(_, _, Means::Token(token)) => Self::of_token(&state.view(), Arc::clone(token), state.parts.clock.now_ms()),
        }
    }

    /// The user's name, if there is one.
    pub(crate) fn username(&self) -> Option<&Username> {
        match self {
            Self::Anybody => None,
            Self::User(record, ..) => Some(&record.username),
        }
    }

    /// Whose things the caller's are, if anybody was asked for.
    pub(crate) fn tenant(&self) -> Option<&TenantId> {
        match self {
            Self::Anybody => None,
            Self::User(record, ..) => Some(&record.tenant),
        }
    }

    /// On whose behalf changes are made.
    pub(crate) fn actor(&self) -> Option<Actor> {
        match self {
            Self::Anybody => None,
            Self::User(record, ..) => Some(record.actor()),
        }
    }

    /// What of the caller a decision needs; without security there is none to be made.
    fn decided(&self, decision: impl FnOnce(&Principal) -> Decision) -> Result<(), Problem> {
        match self {
            Self::Anybody => Ok(()),
            Self::User(_, principal, _) => Ok(decision(principal).map(drop)?),
        }
    }

    /// May they do this to the topic?
    pub(crate) fn may(&self, action: Action, topic: &TopicName) -> Result<(), Problem> {
        self.decided(|principal| decide(principal, action, topic))
    }

    /// May they see the topic?
    pub(crate) fn may_see(&self, topic: &TopicRecord) -> Result<(), Problem> {
        self.decided(|principal| may_see(principal, &topic.name, topic.owner.as_deref()))
    }

    /// May they change the topic?
    pub(crate) fn may_manage(&self, topic: &TopicRecord) -> Result<(), Problem> {
        self.decided(|principal| may_manage(principal, &topic.name, topic.owner.as_deref()))
    }

    /// May they manage the users of their tenant?
    pub(crate) fn may_administer(&self) -> Result<(), Problem> {
        self.decided(may_administer)
    }

    /// May they manage the cluster and its tenants?
    pub(crate) fn may_operate(&self) -> Result<(), Problem> {
        self.decided(may_operate)
    }

    /// May they see the counters?
    pub(crate) fn may_see_counters(&self) -> Result<(), Problem> {
        self.decided(may_see_counters)
    }

    /// May they have a copy of the metadata?
    pub(crate) fn may_copy_metadata(&self) -> Result<(), Problem> {
        self.decided(may_copy_metadata)
    }

    /// May they give these grants to somebody?
    pub(crate) fn can_confer(&self, grants: &Grants) -> Result<(), Problem> {
        match self {
            Self::Anybody => Ok(()),
            Self::User(_, principal, _) => Ok(can_confer(principal, grants)?),
        }
    }

    /// Would they be told of a topic of this name and owner?
    pub(crate) fn sees(&self, topic: &TopicName, owner: Option<&str>) -> bool {
        self.decided(|principal| may_see(principal, topic, owner)).is_ok()
    }

    /// The caller's record, if anybody was asked for.
    pub(crate) fn record(&self) -> Option<&UserRecord> {
        match self {
            Self::Anybody => None,
            Self::User(record, ..) => Some(record),
        }
    }

    /// The key that the caller signs in with, if it is one.
    pub(crate) fn key(&self) -> Option<&KeyRecord> {
        match self {
            Self::User(_, _, Means::Key(key)) => Some(key),
            _ => None,
        }
    }

    /// The token that the caller signs in with, if it is one.
    pub(crate) fn token(&self) -> Option<&SignedToken> {
        match self {
            Self::User(_, _, Means::Token(token)) => Some(token),
            _ => None,
        }
    }

    /// When that ends by itself with which the caller has signed in, if it does.
    pub(crate) fn ends_at_ms(&self) -> Option<u64> {
        self.key().and_then(|key| key.expires_at_ms).or_else(|| self.token().map(SignedToken::expires_at_ms))
    }

    /// Who the caller is and what is stored of their password, if they have one.
    pub(crate) fn password(&self) -> Option<(Actor, &StoredHash, PasswordHash)> {
        let record = self.record()?;
        let stored = record.hash.as_ref()?;
        Some((record.actor(), stored, PasswordHash::try_from(stored).ok()?))
    }
}

/// What decisions look at, of any user.
pub(crate) fn principal(record: &UserRecord) -> Principal {
    let UserRecord { tenant, username, is_root, grants, .. } = record;
    Principal { tenant: tenant.clone(), username: username.clone(), is_root: *is_root, grants: grants.clone(), scopes: None }
}

impl From<Denied> for Problem {
    fn from(denied: Denied) -> Self {
        Self::forbidden(denied.to_string())
    }
}

impl From<NotHeld> for Problem {
    fn from(missing: NotHeld) -> Self {
        Self::forbidden(missing.to_string())
    }
}

impl Problem {
    /// 401.
    pub(crate) fn unauthenticated() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, ErrorCode::Unauthenticated, "authentication required")
    }

    /// 403.
    pub(crate) fn forbidden(text: String) -> Self {
        Self::new(StatusCode::FORBIDDEN, ErrorCode::Forbidden, text)
    }

    /// 403: nobody of the caller's tenant may do anything now.
    pub(crate) fn tenant_suspended() -> Self {
        Self::new(StatusCode::FORBIDDEN, ErrorCode::TenantSuspended, Forbidden::TenantSuspended.to_string())
    }
}

/// Looks at what a caller needs before anybody is asked whether there is such a topic.
pub(crate) fn check(call: &Call<'_>, need: Need) -> Result<(), Problem> {
    match need {
        Need::Anybody | Need::User | Need::Create | Need::See | Need::Manage | Need::ManageEither => Ok(()),
        // A name that no topic can have is the handler's to refuse.
        Need::Do(action) => call.topic().map_or(Ok(()), |topic| call.caller.may(action, &topic)),
        Need::Oneself if call.caller.username().is_some_and(|name| *call.path.second == *name.as_str()) => Ok(()),
        Need::Oneself | Need::Admin => call.caller.may_administer(),
        Need::Root => call.caller.may_copy_metadata(),
        Need::Operator => call.caller.may_operate(),
        Need::Counters => call.caller.may_see_counters(),
    }
}

/// Looks at what depends on the topic's owner. A topic that is not there is nobody's: that is said to whoever asks.
pub(crate) fn check_topic(call: &Call<'_>, need: Need) -> Result<(), Problem> {
    if matches!(call.caller, Caller::Anybody) || !matches!(need, Need::See | Need::Manage | Need::ManageEither) {
        return Ok(());
    }
    let view = call.state.view();
    let topic = catalog::topic(call, &view, &call.topic()?)?;
    match need {
        Need::See => call.caller.may_see(topic),
        Need::ManageEither if child_is_theirs(call, &view) => Ok(()),
        _ => call.caller.may_manage(topic),
    }
}

fn child_is_theirs(call: &Call<'_>, view: &CatalogView) -> bool {
    let child = call.child().and_then(|name| catalog::topic(call, view, &name).cloned());
    child.and_then(|child| call.caller.may_manage(&child)).is_ok()
}
