//! The simulator: the real engine and the real metastore on a simulated disk, clock and entropy, on one thread; of one node, or of several on
//! a simulated network ([`cluster`]).
//!
//! A seed decides everything: the topics, the traffic, the faults and the order in which tasks run. A run is a chain of lives; each life is
//! a runtime of its own that is dropped whole when the life ends, as a process is. A life may end at any call of the disk, by a kill, by a
//! power cut (a random subset of unsynced blocks, lengths and names stays) or by one inside a write. In between, syncs and writes fail, the
//! disk fills up, the wall clock jumps, the process stands still, topics come and go. At the end the disk is healed, the node is started
//! once more and must converge; then the contract checker judges the history, and the logs themselves are compared with each other.
//!
//! Real here: broker, storage, metastore, consensus. Simulated: the disk ([`MemDisk`](veena_storage::disk::mem::MemDisk)), the metastore's
//! log (in memory, always durable), time, entropy. Blocking calls run where they are made, so a call of the disk is one step: what can
//! happen *during* it is seen by letting a call fail as the power goes, and by looking at the node before it dies.
//!
//! Not here: flipped bits (the storage tests flip every bit of small logs), QUIC, the HTTP edge.

pub mod chance;
pub mod clients;
pub mod clock;
pub mod cluster;
pub mod disk;
pub mod door;
pub mod finale;
pub mod history;
pub mod life;
pub mod logs;
pub mod node;
pub mod once;
pub mod plan;
pub mod run;
pub mod sabotage;
pub mod sweep;
pub mod tally;
pub mod verdict;
pub mod world;

pub use run::{Report, run_seed, run_seed_among};
