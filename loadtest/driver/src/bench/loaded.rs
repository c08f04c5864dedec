//! A fresh server under one kind of load, as one row.

use std::time::Duration;

use super::Options;
use super::report::Row;
use super::server::{Kind, Server};
use crate::load::{self, LoadClient, Measured, Pace, Run, as_f64};

pub(super) const MESSAGE_BYTES: usize = 256;

/// A server, and how hard it is driven.
pub(super) struct Bench<'a> {
    pub options: &'a Options,
    pub kind: Kind,
    pub connections: usize,
    pub pace: Pace,
}

impl<'a> Bench<'a> {
    /// Veena under a closed loop.
    pub(super) fn veena(options: &'a Options, connections: usize) -> Self {
        Self { options, kind: Kind::Veena, connections, pace: Pace::Closed }
    }

    /// A fresh server, filled with `preload` messages, under load.
    pub(super) async fn run<C: LoadClient + 'static>(&self, preload: u64, make: impl Fn(usize) -> C) -> anyhow::Result<Row> {
        let mut server = Server::start(self.kind, self.options).await?;
        let filled = if preload > 0 { server.preload(preload, MESSAGE_BYTES).await? } else { 0 };
        let row = self.drive(&mut server, filled, make).await?;
        server.stop().await?;
        Ok(row)
    }

    /// A running server that holds `filled` messages, under load.
    pub(super) async fn drive<C: LoadClient + 'static>(
        &self,
        server: &mut Server,
        filled: u64,
        make: impl Fn(usize) -> C,
    ) -> anyhow::Result<Row> {
        let syncs_before = server.syncs().await;
        let run = Run {
            servers: vec![(server.addr, server.pid())],
            connections: self.connections,
            pace: self.pace,
            warm_up: warm_up(self.options),
            time: self.options.time,
        };
        let measured = load::run(run, make).await?;
        let syncs_after = server.syncs().await;
        let mut row = figures(&measured, self.connections);
        if self.kind == Kind::Veena {
            let (lag, ledger) = server.lag_and_ledger(filled + measured.sent_total, measured.errors).await?;
            row = row.with("wal_lag", lag);
            row.ledger = Some(ledger);
        }
        Ok(with_syncs(row, &measured, syncs_before, syncs_after))
    }
}

/// With how often files were synced for a thousand requests, if the servers tell.
pub(super) fn with_syncs(row: Row, measured: &Measured, before: Option<f64>, after: Option<f64>) -> Row {
    match (before, after) {
        (Some(before), Some(after)) => row.with("syncs_per_1000", (after - before) * 1000.0 / as_f64(measured.requests_total.max(1))),
        _ => row,
    }
}

pub(super) fn warm_up(options: &Options) -> Duration {
    (options.time / 10).clamp(Duration::from_millis(300), Duration::from_secs(2))
}

/// What every load gives.
#[allow(clippy::cast_precision_loss, reason = "a number of connections")]
pub(super) fn figures(measured: &Measured, connections: usize) -> Row {
    let mut row = Row::default()
        .with("connections", connections as f64)
        .with("rate", measured.rate())
        .with("p50_ms", measured.latency_ms(0.5))
        .with("p99_ms", measured.latency_ms(0.99))
        .with("server_us", measured.per_request_us(measured.server_cpu))
        .with("own_us", measured.per_request_us(measured.own_cpu))
        .with("errors", as_f64(measured.errors));
    row.first_error = measured.first_error.as_ref().map(|error| error.chars().take(200).collect());
    row
}
