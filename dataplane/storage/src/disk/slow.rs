//! A disk whose syncs take longer, to measure on a fast machine what a cloud volume would do.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{DirEntry, DirLock, Disk, DiskFile, OpenMode, Space};

/// Passes everything on, and sleeps after each sync of data or names.
pub struct SlowDisk {
    /// The disk that does the work.
    pub inner: Arc<dyn Disk>,
    /// How much longer each sync takes.
    pub sync_delay: Duration,
}

struct SlowFile {
    inner: Arc<dyn DiskFile>,
    sync_delay: Duration,
}

impl Disk for SlowDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(SlowFile { inner: self.inner.open(path, mode)?, sync_delay: self.sync_delay }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.inner.create_dir_all(path)
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
        let outcome = self.inner.sync_dir(dir);
        std::thread::sleep(self.sync_delay);
        outcome
    }

    fn lock_dir(&self, dir: &Path) -> io::Result<Box<dyn DirLock>> {
        self.inner.lock_dir(dir)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        self.inner.space(path)
    }
}

impl DiskFile for SlowFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        self.inner.read_at(buf, at)
    }

    fn write_at(&self, buf: &[u8], at: u64) -> io::Result<usize> {
        self.inner.write_at(buf, at)
    }

    fn sync_data(&self) -> io::Result<()> {
        let outcome = self.inner.sync_data();
        std::thread::sleep(self.sync_delay);
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
