//! What goes wrong, and when.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Opening an existing file.
    Open,
    /// Creating a file or directory.
    Create,
    /// Reading a file or its length.
    Read,
    /// Writing.
    Write,
    /// Syncing a file.
    Sync,
    /// Syncing a directory.
    SyncDir,
    /// Renaming.
    Rename,
    /// Removing.
    Remove,
    /// Changing a length.
    SetLen,
    /// Dropping cached pages.
    DropCache,
    /// Listing, or asking for existence or space.
    List,
    /// Locking a directory.
    Lock,
}

impl Op {
    fn changes(self) -> bool {
        matches!(self, Self::Create | Self::Write | Self::Sync | Self::SyncDir | Self::Rename | Self::Remove | Self::SetLen)
    }
}

/// What a fault does to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// It fails and does nothing. A failed sync also forgets that pages are dirty.
    Error(ErrorKind),
    /// It fails with an input/output error (EIO) and does nothing. A failed sync also forgets that pages are dirty.
    Eio,
    /// A write takes at most this many bytes.
    ShortWrite(usize),
    /// A write takes at most this many bytes and then fails with EIO.
    ErrorAfter(usize),
    /// It panics, as a bug in whoever called would.
    Panic,
}

/// One planned fault.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Which kind of call.
    pub op: Op,
    /// Only calls whose path contains this; empty is every path.
    pub path_contains: String,
    /// How many matching calls pass first.
    pub after: u64,
    /// How many matching calls are hit.
    pub times: u64,
    /// What happens to them.
    pub kind: FaultKind,
}

/// One call, as recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpRecord {
    /// Which kind of call.
    pub op: Op,
    /// On which path.
    pub path: PathBuf,
}

#[derive(Default)]
pub(super) struct Faults {
    pub plan: Vec<Fault>,
    pub cut_at: Option<u64>,
    pub is_cut: bool,
    pub changes: u64,
    pub syncs: u64,
    pub recording: bool,
    pub ops: Vec<OpRecord>,
    /// Calls that stand still, by the number of their hold.
    pub holds: Vec<(u64, Op, String)>,
}

pub(super) enum Verdict {
    Go,
    Short(usize),
    Fail(io::Error),
    FailAfter(usize, io::Error),
    CutInside(io::Error),
    Panic,
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error())
}

fn power_is_out() -> io::Error {
    io::Error::new(ErrorKind::BrokenPipe, "the power is out")
}

impl Faults {
    pub fn is_held(&self, op: Op, path: &Path) -> bool {
        self.holds.iter().any(|(_, held, contains)| *held == op && path.to_string_lossy().contains(contains))
    }

    pub fn judge(&mut self, op: Op, path: &Path) -> Verdict {
        if self.is_cut {
            return Verdict::Fail(power_is_out());
        }
        if self.recording {
            self.ops.push(OpRecord { op, path: path.to_owned() });
        }
        if op.changes() {
            self.changes += 1;
            if self.cut_at.is_some_and(|at| self.changes > at) {
                self.is_cut = true;
                return Verdict::CutInside(power_is_out());
            }
        }
        for fault in &mut self.plan {
            if fault.op != op || fault.times == 0 || !path.to_string_lossy().contains(&fault.path_contains) {
                continue;
            }
            if fault.after > 0 {
                fault.after -= 1;
                continue;
            }
            fault.times -= 1;
            return match fault.kind {
                FaultKind::Error(kind) => Verdict::Fail(kind.into()),
                FaultKind::Eio => Verdict::Fail(eio()),
                FaultKind::ShortWrite(bytes) => Verdict::Short(bytes),
                FaultKind::ErrorAfter(bytes) => Verdict::FailAfter(bytes, eio()),
                FaultKind::Panic => Verdict::Panic,
            };
        }
        Verdict::Go
    }
}
