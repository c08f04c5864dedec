//! Where things lie below the data directory. Directories carry the incarnation, never the name: a recreated topic never meets old files.

use std::path::{Path, PathBuf};

use veena_contract::{MoveToken, PartitionIndex, TenantId, TopicId};

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

/// Where a copy of a partition is made that moves here, beside where the partition will be.
#[must_use]
pub fn incoming_dir(partition_dir: &Path, token: MoveToken) -> PathBuf {
    let mut name = partition_dir.as_os_str().to_owned();
    name.push(format!(".{token}"));
    PathBuf::from(name)
}

/// Which partition a directory of a topic belongs to, and of which move it is the copy, if it is one that is being made.
#[must_use]
pub fn copy_of(name: &str) -> Option<(PartitionIndex, Option<MoveToken>)> {
    let (index, token) = name.split_once('.').map_or((name, None), |(index, token)| (index, Some(token)));
    let index = index.strip_prefix('p')?.parse().ok()?;
    let token = token.map(str::parse).transpose().ok()?;
    Some((PartitionIndex(index), token))
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

    #[test]
    fn a_copy_that_is_made_is_not_taken_for_a_partition() {
        let dir = partition_dir(Path::new("/data"), &TenantId::default_tenant(), TopicId(1), PartitionIndex(7));
        let copy = incoming_dir(&dir, MoveToken(0xc));
        assert_eq!(partition_of(&copy), None);
        let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned).expect("a name");
        assert_eq!(copy_of(&name(&copy)), Some((PartitionIndex(7), Some(MoveToken(0xc)))));
        assert_eq!(copy_of(&name(&dir)), Some((PartitionIndex(7), None)));
        assert_eq!(copy_of("p00007.bak"), None);
        assert_eq!(copy_of("lost+found"), None);
    }
}
