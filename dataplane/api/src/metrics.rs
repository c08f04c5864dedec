//! Counters of the plane (http-contract 8). Every cell has its place in an array, so that a request finds it without a look-up.

mod process;
mod tenants;
mod topics;

use std::fmt::Write;
use std::time::Duration;

use veena_auth::{AuthError, ServerTls};
use veena_broker::metrics::{BOUNDS_US, Counter, Histogram};

use crate::route::{Route, Verb};
use crate::state::ApiState;

/// Statuses that have a cell of their own; the last cell is for all others.
const STATUSES: [u16; 21] = [200, 201, 202, 204, 400, 401, 403, 404, 405, 408, 409, 410, 413, 415, 421, 429, 431, 499, 500, 502, 503];
const STATUS_CELLS: usize = STATUSES.len() + 1;
const ROWS: usize = Route::ALL.len() * Verb::ALL.len() + 1;

/// How it ended when somebody signed in.
const SIGN_INS: [&str; 6] = ["ok", "wrong", "missing", "throttled", "busy", "unavailable"];

/// Writes a histogram in the text format.
fn histogram(out: &mut String, name: &str, labels: &str, histogram: &Histogram) {
    let comma = if labels.is_empty() { "" } else { "," };
    let buckets = histogram.buckets();
    let mut total = 0;
    for (bucket, bound) in buckets.iter().zip(BOUNDS_US) {
        total += bucket;
        let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"{}\"}} {total}", seconds(bound));
    }
    total += buckets[BOUNDS_US.len()];
    let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {total}");
    let braces = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
    let _ = writeln!(out, "{name}_sum{braces} {}\n{name}_count{braces} {total}", seconds(histogram.sum_us()));
}

fn seconds(us: u64) -> String {
    let text = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Why a consume ended.
#[derive(Clone, Copy)]
pub(crate) enum WaitOutcome {
    /// With messages.
    Hit,
    /// Empty after its wait.
    Timeout,
    /// Before its end: the client left or the node stops.
    Cancelled,
    /// Empty, and it did not want to wait.
    NoWait,
}

impl WaitOutcome {
    const ALL: [(WaitOutcome, &'static str); 4] =
        [(Self::Hit, "hit"), (Self::Timeout, "timeout"), (Self::Cancelled, "cancelled"), (Self::NoWait, "no_wait")];
}

/// Why a TLS handshake came to nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HandshakeEnd {
    /// It took too long, or the node stopped.
    Timeout,
    /// The client speaks no TLS at all, most likely plain HTTP.
    NotTls,
    /// No version, cipher or protocol that both speak, or no TLS beyond its first byte.
    Protocol,
    /// The client refused us, most often our certificate.
    Refused,
    /// The connection ended.
    Ended,
}

impl HandshakeEnd {
    const ALL: [(HandshakeEnd, &'static str); 5] = [
        (Self::Timeout, "timeout"),
        (Self::NotTls, "not_tls"),
        (Self::Protocol, "protocol"),
        (Self::Refused, "refused_by_client"),
        (Self::Ended, "ended"),
    ];
}

/// Which requests a cell counts.
#[derive(Clone, Copy)]
pub(crate) struct Row(usize);

impl Row {
    /// Requests that no route takes.
    pub(crate) const UNMATCHED: Row = Row(ROWS - 1);

    /// The row of a route and a method it serves.
    pub(crate) fn of(route: Route, verb: Verb) -> Self {
        Self(route as usize * Verb::ALL.len() + verb as usize)
    }

    /// The path's template, for logs.
    pub(crate) fn template(self) -> &'static str {
        if self.0 == Self::UNMATCHED.0 { "unmatched" } else { Route::ALL[self.0 / Verb::ALL.len()].template() }
    }

    fn label(self) -> (String, &'static str) {
        if self.0 == Self::UNMATCHED.0 {
            return ("unmatched".into(), "other");
        }
        let (route, verb) = (Route::ALL[self.0 / Verb::ALL.len()], Verb::ALL[self.0 % Verb::ALL.len()]);
        (format!("{} {}", verb.name(), route.template()), verb.name())
    }
}

/// All counters of the plane.
pub struct Metrics {
    requests: Box<[Histogram]>,
    bytes_in: [Counter; ROWS],
    bytes_out: [Counter; ROWS],
    began: Counter,
    ended: Counter,
    pub(crate) connections_opened: Counter,
    pub(crate) connections_closed: Counter,
    pub(crate) connections_expired: Counter,
    pub(crate) accept_errors: Counter,
    handshakes_failed: [Counter; HandshakeEnd::ALL.len()],
    pub(crate) panics: Counter,
    pub(crate) settles_refused: Counter,
    pub(crate) produce_refused: Counter,
    pub(crate) budget_refused: Counter,
    pub(crate) schema_refused: Counter,
    pub(crate) schema_seconds: Histogram,
    consume_wait: [Histogram; 4],
    sign_ins: [Counter; SIGN_INS.len()],
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests: std::iter::repeat_with(Histogram::default).take(ROWS * STATUS_CELLS).collect(),
            bytes_in: std::array::from_fn(|_| Counter::default()),
            bytes_out: std::array::from_fn(|_| Counter::default()),
            began: Counter::default(),
            ended: Counter::default(),
            connections_opened: Counter::default(),
            connections_closed: Counter::default(),
            connections_expired: Counter::default(),
            accept_errors: Counter::default(),
            handshakes_failed: std::array::from_fn(|_| Counter::default()),
            panics: Counter::default(),
            settles_refused: Counter::default(),
            produce_refused: Counter::default(),
            budget_refused: Counter::default(),
            schema_refused: Counter::default(),
            schema_seconds: Histogram::default(),
            consume_wait: std::array::from_fn(|_| Histogram::default()),
            sign_ins: std::array::from_fn(|_| Counter::default()),
        }
    }
}

impl Metrics {
    /// A request begins.
    pub(crate) fn begin(&self) {
        self.began.add(1);
    }

    /// It has ended, in this status.
    pub(crate) fn end(&self, row: Row, status: u16, took: Duration, bytes_in: u64, bytes_out: u64) {
        self.ended.add(1);
        let cell = STATUSES.iter().position(|known| *known == status).unwrap_or(STATUSES.len());
        self.requests[row.0 * STATUS_CELLS + cell].observe(took);
        self.bytes_in[row.0].add(bytes_in);
        self.bytes_out[row.0].add(bytes_out);
    }

    /// A handshake came to nothing.
    pub(crate) fn handshake_failed(&self, end: HandshakeEnd) {
        self.handshakes_failed[end as usize].add(1);
    }

    /// A consume has waited.
    pub(crate) fn waited(&self, outcome: WaitOutcome, took: Duration) {
        self.consume_wait[outcome as usize].observe(took);
    }

    /// Somebody has signed in, or could not.
    pub(crate) fn signed_in(&self, error: Option<AuthError>) {
        let cell = match error {
            None => 0,
            Some(AuthError::Wrong) => 1,
            Some(AuthError::Missing) => 2,
            Some(AuthError::Throttled { .. }) => 3,
            Some(AuthError::Busy { .. }) => 4,
            Some(AuthError::Unavailable) => 5,
        };
        self.sign_ins[cell].add(1);
    }

    fn render_http(&self, out: &mut String) {
        let rows = || (0..ROWS).flat_map(|row| (0..STATUS_CELLS).map(move |cell| (Row(row), cell)));
        let used = || rows().map(|(row, cell)| (row, cell, &self.requests[row.0 * STATUS_CELLS + cell])).filter(|(_, _, h)| h.count() > 0);
        let labels = |row: Row, cell: usize| {
            let (route, method) = row.label();
            let status = STATUSES.get(cell).map_or_else(|| "other".to_owned(), u16::to_string);
            format!("route=\"{route}\",method=\"{method}\",status=\"{status}\"")
        };
        kind(out, "http_requests_total", "counter");
        for (row, cell, histogram) in used() {
            let _ = writeln!(out, "veena_http_requests_total{{{}}} {}", labels(row, cell), histogram.count());
        }
        kind(out, "http_request_duration_seconds", "histogram");
        for (row, cell, durations) in used() {
            histogram(out, "veena_http_request_duration_seconds", &labels(row, cell), durations);
        }
        for (name, counters) in [("http_request_bytes_in_total", &self.bytes_in), ("http_response_bytes_out_total", &self.bytes_out)] {
            kind(out, name, "counter");
            for (row, counter) in counters.iter().enumerate().filter(|(_, counter)| counter.get() > 0) {
                let _ = writeln!(out, "veena_{name}{{route=\"{}\"}} {}", Row(row).label().0, counter.get());
            }
        }
        single(out, "http_requests_in_flight", "gauge", self.began.get().saturating_sub(self.ended.get()));
        let open = self.connections_opened.get().saturating_sub(self.connections_closed.get());
        single(out, "http_connections_open", "gauge", open);
    }

    fn render_tls(&self, out: &mut String, tls: &ServerTls) {
        kind(out, "tls_handshake_failures_total", "counter");
        for (end, reason) in HandshakeEnd::ALL {
            let count = self.handshakes_failed[end as usize].get();
            let _ = writeln!(out, "veena_tls_handshake_failures_total{{reason=\"{reason}\"}} {count}");
        }
        single(out, "client_tls_certificate_not_after_seconds", "gauge", tls.served().not_after_ms() / 1000);
        let (replaced, refused) = tls.reloads();
        single(out, "client_tls_certificates_replaced_total", "counter", replaced);
        single(out, "client_tls_certificates_refused_total", "counter", refused);
    }

    fn render_messages(&self, out: &mut String) {
        for (name, counter) in [
            ("http_connections_expired_total", &self.connections_expired),
            ("http_accept_errors_total", &self.accept_errors),
            ("http_panics_total", &self.panics),
            ("http_batch_body_budget_rejections_total", &self.budget_refused),
            ("produce_rejections_total", &self.produce_refused),
            ("ack_rejected_total", &self.settles_refused),
            ("schema_rejections_total", &self.schema_refused),
        ] {
            single(out, name, "counter", counter.get());
        }
        kind(out, "sign_ins_total", "counter");
        for (counter, result) in self.sign_ins.iter().zip(SIGN_INS) {
            let _ = writeln!(out, "veena_sign_ins_total{{result=\"{result}\"}} {}", counter.get());
        }
        kind(out, "schema_validation_seconds", "histogram");
        histogram(out, "veena_schema_validation_seconds", "", &self.schema_seconds);
        kind(out, "consume_wait_seconds", "histogram");
        for (outcome, label) in WaitOutcome::ALL {
            histogram(out, "veena_consume_wait_seconds", &format!("outcome=\"{label}\""), &self.consume_wait[outcome as usize]);
        }
    }
}

fn kind(out: &mut String, name: &str, kind: &str) {
    let _ = writeln!(out, "# TYPE veena_{name} {kind}");
}

fn single(out: &mut String, name: &str, of: &str, value: u64) {
    kind(out, name, of);
    let _ = writeln!(out, "veena_{name} {value}");
}

/// The plane's metrics in Prometheus' text format, with those of each tenant or without. Other parts of a node append theirs.
#[must_use]
pub fn render(state: &ApiState, with_tenants: bool) -> String {
    let mut out = String::with_capacity(16 * 1024);
    kind(&mut out, "build_info", "gauge");
    let _ = writeln!(out, "veena_build_info{{version=\"{}\"}} 1", state.parts.version);
    let view = state.view();
    single(&mut out, "topics_total", "gauge", view.topics.len() as u64);
    single(&mut out, "partitions_total", "gauge", view.topics.values().map(|topic| u64::from(topic.partitions)).sum());
    single(&mut out, "metastore_applied_index", "gauge", view.applied.get());
    let ready = state.parts.broker.not_ready_reason().is_none() && state.parts.leader.not_ready_reason().is_none();
    single(&mut out, "ready", "gauge", u64::from(ready));
    render_engine(&mut out, state);
    state.metrics.render_http(&mut out);
    if let Some(tls) = &state.parts.tls {
        state.metrics.render_tls(&mut out, tls);
    }
    state.metrics.render_messages(&mut out);
    topics::render(&mut out, &state.parts.broker, &state.tenant);
    if with_tenants {
        tenants::render(&mut out, &state.parts.broker);
    }
    process::render(&mut out);
    out
}

fn render_engine(out: &mut String, state: &ApiState) {
    let broker = &state.parts.broker;
    for (name, value) in broker.metrics().all() {
        single(out, &total_name(name), "counter", value);
    }
    let wal = broker.wal_status();
    for (name, value) in [
        ("ingress_wal_failed", u64::from(wal.latched.is_some())),
        ("ingress_wal_segments", wal.segments as u64),
        ("ingress_wal_live_bytes", wal.live_bytes),
        ("ingress_wal_staged_bytes", wal.staged_bytes as u64),
        ("ingress_dispatch_backlog_records", broker.undispatched() as u64),
        ("open_partition_logs", broker.open_logs() as u64),
        ("consumers_parked", broker.parked() as u64),
        ("moves_under_way", broker.moves().len() as u64),
    ] {
        single(out, name, "gauge", value);
    }
    single(out, "ingress_wal_syncs_total", "counter", wal.syncs);
    single(out, "ingress_wal_records_total", "counter", wal.records);
    let directory = broker.directory_numbers();
    single(out, "data_dir_available_bytes", "gauge", directory.available_bytes);
    single(out, "quarantined_bytes", "gauge", directory.quarantined_bytes);
    single(out, "parked_bytes", "gauge", directory.parked_bytes);
    kind(out, "storage_flush_duration_seconds", "histogram");
    histogram(out, "veena_storage_flush_duration_seconds", "", &broker.metrics().log_append_seconds);
    kind(out, "move_freeze_seconds", "histogram");
    histogram(out, "veena_move_freeze_seconds", "", &broker.metrics().move_freeze_seconds);
    kind(out, "storage_fsync_duration_seconds", "histogram");
    for (log, durations) in broker.metrics().sync_seconds() {
        histogram(out, "veena_storage_fsync_duration_seconds", &format!("log=\"{log}\""), durations);
    }
}

/// Counters of the whole engine. What the contract counts by topic has its series there, under the contract's name; here its total goes by
/// the engine's own name, so that no name stands for both.
fn total_name(engine: &str) -> String {
    match engine {
        "idle_logs_closed" => "idle_logs_evicted_total".to_owned(),
        other => format!("{other}_total"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_counted_under_its_template_and_status() {
        let metrics = Metrics::default();
        metrics.begin();
        metrics.begin();
        metrics.end(Row::of(Route::Produce, Verb::Post), 202, Duration::from_millis(2), 5, 0);
        let mut out = String::new();
        metrics.render_http(&mut out);
        let labels = "route=\"POST /v1/topics/{topic}/produce\",method=\"POST\",status=\"202\"";
        for line in [
            format!("veena_http_requests_total{{{labels}}} 1"),
            format!("veena_http_request_duration_seconds_bucket{{{labels},le=\"0.001\"}} 0"),
            format!("veena_http_request_duration_seconds_bucket{{{labels},le=\"0.0025\"}} 1"),
            format!("veena_http_request_duration_seconds_sum{{{labels}}} 0.002"),
            "veena_http_requests_in_flight 1".to_owned(),
            "veena_http_request_bytes_in_total{route=\"POST /v1/topics/{topic}/produce\"} 5".to_owned(),
        ] {
            assert!(out.lines().any(|l| l == line), "{line}\n{out}");
        }
    }

    #[test]
    fn an_odd_status_has_a_cell_too() {
        let metrics = Metrics::default();
        metrics.end(Row::UNMATCHED, 418, Duration::ZERO, 0, 0);
        let mut out = String::new();
        metrics.render_http(&mut out);
        assert!(out.contains("veena_http_requests_total{route=\"unmatched\",method=\"other\",status=\"other\"} 1"));
    }
}
