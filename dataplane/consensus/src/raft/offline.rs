//! A log that nobody runs on: what it holds, and a new one that begins with a given state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use openraft::storage::RaftStateMachine;
use openraft::{CommittedLeaderId, LogId, LogIdOptionExt, Membership, StoredMembership, Vote};
use tokio::time::{Instant, sleep};
use veena_contract::LogIndex;

use super::adapter::{MachineAdapter, Meta, encode_meta};
use super::store::LogStore;
use super::types::{Member, MemberId, member_id};
use crate::{ConsensusConfig, FrozenState, KnownMember, StartError, StateMachine};

/// How many entries are read at once.
const ENTRIES_AT_ONCE: u64 = 256;
/// How long a store may take to close its files.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);
/// Nobody says when it is closed. It takes a few milliseconds.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// What a log holds.
pub struct LogContents {
    /// The state after its last entry.
    pub state: FrozenState,
    /// Its last entry.
    pub last: LogIndex,
    /// Up to where it is known here that a majority had it. Others may know more.
    pub committed: LogIndex,
    /// The highest term that this member has heard of.
    pub term: u64,
    /// Who takes part after the last entry.
    pub members: Vec<KnownMember>,
}

/// Applies a whole log to `machine`, also what is not known to be committed: a change that was answered may be known as such elsewhere
/// alone. Changes nothing. `None` for an empty log. The store is closed when this answers.
///
/// # Errors
/// [`StartError`] when the log cannot be read, or holds what `machine` does not understand.
pub async fn read_log<L: LogStore>(mut log: L, machine: Box<dyn StateMachine>) -> Result<Option<LogContents>, StartError> {
    let read = read(&mut log, machine).await;
    close(log).await?;
    read
}

async fn read<L: LogStore>(log: &mut L, machine: Box<dyn StateMachine>) -> Result<Option<LogContents>, StartError> {
    let failed = |e: &dyn std::error::Error| StartError::Store { detail: e.to_string() };
    let stored = log.load_snapshot().await.map_err(|e| failed(&e))?;
    let end = log.get_log_state().await.map_err(|e| failed(&e))?.last_log_id;
    let committed = log.read_committed().await.map_err(|e| failed(&e))?;
    let vote = log.read_vote().await.map_err(|e| failed(&e))?.unwrap_or_default();
    let mut adapter = MachineAdapter::open(machine, log.clone(), stored)?;
    let (restored, _) = adapter.applied_state().await.map_err(|e| failed(&e))?;
    let mut next = restored.next_index();
    while next < end.next_index() {
        let until = end.next_index().min(next + ENTRIES_AT_ONCE);
        let entries = log.try_get_log_entries(next..until).await.map_err(|e| failed(&e))?;
        if entries.len() as u64 != until - next {
            return Err(StartError::Store { detail: format!("entries are missing between {next} and {until}") });
        }
        adapter.apply(entries).await.map_err(|e| failed(&e))?;
        next = until;
    }
    let (applied, membership) = adapter.applied_state().await.map_err(|e| failed(&e))?;
    let Some(last) = applied else { return Ok(None) };
    Ok(Some(LogContents {
        state: adapter.freeze(),
        last: LogIndex(last.index),
        committed: LogIndex(committed.max(restored).index().unwrap_or_default()),
        term: vote.leader_id().term.max(last.leader_id.term),
        members: known_members(membership.membership()),
    }))
}

/// Makes an empty log one whose only member is the one that `config` names, and that begins with this state: as if everything up to and with
/// `at` were in it, and everything of the terms up to and with `term` were over. The store is closed when this answers.
///
/// # Errors
/// [`StartError::Store`] when the log is not empty or cannot be written.
pub async fn found_log<L: LogStore>(
    mut log: L,
    config: &ConsensusConfig,
    at: LogIndex,
    term: u64,
    state: Vec<u8>,
) -> Result<(), StartError> {
    let founded = found(&mut log, config, at, term, state).await;
    close(log).await?;
    founded
}

async fn found<L: LogStore>(log: &mut L, config: &ConsensusConfig, at: LogIndex, term: u64, state: Vec<u8>) -> Result<(), StartError> {
    let failed = |e: &dyn std::error::Error| StartError::Store { detail: e.to_string() };
    let is_used = log.load_snapshot().await.map_err(|e| failed(&e))?.is_some()
        || log.get_log_state().await.map_err(|e| failed(&e))?.last_log_id.is_some();
    if is_used {
        return Err(StartError::Store { detail: "it is not empty".to_owned() });
    }
    let id = member_id(&config.node);
    let me = Member {
        name: config.node.to_string(),
        addr: config.addr.to_string(),
        directory: config.directory.to_string(),
        level: config.level,
    };
    let term = term + 1;
    let last = LogId::new(CommittedLeaderId::new(term, id), at.0);
    let membership = Membership::new(vec![BTreeSet::from([id])], BTreeMap::from([(id, me)]));
    let meta = Meta {
        last_log_id: Some(last),
        last_membership: StoredMembership::new(Some(last), membership),
        snapshot_id: format!("{term}-{}-0", at.0),
    };
    let meta = encode_meta(&meta).map_err(|e| failed(&e))?;
    // 1 vote   2 snapshot   3 what is before it    — a crash in between leaves a log that was never put to use
    log.save_vote(&Vote::new(term, id)).await.map_err(|e| failed(&e))?;
    log.save_snapshot(meta, Box::new(move || state)).await.map_err(|e| failed(&e))?;
    log.purge(last).await.map_err(|e| failed(&e))
}

/// Lets go of a store, and waits until its files are closed.
async fn close<L: LogStore>(log: L) -> Result<(), StartError> {
    let is_closed = log.closed();
    drop(log);
    let until = Instant::now() + CLOSE_WITHIN;
    while !is_closed() {
        if Instant::now() > until {
            return Err(StartError::Store { detail: "its files are still open".to_owned() });
        }
        sleep(LOOK_AGAIN).await;
    }
    Ok(())
}

/// The members as others see them.
pub(super) fn known_members(membership: &Membership<MemberId, Member>) -> Vec<KnownMember> {
    let voters: BTreeSet<MemberId> = membership.voter_ids().collect();
    let known = |(id, member): (&MemberId, &Member)| KnownMember {
        peer: member.peer(),
        directory: Arc::from(member.directory.as_str()),
        is_voter: voters.contains(id),
    };
    membership.nodes().map(known).collect()
}
