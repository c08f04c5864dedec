//! The table of keys: where each is set, and what it means. The reference page is made from it.

use std::path::PathBuf;

use super::cluster::known_node;
use super::show::Shown as _;
use super::value::Raw;
use super::{AdminPassword, CodecChoice, Config, LogFormat, LogLevel, SharedSecrets};

/// One thing that can be set.
pub struct Key {
    /// Section and name in the file.
    pub path: &'static str,
    /// The environment variable; `None` where only the file sets it.
    pub env: Option<&'static str>,
    /// The flag of `veena node`.
    pub flag: Option<&'static str>,
    /// What it means.
    pub about: &'static str,
    /// Reads a value into the configuration.
    pub set: fn(&mut Config, &Raw<'_>) -> Result<(), String>,
    /// Shows the value of a configuration; empty when there is none.
    pub show: fn(&Config) -> String,
}

macro_rules! keys {
    ($($path:literal $env:tt $flag:tt $about:literal => |$config:ident, $raw:ident| $set:expr => |$shown:ident| $show:expr;)*) => {
        /// Every key, in the order of the reference page.
        pub const KEYS: &[Key] = &[$(Key {
            path: $path,
            env: keys!(@name $env),
            flag: keys!(@name $flag),
            about: $about,
            set: |$config, $raw| { $set; Ok(()) },
            show: |$shown| $show,
        },)*];
    };
    (@name -) => { None };
    (@name $name:literal) => { Some($name) };
}

keys! {
    "http.addr" "VEENA_HTTP_ADDR" "addr" "host:port to listen on; an empty host is every address of the machine"
        => |c, raw| c.http.addr = raw.text()? => |c| c.http.addr.shown();
    "http.port" - "port" "replaces the port of http.addr"
        => |c, raw| c.set_port(raw.whole()?) => |_c| String::new();
    "http.read_timeout" "VEENA_HTTP_READ_TIMEOUT" - "how long a request may take to arrive"
        => |c, raw| c.http.read_timeout = raw.duration()? => |c| c.http.read_timeout.shown();
    "http.write_timeout" "VEENA_HTTP_WRITE_TIMEOUT" - "how long an answer may take to leave; longer than http.max_consume_wait"
        => |c, raw| c.http.write_timeout = raw.duration()? => |c| c.http.write_timeout.shown();
    "http.idle_timeout" "VEENA_HTTP_IDLE_TIMEOUT" - "how long a connection may rest between requests"
        => |c, raw| c.http.idle_timeout = raw.duration()? => |c| c.http.idle_timeout.shown();
    "http.shutdown_grace" "VEENA_HTTP_SHUTDOWN_GRACE" - "how long requests may run on after a stop was asked for"
        => |c, raw| c.http.shutdown_grace = raw.duration()? => |c| c.http.shutdown_grace.shown();
    "http.max_consume_wait" "VEENA_HTTP_MAX_CONSUME_WAIT" - "the longest wait of a consume; 0 means 30s"
        => |c, raw| c.http.max_consume_wait = raw.duration()? => |c| c.http.max_consume_wait.shown();
    "http.max_header_bytes" "VEENA_HTTP_MAX_HEADER_BYTES" - "the largest head of a request; at least 4096"
        => |c, raw| c.http.max_header_bytes = raw.whole()? => |c| c.http.max_header_bytes.shown();
    "http.max_connections" "VEENA_HTTP_MAX_CONNECTIONS" - "how many connections may be open; 0 is no bound"
        => |c, raw| c.http.max_connections = raw.whole()? => |c| c.http.max_connections.shown();
    "http.max_consume_in_flight_per_identity" "VEENA_HTTP_MAX_CONSUME_IN_FLIGHT_PER_IDENTITY" -
        "how many messages one user (with security off, one client address) may be waiting for at once; 0 is no bound"
        => |c, raw| c.http.max_consume_in_flight_per_identity = raw.whole()? => |c| c.http.max_consume_in_flight_per_identity.shown();
    "http.max_produce_in_flight_per_identity" "VEENA_HTTP_MAX_PRODUCE_IN_FLIGHT_PER_IDENTITY" -
        "how many produces one user (with security off, one client address) may have in flight; 0 is no bound"
        => |c, raw| c.http.max_produce_in_flight_per_identity = raw.whole()? => |c| c.http.max_produce_in_flight_per_identity.shown();
    "http.max_batch_body_bytes_in_flight" "VEENA_HTTP_MAX_BATCH_BODY_BYTES_IN_FLIGHT" -
        "how many bytes of batch bodies over 1 MiB may be in memory at once"
        => |c, raw| c.http.max_batch_body_bytes_in_flight = raw.whole()? => |c| c.http.max_batch_body_bytes_in_flight.shown();
    "http.cross_site_guard" "VEENA_HTTP_CROSS_SITE_GUARD" - "refuse writes that a page of another web site could send unasked"
        => |c, raw| c.http.cross_site_guard = raw.truth()? => |c| c.http.cross_site_guard.shown();
    "http.metrics_unauthenticated" "VEENA_HTTP_METRICS_UNAUTHENTICATED" - "serve /metrics to everybody, though all else takes credentials"
        => |c, raw| c.http.metrics_unauthenticated = raw.truth()? => |c| c.http.metrics_unauthenticated.shown();
    "http.tls.cert_file" "VEENA_HTTP_TLS_CERT_FILE" -
        "a PEM file with the certificate that clients are shown, and its chain behind it; with it and http.tls.key_file the port speaks TLS only. Looked at again every minute, and on SIGHUP"
        => |c, raw| c.http.tls.cert_file = Some(PathBuf::from(raw.text()?)) => |c| c.http.tls.cert_file.shown();
    "http.tls.key_file" "VEENA_HTTP_TLS_KEY_FILE" - "a PEM file with the private key of that certificate"
        => |c, raw| c.http.tls.key_file = Some(PathBuf::from(raw.text()?)) => |c| c.http.tls.key_file.shown();
    "cluster.node_id" "VEENA_NODE_ID" "node-id" "this node's name; fixed once the data directory exists (default: the name that the directory has; of a new one outside of a cluster the machine's)"
        => |c, raw| c.node_id = Some(raw.node()?) => |c| c.node_id.shown();
    "cluster.peer_addr" "VEENA_CLUSTER_PEER_ADDR" -
        "host:port (UDP) on which the other nodes of a cluster reach this one; without it the node is alone"
        => |c, raw| c.cluster.peer_addr = Some(raw.text()?) => |c| c.cluster.peer_addr.shown();
    "cluster.advertise_addr" "VEENA_CLUSTER_ADVERTISE_ADDR" - "the same as the others see it (default: cluster.peer_addr)"
        => |c, raw| c.cluster.advertise_addr = Some(raw.text()?) => |c| c.cluster.advertise_addr.shown();
    "cluster.secret_file" "VEENA_CLUSTER_SECRET_FILE" -
        "a file with the secret that all nodes of the cluster share, made with `openssl rand -base64 32`; while it is being changed, a second line holds the one before"
        => |c, raw| c.cluster.secret_file = Some(PathBuf::from(raw.text()?)) => |c| c.cluster.secret_file.shown();
    "cluster.secret" "VEENA_CLUSTER_SECRET" - "the secret itself, instead of the name of its file; not taken from the file with settings"
        => |c, raw| c.cluster.secret = Some(secret(raw)?) => |_c| String::new();
    "cluster.bootstrap" "VEENA_CLUSTER_BOOTSTRAP" -
        "found the cluster, if the data directory is empty and there is none yet: for one node. The nodes of cluster.join have to answer, all of them, that they are in none; a node that knows none listens for three seconds for members that call it, and founds. With a lost directory and nobody there it would found another cluster: so name the others, or take this away after the first start"
        => |c, raw| c.cluster.bootstrap = raw.truth()? => |c| c.cluster.bootstrap.shown();
    "cluster.join" "VEENA_CLUSTER_JOIN" -
        "nodes of the cluster, each node@host:port: through one of them this one joins, if its data directory is empty and it founds none"
        => |c, raw| c.cluster.join = raw.list()?.iter().map(|text| known_node(text)).collect::<Result<_, _>>()? => |c| c.cluster.join.shown();
    "storage.data_dir" "VEENA_DATA_DIR" "data-dir" "where everything is kept"
        => |c, raw| c.storage.data_dir = PathBuf::from(raw.text()?) => |c| c.storage.data_dir.shown();
    "storage.codec" - - "how partition logs are compressed: none or zstd"
        => |c, raw| c.storage.codec = raw.choice(&[("none", CodecChoice::None), ("zstd", CodecChoice::Zstd)])? => |c| c.storage.codec.shown();
    "storage.idle_log_eviction_ms" - - "a log unused for this long is closed; 0 is never, else at least 60000"
        => |c, raw| c.storage.idle_log_eviction_ms = raw.whole()? => |c| c.storage.idle_log_eviction_ms.shown();
    "storage.consumer_offset_commit_interval_ms" - - "how often acks are synced to disk; 10 to 60000"
        => |c, raw| c.storage.consumer_offset_commit_interval_ms = raw.whole()? => |c| c.storage.consumer_offset_commit_interval_ms.shown();
    "storage.reserve_bytes" "VEENA_STORAGE_RESERVE_BYTES" - "produce is refused while less than this is free on the data disk; new and changed topics below a quarter of it"
        => |c, raw| c.storage.reserve_bytes = raw.whole()? => |c| c.storage.reserve_bytes.shown();
    "topic.default_partitions" "VEENA_TOPIC_DEFAULT_PARTITIONS" - "partitions of a topic that asks for none"
        => |c, raw| c.topic.default_partitions = raw.whole()? => |c| c.topic.default_partitions.shown();
    "topic.min_partitions" "VEENA_TOPIC_MIN_PARTITIONS" - "the fewest partitions a topic may have"
        => |c, raw| c.topic.min_partitions = raw.whole()? => |c| c.topic.min_partitions.shown();
    "topic.max_partitions" "VEENA_TOPIC_MAX_PARTITIONS" - "the most partitions a topic may have"
        => |c, raw| c.topic.max_partitions = raw.whole()? => |c| c.topic.max_partitions.shown();
    "topic.default_retention_age_ms" "VEENA_TOPIC_DEFAULT_RETENTION_AGE_MS" - "how long messages are kept; 0 is for ever, else at least an hour"
        => |c, raw| c.topic.default_retention_age_ms = raw.whole()? => |c| c.topic.default_retention_age_ms.shown();
    "topic.default_visibility_timeout_ms" "VEENA_TOPIC_DEFAULT_VISIBILITY_TIMEOUT_MS" - "how long a lease lasts"
        => |c, raw| c.topic.default_visibility_timeout_ms = raw.whole()? => |c| c.topic.default_visibility_timeout_ms.shown();
    "topic.default_max_in_flight_per_partition" "VEENA_TOPIC_DEFAULT_MAX_IN_FLIGHT_PER_PARTITION" -
        "how many messages of one partition may be leased at once"
        => |c, raw| c.topic.default_max_in_flight_per_partition = raw.whole()? => |c| c.topic.default_max_in_flight_per_partition.shown();
    "topic.default_max_acked_ahead_per_partition" "VEENA_TOPIC_DEFAULT_MAX_ACKED_AHEAD_PER_PARTITION" -
        "how many messages of one partition may be settled ahead of the first unsettled one"
        => |c, raw| c.topic.default_max_acked_ahead_per_partition = raw.whole()? => |c| c.topic.default_max_acked_ahead_per_partition.shown();
    "fanout.max_batch_records" "VEENA_FANOUT_MAX_BATCH_RECORDS" - "how many records are copied to a child at once"
        => |c, raw| c.fanout.max_batch_records = raw.whole()? => |c| c.fanout.max_batch_records.shown();
    "fanout.max_batch_bytes" "VEENA_FANOUT_MAX_BATCH_BYTES" - "how many bytes are copied to a child at once"
        => |c, raw| c.fanout.max_batch_bytes = raw.whole()? => |c| c.fanout.max_batch_bytes.shown();
    "fanout.linger_ms" "VEENA_FANOUT_LINGER_MS" - "how long a copy that is not full waits for more"
        => |c, raw| c.fanout.linger_ms = raw.whole()? => |c| c.fanout.linger_ms.shown();
    "log.level" "VEENA_LOG_LEVEL" "log-level" "debug, info, warn or error"
        => |c, raw| c.log.level = raw.choice(LOG_LEVELS)? => |c| c.log.level.shown();
    "log.format" "VEENA_LOG_FORMAT" "log-format" "json or text"
        => |c, raw| c.log.format = raw.choice(&[("json", LogFormat::Json), ("text", LogFormat::Text)])? => |c| c.log.format.shown();
    "metrics.tenant_labels" "VEENA_METRICS_TENANT_LABELS" -
        "show in /metrics what each tenant uses on this node; with security on to operators who sign in, and so to nobody where http.metrics_unauthenticated is set"
        => |c, raw| c.metrics.tenant_labels = raw.truth()? => |c| c.metrics.tenant_labels.shown();
    "security.enabled" "VEENA_SECURITY_ENABLED" -
        "callers are users, and may do what was granted to them; with `false` everybody who reaches the port may do everything"
        => |c, raw| c.security.enabled = raw.truth()? => |c| c.security.enabled.shown();
    "security.admin_password" "VEENA_ADMIN_PASSWORD" -
        "the password of the user `admin`, whom the first leader creates once; without it one is made up and kept in the file `admin-password` in the data directory, which the log names. Not looked at any more when `admin` exists, and not taken from the file with settings"
        => |c, raw| c.security.admin_password = Some(admin_password(raw)?) => |_c| String::new();
    "security.stale_after_ms" "VEENA_SECURITY_STALE_AFTER_MS" -
        "a node that has known no leader for this long answers 503 `security_stale` to whatever takes credentials, since rights that were taken away may still stand in its copy of the metadata; 0 is never, else at least 5000"
        => |c, raw| c.security.stale_after_ms = raw.whole()? => |c| c.security.stale_after_ms.shown();
    "storage.slow_flush" "VEENA_SLOW_FLUSH" "slow-flush" "added to each sync, to measure what a slow volume would do"
        => |c, raw| c.slow_flush = raw.duration()? => |c| c.slow_flush.shown();
    "storage.stall_file" "VEENA_STALL_FILE" - "while this file exists no sync comes back, to measure what a stalled volume would do"
        => |c, raw| c.stall_file = Some(PathBuf::from(raw.text()?)) => |c| c.stall_file.shown();
}

const LOG_LEVELS: &[(&str, LogLevel)] =
    &[("debug", LogLevel::Debug), ("info", LogLevel::Info), ("warn", LogLevel::Warn), ("error", LogLevel::Error)];

/// A file with settings is read by many, copied and checked in.
fn secret(raw: &Raw<'_>) -> Result<SharedSecrets, String> {
    match raw {
        Raw::Json(_) => {
            Err("a secret has no place among the settings: put it into a file of its own and name that in cluster.secret_file".to_owned())
        }
        Raw::Text(text) => SharedSecrets::parse(text).map_err(|error| error.to_string()),
    }
}

fn admin_password(raw: &Raw<'_>) -> Result<AdminPassword, String> {
    match raw {
        Raw::Json(_) => Err("a password has no place among the settings: set VEENA_ADMIN_PASSWORD for the first start".to_owned()),
        Raw::Text(text) => AdminPassword::parse(text).map_err(|error| error.to_string()),
    }
}

impl Config {
    fn set_port(&mut self, port: u16) {
        let host = self.http.addr.rsplit_once(':').map_or(self.http.addr.as_str(), |(host, _)| host);
        self.http.addr = format!("{host}:{port}");
    }
}
