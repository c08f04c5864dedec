//! Keys of service accounts. Whose they are is part of each: none is found for another tenant, or another account, than its own.

use std::sync::Arc;

use veena_contract::records::CommandError;
use veena_contract::{KeyId, KeyRecord, TenantId, UserKind, Username, limits};

use super::State;

impl State {
    pub(super) fn create_key(&mut self, key: KeyRecord) -> Result<(), CommandError> {
        self.check_tenant(&key.tenant)?;
        self.the_user(&key.tenant, &key.username, UserKind::Service)?;
        self.check_new_key(&key.tenant, key.created_at_ms)?;
        // Ids are drawn at random; whoever draws one that there is has to draw again.
        if self.view.keys.contains_key(&key.id) {
            return Err(CommandError::Changed);
        }
        let now_ms = key.created_at_ms;
        let (mut over, live): (Vec<_>, Vec<_>) =
            self.view.keys_of(&key.tenant, &key.username).cloned().partition(|key| key.is_expired(now_ms));
        if live.len() >= limits::KEYS_PER_ACCOUNT_MAX {
            let max = limits::KEYS_PER_ACCOUNT_MAX;
            return Err(CommandError::LimitReached { detail: format!("an account has at most {max} keys that have not expired") });
        }
        over.sort_by_key(|key| (key.expires_at_ms, key.id));
        let forgotten = over.len().saturating_sub(limits::EXPIRED_KEYS_PER_ACCOUNT_MAX);
        if self.view.keys.len() - forgotten >= limits::KEYS_MAX {
            return Err(CommandError::LimitReached { detail: format!("there are at most {} keys", limits::KEYS_MAX) });
        }
        for key in &over[..forgotten] {
            self.delete_key(&key.tenant, &key.username, key.id);
        }
        self.insert_key(key);
        Ok(())
    }

    /// A key of somebody else is not there.
    pub(super) fn delete_key(&mut self, tenant: &TenantId, account: &Username, id: KeyId) {
        let at = (tenant.clone(), account.clone());
        let Some(ids) = self.view.account_keys.get(&at).filter(|ids| ids.contains(&id)) else { return };
        let left: Arc<[KeyId]> = ids.iter().copied().filter(|other| *other != id).collect();
        if left.is_empty() {
            self.view.account_keys.remove(&at)
        } else {
            self.view.account_keys.insert(at, left)
        };
        if self.view.keys.remove(&id).is_some() {
            self.count(tenant, |counts| counts.keys = counts.keys.saturating_sub(1));
        }
    }

    /// With an account its keys go.
    pub(super) fn delete_keys_of(&mut self, tenant: &TenantId, account: &Username) {
        let ids = self.view.account_keys.remove(&(tenant.clone(), account.clone()));
        let gone = ids.iter().flat_map(|ids| ids.iter()).filter(|id| self.view.keys.remove(*id).is_some()).count();
        self.count(tenant, |counts| counts.keys = counts.keys.saturating_sub(gone));
    }

    pub(super) fn insert_key(&mut self, key: KeyRecord) {
        let ids = self.view.account_keys.entry((key.tenant.clone(), key.username.clone())).or_default();
        *ids = ids.iter().copied().chain([key.id]).collect();
        let tenant = key.tenant.clone();
        if self.view.keys.insert(key.id, Arc::new(key)).is_none() {
            self.count(&tenant, |counts| counts.keys += 1);
        }
    }
}
