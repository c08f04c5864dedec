//! Changes that are refused for now: on their way out of a node, and at the leader, whose log would take them.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use veena_contract::records::Command;

use crate::state::Operation;

/// Which changes are refused, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Why.
    pub reason: String,
    /// Those too that only take something away: a topic, a link.
    pub is_total: bool,
}

/// The hold of one node, if there is one.
#[derive(Default)]
pub(crate) struct Held(ArcSwapOption<Hold>);

impl Held {
    pub(crate) fn set(&self, hold: Option<Hold>) {
        self.0.store(hold.map(Arc::new));
    }

    /// Why this change is refused now, if it is. `None` stands for one that only newer nodes know.
    pub(crate) fn why(&self, operation: impl FnOnce() -> Option<Operation>) -> Option<String> {
        let hold = self.0.load_full()?;
        let is_let_through = !hold.is_total && operation().as_ref().is_some_and(is_removal);
        (!is_let_through).then(|| hold.reason.clone())
    }
}

/// Does it only take something away?
fn is_removal(operation: &Operation) -> bool {
    let is_removal =
        |command: &Command| matches!(command, Command::DeleteTopic { .. } | Command::DetachChild { .. } | Command::DeleteUser { .. });
    operation.command().is_some_and(is_removal)
}
