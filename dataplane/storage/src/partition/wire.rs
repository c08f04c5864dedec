//! Bounded reading of big-endian bytes, and the two loops every file access needs.

use std::io;

use crate::disk::DiskFile;

/// A cursor over bytes that never reads past their end.
pub(crate) struct WireReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> WireReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// How many bytes were read.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(len)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|b| b[0])
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn u128(&mut self) -> Option<u128> {
        self.array().map(u128::from_be_bytes)
    }

    /// A 32-bit length that is known to be present in full.
    pub(crate) fn len32(&mut self) -> Option<usize> {
        let len = usize::try_from(self.u32()?).ok()?;
        (len <= self.remaining()).then_some(len)
    }
}

/// A length as the formats store it.
///
/// # Panics
/// When the caller broke its own bound of 4 GiB.
pub(crate) fn len32(len: usize) -> u32 {
    u32::try_from(len).expect("invariant: lengths are bounded far below 4 GiB")
}

/// A length as a file position.
pub(crate) fn len64(len: usize) -> u64 {
    u64::try_from(len).expect("invariant: usize has at most 64 bits")
}

/// A file length or position as a length in memory.
pub(crate) fn memory_len(len: u64) -> io::Result<usize> {
    usize::try_from(len).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "length does not fit in memory"))
}

/// Reads until `buf` is full or the file ends; returns how much was read.
pub(crate) fn read_full(file: &dyn DiskFile, buf: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], at + len64(done)) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// A write that stopped before its end.
#[derive(Debug)]
pub(crate) struct ShortWrite {
    /// How many bytes certainly went before.
    pub(crate) written: usize,
    pub(crate) error: io::Error,
}

/// Writes all of `buf`, over short writes.
pub(crate) fn write_full(file: &dyn DiskFile, buf: &[u8], at: u64) -> Result<(), ShortWrite> {
    let mut written = 0;
    while written < buf.len() {
        match file.write_at(&buf[written..], at + len64(written)) {
            Ok(0) => return Err(ShortWrite { written, error: io::Error::from(io::ErrorKind::WriteZero) }),
            Ok(n) => written += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(ShortWrite { written, error }),
        }
    }
    Ok(())
}

/// Reads a small file whole; one longer than `bytes_max` is an error.
pub(crate) fn read_small(file: &dyn DiskFile, bytes_max: u64) -> io::Result<Vec<u8>> {
    let len = file.len()?;
    if len > bytes_max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "file is longer than its format allows"));
    }
    let mut bytes = vec![0; memory_len(len)?];
    let read = read_full(file, &mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}
