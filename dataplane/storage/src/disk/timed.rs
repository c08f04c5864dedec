//! A disk that tells how long syncs take: those of files that were there when they were opened, as a log's segments are. What is written
//! whole under a temporary name (cells, segments to be) nobody waits for.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{DirEntry, DirLock, Disk, DiskFile, OpenMode, Space};

/// Is told how long each sync took. Must be quick: who waits for the sync waits for it too.
pub type OnSync = Arc<dyn Fn(Duration) + Send + Sync>;

/// Passes everything on, and times syncs.
pub struct TimedDisk {
    /// The disk that does the work.
    pub inner: Arc<dyn Disk>,
    /// Who is told.
    pub on_sync: OnSync,
}

struct TimedFile {
    inner: Arc<dyn DiskFile>,
    on_sync: OnSync,
}

impl Disk for TimedDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let inner = self.inner.open(path, mode)?;
        if mode != OpenMode::ReadWrite {
            return Ok(inner);
        }
        Ok(Arc::new(TimedFile { inner, on_sync: Arc::clone(&self.on_sync) }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.inner.create_dir_all(path)
    }

    fn make_private(&self, dir: &Path) -> io::Result<()> {
        self.inner.make_private(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_dir_all(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.inner.list(dir)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.inner.exists(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.sync_dir(dir)
    }

    fn lock_dir(&self, dir: &Path) -> io::Result<Box<dyn DirLock>> {
        self.inner.lock_dir(dir)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        self.inner.space(path)
    }
}

impl DiskFile for TimedFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        self.inner.read_at(buf, at)
    }

    fn write_at(&self, buf: &[u8], at: u64) -> io::Result<usize> {
        self.inner.write_at(buf, at)
    }

    fn sync_data(&self) -> io::Result<()> {
        let began = Instant::now();
        let outcome = self.inner.sync_data();
        (self.on_sync)(began.elapsed());
        outcome
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn drop_cache(&self) -> io::Result<()> {
        self.inner.drop_cache()
    }
}
