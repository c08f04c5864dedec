//! How often each thing that can go wrong went wrong. A kind that never came proves nothing, so it is told.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What can happen to nodes and their clients.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Kind {
            $($(#[$doc])* $name,)*
        }

        impl Kind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

kinds! {
    /// The process was killed between two calls of the disk.
    Kill,
    /// The process was killed inside one.
    KillInside,
    /// The power went between two calls of the disk.
    PowerCut,
    /// The power went inside a changing call.
    PowerCutInside,
    /// The power went inside a write, which was torn.
    PowerCutInWrite,
    /// The node died while it started.
    DeathAtStart,
    /// A clean stop.
    Stop,
    /// A clean stop, and then the power went.
    StopThenPowerCut,
    /// A sync of the ingress WAL failed.
    WalSyncError,
    /// A sync of a partition log failed.
    PartitionSyncError,
    /// A sync of the settle journal failed.
    SettleSyncError,
    /// A sync of a directory failed.
    DirSyncError,
    /// A write failed, some of its bytes may be there.
    WriteError,
    /// A read failed.
    ReadError,
    /// A write took fewer bytes than it was given.
    ShortWrite,
    /// The disk was full.
    DiskFull,
    /// The wall clock jumped.
    ClockJump,
    /// The process stood still for a while.
    Pause,
    /// A topic was deleted while it was used.
    TopicDeleted,
    /// A deleted topic was created again.
    TopicRecreated,
    /// A child was attached while its parent was used.
    ChildAttached,
    /// Retention removed a segment.
    Retention,
    /// A record was parked for a partition that took nothing.
    Parked,
    /// A message came again under its idempotency key, and was known.
    Replayed,
    /// A consumer's answer could not be written.
    UnwrittenDelivery,
    /// A lease was left to run out.
    LeaseLeft,
    /// A handle was used after its lease had run out.
    StaleHandle,
    /// The node that led the metadata ended.
    LeaderEnded,
    /// Several nodes ended at one moment, but not all.
    SeveralEnded,
    /// All nodes ended at one moment.
    AllEnded,
    /// A node that had lost its directory was not let in.
    DirectoryLost,
    /// A request of a node to another was lost.
    RequestLost,
    /// A node served a request of another, and its answer was lost.
    AnswerLost,
    /// An answer came when nobody waited for it any more.
    LateAnswer,
    /// A message between nodes took its time.
    SlowMessage,
    /// A node was not heard by one other.
    CutOneWay,
    /// Two nodes did not hear each other.
    CutBothWays,
    /// A node was heard by nobody, and heard all.
    Unheard,
    /// A node heard nobody, and was heard by all.
    Deaf,
    /// A node was cut off.
    CutOff,
    /// A partition began to move to another node.
    MoveBegun,
    /// A partition that moved came to its new owner.
    MoveFlipped,
    /// A move was aborted.
    MoveAborted,
    /// A node stood still or died when a partition that moved had stopped and not come.
    MoveHurt,
    /// A topic got more partitions.
    TopicGrown,
    /// A record was accepted anew for another partition, since the owner of its own was away.
    Rerouted,
}

impl Kind {
    /// Those that can happen where there are so many nodes.
    pub fn of_nodes(nodes: usize) -> impl Iterator<Item = Self> {
        let is_for_one = |kind: &Self| *kind < Self::LeaderEnded;
        Self::ALL.iter().copied().filter(move |kind| nodes > 1 || is_for_one(kind))
    }
}

/// Counts of one run.
#[derive(Debug, Default)]
pub struct Tally(Mutex<BTreeMap<Kind, u64>>);

impl Tally {
    /// One more.
    pub fn add(&self, kind: Kind) {
        self.add_many(kind, 1);
    }

    /// `count` more.
    pub fn add_many(&self, kind: Kind, count: u64) {
        if count > 0 {
            *self.0.lock().entry(kind).or_insert(0) += count;
        }
    }

    /// The counts.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<Kind, u64> {
        self.0.lock().clone()
    }
}
