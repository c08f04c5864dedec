use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use veena_contract::Entropy;
use veena_storage::disk::mem::{Fault, FaultKind, MemDisk, Op};
use veena_storage::disk::real::RealDisk;
use veena_storage::disk::slow::SlowDisk;
use veena_storage::disk::{Disk, DiskFile, OpenMode, read_full_at, write_all_at};

use crate::support::Seeded;

fn contents(file: &dyn DiskFile) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.len().expect("length")).expect("small")];
    let read = read_full_at(file, &mut bytes, 0).expect("read");
    assert_eq!(read, bytes.len());
    bytes
}

/// What every disk does.
fn conforms(disk: &dyn Disk, root: &Path) {
    let dir = root.join("a/b");
    disk.create_dir_all(&dir).expect("created");
    disk.create_dir_all(&dir).expect("created again");
    let path = dir.join("file");
    assert_eq!(disk.open(&path, OpenMode::Read).err().map(|error| error.kind()), Some(ErrorKind::NotFound));
    let file = disk.open(&path, OpenMode::CreateNew).expect("created");
    assert_eq!(disk.open(&path, OpenMode::CreateNew).err().map(|error| error.kind()), Some(ErrorKind::AlreadyExists));
    write_all_at(&*file, b"hello", 0).expect("written");
    write_all_at(&*file, b"there", 7).expect("written");
    file.sync_data().expect("synced");
    file.drop_cache().expect("dropped");
    disk.sync_dir(&dir).expect("synced");
    assert_eq!(contents(&*file), b"hello\0\0there");
    file.set_len(3).expect("cut");
    file.set_len(6).expect("grown");
    assert_eq!(contents(&*file), b"hel\0\0\0");
    let other = dir.join("other");
    write_all_at(&*disk.open(&other, OpenMode::CreateNew).expect("created"), b"x", 0).expect("written");
    disk.rename(&path, &other).expect("renamed over a file");
    assert!(!disk.exists(&path).expect("asked"));
    let listed = disk.list(&dir).expect("listed");
    assert_eq!(listed.iter().map(|entry| (entry.name.as_str(), entry.is_dir, entry.len)).collect::<Vec<_>>(), [("other", false, 6)]);
    assert_eq!(disk.list(&root.join("a")).expect("listed").iter().map(|entry| entry.is_dir).collect::<Vec<_>>(), [true]);
    let lock = disk.lock_dir(&dir).expect("locked");
    assert_eq!(disk.lock_dir(&dir).err().map(|error| error.kind()), Some(ErrorKind::WouldBlock));
    drop(lock);
    drop(disk.lock_dir(&dir).expect("locked again"));
    disk.rename(&dir, &root.join("a/c")).expect("renamed a directory");
    disk.remove_file(&root.join("a/c/other")).expect("removed");
    assert_eq!(disk.remove_file(&root.join("a/c/other")).err().map(|error| error.kind()), Some(ErrorKind::NotFound));
    disk.remove_dir_all(&root.join("a")).expect("removed");
    assert!(!disk.exists(&root.join("a")).expect("asked"));
    let space = disk.space(root).expect("space");
    assert!(space.total >= space.available && space.available > 0);
}

#[test]
fn the_memory_disk_behaves_like_a_disk() {
    conforms(&MemDisk::new(), Path::new("/"));
    conforms(&MemDisk::with_block_bytes(2), Path::new("/"));
}

#[test]
fn the_real_disk_behaves_like_a_disk() {
    let dir = tempfile::tempdir().expect("temporary directory");
    conforms(&RealDisk, dir.path());
    let slow = SlowDisk { inner: Arc::new(RealDisk), sync_delay: std::time::Duration::ZERO, stall: None };
    conforms(&slow, dir.path());
}

#[test]
fn files_of_the_real_disk_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("temporary directory");
    RealDisk.create_dir_all(&dir.path().join("d")).expect("created");
    RealDisk.open(&dir.path().join("d/f"), OpenMode::CreateNew).expect("created");
    let mode = |path: &str| std::fs::metadata(dir.path().join(path)).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode("d"), mode("d/f")), (0o700, 0o600));
}

fn synced_file(disk: &MemDisk, path: &str) -> Arc<dyn DiskFile> {
    let file = disk.open(Path::new(path), OpenMode::CreateNew).expect("created");
    disk.sync_dir(Path::new("/")).expect("synced");
    file
}

#[test]
fn a_killed_process_loses_no_byte_and_all_handles_and_locks() {
    let disk = MemDisk::new();
    let file = disk.open(Path::new("/f"), OpenMode::CreateNew).expect("created");
    let _lock = disk.lock_dir(Path::new("/")).expect("locked");
    write_all_at(&*file, b"unsynced", 0).expect("written");
    disk.crash_kill();
    assert!(file.read_at(&mut [0], 0).is_err());
    assert!(disk.list(Path::new("/")).is_err());
    let disk = disk.reopen();
    drop(disk.lock_dir(Path::new("/")).expect("the lock went with the process"));
    let file = disk.open(Path::new("/f"), OpenMode::Read).expect("opened");
    assert_eq!(contents(&*file), b"unsynced");
}

#[test]
fn a_power_cut_keeps_what_was_synced_and_any_subset_of_the_rest() {
    let mut kept = std::collections::BTreeSet::new();
    for seed in 0..64 {
        let disk = MemDisk::with_block_bytes(4);
        let file = synced_file(&disk, "/f");
        write_all_at(&*file, b"aaaabbbbcccc", 0).expect("written");
        file.sync_data().expect("synced");
        write_all_at(&*file, b"AAAA", 0).expect("written");
        write_all_at(&*file, b"CCCC", 8).expect("written");
        let random = Seeded::new(seed);
        disk.crash_power(&mut || random.next_u64());
        let file = disk.reopen().open(Path::new("/f"), OpenMode::Read).expect("opened");
        kept.insert(String::from_utf8(contents(&*file)).expect("ascii"));
    }
    let expected = ["aaaabbbbcccc", "AAAAbbbbcccc", "aaaabbbbCCCC", "AAAAbbbbCCCC"];
    assert_eq!(kept, expected.map(str::to_owned).into());
}

#[test]
fn a_name_is_safe_only_after_its_directory_was_synced() {
    let mut found = std::collections::BTreeSet::new();
    for seed in 0..32 {
        let disk = MemDisk::new();
        synced_file(&disk, "/old").sync_data().expect("synced");
        disk.rename(Path::new("/old"), Path::new("/new")).expect("renamed");
        disk.open(Path::new("/fresh"), OpenMode::CreateNew).expect("created").sync_data().expect("synced");
        let random = Seeded::new(seed);
        disk.crash_power(&mut || random.next_u64());
        let names: Vec<_> = disk.reopen().list(Path::new("/")).expect("listed").into_iter().map(|entry| entry.name).collect();
        assert_eq!(names.iter().filter(|name| *name != "fresh").count(), 1, "a rename is atomic: {names:?}");
        found.insert(names);
    }
    assert_eq!(found.len(), 4);
}

#[test]
fn a_write_the_power_cut_falls_into_may_be_torn_anywhere() {
    let mut lengths = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let disk = MemDisk::with_block_bytes(64);
        let file = synced_file(&disk, "/f");
        write_all_at(&*file, &[b'o'; 16], 0).expect("written");
        file.sync_data().expect("synced");
        disk.cut_power_at(0);
        assert!(file.write_at(&[b'n'; 16], 0).is_err());
        assert!(file.sync_data().is_err());
        let random = Seeded::new(seed);
        disk.crash_power_in_write(&mut || random.next_u64());
        let file = disk.reopen().open(Path::new("/f"), OpenMode::Read).expect("opened");
        let bytes = contents(&*file);
        let new = bytes.iter().take_while(|byte| **byte == b'n').count();
        assert!(bytes[new..].iter().all(|byte| *byte == b'o'));
        lengths.insert(new);
    }
    assert!(lengths.len() > 8, "{lengths:?}");
}

#[test]
fn a_failed_sync_forgets_that_pages_are_dirty() {
    let disk = MemDisk::new();
    let file = synced_file(&disk, "/f");
    write_all_at(&*file, b"old", 0).expect("written");
    file.sync_data().expect("synced");
    write_all_at(&*file, b"new", 0).expect("written");
    disk.inject(Fault { op: Op::Sync, path_contains: String::new(), after: 0, times: 1, kind: FaultKind::Eio });
    assert!(file.sync_data().is_err());
    file.sync_data().expect("the retry succeeds and saves nothing");
    assert_eq!(contents(&*file), b"new", "the cache still shows it");
    file.drop_cache().expect("dropped");
    assert_eq!(contents(&*file), b"old", "the device never got it");
}

#[test]
fn a_full_disk_takes_what_fits_and_then_nothing() {
    let disk = MemDisk::new();
    disk.set_capacity(10);
    let file = disk.open(Path::new("/f"), OpenMode::CreateNew).expect("created");
    assert_eq!(file.write_at(&[1; 16], 0).expect("a short write"), 10);
    assert_eq!(file.write_at(&[1; 16], 10).err().map(|error| error.kind()), Some(ErrorKind::StorageFull));
    assert_eq!(file.write_at(&[2; 10], 0).expect("no new room needed"), 10);
    assert_eq!(disk.space(Path::new("/")).expect("space").available, 0);
    disk.remove_file(Path::new("/f")).expect("removed");
    assert_eq!(disk.space(Path::new("/")).expect("space").available, 10);
}

#[test]
fn planned_faults_hit_the_calls_they_name() {
    let disk = MemDisk::new();
    let file = synced_file(&disk, "/f");
    disk.inject(Fault { op: Op::Write, path_contains: "f".to_owned(), after: 1, times: 1, kind: FaultKind::ShortWrite(2) });
    assert_eq!(file.write_at(b"abcd", 0).expect("whole"), 4);
    assert_eq!(file.write_at(b"efgh", 4).expect("short"), 2);
    disk.inject(Fault { op: Op::Write, path_contains: "f".to_owned(), after: 0, times: 1, kind: FaultKind::ErrorAfter(3) });
    assert!(file.write_at(b"ijkl", 6).is_err());
    assert_eq!(contents(&*file), b"abcdefijk", "the failed write left bytes");
    disk.inject(Fault { op: Op::Read, path_contains: "g".to_owned(), after: 0, times: 1, kind: FaultKind::Eio });
    assert_eq!(contents(&*file), b"abcdefijk", "another file's fault");
}
