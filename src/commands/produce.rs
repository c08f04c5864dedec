//! `veena pub`: send messages.

use std::io::{self, BufRead as _, IsTerminal as _};
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, ValueEnum};
use tokio::time::{Instant, sleep_until};
use veena_client::bodies::{BatchEntry, ProduceBatch};
use veena_client::{Client, ProduceOptions};
use veena_contract::limits::{MESSAGE_BYTES_MAX, PRODUCE_BATCH_MESSAGES_MAX};

use super::Global;
use crate::flags;
use crate::output::{self, Failure, Outcome};

/// How many bytes of payload go into one batch.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

/// When a message is called sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum WaitFor {
    /// When it is on disk at the node that took it.
    #[default]
    Wal,
    /// When consumers can see it; prints where it is.
    Commit,
}

/// Messages to send.
#[derive(Debug, Args)]
pub struct PubArgs {
    /// The topic.
    topic: String,
    /// The message; absent: one message for each line of the standard input.
    message: Option<String>,
    /// Messages with the same key go to the same partition, in order.
    #[arg(short, long)]
    key: Option<String>,
    /// Send to this partition.
    #[arg(long, value_name = "N")]
    partition: Option<u32>,
    /// Send this file as one message; - is the standard input.
    #[arg(short, long, conflicts_with = "message", value_name = "PATH")]
    file: Option<String>,
    /// A header of the message; may be repeated.
    #[arg(short = 'H', long = "header", value_parser = flags::header, value_name = "NAME=VALUE")]
    headers: Vec<(String, String)>,
    /// Stored once, however often it is sent under this key within the topic's window; needs a single message.
    #[arg(long, conflicts_with = "count", value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Send the message this many times.
    #[arg(long, default_value_t = 1, value_name = "N")]
    count: u64,
    /// Send at most this many messages a second; 0 is as fast as possible.
    #[arg(long, default_value_t = 0, value_name = "N")]
    rate: u32,
    /// When a message is called sent.
    #[arg(long, value_enum, default_value_t)]
    wait_for: WaitFor,
}

/// Sends messages.
pub async fn run(global: &Global, args: PubArgs) -> Outcome {
    if args.idempotency_key.is_some() && args.message.is_none() && args.file.is_none() {
        return Err(Failure::Usage("an idempotency key stands for one message: give it as an argument or as a file".to_owned()));
    }
    let client = global.client()?;
    let mut sender = Sender::new(&client, global, &args);
    match (&args.message, &args.file) {
        (Some(text), _) => sender.repeat(Bytes::from(text.clone()), args.count).await?,
        (None, Some(path)) => sender.repeat(Bytes::from(flags::read_file(path).await?), args.count).await?,
        (None, None) => {
            if io::stdin().is_terminal() {
                eprintln!("one message a line; Ctrl-D ends");
            }
            while let Some(mut line) = tokio::task::block_in_place(read_line)? {
                if line.last() == Some(&b'\n') {
                    line.pop();
                }
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
                if !line.is_empty() {
                    sender.repeat(Bytes::from(line), args.count).await?;
                }
            }
        }
    }
    sender.finish()
}

/// The next line of the standard input with its end; `None` at the end.
fn read_line() -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let read = io::stdin().lock().read_until(b'\n', &mut line)?;
    Ok((read > 0).then_some(line))
}

struct Sender<'a> {
    client: &'a Client,
    global: &'a Global,
    args: &'a PubArgs,
    options: ProduceOptions,
    sent: u64,
    started: Instant,
    bar: indicatif::ProgressBar,
}

impl<'a> Sender<'a> {
    fn new(client: &'a Client, global: &'a Global, args: &'a PubArgs) -> Self {
        let options = ProduceOptions {
            key: args.key.clone().map(Bytes::from),
            partition: args.partition,
            headers: args.headers.clone(),
            idempotency_key: args.idempotency_key.clone(),
        };
        let bar = if args.count > 1 { output::progress(args.count, "sent") } else { output::counter("sent") };
        Self { client, global, args, options, sent: 0, started: Instant::now(), bar }
    }

    /// Sends one message `count` times: in batches when nothing asks for single ones.
    async fn repeat(&mut self, payload: Bytes, count: u64) -> Outcome {
        if payload.is_empty() {
            return Err(Failure::Usage("a message has at least one byte".to_owned()));
        }
        if payload.len() > MESSAGE_BYTES_MAX {
            return Err(Failure::Usage(format!("the message has {} bytes; at most {MESSAGE_BYTES_MAX} are taken", payload.len())));
        }
        let mut left = count;
        let single = self.args.rate > 0 || self.args.wait_for == WaitFor::Commit || count == 1;
        while left > 0 {
            let sent = if single { self.send_one(payload.clone()).await.map(|()| 1) } else { self.send_batch(&payload, left).await };
            let sent = sent.inspect_err(|_| self.tell_partial())?;
            self.sent += sent;
            left -= sent;
            self.bar.inc(sent);
            self.keep_rate().await;
        }
        Ok(())
    }

    async fn send_one(&self, payload: Bytes) -> Outcome {
        if self.args.wait_for == WaitFor::Wal {
            self.client.produce(&self.args.topic, payload, &self.options).await?;
            return Ok(());
        }
        let committed = self.client.produce_committed(&self.args.topic, payload, &self.options).await?;
        if self.global.json {
            return output::json(&committed);
        }
        output::line(format!("{} partition {} offset {}", committed.id, committed.partition, committed.offset))
    }

    async fn send_batch(&self, payload: &Bytes, left: u64) -> Result<u64, Failure> {
        let fitting = (BATCH_BYTES_MAX / payload.len()).clamp(1, PRODUCE_BATCH_MESSAGES_MAX);
        let size = usize::try_from(left).unwrap_or(usize::MAX).min(fitting);
        let mut entry = BatchEntry::from_bytes(payload);
        if let Some(key) = &self.options.key {
            entry = entry.with_key(key);
        }
        entry.partition = self.args.partition.map(i64::from);
        entry.headers = (!self.args.headers.is_empty()).then(|| self.args.headers.iter().cloned().collect());
        let batch = ProduceBatch { messages: vec![entry; size] };
        Ok(self.client.produce_batch(&self.args.topic, &batch).await?.accepted)
    }

    async fn keep_rate(&self) {
        if self.args.rate > 0 {
            sleep_until(self.started + Duration::from_secs_f64(self.sent_as_f64() / f64::from(self.args.rate))).await;
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a pace needs no exactness")]
    fn sent_as_f64(&self) -> f64 {
        self.sent as f64
    }

    fn tell_partial(&self) {
        self.bar.finish_and_clear();
        if self.sent > 0 {
            eprintln!("{} message(s) were sent before the failure", self.sent);
        }
    }

    fn finish(self) -> Outcome {
        self.bar.finish_and_clear();
        if self.args.wait_for == WaitFor::Commit {
            return Ok(());
        }
        if self.global.json {
            return output::json(&serde_json::json!({ "accepted": self.sent }));
        }
        output::line(format!("sent {} message(s) to {}", self.sent, self.args.topic))
    }
}
