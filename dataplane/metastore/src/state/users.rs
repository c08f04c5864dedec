//! Users, and what they may change (http-contract 1.5). A node decides before it proposes; this is the same decision over what is true when the
//! change is made: rights that were taken away in between are gone.

use std::sync::Arc;

use veena_contract::records::{Command, CommandError};
use veena_contract::{Action, Actor, Forbidden, Grants, StoredHash, TenantId, TopicName, UserRecord, Username, limits};

use super::State;

impl State {
    /// May this user make this change?
    pub(super) fn permit(&self, caller: &Actor, command: &Command) -> Result<(), CommandError> {
        let tenant = tenant_of(command);
        let user = self.view.user(&caller.tenant, &caller.username).ok_or(Forbidden::CallerUnknown)?;
        if caller.tenant != tenant {
            return Err(Forbidden::CallerUnknown.into());
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
            Command::SetPassword { username, .. } if username == caller => {}
            Command::SetPassword { username, .. } => {
                administer()?;
                if self.view.user(&tenant, username).is_some_and(|user| user.is_root) {
                    return Err(Forbidden::RootPassword.into());
                }
            }
            Command::NameOwner { .. }
            | Command::BeginMove { .. }
            | Command::FreezePartition { .. }
            | Command::FlipOwner { .. }
            | Command::AbortMove { .. }
            | Command::SetDraining { .. }
            | Command::LetGo { .. }
            | Command::NodeGone { .. } => administer()?,
        }
        Ok(())
    }

    /// May this user change the topic? One that is not there is for the change to tell.
    fn manage(&self, user: &UserRecord, name: &TopicName) -> Result<(), Forbidden> {
        let Some(topic) = self.view.topic(&user.tenant, name) else { return Ok(()) };
        let is_theirs = topic.owner.as_deref() == Some(user.username.as_str());
        if is_theirs || user.is_admin() { Ok(()) } else { Err(Forbidden::NotOwner { topic: name.clone() }) }
    }

    pub(super) fn create_user(&mut self, user: UserRecord) -> Result<(), CommandError> {
        let is_reserved = user.is_root != (user.username.as_str() == Username::ROOT);
        if is_reserved || self.view.user(&user.tenant, &user.username).is_some() {
            return Err(CommandError::UserExists);
        }
        if self.view.users.len() >= limits::USERS_MAX {
            return Err(CommandError::LimitReached { detail: format!("there are at most {} users", limits::USERS_MAX) });
        }
        self.insert_user(user);
        Ok(())
    }

    pub(super) fn delete_user(&mut self, tenant: &TenantId, username: &Username) -> Result<(), CommandError> {
        if self.the_user(tenant, username)?.is_root {
            return Err(Forbidden::RootStays.into());
        }
        self.view.users.remove(&(tenant.clone(), username.clone()));
        Ok(())
    }

    pub(super) fn set_grants(
        &mut self,
        tenant: &TenantId,
        username: &Username,
        grants: Grants,
        updated_at_ms: u64,
    ) -> Result<(), CommandError> {
        let user = self.the_user(tenant, username)?;
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
        let user = self.the_user(tenant, username)?;
        // Else whoever knows a password that was just replaced could take the user over.
        if checked.is_some_and(|checked| *checked != user.hash) {
            return Err(CommandError::UserChanged);
        }
        self.insert_user(UserRecord { hash, updated_at_ms, ..user });
        Ok(())
    }

    fn the_user(&self, tenant: &TenantId, username: &Username) -> Result<UserRecord, CommandError> {
        self.view.user(tenant, username).map(|user| UserRecord::clone(user)).ok_or(CommandError::UserNotFound)
    }

    pub(super) fn insert_user(&mut self, user: UserRecord) {
        self.view.users.insert((user.tenant.clone(), user.username.clone()), Arc::new(user));
    }
}

/// Whose things a command changes. The nodes are those of the tenant `default`.
fn tenant_of(command: &Command) -> TenantId {
    match command {
        Command::CreateTopic { topic, .. } => topic.tenant.clone(),
        Command::CreateUser { user } => user.tenant.clone(),
        Command::DeleteTopic { tenant, .. }
        | Command::SetBounds { tenant, .. }
        | Command::GrowPartitions { tenant, .. }
        | Command::AddSchema { tenant, .. }
        | Command::AttachChild { tenant, .. }
        | Command::DetachChild { tenant, .. }
        | Command::DeleteUser { tenant, .. }
        | Command::SetGrants { tenant, .. }
        | Command::SetPassword { tenant, .. } => tenant.clone(),
        Command::NameOwner { .. }
        | Command::BeginMove { .. }
        | Command::FreezePartition { .. }
        | Command::FlipOwner { .. }
        | Command::AbortMove { .. }
        | Command::SetDraining { .. }
        | Command::LetGo { .. }
        | Command::NodeGone { .. } => TenantId::default_tenant(),
    }
}
