//! Where things lie below the data directory. Directories carry the incarnation, never the name: a recreated topic never meets old files.

use std::path::{Path, PathBuf};

use veena_contract::{PartitionIndex, TenantId, TopicId};

/// The ingress WAL.
#[must_use]
pub fn ingress_dir(data: &Path) -> PathBuf {
    data.join("ingress")
}

/// The settle journal.
#[must_use]
pub fn settle_dir(data: &Path) -> PathBuf {
    data.join("settle")
}

/// All topics of all tenants.
#[must_use]
pub fn topics_dir(data: &Path) -> PathBuf {
    data.join("topics")
}

/// One incarnation of a topic.
#[must_use]
pub fn topic_dir(data: &Path, tenant: &TenantId, topic: TopicId) -> PathBuf {
    topics_dir(data).join(tenant.as_str()).join(topic.to_string())
}

/// One partition.
#[must_use]
pub fn partition_dir(data: &Path, tenant: &TenantId, topic: TopicId, index: PartitionIndex) -> PathBuf {
    topic_dir(data, tenant, topic).join(format!("p{:05}", index.get()))
}

/// What is about to be destroyed waits here.
#[must_use]
pub fn quarantine_dir(data: &Path) -> PathBuf {
    data.join("quarantine")
}
