//! Links between a parent and its children (http-contract 5.1). Depth one, one parent per child.

use veena_contract::limits;
use veena_contract::records::{Attachment, CommandError};
use veena_contract::{ChildLink, ParentLink, TenantId, TopicId, TopicName, TopicRecord};

use super::State;

impl State {
    pub(super) fn attach_child(
        &mut self,
        tenant: &TenantId,
        child: &TopicName,
        child_id: TopicId,
        attach: &Attachment,
    ) -> Result<(), CommandError> {
        let child = self.current(tenant, child, child_id)?;
        self.link(child, attach)
    }

    /// Checks every rule of a link, then writes both of its ends. `child` may be a topic that does not exist yet.
    pub(super) fn link(&mut self, mut child: TopicRecord, attach: &Attachment) -> Result<(), CommandError> {
        if attach.parent == child.name {
            return Err(role_conflict(format!("{} cannot be its own child", child.name)));
        }
        let mut parent = self.current(&child.tenant, &attach.parent, attach.parent_id)?;
        check_roles(&parent, &child)?;
        if parent.children.len() >= limits::CHILDREN_MAX {
            return Err(CommandError::TooManyChildren { max: limits::CHILDREN_MAX });
        }
        if !child.schemas.is_empty() && child.schemas != parent.schemas {
            return Err(CommandError::ChildSchema);
        }
        Self::check_delay(parent.retention_ms, attach.delay_ms)?;
        // The proposer asked every partition where it stands; if there are more by now, it must ask again.
        if u32::try_from(attach.attach_offsets.len()) != Ok(parent.partitions) {
            return Err(CommandError::Changed);
        }
        child.parent =
            Some(ParentLink { parent: parent.name.clone(), parent_id: parent.id, epoch: attach.epoch, delay_ms: attach.delay_ms });
        child.schemas.clone_from(&parent.schemas);
        parent.children.push(ChildLink {
            child: child.name.clone(),
            child_id: child.id,
            epoch: attach.epoch,
            stream: attach.stream,
            delay_ms: attach.delay_ms,
            attach_offsets: attach.attach_offsets.clone(),
        });
        self.put(parent);
        self.put(child);
        Ok(())
    }

    pub(super) fn detach_child(&mut self, tenant: &TenantId, parent: &TopicName, child: &TopicName) -> Result<(), CommandError> {
        let record = self.view.topic(tenant, parent).ok_or(CommandError::TopicNotFound)?;
        let link = record.children.iter().find(|link| link.child == *child);
        let not_linked = || CommandError::LinkNotFound { parent: parent.clone(), child: child.clone() };
        let child = link.and_then(|link| self.by_id(tenant, link.child_id)).ok_or_else(not_linked)?;
        self.unlink_from_parent(&child);
        self.make_standalone(child);
        Ok(())
    }

    /// The children of a topic that goes become standalone; they keep their messages and schemas.
    pub(super) fn unlink_children(&mut self, parent: &TopicRecord) {
        for link in &parent.children {
            if let Some(child) = self.by_id(&parent.tenant, link.child_id) {
                self.make_standalone(child);
            }
        }
    }

    /// Takes `child` off its parent's list.
    pub(super) fn unlink_from_parent(&mut self, child: &TopicRecord) {
        let parent = child.parent.as_ref().and_then(|link| self.by_id(&child.tenant, link.parent_id));
        if let Some(mut parent) = parent {
            parent.children.retain(|link| link.child_id != child.id);
            self.put(parent);
        }
    }

    fn make_standalone(&mut self, mut child: TopicRecord) {
        child.parent = None;
        self.put(child);
    }

    /// A parent must keep its records for longer than a child holds them back.
    pub(super) fn check_delay(retention_ms: u64, delay_ms: u64) -> Result<(), CommandError> {
        if TopicRecord::retention_covers(retention_ms, delay_ms) {
            return Ok(());
        }
        Err(CommandError::DelayExceedsRetention { delay_ms, needed_ms: delay_ms.saturating_add(limits::RETENTION_MS_MIN) })
    }
}

fn check_roles(parent: &TopicRecord, child: &TopicRecord) -> Result<(), CommandError> {
    if let Some(link) = &parent.parent {
        return Err(role_conflict(format!("{} is itself a child of {}", parent.name, link.parent)));
    }
    if let Some(link) = &child.parent {
        return Err(role_conflict(format!("{} is already a child of {}", child.name, link.parent)));
    }
    if !child.children.is_empty() {
        return Err(role_conflict(format!("{} has children of its own", child.name)));
    }
    Ok(())
}

fn role_conflict(detail: String) -> CommandError {
    CommandError::RoleConflict { detail }
}
