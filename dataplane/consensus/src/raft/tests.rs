use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use openraft::StorageError;
use openraft::testing::{StoreBuilder, Suite};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use veena_contract::{Effect, Entropy, LogIndex, NodeId};

use super::{MachineAdapter, MemLog, RaftTypes, seed_elections};
use crate::{ApplyError, Consensus, ConsensusConfig, FrozenState, ProposeError, RestoreError, Runtime, StartError, StateMachine};

const DEADLINE: Duration = Duration::from_secs(10);

/// Remembers every command; answers with how many there are.
#[derive(Clone, Default)]
struct Journal {
    lines: Arc<Mutex<Vec<String>>>,
}

impl StateMachine for Journal {
    fn apply(&mut self, index: LogIndex, command: &str) -> Result<String, ApplyError> {
        if command == "\"poison\"" {
            return Err(ApplyError { index, detail: "poison".to_owned() });
        }
        let mut lines = self.lines.lock();
        lines.push(command.to_owned());
        Ok(lines.len().to_string())
    }

    fn publish(&mut self, _applied: LogIndex) {}

    fn freeze(&self) -> FrozenState {
        let lines = self.lines.lock().clone();
        Box::new(move || serde_json::to_vec(&lines).expect("strings are JSON"))
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), RestoreError> {
        *self.lines.lock() = serde_json::from_slice(snapshot).map_err(|e| RestoreError { detail: e.to_string() })?;
        Ok(())
    }
}

struct Counter(AtomicU64);

impl Entropy for Counter {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

fn runtime() -> Runtime {
    Runtime::new(Arc::new(Counter(AtomicU64::new(7))))
}

fn config(node: &str) -> ConsensusConfig {
    ConsensusConfig::new(NodeId(Arc::from(node)), "test")
}

fn command(text: &str) -> Box<RawValue> {
    serde_json::value::to_raw_value(text).expect("a string is JSON")
}

async fn leader(log: &MemLog, journal: &Journal) -> Consensus {
    let member = Consensus::start(&config("node-1"), log.clone(), Box::new(journal.clone()), &runtime()).await.expect("starts");
    member.initialize().await.expect("initializes");
    member.lead(DEADLINE).await.expect("leads");
    member
}

struct Builder;

impl StoreBuilder<RaftTypes, MemLog, MachineAdapter<MemLog>> for Builder {
    async fn build(&self) -> Result<((), MemLog, MachineAdapter<MemLog>), StorageError<u64>> {
        let log = MemLog::new();
        let machine = MachineAdapter::open(Box::new(Journal::default()), log.clone(), None).expect("nothing to restore");
        Ok(((), log, machine))
    }
}

#[test]
fn the_memory_log_conforms() {
    Suite::test_all(Builder).expect("conforms");
}

#[tokio::test]
async fn a_proposed_command_is_answered_by_the_state_machine() {
    let journal = Journal::default();
    let member = leader(&MemLog::new(), &journal).await;
    let (first, answer) = member.propose(command("a"), DEADLINE).await.expect("taken");
    assert_eq!(answer, "1");
    let (second, answer) = member.propose(command("b"), DEADLINE).await.expect("taken");
    assert_eq!(answer, "2");
    assert!(second > first);
    assert!(member.barrier(DEADLINE).await.expect("leads") >= second);
    assert_eq!(*journal.lines.lock(), ["\"a\"", "\"b\""]);
    member.shutdown().await;
}

#[tokio::test]
async fn a_member_that_starts_again_has_everything_it_answered() {
    let log = MemLog::new();
    let member = leader(&log, &Journal::default()).await;
    for n in 0..10 {
        member.propose(command(&n.to_string()), DEADLINE).await.expect("taken");
    }
    member.shutdown().await;

    let journal = Journal::default();
    let member = leader(&log, &journal).await;
    assert_eq!(journal.lines.lock().len(), 10);
    member.shutdown().await;
}

#[tokio::test]
async fn a_member_restores_its_snapshot_and_the_entries_behind_it() {
    let log = MemLog::new();
    let mut small = config("node-1");
    small.snapshot_every = 5;
    small.entries_kept = 2;
    let member = Consensus::start(&small, log.clone(), Box::new(Journal::default()), &runtime()).await.expect("starts");
    member.initialize().await.expect("initializes");
    member.lead(DEADLINE).await.expect("leads");
    for n in 0..30 {
        member.propose(command(&n.to_string()), DEADLINE).await.expect("taken");
    }
    tokio::time::timeout(DEADLINE, async {
        while log.entries() > 15 {
            member.propose(command("more"), DEADLINE).await.expect("taken");
        }
    })
    .await
    .expect("the log is purged behind a snapshot");
    let (_, count) = member.propose(command("last"), DEADLINE).await.expect("taken");
    member.shutdown().await;

    let journal = Journal::default();
    let member = leader(&log, &journal).await;
    assert_eq!(journal.lines.lock().len().to_string(), count);
    assert!(member.snapshot_at().is_some());
    member.shutdown().await;
}

#[tokio::test]
async fn a_failed_write_gives_up_leadership_and_refuses_what_follows() {
    let log = MemLog::new();
    let member = leader(&log, &Journal::default()).await;
    log.fail_writes("no sync for you");
    let error = member.propose(command("a"), DEADLINE).await.expect_err("cannot be written");
    assert_eq!(error.effect(), Effect::Possible, "{error}");
    tokio::time::timeout(DEADLINE, async {
        while member.status().stopped.is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the member stops");
    let status = member.status();
    assert!(!status.is_leader && !status.has_leader);
    assert!(status.stopped.expect("stopped").contains("no sync for you"));
    let error = member.propose(command("b"), DEADLINE).await.expect_err("stopped");
    assert!(matches!(error, ProposeError::Stopped { .. }));
    assert_eq!(error.effect(), Effect::None);
    assert!(member.barrier(DEADLINE).await.is_err());
}

#[tokio::test]
async fn a_command_that_is_not_understood_stops_the_member() {
    let member = leader(&MemLog::new(), &Journal::default()).await;
    let error = member.propose(command("poison"), DEADLINE).await.expect_err("cannot be applied");
    assert_eq!(error.effect(), Effect::Possible);
    assert!(member.status().stopped.is_some());
}

#[tokio::test]
async fn a_log_of_another_node_is_refused() {
    let log = MemLog::new();
    leader(&log, &Journal::default()).await.shutdown().await;
    let error = Consensus::start(&config("node-2"), log, Box::new(Journal::default()), &runtime()).await.err().expect("not a member");
    assert!(matches!(&error, StartError::NotAMember { node, members } if node == "node-2" && members == "node-1"), "{error}");
}

#[test]
fn seeded_election_jitter_repeats() {
    use openraft::AsyncRuntime;
    use rand_core::RngCore;
    let draw = |seed| {
        seed_elections(seed);
        [0; 4].map(|_| super::RaftRuntime::thread_rng().next_u64())
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

#[test]
fn a_members_id_never_changes() {
    assert_eq!(super::member_id(&NodeId(Arc::from("node-1"))), 0xe696_ecc2_2078_79c3);
    assert_eq!(super::member_id(&NodeId(Arc::from(""))), 0xcbf2_9ce4_8422_2325);
}
