//! Disks that fail: syncs answered with an error, and a disk without room. Each once, under load, with the checker's verdict.
#![allow(clippy::print_stdout, reason = "the seed of a failure must be told")]

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use veena_loadtest_checker::Verdict;
use veena_loadtest_driver::chance::Chance;
use veena_loadtest_driver::chaos::{self, ChaosPlan, Fault};

use crate::support::{BIN, scratch};

fn seed() -> u64 {
    let given = std::env::var("VEENA_CHAOS_SEED").ok().map(|text| text.parse().expect("a number"));
    let seed = given.unwrap_or_else(|| Chance::new_seed().expect("entropy"));
    println!("VEENA_CHAOS_SEED={seed}");
    seed
}

/// What happened stays to be looked at.
fn keep(dir: &mut TempDir) {
    dir.disable_cleanup(true);
    println!("data, log and history: {}", dir.path().display());
}

/// Inflicts `fault` once; the checker has nothing to complain about, and the node did while it lasted what it is to do then.
async fn survives(fault: Fault) {
    let mut dir = scratch();
    let seed = seed();
    let mut plan = ChaosPlan::new(Path::new(BIN), dir.path(), Duration::ZERO, seed);
    plan.faults = vec![fault];
    let outcome = chaos::run(&plan).await;
    if outcome.as_ref().map_or(true, |report| !report.complaints().is_empty()) {
        keep(&mut dir);
    }
    let report = outcome.expect("the node does what it is to do");
    let complaints = report.complaints();
    assert!(complaints.is_empty(), "seed {seed}: {report}\n{}", complaints.join("\n"));
}

#[tokio::test]
async fn after_a_failed_sync_of_the_wal_produce_is_refused_the_rest_goes_on_and_nothing_acknowledged_is_lost() {
    survives(Fault::SyncErrorWal).await;
}

#[tokio::test]
async fn after_failed_syncs_of_partition_logs_they_are_opened_anew_and_nothing_is_lost_or_there_twice() {
    survives(Fault::SyncErrorPartition).await;
}

#[tokio::test]
async fn after_failed_syncs_of_the_settle_journal_everything_goes_on_and_nothing_is_lost() {
    survives(Fault::SyncErrorSettle).await;
}

#[tokio::test]
async fn after_a_failed_sync_of_the_metadata_store_topics_are_not_changed_and_messages_go_on() {
    survives(Fault::SyncErrorMetastore).await;
}

#[tokio::test]
async fn a_full_disk_refuses_produce_and_nothing_else_and_heals_by_itself() {
    let mut dir = scratch();
    let seed = seed();
    let plan = ChaosPlan::new(Path::new(BIN), dir.path(), Duration::ZERO, seed);
    let outcome = chaos::fill_disk(&plan, dir.path(), &mut Chance::seeded(seed)).await;
    if !outcome.as_ref().is_ok_and(Verdict::is_clean) {
        keep(&mut dir);
    }
    let verdict = outcome.expect("the node does what it is to do");
    assert!(verdict.is_clean(), "seed {seed}: {verdict}\n{:?}", verdict.violations);
    assert!(verdict.counts.sent_ok > 0 && verdict.counts.sent_fail > 0 && verdict.counts.acked > 0, "{verdict}");
}
