//! What this node still has of tenants that are being deleted. Looked at again and again until there is nothing; destroys nothing itself.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use veena_contract::{TenantId, TopicId, limits};

use crate::core::Core;
use crate::layout;
use crate::sweep::{list_existing, quarantined_dirs};

/// What there is of one tenant. What cannot be told apart by tenant counts for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traces {
    /// Topics whose partitions are not closed for good.
    pub open_topics: usize,
    /// Directories of its topics, and the one that holds them.
    pub directories: usize,
    /// Directories that were set aside.
    pub quarantined: usize,
    /// Records, and files of records, whose topic is unknown here, of all tenants.
    pub orphans: usize,
    /// Entries of the settle journal for topics and attachments that are unknown here, of all tenants.
    pub positions: usize,
}

/// Looks for each of these tenants, in order; `None` if the disk does not tell it soon.
pub(crate) async fn of(core: &Arc<Core>, tenants: &[TenantId]) -> Option<Vec<Traces>> {
    // What is closed becomes orphans and directories, and what is an orphan ends: looked at in this order, nothing slips through.
    let mut open: BTreeMap<TenantId, usize> = BTreeMap::new();
    for (_, topic) in core.topics.all() {
        *open.entry(topic.record.load().tenant.clone()).or_default() += 1;
    }
    let orphans = core.orphans.count();
    let view = core.ports.catalog.view();
    let positions = core.settle.unknown_topics(&view).len() + core.settle.unknown_links(&view).len();
    let (worker, asked) = (Arc::clone(core), tenants.to_vec());
    let walk = core.ports.read_io.run(move || asked.iter().map(|tenant| on_disk(&worker, tenant)).collect::<io::Result<Vec<_>>>());
    let found = timeout(Duration::from_millis(limits::QUARANTINE_TOLD_MS_MAX), walk).await.ok()?.ok()?;
    let of_one = |(tenant, (directories, quarantined)): (&TenantId, (usize, usize))| Traces {
        open_topics: open.get(tenant).copied().unwrap_or_default(),
        directories,
        quarantined,
        orphans,
        positions,
    };
    Some(tenants.iter().zip(found).map(of_one).collect())
}

fn on_disk(core: &Core, tenant: &TenantId) -> io::Result<(usize, usize)> {
    let dir = layout::topics_dir(&core.config.data_dir).join(tenant.as_str());
    let is_there = usize::from(core.ports.disk.exists(&dir)?);
    let directories = is_there + list_existing(core.ports.disk.as_ref(), &dir)?.len();
    let view = core.ports.catalog.view();
    let is_its = |name: &str| match set_aside(name) {
        Some(SetAside::Of(owner)) => owner == *tenant,
        // Whose it was is not known any more, if the topic is gone.
        Some(SetAside::Copy(topic)) => view.topic_by_id(topic).is_none_or(|record| record.tenant == *tenant),
        None => false,
    };
    let quarantined = quarantined_dirs(core)?.iter().filter(|name| is_its(name)).count();
    Ok((directories, quarantined))
}

enum SetAside {
    Of(TenantId),
    Copy(TopicId),
}

/// Whose a directory was, by its name: `<when>-topic-<tenant>-<id>`, `<when>-tenant-<tenant>`, `<when>-copy-<id>-<partition>`.
fn set_aside(name: &str) -> Option<SetAside> {
    let (_, rest) = name.split_once('-')?;
    if let Some(rest) = rest.strip_prefix("topic-") {
        return TenantId::parse(rest.rsplit_once('-')?.0).map(SetAside::Of);
    }
    if let Some(tenant) = rest.strip_prefix("tenant-") {
        return TenantId::parse(tenant).map(SetAside::Of);
    }
    rest.strip_prefix("copy-")?.split('-').next()?.parse().ok().map(SetAside::Copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_was_set_aside_says_whose_it_was() {
        let whose = |name: &str| match set_aside(name) {
            Some(SetAside::Of(tenant)) => tenant.to_string(),
            Some(SetAside::Copy(topic)) => topic.to_string(),
            None => String::new(),
        };
        assert_eq!(whose("1700000000123-topic-acme-eu-00000000000000ab"), "acme-eu");
        assert_eq!(whose("1700000000123-tenant-acme-eu"), "acme-eu");
        assert_eq!(whose("1700000000123-copy-00000000000000ab-p00012.0000000000000000000000000000002a"), "00000000000000ab");
        for name in ["1700000000123-ingress", "x", "", "1-copy-x-p00000"] {
            assert_eq!(whose(name), "", "{name}");
        }
    }
}
