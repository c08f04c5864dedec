//! `POST /v1/topics/{topic}/produce/batch`: all or none, or one result per message with `wait_for=commit`.

use bytes::Bytes;
use http::StatusCode;
use veena_broker::errors::ProduceError;
use veena_broker::message::{Committed, NewMessage, WaitFor};
use veena_client::bodies::{BatchAccepted, CommitResult, CommitResults};
use veena_contract::{Effect, ErrorCode, TopicName, limits};

use crate::answer::{self, Answer};
use crate::batch_body::{self, Encoding};
use crate::body::{self, BodyLimits, RequestBody};
use crate::budget::Reserved;
use crate::cluster;
use crate::edge::Call;
use crate::headers;
use crate::problem::Problem;
use crate::produce;
use crate::query;
use crate::quota;

/// Bodies over this size, and packed ones, are read on a thread that may block.
const INLINE_BYTES_MAX: usize = 128 * 1024;

/// Takes many messages.
pub(crate) async fn produce_batch(call: &Call<'_>, body: RequestBody) -> Result<Answer, Problem> {
    let max = call.state.config.max_produce_in_flight_per_identity;
    let identity = call.identity();
    let _in_flight = identity.as_ref().map(|identity| identity.produce(max).ok_or_else(|| produce::too_many(max))).transpose()?;
    let result = accept(call, body).await;
    if let Err(problem) = &result {
        call.state.metrics.produce_refused.add(1);
        if problem.code == ErrorCode::Overloaded && problem.text.starts_with("batch produce bodies") {
            call.state.metrics.budget_refused.add(1);
        }
    }
    result
}

async fn accept(call: &Call<'_>, body: RequestBody) -> Result<Answer, Problem> {
    let wait_for = parse_query(call.query())?;
    headers::refuse_idempotency_key(&call.parts.headers)?;
    let encoding = Encoding::of(&call.parts.headers)?;
    let topic = call.topic()?;
    let mut reserved = call.state.batch_budget.empty();
    let bounds = BodyLimits {
        bytes_max: limits::PRODUCE_BATCH_BYTES_MAX,
        stall: call.state.config.read_timeout,
        reserve: Some((limits::PRODUCE_BATCH_FREE_BYTES_MAX, &mut reserved)),
    };
    let packed = body::read(body, bounds).await?;
    call.look_again()?;
    let (messages, _reserved) = read_messages(packed, encoding, reserved).await?;
    let furthest = messages.iter().filter_map(|message| message.partition).max();
    cluster::confirm_partition(call, &topic, furthest).await?;
    let record = call.known_topic(&topic).ok_or_else(Problem::topic_not_found)?;
    if record.parent.as_ref().is_some_and(|link| link.delay_ms > 0) {
        return Err(ProduceError::DelayedChild.into());
    }
    let misplaced = messages.iter().enumerate().find_map(|(index, message)| {
        let partition = message.partition.filter(|partition| partition.get() >= record.partitions)?;
        let error = ProduceError::NoSuchPartition { partition: partition.get(), count: record.partitions };
        Some((index, Problem::from(error)))
    });
    // The first message that is refused for whatever reason is the one to be named.
    let judged = misplaced.as_ref().map_or(messages.len(), |(index, _)| *index);
    let payloads: Vec<Bytes> = messages[..judged].iter().map(|message| message.payload.clone()).collect();
    let checked = call.state.schemas.check(&call.state.metrics, &record, &payloads).await;
    checked.map_err(|(index, problem)| match index {
        Some(index) => problem.of_message(index),
        None => problem,
    })?;
    if let Some((index, problem)) = misplaced {
        return Err(problem.of_message(index));
    }
    let taken = quota::produced(call, &topic, &messages)?;
    let outcome = store(call, &topic, messages, wait_for).await;
    quota::settle(call, &topic, taken, &outcome);
    outcome
}

async fn store(call: &Call<'_>, topic: &TopicName, messages: Vec<NewMessage>, wait_for: WaitFor) -> Result<Answer, Problem> {
    let accepted = BatchAccepted { accepted: messages.len() as u64 };
    if wait_for == WaitFor::Wal && messages.iter().all(|message| message.idempotency_key.is_none()) {
        call.state.parts.broker.produce_batch(call.tenant(), topic, messages).await?;
        return Ok(answer::json(StatusCode::ACCEPTED, &accepted));
    }
    let results = call.state.parts.broker.produce_committed(call.tenant(), topic, messages).await?;
    let is_replayed = results.iter().all(|result| result.as_ref().is_ok_and(|committed| committed.is_replayed));
    let answer = match wait_for {
        WaitFor::Wal => {
            all_accepted(&results)?;
            answer::json(StatusCode::ACCEPTED, &accepted)
        }
        WaitFor::Commit => answer::json(StatusCode::OK, &CommitResults { results: results.into_iter().map(commit_result).collect() }),
    };
    Ok(headers::with_replayed(answer, is_replayed))
}

/// The one answer to a batch with idempotency keys. A refusal says that nothing of the batch was stored: that is certain only if no message
/// was stored by it, and none may have been. Else the outcome is unknown, as far as one answer can tell; a repeat finds out.
fn all_accepted(results: &[Result<Committed, ProduceError>]) -> Result<(), Problem> {
    let is_untouched = results.iter().all(|result| match result {
        Ok(committed) => committed.is_replayed,
        Err(error) => error.effect() == Effect::None,
    });
    let Some((index, error)) = results.iter().enumerate().find_map(|(index, result)| Some((index, result.as_ref().err()?))) else {
        return Ok(());
    };
    if is_untouched {
        return Err(Problem::from(error.clone()).of_message(index));
    }
    let text = format!("message {index}: {error}; others of the batch were stored, send it again with the same keys");
    Err(Problem::new(StatusCode::BAD_GATEWAY, ErrorCode::OutcomeUnknown, text))
}

/// Unpacking and reading megabytes would hold up every other request of this thread.
async fn read_messages(packed: Bytes, encoding: Encoding, mut reserved: Reserved) -> Result<(Vec<NewMessage>, Reserved), Problem> {
    let is_small = packed.len() <= INLINE_BYTES_MAX && encoding == Encoding::None;
    let read = move || {
        let whole = batch_body::unpack(packed, encoding, &mut reserved, limits::PRODUCE_BATCH_FREE_BYTES_MAX)?;
        Ok((batch_body::messages(&whole)?, reserved))
    };
    if is_small {
        return read();
    }
    let crashed = |_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Internal, "internal server panic");
    tokio::task::spawn_blocking(read).await.map_err(crashed)?
}

fn parse_query(text: Option<&str>) -> Result<WaitFor, Problem> {
    let mut wait_for = None;
    for (name, raw) in query::pairs(text) {
        match name.as_ref() {
            b"key" => return Err(Problem::invalid("key is set per message in a batch produce, not as a query parameter")),
            b"partition" => return Err(Problem::invalid("partition is set per message in a batch produce, not as a query parameter")),
            b"wait_for" if wait_for.is_none() => wait_for = Some(produce::wait_for(raw)?),
            _ => {}
        }
    }
    Ok(wait_for.unwrap_or_default())
}

fn commit_result(result: Result<Committed, ProduceError>) -> CommitResult {
    match result {
        Ok(done) => CommitResult {
            status: 200,
            id: Some(done.id.to_string()),
            partition: Some(done.partition.get().into()),
            offset: Some(done.offset.get()),
            replayed: done.is_replayed.then_some(true),
            ..CommitResult::default()
        },
        Err(error) => {
            let problem = Problem::from(error);
            CommitResult {
                status: problem.status.as_u16(),
                code: Some(problem.code.as_str().to_owned()),
                effect: Some(problem.effect.as_str().to_owned()),
                error: Some(problem.text.into_owned()),
                ..CommitResult::default()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use veena_contract::{MessageId, Offset, PartitionIndex, StreamId};

    use super::*;

    #[test]
    fn a_batch_is_refused_only_when_nothing_of_it_was_stored() {
        let done = |is_replayed| {
            let id = MessageId { stream: StreamId(1), sequence: 2 };
            Ok(Committed { id, partition: PartitionIndex(0), offset: Offset(1), commit_ms: 5, is_replayed })
        };
        let status = |results: &[Result<Committed, ProduceError>]| {
            all_accepted(results).map_or_else(|problem| (problem.status.as_u16(), problem.effect), |()| (202, Effect::Possible))
        };
        assert_eq!(status(&[done(false), done(true)]).0, 202);
        assert_eq!(status(&[done(true), Err(ProduceError::KeyReused), Err(ProduceError::OwnerDown)]), (409, Effect::None));
        assert_eq!(status(&[done(false), Err(ProduceError::KeyReused)]), (502, Effect::Possible));
        assert_eq!(status(&[Err(ProduceError::OwnerDown), Err(ProduceError::OutcomeUnknown)]), (502, Effect::Possible));
    }

    #[test]
    fn key_and_partition_have_no_place_in_the_query() {
        assert_eq!(parse_query(Some("wait_for=commit&x=1")).expect("valid"), WaitFor::Commit);
        assert_eq!(parse_query(None).expect("valid"), WaitFor::Wal);
        for name in ["key", "partition"] {
            let problem = parse_query(Some(&format!("{name}=1"))).expect_err("refused");
            assert_eq!(problem.text, format!("{name} is set per message in a batch produce, not as a query parameter"));
        }
    }
}
