//! `POST /v1/topics/{topic}/ack`: ack, extend or hand back one lease, or up to a hundred.

use std::fmt;

use http::StatusCode;
use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};
use veena_broker::errors::SettleError;
use veena_broker::message::{ReceiptHandle, Settle};
use veena_client::bodies::{AckResult, AckResults};
use veena_contract::limits;

use crate::answer::{self, Answer};
use crate::body::RequestBody;
use crate::cluster;
use crate::edge::Call;
use crate::json;
use crate::problem::Problem;
use crate::query;

/// Settles leases. The order of checks is the contract's: query, handle present, `extend`, handle's form, topic.
pub(crate) async fn ack(call: &Call<'_>, body: RequestBody) -> Result<Answer, Problem> {
    let text = call.query();
    let handle = query::first(text, "receipt_handle").map_err(|error| Problem::malformed(format!("invalid receipt_handle: {error}")))?;
    let extend = query::first(text, "extend").unwrap_or(Some("?".into()));
    match handle.filter(|handle| !handle.is_empty()) {
        Some(handle) => {
            let how = how(extend.as_deref())?;
            let handle: ReceiptHandle = handle.parse().map_err(malformed_handle)?;
            let topic = call.topic()?;
            cluster::confirm_partition(call, &topic, Some(handle.partition)).await?;
            let result = call.state.parts.broker.settle(call.tenant(), &topic, handle, how).await;
            count(call, &result);
            result?;
            Ok(answer::empty(StatusCode::NO_CONTENT))
        }
        None => Box::pin(ack_batch(call, body, extend.as_deref())).await,
    }
}

fn malformed_handle(error: veena_broker::message::MalformedHandle) -> Problem {
    Problem::malformed(error.to_string())
}

fn count(call: &Call<'_>, result: &Result<(), SettleError>) {
    if result.is_err() {
        call.state.metrics.settles_refused.add(1);
    }
}

fn how(extend: Option<&str>) -> Result<Settle, Problem> {
    match extend {
        None | Some("" | "false") => Ok(Settle::Ack),
        Some("true" | "1") => Ok(Settle::Extend),
        Some("0") => Ok(Settle::Nack),
        Some(_) => Err(Problem::invalid("invalid extend: want \"true\" (renew lease) or \"0\" (release for redelivery)")),
    }
}

async fn ack_batch(call: &Call<'_>, body: RequestBody, extend: Option<&str>) -> Result<Answer, Problem> {
    let body = call.body(body, limits::ACK_BATCH_BYTES_MAX).await?;
    if body.is_empty() {
        return Err(Problem::invalid("receipt_handle required"));
    }
    let how = how(extend)?;
    let Handles { list, total } = json::decode::<Batch>(&body)?.receipt_handles.unwrap_or_default();
    if total > limits::ACK_BATCH_HANDLES_MAX {
        return Err(Problem::invalid(format!("too many receipt_handles: more than {}", limits::ACK_BATCH_HANDLES_MAX)));
    }
    if list.is_empty() {
        return Err(Problem::invalid("receipt_handles required"));
    }
    let topic = call.topic()?;
    if call.known_topic(&topic).is_none() {
        return Err(Problem::topic_not_found());
    }
    let handles: Vec<Result<ReceiptHandle, _>> = list.iter().map(|text| text.parse()).collect();
    let whole: Vec<ReceiptHandle> = handles.iter().filter_map(|handle| handle.as_ref().ok().copied()).collect();
    let furthest = whole.iter().map(|handle| handle.partition).max();
    cluster::confirm_partition(call, &topic, furthest).await?;
    let settled = call.state.parts.broker.settle_batch(call.tenant(), &topic, &whole, how).await;
    settled.iter().for_each(|result| count(call, result));
    let mut settled = settled.into_iter();
    let results = handles.into_iter().map(|handle| {
        let settled = handle.map_err(malformed_handle).map(|_| settled.next().unwrap_or(Err(SettleError::NotReached)));
        result_of(settled.and_then(|result| result.map_err(Problem::from)))
    });
    Ok(answer::json(StatusCode::OK, &AckResults { results: results.collect() }))
}

fn result_of(result: Result<(), Problem>) -> AckResult {
    match result {
        Ok(()) => AckResult { status: 204, ..AckResult::default() },
        Err(problem) => AckResult {
            status: problem.status.as_u16(),
            code: Some(problem.code.as_str().to_owned()),
            effect: Some(problem.effect.as_str().to_owned()),
            error: Some(problem.text.into_owned()),
        },
    }
}

/// For the fuzzer: how many handles of a batch ack are kept, and how many there are.
pub(crate) fn count_handles(body: &[u8]) -> Option<(usize, usize)> {
    let Handles { list, total } = json::decode::<Batch>(body).ok()?.receipt_handles?;
    Some((list.len(), total))
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Batch {
    #[serde(default)]
    receipt_handles: Option<Handles>,
}

/// The handles, up to the bound; the rest is counted without being kept.
#[derive(Debug, Default)]
struct Handles {
    list: Vec<String>,
    total: usize,
}

impl<'de> Deserialize<'de> for Handles {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Handles;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of receipt handles")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Handles, A::Error> {
                let mut handles = Handles::default();
                while handles.total < limits::ACK_BATCH_HANDLES_MAX {
                    let Some(handle) = seq.next_element()? else { return Ok(handles) };
                    handles.list.push(handle);
                    handles.total += 1;
                }
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    handles.total += 1;
                }
                Ok(handles)
            }
        }
        deserializer.deserialize_seq(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extend_means_what_the_contract_says() {
        for (text, want) in [
            (None, Settle::Ack),
            (Some(""), Settle::Ack),
            (Some("false"), Settle::Ack),
            (Some("true"), Settle::Extend),
            (Some("1"), Settle::Extend),
            (Some("0"), Settle::Nack),
        ] {
            assert_eq!(how(text).expect("valid"), want);
        }
        for text in ["TRUE", "2", "nack", "00"] {
            let problem = how(Some(text)).expect_err("refused");
            assert_eq!(problem.text, "invalid extend: want \"true\" (renew lease) or \"0\" (release for redelivery)");
        }
    }

    #[test]
    fn handles_over_the_bound_are_counted_and_not_kept() {
        let text = format!("{{\"receipt_handles\":[{}]}}", vec!["\"1:2:3\""; 101].join(","));
        let handles = json::decode::<Batch>(text.as_bytes()).expect("valid").receipt_handles.expect("given");
        assert_eq!((handles.list.len(), handles.total), (100, 101));
        assert!(json::decode::<Batch>(br#"{"receipt_handles":[1]}"#).is_err());
        assert!(json::decode::<Batch>(br#"{"receipt_handle":["a"]}"#).is_err());
    }
}
