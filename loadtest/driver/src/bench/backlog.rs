//! How long a node takes to be ready over much that it has not dispatched and many sealed segments. The directory is made with the
//! storage layer itself: no node would get there in a short time, as it refuses to fall so far behind.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use serde::Deserialize;
use veena_contract::{Entropy, Offset, StreamId};
use veena_storage::disk::real::RealDisk;
use veena_storage::envelope::Envelope;
use veena_storage::io::Io;
use veena_storage::partition::{Codec, FrameCache, Marks, NewRecord, Origin, PartitionConfig, PartitionLog, Section, StreamKey};
use veena_storage::wal::{Destination, RecordKind, Wal, WalConfig, WalEntries, WalEntry};

use super::report::Row;
use super::server::{TOPIC, visible};
use super::{Options, usual_share};
use crate::api::{Client, NewTopic};
use crate::load::as_f64;
use crate::node::{NodeConfig, NodeProcess};

const WAL_BYTES: f64 = 1_073_741_824.0;
const SEALED_SEGMENTS: f64 = 2_000.0;
const PARTITIONS: u32 = 20;
const MESSAGE_BYTES: usize = 1024;
/// Records that are appended to the WAL together.
const CALL_RECORDS: u32 = 256;
const CALLS_UNDER_WAY: usize = 32;
/// Small, so that two thousand of them fit on any disk: what counts at a start is how many there are.
const SEGMENT_RECORDS: u64 = 16;
const DRAIN_MAX: Duration = Duration::from_secs(600);

/// The system's randomness.
struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn next_u64(&self) -> u64 {
        getrandom::u64().expect("invariant: the system has randomness")
    }
}

fn body() -> Bytes {
    Envelope { key: None, headers: Vec::new(), payload: Bytes::from(vec![b'v'; MESSAGE_BYTES]) }.encode()
}

/// Fills the log in `dir` until `segments` of its segments are sealed; gives the number of records.
fn seal(dir: &Path, segments: u64) -> anyhow::Result<u64> {
    let config = PartitionConfig { segment_bytes_max: 4096, segment_age_ms_max: 0, codec: Codec::None };
    let entropy = SystemEntropy;
    let (mut log, _) = PartitionLog::open(Arc::new(RealDisk), dir, config, Arc::new(FrameCache::new(1024 * 1024)), &entropy, Offset(0))?;
    let key = StreamKey { stream: StreamId(entropy.next_u128()), source: 0 };
    let body = body();
    let mut sequence = 0;
    // Every append is larger than a segment may be, so that each seals the one before.
    for _ in 0..=segments {
        let records: Vec<NewRecord> =
            (0..SEGMENT_RECORDS).map(|at| NewRecord { sequence: sequence + at, id: None, key: None, body: body.clone() }).collect();
        sequence += SEGMENT_RECORDS;
        let section = Section { key, origin: Origin::default(), is_tracked: false, last: sequence - 1, records };
        let appended = log.append(&[section], 1, &Marks::new)?;
        let synced = log.sync(appended)?;
        let verified = log.verify(synced)?;
        log.publish(verified);
    }
    Ok(sequence)
}

/// Appends `bytes` of records for the topic's partitions to the WAL in `dir`, as an accepting node does; gives their number.
async fn fall_behind(dir: &Path, topic: u64, bytes: f64) -> anyhow::Result<u64> {
    let (wal, _) = Wal::open(Arc::new(RealDisk), dir, WalConfig::default(), &SystemEntropy)?;
    wal.start(&Io::threads(2), Arc::new(|_| {}));
    let body = body();
    let mut under_way = VecDeque::new();
    let mut records = 0_u64;
    while as_f64(records) * as_f64(u64::try_from(body.len())?) < bytes {
        let entry = |at: u32| WalEntry {
            kind: RecordKind::Accept,
            destination: Destination { group: topic, partition: at % PARTITIONS },
            body: body.clone(),
        };
        under_way.push_back(wal.stage((0..CALL_RECORDS).map(entry).collect::<WalEntries>())?);
        records += u64::from(CALL_RECORDS);
        if under_way.len() > CALLS_UNDER_WAY
            && let Some(oldest) = under_way.pop_front()
        {
            oldest.await?;
        }
    }
    for staged in under_way {
        staged.await?;
    }
    wal.close();
    Ok(records)
}

async fn topic_id(client: &mut Client) -> anyhow::Result<String> {
    #[derive(Deserialize)]
    struct Described {
        id: String,
    }
    let reply = client.get(&format!("/v1/topics/{TOPIC}")).await?;
    Ok(serde_json::from_slice::<Described>(&reply.body).context("the description of a topic")?.id)
}

fn partition_dir(data: &Path, topic: &str, partition: u32) -> PathBuf {
    data.join("topics/default").join(topic).join(format!("p{partition:05}"))
}

/// The row.
///
/// # Errors
/// The directory cannot be made, or the node does not start over it.
pub(super) async fn measure(options: &Options) -> anyhow::Result<Row> {
    let dir = tempfile::tempdir_in(&options.dir)?;
    let mut config = NodeConfig::in_dir(&options.veena, dir.path());
    config.flags.extend(options.node_flags.iter().cloned());
    config.env.extend(options.node_env.iter().cloned());
    let mut node = NodeProcess::start(config).await?;
    let data = node.config().data_dir.clone();
    let mut client = Client::new(node.addr());
    client.create_topic(&NewTopic { name: TOPIC.to_owned(), partitions: PARTITIONS, visibility_ms: 30_000, keeps_order: true }).await?;
    let topic = topic_id(&mut client).await?;
    // Every partition has its log, and a message, before the node goes away.
    for partition in 0..PARTITIONS {
        client.produce_to(TOPIC, partition, b"first").await?;
    }
    node.stop(Duration::from_secs(30)).await?;

    let share = usual_share(options);
    let each = (1..=u64::MAX).find(|each| as_f64(*each) * f64::from(PARTITIONS) >= SEALED_SEGMENTS * share).unwrap_or(1);
    let mut sent = u64::from(PARTITIONS);
    for partition in 0..PARTITIONS {
        let dir = partition_dir(&data, &topic, partition);
        ensure!(dir.is_dir(), "{} is not there: the layout has changed", dir.display());
        sent += seal(&dir, each)?;
    }
    let behind = fall_behind(&data.join("ingress"), u64::from_str_radix(&topic, 16)?, WAL_BYTES * share).await?;
    sent += behind;

    let started = Instant::now();
    node.start_again().await?;
    let ready = started.elapsed();
    let topics = [TOPIC.to_owned()];
    let mut client = Client::new(node.addr());
    while visible(&mut client, &topics).await? < sent && started.elapsed() < DRAIN_MAX {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let drained = started.elapsed();
    let found = visible(&mut client, &topics).await?;
    node.stop(Duration::from_secs(30)).await?;
    let mut row = Row::default()
        .with("ready_s", ready.as_secs_f64())
        .with("undispatched_mib", as_f64(behind) * as_f64(u64::try_from(body().len())?) / 1_048_576.0)
        .with("sealed_segments", as_f64(each * u64::from(PARTITIONS)))
        .with("drained_s", drained.as_secs_f64());
    row.ledger = Some(match found {
        _ if found < sent => format!("LOST {}", sent - found),
        _ if found > sent => format!("TWICE {}", found - sent),
        _ => format!("ok {sent}"),
    });
    Ok(row)
}
