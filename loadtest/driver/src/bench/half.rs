//! Latency at half the maximum rate, open loop, and what a sync takes under that load.

use super::flush::Probe;
use super::loaded::{Bench, MESSAGE_BYTES};
use super::report::Row;
use super::server::TOPIC;
use super::{Options, flush};
use crate::load::{Pace, ProduceOne};

/// The row. The load runs twice: alone for its own figures, and beside a probe that syncs a file of its own now and then.
///
/// # Errors
/// The node cannot be driven, or the probe's file not be written.
pub(super) async fn measure(options: &Options, connections: usize, before: &[Row]) -> anyhow::Result<Row> {
    let rate = match before.iter().rev().find(|row| row.name == "produce-64").and_then(|row| row.figure("rate")) {
        Some(rate) => rate,
        None => {
            let row = Bench::veena(options, connections).run(0, |at| ProduceOne::new(TOPIC, MESSAGE_BYTES, at)).await?;
            row.figure("rate").unwrap_or_default()
        }
    };
    let half = Bench { pace: Pace::Open(rate / 2.0), ..Bench::veena(options, connections) };
    let row = half.run(0, |at| ProduceOne::new(TOPIC, MESSAGE_BYTES, at)).await?;
    let probe = Probe::start(&options.dir)?;
    half.run(0, |at| ProduceOne::new(TOPIC, MESSAGE_BYTES, at)).await?;
    let took_us = probe.stop()?;
    Ok(row.with("asked_rate", rate / 2.0).with("flush_p99_ms", flush::quantile_ms(&took_us, 0.99)))
}
