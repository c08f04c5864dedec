//! What an operator may set for the HTTP plane (http-contract 4.1).

use std::time::Duration;

use veena_contract::limits;

/// Bounds and switches of the HTTP plane.
#[derive(Clone, Debug)]
pub struct ApiConfig {
    /// Refuse writes that a web page could send without a preflight (http-contract 0.1 #1).
    pub cross_site_guard: bool,
    /// The longest wait of a consume; longer ones are clamped. Zero means 30 s.
    pub max_consume_wait: Duration,
    /// How long a request's headers may take, and how long a body may stand still.
    pub read_timeout: Duration,
    /// How long an answer may take to leave.
    pub write_timeout: Duration,
    /// How long a connection may rest between requests.
    pub idle_timeout: Duration,
    /// How long requests may run on after a stop was asked for.
    pub shutdown_grace: Duration,
    /// The largest head of a request, in bytes; more is 431.
    pub max_header_bytes: usize,
    /// How many connections may be open; more wait in the listener's backlog. Zero is no bound.
    pub max_connections: usize,
    /// How many messages one identity may be waiting for at once on this node. Zero is no bound.
    pub max_consume_in_flight_per_identity: usize,
    /// How many produces one identity may have in flight on this node. Zero is no bound.
    pub max_produce_in_flight_per_identity: usize,
    /// How many bytes of batch bodies may be in memory at once.
    pub max_batch_body_bytes_in_flight: usize,
    /// Serve `/metrics` on the API port; otherwise it answers 404 there.
    pub metrics_on_api_port: bool,
    /// Serve `/metrics` on the API port to everybody; otherwise it takes credentials there, as all but the probes do.
    pub metrics_unauthenticated: bool,
    /// Operators see in the metrics what each tenant uses.
    pub metrics_tenant_labels: bool,
    /// Callers are users, and may do what was granted to them. Otherwise nobody is asked for, and everybody may do everything.
    pub security_enabled: bool,
    /// How long rights are decided without a leader; zero is for ever.
    pub security_stale_after: Duration,
    /// What a topic gets when its creator says nothing.
    pub topics: TopicDefaults,
}

/// Defaults and bounds of new topics.
#[derive(Clone, Debug)]
pub struct TopicDefaults {
    /// Partitions of a topic that asks for none.
    pub partitions: u32,
    /// The fewest partitions a topic may have.
    pub min_partitions: u32,
    /// The most partitions a topic may have.
    pub max_partitions: u32,
    /// How long messages are kept, in ms; zero is for ever.
    pub retention_ms: u64,
    /// How long a lease lasts, in ms.
    pub visibility_timeout_ms: u64,
    /// How many messages of one partition may be leased at once.
    pub max_in_flight_per_partition: u64,
    /// How many messages of one partition may be settled ahead of the frontier.
    pub max_acked_ahead_per_partition: u64,
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self {
            cross_site_guard: true,
            max_consume_wait: Duration::from_secs(10),
            read_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            shutdown_grace: Duration::from_secs(10),
            max_header_bytes: 64 * 1024,
            max_connections: 4096,
            max_consume_in_flight_per_identity: 1024,
            max_produce_in_flight_per_identity: 0,
            max_batch_body_bytes_in_flight: 256 * 1024 * 1024,
            metrics_on_api_port: true,
            metrics_unauthenticated: false,
            metrics_tenant_labels: false,
            security_enabled: true,
            security_stale_after: Duration::from_millis(limits::SECURITY_STALE_MS_DEFAULT),
            topics: TopicDefaults::default(),
        }
    }
}

impl Default for TopicDefaults {
    fn default() -> Self {
        Self {
            partitions: 3,
            min_partitions: 1,
            max_partitions: limits::PARTITIONS_MAX_DEFAULT,
            retention_ms: 604_800_000,
            visibility_timeout_ms: 30_000,
            max_in_flight_per_partition: 1024,
            max_acked_ahead_per_partition: 1024,
        }
    }
}

impl ApiConfig {
    /// The ceiling of a consume's wait.
    #[must_use]
    pub fn consume_wait_max(&self) -> Duration {
        if self.max_consume_wait.is_zero() { Duration::from_secs(30) } else { self.max_consume_wait }
    }
}
