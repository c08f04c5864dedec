//! Polls that wait at one node, and whose right to do so is taken away at another: how long until they are cut.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use hdrhistogram::Histogram;
use serde::Deserialize;
use tokio::task::JoinSet;

use super::{Cluster, NODES, VISIBILITY_MS};
use crate::api::{Client, NewTopic};
use crate::bench::flush::quantile_ms;
use crate::bench::report::Row;
use crate::bench::secured::basic;
use crate::bench::server::{ADMIN_PASSWORD, TOPIC};
use crate::bench::{Options, usual_share};
use crate::http::RequestBytes;
use crate::load::as_f64;

/// How many wait in a run of the usual length.
const POLLS: f64 = 200.0;
const POLLS_MIN: usize = 10;
const TENANT: &str = "acme";
/// An account has no more keys than these.
const KEYS_EACH: usize = 5;
/// Longer than all of it takes.
const WAIT: &str = "300s";
const PATIENCE: Duration = Duration::from_secs(330);
/// A poll that is still open then is not cut any more.
const CUT_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);
const READY_WITHIN: Duration = Duration::from_secs(120);
/// Between two revocations.
const REST: Duration = Duration::from_millis(20);

/// How its right is taken away, and as whom it signs in.
struct Poller {
    line: String,
    revoke: RequestBytes,
}

/// A call that must succeed.
async fn call(client: &mut Client, request: &RequestBytes) -> anyhow::Result<Vec<u8>> {
    let reply = client.call(request).await?;
    ensure!((200..300).contains(&reply.status), "refused: {} {}", reply.status, String::from_utf8_lossy(&reply.body));
    Ok(reply.body)
}

fn json(method: &str, target: &str, body: &str) -> RequestBytes {
    RequestBytes::new(method, target, &["X-Veena-Client: load", "Content-Type: application/json"], body.as_bytes())
}

fn delete(target: &str) -> RequestBytes {
    RequestBytes::new("DELETE", target, &["X-Veena-Client: load"], b"")
}

const MAY_CONSUME: &str = r#""grants":[{"action":"consume","patterns":["*"]}]"#;

/// By a key each; the key is deleted.
async fn by_keys(client: &mut Client, count: usize) -> anyhow::Result<Vec<Poller>> {
    #[derive(Deserialize)]
    struct Created {
        id: String,
        key: String,
    }
    let mut pollers = Vec::new();
    for at in 0..count {
        let account = format!("account-{}", at / KEYS_EACH);
        if at % KEYS_EACH == 0 {
            call(client, &json("POST", "/v1/accounts", &format!(r#"{{"name":"{account}",{MAY_CONSUME}}}"#))).await?;
        }
        let made = call(client, &json("POST", &format!("/v1/accounts/{account}/keys"), "{}")).await?;
        let Created { id, key } = serde_json::from_slice(&made).context("a key")?;
        let revoke = delete(&format!("/v1/accounts/{account}/keys/{id}"));
        pollers.push(Poller { line: format!("Authorization: Bearer {key}"), revoke });
    }
    Ok(pollers)
}

/// By a user each; every other is deleted, the rest lose their grant.
async fn by_users(client: &mut Client, count: usize) -> anyhow::Result<Vec<Poller>> {
    let mut pollers = Vec::new();
    for at in 0..count {
        let name = format!("user-{at}");
        call(client, &json("POST", "/v1/users", &format!(r#"{{"username":"{name}","password":"{ADMIN_PASSWORD}",{MAY_CONSUME}}}"#)))
            .await?;
        let user = format!("/v1/users/{name}");
        let revoke = if at % 2 == 0 { delete(&user) } else { json("PUT", &format!("{user}/grants"), r#"{"grants":[]}"#) };
        pollers.push(Poller { line: basic(&name, ADMIN_PASSWORD), revoke });
    }
    Ok(pollers)
}

/// By one user of a tenant, all of whom are cut when the tenant is suspended; the first of them names that.
async fn by_tenant(cluster: &mut Cluster, count: usize) -> anyhow::Result<Vec<Poller>> {
    let target = format!("/v1/admin/tenants/{TENANT}");
    let client = &mut cluster.clients[0];
    call(client, &json("PUT", &target, r#"{"state":"active"}"#)).await?;
    let grants = r#""grants":[{"action":"consume","patterns":["*"]},{"action":"create","patterns":["*"]}]"#;
    call(client, &json("PUT", &format!("{target}/users/joe"), &format!(r#"{{"password":"{ADMIN_PASSWORD}",{grants}}}"#))).await?;
    let line = basic(&format!("joe@{TENANT}"), ADMIN_PASSWORD);
    let topic = NewTopic { name: TOPIC.to_owned(), partitions: u32::try_from(NODES)?, visibility_ms: VISIBILITY_MS, keeps_order: true };
    Client::new(cluster.nodes[0].addr()).signed_in(&line).create_topic(&topic).await?;
    let revoke = json("PUT", &target, r#"{"state":"suspended"}"#);
    Ok((0..count).map(|_| Poller { line: line.clone(), revoke: revoke.clone() }).collect())
}

/// Waits until this is answered with 200: a node hears of a new user a moment later, and computes few passwords at once.
async fn known(client: &mut Client, target: &str) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let reply = client.get(target).await?;
        if reply.status == 200 {
            return Ok(());
        }
        ensure!(started.elapsed() < READY_WITHIN, "{target} is answered {} {}", reply.status, String::from_utf8_lossy(&reply.body));
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn parked(clients: &mut [Client]) -> anyhow::Result<f64> {
    let mut parked = 0.0;
    for client in clients {
        parked += client.metrics().await?.sum(|name| name == "veena_consumers_parked").context("no metric of parked consumers")?;
    }
    Ok(parked)
}

/// The row.
///
/// # Errors
/// A node does not answer, or polls do not wait.
pub(in crate::bench) async fn measure(options: &Options) -> anyhow::Result<Row> {
    let wanted = (0_u32..).take_while(|poll| f64::from(*poll) < usual_share(options) * POLLS).count().max(POLLS_MIN);
    let mut options = options.clone();
    options.node_env.extend(
        [("VEENA_HTTP_MAX_CONSUME_WAIT", WAIT), ("VEENA_HTTP_SHUTDOWN_GRACE", WAIT), ("VEENA_HTTP_WRITE_TIMEOUT", "360s")]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    let mut cluster = Cluster::start_secured(&options).await?;
    cluster.create(TOPIC, u32::try_from(NODES)?).await?;
    let mut pollers = by_keys(&mut cluster.clients[0], wanted * 2 / 5).await?;
    pollers.extend(by_users(&mut cluster.clients[0], wanted * 2 / 5).await?);
    let of_tenant = wanted - pollers.len();
    pollers.extend(by_tenant(&mut cluster, of_tenant).await?);

    let mut waiting = JoinSet::new();
    for (at, poller) in pollers.iter().enumerate() {
        let mut client = Client::new(cluster.nodes[at % NODES].addr()).signed_in(&poller.line).with_timeout(PATIENCE);
        known(&mut client, "/v1/whoami").await?;
        waiting.spawn(async move {
            let reply = client.get(&format!("/v1/topics/{TOPIC}/consume?wait={WAIT}")).await;
            (at, reply, Instant::now())
        });
    }
    let started = Instant::now();
    while parked(&mut cluster.clients).await? < as_f64(u64::try_from(wanted)?) {
        if let Some(ended) = waiting.try_join_next() {
            let (at, reply, _) = ended?;
            anyhow::bail!("poll {at} does not wait: {reply:?}");
        }
        ensure!(started.elapsed() < READY_WITHIN, "not all polls wait");
        tokio::time::sleep(LOOK_EVERY).await;
    }

    // Each is revoked through another node than the one at which it waits.
    let mut answered = Vec::new();
    for (at, poller) in pollers.iter().enumerate() {
        let is_again = at > 0 && pollers[at - 1].revoke.as_bytes() == poller.revoke.as_bytes();
        if is_again {
            answered.push(answered[at - 1]);
            continue;
        }
        call(&mut cluster.clients[(at + 1) % NODES], &poller.revoke).await?;
        answered.push(Instant::now());
        tokio::time::sleep(REST).await;
    }
    let mut took_us = Histogram::<u64>::new_with_bounds(1, 600_000_000, 3)?;
    let (mut odd, mut first_odd) = (0, None);
    let deadline = tokio::time::Instant::now() + CUT_WITHIN;
    while let Ok(Some(ended)) = tokio::time::timeout_at(deadline, waiting.join_next()).await {
        let (at, reply, ended) = ended?;
        took_us.saturating_record(u64::try_from(ended.saturating_duration_since(answered[at]).as_micros())?);
        let is_cut = reply.as_ref().is_ok_and(|reply| matches!(reply.status, 401 | 403 | 404));
        if !is_cut {
            odd += 1;
            first_odd.get_or_insert_with(|| format!("{reply:?}"));
        }
    }
    let still_open = waiting.len();
    waiting.abort_all();
    cluster.stop().await?;
    let mut row = Row::default()
        .with("polls", as_f64(u64::try_from(wanted)?))
        .with("p50_ms", quantile_ms(&took_us, 0.5))
        .with("p99_ms", quantile_ms(&took_us, 0.99))
        .with("still_open", as_f64(u64::try_from(still_open)?))
        .with("odd_answers", as_f64(odd));
    row.first_error = first_odd;
    Ok(row)
}
