//! The state that is replicated: pure, deterministic, in persistent maps, so that a view of it shares its structure.
//!
//! Never here: a clock, randomness, I/O. Every key starts with the tenant.

mod audit;
mod dump;
mod issuer;
mod keys;
mod links;
mod lives;
mod machine;
mod moves;
mod quotas;
mod schemas;
mod tenants;
mod tombstones;
mod topics;
mod users;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use imbl::OrdMap;
use veena_contract::records::{Command, CommandError};
use veena_contract::{Actor, CatalogView, FeatureLevel, LineageId, TenantId, TenantRecord, TopicId, TopicName, TopicRecord};

pub use lives::{FormerLife, FormerMember};
#[cfg(test)]
pub(crate) use machine::encode;
pub(crate) use machine::{CatalogMachine, Operation, decode_answer, encode_from};

/// Everything the metastore knows.
#[derive(Clone, Debug)]
pub struct State {
    lineage: Option<LineageId>,
    former: Arc<[FormerLife]>,
    view: CatalogView,
    /// The living topic behind a name in lower case.
    folded: OrdMap<(TenantId, String), TopicName>,
    /// Bytes of all schema histories. A child's is its parent's, and counts once.
    schema_bytes: usize,
    /// What was deleted by hand.
    tombstones: tombstones::Tombstones,
}

impl Default for State {
    /// Nothing but the tenant `default`.
    fn default() -> Self {
        let mut state = Self {
            lineage: None,
            former: Arc::default(),
            view: CatalogView::default(),
            folded: OrdMap::default(),
            schema_bytes: 0,
            tombstones: tombstones::Tombstones::default(),
        };
        state.insert_tenant(TenantRecord::of_default());
        state
    }
}

impl State {
    /// Which life of the metastore this is, once its first command was applied.
    #[must_use]
    pub fn lineage(&self) -> Option<LineageId> {
        self.lineage
    }

    /// The topics, as readers see them.
    #[must_use]
    pub fn view(&self) -> &CatalogView {
        &self.view
    }

    /// Applies one command: wholly, or not at all.
    ///
    /// # Errors
    /// [`CommandError`] when a rule of the catalog refuses it; the state is then as before.
    pub fn apply(&mut self, command: Command) -> Result<(), CommandError> {
        self.apply_at(command, FeatureLevel::CURRENT)
    }

    /// As [`apply`](Self::apply), on behalf of a user.
    ///
    /// # Errors
    /// As there; and [`CommandError::Forbidden`] when the user may not.
    pub fn apply_by(&mut self, caller: Actor, command: Command) -> Result<(), CommandError> {
        self.apply_by_at(caller, command, FeatureLevel::CURRENT)
    }

    /// As `apply_by`, for a command that was written for members of this level.
    fn apply_by_at(&mut self, caller: Actor, mut command: Command, level: FeatureLevel) -> Result<(), CommandError> {
        self.permit(&caller, &command, level)?;
        match &mut command {
            Command::CreateTopic { topic, .. } => topic.owner = Some(caller.username.into()),
            Command::CreateKey { key } => key.created_by = Some(caller.username.as_str().into()),
            _ => {}
        }
        self.apply_at(command, level)
    }

    /// As `apply`, for a command that was written for members of this level: what they all make of it.
    fn apply_at(&mut self, command: Command, level: FeatureLevel) -> Result<(), CommandError> {
        let mut next = self.clone();
        next.run(command, level)?;
        *self = next;
        Ok(())
    }

    /// Names this life of the metastore. The first name stays.
    pub(crate) fn name_lineage(&mut self, lineage: LineageId) {
        self.lineage.get_or_insert(lineage);
    }

    fn run(&mut self, command: Command, level: FeatureLevel) -> Result<(), CommandError> {
        match command {
            Command::CreateTopic { topic, attach } => self.create_topic(topic, attach.as_ref()),
            Command::DeleteTopic { tenant, name, id } => self.delete_topic(&tenant, &name, id),
            Command::SetBounds {
                tenant,
                name,
                id,
                retention_ms,
                retention_bytes,
                max_in_flight_per_partition,
                max_acked_ahead_per_partition,
                dedup_window_ms,
                reroute,
            } => {
                let bounds = topics::Bounds {
                    retention_ms,
                    retention_bytes,
                    max_in_flight_per_partition,
                    max_acked_ahead_per_partition,
                    dedup_window_ms,
                    reroute,
                };
                self.set_bounds(&tenant, &name, id, &bounds)
            }
            Command::GrowPartitions { tenant, name, id, partitions, owners } => {
                self.grow_partitions(&tenant, &name, id, partitions, owners, level)
            }
            Command::AddSchema { tenant, name, id, base_version, document } => self.add_schema(&tenant, &name, id, base_version, document),
            Command::AttachChild { tenant, child, child_id, attach } => self.attach_child(&tenant, &child, child_id, &attach),
            Command::DetachChild { tenant, parent, child } => self.detach_child(&tenant, &parent, &child),
            Command::NameOwner { node } => {
                self.name_owner(&node);
                Ok(())
            }
            Command::BeginMove { at, to, token } => self.begin_move(&at, to, token),
            Command::FreezePartition { at, token, end } => self.freeze_partition(&at, token, end),
            Command::FlipOwner { at, token } => self.flip_owner(&at, token),
            Command::AbortMove { at, token } => self.abort_move(&at, token),
            Command::SetDraining { node, draining, mark, beside } => self.set_draining(node, draining, mark, beside.as_deref()),
            Command::LetGo { node, mark } => self.let_go(node, mark),
            Command::NodeGone { node } => {
                self.unmark(&node);
                Ok(())
            }
            Command::CreateUser { user } => self.create_user(user),
            Command::PutTenant { tenant, state, revision, at_ms, by_hand } => self.put_tenant(tenant, state, revision, at_ms, by_hand),
            Command::DeleteTenant { tenant, at_ms, by_hand } => self.delete_tenant(&tenant, at_ms, by_hand),
            Command::TenantGone { tenant, created_at_ms } => self.tenant_gone(&tenant, created_at_ms),
            Command::PutUser { tenant, username, hash, grants, revision, at_ms } => {
                self.put_user(tenant, username, hash, grants, revision, at_ms)
            }
            Command::DeleteUser { tenant, username, kind, by_hand } => self.delete_user(&tenant, &username, kind, by_hand),
            Command::SetGrants { tenant, username, kind, grants, at_ms } => self.set_grants(&tenant, &username, kind, grants, at_ms),
            Command::SetPassword { tenant, username, hash, checked, at_ms } => {
                self.set_password(&tenant, &username, hash, checked.as_ref(), at_ms)
            }
            Command::CreateKey { key } => self.create_key(key),
            Command::DeleteKey { tenant, username, id } => {
                self.delete_key(&tenant, &username, id);
                Ok(())
            }
            Command::Note { .. } => Ok(()),
            Command::SetQuota { tenant, topic, quota, revision } => self.set_quota(tenant, topic, *quota, revision),
            Command::PutTokenIssuer { issuer, revision } => self.put_token_issuer(*issuer, revision),
            Command::DeleteTokenIssuer => {
                self.view.token_issuer = None;
                Ok(())
            }
        }
    }

    /// The living topic of this name, if it is the incarnation that the proposer read.
    fn current(&self, tenant: &TenantId, name: &TopicName, id: TopicId) -> Result<TopicRecord, CommandError> {
        let record = self.view.topic(tenant, name).ok_or(CommandError::TopicNotFound)?;
        if record.id != id {
            return Err(CommandError::Changed);
        }
        Ok(TopicRecord::clone(record))
    }

    /// The living topic of this id and tenant.
    fn by_id(&self, tenant: &TenantId, id: TopicId) -> Option<TopicRecord> {
        self.view.topic_by_id(id).filter(|record| record.tenant == *tenant).map(|record| TopicRecord::clone(record))
    }

    /// Writes a changed or new record.
    fn put(&mut self, mut record: TopicRecord) {
        record.revision += 1;
        self.insert(Arc::new(record));
    }

    fn insert(&mut self, record: Arc<TopicRecord>) {
        let key = (record.tenant.clone(), record.name.clone());
        let former = self.view.by_id.insert(record.id, record.clone());
        self.schema_bytes -= former.as_deref().map_or(0, own_schema_bytes);
        self.schema_bytes += own_schema_bytes(&record);
        if self.view.topics.insert(key, record.clone()).is_none() {
            self.folded.insert((record.tenant.clone(), record.name.folded()), record.name.clone());
            self.count(&record.tenant, |counts| counts.topics += 1);
        }
        self.count_partitions(&record.tenant, former.as_deref().map_or(0, |former| former.partitions), record.partitions);
    }

    fn remove(&mut self, record: &TopicRecord) {
        let former = self.view.by_id.remove(&record.id);
        self.schema_bytes -= former.as_deref().map_or(0, own_schema_bytes);
        self.count_partitions(&record.tenant, former.as_deref().map_or(0, |former| former.partitions), 0);
        self.view.topics.remove(&(record.tenant.clone(), record.name.clone()));
        self.folded.remove(&(record.tenant.clone(), record.name.folded()));
        self.count(&record.tenant, |counts| counts.topics = counts.topics.saturating_sub(1));
    }
}

/// The bytes of a topic's schema history, unless that is its parent's.
fn own_schema_bytes(record: &TopicRecord) -> usize {
    if record.parent.is_some() { 0 } else { record.schemas.iter().map(|schema| schema.document.len()).sum() }
}
