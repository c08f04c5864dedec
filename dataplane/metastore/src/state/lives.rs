//! The lives of a metastore: one that was restored from a backup, or recovered by one member alone, is another one than it was, and says of
//! which it is the heir.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use veena_contract::{LineageId, LogIndex, NodeId, limits};

use super::State;

/// A life that this one goes on from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerLife {
    /// Which.
    pub lineage: LineageId,
    /// Up to where this one knows what happened in it.
    pub at: LogIndex,
    /// Who took part in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<FormerMember>,
}

/// A member of a former life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerMember {
    /// Its name.
    pub node: NodeId,
    /// What its data directory was called; empty if that was never told.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub directory: String,
}

impl State {
    /// The lives that this one goes on from, oldest first.
    #[must_use]
    pub fn former(&self) -> &[FormerLife] {
        &self.former
    }

    /// The same state as the beginning of another life, whose members come anew: none of them is on its way out. `also` is a life of which
    /// nobody knows how much is in this state.
    #[must_use]
    pub fn begin_life(&self, lineage: LineageId, members: Vec<FormerMember>, also: Option<LineageId>) -> Self {
        let mut former: Vec<FormerLife> = self.former.to_vec();
        former.extend(self.lineage.map(|lineage| FormerLife { lineage, at: self.view.applied, members }));
        let is_other = |also: &LineageId| former.iter().all(|life| life.lineage != *also);
        let also = also.filter(is_other);
        former.extend(also.map(|lineage| FormerLife { lineage, at: LogIndex(0), members: Vec::new() }));
        former.drain(..former.len().saturating_sub(limits::FORMER_LIVES_MAX));
        let mut next = Self { lineage: Some(lineage), former: Arc::from(former), ..self.clone() };
        next.view.draining.clear();
        next.view.marks.clear();
        next.view.leaving.clear();
        next
    }

    /// Was this the data directory of `node` in the last life that knew the node?
    pub(super) fn was_directory_of(&self, node: &NodeId, directory: &str) -> bool {
        let known = self.former.iter().rev().find_map(|life| life.members.iter().find(|member| member.node == *node));
        known.is_some_and(|member| !directory.is_empty() && member.directory == directory)
    }
}

#[cfg(test)]
mod tests {
    use veena_contract::Command;

    use super::*;

    #[test]
    fn a_directory_is_known_by_the_last_life_that_knew_its_node() {
        let members = |of: &[(&str, &str)]| {
            let of = of.iter().map(|(node, directory)| FormerMember { node: NodeId((*node).into()), directory: (*directory).to_owned() });
            of.collect::<Vec<_>>()
        };
        let first = State { lineage: Some(LineageId(1)), ..State::default() };
        let second = first.begin_life(LineageId(2), members(&[("a", "a-1"), ("b", "b-1"), ("c", "")]), None);
        let third = second.begin_life(LineageId(3), members(&[("a", "a-2")]), None);
        for (node, directory, is_known) in
            [("a", "a-2", true), ("a", "a-1", false), ("b", "b-1", true), ("b", "a-2", false), ("c", "", false), ("d", "d-1", false)]
        {
            assert_eq!(third.was_directory_of(&NodeId(node.into()), directory), is_known, "{node} {directory}");
        }
    }

    #[test]
    fn in_a_new_life_nobody_is_on_the_way_out() {
        let (draining, leaving) = (NodeId("a".into()), NodeId("b".into()));
        let mut first = State { lineage: Some(LineageId(1)), ..State::default() };
        for node in [&draining, &leaving] {
            first.apply(Command::SetDraining { node: node.clone(), draining: true, mark: None, beside: None }).expect("marked");
        }
        first.apply(Command::LetGo { node: leaving, mark: None }).expect("it has nothing");
        assert_eq!((first.view().draining.len(), first.view().leaving.len()), (2, 1));
        let second = first.begin_life(LineageId(2), Vec::new(), None);
        assert_eq!((second.view().draining.len(), second.view().leaving.len()), (0, 0));
        let again = State::from_dump(&second.dump()).expect("its own dump");
        assert_eq!((again.view().draining.len(), again.view().leaving.len()), (0, 0));
    }
}
