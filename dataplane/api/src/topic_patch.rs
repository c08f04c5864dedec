//! `PATCH /v1/topics/{topic}`: retention, then caps, then partitions, then schema. Not atomic: the first failure answers, what came before stays.

use std::sync::Arc;

use http::StatusCode;
use veena_client::bodies::PatchTopic;
use veena_contract::{Command, CommandError, Reroute, TopicName, TopicRecord, limits};

use crate::answer::{self, Answer};
use crate::body::RequestBody;
use crate::catalog;
use crate::cluster::{self, Places};
use crate::edge::Call;
use crate::json;
use crate::problem::Problem;
use crate::schema::{self, Change};
use crate::shape;
use crate::topics;

/// Changes a topic.
pub(crate) async fn patch(call: &Call<'_>, body: RequestBody) -> Result<Answer, Problem> {
    let name = call.topic()?;
    let body = call.body(body, limits::JSON_BODY_BYTES_MAX).await?;
    let asked: PatchTopic = json::decode(&body)?;
    let patch = Patch::check(call, &asked).await?;
    catalog::topic(call, &call.state.view(), &name)?;
    patch.apply_bounds(call, &name).await?;
    if let Some(partitions) = patch.partitions {
        let places = Places::find(call.state).await;
        catalog::propose(call, |view| {
            let record = catalog::managed(call, view, &name)?;
            let added = partitions.saturating_sub(record.partitions);
            let owners = places.owners(view, record.id, &record.owners, cluster::owners_of_parent(view, record), added)?;
            Ok(Command::GrowPartitions { tenant: record.tenant.clone(), name: name.clone(), id: record.id, partitions, owners })
        })
        .await?;
    }
    if let Some(document) = &patch.schema {
        apply_schema(call, &name, document, patch.schema_base_version).await?;
    }
    let view = call.state.view();
    let record = catalog::topic(call, &view, &name)?;
    Ok(answer::json(StatusCode::OK, &shape::topic(&view, record)))
}

/// The fields that were given, each within its own bounds.
struct Patch {
    retention_ms: Option<u64>,
    retention_bytes: Option<u64>,
    max_in_flight: Option<u64>,
    max_acked_ahead: Option<u64>,
    dedup_window_ms: Option<u64>,
    reroute: Option<Reroute>,
    partitions: Option<u32>,
    schema: Option<Arc<str>>,
    schema_base_version: Option<u32>,
}

impl Patch {
    async fn check(call: &Call<'_>, asked: &PatchTopic) -> Result<Self, Problem> {
        let defaults = &call.state.config.topics;
        let or_default = |value: Option<u64>, default| value.map(|value| if value == 0 { default } else { value });
        let patch = Self {
            retention_ms: topics::retention_ms(asked.retention_ms)?,
            retention_bytes: topics::retention_bytes(asked.retention_bytes)?,
            max_in_flight: or_default(
                topics::positive("max_in_flight_per_partition", asked.max_in_flight_per_partition)?,
                defaults.max_in_flight_per_partition,
            ),
            max_acked_ahead: or_default(
                topics::positive("max_acked_ahead_per_partition", asked.max_acked_ahead_per_partition)?,
                defaults.max_acked_ahead_per_partition,
            ),
            dedup_window_ms: topics::dedup_window_ms(asked.dedup_window_ms)?,
            reroute: asked.reroute,
            partitions: match asked.partitions {
                None | Some(0) => None,
                Some(count) => Some(topics::checked_partitions(call.state, count)?),
            },
            schema: match &asked.schema {
                Some(raw) => Some(schema::admit(raw.get()).await?),
                None => None,
            },
            schema_base_version: topics::positive("schema_base_version", asked.schema_base_version)?
                .map(|version| u32::try_from(version).unwrap_or(u32::MAX)),
        };
        if patch.schema_base_version.is_some() && patch.schema.is_none() {
            return Err(Problem::invalid("invalid argument: schema_base_version needs a schema"));
        }
        if patch.is_empty() {
            return Err(Problem::invalid("invalid argument: nothing to change"));
        }
        Ok(patch)
    }

    fn is_empty(&self) -> bool {
        !self.sets_retention() && !self.sets_caps() && self.partitions.is_none() && self.schema.is_none()
    }

    fn sets_retention(&self) -> bool {
        self.retention_ms.is_some() || self.retention_bytes.is_some()
    }

    fn sets_caps(&self) -> bool {
        let has_cap = self.max_in_flight.is_some() || self.max_acked_ahead.is_some();
        has_cap || self.dedup_window_ms.is_some() || self.reroute.is_some()
    }

    async fn apply_bounds(&self, call: &Call<'_>, name: &TopicName) -> Result<(), Problem> {
        if self.sets_retention() {
            let change = |record: &TopicRecord| Command::SetBounds {
                tenant: record.tenant.clone(),
                name: name.clone(),
                id: record.id,
                retention_ms: self.retention_ms,
                retention_bytes: self.retention_bytes,
                max_in_flight_per_partition: None,
                max_acked_ahead_per_partition: None,
                dedup_window_ms: None,
                reroute: None,
            };
            catalog::propose(call, |view| Ok(change(catalog::managed(call, view, name)?))).await?;
        }
        if self.sets_caps() {
            let change = |record: &TopicRecord| Command::SetBounds {
                tenant: record.tenant.clone(),
                name: name.clone(),
                id: record.id,
                retention_ms: None,
                retention_bytes: None,
                max_in_flight_per_partition: self.max_in_flight,
                max_acked_ahead_per_partition: self.max_acked_ahead,
                dedup_window_ms: self.dedup_window_ms,
                reroute: self.reroute,
            };
            catalog::propose(call, |view| Ok(change(catalog::managed(call, view, name)?))).await?;
        }
        Ok(())
    }
}

async fn apply_schema(call: &Call<'_>, name: &TopicName, document: &Arc<str>, base: Option<u32>) -> Result<(), Problem> {
    // Two looks: one to see that there is something to do, one inside the proposal to be sure of what it was compared with.
    let view = call.state.view();
    if compare(catalog::topic(call, &view, name)?, document, base)? == Change::None {
        return Ok(());
    }
    catalog::propose(call, |view| {
        let record = catalog::managed(call, view, name)?;
        compare(record, document, base)?;
        let base_version = record.schema().map_or(0, |schema| schema.version);
        Ok(Command::AddSchema {
            tenant: record.tenant.clone(),
            name: name.clone(),
            id: record.id,
            base_version,
            document: Arc::clone(document),
        })
    })
    .await?;
    Ok(())
}

fn compare(record: &TopicRecord, document: &Arc<str>, base: Option<u32>) -> Result<Change, Problem> {
    if record.parent.is_some() {
        return Err(CommandError::SchemaParentManaged.into());
    }
    let newest = record.schema().map_or(0, |schema| schema.version);
    if let Some(base) = base.filter(|base| *base != newest) {
        return Err(CommandError::SchemaBaseVersion { base, newest }.into());
    }
    let stored: usize = record.schemas.iter().map(|schema| schema.document.len()).sum();
    match record.schema() {
        None => Ok(Change::New),
        Some(current) => {
            let change = schema::change(&current.document, document)?;
            let is_over = record.schemas.len() >= limits::SCHEMA_VERSIONS_MAX || stored + document.len() > limits::SCHEMA_TOPIC_BYTES_MAX;
            if change == Change::New && is_over {
                let detail = format!("{} schema versions or {} bytes", limits::SCHEMA_VERSIONS_MAX, limits::SCHEMA_TOPIC_BYTES_MAX);
                return Err(CommandError::LimitReached { detail }.into());
            }
            Ok(change)
        }
    }
}
