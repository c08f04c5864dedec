//! Is a payload valid? Compiled schemas are kept; large payloads wait for one of a few slots.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use jsonschema::{PatternOptions, Validator};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use veena_contract::{ErrorCode, TopicId, TopicRecord, limits};

use super::{cut, payload};
use crate::metrics::Metrics;
use crate::problem::Problem;

/// Payloads and documents over this size are read under a slot, on a thread that may block.
pub(super) const INLINE_BYTES_MAX: usize = 16 * 1024;
const SLOT_WAIT: Duration = Duration::from_millis(limits::SCHEMA_SLOT_WAIT_MS_MAX);

/// Compiled schemas and the slots for large payloads.
pub(crate) struct Schemas {
    compiled: Compiled,
    slots: Arc<Semaphore>,
}

/// By topic and version.
type Validators = BTreeMap<(TopicId, u32), Arc<Validator>>;

#[derive(Clone, Default)]
struct Compiled(Arc<Mutex<Validators>>);

impl Default for Schemas {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { compiled: Compiled::default(), slots: Arc::new(Semaphore::new(cores)) }
    }
}

/// A payload was refused: which of those given, and why; no number when none of them is to blame.
pub(crate) type Refused = (Option<usize>, Problem);

impl Schemas {
    /// Checks payloads against their topic's newest schema, if there is one.
    pub(crate) async fn check(&self, metrics: &Metrics, topic: &TopicRecord, payloads: &[Bytes]) -> Result<(), Refused> {
        let Some(schema) = topic.schema() else { return Ok(()) };
        let began = Instant::now();
        let key = (topic.id, schema.version);
        let bytes: usize = payloads.iter().map(Bytes::len).sum();
        let is_quick = self.compiled.knows(key) || schema.document.len() <= INLINE_BYTES_MAX;
        let result = if is_quick && bytes <= INLINE_BYTES_MAX {
            self.compiled.check(key, &schema.document, payloads)
        } else {
            self.check_apart(key, Arc::clone(&schema.document), payloads.to_vec()).await
        };
        metrics.schema_seconds.observe(began.elapsed());
        if result.is_err() {
            metrics.schema_refused.add(1);
        }
        result
    }

    /// On a thread that may block, when one of the slots is free.
    async fn check_apart(&self, key: (TopicId, u32), document: Arc<str>, payloads: Vec<Bytes>) -> Result<(), Refused> {
        let busy = || {
            let text = "schema: validation capacity busy, retry: no schema validation slot on this node freed up within 5s, so the payload \
                        was not validated; retry, preferably through another node";
            (None, Problem::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::ValidationBusy, text))
        };
        let slot = timeout(SLOT_WAIT, Arc::clone(&self.slots).acquire_owned()).await.ok().and_then(Result::ok).ok_or_else(busy)?;
        let compiled = self.compiled.clone();
        let checked = tokio::task::spawn_blocking(move || {
            let _slot = slot;
            compiled.check(key, &document, &payloads)
        });
        checked.await.map_err(|_| (None, unusable("the validation did not end")))?
    }
}

impl Compiled {
    fn knows(&self, key: (TopicId, u32)) -> bool {
        self.0.lock().contains_key(&key)
    }

    fn check(&self, key: (TopicId, u32), document: &str, payloads: &[Bytes]) -> Result<(), Refused> {
        let validator = self.validator(key, document).map_err(|problem| (None, problem))?;
        payloads.iter().enumerate().try_for_each(|(nth, payload)| validate(&validator, payload).map_err(|problem| (Some(nth), problem)))
    }

    fn validator(&self, key: (TopicId, u32), document: &str) -> Result<Arc<Validator>, Problem> {
        if let Some(known) = self.0.lock().get(&key) {
            return Ok(Arc::clone(known));
        }
        let document = payload::parse(document.as_bytes(), limits::SCHEMA_DEPTH_MAX).map_err(|error| unusable(&error.to_string()))?;
        let validator = Arc::new(compile(&document).map_err(|reason| unusable(&reason))?);
        let mut compiled = self.0.lock();
        // An older version of the topic is of no more use; beyond that any will do, it is compiled again when it is needed.
        let old: Vec<_> = compiled.range((key.0, 0)..key).map(|(key, _)| *key).collect();
        old.iter().for_each(|key| drop(compiled.remove(key)));
        while compiled.len() >= limits::SCHEMAS_COMPILED_MAX {
            compiled.pop_first();
        }
        compiled.insert(key, Arc::clone(&validator));
        Ok(validator)
    }
}

fn unusable(reason: &str) -> Problem {
    let text = cut(format!("produce failed: the topic's schema cannot be used: {reason}"));
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Internal, text).effect(veena_contract::Effect::None)
}

/// Compiles a document. Formats are asserted; patterns are linear in the text.
pub(crate) fn compile(document: &Value) -> Result<Validator, String> {
    let build = || {
        jsonschema::options()
            .with_pattern_options(
                PatternOptions::regex().size_limit(limits::SCHEMA_PATTERN_BYTES_MAX).dfa_size_limit(limits::SCHEMA_PATTERN_BYTES_MAX),
            )
            .should_validate_formats(true)
            .build(document)
            .map_err(|error| error.to_string())
    };
    catch_unwind(AssertUnwindSafe(build)).unwrap_or_else(|_| Err("the document cannot be compiled".into()))
}

/// Checks one payload, here and now.
pub(crate) fn validate(validator: &Validator, payload: &[u8]) -> Result<(), Problem> {
    let refuse = |reason: String| {
        let text = cut(format!("invalid argument: schema: {reason}"));
        Err(Problem::new(StatusCode::BAD_REQUEST, ErrorCode::SchemaViolation, text))
    };
    let value = match payload::parse(payload, limits::PAYLOAD_DEPTH_MAX) {
        Ok(value) => value,
        Err(error) => return refuse(error.to_string()),
    };
    let check = || validator.validate(&value).map_err(|error| format!("{}: {error}", error.instance_path()));
    match catch_unwind(AssertUnwindSafe(check)) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(reason)) => refuse(reason),
        Err(_) => Err(unusable("it panicked on this payload")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use veena_contract::{SchemaVersion, TenantId, TopicName};

    use super::*;

    fn topic(id: u64, document: &Value) -> TopicRecord {
        TopicRecord {
            tenant: TenantId::default_tenant(),
            name: TopicName::parse("t").expect("a name"),
            id: TopicId(id),
            partitions: 1,
            earlier_partitions: Vec::new(),
            retention_ms: 0,
            retention_bytes: 0,
            visibility_timeout_ms: 1,
            max_in_flight_per_partition: 1,
            max_acked_ahead_per_partition: 1,
            dedup_window_ms: 0,
            reroute: veena_contract::Reroute::Auto,
            created_at_ms: 0,
            owner: None,
            parent: None,
            children: Vec::new(),
            schemas: vec![SchemaVersion { version: 1, document: Arc::from(document.to_string()) }],
            owners: Vec::new(),
            revision: 0,
        }
    }

    async fn check(schemas: &Schemas, topic: &TopicRecord, payload: impl Into<Bytes>) -> Result<(), Problem> {
        schemas.check(&Metrics::default(), topic, &[payload.into()]).await.map_err(|(_, problem)| problem)
    }

    #[tokio::test]
    async fn a_valid_payload_passes_and_an_invalid_one_is_told_why() {
        let schemas = Schemas::default();
        let topic = topic(
            1,
            &json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "integer", "format": "x"}, "when": {"format": "date"}}}),
        );
        assert!(check(&schemas, &topic, r#"{"a":1}"#).await.is_ok());
        assert!(check(&schemas, &topic, format!(r#"{{"a":1,"pad":"{}"}}"#, "x".repeat(100_000))).await.is_ok());
        for payload in ["{}", r#"{"a":"x"}"#, "not json", r#"{"a":1} 2"#, r#"{"a":1,"when":"yesterday"}"#, r#"{"a":1e2000}"#] {
            let problem = check(&schemas, &topic, payload).await.expect_err("refused");
            assert_eq!((problem.status.as_u16(), problem.code.as_str(), problem.effect.as_str()), (400, "schema_violation", "none"));
            assert!(problem.text.starts_with("invalid argument: schema: "), "{}", problem.text);
        }
        let large = format!(r#"{{"pad":"{}"}}"#, "x".repeat(100_000));
        assert!(check(&schemas, &topic, large).await.expect_err("refused").text.len() < 2100);
    }

    #[tokio::test]
    async fn a_payload_at_the_depth_limit_is_checked_and_one_level_more_is_refused() {
        let schemas = Schemas::default();
        let topic = topic(1, &json!({"items": {"$ref": "#"}, "type": "array"}));
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(check(&schemas, &topic, nested(256)).await.is_ok());
        let problem = check(&schemas, &topic, nested(257)).await.expect_err("too deep");
        assert!(problem.text.contains("payload nests deeper than 256 levels"));
        // One level is the wrong kind of thing, at the very bottom of a wide payload.
        let wide = format!("[{}{}]", nested(200).replace("[]", &format!("[{}[1]]", "[],".repeat(5_000))), ",[]".repeat(5_000));
        let problem = check(&schemas, &topic, wide).await.expect_err("no list");
        assert!(problem.text.len() < 2100, "{} bytes of text", problem.text.len());
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_slot_a_large_payload_is_not_taken() {
        let schemas = Schemas { slots: Arc::new(Semaphore::new(0)), ..Schemas::default() };
        let topic = topic(1, &json!(true));
        assert!(check(&schemas, &topic, "1").await.is_ok());
        let problem = check(&schemas, &topic, format!("\"{}\"", "x".repeat(20_000))).await.expect_err("no slot");
        assert_eq!((problem.status.as_u16(), problem.code.as_str()), (503, "validation_busy"));
        assert!(problem.text.contains("no schema validation slot"));
    }

    #[tokio::test]
    async fn compiled_schemas_are_bounded() {
        let schemas = Schemas::default();
        for id in 0..(limits::SCHEMAS_COMPILED_MAX as u64 + 10) {
            assert!(check(&schemas, &topic(id, &json!(true)), "1").await.is_ok());
        }
        assert_eq!(schemas.compiled.0.lock().len(), limits::SCHEMAS_COMPILED_MAX);
    }
}
