//! Which streams have records in the log. Kept in a cell that is written at each open; made again from the records when it does not fit.

use std::ops::ControlFlow;

use veena_contract::{StreamId, WalSeq};

use super::format::SEGMENT_HEADER_BYTES;
use super::open::{DamageKind, Finder, FoundSegment};
use super::replay::{Found, scan};
use super::tail::{Scanned, SeenStream};
use super::{STREAMS_CELL, WalIoError, WalStream, failed};
use crate::cell::{self, CellKind, CellRead};

const ENTRY_BYTES: usize = 28;

pub(super) struct StreamTable {
    /// Those with records in what is to be replayed.
    pub streams: Vec<WalStream>,
    /// Those that any segment still speaks of: what the cell keeps.
    pub listed: Vec<WalStream>,
    pub next_ordinal: u32,
}

pub(super) fn encode<'a>(streams: impl Iterator<Item = &'a WalStream>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in streams {
        bytes.extend_from_slice(&entry.stream.0.to_be_bytes());
        bytes.extend_from_slice(&entry.ordinal.to_be_bytes());
        bytes.extend_from_slice(&entry.first.0.to_be_bytes());
    }
    bytes
}

fn decode(bytes: &[u8]) -> Option<Vec<SeenStream>> {
    let entries = bytes.chunks_exact(ENTRY_BYTES);
    if !entries.remainder().is_empty() {
        return None;
    }
    let entry = |chunk: &[u8]| {
        Some(SeenStream {
            stream: StreamId(u128::from_be_bytes(chunk[..16].try_into().ok()?)),
            ordinal: u32::from_be_bytes(chunk[16..20].try_into().ok()?),
            first: WalSeq(u64::from_be_bytes(chunk[20..28].try_into().ok()?)),
        })
    };
    entries.map(entry).collect()
}

/// The streams with records in `checkpoint..end`.
pub(super) fn recover(
    finder: &mut Finder<'_>,
    segments: &[FoundSegment],
    scanned: &Scanned,
    checkpoint: WalSeq,
    end: WalSeq,
) -> Result<StreamTable, WalIoError> {
    let path = finder.dir.join(STREAMS_CELL);
    let mut listed = match cell::read(&**finder.disk, &path, CellKind::WAL_STREAMS).map_err(failed(&path, "read"))? {
        CellRead::Value(bytes) => decode(&bytes),
        CellRead::NotThere if segments.is_empty() => Some(Vec::new()),
        CellRead::NotThere | CellRead::Damaged { .. } => None,
    };
    let headers = segments.iter().filter_map(|segment| segment.header);
    let mut seen: Vec<StreamId> = headers.map(|header| header.stream).collect();
    seen.extend(scanned.streams.iter().map(|seen| seen.stream));
    let is_listed = |list: &Vec<SeenStream>| seen.iter().all(|stream| list.iter().any(|entry| entry.stream == *stream));
    let next_ordinal = {
        let in_headers = segments.iter().filter_map(|segment| segment.header).map(|header| header.ordinal);
        let in_list = listed.iter().flatten().map(|entry| entry.ordinal);
        let in_tail = scanned.streams.iter().map(|entry| entry.ordinal);
        in_headers.chain(in_list).chain(in_tail).max().map_or(1, |ordinal| ordinal.saturating_add(1))
    };
    if !listed.as_ref().is_some_and(is_listed) {
        let found = from_records(finder, segments, scanned, checkpoint, end)?;
        let is_lost = listed.as_ref().is_none_or(|list| found.iter().any(|entry| list.iter().all(|known| known.stream != entry.stream)));
        if is_lost {
            finder.note(DamageKind::StreamsCell, path);
            listed = Some(found);
        }
    }
    let mut list = listed.unwrap_or_default();
    list.sort_by_key(|entry| (entry.first, entry.ordinal));
    let ends: Vec<WalSeq> = list.iter().skip(1).map(|next| next.first).chain([end]).collect();
    let oldest = segments.first().map_or(end, |segment| segment.first);
    let spans = list.iter().zip(ends).map(|(entry, next)| WalStream {
        stream: entry.stream,
        ordinal: entry.ordinal,
        first: entry.first,
        end: next.min(end),
    });
    let listed: Vec<WalStream> = spans.filter(|span| span.end > span.first.max(oldest) || seen.contains(&span.stream)).collect();
    let streams = listed.iter().filter(|span| span.end > span.first.max(checkpoint)).copied().collect();
    Ok(StreamTable { streams, listed, next_ordinal })
}

/// Reads every record of `checkpoint..end` for its stream.
fn from_records(
    finder: &Finder<'_>,
    segments: &[FoundSegment],
    scanned: &Scanned,
    checkpoint: WalSeq,
    end: WalSeq,
) -> Result<Vec<SeenStream>, WalIoError> {
    let mut found: Vec<SeenStream> = Vec::new();
    let mut add = |entry: SeenStream| {
        if found.iter().all(|known| known.stream != entry.stream) {
            found.push(entry);
        }
    };
    for (index, segment) in segments.iter().enumerate() {
        let limit = segments.get(index + 1).map_or(end, |next| next.first);
        if limit <= checkpoint {
            continue;
        }
        let mut source = finder.source(&segment.path)?;
        let outcome = scan(&mut source, segment.generation, SEGMENT_HEADER_BYTES as u64, &mut |item| {
            let Found::Record { head, .. } = item else { return ControlFlow::Continue(()) };
            if head.seq >= limit {
                return ControlFlow::Break(());
            }
            add(SeenStream { stream: head.stream, ordinal: head.ordinal, first: head.seq });
            ControlFlow::Continue(())
        });
        outcome.map_err(failed(&segment.path, "read"))?;
    }
    for entry in scanned.streams.iter().filter(|entry| entry.first < end) {
        add(*entry);
    }
    Ok(found)
}
