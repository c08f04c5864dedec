//! The state as consensus sees it: JSON commands in, JSON answers out.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use veena_consensus::{ApplyError, Door, FrozenState, Gate, RestoreError, StateMachine};
use veena_contract::records::{Command, CommandError};
use veena_contract::{Actor, FeatureLevel, LineageId, LogIndex, Stamp, StoredHash, TenantId, Username};

use super::State;
use crate::hold::Held;
use crate::replica::Replica;

/// The newest version of the log's commands that this program knows.
const VERSION: u32 = version_of(FeatureLevel::CURRENT);

/// The version of what only members of a level understand.
pub(super) const fn version_of(level: FeatureLevel) -> u32 {
    1 + level.0
}

const fn level_of(version: u32) -> FeatureLevel {
    FeatureLevel(version.saturating_sub(1))
}

/// What the log carries. Operations are added at the end; one that an older program must not skip raises the version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Operation {
    /// Names this life of the metastore.
    Lineage(LineageId),
    /// Changes the catalog.
    Catalog(Box<Command>),
    /// Changes the catalog on behalf of a user, as far as the user may.
    CatalogBy {
        /// Whose user.
        #[serde(default = "TenantId::default_tenant", skip_serializing_if = "TenantId::is_default")]
        tenant: TenantId,
        /// Who.
        caller: Username,
        /// What was stored of the password that the user was let in with.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        checked: Option<StoredHash>,
        /// The change.
        command: Box<Command>,
    },
}

impl Operation {
    /// A change of the catalog, by a user or by the node itself, for members of a level: those that do not know what a user was let in with
    /// are not told.
    pub(crate) fn catalog(caller: Option<Actor>, mut command: Command, level: FeatureLevel) -> Self {
        // Older members delete a user, and know no more of it.
        if let Command::DeleteUser { by_hand, .. } = &mut command {
            *by_hand &= level >= FeatureLevel::TENANTS;
        }
        let command = Box::new(command);
        match caller {
            Some(Actor { tenant, username: caller, checked }) => {
                Self::CatalogBy { tenant, caller, checked: checked.filter(|_| level >= FeatureLevel::TENANTS), command }
            }
            None => Self::Catalog(command),
        }
    }

    /// What it changes of the catalog.
    pub(crate) fn command(&self) -> Option<&Command> {
        match self {
            Self::Lineage(_) => None,
            Self::Catalog(command) | Self::CatalogBy { command, .. } => Some(command),
        }
    }

    /// What every member has to know for it to be written.
    pub(crate) fn level(&self) -> FeatureLevel {
        match self {
            Self::Lineage(_) => FeatureLevel::FIRST,
            Self::Catalog(command) => command.level(),
            Self::CatalogBy { tenant, checked, command, .. } => {
                let is_old = tenant.is_default() && checked.is_none();
                let needed = if is_old { FeatureLevel::USERS } else { FeatureLevel::TENANTS };
                command.level().max(needed)
            }
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Envelope {
    v: u32,
    op: Operation,
    /// For the audit trail. Older programs wrote none, and none is written for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    from: Option<Stamp>,
}

/// The version of a document, read before the rest of it.
#[derive(Deserialize)]
pub(super) struct Version {
    pub(super) v: u32,
}

#[derive(Default, Serialize, Deserialize)]
struct Answer {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<CommandError>,
}

/// An operation as the log carries it. What an older program would not record is not written for it.
pub(crate) fn encode_from(op: Operation, from: Option<Stamp>) -> serde_json::Result<Box<RawValue>> {
    let level = if from.is_some() { op.level().max(FeatureLevel::TENANTS) } else { op.level() };
    serde_json::value::to_raw_value(&Envelope { v: version_of(level), op, from })
}

/// The same, as programs wrote it that knew of no audit trail.
#[cfg(test)]
pub(crate) fn encode(op: Operation) -> serde_json::Result<Box<RawValue>> {
    encode_from(op, None)
}

/// What the state machine said to an operation.
pub(crate) fn decode_answer(text: &str) -> serde_json::Result<Result<(), CommandError>> {
    let answer: Answer = serde_json::from_str(text)?;
    Ok(answer.refused.map_or(Ok(()), Err))
}

impl State {
    /// Applies one command as the log carries it; the answer, as the log's reader is told.
    ///
    /// # Errors
    /// It is no command, or one that only a newer program knows: nobody may go on without it.
    pub fn apply_text(&mut self, command: &str) -> Result<String, String> {
        let version: Version = serde_json::from_str(command).map_err(|e| e.to_string())?;
        if version.v > VERSION {
            return Err(format!("it has version {}, this program knows {VERSION}: start a newer program", version.v));
        }
        let envelope: Envelope = serde_json::from_str(command).map_err(|e| e.to_string())?;
        let answer = match envelope.op {
            Operation::Lineage(lineage) => {
                self.name_lineage(lineage);
                Answer::default()
            }
            Operation::Catalog(command) => {
                let level = level_of(envelope.v);
                self.recorded(envelope.from, None, *command, |state, _, command| state.apply_at(command, level))
            }
            Operation::CatalogBy { tenant, caller, checked, command } => {
                let (caller, level) = (Actor { tenant, username: caller, checked }, level_of(envelope.v));
                let stands = envelope.from.as_ref().map_or(Ok(()), |from| self.key_stands(&caller, from));
                self.recorded(envelope.from, Some(caller), *command, |state, caller, command| match caller {
                    Some(caller) => stands.map_err(CommandError::from).and_then(|()| state.apply_by_at(caller, command, level)),
                    None => state.apply_at(command, level),
                })
            }
        };
        serde_json::to_string(&answer).map_err(|e| e.to_string())
    }

    /// Applies a command, and records it: what was applied is recorded when anybody sees it.
    fn recorded(
        &mut self,
        from: Option<Stamp>,
        caller: Option<Actor>,
        command: Command,
        apply: impl FnOnce(&mut Self, Option<Actor>, Command) -> Result<(), CommandError>,
    ) -> Answer {
        let pending = from.map(|from| self.pending(caller.clone(), &command, from));
        let outcome = apply(self, caller, command);
        if let Some(pending) = pending {
            self.record(pending, &outcome);
        }
        Answer { refused: outcome.err() }
    }
}

/// Applies the log to the state, and shows it to this node.
pub(crate) struct CatalogMachine {
    state: State,
    replica: Arc<Replica>,
    held: Arc<Held>,
}

impl CatalogMachine {
    pub(crate) fn new(replica: Arc<Replica>, held: Arc<Held>) -> Self {
        Self { state: State::default(), replica, held }
    }
}

impl StateMachine for CatalogMachine {
    fn apply(&mut self, index: LogIndex, command: &str) -> Result<String, ApplyError> {
        self.state.apply_text(command).map_err(|detail| ApplyError { index, detail })
    }

    fn publish(&mut self, applied: LogIndex) {
        self.state.view.applied = applied;
        self.replica.show(self.state.clone());
    }

    fn freeze(&self) -> FrozenState {
        let state = self.state.clone();
        Box::new(move || state.dump())
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), RestoreError> {
        self.state = State::from_dump(snapshot)?;
        Ok(())
    }

    /// Closed to what this node's hold refuses. Its own changes do not come so far.
    fn gate(&self) -> Gate {
        let held = Arc::clone(&self.held);
        Box::new(move |command| {
            let operation = || serde_json::from_str(command).ok().map(|Envelope { op, .. }| op);
            held.why(operation).map(|reason| format!("at the leader of the metadata: {reason}"))
        })
    }

    /// Closed to the name of an owner: its directory has what is in its partitions, and another one would show them empty. That directory may
    /// come from a former life, and from no life that is none of these. Closed to the name of a node on its way out, too: it would be taken out
    /// again at once.
    fn door(&self) -> Door {
        let replica = Arc::clone(&self.replica);
        Box::new(move |joining| {
            let (state, node) = (replica.state(), joining.node);
            if let Some(left) = joining.left.filter(|left| state.former.iter().all(|life| life.lineage != *left)) {
                return Some(format!("{node} comes with messages of the metadata {left}, of which this cluster is no heir"));
            }
            if state.view.draining.contains(node) {
                return Some(format!("{node} is being taken out of this cluster: wait a moment, or start under another name"));
            }
            let partitions = state.view.partitions_of(node);
            (partitions > 0 && !state.was_directory_of(node, joining.directory)).then(|| {
                format!(
                    "partitions of this cluster belong to {node} ({partitions} of them), and it comes with a data directory that is new: they \
                     would look empty. Put the directory back, or start under another name; nothing was touched"
                )
            })
        })
    }
}
