//! The body of a record of kind [`RecordKind::Moved`](super::RecordKind::Moved): a record that was accepted for one log of its group and is
//! accepted anew for another. From the moment it is synced the record that it stands for is sent nowhere any more.
//!
//! ```text
//! version u8 = 1
//! id: stream u128, sequence u64          the message's name, from its first acceptance
//! from: stream u128, sequence u64, partition u32      the record of the WAL that it stands for
//! behind: 0 u8, or 1 u8 and sequence u64
//! body                                   as first accepted, never empty
//! ```

use bytes::{BufMut, Bytes, BytesMut};
use veena_contract::{MessageId, StreamId, WalSeq};

use crate::partition::wire::WireReader;

const VERSION: u8 = 1;

/// How many bytes more than the record it stands for a moved one has at most.
pub const MOVED_BYTES_MAX: usize = 1 + 24 + 28 + 9;

/// Which record of a WAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MovedFrom {
    /// Under which stream it was appended.
    pub stream: StreamId,
    /// Its position.
    pub seq: WalSeq,
    /// Which log of the group it was to go to.
    pub partition: u32,
}

/// A record that goes elsewhere than first accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The message's name for life.
    pub id: MessageId,
    /// The record that it stands for.
    pub from: MovedFrom,
    /// The record of the same stream and destination before that one, if that was moved too: between them there was none. So that a reader
    /// needs to remember stretches, not records.
    pub behind: Option<WalSeq>,
    /// The body as first accepted.
    pub body: Bytes,
}

/// The body is not one of a moved record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MovedError {
    /// Another version of the format.
    #[error("moved record of version {version}, which this version does not know")]
    UnknownVersion {
        /// What was found.
        version: u8,
    },
    /// It is too short, or a flag is neither 0 nor 1.
    #[error("moved record is malformed")]
    Malformed,
}

impl Moved {
    /// As stored.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(MOVED_BYTES_MAX + self.body.len());
        out.put_u8(VERSION);
        out.put_u128(self.id.stream.0);
        out.put_u64(self.id.sequence);
        out.put_u128(self.from.stream.0);
        out.put_u64(self.from.seq.0);
        out.put_u32(self.from.partition);
        match self.behind {
            Some(behind) => {
                out.put_u8(1);
                out.put_u64(behind.0);
            }
            None => out.put_u8(0),
        }
        out.extend_from_slice(&self.body);
        out.freeze()
    }

    /// Reads what [`Moved::encode`] gave; shares the bytes.
    ///
    /// # Errors
    /// [`MovedError`].
    pub fn decode(bytes: &Bytes) -> Result<Self, MovedError> {
        match bytes.first() {
            Some(&VERSION) => {}
            Some(&version) => return Err(MovedError::UnknownVersion { version }),
            None => return Err(MovedError::Malformed),
        }
        let mut reader = WireReader::new(bytes);
        let (id, from, behind) = read_head(&mut reader).ok_or(MovedError::Malformed)?;
        let body = bytes.slice(reader.position()..);
        if body.is_empty() { Err(MovedError::Malformed) } else { Ok(Self { id, from, behind, body }) }
    }
}

fn read_head(reader: &mut WireReader<'_>) -> Option<(MessageId, MovedFrom, Option<WalSeq>)> {
    reader.u8()?;
    let id = MessageId { stream: StreamId(reader.u128()?), sequence: reader.u64()? };
    let from = MovedFrom { stream: StreamId(reader.u128()?), seq: WalSeq(reader.u64()?), partition: reader.u32()? };
    let behind = match reader.u8()? {
        0 => None,
        1 => Some(WalSeq(reader.u64()?)),
        _ => return None,
    };
    Some((id, from, behind))
}
