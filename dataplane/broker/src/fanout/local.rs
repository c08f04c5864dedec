//! Committing a part of a slab in a child partition of this cluster, by the stream rule.

use tracing::{error, warn};
use veena_contract::Effect;
use veena_storage::partition::NewRecord;

use crate::owners::stream::OwnerCalls;
use crate::produce::request::{CommitAnswer, CommitError, StreamCommit};
use crate::streams::{Origin, SenderWindow, Source, Start, StreamKey, Ticket};

/// How a send ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Everything up to `through` is committed in the child partition.
    Committed {
        /// The last sequence.
        through: u64,
    },
    /// The child has less than it once confirmed: go back to `from` in the parent.
    GoBack {
        /// The first parent offset to send again.
        from: u64,
    },
    /// Not now; try again.
    Retry,
    /// The stream stands still until an operator looks.
    Stopped,
}

/// One destination of a cursor.
pub struct Target<'a> {
    /// The owner of the child's partition.
    pub owner: OwnerCalls<'a>,
    /// The attachment's stream, from this parent partition.
    pub key: StreamKey,
    /// What the parent still has.
    pub source: Source,
}

/// Sends `records` (rising parent offsets), asking first where the child stands if that is not known.
pub async fn send(target: &Target<'_>, window: &mut SenderWindow, records: Vec<NewRecord>) -> Sent {
    let Some(last) = records.last().map(|record| record.sequence) else {
        return Sent::Retry;
    };
    if window.needs_open() {
        let Ok(standing) = target.owner.open(target.key).await else {
            return Sent::Retry;
        };
        let hash_of = |sequence: u64| records.iter().find(|r| r.sequence == sequence).map(|r| crc32c::crc32c(&r.body));
        let start = window.on_opened(&standing, &target.source, hash_of);
        if let Some(ended) = on_start(target, start) {
            return ended;
        }
    }
    if let Some(ticket) = window.gap_offer() {
        return carry(target, window, ticket, Vec::new(), true).await;
    }
    let confirmed = window.confirmed();
    let unsent: Vec<NewRecord> = records.into_iter().filter(|record| Some(record.sequence) > confirmed).collect();
    if unsent.is_empty() {
        return Sent::Committed { through: confirmed.unwrap_or(last) };
    }
    let sequences: Vec<u64> = unsent.iter().map(|record| record.sequence).collect();
    match window.next_offer(&sequences, last) {
        Some(ticket) => carry(target, window, ticket, unsent, false).await,
        None => Sent::Retry,
    }
}

async fn carry(target: &Target<'_>, window: &mut SenderWindow, ticket: Ticket, records: Vec<NewRecord>, is_gap: bool) -> Sent {
    let Ticket { log_id, prev, last } = ticket;
    let commit = StreamCommit { key: target.key, origin: Origin::default(), log_id, prev, last, is_gap, records };
    match target.owner.commit(commit).await {
        CommitAnswer::Committed(_) if window.on_committed(last) && !is_gap => Sent::Committed { through: last },
        // What lies between the gap and the cursor's place has not been sent since.
        CommitAnswer::Committed(_) if is_gap => Sent::GoBack { from: last.saturating_add(1) },
        CommitAnswer::Committed(_) => Sent::Retry,
        CommitAnswer::Refused(refusal) => {
            warn!(child = %target.owner.partition.dir.display(), refusal = ?refusal, "a child refused a commit; the cursor asks where it stands");
            let start = window.on_refused(&refusal, &target.source, |_| None);
            on_start(target, start).unwrap_or(Sent::Retry)
        }
        CommitAnswer::Failed(CommitError::Gone) => Sent::Retry,
        CommitAnswer::Failed(error) => {
            match error.effect() {
                Effect::None => window.on_not_sent(),
                Effect::Possible => window.on_lost(),
            }
            Sent::Retry
        }
    }
}

fn on_start(target: &Target<'_>, start: Start) -> Option<Sent> {
    match start {
        Start::Resume { after, is_back: true } => {
            Some(Sent::GoBack { from: after.mark().map_or(target.source.begin, |mark| mark.saturating_add(1)) })
        }
        Start::Resume { .. } | Start::Gap { .. } => None,
        Start::Stopped(stop) => {
            error!(child = %target.owner.partition.dir.display(), reason = %stop, "a fan-out stream stands still until an operator looks");
            target.owner.core.metrics.streams_forked.add(1);
            Some(Sent::Stopped)
        }
    }
}
