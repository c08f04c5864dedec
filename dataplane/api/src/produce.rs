//! `POST /v1/topics/{topic}/produce`: the body is the message.

use bytes::Bytes;
use http::StatusCode;
use veena_broker::errors::ProduceError;
use veena_broker::message::{Committed, NewMessage, WaitFor};
use veena_client::bodies;
use veena_contract::{ErrorCode, Key, PartitionIndex, TopicName, limits};

use crate::answer::{self, Answer};
use crate::body::RequestBody;
use crate::cluster;
use crate::edge::Call;
use crate::headers;
use crate::problem::Problem;
use crate::query;
use crate::quota;

/// Takes one message.
pub(crate) async fn produce(call: &Call<'_>, body: RequestBody) -> Result<Answer, Problem> {
    let max = call.state.config.max_produce_in_flight_per_identity;
    let identity = call.identity();
    let _in_flight = identity.as_ref().map(|identity| identity.produce(max).ok_or_else(|| too_many(max))).transpose()?;
    let result = accept(call, body).await;
    if result.is_err() {
        call.state.metrics.produce_refused.add(1);
    }
    result
}

pub(crate) fn too_many(max: usize) -> Problem {
    let text = format!("too many in-flight produce requests for this identity (limit {max} per node)");
    Problem::new(StatusCode::TOO_MANY_REQUESTS, ErrorCode::RateLimited, text)
}

async fn accept(call: &Call<'_>, body: RequestBody) -> Result<Answer, Problem> {
    let asked = Asked::parse(call.query())?;
    let idempotency_key = headers::idempotency_key(&call.parts.headers)?;
    let headers = headers::from_request(&call.parts.headers)?;
    let topic = call.topic()?;
    let payload = call.body(body, limits::MESSAGE_BYTES_MAX).await?;
    if payload.is_empty() {
        return Err(Problem::invalid("message required"));
    }
    cluster::confirm_partition(call, &topic, asked.partition).await?;
    check_schema(call, &topic, asked.partition, &payload).await?;
    let is_keyed = idempotency_key.is_some();
    let message = NewMessage { key: asked.key, partition: asked.partition, headers, idempotency_key, payload };
    let taken = quota::produced(call, &topic, std::slice::from_ref(&message))?;
    let outcome = store(call, &topic, message, asked.wait_for, is_keyed).await;
    quota::settle(call, &topic, taken, &outcome);
    outcome
}

async fn store(call: &Call<'_>, topic: &TopicName, message: NewMessage, wait_for: WaitFor, is_keyed: bool) -> Result<Answer, Problem> {
    match wait_for {
        WaitFor::Wal if !is_keyed => {
            call.state.parts.broker.produce(call.tenant(), topic, message).await?;
            Ok(answer::empty(StatusCode::ACCEPTED))
        }
        wait_for => {
            let committed = committed(call, topic, message).await?;
            let answer = match wait_for {
                WaitFor::Wal => answer::empty(StatusCode::ACCEPTED),
                WaitFor::Commit => answer::json(StatusCode::OK, &committed_body(&committed)),
            };
            Ok(headers::with_replayed(answer, committed.is_replayed))
        }
    }
}

async fn committed(call: &Call<'_>, topic: &TopicName, message: NewMessage) -> Result<Committed, Problem> {
    let whole = call.state.parts.broker.produce_committed(call.tenant(), topic, vec![message]).await;
    let mut results = whole.map_err(|error| Problem::from(error.error))?;
    Ok(results.pop().unwrap_or(Err(ProduceError::OutcomeUnknown))?)
}

fn committed_body(committed: &Committed) -> bodies::Committed {
    bodies::Committed {
        id: committed.id.to_string(),
        partition: committed.partition.get().into(),
        offset: committed.offset.get(),
        timestamp: committed.commit_ms / 1000,
    }
}

/// Only a topic with a schema is looked up here; the engine looks for itself.
async fn check_schema(call: &Call<'_>, topic: &TopicName, partition: Option<PartitionIndex>, payload: &Bytes) -> Result<(), Problem> {
    let Some(record) = call.known_topic(topic).filter(|record| record.schema().is_some()) else { return Ok(()) };
    if record.parent.as_ref().is_some_and(|link| link.delay_ms > 0) {
        return Err(ProduceError::DelayedChild.into());
    }
    if let Some(partition) = partition.filter(|partition| partition.get() >= record.partitions) {
        return Err(ProduceError::NoSuchPartition { partition: partition.get(), count: record.partitions }.into());
    }
    let checked = call.state.schemas.check(&call.state.metrics, &record, std::slice::from_ref(payload)).await;
    checked.map_err(|(_, problem)| problem)
}

/// What a produce's query asks for.
#[derive(Debug, Default)]
struct Asked {
    key: Option<Key>,
    partition: Option<PartitionIndex>,
    wait_for: WaitFor,
}

impl Asked {
    fn parse(text: Option<&str>) -> Result<Self, Problem> {
        let mut asked = Self::default();
        let (mut has_key, mut has_partition, mut has_wait) = (false, false, false);
        for (name, raw) in query::pairs(text) {
            match name.as_ref() {
                b"key" => {
                    if std::mem::replace(&mut has_key, true) {
                        return Err(Problem::invalid("duplicate key query parameter"));
                    }
                    let bytes = query::unescape(raw).map_err(|error| Problem::malformed(format!("invalid key: {error}")))?;
                    asked.key = Key::parse(Bytes::copy_from_slice(&bytes))?;
                }
                b"partition" => {
                    if std::mem::replace(&mut has_partition, true) {
                        return Err(Problem::invalid("duplicate partition query parameter"));
                    }
                    asked.partition = Some(partition(raw)?);
                }
                b"wait_for" if !std::mem::replace(&mut has_wait, true) => asked.wait_for = wait_for(raw)?,
                _ => {}
            }
        }
        Ok(asked)
    }
}

/// Reads a partition's number.
pub(crate) fn partition(raw: &str) -> Result<PartitionIndex, Problem> {
    let text = query::text(raw).map_err(|error| Problem::malformed(format!("invalid partition: {error}")))?;
    let number: i64 = text.parse().map_err(|_| Problem::invalid(format!("invalid partition: {text:?} is not an integer")))?;
    partition_index(number)
}

/// Checks a partition's number as far as that goes without its topic.
pub(crate) fn partition_index(number: i64) -> Result<PartitionIndex, Problem> {
    u32::try_from(number).map(PartitionIndex).map_err(|_| Problem::invalid(format!("invalid partition: {number} is out of range")))
}

/// Reads `wait_for`.
pub(crate) fn wait_for(raw: &str) -> Result<WaitFor, Problem> {
    match raw {
        "wal" => Ok(WaitFor::Wal),
        "commit" => Ok(WaitFor::Commit),
        _ => Err(Problem::invalid("invalid wait_for: want \"wal\" or \"commit\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_and_partition_are_read_from_the_query() {
        let asked = Asked::parse(Some("key=a%00+b&partition=2&other=%zz&wait_for=commit")).expect("valid");
        assert_eq!(asked.key.expect("a key").as_bytes().as_ref(), b"a\0 b");
        assert_eq!(asked.partition, Some(PartitionIndex(2)));
        assert_eq!(asked.wait_for, WaitFor::Commit);
        let empty = Asked::parse(Some("key=")).expect("an empty key is none");
        assert!(empty.key.is_none() && empty.partition.is_none());
    }

    #[test]
    fn a_bad_query_is_refused_with_the_contracts_text() {
        for (text, want) in [
            ("key=a&key=b", "duplicate key query parameter"),
            ("partition=1&partition=1", "duplicate partition query parameter"),
            ("partition=", "invalid partition: "),
            ("partition=-1", "invalid partition: "),
            ("partition=1e3", "invalid partition: "),
            ("partition=99999999999", "invalid partition: "),
            ("key=%zz", "invalid key: "),
            ("wait_for=disk", "invalid wait_for: "),
        ] {
            let problem = Asked::parse(Some(text)).expect_err("refused");
            assert_eq!(problem.status, 400);
            assert!(problem.text.starts_with(want), "{text}: {}", problem.text);
        }
        let long = format!("key={}", "x".repeat(limits::KEY_BYTES_MAX + 1));
        assert!(Asked::parse(Some(&long)).is_err());
    }
}
