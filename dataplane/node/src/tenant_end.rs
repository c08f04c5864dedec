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
        let mut clean = Clean::new();
        while stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
            if stop.run_until_cancelled(self.look(&mut clean)).await.is_none() {
                return;
            }
        }
    }

    async fn look(&self, clean: &mut Clean) {
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
        for record in going.iter().take(limits::TENANTS_DELETED_AT_ONCE_MAX) {
            self.end(record, clean).await;
        }
    }

    /// Deletes some of what the catalog has of a tenant: its topics first, so that no user's name is free while a topic is theirs.
    async fn delete_some(&self, view: &CatalogView, tenant: &TenantId) -> Result<(), ProposeError> {
        let topics =
            view.topics_of(tenant).map(|topic| Command::DeleteTopic { tenant: tenant.clone(), name: topic.name.clone(), id: topic.id });
        let users = view.users_of(tenant).map(|user| Command::DeleteUser { tenant: tenant.clone(), username: user.username.clone() });
        for command in topics.chain(users).take(limits::TENANT_DELETE_BATCH_MAX) {
            match self.metastore.propose(command).await {
                // Somebody else was faster.
                Ok(_) | Err(ProposeError::Refused(CommandError::TopicNotFound | CommandError::UserNotFound)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Looks whether anything of the tenant is left. What is found clean once may be so because a message is on its way: it must stay so.
    async fn end(&self, record: &TenantRecord, clean: &mut Clean) {
        let tenant = &record.tenant;
        let key = (tenant.clone(), record.created_at_ms);
        // Every node has to know what the leader knows now: that the topics are gone.
        let Ok(view) = self.metastore.confirmed_view().await else { return };
        let left = veena_api::left(&self.broker, self.members.as_deref(), &self.me, &view, tenant).await;
        if !is_nothing(&left) {
            clean.remove(&key);
            return;
        }
        if clean.entry(key.clone()).or_insert_with(Instant::now).elapsed() < CLEAN_FOR {
            return;
        }
        let gone = Command::TenantGone { tenant: tenant.clone(), created_at_ms: record.created_at_ms };
        match self.metastore.propose(gone).await {
            Ok(_) => info!(%tenant, "a tenant was deleted: nothing of it is left on any node"),
            Err(error) => debug!(%tenant, %error, "a tenant that has nothing any more is named for now"),
        }
        clean.remove(&key);
    }
}

fn is_going(record: &TenantRecord) -> bool {
    record.state == TenantState::Deleting
}

fn is_nothing(left: &TenantLeft) -> bool {
    *left == TenantLeft::default()
}
