//! The machine's file system. The only place that uses `std::fs`.
//!
//! Must never open a file for appending (positions are explicit), never leave a file readable by others (files 0600, directories 0700),
//! and never retry a sync that failed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Advice, FlockOperation, Mode};

use super::{DirEntry, DirLock, Disk, DiskFile, OpenMode, Space};
use veena_contract::sabotage;

/// The machine's file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

struct RealFile(File);

struct RealLock {
    _dir: File,
}

impl DirLock for RealLock {}

fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

fn open_dir(dir: &Path) -> io::Result<File> {
    retry(|| OpenOptions::new().read(true).open(dir))
}

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).mode(0o600);
        match mode {
            OpenMode::Read => {}
            OpenMode::ReadWrite => {
                options.write(true);
            }
            OpenMode::CreateNew => {
                options.write(true).create_new(true);
            }
        }
        Ok(Arc::new(RealFile(retry(|| options.open(path))?)))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        retry(|| DirBuilder::new().recursive(true).mode(0o700).create(path))
    }

    fn make_private(&self, dir: &Path) -> io::Result<()> {
        retry(|| rustix::fs::chmod(dir, Mode::RWXU).map_err(io::Error::from))
    }

    #[allow(clippy::disallowed_methods, reason = "this is the implementation of the seam")]
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        retry(|| fs::rename(from, to))
    }

    #[allow(clippy::disallowed_methods, reason = "this is the implementation of the seam")]
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        retry(|| fs::remove_file(path))
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        retry(|| fs::remove_dir_all(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in retry(|| fs::read_dir(dir))? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let meta = match entry.metadata() {
                Ok(meta) => meta,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let is_dir = meta.is_dir();
            entries.push(DirEntry { name, is_dir, len: if is_dir { 0 } else { meta.len() } });
        }
        entries.sort();
        Ok(entries)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        retry(|| path.try_exists())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        if sabotage::is("no_dir_sync") {
            return Ok(());
        }
        open_dir(dir)?.sync_all()
    }

    fn lock_dir(&self, dir: &Path) -> io::Result<Box<dyn DirLock>> {
        let handle = open_dir(dir)?;
        retry(|| rustix::fs::flock(&handle, FlockOperation::NonBlockingLockExclusive).map_err(io::Error::from))?;
        Ok(Box::new(RealLock { _dir: handle }))
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let stat = retry(|| rustix::fs::statvfs(path).map_err(io::Error::from))?;
        Ok(Space { total: stat.f_blocks.saturating_mul(stat.f_frsize), available: stat.f_bavail.saturating_mul(stat.f_frsize) })
    }
}

impl DiskFile for RealFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        retry(|| self.0.read_at(buf, at))
    }

    fn write_at(&self, buf: &[u8], at: u64) -> io::Result<usize> {
        retry(|| self.0.write_at(buf, at))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        retry(|| self.0.set_len(len))
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn drop_cache(&self) -> io::Result<()> {
        retry(|| rustix::fs::fadvise(&self.0, 0, None, Advice::DontNeed).map_err(io::Error::from))
    }
}
