#![expect(clippy::disallowed_methods, reason = "these tests damage files behind the store's back")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use openraft::StorageError;
use openraft::testing::{StoreBuilder, Suite};
use tempfile::TempDir;
use veena_consensus::raft::{MachineAdapter, RaftTypes};
use veena_consensus::{ApplyError, FrozenState, RestoreError, SnapshotStore, StateMachine};
use veena_contract::records::Command;
use veena_contract::{
    Catalog, CatalogWriter, Effect, Entropy, LeaderPort, LogIndex, NodeId, ProposeError, Reroute, TenantId, TopicId, TopicName, TopicRecord,
};
use veena_metastore::{Metastore, MetastoreConfig, Runtime};

use crate::{OpenError, RaftStore};

const DEADLINE: Duration = Duration::from_secs(20);

/// Applies nothing; for conformance.
struct Nothing;

impl StateMachine for Nothing {
    fn apply(&mut self, _index: LogIndex, _command: &str) -> Result<String, ApplyError> {
        Ok(String::new())
    }

    fn publish(&mut self, _applied: LogIndex) {}

    fn freeze(&self) -> FrozenState {
        Box::new(|| b"nothing".to_vec())
    }

    fn restore(&mut self, _snapshot: &[u8]) -> Result<(), RestoreError> {
        Ok(())
    }
}

struct Builder;

impl StoreBuilder<RaftTypes, RaftStore, MachineAdapter<RaftStore>, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, RaftStore, MachineAdapter<RaftStore>), StorageError<u64>> {
        let dir = tempfile::tempdir().expect("a folder");
        let store = RaftStore::open(dir.path()).expect("opens");
        let machine = MachineAdapter::open(Box::new(Nothing), store.clone(), None).expect("nothing to restore");
        Ok((dir, store, machine))
    }
}

#[test]
fn the_store_conforms() {
    Suite::test_all(Builder).expect("conforms");
}

struct Counter(AtomicU64);

impl Entropy for Counter {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(0x9e37_79b9, Ordering::Relaxed)
    }
}

fn config() -> MetastoreConfig {
    MetastoreConfig::new(NodeId(Arc::from("node-1")))
}

async fn start(store: RaftStore, config: MetastoreConfig) -> Metastore {
    let runtime = Runtime::new(Arc::new(Counter(AtomicU64::new(1))));
    Metastore::start(config, store, runtime).await.expect("starts")
}

fn topic(n: u64) -> Command {
    let topic = TopicRecord {
        tenant: TenantId::default_tenant(),
        name: name(n),
        id: TopicId(n),
        partitions: 3,
        earlier_partitions: Vec::new(),
        retention_ms: 0,
        retention_bytes: 0,
        visibility_timeout_ms: 30_000,
        max_in_flight_per_partition: 1024,
        max_acked_ahead_per_partition: 1024,
        dedup_window_ms: 0,
        reroute: Reroute::Auto,
        created_at_ms: 1,
        owner: None,
        parent: None,
        children: Vec::new(),
        schemas: Vec::new(),
        owners: Vec::new(),
        revision: 0,
    };
    Command::CreateTopic { topic, attach: None }
}

fn name(n: u64) -> TopicName {
    TopicName::parse(&format!("topic-{n}")).expect("a good name")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Copies a folder's bytes as the page cache has them: what a kill leaves behind.
fn copy(from: &Path, to: &Path) {
    for entry in from.read_dir().expect("readable") {
        let entry = entry.expect("readable");
        let name = entry.file_name();
        if name != "LOCK" {
            std::fs::copy(entry.path(), to.join(name)).expect("copied");
        }
    }
}

#[test]
fn every_answered_change_is_there_after_a_drop_without_shutdown() {
    let dir = tempfile::tempdir().expect("a folder");
    let first = runtime();
    let lineage = first.block_on(async {
        let metastore = start(RaftStore::open(dir.path()).expect("opens"), config()).await;
        for n in 0..50 {
            let view = metastore.propose(topic(n)).await.expect("taken");
            assert!(view.topic_by_id(TopicId(n)).is_some());
        }
        metastore.lineage()
    });
    drop(first);
    runtime().block_on(async {
        let metastore = start(RaftStore::open(dir.path()).expect("opens"), config()).await;
        assert_eq!(metastore.view().topics.len(), 50);
        assert_eq!(metastore.lineage(), lineage);
        assert!(metastore.not_ready_reason().is_none());
        metastore.shutdown().await;
    });
}

#[test]
fn every_answered_change_is_in_the_files_as_a_kill_leaves_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut config = config();
    config.consensus.snapshot_every = 7;
    config.consensus.entries_kept = 3;
    let copies = runtime().block_on(async {
        let metastore = start(RaftStore::open(dir.path()).expect("opens"), config.clone()).await;
        let mut copies = Vec::new();
        for n in 0..40 {
            metastore.propose(topic(n)).await.expect("taken");
            if n % 5 == 0 {
                let to = tempfile::tempdir().expect("a folder");
                copy(dir.path(), to.path());
                copies.push((n, to));
            }
        }
        copies
    });
    for (n, copied) in copies {
        runtime().block_on(async {
            let metastore = start(RaftStore::open(copied.path()).expect("opens"), config.clone()).await;
            let view = metastore.view();
            for m in 0..=n {
                assert!(view.topic_by_id(TopicId(m)).is_some(), "topic {m} of {n} is missing");
            }
            metastore.propose(topic(1000)).await.expect("a new change is taken");
            metastore.shutdown().await;
        });
    }
}

#[test]
fn a_restart_from_a_snapshot_has_purged_and_later_changes() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut config = config();
    config.consensus.snapshot_every = 10;
    config.consensus.entries_kept = 2;
    runtime().block_on(async {
        let store = RaftStore::open(dir.path()).expect("opens");
        let metastore = start(store.clone(), config.clone()).await;
        let mut n = 0;
        tokio::time::timeout(DEADLINE, async {
            while n < 60 || store.inner.tail.lock().purged.is_none() {
                metastore.propose(topic(n)).await.expect("taken");
                n += 1;
            }
        })
        .await
        .expect("a snapshot is taken");
        metastore.shutdown().await;
    });
    let again = runtime();
    again.block_on(async {
        let store = RaftStore::open(dir.path()).expect("opens");
        assert!(store.inner.tail.lock().purged.is_some(), "the log was purged");
        let metastore = start(store, config).await;
        assert!(metastore.view().topics.len() >= 60);
        assert!(metastore.snapshot_at().is_some());
        metastore.shutdown().await;
    });
}

#[test]
fn a_failed_sync_latches_the_store_and_refuses_changes() {
    let dir = tempfile::tempdir().expect("a folder");
    runtime().block_on(async {
        let store = RaftStore::open(dir.path()).expect("opens");
        let metastore = start(store.clone(), config()).await;
        metastore.propose(topic(1)).await.expect("taken");
        store.inner.writer.latch().fail_syncs.store(true, Ordering::SeqCst);
        let error = metastore.propose(topic(2)).await.expect_err("cannot be synced");
        assert_eq!(error.effect(), Effect::Possible, "{error}");
        store.inner.writer.latch().fail_syncs.store(false, Ordering::SeqCst);
        tokio::time::timeout(DEADLINE, async {
            while metastore.status().latched.is_none() {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("the metastore latches");
        let error = metastore.propose(topic(3)).await.expect_err("latched");
        assert!(matches!(error, ProposeError::Unavailable { .. }), "{error}");
        assert!(metastore.confirmed_view().await.is_err());
        assert!(!metastore.status().has_leader);
        assert!(metastore.not_ready_reason().expect("not ready").starts_with("metastore: node is not ready:"));
        assert!(store.latched().expect("latched").contains("injected sync error"));
        assert!(metastore.view().topic_by_id(TopicId(1)).is_some(), "reads go on");
    });
    runtime().block_on(async {
        let metastore = start(RaftStore::open(dir.path()).expect("opens"), config()).await;
        assert!(metastore.view().topic_by_id(TopicId(1)).is_some());
        assert!(metastore.view().topic_by_id(TopicId(3)).is_none());
        metastore.shutdown().await;
    });
}

#[test]
fn no_change_is_answered_before_its_own_sync() {
    let dir = tempfile::tempdir().expect("a folder");
    runtime().block_on(async {
        let store = RaftStore::open(dir.path()).expect("opens");
        let metastore = start(store.clone(), config()).await;
        for n in 0..20 {
            let before = store.inner.writer.latch().syncs.load(Ordering::SeqCst);
            metastore.propose(topic(n)).await.expect("taken");
            assert!(store.inner.writer.latch().syncs.load(Ordering::SeqCst) > before, "change {n} was answered without a sync");
        }
        metastore.shutdown().await;
    });
}

#[test]
fn a_snapshot_that_was_cut_short_is_swept_and_the_one_before_is_whole() {
    let dir = tempfile::tempdir().expect("a folder");
    runtime().block_on(async {
        let store = RaftStore::open(dir.path()).expect("opens");
        let state = vec![7_u8; 3 * 1024 * 1024 + 5];
        let expected = state.clone();
        store.save_snapshot(b"one".to_vec(), Box::new(move || state)).await.expect("saved");
        let snap = crate::open::family(&store.inner.db, crate::codec::SNAP).expect("there");
        store.inner.db.put_cf(snap, crate::codec::chunk_key(2, 0), b"half").expect("written");
        drop(store);
        let store = RaftStore::open(dir.path()).expect("opens");
        let loaded = store.load_snapshot().await.expect("readable").expect("there");
        assert_eq!((loaded.meta.as_slice(), loaded.data), (&b"one"[..], expected));
        let snap = crate::open::family(&store.inner.db, crate::codec::SNAP).expect("there");
        assert!(store.inner.db.get_cf(snap, crate::codec::chunk_key(2, 0)).expect("readable").is_none());
        store.save_snapshot(b"two".to_vec(), Box::new(|| b"short".to_vec())).await.expect("saved");
        let loaded = store.load_snapshot().await.expect("readable").expect("there");
        assert_eq!((loaded.meta.as_slice(), loaded.data.as_slice()), (&b"two"[..], &b"short"[..]));
    });
}

#[test]
fn a_folder_of_something_else_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("orders.txt"), b"hello").expect("written");
    let error = RaftStore::open(dir.path()).err().expect("refused");
    assert!(matches!(error, OpenError::Foreign { .. }), "{error}");
    assert!(error.to_string().contains(&dir.path().display().to_string()));
}

#[test]
fn damage_in_the_files_is_refused_with_the_folder_and_what_to_do() {
    let dir = tempfile::tempdir().expect("a folder");
    runtime().block_on(async {
        let metastore = start(RaftStore::open(dir.path()).expect("opens"), config()).await;
        for n in 0..20 {
            metastore.propose(topic(n)).await.expect("taken");
        }
        metastore.shutdown().await;
    });
    let damage = |pick: &dyn Fn(&str) -> bool, edit: &dyn Fn(&mut Vec<u8>)| {
        let to = tempfile::tempdir().expect("a folder");
        copy(dir.path(), to.path());
        let mut edited = 0;
        for entry in to.path().read_dir().expect("readable") {
            let path = entry.expect("readable").path();
            if pick(&path.file_name().expect("a name").to_string_lossy()) {
                let mut bytes = std::fs::read(&path).expect("readable");
                edit(&mut bytes);
                std::fs::write(&path, bytes).expect("written");
                edited += 1;
            }
        }
        assert!(edited > 0);
        let error = RaftStore::open(to.path()).err().expect("refused");
        assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&to.path().display().to_string()) && text.contains("restore this folder from a backup"), "{text}");
    };
    damage(&|name| name == "CURRENT", &|bytes| *bytes = b"garbage".to_vec());
    damage(&|name| name.starts_with("MANIFEST-"), &|bytes| bytes.fill(0x5a));
    // A bit of the last record: it was promised, and it is no torn tail, since all of it is there.
    damage(&|name| name.ends_with(".log"), &|bytes| {
        if let Some(last) = bytes.len().checked_sub(3) {
            bytes[last] ^= 1;
        }
    });
    // One flipped bit in the middle of the write-ahead log: promised changes lie behind it.
    damage(&|name| name.ends_with(".log"), &|bytes| {
        if bytes.len() > 1000 {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        }
    });
}

#[test]
fn a_torn_tail_of_the_write_ahead_log_is_cut() {
    let dir = tempfile::tempdir().expect("a folder");
    let kept = tempfile::tempdir().expect("a folder");
    runtime().block_on(async {
        let metastore = start(RaftStore::open(dir.path()).expect("opens"), config()).await;
        metastore.propose(topic(1)).await.expect("taken");
        copy(dir.path(), kept.path());
    });
    let wal = kept.path().read_dir().expect("readable").map(|entry| entry.expect("readable").path());
    let wal: Vec<_> = wal.filter(|path| path.extension().is_some_and(|e| e == "log")).collect();
    let newest = wal.iter().max().expect("a write-ahead log");
    let mut bytes = std::fs::read(newest).expect("readable");
    // A record that was begun: its header promises more bytes than came.
    bytes.extend_from_slice(&[1, 2, 3, 4, 200, 0, 1, 9, 9, 9]);
    std::fs::write(newest, bytes).expect("written");
    runtime().block_on(async {
        let metastore = start(RaftStore::open(kept.path()).expect("opens"), config()).await;
        assert!(metastore.view().topic_by_id(TopicId(1)).is_some());
        metastore.shutdown().await;
    });
}

#[test]
fn a_store_that_is_open_is_not_opened_twice() {
    let dir = tempfile::tempdir().expect("a folder");
    let first = RaftStore::open(dir.path()).expect("opens");
    let error = RaftStore::open(dir.path()).err().expect("refused");
    assert!(matches!(error, OpenError::Locked { .. }), "{error:?}");
    drop(first);
    RaftStore::open(dir.path()).expect("opens once it is free");
}

#[test]
fn the_store_may_be_opened_again_right_after_a_shutdown() {
    let dir = tempfile::tempdir().expect("a folder");
    runtime().block_on(async {
        for n in 0..5 {
            let metastore = start(RaftStore::open(dir.path()).expect("opens"), config()).await;
            metastore.propose(topic(n)).await.expect("taken");
            metastore.shutdown().await;
        }
    });
}

#[test]
fn values_keep_their_form() {
    use openraft::entry::FromAppData;
    use openraft::{CommittedLeaderId, EntryPayload, LogId, RaftLogId, Vote};
    use veena_consensus::raft::CommandText;
    let text = |bytes: std::io::Result<Vec<u8>>| String::from_utf8(bytes.expect("JSON")).expect("text");
    let at = LogId::new(CommittedLeaderId::new(3, 9), 17);
    let leader = r#"{"leader_id":{"term":3,"node_id":9},"index":17}"#;
    assert_eq!(text(crate::codec::encode(&at)), format!(r#"{{"v":1,"value":{leader}}}"#));
    let vote = text(crate::codec::encode(&Vote::new_committed(3, 9)));
    assert_eq!(vote, r#"{"v":1,"value":{"leader_id":{"term":3,"node_id":9},"committed":true}}"#);
    let command = serde_json::value::to_raw_value(&serde_json::json!({"v": 1})).expect("JSON");
    let mut entry = crate::codec::StoredEntry::from_app_data(CommandText(Arc::from(command)));
    entry.set_log_id(&at);
    let stored = text(crate::codec::encode(&entry));
    assert_eq!(stored, format!(r#"{{"v":1,"value":{{"log_id":{leader},"payload":{{"Normal":{{"v":1}}}}}}}}"#));
    let read: crate::codec::StoredEntry = crate::codec::decode("an entry", stored.as_bytes()).expect("its own form");
    assert!(matches!(read.payload, EntryPayload::Normal(command) if command.0.get() == r#"{"v":1}"#));
    assert!(crate::codec::decode::<u32>("it", br#"{"v":2,"value":1}"#).is_err(), "a later version");
}

const KILLED: &str = "VEENA_TEST_METASTORE_TO_KILL";

/// Runs itself as a second process that changes the metastore and prints every answered change, until it is killed.
#[test]
fn every_answered_change_survives_kill_9() {
    use std::io::BufRead;
    if let Some(dir) = std::env::var_os(KILLED) {
        return change_until_killed(Path::new(&dir));
    }
    let dir = tempfile::tempdir().expect("a folder");
    let mut answered = std::collections::BTreeSet::new();
    for round in 1..=3 {
        let mut child = std::process::Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "tests::every_answered_change_survives_kill_9", "--nocapture"])
            .env(KILLED, dir.path())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("a second process");
        let mut lines = std::io::BufReader::new(child.stdout.take().expect("piped")).lines();
        let number = |line: std::io::Result<String>| line.ok().and_then(|line| line.trim().strip_prefix("answered ")?.parse::<u64>().ok());
        let mut seen = 0;
        while seen < 40 {
            let line = lines.next().expect("it runs until it is killed");
            if let Some(n) = number(line) {
                answered.insert(n);
                seen += 1;
            }
        }
        child.kill().expect("killed");
        answered.extend(lines.filter_map(number));
        child.wait().expect("ended");
        runtime().block_on(async {
            let metastore = start(RaftStore::open(dir.path()).expect("opens"), config()).await;
            let view = metastore.view();
            for n in &answered {
                assert!(view.topic_by_id(TopicId(*n)).is_some(), "change {n} was answered and is gone after kill {round}");
            }
            assert!(view.topics.len() <= answered.len() + round, "at most one unanswered change a kill");
            metastore.shutdown().await;
        });
    }
}

fn change_until_killed(dir: &Path) {
    use std::io::Write;
    let mut config = config();
    config.consensus.snapshot_every = 15;
    config.consensus.entries_kept = 5;
    runtime().block_on(async {
        let metastore = start(RaftStore::open(dir).expect("opens"), config).await;
        let mut out = std::io::stdout();
        let first = u64::try_from(metastore.view().topics.len()).expect("few");
        for n in first.. {
            metastore.propose(topic(n)).await.expect("taken");
            writeln!(out, "answered {n}").expect("the parent listens");
            out.flush().expect("the parent listens");
        }
    });
}
