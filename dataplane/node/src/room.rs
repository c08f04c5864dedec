//! Holds changes of metadata back while the data disk is full: the store of the metadata log latches on a write that finds no room, and
//! only a restart ends that.
//!
//! Produce stops earlier, at the reserve (the engine watches that). The rest of the reserve is there for what frees room: acks, deleted
//! topics, retention. Only when most of that is gone too are changes held.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use veena_metastore::Metastore;
use veena_storage::disk::Disk;
use veena_storage::io::Io;

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

impl RoomWatch {
    /// Looks once. Answers whether changes are held now.
    pub(crate) async fn look(&self, was_held: bool) -> bool {
        let (disk, dir) = (Arc::clone(&self.disk), self.data_dir.clone());
        // Room that cannot be read is reported by the engine; what was decided stands.
        let Ok(space) = self.io.run(move || disk.space(&dir)).await else { return was_held };
        let is_held = space.available < self.reserve / HELD_BELOW;
        if is_held != was_held {
            self.metastore.hold_changes(is_held.then(|| "the data disk is full".to_owned()));
            if is_held {
                warn!(available = space.available, reserve = self.reserve, "the data disk is full: changes of topics are refused");
            } else {
                info!(available = space.available, "the data disk has room again: changes of topics are accepted");
            }
        }
        is_held
    }

    /// Looks until `token` is cancelled.
    pub(crate) async fn run(self, token: CancellationToken) {
        let mut is_held = false;
        loop {
            is_held = self.look(is_held).await;
            tokio::select! {
                () = tokio::time::sleep(CHECK_EVERY) => {}
                () = token.cancelled() => return,
            }
        }
    }
}
