//! What must be reached, as relations between rows of one run.

use std::fmt;

use serde::Serialize;
use veena_contract::limits;

use super::report::Row;
use crate::load::as_f64;

/// One thing to be reached.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    /// In words.
    pub what: String,
    /// The bound.
    pub bound: f64,
    /// What was measured.
    pub got: f64,
    /// Was it reached?
    pub is_reached: bool,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.is_reached { "reached" } else { "MISSED " };
        write!(f, "{word}  {:<62} bound {:>10.2}  got {:>10.2}", self.what, self.bound, self.got)
    }
}

fn exactly(what: &str, got: Option<f64>, bound: f64) -> Option<Target> {
    let got = got?;
    Some(Target { what: what.to_owned(), bound, got, is_reached: (got - bound).abs() < 0.5 })
}

struct Medians<'a>(&'a [Row]);

impl Medians<'_> {
    fn get(&self, row: &str, figure: &str) -> Option<f64> {
        self.0.iter().find(|r| r.name == row)?.figure(figure)
    }

    fn rate(&self, row: &str) -> Option<f64> {
        self.get(row, "rate")
    }
}

fn at_least(what: &str, got: Option<f64>, bound: Option<f64>) -> Option<Target> {
    let (got, bound) = (got?, bound?);
    Some(Target { what: what.to_owned(), bound, got, is_reached: got >= bound })
}

fn below(what: &str, got: Option<f64>, bound: Option<f64>) -> Option<Target> {
    let (got, bound) = (got?, bound?);
    Some(Target { what: what.to_owned(), bound, got, is_reached: got < bound })
}

/// The targets that the measured rows can be held against.
#[must_use]
pub fn targets(rows: &[Row]) -> Vec<Target> {
    let m = Medians(rows);
    let share = |row: &str, factor: f64| m.rate(row).map(|rate| rate * factor);
    let cycle_requests = m.rate("cycle-64").map(|rate| rate * 3.0);
    [
        at_least("logged at 64: 0.45 x bare", m.rate("logged-64"), share("bare-64", 0.45)),
        at_least("logged at 256: 0.6 x bare", m.rate("logged-256"), share("bare-256", 0.6)),
        at_least("produce at 64: 0.6 x logged", m.rate("produce-64"), share("logged-64", 0.6)),
        at_least("produce at 256: 0.6 x logged", m.rate("produce-256"), share("logged-256", 0.6)),
        at_least("produce at 64, a second", m.rate("produce-64"), Some(10_500.0)),
        below("produce at 64, p99 in ms", m.get("produce-64", "p99_ms"), Some(5.0)),
        at_least("consume and ack: 0.8 x produce at 64", m.rate("consume-ack-64"), share("produce-64", 0.8)),
        at_least("cycle: three requests a message, 0.45 x bare at 64", cycle_requests, share("bare-64", 0.45)),
        at_least("batches of 100: produce, a second", m.rate("batch-produce-16"), Some(250_000.0)),
        at_least("batches of 100: cycle, a second", m.rate("batch-cycle-10"), Some(100_000.0)),
        below(
            "one connection: p50 in ms, flush p50 beside one other + 0.25",
            m.get("one-connection", "p50_ms"),
            m.get("flush-beside-another", "p50_ms").map(|flush| flush + 0.25),
        ),
        below(
            "half the maximum rate: p99 in ms, 3 x flush p99 under that load + 1",
            m.get("half-rate-64", "p99_ms"),
            m.get("half-rate-64", "flush_p99_ms").map(|flush| 3.0 * flush + 1.0),
        ),
        at_least("slow flush at 256: share of the rate without", m.get("slow-flush-ratio", "share"), Some(0.8)),
        at_least("security on: 0.9 x produce with it off", m.get("secured-ratio", "share"), Some(0.9)),
        below("another tenant floods: 202 p99, x that of alone", m.get("isolation", "p99_ratio"), Some(ISOLATED_FACTOR)),
        below("another tenant floods: visible p99, x that of alone", m.get("isolation", "visible_p99_ratio"), Some(ISOLATED_FACTOR)),
        exactly("another tenant floods: errors", m.get("isolation", "errors"), 0.0),
        below("another tenant floods: what it gets, x its limit", m.get("isolation", "flood_of_limit"), Some(FLOOD_FACTOR)),
        below("1,000 partitions, slow flush: 202 p99 in ms", m.get("partitions-1000", "p99_ms"), Some(15.0)),
        below("1,000 partitions, slow flush: visible p99 in ms", m.get("partitions-1000", "visible_p99_ms"), Some(60.0)),
        acks_under_reads(&m),
    ]
    .into_iter()
    .chain(endurance(&m))
    .chain(cluster(&m))
    .chain(tenants(&m))
    .flatten()
    .collect()
}

/// What the owner says, if it does; else what the client saw, which shares the machine with the readers.
fn acks_under_reads(m: &Medians<'_>) -> Option<Target> {
    let at_owner = at_least(
        "acks while reads saturate: percent within 1 ms at the owner",
        m.get("ack-under-reads", "owner_within_1ms_percent"),
        Some(99.0),
    );
    at_owner.or_else(|| below("acks while reads saturate: p99 in ms at the client", m.get("ack-under-reads", "p99_ms"), Some(1.0)))
}

/// How much a tenant may notice of another that floods.
const ISOLATED_FACTOR: f64 = 1.2;
/// What the one that floods may get of its limit: besides, one second's that it had saved.
const FLOOD_FACTOR: f64 = 1.3;

/// What the scenarios of a fixed size must reach. A short run does a share of it; the table shows how much.
fn endurance(m: &Medians<'_>) -> [Option<Target>; 11] {
    // In a short stall everybody may just wait.
    let is_long = m.get("stalled-disk", "stall_s").is_some_and(|seconds| seconds >= 60.0);
    let refused = m.get("stalled-disk", "refused").filter(|_| is_long);
    [
        below("parked long polls: KiB each above a bare server", m.get("parked-polls", "kib_each_above_bare"), Some(6.0)),
        below("parked long polls: percent of one processor", m.get("parked-polls", "cpu_percent"), Some(1.0)),
        exactly("parked long polls: woken by one message", m.get("parked-polls", "woken_by_one"), 1.0),
        below("idle partitions: percent of one processor", m.get("idle-partitions", "cpu_percent"), Some(0.5)),
        exactly("idle partitions: open files", m.get("idle-partitions", "open_files"), 0.0),
        below("start over a backlog: ready in s", m.get("start-backlog", "ready_s"), Some(3.0)),
        below("stalled disk: largest memory in MiB", m.get("stalled-disk", "peak_rss_mib"), Some(512.0)),
        at_least("stalled disk: 429 or 503 with Retry-After", refused, Some(1.0)),
        exactly("stalled disk: 429 or 503 without", m.get("stalled-disk", "refused_bare"), 0.0),
        exactly("stalled disk: other answers, or none", m.get("stalled-disk", "odd_answers"), 0.0),
        below("stalled disk: 0.8 x the rate is back after s", m.get("stalled-disk", "recovered_s"), Some(10.0)),
    ]
}

/// How much worse the clients of other owners may fare while one is down: beyond the noise of a machine that nodes and load share.
const UNAFFECTED_RATE: f64 = 0.95;
const UNAFFECTED_FACTOR: f64 = 2.0;
const UNAFFECTED_MS: f64 = 2.0;

/// How long nobody may serve a partition that moves: what clients see of it, from its beginning until after its end.
const FREEZE_MS: f64 = 100.0;

/// What three nodes must reach.
fn cluster(m: &Medians<'_>) -> Vec<Option<Target>> {
    let wal_mib = limits::WAL_LIVE_BYTES_MAX / 1_048_576;
    let mut targets = vec![
        below(
            "produce at any node to a consumer at another: p99 in ms, 2 x flush p99 + 5",
            m.get("cluster-latency", "p99_ms"),
            m.get("cluster-latency", "flush_p99_ms").map(|flush| 2.0 * flush + 5.0),
        ),
        below("leader killed: metadata changes again after s", m.get("leader-killed", "control_s"), Some(2.0)),
        exactly("leader killed: times clients of live owners stood still", m.get("leader-killed", "gaps"), 0.0),
        exactly("leader killed: requests to live owners refused", m.get("leader-killed", "refused"), 0.0),
        at_least("three nodes: produce, 0.6 x one node", m.rate("three-nodes"), m.rate("one-node").map(|rate| rate * 0.6)),
        at_least("batches committed elsewhere: 0.5 x one node", m.rate("batches-elsewhere"), m.rate("batches-here").map(|rate| rate * 0.5)),
        below("move of 1 GiB: longest without an answered produce, in ms", m.get("move-1gib", "produce_gap_ms"), Some(FREEZE_MS)),
        below("move of 1 GiB: longest without a message read, in ms", m.get("move-1gib", "consume_gap_ms"), Some(FREEZE_MS)),
        exactly("move of 1 GiB: leases lost", m.get("move-1gib", "leases_lost"), 0.0),
        below("owner down: WAL of a live node in MiB", m.get("owner-down-full", "wal_peak_mib"), Some(as_f64(wal_mib))),
        below("idle cluster: percent of one processor, busiest node", m.get("cluster-idle", "cpu_percent"), Some(1.0)),
    ];
    for row in ["owner-down", "owner-down-full"] {
        let bound = |figure| m.get("owner-up", figure).map(|ms| UNAFFECTED_FACTOR * ms + UNAFFECTED_MS);
        targets.extend([
            at_least(&format!("{row}: rate of others, 0.95 x before"), m.rate(row), m.rate("owner-up").map(|rate| rate * UNAFFECTED_RATE)),
            below(&format!("{row}: 202 of others, p99 in ms, 2 x before + 2"), m.get(row, "p99_ms"), bound("p99_ms")),
            below(&format!("{row}: visible of others, p99 in ms, 2 x before + 2"), m.get(row, "visible_p99_ms"), bound("visible_p99_ms")),
            exactly(&format!("{row}: errors of others"), m.get(row, "errors"), 0.0),
        ]);
    }
    targets
}

/// What whoever is signed in may notice of those who sign in: beyond the noise of a machine that both share.
const LOGINS_FACTOR: f64 = 2.0;
/// Within this a right that was taken away is gone at every node that is in contact, also for who waits.
const REVOKED_MS: f64 = 5_000.0;

/// What a node must reach whom many share.
fn tenants(m: &Medians<'_>) -> Vec<Option<Target>> {
    let factor = |figure| m.get("logins-none", figure).map(|ms| LOGINS_FACTOR * ms);
    vec![
        below("500 logins: memory beyond base, of permits x 19 MiB + slack", m.get("logins", "rss_share"), Some(1.0)),
        below("500 logins: produce p99 in ms, 2 x without", m.get("logins", "produce_p99_ms"), factor("produce_p99_ms")),
        below("500 logins: consume and ack p99 in ms, 2 x without", m.get("logins", "consume_p99_ms"), factor("consume_p99_ms")),
        exactly("500 logins: let in", m.get("logins", "let_in"), 500.0),
        exactly("500 logins: other answers, or none", m.get("logins", "odd_answers"), 0.0),
        exactly("500 logins: errors of others", m.get("logins", "errors"), 0.0),
        below("revocation: p99 in ms until a parked poll is cut", m.get("revocation", "p99_ms"), Some(REVOKED_MS)),
        exactly("revocation: polls that stay open", m.get("revocation", "still_open"), 0.0),
        exactly("revocation: polls that end another way", m.get("revocation", "odd_answers"), 0.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_held_against_rows_of_the_same_run_and_missing_rows_are_left_out() {
        let rows = [Row::new("bare-64", "").with("rate", 50_000.0), Row::new("logged-64", "").with("rate", 20_000.0)];
        let targets = targets(&rows);
        assert_eq!(targets.len(), 1);
        assert!(!targets[0].is_reached);
        assert!(targets[0].to_string().starts_with("MISSED"));
    }

    #[test]
    fn a_target_of_an_exact_number_is_missed_on_either_side() {
        for (woken, is_reached) in [(0.0, false), (1.0, true), (2.0, false)] {
            let targets = targets(&[Row::new("parked-polls", "").with("woken_by_one", woken)]);
            assert_eq!(targets.len(), 1);
            assert_eq!(targets[0].is_reached, is_reached, "{woken}");
        }
    }

    #[test]
    fn other_owners_are_held_against_what_they_did_before() {
        let row = |name, p99| Row::new(name, "").with("rate", 500.0).with("p99_ms", p99).with("errors", 0.0);
        let missed = |p99| targets(&[row("owner-up", 3.0), row("owner-down", p99)]).iter().filter(|target| !target.is_reached).count();
        assert_eq!((missed(7.9), missed(8.1)), (0, 1));
    }

    #[test]
    fn logins_are_held_against_the_same_load_without_them() {
        let row = |name, p99| Row::new(name, "").with("produce_p99_ms", p99);
        let missed = |p99| targets(&[row("logins-none", 3.0), row("logins", p99)]).iter().filter(|target| !target.is_reached).count();
        assert_eq!((missed(5.9), missed(6.1)), (0, 1));
    }

    #[test]
    fn acks_are_judged_at_the_owner_where_it_tells() {
        let row = || Row::new("ack-under-reads", "").with("p99_ms", 7.0);
        let targets_of = |row: Row| targets(&[row]).into_iter().map(|target| target.is_reached).collect::<Vec<_>>();
        assert_eq!(targets_of(row()), [false]);
        assert_eq!(targets_of(row().with("owner_within_1ms_percent", 99.5)), [true]);
    }
}
