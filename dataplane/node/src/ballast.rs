//! Room held back for starts on a full disk: a file of zeros in the data directory.
//!
//! The store of the metadata log does not open without some free room, and without it the node could not serve what frees room: consume,
//! ack, retention, deleted topics. So a start that finds too little takes a piece of this file, and it grows again once there is plenty. On
//! a file system that packs zeros it holds back nothing. What is in the file, or that it is there, never matters.

use std::io;
use std::path::{Path, PathBuf};

use veena_contract::limits;
use veena_storage::disk::{Disk, DiskFile, OpenMode, write_all_at};

/// It grows in steps of this size, each synced, so that no sync of a log waits behind the whole of it.
const STEP_BYTES: usize = 4 * 1024 * 1024;
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("ballast")
}

/// Makes room for the metadata log to be opened, if there is too little and something is held back. Answers how much. Blocks.
///
/// # Errors
/// Of the file system.
pub(crate) fn spend(disk: &dyn Disk, data_dir: &Path) -> io::Result<u64> {
    if disk.space(data_dir)?.available >= limits::METADATA_OPEN_BYTES || !disk.exists(&path(data_dir))? {
        return Ok(0);
    }
    let file = disk.open(&path(data_dir), OpenMode::ReadWrite)?;
    let len = file.len()?;
    let kept = len.saturating_sub(limits::METADATA_OPEN_BYTES);
    file.set_len(kept)?;
    file.sync_data()?;
    Ok(len - kept)
}

/// Lets the ballast grow by one step, if it is not whole and the disk has so much room that all of it leaves `reserve` free. Says whether
/// it is whole. Blocks.
///
/// # Errors
/// Of the file system.
pub(crate) fn grow(disk: &dyn Disk, data_dir: &Path, available: u64, reserve: u64) -> io::Result<bool> {
    if available < reserve.saturating_add(limits::BALLAST_BYTES) {
        return Ok(false);
    }
    let path = path(data_dir);
    let file = if disk.exists(&path)? {
        disk.open(&path, OpenMode::ReadWrite)?
    } else {
        let file = disk.open(&path, OpenMode::CreateNew)?;
        disk.sync_dir(data_dir)?;
        file
    };
    let len = file.len()?;
    let missing = usize::try_from(limits::BALLAST_BYTES.saturating_sub(len)).unwrap_or(STEP_BYTES);
    if missing > 0 {
        add_zeros(file.as_ref(), len, missing.min(STEP_BYTES))?;
    }
    Ok(missing <= STEP_BYTES)
}

fn add_zeros(file: &dyn DiskFile, mut at: u64, mut bytes: usize) -> io::Result<()> {
    while bytes > 0 {
        let piece = &ZEROS[..bytes.min(ZEROS.len())];
        write_all_at(file, piece, at)?;
        at += piece.len() as u64;
        bytes -= piece.len();
    }
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use veena_storage::disk::mem::MemDisk;

    use super::*;

    const RESERVE: u64 = 1024 * 1024;

    /// An empty disk with `bytes` free.
    fn disk(bytes: u64) -> MemDisk {
        let disk = MemDisk::new();
        disk.create_dir_all(Path::new("/data")).expect("created");
        disk.set_capacity(bytes);
        disk
    }

    fn available(disk: &MemDisk) -> u64 {
        disk.space(Path::new("/data")).expect("told").available
    }

    fn grow_whole(disk: &MemDisk) -> u64 {
        let mut steps = 1;
        while !grow(disk, Path::new("/data"), available(disk), RESERVE).expect("written") {
            steps += 1;
            assert!(steps < 100, "it is never whole");
        }
        steps
    }

    #[test]
    fn a_start_without_room_takes_a_piece_and_the_next_one_another() {
        let disk = disk(10 * limits::BALLAST_BYTES);
        assert!(grow_whole(&disk) > 1, "in steps");
        let dir = Path::new("/data");
        assert_eq!(spend(&disk, dir).expect("asked"), 0, "there is room");
        let used = 10 * limits::BALLAST_BYTES - available(&disk);
        assert_eq!(used, limits::BALLAST_BYTES);
        for full in 1..=limits::BALLAST_BYTES / limits::METADATA_OPEN_BYTES {
            disk.set_capacity(used);
            // Whatever was freed before is taken by others.
            let filler = disk.open(&dir.join(format!("filler-{full}")), OpenMode::CreateNew).expect("created");
            filler.set_len(available(&disk)).expect("extended");
            assert_eq!(available(&disk), 0);
            assert_eq!(spend(&disk, dir).expect("freed"), limits::METADATA_OPEN_BYTES, "start {full}");
            assert_eq!(available(&disk), limits::METADATA_OPEN_BYTES);
        }
        disk.set_capacity(used - available(&disk));
        assert_eq!(spend(&disk, dir).expect("asked"), 0, "nothing is left");
    }

    #[test]
    fn it_grows_only_where_all_of_it_leaves_the_reserve() {
        let short = disk(limits::BALLAST_BYTES + RESERVE - 1);
        assert!(!grow(&short, Path::new("/data"), available(&short), RESERVE).expect("asked"));
        assert_eq!(short.list(Path::new("/data")).expect("listed"), []);
        assert_eq!(spend(&disk(0), Path::new("/data")).expect("asked"), 0, "there is none to spend");
    }
}
