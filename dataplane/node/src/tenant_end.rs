//! The leader deletes what a tenant has that is to be deleted, and says that the tenant is gone once nothing of it is left on any node.
//!
//! Topics go the way of every deleted topic: each node drops their records, closes their partitions and sets their directories aside when the
//! leader has confirmed that they are gone. This only begins it, and looks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};
use veena_broker::Broker;
use veena_client::bodies::TenantLeft;
use veena_contract::{
    Catalog as _, CatalogView, CatalogWriter as _, Command, CommandError, LeaderPort as _, Members, NodeId, ProposeError, TenantId,
    TenantRecord, TenantState, limits,
};
use veena_metastore::Metastore;

const EVERY: Duration = Duration::from_millis(limits::TENANT_DELETE_EVERY_MS);
const CLEAN_FOR: Duration = Duration::from_millis(limits::TENANT_GONE_AFTER_MS);

/// The leader's part of a node; idle on all others.
pub(crate) struct TenantEnd {
    pub(crate) me: NodeId,
    pub(crate) metastore: Metastore,
    pub(crate) broker: Broker,
    pub(crate) members: Option<Arc<dyn Members>>,
}

/// Since when nothing was found of a tenant, by its name and the beginning of its life. A new leader begins anew.
type Clean = BTreeMap<(TenantId, u64), Instant>;

impl TenantEnd {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let (mut clean, mut look_at) = (Clean::new(), Instant::now());
        while stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
            // To look is dear: every node walks through what it has set aside.
            let is_due = Instant::now() >= look_at;
            if is_due {
                look_at = Instant::now() + CLEAN_FOR;
            }
            if stop.run_until_cancelled(self.go_on(&mut clean, is_due)).await.is_none() {
                return;
            }
        }
    }

    async fn go_on(&self, clean: &mut Clean, looks: bool) {
        let leads = self.metastore.status().leader.as_ref() == Some(&self.me);
        let view = self.metastore.view();
        let going: Vec<TenantRecord> =
            view.tenants.values().filter(|record| is_going(record)).map(|record| TenantRecord::clone(record)).collect();
        if !leads || going.is_empty() {
            clean.clear();
            return;
        }
        clean.retain(|(tenant, began), _| going.iter().any(|record| record.tenant == *tenant && record.created_at_ms == *began));
        for record in going.iter().filter(|record| !view.counts_of(&record.tenant).is_empty()) {
            if let Err(error) = self.delete_some(&view, &record.tenant).await {
                debug!(tenant = %record.tenant, %error, "a tenant that is being deleted keeps what it has for now");
                return;
            }
        }
        if looks {
            self.look(&going, clean).await;
        }
    }

    /// Deletes some of what the catalog has of a tenant: its topics first, so that no user's name is free while a topic is theirs.
    async fn delete_some(&self, view: &CatalogView, tenant: &TenantId) -> Result<(), ProposeError> {
        let topics =
            view.topics_of(tenant).map(|topic| Command::DeleteTopic { tenant: tenant.clone(), name: topic.name.clone(), id: topic.id });
        let users = view.users_of(tenant).map(|user| Command::DeleteUser {
            tenant: tenant.clone(),
            username: user.username.clone(),
            kind: user.kind,
            by_hand: false,
        });
        for command in topics.chain(users).take(limits::TENANT_DELETE_BATCH_MAX) {
            match self.metastore.propose(command).await {
                // Somebody else was faster.
                Ok(_) | Err(ProposeError::Refused(CommandError::TopicNotFound | CommandError::UserNotFound)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Looks whether anything of the tenants is left. What is found clean once may be so because a message is on its way: it must stay so.
    async fn look(&self, going: &[TenantRecord], clean: &mut Clean) {
        let going: Vec<TenantRecord> = going.iter().take(limits::TENANTS_DELETED_AT_ONCE_MAX).cloned().collect();
        let tenants: Vec<TenantId> = going.iter().map(|record| record.tenant.clone()).collect();
        // Every node has to know what the leader knows now: that the topics are gone.
        let Ok(view) = self.metastore.confirmed_view().await else { return };
        let left = veena_api::left(&self.broker, self.members.as_deref(), &self.me, &view, &tenants).await;
        for (TenantRecord { tenant, created_at_ms, .. }, left) in going.into_iter().zip(left) {
            let key = (tenant.clone(), created_at_ms);
            if !is_nothing(&left) {
                clean.remove(&key);
                continue;
            }
            if clean.entry(key.clone()).or_insert_with(Instant::now).elapsed() < CLEAN_FOR {
                continue;
            }
            clean.remove(&key);
            match self.metastore.propose(Command::TenantGone { tenant: tenant.clone(), created_at_ms }).await {
                Ok(_) => info!(%tenant, "a tenant was deleted: nothing of it is left on any node"),
                Err(error) => debug!(%tenant, %error, "a tenant that has nothing any more is named for now"),
            }
        }
    }
}

fn is_going(record: &TenantRecord) -> bool {
    record.state == TenantState::Deleting
}

fn is_nothing(left: &TenantLeft) -> bool {
    *left == TenantLeft::default()
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;
    use veena_broker::message::{Headers, NewMessage};
    use veena_broker::ports::{BrokerConfig, BrokerPorts};
    use veena_broker::tasks::{OnExit, Tasks};
    use veena_contract::{Entropy, Grants, StoredHash, TopicName, TopicRecord, UserKind, UserRecord, Username, WallClock, Witness};
    use veena_metastore::{MemLog, MetastoreConfig, Runtime};
    use veena_storage::disk::Disk;
    use veena_storage::disk::mem::MemDisk;
    use veena_storage::io::Io;

    use super::*;
    use crate::system::{OsEntropy, SystemClock};

    struct Node {
        metastore: Metastore,
        broker: Broker,
        disk: MemDisk,
        tasks: Tasks,
        me: NodeId,
    }

    impl Node {
        /// A node alone that keeps up to so many bytes that were set aside.
        async fn start(quarantine_bytes_max: u64) -> Self {
            let (entropy, clock): (Arc<dyn Entropy>, Arc<dyn WallClock>) = (Arc::new(OsEntropy), Arc::new(SystemClock));
            let me = NodeId("node-1".into());
            let started = Metastore::start(MetastoreConfig::new(me.clone()), MemLog::new(), Runtime::new(Arc::clone(&entropy))).await;
            let metastore = started.expect("the metastore starts");
            let catalog = Arc::new(metastore.clone());
            let (disk, tasks) = (MemDisk::new(), Tasks::new(Handle::current()));
            let mut config = BrokerConfig::new("/data".into());
            (config.disk_reserve_bytes, config.quarantine_bytes_max, config.retention_check_ms) = (0, quarantine_bytes_max, 50);
            disk.create_dir_all(&config.data_dir).expect("a data directory");
            let ports = BrokerPorts {
                disk: Arc::new(disk.clone()),
                write_io: Io::threads(4),
                read_io: Io::threads(4),
                catalog: catalog.clone(),
                writer: catalog.clone(),
                witness: Witness::new(catalog),
                clock,
                entropy,
                tasks: tasks.clone(),
                peers: None,
            };
            let broker = Broker::open(config, ports).await.expect("the engine opens");
            Self { metastore, broker, disk, tasks, me }
        }

        fn end_tenants(&self) {
            let (me, metastore, broker) = (self.me.clone(), self.metastore.clone(), self.broker.clone());
            let end = TenantEnd { me, metastore, broker, members: None };
            self.tasks.spawn("tenant-end", OnExit::Shutdown, end.run(self.tasks.token().clone()));
        }

        async fn apply(&self, command: Command) {
            self.metastore.propose(command).await.expect("applied");
        }

        /// A tenant with a user, and a topic with messages.
        async fn furnish(&self, name: &str, id: &str) {
            let tenant = tenant(name);
            self.apply(Command::PutTenant { tenant: tenant.clone(), state: TenantState::Active, revision: None, at_ms: 1, by_hand: false })
                .await;
            let user = UserRecord {
                tenant: tenant.clone(),
                username: Username::parse("joe").expect("a name"),
                kind: UserKind::Person,
                hash: Some(StoredHash::new("h".into())),
                grants: Grants::none(),
                is_root: false,
                created_at_ms: 1,
                updated_at_ms: 1,
                revision: 0,
            };
            self.apply(Command::CreateUser { user }).await;
            let topic: TopicRecord = serde_json::from_value(serde_json::json!({
                "tenant": name, "name": "orders", "id": id, "partitions": 2, "retention_ms": 0, "visibility_timeout_ms": 30_000,
                "max_in_flight_per_partition": 100, "max_acked_ahead_per_partition": 100, "created_at_ms": 0,
            }))
            .expect("a record");
            self.apply(Command::CreateTopic { topic, attach: None }).await;
            let orders = TopicName::parse("orders").expect("a name");
            for _ in 0..10 {
                let message =
                    NewMessage { key: None, partition: None, headers: Headers::default(), idempotency_key: None, payload: "m".into() };
                self.broker.produce(&tenant, &orders, message).await.expect("taken");
            }
        }

        fn names_in(&self, dir: &str) -> Vec<String> {
            self.disk.list(dir.as_ref()).map_or_else(|_| Vec::new(), |entries| entries.into_iter().map(|entry| entry.name).collect())
        }

        async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
            let deadline = Instant::now() + Duration::from_secs(30);
            while !is_so(self) {
                assert!(Instant::now() < deadline, "not within the deadline: {what}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).expect("a name")
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_tenant_that_is_deleted_is_named_until_nothing_of_it_is_left_and_another_keeps_all() {
        let node = Node::start(0).await;
        node.furnish("acme", "0000000000000001").await;
        node.furnish("twin", "0000000000000002").await;
        node.until("both have their directories", |node| node.names_in("/data/topics").len() == 2).await;
        node.end_tenants();
        node.apply(Command::DeleteTenant { tenant: tenant("acme"), at_ms: 2, by_hand: false }).await;
        let has_acme = |node: &Node| node.metastore.view().tenants.contains_key(&tenant("acme"));
        node.until("what the catalog has of it is gone", |node| node.metastore.view().counts_of(&tenant("acme")).is_empty()).await;
        assert!(has_acme(&node), "it is named for longer than that");
        node.until("it is gone", |node| !has_acme(node)).await;
        assert_eq!(node.names_in("/data/topics"), ["twin"]);
        assert!(node.names_in("/data/quarantine").iter().all(|name| !name.contains("acme")));
        let traces = node.broker.traces_of(&[tenant("acme")]).await.expect("it is told");
        assert_eq!(traces, [veena_broker::Traces::default()]);
        let twin = node.metastore.view().counts_of(&tenant("twin"));
        assert_eq!((twin.topics, twin.users), (1, 1));
        node.furnish("acme", "0000000000000003").await;
        assert!(has_acme(&node), "the name is free");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_tenant_is_gone_only_when_nothing_was_found_for_long_enough() {
        let node = Node::start(u64::MAX).await;
        node.furnish("acme", "0000000000000001").await;
        // Of a topic whose tenant nobody knows any more once it is gone.
        let kept = "/data/quarantine/9999999999999-copy-0000000000000001-p00000";
        // Whole at once: an empty one would be removed.
        node.disk.create_dir_all("/data/quarantine".as_ref()).expect("made");
        node.disk.create_dir_all("/data/made".as_ref()).expect("made");
        let file = node.disk.open("/data/made/x".as_ref(), veena_storage::disk::OpenMode::CreateNew).expect("made");
        file.write_at(b"x", 0).expect("written");
        node.disk.rename("/data/made".as_ref(), kept.as_ref()).expect("renamed");
        node.apply(Command::DeleteTenant { tenant: tenant("acme"), at_ms: 2, by_hand: false }).await;
        let end = TenantEnd { me: node.me.clone(), metastore: node.metastore.clone(), broker: node.broker.clone(), members: None };
        let (key, mut clean) = ((tenant("acme"), 1), Clean::new());
        let long_ago = || Instant::now().checked_sub(CLEAN_FOR * 2).expect("the clock has run for longer");
        let is_named = || node.metastore.view().tenants.contains_key(&tenant("acme"));
        // The topic's directory and that one.
        let set_aside = veena_broker::Traces { quarantined: 2, ..veena_broker::Traces::default() };
        let deadline = Instant::now() + Duration::from_secs(30);
        while node.broker.traces_of(&[tenant("acme")]).await.as_deref() != Some(&[set_aside]) {
            assert!(Instant::now() < deadline, "not within the deadline: nothing else is left");
            end.go_on(&mut clean, true).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        clean.insert(key.clone(), long_ago());
        end.go_on(&mut clean, true).await;
        assert!(is_named() && clean.is_empty(), "something was set aside: it begins anew");
        for name in node.names_in("/data/quarantine") {
            node.disk.remove_dir_all(format!("/data/quarantine/{name}").as_ref()).expect("removed");
        }
        end.go_on(&mut clean, true).await;
        assert!(is_named() && clean.contains_key(&key), "it was found clean once");
        clean.insert(key, long_ago());
        end.go_on(&mut clean, true).await;
        assert!(!is_named(), "and for long enough");
    }

    #[test]
    fn whatever_is_left_anywhere_is_something() {
        let one = |change: fn(&mut TenantLeft)| {
            let mut left = TenantLeft::default();
            change(&mut left);
            left
        };
        assert!(is_nothing(&TenantLeft::default()));
        for left in [
            one(|left| left.topics = 1),
            one(|left| left.users = 1),
            one(|left| left.on_nodes.open_topics = 1),
            one(|left| left.on_nodes.directories = 1),
            one(|left| left.on_nodes.quarantined = 1),
            one(|left| left.on_nodes.orphans = 1),
            one(|left| left.on_nodes.positions = 1),
            one(|left| left.unknown.push("node-2".into())),
        ] {
            assert!(!is_nothing(&left), "{left:?}");
        }
    }
}
