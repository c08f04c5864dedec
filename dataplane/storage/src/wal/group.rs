//! A group: records that are written and synced together, and who waits for them.

use std::collections::VecDeque;

use tokio::sync::oneshot;
use veena_contract::WalSeq;

use super::append::{Call, Outcome, Shared};
use super::format::{RecordHeader, SegmentHeader};
use super::segments::Active;
use super::{AppendError, OnDurable, WalRange, WalRecord};

struct Ticket {
    range: WalRange,
    bytes: usize,
    done: oneshot::Sender<Outcome>,
}

/// Records that are written and synced together.
pub(super) struct Group {
    /// The sequence behind its last record.
    pub end: WalSeq,
    records: Vec<WalRecord>,
    tickets: Vec<Ticket>,
}

impl Shared {
    /// Encodes as many of the calls as the segment has room for.
    pub fn encode_group(&self, buffer: &mut Vec<u8>, active: &Active, calls: &mut VecDeque<Call>) -> Group {
        let synced_end = self.proven_end();
        let first = self.log.lock().next_seq;
        buffer.clear();
        if !active.is_header_written {
            let (generation, previous) = (active.generation, active.previous);
            let (stream, ordinal) = (self.stream, self.ordinal);
            SegmentHeader { wal_id: self.wal_id, generation, previous, first: active.first, stream, ordinal }.encode(buffer);
        }
        let mut group = Group { end: first, records: Vec::with_capacity(calls.len()), tickets: Vec::with_capacity(calls.len()) };
        while let Some(call) = calls.front() {
            if active.position + (buffer.len() + call.bytes) as u64 > active.capacity {
                break;
            }
            let Some(call) = calls.pop_front() else { break };
            let count = u32::try_from(call.entries.len()).expect("checked when staged");
            let range = WalRange { stream: self.stream, first: group.end, count };
            group.tickets.push(Ticket { range, bytes: call.bytes, done: call.done });
            for entry in call.entries {
                let head = RecordHeader {
                    seq: group.end,
                    synced_end,
                    stream: self.stream,
                    ordinal: self.ordinal,
                    kind: entry.kind.code(),
                    destination: entry.destination,
                    body_len: 0,
                    body_crc: 0,
                };
                head.encode(buffer, active.generation, active.position + buffer.len() as u64, &entry.body);
                let (kind, destination, body) = (entry.kind, entry.destination, entry.body);
                group.records.push(WalRecord { seq: group.end, stream: self.stream, kind, destination, body });
                group.end = group.end.next();
            }
        }
        group
    }
}

impl Group {
    /// How many calls wait for it.
    pub fn calls(&self) -> usize {
        self.tickets.len()
    }

    pub fn records(&self) -> u64 {
        self.tickets.iter().map(|ticket| u64::from(ticket.range.count)).sum()
    }

    pub fn staged_bytes(&self) -> usize {
        self.tickets.iter().map(|ticket| ticket.bytes).sum()
    }

    /// Tells everybody; nothing when they were told before.
    pub fn complete(&mut self, on_durable: Option<&OnDurable>) {
        let records = std::mem::take(&mut self.records);
        if let Some(on_durable) = on_durable.filter(|_| !records.is_empty()) {
            on_durable(records);
        }
        for ticket in self.tickets.drain(..) {
            let _ = ticket.done.send(Ok(ticket.range));
        }
    }

    /// Tells everybody that it failed.
    pub fn refuse(self, error: AppendError) {
        for ticket in self.tickets {
            let _ = ticket.done.send(Err(error));
        }
    }
}
