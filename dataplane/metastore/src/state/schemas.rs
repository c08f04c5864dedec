//! Schema histories. A child's history is its parent's for as long as it is attached.

use std::sync::Arc;

use veena_contract::limits;
use veena_contract::records::CommandError;
use veena_contract::{SchemaVersion, TenantId, TopicId, TopicName};

use super::State;

impl State {
    pub(super) fn add_schema(
        &mut self,
        tenant: &TenantId,
        name: &TopicName,
        id: TopicId,
        base_version: u32,
        document: Arc<str>,
    ) -> Result<(), CommandError> {
        let mut topic = self.current(tenant, name, id)?;
        if topic.parent.is_some() {
            return Err(CommandError::SchemaParentManaged);
        }
        let newest = topic.schema().map_or(0, |schema| schema.version);
        if base_version != newest {
            return Err(CommandError::SchemaBaseVersion { base: base_version, newest });
        }
        topic.schemas.push(SchemaVersion { version: newest + 1, document });
        Self::check_history(&topic.schemas)?;
        for link in &topic.children {
            if let Some(mut child) = self.by_id(tenant, link.child_id) {
                child.schemas.clone_from(&topic.schemas);
                self.put(child);
            }
        }
        self.put(topic);
        self.check_schema_budget()
    }

    /// The cap on all histories together, for changes that add to them. What is over it, since a child that left its parent has a history of
    /// its own from then on, stays.
    pub(super) fn check_schema_budget(&self) -> Result<(), CommandError> {
        if self.schema_bytes <= limits::SCHEMA_CLUSTER_BYTES_MAX {
            return Ok(());
        }
        let detail = format!("the schemas of a cluster have at most {} bytes together", limits::SCHEMA_CLUSTER_BYTES_MAX);
        Err(CommandError::LimitReached { detail })
    }

    /// The caps on one topic's history.
    pub(super) fn check_history(schemas: &[SchemaVersion]) -> Result<(), CommandError> {
        if schemas.len() > limits::SCHEMA_VERSIONS_MAX {
            return Err(CommandError::LimitReached {
                detail: format!("a topic has at most {} schema versions", limits::SCHEMA_VERSIONS_MAX),
            });
        }
        if schemas.iter().any(|schema| schema.document.len() > limits::SCHEMA_BYTES_MAX) {
            return Err(CommandError::LimitReached { detail: format!("a schema has at most {} bytes", limits::SCHEMA_BYTES_MAX) });
        }
        let bytes: usize = schemas.iter().map(|schema| schema.document.len()).sum();
        if bytes > limits::SCHEMA_TOPIC_BYTES_MAX {
            return Err(CommandError::LimitReached {
                detail: format!("the schema versions of a topic have at most {} bytes together", limits::SCHEMA_TOPIC_BYTES_MAX),
            });
        }
        Ok(())
    }
}
