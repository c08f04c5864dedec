//! The state that is replicated, as seen from here.

use veena_contract::{LineageId, LogIndex, NodeId};

/// A state that can be written down later, while the machine it was taken from goes on. Called once, off the async threads where there
/// are others.
pub type FrozenState = Box<dyn FnOnce() -> Vec<u8> + Send>;

/// A node with an empty log, and with a data directory that the members do not name.
#[derive(Clone, Copy, Debug)]
pub struct Joining<'a> {
    /// Its name.
    pub node: &'a NodeId,
    /// What its data directory is called; empty if it does not say.
    pub directory: &'a str,
    /// The life that the directory has left, if it was used before.
    pub left: Option<LineageId>,
}

/// Why a node may not join as it comes, if so. Asked on the leader, when everything that was committed is published.
pub type Door = Box<dyn Fn(Joining<'_>) -> Option<String> + Send + Sync>;

/// Why a command is not taken now, if so. Asked on the leader, before the command is in its log.
pub type Gate = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// A command that this version cannot apply. Never skipped: a member that skipped one would differ from the others without a word.
#[derive(Debug, thiserror::Error)]
#[error("the command at {index} cannot be applied: {detail}")]
pub struct ApplyError {
    /// Where it stands in the log.
    pub index: LogIndex,
    /// Why.
    pub detail: String,
}

/// A snapshot that this version cannot restore.
#[derive(Debug, thiserror::Error)]
#[error("{detail}")]
pub struct RestoreError {
    /// Why.
    pub detail: String,
}

/// A deterministic state machine: the same commands in the same order MUST give the same state and the same answers. It MUST NOT read a
/// clock, draw randomness or do I/O; commands and answers are JSON.
pub trait StateMachine: Send + Sync + 'static {
    /// Applies one committed command and answers it. A refusal is an answer.
    ///
    /// # Errors
    /// [`ApplyError`] when the command is not understood; the member then stops.
    fn apply(&mut self, index: LogIndex, command: &str) -> Result<String, ApplyError>;

    /// Called after each group of entries: readers may now see everything up to and with `applied`, which also counts entries that are
    /// no commands.
    fn publish(&mut self, applied: LogIndex);

    /// The state as it is now. MUST be cheap.
    fn freeze(&self) -> FrozenState;

    /// Replaces the state by one that [`freeze`](Self::freeze) wrote.
    ///
    /// # Errors
    /// [`RestoreError`] when the bytes are not such a state; the state is then as before.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), RestoreError>;

    /// Who may come anew. Everybody, unless the state says otherwise.
    fn door(&self) -> Door {
        Box::new(|_| None)
    }

    /// Which commands are taken. All, unless whoever keeps the state says otherwise.
    fn gate(&self) -> Gate {
        Box::new(|_| None)
    }
}
