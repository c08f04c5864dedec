//! What it costs to ask everybody who they are: the same load twice, once with security off and once as a user with a grant.

use anyhow::ensure;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::Options;
use super::loaded::{Bench, MESSAGE_BYTES};
use super::report::Row;
use super::server::{ADMIN_PASSWORD, Server, TOPIC};
use crate::http::RequestBytes;
use crate::load::ProduceOne;

const CONNECTIONS: usize = 64;

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

/// Three rows: without, with, and the share that is left.
///
/// # Errors
/// The node cannot be driven.
pub(super) async fn measure(options: &Options) -> anyhow::Result<Vec<Row>> {
    let open = Bench::veena(options, CONNECTIONS).run(0, |at| ProduceOne::new(TOPIC, MESSAGE_BYTES, at)).await?;
    let mut server = Server::start_secured(options).await?;
    let line = producer(&mut server).await?;
    let bench = Bench::veena(options, CONNECTIONS);
    let secured = bench.drive(&mut server, 0, |at| ProduceOne::new(TOPIC, MESSAGE_BYTES, at).signed_in(&line)).await?;
    server.stop().await?;
    let rate = |row: &Row| row.figure("rate").unwrap_or_default();
    let share = rate(&secured) / rate(&open).max(1.0);
    let named = |row: Row, name: &str, about: &str| Row { name: name.to_owned(), about: about.to_owned(), ..row };
    Ok(vec![
        named(open, "open-64", "produce at 64 connections, security off"),
        named(secured, "secured-64", "produce at 64 connections, each request signed in and held against grants"),
        Row::new("secured-ratio", "the share of the rate that is left when everybody signs in").with("share", share),
    ])
}
