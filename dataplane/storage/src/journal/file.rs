//! The journal's files: their names, and whole reads and writes.

use std::io;
use std::path::Path;

use super::JournalOpenError;
use super::format::{self, Encoder, Entries};
use crate::disk::{Disk, DiskFile};

pub(super) const TEMP_NAME: &str = "settle.tmp";
pub(super) const DAMAGED_NAME: &str = "settle.damaged";

pub(super) fn file_name(generation: u64) -> String {
    format!("settle-{generation:016x}.journal")
}

fn generation_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("settle-")?.strip_suffix(".journal")?;
    let generation = u64::from_str_radix(digits, 16).ok()?;
    (file_name(generation) == name).then_some(generation)
}

/// Makes the directory's own name durable even when it exists: whoever created it may have died before.
pub(super) fn prepare_dir(disk: &dyn Disk, dir: &Path) -> Result<(), JournalOpenError> {
    let io = |step| move |error| JournalOpenError::Io { step, path: dir.to_path_buf(), error };
    disk.create_dir_all(dir).map_err(io("create"))?;
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => disk.sync_dir(parent).map_err(io("sync the parent of")),
        _ => Ok(()),
    }
}

/// The generations in `dir`, rising. Makes their names durable first: a name that only the cache knows must not be built upon.
pub(super) fn tidy(disk: &dyn Disk, dir: &Path) -> Result<Vec<u64>, JournalOpenError> {
    let io = |step| move |error| JournalOpenError::Io { step, path: dir.to_path_buf(), error };
    disk.sync_dir(dir).map_err(io("sync"))?;
    generations(disk, dir).map_err(io("list"))
}

pub(super) fn generations(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<u64>> {
    let mut generations: Vec<u64> =
        disk.list(dir)?.iter().filter(|entry| !entry.is_dir).filter_map(|entry| generation_of(&entry.name)).collect();
    generations.sort_unstable();
    Ok(generations)
}

pub(super) struct Partial {
    pub(super) written: usize,
    pub(super) error: io::Error,
}

pub(super) fn write_all(file: &dyn DiskFile, bytes: &[u8], at: u64) -> Result<(), Partial> {
    let mut written = 0;
    while written < bytes.len() {
        match file.write_at(&bytes[written..], at + written as u64) {
            Ok(0) => return Err(Partial { written, error: io::ErrorKind::WriteZero.into() }),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Partial { written, error }),
        }
    }
    Ok(())
}

pub(super) fn read_all(file: &dyn DiskFile) -> io::Result<Vec<u8>> {
    let len = usize::try_from(file.len()?).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    let mut bytes = vec![0; len];
    let mut read = 0;
    while read < len {
        match file.read_at(&mut bytes[read..], read as u64) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(read);
    Ok(bytes)
}

/// Writes head and map; returns the file's end. The head goes last, since it says where the map ends.
pub(super) fn write_snapshot(file: &dyn DiskFile, generation: u64, entries: &Entries) -> io::Result<u64> {
    let mut end = format::FILE_HEAD_BYTES as u64;
    let mut encoder = Encoder::new(generation, end, 0);
    let mut put = |encoder: &mut Encoder| {
        let bytes = encoder.take();
        write_all(file, &bytes, end).map_err(|partial| partial.error)?;
        end += bytes.len() as u64;
        Ok::<_, io::Error>(())
    };
    for ((kind, key), value) in entries {
        encoder.push(*kind, key, Some(value));
        if encoder.len() >= format::GROUP_BYTES_TARGET {
            put(&mut encoder)?;
        }
    }
    put(&mut encoder)?;
    let head = format::encode_head(generation, end);
    write_all(file, &head, 0).map_err(|partial| partial.error)?;
    Ok(end)
}
