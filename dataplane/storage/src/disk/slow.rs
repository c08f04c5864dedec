//! A disk whose syncs take longer, to measure on a fast machine what a cloud volume would do. It can also stand still: while the file
//! `stall` exists, no sync comes back.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{DirEntry, DirLock, Disk, DiskFile, OpenMode, Space};

/// How often a stalled sync looks whether it may go on.
const STALL_LOOK_EVERY: Duration = Duration::from_millis(5);

/// Waits while `stall` is a file that exists.
fn wait_out(disk: &dyn Disk, stall: Option<&Path>) {
    let Some(path) = stall else { return };
    while matches!(disk.exists(path), Ok(true)) {
        std::thread::sleep(STALL_LOOK_EVERY);
    }
}

/// Passes everything on, and sleeps after each sync of data or names.
pub struct SlowDisk {
    /// The disk that does the work.
    pub inner: Arc<dyn Disk>,
    /// How much longer each sync takes.
    pub sync_delay: Duration,
    /// The file that stops all syncs while it exists.
    pub stall: Option<PathBuf>,
}

struct SlowFile {
    disk: Arc<dyn Disk>,
    inner: Arc<dyn DiskFile>,
    sync_delay: Duration,
    stall: Option<PathBuf>,
}

impl Disk for SlowDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let inner = self.inner.open(path, mode)?;
        Ok(Arc::new(SlowFile { disk: Arc::clone(&self.inner), inner, sync_delay: self.sync_delay, stall: self.stall.clone() }))
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
        wait_out(self.inner.as_ref(), self.stall.as_deref());
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
        wait_out(self.disk.as_ref(), self.stall.as_deref());
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::disk::real::RealDisk;

    #[test]
    fn a_stalled_disk_stands_still_until_the_file_is_gone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("stall");
        RealDisk.open(&path, OpenMode::CreateNew).expect("a new file");
        let (done, passed) = mpsc::channel();
        let stalled = path.clone();
        let waiter = std::thread::spawn(move || {
            wait_out(&RealDisk, Some(&stalled));
            done.send(()).expect("the test waits");
        });
        assert!(passed.recv_timeout(Duration::from_millis(100)).is_err(), "it goes on although the file exists");
        RealDisk.remove_file(&path).expect("it is there");
        passed.recv().expect("it goes on once the file is gone");
        waiter.join().expect("it ends");
        wait_out(&RealDisk, Some(&path));
        wait_out(&RealDisk, None);
    }
}
