//! What slow syncs cost: the same load twice, once as the disk is and once with syncs that take longer.

use std::time::Duration;

use super::Options;
use super::loaded::{Bench, MESSAGE_BYTES};
use super::report::Row;
use super::server::TOPIC;
use crate::load::ProduceOne;

/// What a cloud disk adds to a sync.
pub(super) const CLOUD_DISK: Duration = Duration::from_millis(3);
const CONNECTIONS: usize = 256;

/// The options with syncs of a cloud disk, unless slower ones were asked for.
pub(super) fn slowed(options: &Options) -> Options {
    Options { slow_flush: options.slow_flush.max(CLOUD_DISK), ..options.clone() }
}

/// Three rows: without, with, and the share that is left.
///
/// # Errors
/// The node cannot be driven.
pub(super) async fn measure(options: &Options) -> anyhow::Result<Vec<Row>> {
    let plain = Options { slow_flush: Duration::ZERO, ..options.clone() };
    let plain = Bench::veena(&plain, CONNECTIONS).run(0, |at| ProduceOne::new(TOPIC, MESSAGE_BYTES, at)).await?;
    let slow = slowed(options);
    let slow = Bench::veena(&slow, CONNECTIONS).run(0, |at| ProduceOne::new(TOPIC, MESSAGE_BYTES, at)).await?;
    let rate = |row: &Row| row.figure("rate").unwrap_or_default();
    let share = rate(&slow) / rate(&plain).max(1.0);
    let named = |row: Row, name: &str, about: &str| Row { name: name.to_owned(), about: about.to_owned(), ..row };
    Ok(vec![
        named(plain, "fast-flush-256", "produce at 256 connections, syncs as they are"),
        named(slow, "slow-flush-256", "produce at 256 connections, every sync 3 ms slower"),
        Row::new("slow-flush-ratio", "the share of the rate that is left when syncs are slow").with("share", share),
    ])
}
