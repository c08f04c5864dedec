//! Topics: create, list, describe, delete, and a topic's schema history.

use std::ops::Bound;
use std::sync::Arc;

use http::StatusCode;
use veena_broker::errors::ConsumeError;
use veena_broker::message;
use veena_client::bodies::{CreateTopic, PartitionStats, SchemaEntry, SchemaHistory, Topic, TopicDetail, TopicList};
use veena_contract::records::Attachment;
use veena_contract::{
    Action, AttachEpoch, CatalogView, Command, NodeId, Ownership, OwnershipEpoch, PartitionIndex, SchemaVersion, Standing, StreamId,
    TopicId, TopicName, TopicRecord, limits,
};

use crate::answer::{self, Answer};
use crate::body::RequestBody;
use crate::catalog;
use crate::cluster::{self, Places};
use crate::edge::Call;
use crate::json;
use crate::problem::Problem;
use crate::produce;
use crate::query;
use crate::schema;
use crate::shape;
use crate::state::ApiState;

/// `POST /v1/topics`.
pub(crate) async fn create(call: &Call<'_>, body: RequestBody) -> Result<Answer, Problem> {
    let body = call.body(body, limits::JSON_BODY_BYTES_MAX).await?;
    let asked: CreateTopic = json::decode(&body)?;
    let name = TopicName::parse(&asked.name)?;
    let parent = asked.parent.as_deref().filter(|parent| !parent.is_empty()).map(TopicName::parse).transpose()?;
    if parent.is_none() && asked.fanout_delay_ms.is_some_and(|delay| delay != 0) {
        return Err(Problem::invalid("invalid argument: fanout_delay_ms needs a parent"));
    }
    let delay_ms = delay("fanout_delay_ms", asked.fanout_delay_ms)?;
    may_create(call, &name, parent.as_ref()).await?;
    let document = match &asked.schema {
        Some(raw) => Some(schema::admit(raw.get()).await?),
        None => None,
    };
    let mut record = new_record(call, &name, &asked)?;
    record.id = fresh_id(call, &call.state.view());
    record.schemas = document.map(|document| SchemaVersion { version: 1, document }).into_iter().collect();

    let places = Places::find(call.state).await;
    let Some(parent) = parent else {
        let command = |view: &CatalogView| Ok(Command::CreateTopic { topic: placed(&places, view, record.clone(), &[])?, attach: None });
        let view = catalog::propose(call, command).await?;
        return created(call, &view, &name, |topic| Topic { role: None, ..topic });
    };
    let inherits = asked.partitions.unwrap_or(0) == 0;
    let view = propose_attached(call, &parent, delay_ms, |view, attachment| {
        let mut topic = record.clone();
        let parent = catalog::managed(call, view, &parent)?;
        if inherits {
            topic.partitions = parent.partitions;
        }
        Ok(Command::CreateTopic { topic: placed(&places, view, topic, &parent.owners)?, attach: Some(attachment) })
    })
    .await?;
    created(call, &view, &name, |topic| topic)
}

/// What the caller needs who creates a topic: the grant, and the parent.
async fn may_create(call: &Call<'_>, name: &TopicName, parent: Option<&TopicName>) -> Result<(), Problem> {
    call.caller.may(Action::Create, name)?;
    if let Some(parent) = parent {
        cluster::confirm(call, parent).await?;
        catalog::managed(call, &call.state.view(), parent)?;
    }
    Ok(())
}

/// With an owner for each partition, in a cluster. The epoch is set by the state machine.
fn placed(places: &Places, view: &CatalogView, topic: TopicRecord, parent: &[Ownership]) -> Result<TopicRecord, Problem> {
    let owners = places.owners(view, topic.id, &[], parent, topic.partitions)?;
    Ok(TopicRecord { owners: owners.into_iter().map(|node| Ownership::new(node, OwnershipEpoch::default())).collect(), ..topic })
}

fn created(call: &Call<'_>, view: &CatalogView, name: &TopicName, change: fn(Topic) -> Topic) -> Result<Answer, Problem> {
    let record = catalog::topic(call, view, name)?;
    Ok(answer::json(StatusCode::CREATED, &change(shape::topic(view, record))))
}

/// Proposes a command with a link to `parent`. The link's offsets belong to the incarnation they were read from: when that has changed, the
/// link is made anew, once.
pub(crate) async fn propose_attached(
    call: &Call<'_>,
    parent: &TopicName,
    delay_ms: u64,
    command: impl Fn(&CatalogView, Attachment) -> Result<Command, Problem>,
) -> Result<Arc<CatalogView>, Problem> {
    let link = attachment(call, parent, delay_ms).await?;
    match catalog::propose_once(call, command(&call.state.view(), link)?).await {
        Err(error) if catalog::is_changed(&error) => {
            let link = attachment(call, parent, delay_ms).await?;
            Ok(catalog::propose_once(call, command(&call.state.view(), link)?).await?)
        }
        other => Ok(other?),
    }
}

/// Mints a link to `parent` that starts at the parent's high watermarks as they are now.
async fn attachment(call: &Call<'_>, parent: &TopicName, delay_ms: u64) -> Result<Attachment, Problem> {
    let parent_id = catalog::topic(call, &call.state.view(), parent)?.id;
    let attach_offsets = call.state.parts.broker.attach_offsets(call.tenant(), parent).await?;
    let (epoch, stream) = (AttachEpoch(call.random()), StreamId(call.state.parts.entropy.next_u128()));
    Ok(Attachment { parent: parent.clone(), parent_id, epoch, stream, delay_ms, attach_offsets })
}

fn new_record(call: &Call<'_>, name: &TopicName, asked: &CreateTopic) -> Result<TopicRecord, Problem> {
    let state = call.state;
    let defaults = &state.config.topics;
    let or_default = |value: Option<u64>, default: u64| value.filter(|value| *value > 0).unwrap_or(default);
    Ok(TopicRecord {
        tenant: call.tenant().clone(),
        name: name.clone(),
        id: TopicId(0),
        partitions: partitions(state, asked.partitions)?,
        earlier_partitions: Vec::new(),
        retention_ms: retention_ms(asked.retention_ms)?.unwrap_or(defaults.retention_ms),
        retention_bytes: retention_bytes(asked.retention_bytes)?.unwrap_or(0),
        visibility_timeout_ms: or_default(
            at_most("visibility_timeout_ms", limits::VISIBILITY_TIMEOUT_MS_MAX, asked.visibility_timeout_ms)?,
            defaults.visibility_timeout_ms,
        ),
        max_in_flight_per_partition: or_default(
            positive("max_in_flight_per_partition", asked.max_in_flight_per_partition)?,
            defaults.max_in_flight_per_partition,
        ),
        max_acked_ahead_per_partition: or_default(
            positive("max_acked_ahead_per_partition", asked.max_acked_ahead_per_partition)?,
            defaults.max_acked_ahead_per_partition,
        ),
        dedup_window_ms: dedup_window_ms(asked.dedup_window_ms)?.unwrap_or(limits::DEDUP_WINDOW_MS_DEFAULT),
        reroute: asked.reroute.unwrap_or_default(),
        created_at_ms: state.parts.clock.now_ms(),
        owner: call.caller.username().map(ToString::to_string),
        parent: None,
        children: Vec::new(),
        schemas: Vec::new(),
        owners: Vec::new(),
        revision: 0,
    })
}

/// An id that no living topic has; zero is nobody's.
fn fresh_id(call: &Call<'_>, view: &CatalogView) -> TopicId {
    loop {
        let id = TopicId(call.random());
        if id.0 != 0 && view.topic_by_id(id).is_none() {
            return id;
        }
    }
}

fn partitions(state: &ApiState, asked: Option<i64>) -> Result<u32, Problem> {
    let bounds = &state.config.topics;
    match asked.unwrap_or(0) {
        0 => Ok(bounds.partitions),
        asked => checked_partitions(state, asked),
    }
}

/// A count of partitions within the node's bounds.
pub(crate) fn checked_partitions(state: &ApiState, asked: i64) -> Result<u32, Problem> {
    let (min, max) = (state.config.topics.min_partitions, state.config.topics.max_partitions);
    let count = u32::try_from(asked).ok().filter(|count| (min..=max).contains(count));
    count.ok_or_else(|| Problem::invalid(format!("invalid argument: partitions must be from {min} to {max}, not {asked}")))
}

/// A value that may not be negative.
pub(crate) fn positive(name: &str, value: Option<i64>) -> Result<Option<u64>, Problem> {
    value
        .map(|value| u64::try_from(value).map_err(|_| Problem::invalid(format!("invalid argument: {name} must not be negative"))))
        .transpose()
}

/// Retention by time: 0 is for ever.
pub(crate) fn retention_ms(value: Option<i64>) -> Result<Option<u64>, Problem> {
    let min = limits::RETENTION_MS_MIN;
    at_least("retention_ms", min, value)
}

/// Retention by size: 0 is no bound.
pub(crate) fn retention_bytes(value: Option<i64>) -> Result<Option<u64>, Problem> {
    at_least("retention_bytes", limits::RETENTION_BYTES_MIN, value)
}

fn at_least(name: &str, min: u64, value: Option<i64>) -> Result<Option<u64>, Problem> {
    match positive(name, value)? {
        Some(value) if value != 0 && value < min => {
            Err(Problem::invalid(format!("invalid argument: {name} must be 0 or at least {min}, not {value}")))
        }
        value => Ok(value),
    }
}

/// The window for idempotency keys.
pub(crate) fn dedup_window_ms(value: Option<i64>) -> Result<Option<u64>, Problem> {
    let max = limits::DEDUP_WINDOW_MS_MAX;
    at_most("dedup_window_ms", max, value)
}

/// A child's delay.
pub(crate) fn delay(name: &str, value: Option<i64>) -> Result<u64, Problem> {
    Ok(at_most(name, limits::DELAY_MS_MAX, value)?.unwrap_or(0))
}

fn at_most(name: &str, max: u64, value: Option<i64>) -> Result<Option<u64>, Problem> {
    match positive(name, value)? {
        Some(value) if value > max => Err(Problem::invalid(format!("invalid argument: {name} must be at most {max}, not {value}"))),
        value => Ok(value),
    }
}

/// `GET /v1/topics`.
pub(crate) fn list(call: &Call<'_>) -> Result<Answer, Problem> {
    let query::Page { limit, after } = query::page(call.query())?;
    let after = after.map(|token| TopicName::parse(&token)).transpose().map_err(|_| query::bad_page_token())?;
    let view = call.state.view();
    let tenant = call.tenant();
    let from = match after {
        Some(name) => Bound::Excluded((tenant.clone(), name)),
        None => Bound::Included((tenant.clone(), TopicName::least())),
    };
    let mut rest = view.topics.range((from, Bound::Unbounded)).take_while(|((owner, _), _)| owner == tenant).map(|(_, record)| record);
    let page: Vec<&Arc<TopicRecord>> = rest.by_ref().take(limit).collect();
    let has_more = rest.next().is_some();
    let next_page_token = page.last().filter(|_| has_more).map_or_else(String::new, |record| record.name.to_string());
    // A page may have fewer topics than asked for, or none: the rest of it is not theirs to see.
    let topics = page.iter().filter(|record| call.caller.may_see(record).is_ok()).map(|record| shape::topic(&view, record)).collect();
    Ok(answer::json(StatusCode::OK, &TopicList { topics, next_page_token }))
}

/// `GET /v1/topics/{topic}`.
pub(crate) async fn describe(call: &Call<'_>) -> Result<Answer, Problem> {
    let name = call.topic()?;
    let malformed = |error: query::BadEscape| Problem::malformed(format!("invalid partition: {error}"));
    let only = query::first(call.query(), "partition").map_err(malformed)?;
    let only = only.filter(|text| !text.is_empty()).map(|text| produce::partition(&text)).transpose()?;
    cluster::confirm_partition(call, &name, only).await?;
    let view = call.state.view();
    let record = catalog::topic(call, &view, &name)?;
    if let Some(partition) = only.filter(|partition| partition.get() >= record.partitions) {
        return Err(ConsumeError::NoSuchPartition { partition: partition.get(), count: record.partitions }.into());
    }
    let stats = call.state.parts.broker.describe(call.tenant(), &name, only).await?;
    let first = only.map_or(0, PartitionIndex::get);
    // Of a partition that nobody was ever named for, the owner is the only node there is.
    let owner_of = |index| record.owner_of(PartitionIndex(index)).map_or(&call.state.parts.node, |owner| &owner.node);
    let stats = (first..).zip(stats).map(|(index, stats)| partition_stats(call.state, index, stats, owner_of(index)));
    let partition_stats: Vec<_> = stats.collect();
    let described = TopicDetail {
        partial: partition_stats.iter().any(|stats| stats.status.as_deref() != Some("ok")),
        topic: shape::topic(&view, record),
        schema_version: record.schema().map_or(0, |schema| schema.version.into()),
        schema: record.schema().map(|schema| shape::document(&schema.document)),
        partition_stats,
    };
    Ok(answer::json(StatusCode::OK, &described))
}

fn partition_stats(state: &ApiState, index: u32, stats: Option<message::PartitionStats>, owner: &NodeId) -> PartitionStats {
    let liveness = match state.parts.cluster.as_ref().map(|cluster| cluster.standing(owner)) {
        Some(Standing::Dead) => "dead",
        Some(Standing::NotAMember) => "unknown",
        Some(Standing::Alive) | None => "unreachable",
    };
    let placeholder = PartitionStats {
        index: index.into(),
        owner_node: Some(owner.to_string()),
        status: Some("owner_unavailable".to_owned()),
        owner_liveness: Some(liveness.to_owned()),
        frontier: Some(0),
        leased: Some(0),
        acked_ahead: Some(0),
        ..PartitionStats::default()
    };
    let Some(stats) = stats else { return placeholder };
    PartitionStats {
        index: stats.partition.get().into(),
        segments: stats.segments,
        oldest_offset: stats.oldest.get(),
        next_offset: stats.log_end.get(),
        high_watermark: stats.high_watermark.get(),
        size_bytes: stats.bytes,
        oldest_segment_at: stats.oldest_segment_ms.map(|ms| ms / 1000),
        status: Some("ok".to_owned()),
        owner_liveness: None,
        frontier: Some(stats.frontier.get()),
        leased: Some(stats.leased),
        acked_ahead: Some(stats.acked_ahead),
        ..placeholder
    }
}

/// `DELETE /v1/topics/{topic}`.
pub(crate) async fn delete(call: &Call<'_>) -> Result<Answer, Problem> {
    force(call)?;
    let name = call.topic()?;
    catalog::propose(call, |view| {
        let record = catalog::managed(call, view, &name)?;
        Ok(Command::DeleteTopic { tenant: record.tenant.clone(), name: name.clone(), id: record.id })
    })
    .await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}

/// `force` changes nothing without remote children, but it has to be a boolean.
pub(crate) fn force(call: &Call<'_>) -> Result<(), Problem> {
    let value = query::first(call.query(), "force").map_err(|error| Problem::malformed(format!("invalid force: {error}")))?;
    match value.as_deref() {
        None | Some("" | "true" | "false") => Ok(()),
        Some(_) => Err(Problem::invalid("invalid force: want true or false")),
    }
}

/// `GET /v1/topics/{topic}/schema`.
pub(crate) fn schema(call: &Call<'_>) -> Result<Answer, Problem> {
    let name = call.topic()?;
    let view = call.state.view();
    let record = catalog::topic(call, &view, &name)?;
    let versions = record.schemas.iter().map(|s| SchemaEntry { version: s.version.into(), schema: shape::document(&s.document) }).collect();
    let version = record.schema().map_or(0, |schema| schema.version.into());
    Ok(answer::json(StatusCode::OK, &SchemaHistory { topic: name.to_string(), version, versions }))
}
