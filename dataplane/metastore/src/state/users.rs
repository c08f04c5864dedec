//! Users, and what they may change (http-contract 1.5). A node decides before it proposes; this is the same decision over what is true when the
//! change is made: rights that were taken away in between are gone.

use std::sync::Arc;

use veena_contract::records::{Command, CommandError};
use veena_contract::{
    Action, Actor, FeatureLevel, Forbidden, Grants, KeyId, KeyRecord, Stamp, StoredHash, TenantId, TenantState, TopicName, TopicRecord,
    UserKind, UserRecord, Username, limits,
};

use super::State;
use super::tenants::next_revision;

impl State {
    /// Is the key with which the caller has signed in still theirs? It may have been deleted while the change was on its way, or its account,
    /// of whose name there may be another one.
    pub(super) fn key_stands(&self, caller: &Actor, from: &Stamp) -> Result<(), Forbidden> {
        let Some(id) = &from.key else { return Ok(()) };
        let key = KeyId::parse(id).ok().and_then(|id| self.view.key(&id).cloned());
        let is_theirs = |key: &KeyRecord| key.tenant == caller.tenant && key.username == caller.username && !key.is_expired(from.at_ms);
        if key.is_some_and(|key| is_theirs(&key)) { Ok(()) } else { Err(Forbidden::CallerUnknown) }
    }

    /// May this user make this change?
    pub(super) fn permit(&self, caller: &Actor, command: &Command, level: FeatureLevel) -> Result<(), CommandError> {
        let user = self.view.user(&caller.tenant, &caller.username).ok_or(Forbidden::CallerUnknown)?;
        if caller.checked.as_ref().is_some_and(|checked| Some(checked) != user.hash.as_ref()) {
            return Err(Forbidden::CallerUnknown.into());
        }
        match self.view.tenant_state(&caller.tenant) {
            Some(TenantState::Active) => {}
            Some(TenantState::Suspended) => return Err(Forbidden::TenantSuspended.into()),
            Some(TenantState::Deleting) | None => return Err(Forbidden::CallerUnknown.into()),
        }
        let Some(tenant) = tenant_of(command) else { return Ok(operate(user)?) };
        if caller.tenant != *tenant {
            return Ok(permit_from_outside(user, command)?);
        }
        let caller = &caller.username;
        let administer = || if user.is_admin() { Ok(()) } else { Err(Forbidden::NotAdmin) };
        let confer = |grants: &Grants| if grants.has_admin() && !user.is_root { Err(Forbidden::NotHeld) } else { administer() };
        match command {
            Command::CreateTopic { topic, attach } => {
                if !user.is_admin() && user.grants.covering(Action::Create, topic.name.as_str()).is_none() {
                    return Err(Forbidden::MayNotCreate.into());
                }
                attach.iter().try_for_each(|attach| self.manage(user, &attach.parent))?;
            }
            Command::DeleteTopic { name, .. }
            | Command::SetBounds { name, .. }
            | Command::GrowPartitions { name, .. }
            | Command::AddSchema { name, .. } => self.manage(user, name)?,
            Command::AttachChild { child, attach, .. } => {
                self.manage(user, &attach.parent)?;
                self.manage(user, child)?;
            }
            Command::DetachChild { parent, child, .. } => self.manage(user, parent).or_else(|_| self.manage(user, child))?,
            Command::CreateUser { user: new } if new.is_root => return Err(Forbidden::NotHeld.into()),
            Command::CreateUser { user: new } => {
                administer()?;
                confer(&new.grants)?;
            }
            Command::SetGrants { username, .. } if username == caller && !user.is_root => {
                administer()?;
                return Err(Forbidden::OwnGrants.into());
            }
            Command::SetGrants { grants, .. } => {
                administer()?;
                confer(grants)?;
            }
            Command::DeleteUser { username, .. } => {
                administer()?;
                if username == caller && !user.is_root {
                    return Err(Forbidden::OwnAccount.into());
                }
            }
            // Else a request that began with a password that was replaced meanwhile would take the user back. Older members did not ask.
            Command::SetPassword { username, checked: None, .. } if username == caller && level >= FeatureLevel::TENANTS => {
                return Err(CommandError::UserChanged);
            }
            Command::SetPassword { username, .. } if username == caller => {}
            Command::SetPassword { username, .. } => {
                administer()?;
                if self.view.user(tenant, username).is_some_and(|user| user.is_root) {
                    return Err(Forbidden::RootPassword.into());
                }
            }
            Command::PutUser { username, hash, grants, .. } => {
                operate(user)?;
                let is_root = self.view.user(tenant, username).is_some_and(|user| user.is_root);
                if grants.is_some() && username == caller {
                    return Err(if is_root { Forbidden::RootGrants } else { Forbidden::OwnGrants }.into());
                }
                if hash.is_some() && is_root && username != caller {
                    return Err(Forbidden::RootPassword.into());
                }
                grants.iter().try_for_each(confer)?;
            }
            Command::CreateKey { .. } | Command::DeleteKey { .. } => administer()?,
            Command::NameOwner { .. }
            | Command::BeginMove { .. }
            | Command::FreezePartition { .. }
            | Command::FlipOwner { .. }
            | Command::AbortMove { .. }
            | Command::SetDraining { .. }
            | Command::LetGo { .. }
            | Command::NodeGone { .. }
            | Command::PutTenant { .. }
            | Command::DeleteTenant { .. }
            | Command::TenantGone { .. }
            | Command::Note { .. }
            | Command::SetQuota { .. }
            | Command::PutTokenIssuer { .. }
            | Command::DeleteTokenIssuer => operate(user)?,
        }
        Ok(())
    }

    /// May this user change the topic? One that is not there is for the change to tell.
    fn manage(&self, user: &UserRecord, name: &TopicName) -> Result<(), Forbidden> {
        let Some(topic) = self.view.topic(&user.tenant, name) else { return Ok(()) };
        let is_theirs = topic.owner.as_deref() == Some(user.username.as_str());
        if is_theirs || user.is_admin() { Ok(()) } else { Err(Forbidden::NotOwner { topic: name.clone() }) }
    }

    pub(super) fn create_user(&mut self, mut user: UserRecord) -> Result<(), CommandError> {
        self.check_tenant(&user.tenant)?;
        let is_the_name_of_root = user.tenant.is_default() && user.username.as_str() == Username::ROOT;
        let known = self.view.user(&user.tenant, &user.username);
        if user.is_root != is_the_name_of_root || known.is_some() {
            let is_of_people = user.is_person() && known.is_none_or(|known| known.is_person());
            return Err(if is_of_people { CommandError::UserExists } else { CommandError::AccountExists });
        }
        if self.view.counts_of(&user.tenant).users >= limits::USERS_MAX {
            return Err(CommandError::LimitReached { detail: format!("there are at most {} users", limits::USERS_MAX) });
        }
        if self.view.users.len() >= limits::USERS_CLUSTER_MAX {
            return Err(CommandError::LimitReached { detail: "this cluster takes no more users".to_owned() });
        }
        user.revision = self.first_revision(&user.tenant.clone(), Some(&user.username.clone()), None, user.revision)?;
        self.insert_user(user);
        Ok(())
    }

    pub(super) fn put_user(
        &mut self,
        tenant: TenantId,
        username: Username,
        hash: Option<StoredHash>,
        grants: Option<Grants>,
        revision: Option<u64>,
        at_ms: u64,
    ) -> Result<(), CommandError> {
        self.check_tenant(&tenant)?;
        let Some(known) = self.view.user(&tenant, &username).map(|user| UserRecord::clone(user)) else {
            let hash = Some(hash.ok_or(CommandError::UserNotFound)?);
            let kind = UserKind::Person;
            let (grants, revision) = (grants.unwrap_or_default(), self.first_revision(&tenant, Some(&username), revision, 1)?);
            let (created_at_ms, updated_at_ms) = (at_ms, at_ms);
            return self.create_user(UserRecord {
                tenant,
                username,
                kind,
                hash,
                grants,
                is_root: false,
                created_at_ms,
                updated_at_ms,
                revision,
            });
        };
        if !known.is_person() {
            return Err(CommandError::AccountExists);
        }
        if known.is_root && grants.is_some() {
            return Err(Forbidden::RootGrants.into());
        }
        let is_same = hash.is_none() && grants.as_ref().is_none_or(|grants| *grants == known.grants);
        let revision = next_revision(revision, known.revision, is_same)?;
        if is_same && revision == known.revision {
            return Ok(());
        }
        let (hash, grants) = (hash.or_else(|| known.hash.clone()), grants.unwrap_or_else(|| known.grants.clone()));
        self.insert_user(UserRecord { hash, grants, revision, updated_at_ms: at_ms, ..known });
        Ok(())
    }

    pub(super) fn delete_user(
        &mut self,
        tenant: &TenantId,
        username: &Username,
        kind: UserKind,
        by_hand: bool,
    ) -> Result<(), CommandError> {
        let user = self.the_user(tenant, username, kind)?;
        if user.is_root {
            return Err(Forbidden::RootStays.into());
        }
        if by_hand {
            self.disown_topics_of(tenant, username);
            // One without a revision was never put by anybody from outside.
            if user.revision > 0 {
                self.bury(tenant, Some(username), user.revision);
            }
        }
        if self.view.users.remove(&(tenant.clone(), username.clone())).is_some() {
            self.count(tenant, |counts| counts.users = counts.users.saturating_sub(1));
        }
        self.delete_keys_of(tenant, username);
        Ok(())
    }

    /// Whoever gets the name next does not get the topics.
    fn disown_topics_of(&mut self, tenant: &TenantId, username: &Username) {
        let is_theirs = |topic: &&Arc<TopicRecord>| topic.owner.as_deref() == Some(username.as_str());
        for topic in self.view.topics_of(tenant).filter(is_theirs).cloned().collect::<Vec<_>>() {
            self.put(TopicRecord { owner: None, ..topic.as_ref().clone() });
        }
    }

    pub(super) fn set_grants(
        &mut self,
        tenant: &TenantId,
        username: &Username,
        kind: UserKind,
        grants: Grants,
        updated_at_ms: u64,
    ) -> Result<(), CommandError> {
        let user = self.the_user(tenant, username, kind)?;
        if user.is_root {
            return Err(Forbidden::RootGrants.into());
        }
        self.insert_user(UserRecord { grants, updated_at_ms, ..user });
        Ok(())
    }

    pub(super) fn set_password(
        &mut self,
        tenant: &TenantId,
        username: &Username,
        hash: StoredHash,
        checked: Option<&StoredHash>,
        updated_at_ms: u64,
    ) -> Result<(), CommandError> {
        let user = self.the_user(tenant, username, UserKind::Person)?;
        // Else whoever knows a password that was just replaced could take the user over.
        if checked.is_some_and(|checked| user.hash.as_ref() != Some(checked)) {
            return Err(CommandError::UserChanged);
        }
        self.insert_user(UserRecord { hash: Some(hash), updated_at_ms, ..user });
        Ok(())
    }

    pub(super) fn the_user(&self, tenant: &TenantId, username: &Username, kind: UserKind) -> Result<UserRecord, CommandError> {
        let user = self.view.user(tenant, username).filter(|user| user.kind == kind);
        let missing = if kind.is_person() { CommandError::UserNotFound } else { CommandError::AccountNotFound };
        user.map(|user| UserRecord::clone(user)).ok_or(missing)
    }

    pub(super) fn insert_user(&mut self, user: UserRecord) {
        let tenant = user.tenant.clone();
        if self.view.users.insert((tenant.clone(), user.username.clone()), Arc::new(user)).is_none() {
            self.count(&tenant, |counts| counts.users += 1);
        }
    }
}

/// May this user manage the cluster and its tenants?
fn operate(user: &UserRecord) -> Result<(), Forbidden> {
    match (user.tenant.is_default(), user.is_admin()) {
        (true, true) => Ok(()),
        (true, false) => Err(Forbidden::NotAdmin),
        (false, _) => Err(Forbidden::NotOperator),
    }
}

/// May this user change something of another tenant? Operators look after its users, and give them `admin` too. Its topics are its own.
fn permit_from_outside(user: &UserRecord, command: &Command) -> Result<(), Forbidden> {
    match command {
        Command::CreateUser { user: new } if new.is_root => Err(Forbidden::NotHeld),
        Command::CreateUser { .. }
        | Command::DeleteUser { .. }
        | Command::SetGrants { .. }
        | Command::SetPassword { .. }
        | Command::PutUser { .. }
        | Command::CreateKey { .. }
        | Command::DeleteKey { .. } => operate(user),
        _ => Err(Forbidden::CallerUnknown),
    }
}

/// Whose things a command changes. Nodes and tenants are nobody's but the operators'.
pub(super) fn tenant_of(command: &Command) -> Option<&TenantId> {
    match command {
        Command::CreateTopic { topic, .. } => Some(&topic.tenant),
        Command::CreateUser { user } => Some(&user.tenant),
        Command::CreateKey { key } => Some(&key.tenant),
        Command::DeleteTopic { tenant, .. }
        | Command::SetBounds { tenant, .. }
        | Command::GrowPartitions { tenant, .. }
        | Command::AddSchema { tenant, .. }
        | Command::AttachChild { tenant, .. }
        | Command::DetachChild { tenant, .. }
        | Command::DeleteUser { tenant, .. }
        | Command::SetGrants { tenant, .. }
        | Command::SetPassword { tenant, .. }
        | Command::DeleteKey { tenant, .. }
        | Command::PutUser { tenant, .. } => Some(tenant),
        Command::NameOwner { .. }
        | Command::BeginMove { .. }
        | Command::FreezePartition { .. }
        | Command::FlipOwner { .. }
        | Command::AbortMove { .. }
        | Command::SetDraining { .. }
        | Command::LetGo { .. }
        | Command::NodeGone { .. }
        | Command::PutTenant { .. }
        | Command::DeleteTenant { .. }
        | Command::TenantGone { .. }
        | Command::Note { .. }
        | Command::SetQuota { .. }
        | Command::PutTokenIssuer { .. }
        | Command::DeleteTokenIssuer => None,
    }
}
