//! Streams and owner-synchronous messages at a partition's owner, wherever that is: where a stream stands, its next commit, and bodies without
//! a stream. And serving the same to other nodes.
//!
//! Effects are kept exact: what was never sent, or was refused unseen, had none; what was sent and not answered may have had one. A call is
//! never repeated here.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout};
use tracing::debug;
use veena_contract::{Effect, OwnershipEpoch, PeerAddr, PeerOp, PeerRefusal, PeerRequest, limits};

use crate::core::Core;
use crate::owners::wire::{self, Malformed, Tenure};
use crate::owners::{self, NotOwner, Place};
use crate::partition::Partition;
use crate::produce::commit;
use crate::produce::request::{Caller, CommitAnswer, CommitError, CommitRequest, StreamCommit};
use crate::streams::{Standing, StreamKey};
use crate::topics::Topic;

/// How long an owner may take.
pub(super) const ANSWER: Duration = Duration::from_millis(limits::OWNER_ANSWER_MS_MAX);
/// How long one that is asked whether it is there may take.
const PROBE: Duration = Duration::from_millis(limits::REROUTE_PROBE_MS);

/// The owner of one partition, as it is now: kept for one step, not longer.
pub struct OwnerCalls<'a> {
    pub(crate) core: &'a Arc<Core>,
    pub(super) topic: &'a Arc<Topic>,
    pub(crate) partition: &'a Arc<Partition>,
    pub(super) place: Place,
    epoch: OwnershipEpoch,
}

impl<'a> OwnerCalls<'a> {
    /// The owner of this partition.
    #[must_use]
    pub fn to(core: &'a Arc<Core>, topic: &'a Arc<Topic>, partition: &'a Arc<Partition>) -> Self {
        let record = topic.record.load();
        let place = core.place_of(&record, partition.id.index);
        let epoch = record.owner_of(partition.id.index).map_or(OwnershipEpoch::default(), |owner| owner.epoch);
        Self { core, topic, partition, place, epoch }
    }

    /// Is it this node?
    #[must_use]
    pub fn is_here(&self) -> bool {
        matches!(self.place, Place::Mine)
    }

    /// Since which change of ownership it is the owner.
    #[must_use]
    pub fn epoch(&self) -> OwnershipEpoch {
        self.epoch
    }

    /// Where a stream stands. Changes nothing.
    ///
    /// # Errors
    /// [`CommitError`].
    pub async fn open(&self, key: StreamKey) -> Result<Standing, CommitError> {
        self.open_within(key, ANSWER).await
    }

    /// As `open`, of an owner that may not be there.
    ///
    /// # Errors
    /// [`CommitError`].
    pub async fn probe(&self, key: StreamKey) -> Result<Standing, CommitError> {
        match &self.place {
            Place::Mine => timeout(PROBE, self.open(key)).await.unwrap_or(Err(CommitError::NotOpen)),
            Place::At { .. } | Place::Nowhere => self.open_within(key, PROBE).await,
        }
    }

    async fn open_within(&self, key: StreamKey, patience: Duration) -> Result<Standing, CommitError> {
        match &self.place {
            Place::Mine => commit::open_stream(self.core, self.partition, key).await,
            Place::At { addr, .. } => {
                let answer = self.ask(addr, PeerOp::OWNER_OPEN, patience, wire::open(&self.tenure(), key)).await?;
                wire::take_standing(answer).map_err(|Malformed| CommitError::OwnerSilent)?.map_err(of_owner)
            }
            Place::Nowhere => Err(CommitError::OwnerAway),
        }
    }

    /// The next commit of a stream.
    pub async fn commit(&self, commit: StreamCommit) -> CommitAnswer {
        match &self.place {
            Place::Mine => commit::commit(self.core, self.topic, self.partition, CommitRequest::Stream(commit), None).await,
            Place::At { addr, .. } => self.hand_over(addr, PeerOp::OWNER_COMMIT, wire::commit(&self.tenure(), &commit)).await,
            Place::Nowhere => CommitAnswer::Failed(CommitError::OwnerAway),
        }
    }

    /// Bodies that no stream stands behind, and that nobody sends again. Answers in time.
    pub async fn produce(&self, bodies: Vec<Bytes>) -> CommitAnswer {
        match &self.place {
            Place::Mine => {
                let handed = commit::commit(self.core, self.topic, self.partition, CommitRequest::Direct(bodies), None);
                timeout(ANSWER, handed).await.unwrap_or(CommitAnswer::Failed(CommitError::LogFailed))
            }
            Place::At { addr, .. } => self.hand_over(addr, PeerOp::OWNER_PRODUCE, wire::produce(&self.tenure(), &bodies)).await,
            Place::Nowhere => CommitAnswer::Failed(CommitError::OwnerAway),
        }
    }

    pub(super) fn tenure(&self) -> Tenure {
        Tenure { partition: self.partition.id, epoch: self.epoch }
    }

    async fn hand_over(&self, addr: &PeerAddr, op: PeerOp, body: Bytes) -> CommitAnswer {
        let answer = match self.ask(addr, op, ANSWER, body).await {
            Ok(answer) => wire::take_commit_answer(answer),
            Err(error) => return CommitAnswer::Failed(error),
        };
        match answer {
            Ok(CommitAnswer::Failed(error)) => CommitAnswer::Failed(of_owner(error)),
            Ok(answer) => answer,
            Err(Malformed) => CommitAnswer::Failed(CommitError::OwnerSilent),
        }
    }

    /// One call, and what its op adds to the answer.
    pub(super) async fn ask(&self, addr: &PeerAddr, op: PeerOp, patience: Duration, body: Bytes) -> Result<Bytes, CommitError> {
        let called = tokio::select! {
            called = owners::call_in_turn(self.core, &self.topic.usage, addr, op, patience, body) => called,
            // Whoever stops waits for nobody else.
            () = self.core.ports.tasks.token().cancelled() => return Err(CommitError::OwnerSilent),
        };
        self.core.reach.note(&addr.node, &called);
        let mut answer = called.map_err(|error| {
            debug!(partition = %self.partition.dir.display(), %op, %error, "a call to an owner failed");
            match error.effect() {
                Effect::None => CommitError::OwnerAway,
                Effect::Possible => CommitError::OwnerSilent,
            }
        })?;
        match wire::take_answer(&mut answer) {
            Ok(Ok(())) => Ok(answer),
            Ok(Err(NotOwner)) => Err(CommitError::OwnerAway),
            Err(Malformed) => Err(CommitError::OwnerSilent),
        }
    }
}

/// What an owner's error is to its caller. That its topic is gone, or that it stops, is said of the owner alone: the caller judges by its own
/// catalog, and stops by itself.
pub(super) fn of_owner(error: CommitError) -> CommitError {
    match error {
        CommitError::Gone | CommitError::Stopping | CommitError::TooLate => CommitError::OwnerAway,
        error => error,
    }
}

/// Answers where a stream stands.
///
/// # Errors
/// [`PeerRefusal`].
pub async fn serve_open(core: &Arc<Core>, mut request: PeerRequest) -> Result<Bytes, PeerRefusal> {
    let tenure = wire::take_request(&mut request.body)?;
    let key = wire::take_open(request.body)?;
    let Ok((_, partition)) = owners::owned(core, &tenure, request.remaining).await else {
        return Ok(wire::not_owner());
    };
    Ok(wire::standing(&commit::open_stream(core, &partition, key).await))
}

/// Commits part of a stream.
///
/// # Errors
/// [`PeerRefusal`].
pub async fn serve_commit(core: &Arc<Core>, mut request: PeerRequest) -> Result<Bytes, PeerRefusal> {
    let tenure = wire::take_request(&mut request.body)?;
    let commit = wire::take_commit(std::mem::take(&mut request.body))?;
    carry_out(core, &tenure, request, CommitRequest::Stream(commit)).await
}

/// Commits bodies that no stream stands behind.
///
/// # Errors
/// [`PeerRefusal`].
pub async fn serve_produce(core: &Arc<Core>, mut request: PeerRequest) -> Result<Bytes, PeerRefusal> {
    let tenure = wire::take_request(&mut request.body)?;
    let bodies = wire::take_produce(std::mem::take(&mut request.body))?;
    carry_out(core, &tenure, request, CommitRequest::Direct(bodies)).await
}

async fn carry_out(core: &Arc<Core>, tenure: &Tenure, request: PeerRequest, commit: CommitRequest) -> Result<Bytes, PeerRefusal> {
    let caller = Caller { until: Instant::now() + request.remaining, gone: request.caller };
    let Ok((topic, partition)) = owners::owned(core, tenure, request.remaining).await else {
        return Ok(wire::not_owner());
    };
    match commit::commit(core, &topic, &partition, commit, Some(caller)).await {
        CommitAnswer::Failed(CommitError::TooLate) => Err(PeerRefusal::TooLate),
        answer => Ok(wire::commit_answer(&answer)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_owner_says_keeps_its_effect_and_is_not_said_of_its_caller() {
        for error in CommitError::ALL {
            let told = of_owner(error);
            assert_eq!(told.effect(), error.effect(), "{error}");
            assert!(!matches!(told, CommitError::Gone | CommitError::Stopping | CommitError::TooLate), "{error}");
        }
    }
}
