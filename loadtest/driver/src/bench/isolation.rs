//! What one tenant notices of another: a tenant with a limit of 5 % of what the node can do offers it half of that, beside a tenant that sends
//! and reads a tenth. Rounds with and without the first alternate, so that what else the machine does meets both alike.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context as _, ensure};
use tokio::task::JoinSet;

use super::Options;
use super::flush::quantile_ms;
use super::loaded::{MESSAGE_BYTES, warm_up};
use super::partitions::{Seen, Spread};
use super::report::{Row, medians};
use super::secured::basic;
use super::server::{ADMIN_PASSWORD, Server};
use crate::api::{Client, NewTopic, Reply};
use crate::http::{Connection, RequestBytes};
use crate::load::{self, LoadClient, Measured, Meter, Pace, ProduceOne, Run, Step, as_f64};

const TOPIC: &str = "isolated";
const PARTITIONS: u32 = 3;
/// Of all that the node can do.
const FLOOD_LIMIT: f64 = 0.05;
const FLOOD_OFFERS: f64 = 0.5;
const CALM_OFFERS: f64 = 0.1;
/// How often both are measured.
const ROUNDS: u32 = 5;
/// Of each; so many that no message waits for a free one.
const CONNECTIONS: usize = 64;
const CONSUMERS: usize = 2;

/// Sends the same again and again. That it is refused for a limit is what it is for.
struct Flood(RequestBytes);

impl LoadClient for Flood {
    async fn step(&mut self, connection: &mut Connection, meter: &mut Meter) -> anyhow::Result<Step> {
        let start = meter.start();
        let answer = connection.exchange(self.0.as_bytes()).await?;
        let is_accepted = answer.status == 202;
        meter.answered(start, &answer, is_accepted || answer.status == 429);
        meter.sent(u64::from(is_accepted));
        meter.moved(u64::from(is_accepted));
        Ok(Step::Done)
    }
}

/// A tenant with a topic, and the line with which its user signs in.
async fn furnish(server: &mut Server, tenant: &str) -> anyhow::Result<String> {
    let is_done = |reply: Reply| {
        let text = String::from_utf8_lossy(&reply.body);
        ensure!(matches!(reply.status, 200 | 201), "the tenant {tenant} cannot be furnished: {} {text}", reply.status);
        Ok(())
    };
    let put = |target: &str, body: &str| {
        RequestBytes::new("PUT", target, &["X-Veena-Client: load", "Content-Type: application/json"], body.as_bytes())
    };
    let path = format!("/v1/admin/tenants/{tenant}");
    is_done(server.client.call(&put(&path, r#"{"state":"active"}"#)).await?)?;
    let user = format!(r#"{{"password":"{ADMIN_PASSWORD}","grants":[{{"action":"admin"}}]}}"#);
    is_done(server.client.call(&put(&format!("{path}/users/load"), &user)).await?)?;
    let line = basic(&format!("load@{tenant}"), ADMIN_PASSWORD);
    let topic = NewTopic { name: TOPIC.to_owned(), partitions: PARTITIONS, visibility_ms: 30_000, keeps_order: true };
    Client::new(server.addr).signed_in(&line).create_topic(&topic).await?;
    Ok(line)
}

/// May send so many messages a second.
async fn limit(server: &mut Server, tenant: &str, messages_per_s: u64) -> anyhow::Result<()> {
    let body = format!(r#"{{"quota":{{"messages_in_per_s":{messages_per_s}}}}}"#);
    let headers = ["X-Veena-Client: load", "Content-Type: application/json"];
    let request = RequestBytes::new("PUT", &format!("/v1/admin/tenants/{tenant}/quota"), &headers, body.as_bytes());
    let reply = server.client.call(&request).await?;
    ensure!(reply.status == 200, "the limit was answered {}: {}", reply.status, String::from_utf8_lossy(&reply.body));
    Ok(())
}

fn produce(line: &str) -> RequestBytes {
    let headers = ["X-Veena-Client: load", "Content-Type: application/octet-stream"];
    RequestBytes::new("POST", &format!("/v1/topics/{TOPIC}/produce"), &headers, &[b'v'; MESSAGE_BYTES]).with_header(line)
}

/// The whole scenario on one node.
struct Scene<'a> {
    options: &'a Options,
    server: Server,
    calm: String,
    flood: String,
    capacity: f64,
}

impl Scene<'_> {
    fn run(&self, connections: usize, pace: Pace) -> Run {
        let servers = vec![(self.server.addr, self.server.pid())];
        Run { servers, connections, pace, warm_up: warm_up(self.options), time: self.options.time / ROUNDS }
    }

    /// What floods has a thread of its own: the other's load must not notice it, only the node's answers.
    fn start_flood(&self) -> JoinHandle<anyhow::Result<Measured>> {
        let (run, line) = (self.run(CONNECTIONS, Pace::Open(self.capacity * FLOOD_OFFERS)), self.flood.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(load::run(run, |_| Flood(produce(&line))))
        })
    }

    /// What the calm tenant sees, alone or beside the other.
    async fn round(&self, is_flooded: bool) -> anyhow::Result<Row> {
        let flood = is_flooded.then(|| self.start_flood());
        let run = self.run(CONNECTIONS, Pace::Open(self.capacity * CALM_OFFERS));
        let seen = Arc::new(Seen::new(run.warm_up)?);
        let mut consumers = JoinSet::new();
        for _ in 0..CONSUMERS {
            consumers.spawn(seen.clone().consume(self.client(self.server.addr), TOPIC.to_owned()));
        }
        let spread = Spread::new(vec![produce(&self.calm)], &seen);
        let measured = load::run(run, |_| spread.clone()).await?;
        seen.end();
        while let Some(ended) = consumers.join_next().await {
            ended??;
        }
        let took_us = seen.took_us();
        ensure!(!took_us.is_empty(), "consumers have seen nothing");
        let mut row = Row::new(if is_flooded { "flooded" } else { "alone" }, "")
            .with("p99_ms", measured.latency_ms(0.99))
            .with("visible_p99_ms", quantile_ms(&took_us, 0.99))
            .with("rate", measured.rate())
            .with("errors", as_f64(measured.errors));
        row.first_error = measured.first_error;
        let Some(flood) = flood else { return Ok(row) };
        let flood = flood.join().map_err(|_| anyhow::anyhow!("the flood broke"))??;
        Ok(row
            .with("flood_of_limit", flood.rate() / (self.capacity * FLOOD_LIMIT))
            .with("flood_answers", as_f64(flood.requests) / flood.seconds)
            .with("flood_errors", as_f64(flood.errors)))
    }

    fn client(&self, addr: SocketAddr) -> Client {
        Client::new(addr).signed_in(&self.calm)
    }
}

/// The row.
///
/// # Errors
/// The node cannot be driven.
pub(super) async fn measure(options: &Options) -> anyhow::Result<Row> {
    let mut server = Server::start_secured(options).await?;
    let calm = furnish(&mut server, "calm").await?;
    let flood = furnish(&mut server, "flood").await?;
    let mut scene = Scene { options, server, calm, flood, capacity: 0.0 };
    let line = scene.calm.clone();
    let most = load::run(scene.run(CONNECTIONS, Pace::Closed), |at| ProduceOne::new(TOPIC, MESSAGE_BYTES, at).signed_in(&line)).await?;
    scene.capacity = most.rate();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate of a machine")]
    limit(&mut scene.server, "flood", (scene.capacity * FLOOD_LIMIT) as u64).await?;
    let mut rows = Vec::new();
    for _ in 0..ROUNDS {
        for is_flooded in [false, true] {
            rows.push(scene.round(is_flooded).await?);
        }
    }
    let Scene { server, capacity, .. } = scene;
    server.stop().await?;
    let errors = rows.iter().filter_map(|row| row.figure("errors")).sum();
    let rows = medians(&rows);
    let (alone, flooded) = rows.first().zip(rows.get(1)).context("both were measured")?;
    let of = |row: &Row, figure| row.figure(figure).unwrap_or_default();
    let mut row = Row { name: String::new(), about: String::new(), ..flooded.clone() }
        .with("capacity", capacity)
        .with("alone_p99_ms", of(alone, "p99_ms"))
        .with("alone_visible_p99_ms", of(alone, "visible_p99_ms"))
        .with("p99_ratio", of(flooded, "p99_ms") / of(alone, "p99_ms").max(0.001))
        .with("visible_p99_ratio", of(flooded, "visible_p99_ms") / of(alone, "visible_p99_ms").max(0.001))
        .with("errors", errors);
    row.first_error = alone.first_error.clone().or_else(|| flooded.first_error.clone());
    Ok(row)
}
