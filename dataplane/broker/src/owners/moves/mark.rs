//! Which copy of a partition a directory holds: a cell in it, written before another node can become the owner. What has none is left alone.

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

fn path(dir: &Path) -> PathBuf {
    dir.join("copy.cell")
}

/// What the directory holds, as far as it says.
///
/// # Errors
/// Of the file system.
pub fn read(disk: &dyn Disk, dir: &Path) -> io::Result<Option<Copy>> {
    match cell::read(disk, &path(dir), CellKind::PARTITION_COPY)? {
        CellRead::Value(bytes) => Ok(decode(&bytes)),
        CellRead::NotThere | CellRead::Damaged { .. } => Ok(None),
    }
}

/// Says what the directory holds, durably.
///
/// # Errors
/// [`CellError`].
pub fn write(disk: &dyn Disk, dir: &Path, copy: Copy) -> Result<(), CellError> {
    cell::write(disk, &path(dir), CellKind::PARTITION_COPY, &encode(copy))
}

/// Blocking. This node opens the log as its owner: what says which copy it is says from here on, durably, that it is served in this epoch.
/// Otherwise, were the catalog put back to before the move, it would look like one that never was.
///
/// # Errors
/// Of the file system: then nothing is to be committed to it.
pub fn serve(core: &Core, partition: &Partition) -> io::Result<()> {
    let view = core.ports.catalog.view();
    let owner = ownership(&view, partition.id).map(|(_, owner)| owner).filter(|owner| Some(&owner.node) == me(core));
    let Some(served) = owner.map(|owner| Copy::Served(owner.epoch)) else { return Ok(()) };
    let disk = core.ports.disk.as_ref();
    match read(disk, &partition.dir)? {
        Some(said) if said != served => write(disk, &partition.dir, served).map_err(|failed| failed.source),
        _ => Ok(()),
    }
}

/// `1 | epoch u64` or `2 | token u128`, big-endian.
fn encode(copy: Copy) -> Vec<u8> {
    match copy {
        Copy::Served(epoch) => [&[SERVED], &epoch.get().to_be_bytes()[..]].concat(),
        Copy::Incoming(token) => [&[INCOMING], &token.0.to_be_bytes()[..]].concat(),
    }
}

fn decode(bytes: &[u8]) -> Option<Copy> {
    match bytes.split_first()? {
        (&SERVED, epoch) => Some(Copy::Served(OwnershipEpoch(u64::from_be_bytes(epoch.try_into().ok()?)))),
        (&INCOMING, token) => Some(Copy::Incoming(MoveToken(u128::from_be_bytes(token.try_into().ok()?)))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_fixed() {
        let hex = |copy| encode(copy).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(Copy::Served(OwnershipEpoch(5))), "010000000000000005");
        assert_eq!(hex(Copy::Incoming(MoveToken(6))), "0200000000000000000000000000000006");
        for copy in [Copy::Served(OwnershipEpoch(5)), Copy::Incoming(MoveToken(6))] {
            assert_eq!(decode(&encode(copy)), Some(copy));
        }
        for bytes in [&[][..], &[1], &[3, 0, 0, 0, 0, 0, 0, 0, 5], &[0; 17]] {
            assert_eq!(decode(bytes), None);
        }
    }
}
