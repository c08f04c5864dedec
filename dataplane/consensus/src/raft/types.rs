//! The types that the raft library is instantiated with.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use veena_contract::{FeatureLevel, NodeId, PeerAddr};

use super::runtime::RaftRuntime;

/// How the raft library names a member.
pub type MemberId = u64;

openraft::declare_raft_types!(
    /// The raft library, bound to our types.
    pub RaftTypes:
        D = CommandText,
        R = Answer,
        NodeId = u64,
        Node = Member,
        Entry = openraft::Entry<RaftTypes>,
        SnapshotData = Vec<u8>,
        Responder = openraft::impls::OneshotResponder<RaftTypes>,
        AsyncRuntime = RaftRuntime,
);

/// One command: JSON, kept as it came, so that a dump of the log can be read. `null` asks for nothing.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CommandText(pub Arc<RawValue>);

impl CommandText {
    /// The command that changes nothing; committing it proves leadership and commits everything before it.
    pub(crate) fn nothing() -> Self {
        Self(Arc::from(RawValue::NULL.to_owned()))
    }

    pub(crate) fn is_nothing(&self) -> bool {
        self.0.get() == "null"
    }
}

/// What the state machine answered; empty for entries that are no commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer(pub String);

/// One member, as the log keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The node's name.
    pub name: String,
    /// Where its peer plane listens; empty in a cluster of one that was never told.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub addr: String,
    /// The data directory it was let in with; empty if that was never told.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub directory: String,
    /// What it knows of commands.
    #[serde(default, skip_serializing_if = "is_first")]
    pub level: FeatureLevel,
}

/// A member of the first version says nothing of levels.
pub(super) fn is_first(level: &FeatureLevel) -> bool {
    *level == FeatureLevel::FIRST
}

impl Member {
    /// Whom to call.
    pub(crate) fn peer(&self) -> PeerAddr {
        PeerAddr { node: NodeId(Arc::from(self.name.as_str())), addr: Arc::from(self.addr.as_str()) }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The id of a node: FNV-1a of its name. Written into votes and logs: it MUST NOT change.
#[must_use]
pub fn member_id(node: &NodeId) -> MemberId {
    node.0.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
