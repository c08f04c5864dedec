//! Where things lie below the data directory. Directories carry the incarnation, never the name: a recreated topic never meets old files.

use std::path::{Path, PathBuf};

use veena_contract::{PartitionIndex, TenantId, TopicId};

use crate::partition::PartitionId;

/// The ingress WAL.
#[must_use]
pub fn ingress_dir(data: &Path) -> PathBuf {
    data.join("ingress")
}

/// Records that wait for destinations that take nothing.
#[must_use]
pub fn parked_dir(data: &Path) -> PathBuf {
    data.join("parked")
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

/// Which partition's directory this is, by its last two names.
#[must_use]
pub fn partition_of(dir: &Path) -> Option<PartitionId> {
    let index = dir.file_name()?.to_str()?.strip_prefix('p')?.parse().ok()?;
    let topic = dir.parent()?.file_name()?.to_str()?.parse().ok()?;
    Some(PartitionId { topic, index: PartitionIndex(index) })
}

/// What is about to be destroyed waits here.
#[must_use]
pub fn quarantine_dir(data: &Path) -> PathBuf {
    data.join("quarantine")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_found_again_by_its_directory() {
        let id = PartitionId { topic: TopicId(0xab), index: PartitionIndex(107) };
        let dir = partition_dir(Path::new("/data"), &TenantId::default_tenant(), id.topic, id.index);
        assert_eq!(partition_of(&dir), Some(id));
        assert_eq!(partition_of(Path::new("/data/topics/default/ab/p00000")), None);
        assert_eq!(partition_of(Path::new("p00000")), None);
    }
}
