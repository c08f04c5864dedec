//! Holds changes of metadata back while the data disk is full: the store of the metadata log latches on a write that finds no room, and
//! only a restart ends that.
//!
//! Produce stops earlier, at the reserve (the engine watches that). The rest of the reserve is there for what frees room: acks, deleted
//! topics, retention. When most of that is gone too, nothing new is taken; to the last, topics can be deleted. When there is plenty of room
//! again, the ballast grows.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use veena_contract::limits;
use veena_metastore::{Hold, Metastore};
use veena_storage::disk::{Disk, Space};
use veena_storage::io::Io;

use crate::ballast;

/// How often the room is read.
const CHECK_EVERY: Duration = Duration::from_millis(250);
/// Changes are held while less than this part of the reserve is free.
const HELD_BELOW: u64 = 4;

/// What is watched, and who is told.
pub(crate) struct RoomWatch {
    /// The disk.
    pub(crate) disk: Arc<dyn Disk>,
    /// Where its calls run.
    pub(crate) io: Io,
    /// A folder on it.
    pub(crate) data_dir: PathBuf,
    /// How much is kept free of messages, in bytes.
    pub(crate) reserve: u64,
    /// Whose changes are held.
    pub(crate) metastore: Metastore,
}

/// Which changes are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Held {
    #[default]
    None,
    /// All but those that take something away.
    Additions,
    All,
}

impl RoomWatch {
    fn judge(&self, available: u64) -> Held {
        if available >= self.reserve / HELD_BELOW {
            Held::None
        } else if available >= limits::METADATA_REMOVAL_BYTES_MIN {
            Held::Additions
        } else {
            Held::All
        }
    }

    /// Looks once, and lets the ballast grow.
    async fn look(&self, held: &mut Held, is_ballast_whole: &mut bool) {
        let (disk, dir, reserve, is_whole) = (Arc::clone(&self.disk), self.data_dir.clone(), self.reserve, *is_ballast_whole);
        let looked = self.io.run(move || {
            let space = disk.space(&dir)?;
            let grown = if is_whole { Ok(true) } else { ballast::grow(disk.as_ref(), &dir, space.available, reserve) };
            Ok::<_, io::Error>((space, grown))
        });
        // Room that cannot be read is reported by the engine; what was decided stands.
        let Ok((space, grown)) = looked.await else { return };
        *is_ballast_whole = grown.unwrap_or_else(|error| {
            warn!(%error, "no room can be held back for a start on a full disk; tried again with the next start");
            true
        });
        self.hold(space, held);
    }

    fn hold(&self, space: Space, held: &mut Held) {
        let now = self.judge(space.available);
        if now == *held {
            return;
        }
        let hold = Hold { reason: "the data disk is full".to_owned(), is_total: now == Held::All };
        self.metastore.hold_changes((now != Held::None).then_some(hold));
        if now == Held::None {
            info!(available = space.available, "the data disk has room again: changes of topics are accepted");
        } else {
            let is_total = now == Held::All;
            warn!(available = space.available, reserve = self.reserve, is_total, "the data disk is full: changes of topics are refused");
        }
        *held = now;
    }

    /// Looks until `token` is cancelled.
    pub(crate) async fn run(self, token: CancellationToken) {
        let (mut held, mut is_ballast_whole) = (Held::None, false);
        loop {
            self.look(&mut held, &mut is_ballast_whole).await;
            tokio::select! {
                () = tokio::time::sleep(CHECK_EVERY) => {}
                () = token.cancelled() => return,
            }
        }
    }
}
