//! What a member is started with, and what it says about itself.

use std::sync::Arc;
use std::time::Duration;

use veena_contract::{FeatureLevel, LineageId, LogIndex, NodeId, PeerAddr};

/// Settings of one member.
#[derive(Clone, Debug)]
pub struct ConsensusConfig {
    /// This node's name. A log belongs to the name it was created under.
    pub node: NodeId,
    /// `host:port` of its peer plane, as others reach it; empty if nobody does.
    pub addr: Arc<str>,
    /// What its data directory is called; empty if it has none. A member that comes with another one has lost what it had.
    pub directory: Arc<str>,
    /// The life of the replicated state that this directory has left, if it has: it may come into another one that goes on from there.
    pub left: Option<LineageId>,
    /// What it knows of commands.
    pub level: FeatureLevel,
    /// What the replicated state is called in logs.
    pub cluster: &'static str,
    /// How often a leader tells its followers that it lives; openraft looks at its clocks every one and a half of that.
    pub heartbeat: Duration,
    /// The shortest time after which a follower asks to lead, once a silent leader's lease of `election_max` is over.
    pub election_min: Duration,
    /// The longest such time, the lease of a leader, and how long after a failed vote a member waits for another's.
    pub election_max: Duration,
    /// A snapshot is taken after this many log entries.
    pub snapshot_every: u64,
    /// How many entries below a snapshot are kept for members that are a little behind.
    pub entries_kept: u64,
    /// How long [`Consensus::start`](crate::Consensus::start) waits for leadership.
    pub ready_within: Duration,
}

impl ConsensusConfig {
    /// The settings that production uses.
    #[must_use]
    pub fn new(node: NodeId, cluster: &'static str) -> Self {
        Self {
            node,
            addr: Arc::from(""),
            directory: Arc::from(""),
            left: None,
            level: FeatureLevel::CURRENT,
            cluster,
            heartbeat: Duration::from_millis(100),
            election_min: Duration::from_millis(500),
            election_max: Duration::from_millis(650),
            snapshot_every: 5000,
            entries_kept: 1000,
            ready_within: Duration::from_secs(30),
        }
    }
}

/// What one member knows about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsensusStatus {
    /// The current term.
    pub term: u64,
    /// Is this member the leader?
    pub is_leader: bool,
    /// Is any leader known here? A leader that no majority answers is none.
    pub has_leader: bool,
    /// The leader, if one is known.
    pub leader: Option<NodeId>,
    /// Who takes part, as far as this member knows.
    pub members: Vec<MemberStatus>,
    /// The end of this member's log.
    pub last_log: LogIndex,
    /// The last entry this member has applied.
    pub applied: LogIndex,
    /// Why this member takes part no more: its log failed, its state machine could not go on, or it was shut down.
    pub stopped: Option<String>,
}

/// One member, as another sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its name and where it listens.
    pub peer: PeerAddr,
    /// Does it vote? A learner only follows.
    pub is_voter: bool,
    /// What it knows of commands, as far as it has told.
    pub level: FeatureLevel,
    /// Up to where its log is known to be the leader's; only the leader knows.
    pub matched: Option<LogIndex>,
}

/// One member, as the log names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownMember {
    /// Its name and where it listens.
    pub peer: PeerAddr,
    /// The data directory that it was let in with; empty if that was never told.
    pub directory: Arc<str>,
    /// Does it vote? A learner only follows.
    pub is_voter: bool,
}
