//! A copy of everything the metastore knows, as a file; and how another life begins with one.
//!
//! The file, big-endian: magic `VEENABAK`, format version (u16), length of the head (u32), length of the state (u64), CRC32C over what precedes
//! it and what follows (u32), the head (JSON), the state as a snapshot has it (JSON). It holds no secret but what topics, schemas and the names
//! of nodes may be to somebody.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use veena_consensus::{ConsensusConfig, LogStore, StartError, found_log, read_log};
use veena_contract::{Entropy, LineageId, LogIndex, NodeId, limits};

use crate::Metastore;
use crate::replica::Replica;
use crate::state::{CatalogMachine, FormerMember, State};

const MAGIC: [u8; 8] = *b"VEENABAK";
const FORMAT_VERSION: u16 = 1;
const CRC_AT: usize = 22;
const PREFIX_BYTES: usize = CRC_AT + 4;
/// A head names the members, of which there are few.
const HEAD_BYTES_MAX: usize = 1024 * 1024;

/// Bytes are no backup that can be used.
#[derive(Debug, thiserror::Error)]
#[error("this is no backup of metadata that can be used: {detail}")]
pub struct BackupError {
    /// What is wrong.
    pub detail: String,
}

/// Everything one metastore knew at one moment.
#[derive(Clone, Debug)]
pub struct Backup {
    /// Who took part.
    pub members: Vec<FormerMember>,
    /// The term.
    pub term: u64,
    /// What it knew.
    pub state: State,
}

/// What the log of one member holds that does not run.
#[derive(Clone, Debug)]
pub struct Survivor {
    /// All of it, also what is not known to be committed.
    pub backup: Backup,
    /// Up to where it is known there that a majority had it. The others may have gone on.
    pub committed: LogIndex,
    /// Who votes.
    pub voters: Vec<NodeId>,
}

#[derive(Serialize, Deserialize)]
struct Head {
    lineage: LineageId,
    applied: LogIndex,
    term: u64,
    /// What a reader has to know of commands.
    level: veena_contract::FeatureLevel,
    members: Vec<FormerMember>,
}

impl Backup {
    /// Which life it is of.
    ///
    /// # Errors
    /// It is of none: its metastore was never founded.
    pub fn lineage(&self) -> Result<LineageId, BackupError> {
        self.state.lineage().ok_or_else(|| BackupError { detail: "it is of a metastore that was never founded".to_owned() })
    }

    /// The last position that it holds.
    #[must_use]
    pub fn applied(&self) -> LogIndex {
        self.state.view().applied
    }

    /// The file.
    ///
    /// # Errors
    /// The metastore was never founded, or knows more than a backup may hold.
    pub fn encode(&self) -> Result<Vec<u8>, BackupError> {
        let state = self.state.dump();
        let (lineage, applied, level) = (self.lineage()?, self.applied(), self.state.level());
        let head = Head { lineage, applied, term: self.term, level, members: self.members.clone() };
        let head = serde_json::to_vec(&head).map_err(|e| BackupError { detail: e.to_string() })?;
        if head.len() > HEAD_BYTES_MAX || state.len() > limits::METADATA_SNAPSHOT_BYTES_MAX {
            return Err(BackupError { detail: format!("{} bytes are too many", head.len() + state.len()) });
        }
        let mut bytes = Vec::with_capacity(PREFIX_BYTES + head.len() + state.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&FORMAT_VERSION.to_be_bytes());
        bytes.extend_from_slice(&u32::try_from(head.len()).expect("invariant: HEAD_BYTES_MAX fits u32").to_be_bytes());
        bytes.extend_from_slice(&(state.len() as u64).to_be_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(&bytes), &head), &state);
        bytes.extend_from_slice(&crc.to_be_bytes());
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(&state);
        Ok(bytes)
    }

    /// Reads a file. Never panics.
    ///
    /// # Errors
    /// [`BackupError`]: it is something else, was cut or changed, or is of a newer program.
    pub fn decode(bytes: &[u8]) -> Result<Self, BackupError> {
        let refuse = |detail: String| BackupError { detail };
        let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX_BYTES>() else {
            return Err(refuse(format!("{} bytes are less than a head", bytes.len())));
        };
        if prefix[..MAGIC.len()] != MAGIC {
            return Err(refuse("it is something else".to_owned()));
        }
        let number = |at: std::ops::Range<usize>| prefix[at].iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        let (version, head_bytes, state_bytes, crc) = (number(8..10), number(10..14), number(14..CRC_AT), number(CRC_AT..PREFIX_BYTES));
        if version != u64::from(FORMAT_VERSION) {
            return Err(refuse(format!("it has format {version}, this program reads {FORMAT_VERSION}")));
        }
        if head_bytes.checked_add(state_bytes) != Some(rest.len() as u64) {
            return Err(refuse(format!("{} bytes are there, and the head says {head_bytes} and {state_bytes}: it was cut", rest.len())));
        }
        if u64::from(crc32c::crc32c_append(crc32c::crc32c(&prefix[..CRC_AT]), rest)) != crc {
            return Err(refuse("its checksum does not match: it was changed or damaged".to_owned()));
        }
        let (head, state) = rest.split_at(usize::try_from(head_bytes).map_err(|e| refuse(e.to_string()))?);
        let head: Head = serde_json::from_slice(head).map_err(|e| refuse(e.to_string()))?;
        let state = State::from_dump(state).map_err(|e| refuse(e.to_string()))?;
        if state.lineage() != Some(head.lineage) || state.view().applied != head.applied {
            return Err(refuse("its head is of another state".to_owned()));
        }
        Ok(Self { members: head.members, term: head.term, state })
    }

    /// Founds a metastore with this state in an empty log: another life, whose only member is the one that `config` names. `also` is a life
    /// of which nobody knows how much is in this state: its directories may come too.
    ///
    /// # Errors
    /// [`StartError`] when the log is not empty or cannot be written.
    pub async fn found<L: LogStore>(
        &self,
        log: L,
        config: &ConsensusConfig,
        entropy: &dyn Entropy,
        also: Option<LineageId>,
    ) -> Result<LineageId, StartError> {
        let lineage = LineageId(entropy.next_u128());
        let state = self.state.begin_life(lineage, self.members.clone(), also);
        found_log(log, config, self.applied(), self.term, state.dump()).await?;
        Ok(lineage)
    }

    /// What the log of a member that does not run holds; `None` if it is empty.
    ///
    /// # Errors
    /// [`StartError`] when it cannot be read.
    pub async fn read<L: LogStore>(log: L) -> Result<Option<Survivor>, StartError> {
        let replica = Arc::new(Replica::new());
        let Some(contents) = read_log(log, Box::new(CatalogMachine::new(Arc::clone(&replica), Arc::default()))).await? else {
            return Ok(None);
        };
        let voters = contents.members.iter().filter(|member| member.is_voter).map(|member| member.peer.node.clone()).collect();
        let members = contents.members.iter().map(former).collect();
        let state = State::clone(&replica.state());
        let backup = Self { members, term: contents.term, state };
        Ok(Some(Survivor { backup, committed: contents.committed, voters }))
    }
}

fn former(member: &veena_consensus::KnownMember) -> FormerMember {
    FormerMember { node: member.peer.node.clone(), directory: member.directory.to_string() }
}

impl Metastore {
    /// Everything that this node's metastore knows, which is no less than what was committed when it was asked, if that was confirmed.
    pub(crate) fn copy(&self) -> Backup {
        let members = self.consensus().known_members().iter().map(former).collect();
        Backup { members, term: self.status().term, state: State::clone(&self.replica().state()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_keeps_its_form() {
        let members = vec![FormerMember { node: NodeId("a".into()), directory: "d".to_owned() }];
        let backup = Backup { members, term: 3, state: State::default().begin_life(LineageId(7), Vec::new(), Some(LineageId(5))) };
        let bytes = backup.encode().expect("written");
        let head =
            r#"{"lineage":"00000000000000000000000000000007","applied":0,"term":3,"level":1,"members":[{"node":"a","directory":"d"}]}"#;
        let state = concat!(
            r#"{"v":2,"lineage":"00000000000000000000000000000007","applied":0,"topics":[],"#,
            r#""former":[{"lineage":"00000000000000000000000000000005","at":0}]}"#
        );
        let (prefix, rest) = bytes.split_at(PREFIX_BYTES);
        assert_eq!(std::str::from_utf8(rest).expect("JSON"), [head, state].concat());
        let lengths = [u32::try_from(head.len()).expect("small").to_be_bytes().to_vec(), (state.len() as u64).to_be_bytes().to_vec()];
        assert_eq!(prefix[..CRC_AT], [b"VEENABAK".to_vec(), vec![0, 1], lengths.concat()].concat());
        let again = Backup::decode(&bytes).expect("read");
        assert_eq!((again.lineage().ok(), again.term, again.members), (Some(LineageId(7)), 3, backup.members));
        let mut newer = bytes;
        newer[9] = 2;
        assert!(Backup::decode(&newer).expect_err("a newer one").to_string().contains("format 2"));
    }

    #[test]
    fn a_metastore_that_was_never_founded_has_nothing_to_copy() {
        assert!(Backup { members: Vec::new(), term: 0, state: State::default() }.encode().is_err());
    }

    #[test]
    fn the_oldest_of_very_many_former_lives_are_forgotten() {
        let lives = limits::FORMER_LIVES_MAX as u128 + 5;
        let last = (1..=lives).fold(State::default(), |state, life| state.begin_life(LineageId(life), Vec::new(), None));
        let former: Vec<_> = last.former().iter().map(|life| life.lineage.0).collect();
        assert_eq!((former.len(), former.first(), former.last()), (limits::FORMER_LIVES_MAX, Some(&5), Some(&(lives - 1))));
    }
}
