//! A [`StateMachine`] as the raft library wants it: it keeps the applied position and the membership beside the state.

#![expect(clippy::result_large_err, reason = "the raft library's error is what it is")]

use std::sync::Arc;

use openraft::storage::RaftStateMachine;
use openraft::{
    AnyError, Entry, EntryPayload, LogId, OptionalSend, RaftSnapshotBuilder, Snapshot, SnapshotMeta, StorageError, StorageIOError,
    StoredMembership,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use veena_contract::LogIndex;

use super::types::{Answer, Member, MemberId, RaftTypes};
use crate::{FrozenState, RestoreError, SnapshotStore, StateMachine, StoredSnapshot};

const META_VERSION: u32 = 1;

pub(super) type Meta = SnapshotMeta<MemberId, Member>;
type Failure = StorageError<MemberId>;

/// What is kept beside a snapshot's state.
#[derive(Serialize, Deserialize)]
struct StoredMeta {
    v: u32,
    meta: Meta,
}

/// Runs a [`StateMachine`] under the raft library.
pub struct MachineAdapter<S> {
    machine: Box<dyn StateMachine>,
    snapshots: S,
    applied: Option<LogId<MemberId>>,
    membership: StoredMembership<MemberId, Member>,
    snapshots_taken: u64,
    /// Dropped last, when the store is let go.
    alive: Option<mpsc::Sender<()>>,
}

impl<S: SnapshotStore> MachineAdapter<S> {
    /// Restores `machine` from the stored snapshot, if there is one.
    ///
    /// # Errors
    /// [`RestoreError`] when the snapshot is not understood.
    pub fn open(machine: Box<dyn StateMachine>, snapshots: S, stored: Option<StoredSnapshot>) -> Result<Self, RestoreError> {
        let mut adapter =
            Self { machine, snapshots, applied: None, membership: StoredMembership::default(), snapshots_taken: 0, alive: None };
        if let Some(stored) = stored {
            let meta = decode_meta(&stored.meta)?;
            adapter.machine.restore(&stored.data)?;
            adapter.adopt(&meta);
        }
        Ok(adapter)
    }

    /// Keeps `alive` for as long as this adapter, or a snapshot that it began, holds on to the store.
    pub(crate) fn keep(&mut self, alive: mpsc::Sender<()>) {
        self.alive = Some(alive);
    }

    /// The state as it is now.
    pub(super) fn freeze(&self) -> FrozenState {
        self.machine.freeze()
    }

    fn adopt(&mut self, meta: &Meta) {
        self.applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        self.publish();
    }

    fn publish(&mut self) {
        if let Some(applied) = self.applied {
            self.machine.publish(LogIndex(applied.index));
        }
    }

    fn apply_one(&mut self, entry: Entry<RaftTypes>) -> Result<Answer, Failure> {
        let answer = match entry.payload {
            EntryPayload::Normal(command) if !command.is_nothing() => self
                .machine
                .apply(LogIndex(entry.log_id.index), command.0.get())
                .map_err(|error| StorageIOError::apply(entry.log_id, AnyError::new(&error)))?,
            EntryPayload::Normal(_) | EntryPayload::Blank => String::new(),
            EntryPayload::Membership(membership) => {
                self.membership = StoredMembership::new(Some(entry.log_id), membership);
                String::new()
            }
        };
        self.applied = Some(entry.log_id);
        Ok(Answer(answer))
    }
}

impl<S: SnapshotStore> RaftStateMachine<RaftTypes> for MachineAdapter<S> {
    type SnapshotBuilder = SnapshotTaker<S>;

    async fn applied_state(&mut self) -> Result<(Option<LogId<MemberId>>, StoredMembership<MemberId, Member>), Failure> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Answer>, Failure>
    where
        I: IntoIterator<Item = Entry<RaftTypes>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let answers = entries.into_iter().map(|entry| self.apply_one(entry)).collect();
        self.publish();
        answers
    }

    async fn get_snapshot_builder(&mut self) -> Self::SnapshotBuilder {
        self.snapshots_taken += 1;
        let at = self.applied.map_or_else(|| "0-0".to_owned(), |id| format!("{}-{}", id.leader_id.term, id.index));
        SnapshotTaker {
            snapshots: self.snapshots.clone(),
            meta: Meta {
                last_log_id: self.applied,
                last_membership: self.membership.clone(),
                snapshot_id: format!("{at}-{}", self.snapshots_taken),
            },
            state: Arc::new(Mutex::new(Some(self.machine.freeze()))),
            _alive: self.alive.clone(),
        }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Vec<u8>>, Failure> {
        Ok(Box::default())
    }

    async fn install_snapshot(&mut self, meta: &Meta, snapshot: Box<Vec<u8>>) -> Result<(), Failure> {
        let failed = |error: AnyError| Failure::from(StorageIOError::write_snapshot(Some(meta.signature()), error));
        // 1 durable and current, 2 restored: a crash between starts from the new snapshot
        let state = *snapshot;
        let data = self
            .snapshots
            .save_snapshot(encode_meta(meta).map_err(|e| failed(AnyError::new(&e)))?, Box::new(move || state))
            .await
            .map_err(|e| failed(AnyError::new(&e)))?;
        self.machine.restore(&data).map_err(|e| failed(AnyError::new(&e)))?;
        self.adopt(meta);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<RaftTypes>>, Failure> {
        let failed = |error: AnyError| Failure::from(StorageIOError::read_snapshot(None, error));
        let Some(stored) = self.snapshots.load_snapshot().await.map_err(|e| failed(AnyError::new(&e)))? else {
            return Ok(None);
        };
        let meta = decode_meta(&stored.meta).map_err(|e| failed(AnyError::new(&e)))?;
        Ok(Some(Snapshot { meta, snapshot: Box::new(stored.data) }))
    }
}

/// Writes down one frozen state.
pub struct SnapshotTaker<S> {
    snapshots: S,
    meta: Meta,
    state: Arc<Mutex<Option<FrozenState>>>,
    _alive: Option<mpsc::Sender<()>>,
}

impl<S: SnapshotStore> RaftSnapshotBuilder<RaftTypes> for SnapshotTaker<S> {
    async fn build_snapshot(&mut self) -> Result<Snapshot<RaftTypes>, Failure> {
        let failed = |error: AnyError| Failure::from(StorageIOError::write_snapshot(Some(self.meta.signature()), error));
        let Some(state) = self.state.lock().take() else {
            return Err(failed(AnyError::error("a snapshot is written once")));
        };
        let meta = encode_meta(&self.meta).map_err(|e| failed(AnyError::new(&e)))?;
        let data = self.snapshots.save_snapshot(meta, state).await.map_err(|e| failed(AnyError::new(&e)))?;
        Ok(Snapshot { meta: self.meta.clone(), snapshot: Box::new(data) })
    }
}

pub(super) fn encode_meta(meta: &Meta) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&StoredMeta { v: META_VERSION, meta: meta.clone() })
}

fn decode_meta(bytes: &[u8]) -> Result<Meta, RestoreError> {
    let stored: StoredMeta = serde_json::from_slice(bytes).map_err(|e| RestoreError { detail: format!("its description: {e}") })?;
    if stored.v != META_VERSION {
        return Err(RestoreError { detail: format!("its description has version {}, this program reads {META_VERSION}", stored.v) });
    }
    Ok(stored.meta)
}
