//! The snapshot: chunks under a new id, synced; current by one synced key; then the chunks before go.

use std::io;
use std::sync::Arc;

use rocksdb::{DB, Direction, IteratorMode, WriteBatch, WriteOptions};
use veena_consensus::{FrozenState, SnapshotStore, StoreFuture, StoredSnapshot};

use crate::codec::{self, Current, KEY_SNAPSHOT, META, SNAP, chunk_key, invalid};
use crate::open::{RaftStore, failed, family};
use crate::writer::Latch;

const CHUNK_BYTES: usize = 1024 * 1024;

impl SnapshotStore for RaftStore {
    fn save_snapshot(&self, meta: Vec<u8>, state: FrozenState) -> StoreFuture<'_, Vec<u8>> {
        let db = self.inner.db.clone();
        let latch = self.inner.writer.latch().clone();
        Box::pin(async move {
            tokio::task::spawn_blocking(move || {
                latch.check()?;
                let data = state();
                latch.note(save(&db, &latch, &meta, &data))?;
                Ok(data)
            })
            .await
            .map_err(io::Error::other)?
        })
    }

    fn load_snapshot(&self) -> StoreFuture<'_, Option<StoredSnapshot>> {
        let db = self.inner.db.clone();
        Box::pin(async move { tokio::task::spawn_blocking(move || load(&db)).await.map_err(io::Error::other)? })
    }

    fn closed(&self) -> Box<dyn Fn() -> bool + Send + Sync> {
        let open = Arc::downgrade(&self.inner.open);
        Box::new(move || open.strong_count() == 0)
    }
}

/// 1 chunks under a new id, 2 synced, 3 the key that makes them current, synced, 4 the chunks before it go. A crash before 3 leaves chunks
/// that nothing names, which the next open sweeps; after 3 the new snapshot is whole.
fn save(db: &Arc<DB>, latch: &Latch, meta: &[u8], data: &[u8]) -> io::Result<()> {
    let snap = family(db, SNAP)?;
    let id = newest_id(db)? + 1;
    let mut chunks = 0;
    for chunk in data.chunks(CHUNK_BYTES) {
        db.put_cf(snap, chunk_key(id, chunks), chunk).map_err(failed)?;
        chunks += 1;
    }
    latch.sync(db)?;
    let bytes = u64::try_from(data.len()).map_err(io::Error::other)?;
    let meta = String::from_utf8(meta.to_vec()).map_err(io::Error::other)?;
    let current = codec::encode(&Current { id, chunks, bytes, crc32c: crc32c::crc32c(data), meta })?;
    db.put_cf(family(db, META)?, KEY_SNAPSHOT, current).map_err(failed)?;
    latch.sync(db)?;
    delete_below(db, id)
}

fn load(db: &Arc<DB>) -> io::Result<Option<StoredSnapshot>> {
    let Some(current) = current(db)? else {
        return Ok(None);
    };
    let snap = family(db, SNAP)?;
    let mut data = Vec::with_capacity(usize::try_from(current.bytes).map_err(io::Error::other)?.min(64 * CHUNK_BYTES));
    for chunk in 0..current.chunks {
        let missing = || invalid(&format!("chunk {chunk} of the snapshot is missing"));
        data.extend(db.get_cf(snap, chunk_key(current.id, chunk)).map_err(failed)?.ok_or_else(missing)?);
    }
    if u64::try_from(data.len()) != Ok(current.bytes) || crc32c::crc32c(&data) != current.crc32c {
        return Err(invalid("the snapshot does not match its checksum"));
    }
    Ok(Some(StoredSnapshot { meta: current.meta.into_bytes(), data }))
}

/// Removes chunks that no key names: those of a snapshot that was cut short, and those that a newer one replaced.
pub(crate) fn sweep(db: &Arc<DB>) -> io::Result<()> {
    let current = current(db)?.map_or(0, |current| current.id);
    delete_below(db, current)?;
    let (snap, newest) = (family(db, SNAP)?, newest_id(db)?);
    if newest > current {
        db.delete_range_cf(snap, chunk_key(current + 1, 0), chunk_key(newest + 1, 0)).map_err(failed)?;
    }
    Ok(())
}

fn current(db: &DB) -> io::Result<Option<Current>> {
    let bytes = db.get_cf(family(db, META)?, KEY_SNAPSHOT).map_err(failed)?;
    bytes.map(|bytes| codec::decode("the description of the snapshot", &bytes)).transpose()
}

fn newest_id(db: &DB) -> io::Result<u64> {
    match db.iterator_cf(family(db, SNAP)?, IteratorMode::End).next() {
        None => Ok(0),
        Some(item) => {
            let (key, _) = item.map_err(failed)?;
            let id = key.first_chunk::<8>().ok_or_else(|| invalid("a snapshot key is too short"))?;
            Ok(u64::from_be_bytes(*id))
        }
    }
}

fn delete_below(db: &DB, id: u64) -> io::Result<()> {
    let snap = family(db, SNAP)?;
    let first = db.iterator_cf(snap, IteratorMode::From(&chunk_key(0, 0), Direction::Forward)).next().transpose().map_err(failed)?;
    if first.is_none_or(|(key, _)| *key >= chunk_key(id, 0)[..]) {
        return Ok(());
    }
    let mut batch = WriteBatch::default();
    batch.delete_range_cf(snap, chunk_key(0, 0), chunk_key(id, 0));
    db.write_opt(batch, &WriteOptions::default()).map_err(failed)
}
