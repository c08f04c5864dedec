//! What every handler may reach.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use veena_auth::{Authenticator, ServerTls};
use veena_broker::engine::Broker;
use veena_contract::{Catalog, CatalogView, CatalogWriter, Entropy, LeaderPort, Members, NodeId, Quiet, TenantId, WallClock};

use crate::budget::Budget;
use crate::config::ApiConfig;
use crate::conn::{Identities, Users};
use crate::contact::Contact;
use crate::denials::Denials;
use crate::metrics::Metrics;
use crate::schema::Schemas;

/// The things the plane is put together from.
pub struct ApiParts {
    /// The engine.
    pub broker: Broker,
    /// Local reads of the catalog.
    pub catalog: Arc<dyn Catalog>,
    /// Replicated writes to the catalog.
    pub writer: Arc<dyn CatalogWriter>,
    /// Readiness of the metastore.
    pub leader: Arc<dyn LeaderPort>,
    /// The time of day, for `created_at`.
    pub clock: Arc<dyn WallClock>,
    /// Identities of topics, attachments and refusals.
    pub entropy: Arc<dyn Entropy>,
    /// This node's name, shown as the owner of its partitions.
    pub node: NodeId,
    /// Finds out who sends a request, and computes what is stored of passwords.
    pub authenticator: Authenticator,
    /// TLS towards clients; without it they speak plain HTTP.
    pub tls: Option<Arc<ServerTls>>,
    /// The members of the cluster; `None` for a node alone.
    pub cluster: Option<Arc<dyn Members>>,
    /// The version shown in the build metric.
    pub version: &'static str,
}

/// Shared state of the plane. Cheap to clone.
#[derive(Clone)]
pub struct ApiState(Arc<Inner>);

/// The state itself; reached through [`ApiState`] alone.
pub struct Inner {
    pub(crate) config: ApiConfig,
    pub(crate) parts: ApiParts,
    pub(crate) metrics: Metrics,
    pub(crate) denials: Denials,
    pub(crate) identities: Identities,
    pub(crate) users: Users,
    pub(crate) contact: Contact,
    pub(crate) batch_budget: Budget,
    pub(crate) schemas: Schemas,
    /// Bounds what is logged of requests that failed.
    pub(crate) failure_lines: Mutex<Quiet>,
    pub(crate) unknown_lines: Mutex<Quiet>,
    pub(crate) throttled_lines: Mutex<Quiet>,
    /// Whose things are served to a caller whom nobody asked for.
    pub(crate) tenant: TenantId,
    /// Cancelled once the node has been told to stop: probes turn red and parked consumers are answered.
    pub(crate) stopping: CancellationToken,
}

impl ApiState {
    /// Puts the plane together. Starts nothing.
    #[must_use]
    pub fn new(config: ApiConfig, parts: ApiParts) -> Self {
        let batch_budget = Budget::new(config.max_batch_body_bytes_in_flight);
        Self(Arc::new(Inner {
            config,
            parts,
            metrics: Metrics::default(),
            denials: Denials::default(),
            identities: Identities::default(),
            users: Users::default(),
            contact: Contact::default(),
            batch_budget,
            schemas: Schemas::default(),
            failure_lines: Mutex::default(),
            unknown_lines: Mutex::default(),
            throttled_lines: Mutex::default(),
            tenant: TenantId::default_tenant(),
            stopping: CancellationToken::new(),
        }))
    }

    /// The counters of the plane.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Turns the probes red and answers parked consumers. [`crate::serve`] does this when its shutdown token is cancelled.
    pub fn begin_stop(&self) {
        self.0.stopping.cancel();
    }

    /// Looks whether there is a leader.
    pub(crate) fn look_for_leader(&self) {
        self.0.contact.look(self.0.parts.leader.not_ready_reason().is_none(), self.0.config.security_stale_after);
    }

    pub(crate) fn view(&self) -> Arc<CatalogView> {
        self.0.parts.catalog.view()
    }
}

impl std::ops::Deref for ApiState {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}
