//! What waits for owners that are away has bounds: of a partition, of a tenant, of a node.

use bytes::Bytes;
use veena_broker::errors::ProduceError;
use veena_broker::message::NewMessage;
use veena_contract::{Effect, PartitionIndex, Reroute, TenantId, TopicRecord};

use crate::net::{Cluster, Fault, NODES, owned_by};
use crate::support::{name, small_config, tenant, topic};

fn other_tenant() -> TenantId {
    serde_json::from_value("other".into()).expect("a tenant")
}

/// Of 1000 bytes, to a partition that belongs to the node of the same place.
async fn produce(cluster: &Cluster, tenant: &TenantId, topic: &str, index: u32) -> Result<(), ProduceError> {
    let (partition, payload) = (Some(PartitionIndex(index)), Bytes::from(vec![b'x'; 1000]));
    let message = NewMessage { key: None, partition, headers: Vec::new(), idempotency_key: None, payload };
    cluster.node("a").broker.produce(tenant, &name(topic), message).await
}

#[tokio::test(start_paused = true)]
async fn a_tenant_whose_owners_are_away_leaves_room_for_others_and_for_its_own_that_are_there() {
    let mut config = small_config();
    config.undispatched_tenant_bytes_max = 50_000;
    let cluster = Cluster::start_with(1, config).await;
    let put = |name: &str, id: u64, tenant: TenantId| {
        cluster.catalog.put(TopicRecord { tenant, reroute: Reroute::Never, ..owned_by(topic(name, id, 3), &NODES) });
    };
    put("orders", 1, tenant());
    put("bills", 2, tenant());
    put("orders", 3, other_tenant());
    cluster.net.fail("a", "b", Fault::Cut);
    cluster.net.fail("a", "c", Fault::Cut);
    let mut taken = 0;
    let refused = loop {
        match produce(&cluster, &tenant(), "orders", 1).await {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        assert!(taken < 1_000, "it has no bound");
    };
    assert!(matches!(refused, ProduceError::OwnerDown) && refused.effect() == Effect::None, "{refused}");
    assert!((45..60).contains(&taken), "{taken}");
    // Each has another partition that is away, and has had a message that waits.
    for (tenant, is_over) in [(tenant(), true), (other_tenant(), false)] {
        let topic = if is_over { "bills" } else { "orders" };
        let first = produce(&cluster, &tenant, topic, 2).await;
        assert!(first.is_ok(), "nothing is known of it yet: {first:?}");
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        assert_eq!(produce(&cluster, &tenant, topic, 2).await.is_err(), is_over, "{tenant}");
    }
    produce(&cluster, &tenant(), "orders", 0).await.expect("what is here is taken");
    cluster.net.heal();
    cluster.settle_down().await;
    produce(&cluster, &tenant(), "orders", 1).await.expect("there is room again");
}
