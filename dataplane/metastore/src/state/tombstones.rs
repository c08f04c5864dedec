//! What was deleted here by hand stays deleted: a program that keeps tenants and users as somebody else wants them does not make it again.

use imbl::OrdMap;
use serde::{Deserialize, Serialize};
use veena_contract::records::CommandError;
use veena_contract::{TenantId, Username, limits};

use super::State;

/// A tenant, or a user of one.
pub(super) type Name = (TenantId, Option<Username>);

/// What is left of a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tombstone {
    tenant: TenantId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    username: Option<Username>,
    /// The last one of what it named: the next life goes on from there.
    revision: u64,
}

/// The names that were deleted. There are so many at most; the one that was deleted first is forgotten first.
#[derive(Clone, Debug, Default)]
pub(super) struct Tombstones {
    /// When each was deleted, counted, and its revision.
    by_name: OrdMap<Name, (u64, u64)>,
    by_age: OrdMap<u64, Name>,
}

impl Tombstones {
    fn add(&mut self, name: Name, revision: u64) {
        self.remove(&name);
        let at = self.by_age.get_max().map_or(0, |(last, _)| last + 1);
        self.by_name.insert(name.clone(), (at, revision));
        self.by_age.insert(at, name);
        if self.by_age.len() > limits::TOMBSTONES_MAX
            && let Some((_, oldest)) = self.by_age.get_min().cloned()
        {
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, name: &Name) -> Option<u64> {
        let (at, revision) = self.by_name.remove(name)?;
        self.by_age.remove(&at);
        Some(revision)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    /// Oldest first.
    pub(super) fn dump(&self) -> impl Iterator<Item = Tombstone> {
        let of = |name: &Name| self.by_name.get(name).map(|(_, revision)| (name.clone(), *revision));
        self.by_age.values().filter_map(of).map(|((tenant, username), revision)| Tombstone { tenant, username, revision })
    }

    pub(super) fn from_dump(dump: Vec<Tombstone>) -> Self {
        let mut tombstones = Self::default();
        dump.into_iter().for_each(|Tombstone { tenant, username, revision }| tombstones.add((tenant, username), revision));
        tombstones
    }
}

impl State {
    /// Remembers that this was deleted by hand.
    pub(super) fn bury(&mut self, tenant: &TenantId, username: Option<&Username>, revision: u64) {
        self.tombstones.add((tenant.clone(), username.cloned()), revision);
    }

    /// The first revision of what is made under a name. Where something was deleted by hand, only somebody who names none, and so does not
    /// repeat what was said before, makes it again.
    pub(super) fn first_revision(
        &mut self,
        tenant: &TenantId,
        username: Option<&Username>,
        given: Option<u64>,
        otherwise: u64,
    ) -> Result<u64, CommandError> {
        let name = (tenant.clone(), username.cloned());
        match (self.tombstones.remove(&name), given) {
            (Some(_), Some(_)) => Err(CommandError::DeletedHere),
            (Some(last), None) => Ok(last + 1),
            (None, given) => Ok(given.unwrap_or(otherwise)),
        }
    }

    /// With a tenant that is gone, what is remembered of its users goes: there is nobody for whom to make them.
    pub(super) fn forget_tombstones_of_users(&mut self, tenant: &TenantId) {
        let names = self.tombstones.by_name.range((tenant.clone(), None)..).map(|(name, _)| name);
        for name in names.take_while(|name| name.0 == *tenant).filter(|name| name.1.is_some()).cloned().collect::<Vec<_>>() {
            self.tombstones.remove(&name);
        }
    }
}
