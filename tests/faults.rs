//! Disks that fail: syncs answered with an error, and a disk without room. Each once, under load, with the checker's verdict.

use std::path::Path;
use std::time::Duration;

use veena_loadtest_driver::chance::Chance;
use veena_loadtest_driver::chaos::{self, ChaosPlan, Fault};

use crate::support::{BIN, scratch};

/// Inflicts `fault` once; the checker has nothing to complain about, and the node did while it lasted what it is to do then.
async fn survives(fault: Fault) {
    let mut dir = scratch();
    let given = std::env::var("VEENA_CHAOS_SEED").ok().map(|text| text.parse().expect("a number"));
    let seed = given.unwrap_or_else(|| Chance::new_seed().expect("entropy"));
    println!("VEENA_CHAOS_SEED={seed}");
    let mut plan = ChaosPlan::new(Path::new(BIN), dir.path(), Duration::ZERO, seed);
    plan.faults = vec![fault];
    let outcome = chaos::run(&plan).await;
    if outcome.as_ref().map_or(true, |report| !report.complaints().is_empty()) {
        dir.disable_cleanup(true);
        println!("data, log and history: {}", dir.path().display());
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
async fn a_full_disk_refuses_produce_and_nothing_else_and_heals_by_itself() {
    survives(Fault::FullDisk).await;
}
