//! Which copy of a partition a directory holds: a cell in it, written before another node can become the owner. What has none is left alone.
//!
//! A copy that is served says, too, when it was stopped to be handed over, before that is recorded anywhere. One that does not say so is the
//! newest there is: whoever had it in a later epoch would have got it from here.

use std::io;
use std::path::{Path, PathBuf};

use veena_contract::{Copy, MoveToken, OwnershipEpoch};
use veena_storage::cell::{self, CellError, CellKind, CellRead};
use veena_storage::disk::Disk;

use super::{me, ownership};
use crate::core::Core;
use crate::partition::Partition;

const SERVED: u8 = 1;
const INCOMING: u8 = 2;
const STOPPED: u8 = 3;

fn path(dir: &Path) -> PathBuf {
    dir.join("copy.cell")
}

/// What a directory says of what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Which copy.
    pub copy: Copy,
    /// Was it stopped in this epoch, to be handed over?
    pub is_stopped: bool,
}

/// What the directory holds, as far as it says.
///
/// # Errors
/// Of the file system.
pub fn read(disk: &dyn Disk, dir: &Path) -> io::Result<Option<Mark>> {
    match cell::read(disk, &path(dir), CellKind::PARTITION_COPY)? {
        CellRead::Value(bytes) => Ok(decode(&bytes)),
        CellRead::NotThere | CellRead::Damaged { .. } => Ok(None),
    }
}

/// Says, durably, that the copy that is served in this epoch has stopped. Says whether it had stopped before.
///
/// # Errors
/// Of the file system.
pub fn stop(disk: &dyn Disk, dir: &Path, epoch: OwnershipEpoch) -> io::Result<bool> {
    let stopped = Mark { copy: Copy::Served(epoch), is_stopped: true };
    if read(disk, dir)? == Some(stopped) {
        return Ok(true);
    }
    cell::write(disk, &path(dir), CellKind::PARTITION_COPY, &encode(stopped)).map_err(|failed| failed.source)?;
    Ok(false)
}

/// Says what the directory holds, durably.
///
/// # Errors
/// [`CellError`].
pub fn write(disk: &dyn Disk, dir: &Path, copy: Copy) -> Result<(), CellError> {
    cell::write(disk, &path(dir), CellKind::PARTITION_COPY, &encode(Mark { copy, is_stopped: false }))
}

/// Blocking. This node opens the log as its owner: what says which copy it is says from here on, durably, that it is served in this epoch.
/// Otherwise, were the catalog put back to before the move, it would look like one that never was.
///
/// # Errors
/// Of the file system: then nothing is to be committed to it.
pub fn serve(core: &Core, partition: &Partition) -> io::Result<()> {
    let view = core.ports.catalog.view();
    let owner = ownership(&view, partition.id).map(|(_, owner)| owner).filter(|owner| Some(&owner.node) == me(core));
    // What has stopped says so until it goes on.
    let Some(served) = owner.filter(|owner| !owner.is_frozen()).map(|owner| Copy::Served(owner.epoch)) else { return Ok(()) };
    let disk = core.ports.disk.as_ref();
    match read(disk, &partition.dir)? {
        Some(said) if said != Mark { copy: served, is_stopped: false } => {
            write(disk, &partition.dir, served).map_err(|failed| failed.source)
        }
        _ => Ok(()),
    }
}

/// `1 | epoch u64` or `2 | token u128`, and `3 | epoch u64` once it has stopped; big-endian.
fn encode(mark: Mark) -> Vec<u8> {
    match mark.copy {
        Copy::Served(epoch) => [&[if mark.is_stopped { STOPPED } else { SERVED }], &epoch.get().to_be_bytes()[..]].concat(),
        Copy::Incoming(token) => [&[INCOMING], &token.0.to_be_bytes()[..]].concat(),
    }
}

fn decode(bytes: &[u8]) -> Option<Mark> {
    let (kind, rest) = bytes.split_first()?;
    let copy = match *kind {
        SERVED | STOPPED => Copy::Served(OwnershipEpoch(u64::from_be_bytes(rest.try_into().ok()?))),
        INCOMING => Copy::Incoming(MoveToken(u128::from_be_bytes(rest.try_into().ok()?))),
        _ => return None,
    };
    Some(Mark { copy, is_stopped: *kind == STOPPED })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_fixed() {
        for (copy, is_stopped, hex) in [
            (Copy::Served(OwnershipEpoch(5)), false, "010000000000000005"),
            (Copy::Incoming(MoveToken(6)), false, "0200000000000000000000000000000006"),
            (Copy::Served(OwnershipEpoch(5)), true, "030000000000000005"),
        ] {
            let mark = Mark { copy, is_stopped };
            assert_eq!(encode(mark).iter().map(|byte| format!("{byte:02x}")).collect::<String>(), hex);
            assert_eq!(decode(&encode(mark)), Some(mark));
        }
        for bytes in [&[][..], &[1], &[4, 0, 0, 0, 0, 0, 0, 0, 5], &[0; 17]] {
            assert_eq!(decode(bytes), None);
        }
    }
}
