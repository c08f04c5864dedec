//! What an operator may set. Later sources win: built-in values, the file, the environment, flags.
//!
//! The file is one strict JSON object: a key that is not known stops the start, and so does everything else that is wrong, all of it
//! reported at once. Durations are text as Go writes them (`10s`, `1m30s`); bare numbers are refused, because they do not say their unit.

mod cluster;
mod keys;
mod security;
mod show;
mod unknown;
mod value;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};
use veena_contract::limits;

use crate::listen::host_and_port;

pub use cluster::{ClusterConfig, SharedSecrets};
pub use keys::{KEYS, Key};
pub use security::{AdminPassword, SecurityConfig};
pub use show::reference;
pub use unknown::warn_of_unknown_variables;
pub use value::Raw;

/// Everything that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("config: {}", .0.join("; "))]
pub struct ConfigError(pub Vec<String>);

/// The whole configuration of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The HTTP plane.
    pub http: HttpConfig,
    /// This node's name; `None` is the machine's.
    pub node_id: Option<String>,
    /// Other nodes.
    pub cluster: ClusterConfig,
    /// Files.
    pub storage: StorageConfig,
    /// What new topics get.
    pub topic: TopicConfig,
    /// Fan-out.
    pub fanout: FanoutConfig,
    /// Logs.
    pub log: LogConfig,
    /// Metrics.
    pub metrics: MetricsConfig,
    /// Who is let in.
    pub security: SecurityConfig,
    /// Added to each sync of a file: measures what a slow volume would do. For tests and benchmarks.
    pub slow_flush: Duration,
    /// A file that stops every sync while it exists; for measuring.
    pub stall_file: Option<PathBuf>,
}

/// The HTTP plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    /// `host:port`; an empty host is every address of the machine.
    pub addr: String,
    /// How long a request may take to arrive.
    pub read_timeout: Duration,
    /// How long an answer may take to leave.
    pub write_timeout: Duration,
    /// How long a connection may rest between requests.
    pub idle_timeout: Duration,
    /// How long requests may run on after a stop was asked for.
    pub shutdown_grace: Duration,
    /// The longest wait of a consume; zero means 30 s.
    pub max_consume_wait: Duration,
    /// The largest head of a request.
    pub max_header_bytes: usize,
    /// How many connections may be open; zero is no bound.
    pub max_connections: usize,
    /// How many messages one identity may be waiting for at once; zero is no bound.
    pub max_consume_in_flight_per_identity: usize,
    /// How many produces one identity may have in flight; zero is no bound.
    pub max_produce_in_flight_per_identity: usize,
    /// How many bytes of batch bodies may be in memory at once.
    pub max_batch_body_bytes_in_flight: usize,
    /// Refuse writes that a page of another web site could send unasked.
    pub cross_site_guard: bool,
    /// Serve the metrics to everybody, though callers are users.
    pub metrics_unauthenticated: bool,
    /// What clients are shown.
    pub tls: TlsConfig,
}

/// TLS towards clients: both, or none for plain HTTP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsConfig {
    /// The file with the certificate, its chain behind it.
    pub cert_file: Option<PathBuf>,
    /// The file with its private key.
    pub key_file: Option<PathBuf>,
}

/// Files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageConfig {
    /// Where everything is kept.
    pub data_dir: PathBuf,
    /// How partition logs are compressed.
    pub codec: CodecChoice,
    /// A log unused for this long is closed; 0 is never.
    pub idle_log_eviction_ms: u64,
    /// How often settle state is synced.
    pub consumer_offset_commit_interval_ms: u64,
    /// How much of the disk is kept free: with less, produce is refused. In bytes.
    pub reserve_bytes: u64,
}

/// How partition logs are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodecChoice {
    /// Not at all.
    None,
    /// With zstd.
    Zstd,
}

/// What new topics get, and what they may ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicConfig {
    /// Partitions of a topic that asks for none.
    pub default_partitions: u32,
    /// The fewest partitions a topic may have.
    pub min_partitions: u32,
    /// The most partitions a topic may have.
    pub max_partitions: u32,
    /// How long messages are kept; 0 is for ever.
    pub default_retention_age_ms: u64,
    /// How long a lease lasts.
    pub default_visibility_timeout_ms: u64,
    /// How many messages of one partition may be leased at once.
    pub default_max_in_flight_per_partition: u64,
    /// How many messages of one partition may be settled ahead of the frontier.
    pub default_max_acked_ahead_per_partition: u64,
}

/// Fan-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FanoutConfig {
    /// How many records are copied at once.
    pub max_batch_records: usize,
    /// How many bytes are copied at once.
    pub max_batch_bytes: usize,
    /// How long a copy that is not full waits for more.
    pub linger_ms: u64,
}

/// Logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// What is logged.
    pub level: LogLevel,
    /// How it is written.
    pub format: LogFormat,
}

/// Metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetricsConfig {
    /// Operators see what each tenant uses.
    pub tenant_labels: bool,
}

/// What is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// What a developer asks for.
    Debug,
    /// Changes of state.
    Info,
    /// Odd, and handled.
    Warn,
    /// A person must look.
    Error,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            http: HttpConfig {
                // What is sent can be read on the way: nobody but this machine is let in unless a flag says otherwise.
                addr: "127.0.0.1:7942".to_owned(),
                read_timeout: Duration::from_secs(10),
                write_timeout: Duration::from_secs(30),
                idle_timeout: Duration::from_secs(60),
                shutdown_grace: Duration::from_secs(10),
                max_consume_wait: Duration::from_secs(10),
                max_header_bytes: 64 * 1024,
                max_connections: 4096,
                max_consume_in_flight_per_identity: 1024,
                max_produce_in_flight_per_identity: 0,
                max_batch_body_bytes_in_flight: 256 * 1024 * 1024,
                cross_site_guard: true,
                metrics_unauthenticated: false,
                tls: TlsConfig::default(),
            },
            node_id: None,
            cluster: ClusterConfig::default(),
            storage: StorageConfig {
                data_dir: PathBuf::from("data"),
                codec: CodecChoice::None,
                idle_log_eviction_ms: 1_800_000,
                consumer_offset_commit_interval_ms: limits::SETTLE_SYNC_MS_DEFAULT,
                reserve_bytes: limits::DISK_RESERVE_BYTES,
            },
            topic: TopicConfig {
                default_partitions: 3,
                min_partitions: 1,
                max_partitions: limits::PARTITIONS_MAX_DEFAULT,
                default_retention_age_ms: 604_800_000,
                default_visibility_timeout_ms: 30_000,
                default_max_in_flight_per_partition: 1024,
                default_max_acked_ahead_per_partition: 1024,
            },
            fanout: FanoutConfig { max_batch_records: 4096, max_batch_bytes: limits::FRAME_BYTES_MAX, linger_ms: 25 },
            log: LogConfig { level: LogLevel::Info, format: LogFormat::Json },
            metrics: MetricsConfig::default(),
            security: SecurityConfig::default(),
            slow_flush: Duration::ZERO,
            stall_file: None,
        }
    }
}

/// What the command line sets, as text by key (`http.addr`, `storage.data_dir`, ...), in order.
#[derive(Clone, Debug, Default)]
pub struct Flags(Vec<(&'static str, String)>);

impl Flags {
    /// Sets a key when there is a value.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: Option<impl ToString>) -> Self {
        self.0.extend(value.map(|value| (key, value.to_string())));
        self
    }
}

impl Config {
    /// Puts a configuration together: `base`, then the text of the file, then the environment, then flags.
    ///
    /// # Errors
    /// [`ConfigError`] with everything that is wrong.
    pub fn load(base: Self, file: Option<&str>, env: impl Fn(&str) -> Option<String>, flags: &Flags) -> Result<Self, ConfigError> {
        let mut config = base;
        let mut errors = Vec::new();
        if let Some(text) = file {
            config.read_file(text, &mut errors);
        }
        for key in KEYS {
            if let Some(name) = key.env
                && let Some(text) = env(name)
                && let Err(error) = (key.set)(&mut config, &Raw::Text(&text))
            {
                errors.push(format!("{name}: {error}"));
            }
        }
        for (path, text) in &flags.0 {
            let key = KEYS.iter().find(|key| key.path == *path).expect("invariant: flags name keys of the table");
            if let Err(error) = (key.set)(&mut config, &Raw::Text(text)) {
                errors.push(format!("--{}: {error}", key.flag.unwrap_or(key.path)));
            }
        }
        config.check(&mut errors);
        if errors.is_empty() { Ok(config) } else { Err(ConfigError(errors)) }
    }

    /// With the name of this node: in a cluster it has one of its own, said here or kept by its data directory.
    ///
    /// # Errors
    /// [`ConfigError`] if nobody has said one.
    pub fn named(mut self, kept: impl FnOnce(&Path) -> Option<String>) -> Result<Self, ConfigError> {
        if self.cluster.peer_addr.is_some() && self.node_id.is_none() {
            let unnamed = || "a node of a cluster needs a name of its own: say --node-id, or set cluster.node_id".to_owned();
            self.node_id = Some(kept(&self.storage.data_dir).ok_or_else(|| ConfigError(vec![unnamed()]))?);
        }
        Ok(self)
    }

    fn read_file(&mut self, text: &str, errors: &mut Vec<String>) {
        let sections = match serde_json::from_str::<Value>(text) {
            Ok(Value::Object(sections)) => sections,
            Ok(_) => return errors.push("the file is not one JSON object".to_owned()),
            Err(error) => return errors.push(format!("the file is not JSON: {error}")),
        };
        for (section, value) in &sections {
            let is_known = KEYS.iter().any(|key| key.path.split('.').next() == Some(section));
            let Value::Object(values) = value else {
                errors.push(if is_known { format!("{section}: want an object") } else { format!("unknown key {section}") });
                continue;
            };
            if !is_known {
                errors.push(format!("unknown key {section}"));
                continue;
            }
            self.read_section(section, values, errors);
        }
    }

    /// The values of a section, and of the sections within it.
    fn read_section(&mut self, section: &str, values: &Map<String, Value>, errors: &mut Vec<String>) {
        for (name, value) in values {
            let path = format!("{section}.{name}");
            let is_section = KEYS.iter().any(|key| key.path.strip_prefix(&path).is_some_and(|rest| rest.starts_with('.')));
            match (KEYS.iter().find(|key| key.path == path), value) {
                (Some(key), _) => {
                    if let Err(error) = (key.set)(self, &Raw::Json(value)) {
                        errors.push(format!("{path}: {error}"));
                    }
                }
                (None, Value::Object(values)) if is_section => self.read_section(&path, values, errors),
                (None, _) if is_section => errors.push(format!("{path}: want an object")),
                (None, _) => errors.push(format!("unknown key {path}")),
            }
        }
    }

    /// Rules between values, and ranges.
    fn check(&self, errors: &mut Vec<String>) {
        let mut require = |holds: bool, text: &str| {
            if !holds {
                errors.push(text.to_owned());
            }
        };
        let (http, storage, topic, fanout) = (&self.http, &self.storage, &self.topic, &self.fanout);
        require(host_and_port(&http.addr).is_some(), &format!("http.addr {:?}: want host:port", http.addr));
        require(!http.read_timeout.is_zero(), "http.read_timeout must be above 0");
        require(!http.idle_timeout.is_zero(), "http.idle_timeout must be above 0");
        require(!http.write_timeout.is_zero(), "http.write_timeout must be above 0");
        require(http.write_timeout > http.max_consume_wait, "http.write_timeout must be longer than http.max_consume_wait");
        require(http.shutdown_grace >= http.max_consume_wait, "http.shutdown_grace must not be shorter than http.max_consume_wait");
        for (set, key, other) in [
            (&http.tls.cert_file, "http.tls.cert_file", "http.tls.key_file"),
            (&http.tls.key_file, "http.tls.key_file", "http.tls.cert_file"),
        ] {
            let has_both = set.is_none() || (http.tls.cert_file.is_some() && http.tls.key_file.is_some());
            require(has_both, &format!("{key} is set and {other} is not: set both for TLS, or neither for plain HTTP"));
        }
        require(http.max_header_bytes >= 4096, "http.max_header_bytes must be at least 4096");
        require(!storage.data_dir.as_os_str().is_empty(), "storage.data_dir must not be empty");
        let eviction = storage.idle_log_eviction_ms;
        require(eviction == 0 || eviction >= 60_000, "storage.idle_log_eviction_ms must be 0 or at least 60000");
        let interval = storage.consumer_offset_commit_interval_ms;
        require((10..=60_000).contains(&interval), "storage.consumer_offset_commit_interval_ms must be 10 to 60000");
        require(topic.max_partitions > 0, "topic.max_partitions must be above 0");
        require(topic.min_partitions > 0, "topic.min_partitions must be above 0");
        let partitions = topic.min_partitions..=topic.max_partitions;
        require(
            partitions.contains(&topic.default_partitions),
            "topic.default_partitions must be topic.min_partitions to topic.max_partitions",
        );
        let retention = topic.default_retention_age_ms;
        let is_retention = retention == 0 || retention >= limits::RETENTION_MS_MIN;
        require(is_retention, "topic.default_retention_age_ms must be 0 or at least 3600000");
        require(topic.default_visibility_timeout_ms > 0, "topic.default_visibility_timeout_ms must be above 0");
        require(topic.default_max_in_flight_per_partition > 0, "topic.default_max_in_flight_per_partition must be above 0");
        require(topic.default_max_acked_ahead_per_partition > 0, "topic.default_max_acked_ahead_per_partition must be above 0");
        require(fanout.max_batch_records > 0, "fanout.max_batch_records must be above 0");
        let bytes = 1..=limits::COMMIT_BYTES_MAX;
        require(bytes.contains(&fanout.max_batch_bytes), "fanout.max_batch_bytes must be 1 to 8388608");
        let stale = self.security.stale_after_ms;
        require(stale == 0 || stale >= limits::SECURITY_STALE_MS_MIN, "security.stale_after_ms must be 0 or at least 5000");
        self.cluster.check(errors);
    }
}

#[cfg(test)]
mod tests;
