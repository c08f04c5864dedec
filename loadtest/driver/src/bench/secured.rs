//! What it costs to ask everybody who they are and what they may use: the same load on two nodes, once with security off and once as a user with
//! a grant, of a tenant with limits.

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::Options;
use super::loaded::{MESSAGE_BYTES, figures, warm_up};
use super::report::{Row, medians};
use super::server::{ADMIN_PASSWORD, Kind, Server, TOPIC};
use crate::http::RequestBytes;
use crate::load::{self, Pace, ProduceOne, Run};

const CONNECTIONS: usize = 64;
/// How often both are measured. An even number, so that each goes first as often as the other.
const ROUNDS: u32 = 6;

/// The `Authorization` line of a user.
pub(super) fn basic(name: &str, password: &str) -> String {
    format!("Authorization: Basic {}", STANDARD.encode(format!("{name}:{password}")))
}

/// Lets a user produce; gives the line with which the user signs in.
pub(super) async fn producer(server: &mut Server) -> anyhow::Result<String> {
    let body = format!(
        r#"{{"username":"load","password":"{ADMIN_PASSWORD}","grants":[{{"action":"consume","patterns":["other.*"]}},{{"action":"produce","patterns":["{TOPIC}"]}}]}}"#
    );
    let reply = server.client.call(&RequestBytes::post_json("/v1/users", body.as_bytes())).await?;
    ensure!(reply.status == 201, "no user could be made: {} {}", reply.status, String::from_utf8_lossy(&reply.body));
    Ok(basic("load", ADMIN_PASSWORD))
}

/// Limits the tenant in every way, and above what any load reaches.
async fn limit(server: &mut Server) -> anyhow::Result<()> {
    let body = r#"{"quota":{"requests_per_s":1000000000,"messages_in_per_s":1000000000,"bytes_in_per_s":1000000000000,"stored_bytes":1000000000000}}"#;
    let headers = ["X-Veena-Client: load", "Content-Type: application/json"];
    let reply = server.client.call(&RequestBytes::new("PUT", "/v1/admin/tenants/default/quota", &headers, body.as_bytes())).await?;
    ensure!(reply.status == 200, "the limits were answered {}: {}", reply.status, String::from_utf8_lossy(&reply.body));
    Ok(())
}

/// One of the two nodes, what was sent to it, and what it showed.
struct Side {
    server: Server,
    line: Option<String>,
    sent: u64,
    errors: u64,
    rows: Vec<Row>,
}

impl Side {
    fn new(server: Server, line: Option<String>) -> Self {
        Self { server, line, sent: 0, errors: 0, rows: Vec::new() }
    }

    async fn round(&mut self, options: &Options) -> anyhow::Result<f64> {
        let run = Run {
            servers: vec![(self.server.addr, self.server.pid())],
            connections: CONNECTIONS,
            pace: Pace::Closed,
            warm_up: warm_up(options),
            time: options.time / ROUNDS,
        };
        let one = |at| ProduceOne::new(TOPIC, MESSAGE_BYTES, at);
        let measured = match &self.line {
            Some(line) => load::run(run, |at| one(at).signed_in(line)).await?,
            None => load::run(run, one).await?,
        };
        self.sent += measured.sent_total;
        self.errors += measured.errors;
        self.rows.push(figures(&measured, CONNECTIONS));
        Ok(measured.rate())
    }

    async fn end(mut self, name: &str, about: &str) -> anyhow::Result<Row> {
        let (lag, ledger) = self.server.lag_and_ledger(self.sent, self.errors).await?;
        self.server.stop().await?;
        let mut row = medians(&self.rows).into_iter().next().context("it was measured")?.with("wal_lag", lag);
        row.ledger = Some(ledger);
        Ok(Row { name: name.to_owned(), about: about.to_owned(), ..row })
    }
}

/// Three rows: without, with, and the share that is left. Both nodes run all the time and are driven in turns, first the one, then the other: what
/// the machine does besides, such as writing back what the last one wrote, meets both alike.
///
/// # Errors
/// The node cannot be driven.
pub(super) async fn measure(options: &Options) -> anyhow::Result<Vec<Row>> {
    let mut open = Side::new(Server::start(Kind::Veena, options).await?, None);
    let mut server = Server::start_secured(options).await?;
    let line = producer(&mut server).await?;
    limit(&mut server).await?;
    let mut secured = Side::new(server, Some(line));
    let mut shares = Vec::new();
    for round in 0..ROUNDS {
        let (without, with) = if round % 2 == 0 {
            let without = open.round(options).await?;
            (without, secured.round(options).await?)
        } else {
            let with = secured.round(options).await?;
            (open.round(options).await?, with)
        };
        shares.push(Row::new("secured-ratio", "the share of the rate that is left").with("share", with / without.max(1.0)));
    }
    let open = open.end("open-64", "produce at 64 connections, security off").await?;
    let about = "produce at 64 connections, each request signed in, held against grants and counted against limits";
    let secured = secured.end("secured-64", about).await?;
    Ok([vec![open, secured], medians(&shares)].concat())
}
