//! A tiny durable file: one value, replaced whole.
//!
//! Layout, big-endian: magic `VCEL`, format version (u16), kind (u16), length of the value (u32), CRC32C over what precedes it and the
//! value (u32), the value. A cell is never changed in place: a crash shows the old value or the new one, never a mixture.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use veena_contract::limits;

use crate::disk::{Disk, DiskFile, OpenMode, read_full_at, write_all_at};

const MAGIC: [u8; 4] = *b"VCEL";
const FORMAT_VERSION: u16 = 1;
const HEADER_BYTES: usize = 16;

/// What a cell is for, so that one kind is never read as another. The registry only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CellKind(pub u16);

impl CellKind {
    /// The identity of a WAL directory.
    pub const WAL_ID: Self = Self(1);
    /// Below which position everything in the WAL is dispatched.
    pub const WAL_CHECKPOINT: Self = Self(2);
    /// The streams that have records in the WAL.
    pub const WAL_STREAMS: Self = Self(3);
    /// Which copy of a partition a directory holds.
    pub const PARTITION_COPY: Self = Self(4);
    /// What tenants have used.
    pub const USAGE: Self = Self(5);
}

/// What is found where a cell should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CellRead {
    /// No file.
    NotThere,
    /// A file that is not an intact cell of this kind.
    Damaged {
        /// What is wrong with it.
        reason: String,
    },
    /// The value.
    Value(Vec<u8>),
}

/// A cell was not written. Before the rename the old value stands; after it either may be found.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step} {}", path.display())]
pub struct CellError {
    /// The cell.
    pub path: PathBuf,
    /// Which step failed.
    pub step: &'static str,
    /// Why.
    #[source]
    pub source: io::Error,
}

/// Reads a cell.
///
/// # Errors
/// Of the file system; damage is not an error.
pub fn read(disk: &dyn Disk, path: &Path, kind: CellKind) -> io::Result<CellRead> {
    let file = match disk.open(path, OpenMode::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(CellRead::NotThere),
        Err(error) => return Err(error),
    };
    let len = file.len()?;
    let Some(len) = usize::try_from(len).ok().filter(|len| *len <= HEADER_BYTES + limits::CELL_BYTES_MAX) else {
        return Ok(CellRead::Damaged { reason: format!("{len} bytes are more than a cell can have") });
    };
    let mut bytes = vec![0; len];
    let read = read_full_at(&*file, &mut bytes, 0)?;
    bytes.truncate(read);
    Ok(match decode(&bytes, kind) {
        Ok(value) => CellRead::Value(value.to_vec()),
        Err(reason) => CellRead::Damaged { reason },
    })
}

/// Replaces a cell, durably.
///
/// # Errors
/// [`CellError`], naming the step.
///
/// # Panics
/// When the value is larger than [`limits::CELL_BYTES_MAX`].
pub fn write(disk: &dyn Disk, path: &Path, kind: CellKind, value: &[u8]) -> Result<(), CellError> {
    let failed = |step| move |source| CellError { path: path.to_owned(), step, source };
    let mut temp = path.as_os_str().to_owned();
    temp.push(".tmp");
    let temp = PathBuf::from(temp);
    match disk.remove_file(&temp) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed("clear the way for")(error)),
        _ => {}
    }
    // 1 temp file synced   2 renamed   3 directory synced    — a crash after 2 may show either value, never half of one
    let file = disk.open(&temp, OpenMode::CreateNew).map_err(failed("create"))?;
    let outcome = write_temp(&*file, &encode(kind, value));
    if let Err(error) = outcome {
        let _ = disk.remove_file(&temp);
        return Err(error).map_err(failed("write"));
    }
    disk.rename(&temp, path).map_err(failed("rename"))?;
    disk.sync_dir(path.parent().unwrap_or(Path::new("."))).map_err(failed("sync the directory of"))
}

fn write_temp(file: &dyn DiskFile, bytes: &[u8]) -> io::Result<()> {
    write_all_at(file, bytes, 0)?;
    file.sync_data()
}

fn encode(kind: CellKind, value: &[u8]) -> Vec<u8> {
    assert!(value.len() <= limits::CELL_BYTES_MAX, "a cell of {} bytes", value.len());
    let len = u32::try_from(value.len()).expect("invariant: limits::CELL_BYTES_MAX fits u32");
    let mut bytes = Vec::with_capacity(HEADER_BYTES + value.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&FORMAT_VERSION.to_be_bytes());
    bytes.extend_from_slice(&kind.0.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes), value);
    bytes.extend_from_slice(&crc.to_be_bytes());
    bytes.extend_from_slice(value);
    bytes
}

/// The value in a cell's bytes.
///
/// # Errors
/// What is wrong with them; never panics.
pub fn decode(bytes: &[u8], kind: CellKind) -> Result<&[u8], String> {
    let Some((head, value)) = bytes.split_at_checked(HEADER_BYTES) else {
        return Err(format!("{} bytes are less than a header", bytes.len()));
    };
    if head[..4] != MAGIC {
        return Err("no magic".to_owned());
    }
    let u16_at = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let u32_at = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if crc32c::crc32c_append(crc32c::crc32c(&head[..12]), value) != u32_at(12) {
        return Err("checksum does not match".to_owned());
    }
    if usize::try_from(u32_at(8)) != Ok(value.len()) {
        return Err(format!("length says {}, there are {}", u32_at(8), value.len()));
    }
    if u16_at(4) != FORMAT_VERSION {
        return Err(format!("format version {} is not known", u16_at(4)));
    }
    if u16_at(6) != kind.0 {
        return Err(format!("kind {} where {} belongs", u16_at(6), kind.0));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_has_these_bytes() {
        let bytes = encode(CellKind::WAL_CHECKPOINT, b"value");
        assert_eq!(&bytes[..12], b"VCEL\x00\x01\x00\x02\x00\x00\x00\x05");
        assert_eq!(&bytes[16..], b"value");
        assert_eq!(decode(&bytes, CellKind::WAL_CHECKPOINT), Ok(&b"value"[..]));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_damage() {
        let bytes = encode(CellKind::WAL_ID, b"identity");
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&flipped, CellKind::WAL_ID).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len], CellKind::WAL_ID).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn one_kind_is_not_read_as_another() {
        assert!(decode(&encode(CellKind::WAL_ID, b""), CellKind::WAL_STREAMS).is_err());
    }
}
