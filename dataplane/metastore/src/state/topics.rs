//! Topics: create, delete, bounds, growth (http-contract 1.1).

use veena_contract::limits;
use veena_contract::records::{Attachment, CommandError};
use veena_contract::{FeatureLevel, NodeId, Ownership, OwnershipEpoch, Reroute, TenantId, TopicId, TopicName, TopicRecord};

use super::State;

/// The bounds of a topic that may change; absent ones stay.
pub(super) struct Bounds {
    pub(super) retention_ms: Option<u64>,
    pub(super) retention_bytes: Option<u64>,
    pub(super) max_in_flight_per_partition: Option<u64>,
    pub(super) max_acked_ahead_per_partition: Option<u64>,
    pub(super) dedup_window_ms: Option<u64>,
    pub(super) reroute: Option<Reroute>,
}

impl Bounds {
    fn apply_to(&self, record: &mut TopicRecord) {
        let set = |field: &mut u64, value: Option<u64>| *field = value.unwrap_or(*field);
        set(&mut record.retention_ms, self.retention_ms);
        set(&mut record.retention_bytes, self.retention_bytes);
        set(&mut record.max_in_flight_per_partition, self.max_in_flight_per_partition);
        set(&mut record.max_acked_ahead_per_partition, self.max_acked_ahead_per_partition);
        set(&mut record.dedup_window_ms, self.dedup_window_ms);
        record.reroute = self.reroute.unwrap_or(record.reroute);
    }
}

impl State {
    pub(super) fn create_topic(&mut self, mut topic: TopicRecord, attach: Option<&Attachment>) -> Result<(), CommandError> {
        self.check_tenant(&topic.tenant)?;
        if let Some(existing) = self.folded.get(&(topic.tenant.clone(), topic.name.folded())) {
            if *existing == topic.name {
                return Err(CommandError::AlreadyExists);
            }
            return Err(CommandError::CaseClash { name: topic.name, existing: existing.clone() });
        }
        // An id names one incarnation: one that is in use is a mistake of its proposer, who mints another.
        if self.view.topic_by_id(topic.id).is_some() {
            return Err(CommandError::Changed);
        }
        if self.view.counts_of(&topic.tenant).topics >= limits::TOPICS_MAX {
            return Err(CommandError::LimitReached { detail: format!("a tenant has at most {} topics", limits::TOPICS_MAX) });
        }
        if topic.partitions == 0 {
            return Err(CommandError::PartitionsMustGrow { current: 0 });
        }
        self.check_new_topic(&topic.tenant, topic.partitions)?;
        Self::check_history(&topic.schemas)?;
        if !topic.owners.is_empty() {
            check_owners(topic.owners.len(), 0, topic.partitions)?;
        }
        self.check_places(topic.owners.iter().map(|owner| &owner.node))?;
        topic.owners.iter_mut().for_each(|owner| *owner = first_owner(owner.node.clone()));
        topic.earlier_partitions.clear();
        topic.parent = None;
        topic.children.clear();
        topic.revision = 0;
        let has_schemas = !topic.schemas.is_empty();
        match attach {
            None => self.put(topic),
            Some(attach) => self.link(topic, attach)?,
        }
        if has_schemas { self.check_schema_budget() } else { Ok(()) }
    }

    pub(super) fn delete_topic(&mut self, tenant: &TenantId, name: &TopicName, id: TopicId) -> Result<(), CommandError> {
        let topic = self.by_id(tenant, id).filter(|topic| topic.name == *name).ok_or(CommandError::TopicNotFound)?;
        self.unlink_children(&topic);
        self.unlink_from_parent(&topic);
        self.remove(&topic);
        self.forget_topic_quota(tenant, name);
        Ok(())
    }

    pub(super) fn set_bounds(&mut self, tenant: &TenantId, name: &TopicName, id: TopicId, bounds: &Bounds) -> Result<(), CommandError> {
        let before = self.current(tenant, name, id)?;
        let mut after = before.clone();
        bounds.apply_to(&mut after);
        let delay_ms = after.children.iter().map(|child| child.delay_ms).max().unwrap_or_default();
        Self::check_delay(after.retention_ms, delay_ms)?;
        if after != before {
            self.put(after);
        }
        Ok(())
    }

    pub(super) fn grow_partitions(
        &mut self,
        tenant: &TenantId,
        name: &TopicName,
        id: TopicId,
        partitions: u32,
        owners: Vec<NodeId>,
        level: FeatureLevel,
    ) -> Result<(), CommandError> {
        let mut topic = self.current(tenant, name, id)?;
        if partitions <= topic.partitions {
            return Err(CommandError::PartitionsMustGrow { current: topic.partitions });
        }
        self.check_more_partitions(tenant, partitions - topic.partitions)?;
        if !topic.owners.is_empty() || !owners.is_empty() {
            check_owners(owners.len(), topic.owners.len(), partitions)?;
        }
        self.check_places(&owners)?;
        if level >= FeatureLevel::MOVES {
            topic.earlier_partitions.push(topic.partitions);
        }
        topic.partitions = partitions;
        topic.owners.extend(owners.into_iter().map(first_owner));
        self.put(topic);
        Ok(())
    }

    /// What is new goes to no node that is being taken out: it would be there behind its back.
    fn check_places<'a>(&self, owners: impl IntoIterator<Item = &'a NodeId>) -> Result<(), CommandError> {
        match owners.into_iter().find(|node| self.view.draining.contains(*node)) {
            Some(node) => Err(CommandError::NodeDraining { node: node.clone() }),
            None => Ok(()),
        }
    }

    pub(super) fn name_owner(&mut self, node: &NodeId) {
        let ownerless = self.view.by_id.values().filter(|topic| topic.owners.is_empty()).cloned().collect::<Vec<_>>();
        for topic in ownerless {
            let owners = (0..topic.partitions).map(|_| first_owner(node.clone())).collect();
            self.put(TopicRecord { owners, ..topic.as_ref().clone() });
        }
    }
}

const FIRST_EPOCH: OwnershipEpoch = OwnershipEpoch(1);

fn first_owner(node: NodeId) -> Ownership {
    Ownership::new(node, FIRST_EPOCH)
}

/// All partitions have an owner, or none has: else the proposer counted partitions of another revision.
fn check_owners(added: usize, before: usize, partitions: u32) -> Result<(), CommandError> {
    if usize::try_from(partitions).is_ok_and(|partitions| before + added == partitions) { Ok(()) } else { Err(CommandError::Changed) }
}
