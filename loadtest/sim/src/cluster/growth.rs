//! Topics get more partitions while everything else happens. What lies in them stays where it is; what comes is routed anew.

use std::sync::Arc;

use veena_contract::{CatalogWriter as _, Command, NodeDirectory as _, placement};

use super::Cluster;
use crate::chance::Chance;
use crate::tally::Kind;
use crate::world::key_of;

/// No topic of a run has more partitions.
const PARTITIONS_MAX: u32 = 8;

/// Grows any topic now and then, asked for at any node, for ever.
pub(super) async fn stir(cluster: Arc<Cluster>, mut chance: Chance) {
    let longest = *chance.pick(&[1_000, 5_000]);
    loop {
        let pause = chance.ms(100, longest);
        tokio::time::sleep(pause).await;
        let at = chance.index(cluster.size());
        let Some(node) = cluster.node(at) else { continue };
        let view = node.broker.catalog();
        let topics: Vec<_> = view.topics.values().filter(|record| record.partitions < PARTITIONS_MAX).collect();
        if topics.is_empty() {
            continue;
        }
        let record = *chance.pick(&topics);
        let added = u32::try_from(chance.between(1, 2)).unwrap_or(1);
        // From now on its keys may lead elsewhere, whatever is answered.
        cluster.world.grown.lock().insert(key_of(record));
        let command = Command::GrowPartitions {
            tenant: record.tenant.clone(),
            name: record.name.clone(),
            id: record.id,
            partitions: record.partitions + added,
            owners: placement::owners_of_added(&node.metastore.nodes(), record.id, &record.owners, &[], added),
        };
        if let Ok(true) = cluster.ask(at, move |node| async move { node.metastore.propose(command).await.is_ok() }).await {
            cluster.world.tally.add(Kind::TopicGrown);
        }
    }
}
