//! The one thread that writes. It takes everything that waits, writes it as one batch, syncs once, and answers in order.

use std::io;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use openraft::storage::LogFlushed;
use parking_lot::Mutex;
use rocksdb::{DB, WriteBatch, WriteOptions};
use tokio::sync::oneshot;
use veena_consensus::raft::RaftTypes;
use veena_contract::limits;

use crate::codec::{KEY_COMMITTED, KEY_PURGED, KEY_VOTE, LOG, META, entry_key};
use crate::open::{failed, family};
use crate::tail::Tail;

/// Answered when the job's bytes are synced, or will never be.
pub(crate) type Done = oneshot::Sender<io::Result<()>>;

/// What the thread is asked to do. Callers wait for each answer but `Committed`'s, so the queue is as short as their number.
pub(crate) enum Job {
    Append {
        entries: Vec<(u64, Vec<u8>)>,
        done: LogFlushed<RaftTypes>,
    },
    Vote {
        value: Vec<u8>,
        done: Done,
    },
    Truncate {
        from: u64,
        done: Done,
    },
    Purge {
        upto: u64,
        value: Vec<u8>,
        done: Done,
    },
    /// Written, not synced: it is a hint, and is never ahead of the log, since both go through the same write-ahead log.
    Committed {
        value: Vec<u8>,
    },
}

/// Set once, by the first write or sync that fails.
#[derive(Clone, Default)]
pub(crate) struct Latch {
    reason: Arc<Mutex<Option<String>>>,
    #[cfg(test)]
    pub(crate) fail_syncs: Arc<std::sync::atomic::AtomicBool>,
    #[cfg(test)]
    pub(crate) syncs: Arc<std::sync::atomic::AtomicU64>,
}

impl Latch {
    pub(crate) fn reason(&self) -> Option<String> {
        self.reason.lock().clone()
    }

    /// Refuses whatever comes after a failure.
    pub(crate) fn check(&self) -> io::Result<()> {
        match &*self.reason.lock() {
            Some(reason) => Err(io::Error::other(format!("the metadata store takes no writes since a failure: {reason}"))),
            None => Ok(()),
        }
    }

    /// Passes an outcome on, and latches if it is a failure.
    pub(crate) fn note<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &outcome {
            let mut reason = self.reason.lock();
            if reason.is_none() {
                tracing::error!(%error, "a write to the metadata store failed; it takes no more until the node starts again");
                *reason = Some(error.to_string());
            }
        }
        outcome
    }

    /// Syncs everything that was written before.
    pub(crate) fn sync(&self, db: &DB) -> io::Result<()> {
        #[cfg(test)]
        if self.fail_syncs.load(std::sync::atomic::Ordering::SeqCst) {
            return Err(io::Error::other("injected sync error"));
        }
        db.flush_wal(true).map_err(failed)?;
        #[cfg(test)]
        self.syncs.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }
}

/// The handle to the thread. Dropping it lets the thread finish what it was given, and waits for that.
pub(crate) struct Writer {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    latch: Latch,
}

impl Writer {
    pub(crate) fn start(db: Arc<DB>, tail: Arc<Mutex<Tail>>) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel();
        let latch = Latch::default();
        let worker = Worker { db, tail, latch: latch.clone() };
        let thread = std::thread::Builder::new().name("raftstore".to_owned()).spawn(move || worker.run(&queue))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), latch })
    }

    pub(crate) fn latch(&self) -> &Latch {
        &self.latch
    }

    /// Queues a job without waiting. A job that cannot be queued is dropped, which its caller sees as an answer that never comes.
    pub(crate) fn submit(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job);
        }
    }

    /// Queues a job and waits until it is synced.
    pub(crate) async fn run(&self, job: impl FnOnce(Done) -> Job) -> io::Result<()> {
        let (done, answer) = oneshot::channel();
        self.submit(job(done));
        answer.await.unwrap_or_else(|_| Err(io::Error::other("the writer of the metadata store has ended")))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the writer of the metadata store panicked");
        }
    }
}

struct Worker {
    db: Arc<DB>,
    tail: Arc<Mutex<Tail>>,
    latch: Latch,
}

impl Worker {
    fn run(&self, queue: &mpsc::Receiver<Job>) {
        while let Ok(first) = queue.recv() {
            let mut group = vec![first];
            while group.len() < limits::METADATA_GROUP_JOBS_MAX
                && let Ok(next) = queue.try_recv()
            {
                group.push(next);
            }
            let outcome = self.latch.check().and_then(|()| self.latch.note(self.write(&group)));
            self.answer(group, &outcome);
        }
    }

    /// 1 one batch into the write-ahead log, 2 one sync. A crash between may keep any prefix of the log, and nobody was told more.
    fn write(&self, group: &[Job]) -> io::Result<()> {
        let (log, meta) = (family(&self.db, LOG)?, family(&self.db, META)?);
        let mut batch = WriteBatch::default();
        let mut needs_sync = false;
        let mut written_end = 0;
        for job in group {
            needs_sync |= !matches!(job, Job::Committed { .. });
            match job {
                Job::Append { entries, .. } => {
                    for (index, value) in entries {
                        batch.put_cf(log, entry_key(*index), value);
                        written_end = index + 1;
                    }
                }
                Job::Vote { value, .. } => batch.put_cf(meta, KEY_VOTE, value),
                Job::Committed { value } => batch.put_cf(meta, KEY_COMMITTED, value),
                Job::Truncate { from, .. } => batch.delete_range_cf(log, entry_key(*from), entry_key(u64::MAX)),
                Job::Purge { upto, value, .. } => {
                    batch.put_cf(meta, KEY_PURGED, value);
                    batch.delete_range_cf(log, entry_key(0), entry_key(upto + 1));
                }
            }
        }
        self.db.write_opt(batch, &WriteOptions::default()).map_err(failed)?;
        if needs_sync {
            self.latch.sync(&self.db)?;
        }
        self.tail.lock().on_written(written_end);
        Ok(())
    }

    fn answer(&self, group: Vec<Job>, outcome: &io::Result<()>) {
        let again = || match outcome {
            Ok(()) => Ok(()),
            Err(e) => Err(io::Error::new(e.kind(), e.to_string())),
        };
        for job in group {
            match job {
                Job::Append { done, .. } => done.log_io_completed(again()),
                // A caller that has gone needs no answer.
                Job::Vote { done, .. } | Job::Truncate { done, .. } | Job::Purge { done, .. } => drop(done.send(again())),
                Job::Committed { .. } => {}
            }
        }
    }
}
