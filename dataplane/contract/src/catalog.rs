//! The catalog as hot paths see it: an immutable view, swapped when a change is applied; and the seams through which it is changed.

use std::future::Future;
use std::ops::Bound;
use std::pin::Pin;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use crate::audit::{AuditTrail, Origin};
use crate::ids::{DrainMark, LogIndex, NodeId, PartitionIndex, TenantId, TopicId};
use crate::issuer::TokenIssuerRecord;
use crate::keys::{KeyId, KeyRecord};
use crate::names::TopicName;
use crate::problem::Effect;
use crate::quota::{QuotaRecord, Quotas};
use crate::records::{Command, CommandError, Move, Ownership, TopicRecord};
use crate::tenants::{TenantCounts, TenantRecord, TenantState};
use crate::username::Username;
use crate::users::{Actor, UserRecord};

/// A boxed future, for traits that are used as objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One immutable state of the catalog. Cloning shares structure.
#[derive(Clone, Debug, Default)]
pub struct CatalogView {
    /// The metastore position this view reflects.
    pub applied: LogIndex,
    /// Topics by tenant and name, in byte-wise name order.
    pub topics: OrdMap<(TenantId, TopicName), Arc<TopicRecord>>,
    /// The same topics by incarnation.
    pub by_id: OrdMap<TopicId, Arc<TopicRecord>>,
    /// Users by tenant and name, in byte-wise name order.
    pub users: OrdMap<(TenantId, Username), Arc<UserRecord>>,
    /// Keys of service accounts, of all tenants: a key is found by its id, which says whose it is.
    pub keys: OrdMap<KeyId, Arc<KeyRecord>>,
    /// The keys of each account, oldest first.
    pub account_keys: OrdMap<(TenantId, Username), Arc<[KeyId]>>,
    /// The nodes that are being taken out of the cluster: they get nothing new.
    pub draining: OrdSet<NodeId>,
    /// Which time it is, of each of them.
    pub marks: OrdMap<NodeId, DrainMark>,
    /// Those of them that have nothing any more and do not come back.
    pub leaving: OrdSet<NodeId>,
    /// The tenants, in byte-wise name order. The tenant `default` exists also where it is not listed.
    pub tenants: OrdMap<TenantId, Arc<TenantRecord>>,
    /// How much each tenant has; nothing, if it is not listed.
    pub counts: OrdMap<TenantId, TenantCounts>,
    /// Who changed what.
    pub audit: AuditTrail,
    /// The limits of tenants, and of topics.
    pub quotas: Quotas,
    /// Whose tokens are taken, of all tenants; nobody's, if there is none.
    pub token_issuer: Option<Arc<TokenIssuerRecord>>,
}

impl CatalogView {
    /// The living topic of this name.
    #[must_use]
    pub fn topic(&self, tenant: &TenantId, name: &TopicName) -> Option<&Arc<TopicRecord>> {
        self.topics.get(&(tenant.clone(), name.clone()))
    }

    /// The topic of this incarnation, while it lives.
    #[must_use]
    pub fn topic_by_id(&self, id: TopicId) -> Option<&Arc<TopicRecord>> {
        self.by_id.get(&id)
    }

    /// The user of this name.
    #[must_use]
    pub fn user(&self, tenant: &TenantId, name: &Username) -> Option<&Arc<UserRecord>> {
        self.users.get(&(tenant.clone(), name.clone()))
    }

    /// The limits of a tenant, or of one of its topics; `None` if none were ever set.
    #[must_use]
    pub fn quota(&self, tenant: &TenantId, topic: Option<&TopicName>) -> Option<&Arc<QuotaRecord>> {
        self.quotas.get(tenant, topic)
    }

    /// The users of a tenant, in byte-wise name order. Looks at none of another.
    pub fn users_of<'a>(&'a self, tenant: &'a TenantId) -> impl Iterator<Item = &'a Arc<UserRecord>> {
        let from = (tenant.clone(), Username::least());
        self.users.range((Bound::Included(from), Bound::Unbounded)).map(|(_, user)| user).take_while(move |user| user.tenant == *tenant)
    }

    /// The topics of a tenant, in byte-wise name order. Looks at none of another.
    pub fn topics_of<'a>(&'a self, tenant: &'a TenantId) -> impl Iterator<Item = &'a Arc<TopicRecord>> {
        let from = (tenant.clone(), TopicName::least());
        self.topics
            .range((Bound::Included(from), Bound::Unbounded))
            .map(|(_, topic)| topic)
            .take_while(move |topic| topic.tenant == *tenant)
    }

    /// What a tenant's users may do at all; `None` if there is no such tenant.
    #[must_use]
    pub fn tenant_state(&self, tenant: &TenantId) -> Option<TenantState> {
        if tenant.is_default() {
            return Some(TenantState::Active);
        }
        self.tenants.get(tenant).map(|record| record.state)
    }

    /// How much a tenant has.
    #[must_use]
    pub fn counts_of(&self, tenant: &TenantId) -> TenantCounts {
        self.counts.get(tenant).copied().unwrap_or_default()
    }

    /// The key of this id, whosever it is: for finding out who somebody is, and for nothing else.
    #[must_use]
    pub fn key(&self, id: &KeyId) -> Option<&Arc<KeyRecord>> {
        self.keys.get(id)
    }

    /// The keys of an account, oldest first.
    pub fn keys_of(&self, tenant: &TenantId, account: &Username) -> impl Iterator<Item = &Arc<KeyRecord>> {
        let ids = self.account_keys.get(&(tenant.clone(), account.clone()));
        ids.into_iter().flat_map(|ids| ids.iter()).filter_map(|id| self.keys.get(id))
    }

    /// The moves that are under way: of which topic and partition, from whom, and which.
    pub fn moves(&self) -> impl Iterator<Item = (&TopicRecord, PartitionIndex, &Ownership, &Move)> {
        self.by_id.values().flat_map(|topic| {
            let owners = (0..).map(PartitionIndex).zip(&topic.owners);
            owners.filter_map(|(index, owner)| Some((topic.as_ref(), index, owner, owner.moving.as_ref()?)))
        })
    }

    /// How many partitions this node owns.
    #[must_use]
    pub fn partitions_of(&self, node: &NodeId) -> usize {
        self.by_id.values().flat_map(|topic| &topic.owners).filter(|owner| owner.node == *node).count()
    }
}

/// Local, synchronous reads of the catalog. Never blocks, never touches a store.
pub trait Catalog: Send + Sync + 'static {
    /// The newest view this node has applied.
    fn view(&self) -> Arc<CatalogView>;

    /// Completes once a view newer than `seen` is there. Cancel-safe.
    fn changed(&self, seen: LogIndex) -> BoxFuture<'_, ()>;
}

/// Why a change was not made, or may not have been.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ProposeError {
    /// The catalog's own rules refuse the command.
    #[error(transparent)]
    Refused(#[from] CommandError),
    /// The change never left this node: certainly not applied.
    #[error("control plane temporarily unavailable: {reason}")]
    Unavailable {
        /// What was missing (a leader, a working log).
        reason: String,
    },
    /// The change was handed over and its outcome is not known.
    #[error("control plane temporarily unavailable: the change may still be applied, read it back before retrying: {reason}")]
    Uncertain {
        /// What went wrong after it was handed over.
        reason: String,
    },
}

impl ProposeError {
    /// May the change have been applied?
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Self::Refused(_) | Self::Unavailable { .. } => Effect::None,
            Self::Uncertain { .. } => Effect::Possible,
        }
    }
}

/// Replicated writes to the catalog.
pub trait CatalogWriter: Send + Sync + 'static {
    /// Proposes one command and waits until *this* node has applied it: when this answers, [`Catalog::view`] shows the change. With a caller,
    /// what the user may do is looked at again where it is applied ([`CommandError::Forbidden`]); without one, nobody asks. Where it comes from
    /// is written with it, and stands in the audit trail from the moment it is applied.
    ///
    /// # Errors
    /// [`ProposeError`], whose effect says whether the change may have been made.
    fn propose_from(&self, origin: Origin, command: Command) -> BoxFuture<'_, Result<Arc<CatalogView>, ProposeError>>;

    /// As [`propose_from`](Self::propose_from), where no more is known than who asks; if nobody does, the node does it by itself.
    ///
    /// # Errors
    /// As there.
    fn propose_by(&self, caller: Option<Actor>, command: Command) -> BoxFuture<'_, Result<Arc<CatalogView>, ProposeError>> {
        self.propose_from(Origin::of(caller), command)
    }

    /// The same, for what the node does by itself.
    ///
    /// # Errors
    /// As there.
    fn propose(&self, command: Command) -> BoxFuture<'_, Result<Arc<CatalogView>, ProposeError>> {
        self.propose_from(Origin::Node, command)
    }
}

/// Linearizable reads through the leader. Used by the [`Witness`](crate::Witness), and before a negative answer.
pub trait LeaderPort: Send + Sync + 'static {
    /// A view that is at least as new as everything committed when the call was made. MUST pass a leader barrier.
    ///
    /// # Errors
    /// [`ProposeError::Unavailable`] when the leader cannot confirm in time.
    fn confirmed_view(&self) -> BoxFuture<'_, Result<Arc<CatalogView>, ProposeError>>;

    /// A copy of everything that is known here, as a file, no older than what was committed when the call was made.
    ///
    /// # Errors
    /// [`ProposeError::Unavailable`] when the leader cannot confirm in time, or no copies are made here.
    fn backup(&self) -> BoxFuture<'_, Result<Vec<u8>, ProposeError>> {
        Box::pin(async { Err(ProposeError::Unavailable { reason: "no copies of this catalog are made".to_owned() }) })
    }

    /// Why this node should not be called ready, if so: no leader, not caught up, or a latched store.
    fn not_ready_reason(&self) -> Option<String>;
}
