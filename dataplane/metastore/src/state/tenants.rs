//! Tenants: who there is, and what their users may do at all. A tenant that goes is named until nothing of it is left anywhere.

use std::sync::Arc;

use veena_contract::records::CommandError;
use veena_contract::{TenantCounts, TenantId, TenantRecord, TenantState, limits};

use super::State;

/// What becomes of a revision that a caller names, or does not.
pub(super) fn next_revision(given: Option<u64>, applied: u64, is_same: bool) -> Result<u64, CommandError> {
    match given {
        Some(given) if given < applied => Err(CommandError::RevisionPassed { given, applied }),
        Some(given) if given == applied && !is_same => Err(CommandError::RevisionTaken { revision: given }),
        Some(given) => Ok(given),
        None => Ok(if is_same { applied } else { applied + 1 }),
    }
}

impl State {
    pub(super) fn put_tenant(
        &mut self,
        tenant: TenantId,
        state: TenantState,
        revision: Option<u64>,
        at_ms: u64,
        by_hand: bool,
    ) -> Result<(), CommandError> {
        if tenant.is_default() && state != TenantState::Active {
            return Err(CommandError::TenantStays);
        }
        let known = self.view.tenants.get(&tenant).cloned();
        match known.as_deref().map(|record| record.state) {
            _ if state == TenantState::Deleting => return Err(CommandError::TenantDeleting),
            Some(TenantState::Deleting) => return Err(CommandError::TenantDeleting),
            None if self.view.tenants.len() >= limits::TENANTS_MAX => {
                return Err(CommandError::LimitReached { detail: format!("there are at most {} tenants", limits::TENANTS_MAX) });
            }
            _ => {}
        }
        let is_held = known.as_deref().is_some_and(|record| record.by_hand);
        if is_held && revision.is_some() && state != TenantState::Suspended {
            return Err(CommandError::SuspendedHere);
        }
        let by_hand = state == TenantState::Suspended && (by_hand || is_held);
        let is_same = known.as_deref().is_some_and(|record| record.state == state) && by_hand == is_held;
        let applied = known.as_deref().map_or(0, |record| record.revision);
        // A tenant that is new has had no revision: also 0 is one.
        let revision = match known {
            Some(_) => next_revision(revision, applied, is_same)?,
            None => self.first_revision(&tenant, None, revision, 1)?,
        };
        if is_same && revision == applied {
            return Ok(());
        }
        let created_at_ms = known.as_deref().map_or(at_ms, |record| record.created_at_ms);
        self.insert_tenant(TenantRecord { tenant, state, revision, created_at_ms, updated_at_ms: at_ms, by_hand });
        Ok(())
    }

    pub(super) fn delete_tenant(&mut self, tenant: &TenantId, at_ms: u64, by_hand: bool) -> Result<(), CommandError> {
        if tenant.is_default() {
            return Err(CommandError::TenantStays);
        }
        let record = self.view.tenants.get(tenant).map(|record| TenantRecord::clone(record)).ok_or(CommandError::TenantNotFound)?;
        if record.state != TenantState::Deleting {
            let revision = record.revision + 1;
            self.insert_tenant(TenantRecord { state: TenantState::Deleting, revision, updated_at_ms: at_ms, by_hand, ..record });
        }
        Ok(())
    }

    /// The proof that nothing is left on the nodes is the proposer's; what the catalog has, is looked at here.
    pub(super) fn tenant_gone(&mut self, tenant: &TenantId, created_at_ms: u64) -> Result<(), CommandError> {
        let record = self.view.tenants.get(tenant).ok_or(CommandError::TenantNotFound)?;
        let is_of_this_life = record.state == TenantState::Deleting && record.created_at_ms == created_at_ms;
        if !is_of_this_life || !self.view.counts_of(tenant).is_empty() {
            return Err(CommandError::TenantNotEmpty);
        }
        let (by_hand, revision) = (record.by_hand, record.revision);
        self.view.tenants.remove(tenant);
        self.forget_tombstones_of_users(tenant);
        if by_hand {
            self.bury(tenant, None, revision);
        }
        self.view.audit.forget(tenant);
        self.forget_quotas(tenant);
        Ok(())
    }

    /// Something can be made only for a tenant that is there, and stays.
    pub(super) fn check_tenant(&self, tenant: &TenantId) -> Result<(), CommandError> {
        match self.view.tenant_state(tenant) {
            None => Err(CommandError::TenantNotFound),
            Some(TenantState::Deleting) => Err(CommandError::TenantDeleting),
            Some(TenantState::Active | TenantState::Suspended) => Ok(()),
        }
    }

    pub(super) fn insert_tenant(&mut self, record: TenantRecord) {
        self.view.tenants.insert(record.tenant.clone(), Arc::new(record));
    }

    /// Counts what a tenant has. Nothing is kept of one that has nothing.
    pub(super) fn count(&mut self, tenant: &TenantId, change: impl FnOnce(&mut TenantCounts)) {
        let mut counts = self.view.counts_of(tenant);
        change(&mut counts);
        if counts.is_empty() {
            self.view.counts.remove(tenant);
        } else {
            self.view.counts.insert(tenant.clone(), counts);
        }
    }
}
