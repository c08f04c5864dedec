//! Opening: what may be created, what is refused, and what is read into memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rocksdb::{ColumnFamilyDescriptor, DB, DBCompressionType, DBRecoveryMode, IteratorMode, LogLevel, Options, WriteOptions};
use serde::{Deserialize, Serialize};
use veena_contract::limits;

use crate::codec::{self, KEY_COMMITTED, KEY_FORMAT, KEY_PURGED, KEY_VOTE, LOG, META, SNAP, StoredEntry};
use crate::snapshot;
use crate::tail::Tail;
use crate::writer::Writer;

const KIND: &str = "veena raft store";
/// Half of the write-ahead log's bound: a full memtable is written out before the log is there.
const MEMTABLE_BYTES: usize = 4 * 1024 * 1024;
const BACKGROUND_JOBS: i32 = 2;
const INFO_LOGS_KEPT: usize = 2;

/// Why a store did not open. Nothing was changed, except that an empty folder may have been begun.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder holds something else.
    #[error(
        "{} is not a metadata store: it holds {found:?} but no CURRENT file; \
         give an empty folder, or restore the whole folder from a backup", path.display()
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// A file in it.
        found: String,
    },
    /// Another process has it open.
    #[error("the metadata store in {} is in use by another process: {detail}", path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
        /// What RocksDB said.
        detail: String,
    },
    /// The files do not fit together, or cannot be read.
    #[error(
        "the metadata store in {} is damaged: {detail}; restore this folder from a backup. Do not delete it: without it the topics \
         are not known any more, though their messages are still on disk. A backup that is older than those is refused (docs/operate/damage.md)", path.display()
    )]
    Damaged {
        /// The folder.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// The folder or the thread could not be used.
    #[error("the metadata store in {} cannot be opened: {detail}", path.display())]
    Io {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        detail: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Format {
    kind: String,
}

pub(crate) struct Inner {
    pub(crate) db: Arc<DB>,
    pub(crate) tail: Arc<Mutex<Tail>>,
    pub(crate) writer: Writer,
    /// The last to go: the files are closed then.
    pub(crate) open: Arc<()>,
}

/// An open store. Clones are handles to the same one; the files are closed when the last is dropped. Implements
/// [`LogStore`](veena_consensus::LogStore).
#[derive(Clone)]
pub struct RaftStore {
    pub(crate) inner: Arc<Inner>,
}

impl RaftStore {
    /// Opens the store in `dir`, or creates one there if the folder is empty or absent. The caller syncs the parent folder after the first
    /// open. Blocks while it replays the write-ahead log.
    ///
    /// # Errors
    /// [`OpenError`], which names the folder and what to do.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        refuse_foreign(dir)?;
        let families = [LOG, META, SNAP].map(|name| ColumnFamilyDescriptor::new(name, family_options()));
        let db = DB::open_cf_descriptors(&db_options(), dir, families).map_err(|e| classify(dir, &e))?;
        let damaged = |e: std::io::Error| OpenError::Damaged { path: dir.to_owned(), detail: e.to_string() };
        let db = Arc::new(db);
        check_format(&db).map_err(damaged)?;
        let tail = read_tail(&db).map_err(damaged)?;
        snapshot::sweep(&db).map_err(damaged)?;
        let tail = Arc::new(Mutex::new(tail));
        let io = |e: std::io::Error| OpenError::Io { path: dir.to_owned(), detail: e.to_string() };
        let writer = Writer::start(db.clone(), tail.clone()).map_err(io)?;
        Ok(Self { inner: Arc::new(Inner { db, tail, writer, open: Arc::default() }) })
    }

    /// Why the store takes no writes any more, if a write or a sync has failed.
    #[must_use]
    pub fn latched(&self) -> Option<String> {
        self.inner.writer.latch().reason()
    }
}

/// A folder without CURRENT is empty, or the first open was cut short before it wrote anything that counts, or it is no store of ours (or
/// one that lost its head). RocksDB would begin a new one in all three; only the first two may.
fn refuse_foreign(dir: &Path) -> Result<(), OpenError> {
    let io = |e: std::io::Error| OpenError::Io { path: dir.to_owned(), detail: e.to_string() };
    let listing = match dir.read_dir() {
        Ok(listing) => listing,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(io(e)),
    };
    let mut stranger = None;
    for entry in listing {
        let name = entry.map_err(io)?.file_name().to_string_lossy().into_owned();
        if name == "CURRENT" {
            return Ok(());
        }
        let begun = name == "LOCK" || name == "IDENTITY" || name.starts_with("LOG") || name.starts_with("MANIFEST-");
        if !begun && !name.starts_with("OPTIONS-") && !name.ends_with(".dbtmp") {
            stranger.get_or_insert(name);
        }
    }
    match stranger {
        Some(found) => Err(OpenError::Foreign { path: dir.to_owned(), found }),
        None => Ok(()),
    }
}

fn db_options() -> Options {
    let mut options = family_options();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_max_background_jobs(BACKGROUND_JOBS);
    options.set_max_total_wal_size(limits::METADATA_WAL_BYTES_MAX);
    options.set_keep_log_file_num(INFO_LOGS_KEPT);
    options.set_log_level(LogLevel::Warn);
    options.set_paranoid_checks(true);
    // A torn tail belongs to a write nobody was told about. Damage before the tail must be loud, not cut off.
    options.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
    options
}

fn family_options() -> Options {
    let mut options = Options::default();
    options.set_compression_type(DBCompressionType::None);
    options.set_write_buffer_size(MEMTABLE_BYTES);
    options
}

fn classify(dir: &Path, error: &rocksdb::Error) -> OpenError {
    let path = dir.to_owned();
    let detail = error.to_string();
    if detail.contains("lock hold by") || detail.contains("While lock file") {
        return OpenError::Locked { path, detail };
    }
    match error.kind() {
        rocksdb::ErrorKind::IOError if !detail.contains("No such file") => OpenError::Io { path, detail },
        _ => OpenError::Damaged { path, detail },
    }
}

/// Writes the format into a new store, and refuses a store that has another.
fn check_format(db: &DB) -> std::io::Result<()> {
    let meta = family(db, META)?;
    if let Some(bytes) = db.get_cf(meta, KEY_FORMAT).map_err(failed)? {
        let format: Format = codec::decode("the format", &bytes)?;
        if format.kind != KIND {
            return Err(codec::invalid(&format!("it is a {:?}, not a {KIND:?}", format.kind)));
        }
        return Ok(());
    }
    let is_new =
        db.iterator_cf(family(db, LOG)?, IteratorMode::Start).next().is_none() && db.get_cf(meta, KEY_VOTE).map_err(failed)?.is_none();
    if !is_new {
        return Err(codec::invalid("it has entries but no format"));
    }
    let mut synced = WriteOptions::default();
    synced.set_sync(true);
    db.put_cf_opt(meta, KEY_FORMAT, codec::encode(&Format { kind: KIND.to_owned() })?, &synced).map_err(failed)
}

fn read_tail(db: &DB) -> std::io::Result<Tail> {
    let meta = family(db, META)?;
    let get = |key: &[u8]| db.get_cf(meta, key).map_err(failed);
    let purged = get(KEY_PURGED)?.map(|bytes| codec::decode("the purged position", &bytes)).transpose()?;
    let last = match db.iterator_cf(family(db, LOG)?, IteratorMode::End).next() {
        None => None,
        Some(item) => {
            let (_, bytes) = item.map_err(failed)?;
            let entry: StoredEntry = codec::decode("the last log entry", &bytes)?;
            Some(entry.log_id)
        }
    };
    let vote = get(KEY_VOTE)?.map(|bytes| codec::decode("the vote", &bytes)).transpose()?;
    let committed = get(KEY_COMMITTED)?.map(|bytes| codec::decode("the committed position", &bytes)).transpose()?;
    Ok(Tail::new(purged, last, vote, committed))
}

/// A column family that every open has created.
pub(crate) fn family<'a>(db: &'a DB, name: &str) -> std::io::Result<&'a rocksdb::ColumnFamily> {
    db.cf_handle(name).ok_or_else(|| codec::invalid(&format!("column family {name} is missing")))
}

pub(crate) fn failed(error: rocksdb::Error) -> std::io::Error {
    std::io::Error::other(error)
}
