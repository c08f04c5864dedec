//! `GET /v1/topics/{topic}/consume`: a lease, a long poll, a batch, or a replay without a lease.

use std::time::Duration;

use http::StatusCode;
use http::header::{HeaderName, HeaderValue};
use tokio::time::Instant;
use veena_broker::engine::Deliveries;
use veena_broker::errors::ConsumeError;
use veena_broker::message::ConsumeRequest;
use veena_contract::{ErrorCode, Offset, PartitionIndex, TopicName, limits};

use crate::answer::{self, Answer, AnswerBody};
use crate::cluster;
use crate::edge::Call;
use crate::message_json;
use crate::metrics::WaitOutcome;
use crate::problem::Problem;
use crate::produce;
use crate::query;
use crate::quota;

const WAIT_CLAMPED: HeaderName = HeaderName::from_static("x-narad-wait-clamped");

/// Hands out messages.
pub(crate) async fn consume(call: &Call<'_>) -> Result<Answer, Problem> {
    let asked = Asked::parse(call.query(), call.state.config.consume_wait_max())?;
    if asked.max.is_some() && !call.names_its_client() {
        return Err(Problem::invalid("batch consume requires an X-Narad-Client header"));
    }
    let topic = call.topic()?;
    let cap = call.state.config.max_consume_in_flight_per_identity;
    let too_many = || {
        let text = format!("too many in-flight consume requests for this identity (limit {cap} per node)");
        Problem::new(StatusCode::TOO_MANY_REQUESTS, ErrorCode::RateLimited, text)
    };
    let identity = call.identity();
    let count = asked.max.unwrap_or(1);
    let _in_flight = identity.as_ref().map(|identity| identity.consume(count, cap).ok_or_else(too_many)).transpose()?;
    cluster::confirm_partition(call, &topic, asked.partition).await?;
    let mut answer = match asked.from {
        From::Queue => lease(call, topic, &asked).await?,
        From::Replay(partition, offset) => Box::pin(replay(call, topic, partition, offset)).await?,
    };
    if let Some(clamped) = asked.clamped {
        let value = HeaderValue::from_str(&veena_client::format_duration(clamped)).expect("digits and units are a header value");
        answer.headers_mut().insert(WAIT_CLAMPED, value);
    }
    Ok(answer)
}

async fn lease(call: &Call<'_>, topic: TopicName, asked: &Asked) -> Result<Answer, Problem> {
    let state = call.state;
    // Whoever was answered empty because the node stops comes back at once: its leases would end with the node.
    if state.stopping.is_cancelled() {
        return Err(ConsumeError::Stopping.into());
    }
    let request = ConsumeRequest {
        tenant: call.tenant().clone(),
        topic: topic.clone(),
        partition: asked.partition,
        messages_max: asked.max.unwrap_or(1),
        bytes_max: limits::CONSUME_SCAN_BYTES_MAX,
        wait: asked.wait,
    };
    let mut waiting = Waiting { call, began: Instant::now(), outcome: WaitOutcome::Cancelled };
    let _held = if asked.wait.is_zero() { None } else { quota::hold_poll(call, &topic)? };
    let consume = state.parts.broker.consume(request);
    // A node that stops answers parked consumers at once: empty.
    let leased = if asked.wait.is_zero() {
        consume.await?
    } else {
        tokio::select! {
            biased;
            leased = consume => leased?,
            () = state.stopping.cancelled() => return Ok(answer::empty(StatusCode::NO_CONTENT)),
            problem = revoked(call) => return Err(problem),
            problem = cluster::until_taken_out(state) => return Err(problem),
        }
    };
    if leased.messages().is_empty() {
        waiting.outcome = if asked.wait.is_zero() { WaitOutcome::NoWait } else { WaitOutcome::Timeout };
        return Ok(answer::empty(StatusCode::NO_CONTENT));
    }
    // They may have come before anybody looked; what is refused goes back.
    call.look_again()?;
    waiting.outcome = WaitOutcome::Hit;
    Ok(write(call, &topic, leased, asked.max.is_some()))
}

/// Why a caller who is parked may no longer be served; told within [`limits::REVOCATION_LOOK_MS`] of when this node knows. While nothing
/// changes nobody looks.
async fn revoked(call: &Call<'_>) -> Problem {
    if call.caller.username().is_none() {
        return std::future::pending().await;
    }
    loop {
        let seen = call.state.view().applied;
        if let Err(problem) = call.look_again() {
            return problem;
        }
        // A key and a token end by themselves, without a change.
        if let Some(end_ms) = call.caller.ends_at_ms() {
            let left_ms = end_ms.saturating_sub(call.state.parts.clock.now_ms()).max(1);
            let changed = call.state.parts.catalog.changed(seen);
            if tokio::time::timeout(Duration::from_millis(left_ms), changed).await.is_err() {
                continue;
            }
        } else {
            call.state.parts.catalog.changed(seen).await;
        }
        // Of many changes the parked look at all at once.
        tokio::time::sleep(Duration::from_millis(limits::REVOCATION_LOOK_MS)).await;
    }
}

fn write(call: &Call<'_>, topic: &TopicName, mut leased: Deliveries, is_batch: bool) -> Answer {
    let mut out = Vec::new();
    if is_batch {
        let fitting = write_batch(&mut out, topic, &leased);
        leased.truncate(fitting);
    } else {
        message_json::write(&mut out, topic.as_str(), &leased.messages()[0]);
        leased.truncate(1);
    }
    quota::delivered(call, topic, leased.messages());
    out.push(b'\n');
    answer::json_bytes(StatusCode::OK, AnswerBody::with_leases(out, leased, call.conn.cloned()))
}

/// Writes as many messages as the answer's bound takes, at least one; says how many.
fn write_batch(out: &mut Vec<u8>, topic: &TopicName, leased: &Deliveries) -> usize {
    out.extend_from_slice(b"{\"messages\":[");
    let mut count = 0;
    for message in leased.messages() {
        let before = out.len();
        if count > 0 {
            out.push(b',');
        }
        message_json::write(out, topic.as_str(), message);
        if count > 0 && out.len() + 3 > limits::CONSUME_ANSWER_BYTES_MAX {
            out.truncate(before);
            break;
        }
        count += 1;
    }
    out.extend_from_slice(b"]}");
    count
}

async fn replay(call: &Call<'_>, topic: TopicName, partition: PartitionIndex, offset: Offset) -> Result<Answer, Problem> {
    let found = call.state.parts.broker.replay(call.tenant(), &topic, partition, offset).await?;
    let Some(message) = found else { return Ok(answer::empty(StatusCode::NO_CONTENT)) };
    let mut out = Vec::new();
    message_json::write(&mut out, topic.as_str(), &message);
    out.push(b'\n');
    quota::delivered(call, &topic, std::slice::from_ref(&message));
    call.state.parts.broker.usage().of(call.tenant()).on_delivered(1, message.counted_bytes());
    Ok(answer::json_bytes(StatusCode::OK, AnswerBody::plain(out)))
}

/// Counts how a wait ended, also when the client left.
struct Waiting<'a> {
    call: &'a Call<'a>,
    began: Instant,
    outcome: WaitOutcome,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.call.state.metrics.waited(self.outcome, self.began.elapsed());
    }
}

/// Where a consume reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    /// From the queue, under a lease.
    Queue,
    /// One message at its place, without a lease.
    Replay(PartitionIndex, Offset),
}

/// What a consume's query asks for.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    wait: Duration,
    clamped: Option<Duration>,
    partition: Option<PartitionIndex>,
    max: Option<usize>,
    from: From,
}

impl Asked {
    fn parse(text: Option<&str>, wait_max: Duration) -> Result<Self, Problem> {
        let (mut wait, mut partition, mut offset, mut max) = (None, None, None, None);
        let mut is_local = false;
        for (name, raw) in query::pairs(text) {
            match name.as_ref() {
                b"wait" => wait = wait.or(Some(raw)),
                b"partition" => partition = partition.or(Some(raw)),
                b"offset" => offset = offset.or(Some(raw)),
                b"max" => max = max.or(Some(raw)),
                b"local_only" => is_local |= raw == "1",
                _ => {}
            }
        }
        let wait = if is_local { Duration::ZERO } else { wait.map(wait_of).transpose()?.unwrap_or_default() };
        let partition = partition.filter(|raw| !raw.is_empty()).map(produce::partition).transpose()?;
        let offset = offset.filter(|raw| !raw.is_empty()).map(offset_of).transpose()?;
        let max = max.filter(|raw| !raw.is_empty()).map(max_of).transpose()?;
        let from = match (offset, partition) {
            (Some(_), _) if max.is_some() => return Err(Problem::invalid("max cannot be used with offset: a replay reads one message")),
            (Some(offset), Some(partition)) => From::Replay(partition, offset),
            (Some(_), None) => return Err(Problem::invalid("partition required for replay-mode consume")),
            (None, _) => From::Queue,
        };
        let clamped = (wait > wait_max).then_some(wait_max);
        Ok(Self { wait: wait.min(wait_max), clamped, partition, max, from })
    }
}

fn wait_of(raw: &str) -> Result<Duration, Problem> {
    let text = query::text(raw).map_err(|error| Problem::malformed(format!("invalid wait: {error}")))?;
    if text.is_empty() {
        return Ok(Duration::ZERO);
    }
    veena_client::parse_duration(&text)
        .map_err(|_| Problem::invalid(format!("invalid wait: {text:?} is not a duration such as 500ms or 10s")))
}

fn offset_of(raw: &str) -> Result<Offset, Problem> {
    let text = query::text(raw).map_err(|error| Problem::malformed(format!("invalid offset: {error}")))?;
    let number: i64 = text.parse().map_err(|_| Problem::invalid(format!("invalid offset: {text:?} is not an integer")))?;
    u64::try_from(number).map(Offset).map_err(|_| Problem::invalid("invalid offset: must be >= 0"))
}

fn max_of(raw: &str) -> Result<usize, Problem> {
    let bound = limits::CONSUME_BATCH_MESSAGES_MAX;
    let number = query::text(raw).ok().and_then(|text| text.parse::<usize>().ok());
    number
        .filter(|number| (1..=bound).contains(number))
        .ok_or_else(|| Problem::invalid(format!("invalid max: must be an integer from 1 to {bound}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_secs(10);

    #[test]
    fn a_query_is_read_with_its_defaults() {
        let asked = Asked::parse(None, MAX).expect("valid");
        assert_eq!((asked.wait, asked.clamped, asked.partition, asked.max, asked.from), (Duration::ZERO, None, None, None, From::Queue));
        let asked = Asked::parse(Some("wait=1m&max=100&partition=1&x=%zz"), MAX).expect("valid");
        assert_eq!((asked.wait, asked.clamped, asked.max), (MAX, Some(MAX), Some(100)));
        let asked = Asked::parse(Some("wait=-1s&offset=7&partition=1"), MAX).expect("valid");
        assert_eq!((asked.wait, asked.from), (Duration::ZERO, From::Replay(PartitionIndex(1), Offset(7))));
        assert_eq!(Asked::parse(Some("wait=5s&local_only=1"), MAX).expect("valid").wait, Duration::ZERO);
    }

    #[test]
    fn a_bad_query_is_refused_with_the_contracts_text() {
        for (text, want) in [
            ("wait=5", "invalid wait: "),
            ("partition=x", "invalid partition: "),
            ("partition=-1", "invalid partition: "),
            ("partition=0&offset=-1", "invalid offset: must be >= 0"),
            ("partition=0&offset=x", "invalid offset: "),
            ("offset=0", "partition required for replay-mode consume"),
            ("max=0", "invalid max: "),
            ("max=101", "invalid max: must be an integer from 1 to 100"),
            ("max=1&partition=0&offset=0", "max cannot be used with offset"),
        ] {
            let problem = Asked::parse(Some(text), MAX).expect_err("refused");
            assert_eq!(problem.status, 400);
            assert!(problem.text.starts_with(want), "{text}: {}", problem.text);
        }
    }
}
