//! Messages under idempotency keys at a partition's owner, wherever that is: committing them, looking keys up, and serving the same to other
//! nodes. Effects are kept as for other commits; a look-up has none.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout};
use veena_contract::{Effect, PeerOp, PeerRefusal, PeerRequest, limits};

use crate::core::Core;
use crate::owners::stream::{ANSWER, OwnerCalls, of_owner};
use crate::owners::wire::keyed::{keyed, keyed_answer, take_keyed_answer, take_look_up, take_produce};
use crate::owners::wire::{self, Tenure};
use crate::owners::{Place, owned};
use crate::produce::commit::commit_keyed;
use crate::produce::keyed::{KeyedRequest, KeyedResult};
use crate::produce::request::{Caller, CommitError};

impl OwnerCalls<'_> {
    /// Asks about keys. Answers in time, and with as many outcomes as were asked for.
    pub async fn keyed(&self, asked: KeyedRequest) -> KeyedResult {
        let (count, is_look_up) = match &asked {
            KeyedRequest::Produce { bodies, .. } => (bodies.len(), false),
            KeyedRequest::LookUp { keys, .. } => (keys.len(), true),
        };
        let result = match &self.place {
            Place::Mine => {
                let handed = commit_keyed(self.core, self.topic, self.partition, asked, None);
                timeout(ANSWER, handed).await.unwrap_or(Err(CommitError::LogFailed))
            }
            Place::At { addr, .. } => {
                let op = if is_look_up { PeerOp::OWNER_LOOK_UP_KEYS } else { PeerOp::OWNER_PRODUCE_KEYED };
                match self.ask(addr, op, ANSWER, keyed(&self.tenure(), &asked)).await {
                    Ok(answer) => take_keyed_answer(answer).unwrap_or(Err(CommitError::OwnerSilent)).map_err(of_owner),
                    Err(error) => Err(error),
                }
            }
            Place::Nowhere => Err(CommitError::OwnerAway),
        };
        match result {
            Ok(answer) if answer.outcomes.len() != count => Err(CommitError::OwnerSilent),
            // Nothing is stored by a look-up, whatever became of it.
            Err(error) if is_look_up && error.effect() == Effect::Possible => Err(CommitError::OwnerAway),
            result => result,
        }
    }
}

/// Commits bodies, unless their keys are known.
///
/// # Errors
/// [`PeerRefusal`].
pub async fn serve_produce(core: &Arc<Core>, mut request: PeerRequest) -> Result<Bytes, PeerRefusal> {
    let tenure = wire::take_request(&mut request.body)?;
    let asked = take_produce(std::mem::take(&mut request.body))?;
    carry_out(core, &tenure, request, asked).await
}

/// Looks keys up.
///
/// # Errors
/// [`PeerRefusal`].
pub async fn serve_look_up(core: &Arc<Core>, mut request: PeerRequest) -> Result<Bytes, PeerRefusal> {
    let tenure = wire::take_request(&mut request.body)?;
    let asked = take_look_up(std::mem::take(&mut request.body))?;
    // What is not found here may be stored elsewhere: from then on, nothing may come in here by an earlier count.
    if !has_grown_to(core, &tenure, asked.counted().unwrap_or(0), request.remaining).await {
        return Ok(wire::not_owner());
    }
    carry_out(core, &tenure, request, asked).await
}

/// Does this node know that the topic has so many partitions? Its catalog is given a moment to catch up.
async fn has_grown_to(core: &Core, tenure: &Tenure, partitions: u32, remaining: Duration) -> bool {
    let until = Instant::now() + remaining.min(Duration::from_millis(limits::OWNER_CATCH_UP_MS_MAX));
    loop {
        let view = core.ports.catalog.view();
        if view.topic_by_id(tenure.partition.topic).is_some_and(|record| record.partitions >= partitions) {
            return true;
        }
        tokio::select! {
            () = core.ports.catalog.changed(view.applied) => {}
            () = tokio::time::sleep_until(until) => return false,
            () = core.ports.tasks.token().cancelled() => return false,
        }
    }
}

async fn carry_out(core: &Arc<Core>, tenure: &Tenure, request: PeerRequest, asked: KeyedRequest) -> Result<Bytes, PeerRefusal> {
    let caller = Caller { until: Instant::now() + request.remaining, gone: request.caller };
    let Ok((topic, partition)) = owned(core, tenure, request.remaining).await else {
        return Ok(wire::not_owner());
    };
    match commit_keyed(core, &topic, &partition, asked, Some(caller)).await {
        Err(CommitError::TooLate) => Err(PeerRefusal::TooLate),
        result => Ok(keyed_answer(&result)),
    }
}
