//! The file seam. Everything durable goes through [`Disk`] and [`DiskFile`]; `real.rs` is the only place that uses `std::fs`.
//!
//! Two implementations: [`real::RealDisk`], and [`mem::MemDisk`], which can crash in three ways (process kill, power cut, power cut inside
//! a write) and inject short writes, sync errors, full disks and bit flips.

pub mod mem;
pub mod real;
pub mod slow;
pub mod timed;

use std::io;
use std::path::Path;
use std::sync::Arc;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// An existing file, for reading.
    Read,
    /// An existing file, for reading and writing.
    ReadWrite,
    /// A new file, for reading and writing; an existing one is an error (`AlreadyExists`).
    CreateNew,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The entry's name; entries whose names are not UTF-8 are not ours and are left out.
    pub name: String,
    /// Is it a directory?
    pub is_dir: bool,
    /// Its length in bytes; 0 for a directory.
    pub len: u64,
}

/// Room on the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes in all.
    pub total: u64,
    /// Bytes free for us.
    pub available: u64,
}

/// Holds a directory's lock until dropped. Kept by the kernel, not by a file's existence: it ends with the process.
pub trait DirLock: Send + Sync {}

/// A file system, as far as Veena needs one. All calls block; run them on [`Io`](crate::io::Io).
///
/// Durability is explicit: data is safe after [`DiskFile::sync_data`], a created, renamed or removed name after [`Disk::sync_dir`] of its
/// directory. Nothing else makes anything durable.
pub trait Disk: Send + Sync + 'static {
    /// Opens a file.
    ///
    /// # Errors
    /// Of the file system; `NotFound` and `AlreadyExists` have their usual meaning.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>>;
    /// Creates a directory and missing parents (mode 0700). Idempotent. The names are durable only after `sync_dir` of each parent.
    ///
    /// # Errors
    /// Of the file system.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Takes a directory away from everybody but its owner: a directory that was there before may be open to others. Where nobody else is, it
    /// does nothing.
    ///
    /// # Errors
    /// Of the file system.
    fn make_private(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }
    /// Renames a file or directory, replacing a file at `to`.
    ///
    /// # Errors
    /// Of the file system.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// Of the file system.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory with all it holds.
    ///
    /// # Errors
    /// Of the file system.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Lists a directory, in name order.
    ///
    /// # Errors
    /// Of the file system.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>>;
    /// Does a file or directory exist?
    ///
    /// # Errors
    /// Of the file system, other than `NotFound`.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// Of the file system. Like any failed sync: never retried, never hidden.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Takes the exclusive lock of a directory for this process.
    ///
    /// # Errors
    /// `WouldBlock` when another process holds it.
    fn lock_dir(&self, dir: &Path) -> io::Result<Box<dyn DirLock>>;
    /// Room on the volume that holds `path`.
    ///
    /// # Errors
    /// Of the file system.
    fn space(&self, path: &Path) -> io::Result<Space>;
}

/// An open file. Positions are explicit; there is no cursor.
#[allow(clippy::len_without_is_empty, reason = "nobody asks whether a file is empty")]
pub trait DiskFile: Send + Sync {
    /// Reads at most `buf.len()` bytes at `at`; 0 at the end.
    ///
    /// # Errors
    /// Of the file system.
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize>;
    /// Writes at most `buf.len()` bytes at `at`; may write fewer.
    ///
    /// # Errors
    /// Of the file system. On an error nothing is known about the bytes.
    fn write_at(&self, buf: &[u8], at: u64) -> io::Result<usize>;
    /// Makes the file's data and length durable. After an error the file is latched by its owner: no retry (design I9).
    ///
    /// # Errors
    /// Of the file system.
    fn sync_data(&self) -> io::Result<()>;
    /// Cuts or extends (with zeros) the file.
    ///
    /// # Errors
    /// Of the file system.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// The file's length.
    ///
    /// # Errors
    /// Of the file system.
    fn len(&self) -> io::Result<u64>;
    /// Forgets cached pages, so that the next read comes from the device. Only meaningful after `sync_data`.
    ///
    /// # Errors
    /// Of the file system.
    fn drop_cache(&self) -> io::Result<()>;
}

/// Writes all of `buf` at `at`, over short writes.
///
/// # Errors
/// Of the file system; `WriteZero` when a write takes nothing.
pub fn write_all_at(file: &dyn DiskFile, mut buf: &[u8], mut at: u64) -> io::Result<()> {
    while !buf.is_empty() {
        let written = file.write_at(buf, at)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        buf = &buf[written..];
        at += written as u64;
    }
    Ok(())
}

/// Reads until `buf` is full or the file ends; says how much was read.
///
/// # Errors
/// Of the file system.
pub fn read_full_at(file: &dyn DiskFile, buf: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buf.len() {
        let read = file.read_at(&mut buf[filled..], at + filled as u64)?;
        if read == 0 {
            break;
        }
        filled += read;
    }
    Ok(filled)
}

/// Creates a directory and missing parents, and makes their names durable. Every ancestor is synced each time: one that is found there may
/// be the work of a process that died before its sync. Ancestors this process may not read were not made by it.
///
/// # Errors
/// Of the file system.
pub fn create_dir_durably(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    disk.create_dir_all(path)?;
    for ancestor in path.ancestors().skip(1) {
        let ancestor = if ancestor.as_os_str().is_empty() { Path::new(".") } else { ancestor };
        match disk.sync_dir(ancestor) {
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
