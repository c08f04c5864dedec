//! `veena sub` and `veena replay`: receive messages, or read them again.

use std::time::Duration;

use clap::Args;
use tokio::time::Instant;
use veena_client::bodies::{Message, PartitionStats};
use veena_client::{Client, SettleMode};

use super::Global;
use crate::flags;
use crate::output::{self, Failure, Outcome};

/// How many messages are leased at once.
const LEASE_BATCH: u32 = 100;
/// How long one request waits for a message.
const WAIT: Duration = Duration::from_secs(10);

/// What to receive.
#[derive(Debug, Args)]
pub struct SubArgs {
    /// The topic.
    topic: String,
    /// Only look: read what is there now, without leases and acks.
    #[arg(long)]
    peek: bool,
    /// With --peek: begin at this offset (default: the oldest).
    #[arg(long, requires = "peek", value_name = "OFFSET")]
    from: Option<u64>,
    /// Only this partition.
    #[arg(long, value_name = "N")]
    partition: Option<u32>,
    /// Print payloads alone, as they were sent.
    #[arg(long)]
    raw: bool,
    /// Do not ack: each message is handed out again when its lease runs out.
    #[arg(long, conflicts_with = "peek")]
    no_ack: bool,
    /// End after this many messages.
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,
    /// End when no message comes for this long; 0s takes what is there.
    #[arg(long, value_parser = flags::duration, value_name = "DURATION")]
    idle: Option<Duration>,
}

/// What to read again.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The topic.
    topic: String,
    /// The partition.
    #[arg(long, value_name = "N")]
    partition: u32,
    /// Begin at this offset (default: the oldest).
    #[arg(long, value_name = "OFFSET")]
    from: Option<u64>,
    /// End before this offset (default: everything visible now).
    #[arg(long, value_name = "OFFSET")]
    to: Option<u64>,
    /// Print payloads alone, as they were sent.
    #[arg(long)]
    raw: bool,
}

fn print(global: &Global, message: &Message, raw: bool) -> Outcome {
    if global.json {
        return output::json(message);
    }
    let payload = message.payload_bytes().map_err(anyhow::Error::from)?;
    if raw {
        return output::raw_line(&payload);
    }
    let key = match message.key_bytes().map_err(anyhow::Error::from)? {
        Some(key) => format!(" key={}", String::from_utf8_lossy(&key)),
        None => String::new(),
    };
    let again = match message.delivery_count {
        Some(count) if count > 1 => format!(" delivery={count}"),
        _ => String::new(),
    };
    let headers: String = message.headers.iter().map(|(name, value)| format!(" {name}={value}")).collect();
    output::line(format!("{}:{}{key}{again}{headers}  {}", message.partition, message.offset, String::from_utf8_lossy(&payload)))
}

/// Receives until told to stop.
pub async fn subscribe(global: &Global, args: SubArgs) -> Outcome {
    let client = global.client()?;
    if args.peek {
        return peek(global, &client, &args).await;
    }
    let mut received = 0;
    let outcome = tokio::select! {
        outcome = receive(global, &client, &args, &mut received) => outcome,
        stopped = tokio::signal::ctrl_c() => stopped.map_err(Failure::from),
    };
    // Before the first message an error says enough.
    if !global.json && !args.raw && (outcome.is_ok() || received > 0) {
        eprintln!("{received} message(s)");
    }
    outcome
}

async fn receive(global: &Global, client: &Client, args: &SubArgs, received: &mut u64) -> Outcome {
    let mut last_came = Instant::now();
    loop {
        let left = args.count.map_or(u64::MAX, |count| count - *received);
        if left == 0 {
            return Ok(());
        }
        let max = u32::try_from(left).unwrap_or(u32::MAX).min(LEASE_BATCH);
        // One poll waits as long as a node lets it, which may be shorter.
        let wait = args.idle.map_or(WAIT, |idle| idle.saturating_sub(last_came.elapsed()).min(WAIT));
        let messages = client.consume_batch(&args.topic, max, wait, args.partition).await?;
        if !messages.is_empty() {
            take(global, client, args, &messages, received).await?;
            last_came = Instant::now();
        } else if args.idle.is_some_and(|idle| last_came.elapsed() >= idle) {
            return Ok(());
        }
    }
}

/// Prints leased messages, then acks what was printed; what could not be printed is handed back.
async fn take(global: &Global, client: &Client, args: &SubArgs, messages: &[Message], received: &mut u64) -> Outcome {
    let mut printed = 0;
    let mut outcome = Ok(());
    for message in messages {
        outcome = print(global, message, args.raw);
        if outcome.is_err() {
            break;
        }
        printed += 1;
    }
    *received += u64::try_from(printed).unwrap_or(u64::MAX);
    let handles = |messages: &[Message]| messages.iter().filter_map(|message| message.receipt_handle.clone()).collect::<Vec<_>>();
    if !args.no_ack && printed > 0 {
        let results = client.settle_batch(&args.topic, handles(&messages[..printed]), SettleMode::Ack).await?;
        let lost = results.iter().filter(|result| result.status != 204).count();
        if lost > 0 {
            eprintln!("{lost} ack(s) were refused: those messages will be handed out again");
        }
    }
    if printed < messages.len() {
        // The message that was not printed is handed back; if that fails, its lease runs out by itself.
        let _released = client.settle_batch(&args.topic, handles(&messages[printed..]), SettleMode::Nack).await;
    }
    outcome
}

/// Reads every partition (or one) from an offset to what is visible now.
async fn peek(global: &Global, client: &Client, args: &SubArgs) -> Outcome {
    let detail = client.topic(&args.topic, args.partition).await?;
    let mut left = args.count.unwrap_or(u64::MAX);
    let mut unread = Vec::new();
    for stats in &detail.partition_stats {
        if !is_described(stats) {
            unread.push(stats.index.to_string());
            continue;
        }
        let partition = u32::try_from(stats.index).map_err(anyhow::Error::from)?;
        let begin = args.from.unwrap_or(0).max(stats.oldest_offset);
        let end = stats.high_watermark.min(begin.saturating_add(left));
        left -= read_range(global, client, &args.topic, partition, begin..end, args.raw).await?;
    }
    if left > 0 && !unread.is_empty() {
        return Err(Failure::Failed(anyhow::anyhow!(
            "partition(s) {} cannot be read now: their owner does not answer for them",
            unread.join(", ")
        )));
    }
    Ok(())
}

/// Are the numbers of this partition known? If not they are all 0, as of an empty one.
fn is_described(stats: &PartitionStats) -> bool {
    stats.status.as_deref() != Some("owner_unavailable")
}

/// Reads a range of offsets; damaged or expired ones are left out and said.
async fn read_range(
    global: &Global,
    client: &Client,
    topic: &str,
    partition: u32,
    range: std::ops::Range<u64>,
    raw: bool,
) -> Result<u64, Failure> {
    let mut read = 0;
    for offset in range {
        match client.replay(topic, partition, offset).await {
            Ok(Some(message)) => {
                print(global, &message, raw)?;
                read += 1;
            }
            Ok(None) => break,
            Err(error) if error.is(410) => eprintln!("{partition}:{offset} cannot be read: {}", error.text),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(read)
}

/// Reads a partition again.
pub async fn replay(global: &Global, args: ReplayArgs) -> Outcome {
    let client = global.client()?;
    let detail = client.topic(&args.topic, Some(args.partition)).await?;
    let stats = detail.partition_stats.iter().find(|stats| stats.index == u64::from(args.partition));
    let stats = stats.ok_or_else(|| anyhow::anyhow!("the server does not describe partition {}", args.partition))?;
    if !is_described(stats) {
        return Err(Failure::Failed(anyhow::anyhow!("partition {} cannot be read now: its owner does not answer for it", args.partition)));
    }
    if let Some(from) = args.from.filter(|from| *from < stats.oldest_offset) {
        return Err(Failure::Failed(anyhow::anyhow!("offset {from} has aged out; the oldest is {}", stats.oldest_offset)));
    }
    let begin = args.from.unwrap_or(stats.oldest_offset);
    let end = args.to.unwrap_or(u64::MAX).min(stats.high_watermark);
    read_range(global, &client, &args.topic, args.partition, begin..end, args.raw).await.map(|_| ())
}
