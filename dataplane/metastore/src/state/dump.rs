//! The state as bytes: JSON with a version, so that a snapshot can be read.

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use veena_consensus::RestoreError;
use veena_contract::audit::ChainDump;
use veena_contract::{
    AuditTrail, DrainMark, FeatureLevel, KeyRecord, LineageId, LogIndex, NodeId, QuotaRecord, TenantRecord, TokenIssuerRecord, TopicRecord,
    UserRecord,
};

use super::machine::version_of;
use super::tombstones::{Tombstone, Tombstones};
use super::{FormerLife, State};

const VERSION: u32 = version_of(FeatureLevel::CURRENT);

#[derive(Serialize, Deserialize)]
struct Dump {
    v: u32,
    #[serde(default)]
    lineage: Option<LineageId>,
    applied: LogIndex,
    /// By tenant and name. A child's schemas are left out: they are its parent's.
    topics: Vec<TopicRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    draining: Vec<NodeId>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    marks: Vec<(NodeId, DrainMark)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    leaving: Vec<NodeId>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    former: Vec<FormerLife>,
    /// By tenant and name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    users: Vec<UserRecord>,
    /// By name. Left out is the tenant `default` that nobody has said anything about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tenants: Vec<TenantRecord>,
    /// By tenant and account, those of an account oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    keys: Vec<KeyRecord>,
    /// By tenant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    audit: Vec<ChainDump>,
    /// By tenant and topic.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    quotas: Vec<QuotaRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token_issuer: Option<TokenIssuerRecord>,
    /// Those deleted first come first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tombstones: Vec<Tombstone>,
}

impl State {
    /// Writes the state down.
    #[must_use]
    pub fn dump(&self) -> Vec<u8> {
        let topics = self.view.topics.values().map(|record| {
            let mut record = TopicRecord::clone(record);
            if record.parent.is_some() {
                record.schemas.clear();
            }
            record
        });
        let dump = Dump {
            v: version_of(self.level()),
            lineage: self.lineage,
            applied: self.view.applied,
            topics: topics.collect(),
            draining: self.view.draining.iter().cloned().collect(),
            marks: self.view.marks.iter().map(|(node, mark)| (node.clone(), *mark)).collect(),
            leaving: self.view.leaving.iter().cloned().collect(),
            former: self.former.to_vec(),
            users: self.view.users.values().map(|user| UserRecord::clone(user)).collect(),
            tenants: self.said_tenants().cloned().collect(),
            keys: self
                .view
                .account_keys
                .keys()
                .flat_map(|(tenant, account)| self.view.keys_of(tenant, account))
                .map(|key| KeyRecord::clone(key))
                .collect(),
            audit: self.view.audit.dump().collect(),
            quotas: self.view.quotas.values().map(|record| QuotaRecord::clone(record)).collect(),
            token_issuer: self.view.token_issuer.as_deref().cloned(),
            tombstones: self.tombstones.dump().collect(),
        };
        serde_json::to_vec(&dump).expect("invariant: records are plain data with string keys")
    }

    /// The tenants that somebody has said something about.
    fn said_tenants(&self) -> impl Iterator<Item = &TenantRecord> {
        let of_default = TenantRecord::of_default();
        self.view.tenants.values().map(|record| &**record).filter(move |record| **record != of_default)
    }

    /// What a reader has to know to read all of it: an older one would forget what it does not know.
    pub(crate) fn level(&self) -> FeatureLevel {
        let is_new = |user: &UserRecord| user.revision > 0 || !user.is_person();
        let has_tenants = self.said_tenants().next().is_some()
            || !self.view.quotas.is_empty()
            || !self.view.audit.is_empty()
            || !self.tombstones.is_empty()
            || self.view.token_issuer.is_some();
        if has_tenants || self.view.users.values().any(|user| is_new(user)) {
            return FeatureLevel::TENANTS;
        }
        if !self.view.users.is_empty() {
            return FeatureLevel::USERS;
        }
        let has_grown = |topic: &TopicRecord| !topic.earlier_partitions.is_empty();
        let moves = |topic: &TopicRecord| topic.owners.iter().any(|owner| owner.moving.is_some());
        let is_new = self.view.topics.values().any(|topic| has_grown(topic) || moves(topic));
        if is_new || !self.view.draining.is_empty() || !self.former.is_empty() { FeatureLevel::MOVES } else { FeatureLevel::FIRST }
    }

    /// Reads what [`dump`](Self::dump) wrote.
    ///
    /// # Errors
    /// [`RestoreError`] when it is not such a state, or one of a later version.
    pub fn from_dump(bytes: &[u8]) -> Result<Self, RestoreError> {
        let refuse = |detail: String| RestoreError { detail };
        let version: super::machine::Version = serde_json::from_slice(bytes).map_err(|e| refuse(e.to_string()))?;
        if !(1..=VERSION).contains(&version.v) {
            return Err(refuse(format!("the catalog has version {}, this program reads up to {VERSION}", version.v)));
        }
        let dump: Dump = serde_json::from_slice(bytes).map_err(|e| refuse(e.to_string()))?;
        let mut state = Self { lineage: dump.lineage, former: dump.former.into(), ..Self::default() };
        state.view.applied = dump.applied;
        state.view.draining = dump.draining.into_iter().collect();
        state.view.marks = dump.marks.into_iter().collect();
        state.view.leaving = dump.leaving.into_iter().collect();
        dump.tenants.into_iter().for_each(|tenant| state.insert_tenant(tenant));
        dump.users.into_iter().for_each(|user| state.insert_user(user));
        dump.keys.into_iter().for_each(|key| state.insert_key(key));
        state.tombstones = Tombstones::from_dump(dump.tombstones);
        state.view.audit = AuditTrail::from_dump(dump.audit);
        dump.quotas.into_iter().for_each(|record| state.insert_quota(record));
        state.view.token_issuer = dump.token_issuer.map(Arc::new);
        let (children, others): (Vec<_>, Vec<_>) = dump.topics.into_iter().partition(|record| record.parent.is_some());
        for record in others {
            state.insert(Arc::new(record));
        }
        for mut child in children {
            let parent = child.parent.as_ref().and_then(|link| state.view.topic_by_id(link.parent_id));
            let parent = parent.ok_or_else(|| refuse(format!("topic {} has a parent that is not there", child.id)))?;
            child.schemas.clone_from(&parent.schemas);
            state.insert(Arc::new(child));
        }
        Ok(state)
    }
}
