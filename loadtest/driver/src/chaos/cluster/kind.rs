//! The kinds of what is done to a cluster.

use crate::chaos::{Fault, full_disk};

/// A node that joins while others are hurt says that it goes on trying.
const JOIN_TEXTS: &[&str] = &["this node is not in its cluster yet; it goes on trying"];
/// A move ends when its target leaves, or somebody asks for it; a node that was killed when it had left is told so; and one that stops has
/// consumers who come back to it at once, as long as it lets them in.
const LEAVE_TEXTS: &[&str] =
    &["a move is aborted", "no member of the cluster any more", "the grace period is over; closing connections that are still busy"];

/// What is done to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum ClusterFault {
    /// kill -9 of one node; it is started again after some seconds.
    KillOne,
    /// The same for the one that leads.
    KillLeader,
    /// kill -9 of two nodes at once: nobody leads meanwhile.
    KillTwo,
    /// kill -9 of all nodes at once.
    KillAll,
    /// SIGSTOP of one node for some seconds.
    FreezeOne,
    /// The same for the one that leads.
    FreezeLeader,
    /// Nothing that one node sends reaches another; what the other sends arrives.
    CutOneWay,
    /// Two nodes do not reach each other.
    CutBothWays,
    /// One node reaches no other; clients reach it.
    Isolate,
    /// The same for the one that leads.
    IsolateLeader,
    /// The disk of one node becomes full and empty again.
    FullDisk,
    /// A sync of one node's ingress WAL fails: it refuses produce until a restart, the others go on.
    SyncErrorWal,
    /// Syncs of one node's partition logs fail: the logs are opened anew.
    SyncErrorPartition,
    /// Syncs of one node's settle journal fail: everything goes on.
    SyncErrorSettle,
    /// A sync of one node's metadata store fails: the others change topics without it.
    SyncErrorMetastore,
    /// SIGTERM to one node, started again.
    Restart,
    /// Nobody is hurt for so long that partitions move for balance. The next fault hits while they do.
    Lull,
    /// A new node joins. This and the following go on while others are hurt.
    Join,
    /// A node is decommissioned, which may lead or be hurt meanwhile, and is thrown away with all it had.
    Decommission,
    /// A node is to be decommissioned, and is kept after all when some of its partitions have moved.
    DecommissionCancel,
}

impl ClusterFault {
    /// All of them.
    pub const ALL: [Self; 20] = [
        Self::KillOne,
        Self::KillLeader,
        Self::KillTwo,
        Self::KillAll,
        Self::FreezeOne,
        Self::FreezeLeader,
        Self::CutOneWay,
        Self::CutBothWays,
        Self::Isolate,
        Self::IsolateLeader,
        Self::FullDisk,
        Self::SyncErrorWal,
        Self::SyncErrorPartition,
        Self::SyncErrorSettle,
        Self::SyncErrorMetastore,
        Self::Restart,
        Self::Lull,
        Self::Join,
        Self::Decommission,
        Self::DecommissionCancel,
    ];
    /// Those of a short run.
    pub const SHORT: [Self; 7] =
        [Self::KillOne, Self::KillLeader, Self::FreezeOne, Self::CutOneWay, Self::IsolateLeader, Self::Join, Self::Decommission];

    /// Does it go on while nodes are hurt?
    #[must_use]
    pub fn is_turnover(self) -> bool {
        matches!(self, Self::Join | Self::Decommission | Self::DecommissionCancel)
    }

    /// What a node may say in its log when this happens; it is no complaint.
    #[must_use]
    pub fn log_texts(self) -> &'static [&'static str] {
        match self {
            Self::SyncErrorWal => Fault::SyncErrorWal.log_texts(),
            Self::SyncErrorPartition => Fault::SyncErrorPartition.log_texts(),
            Self::SyncErrorSettle => Fault::SyncErrorSettle.log_texts(),
            Self::SyncErrorMetastore => Fault::SyncErrorMetastore.log_texts(),
            Self::FullDisk => full_disk::LOG_TEXTS,
            Self::Join => JOIN_TEXTS,
            Self::Decommission | Self::DecommissionCancel => LEAVE_TEXTS,
            _ => &[],
        }
    }
}
