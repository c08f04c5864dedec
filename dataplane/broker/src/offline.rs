//! What the engine's files say of a node that does not run. Changes nothing.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use veena_contract::Offset;
use veena_storage::disk::Disk;
use veena_storage::journal;

use crate::consume::promised;
use crate::layout;
use crate::settle::KIND_PROMISE;

/// Up to where each partition's log was published, as the settle journal says.
pub struct PromisedEnds(BTreeMap<Vec<u8>, Offset>);

impl PromisedEnds {
    /// Reads the journal of a data directory; `None` when there is none. What of it is damaged counts as not said.
    ///
    /// # Errors
    /// Of the file system; `InvalidData` for a journal of a newer version.
    pub fn read(disk: &dyn Disk, data: &Path) -> io::Result<Option<Self>> {
        let dir = layout::settle_dir(data);
        if !disk.exists(&dir)? {
            return Ok(None);
        }
        let Some(facts) = journal::inspect(disk, &dir)? else { return Ok(None) };
        let promises = facts.entries.into_iter().filter(|((kind, _), _)| *kind == KIND_PROMISE);
        let ends = promises.filter_map(|((_, key), bytes)| Some((key, promised::decode(&bytes).ok()?.end)));
        Ok(Some(Self(ends.collect())))
    }

    /// Up to where the log in this directory was published; `Offset(0)` when the journal does not say.
    #[must_use]
    pub fn of(&self, partition_dir: &Path) -> Offset {
        let key = layout::partition_of(partition_dir).map(promised::key);
        key.and_then(|key| self.0.get(&key)).copied().unwrap_or_default()
    }
}
