//! What of one destination lies in files: older than all that is queued in memory, read back in pieces, and sent first. No I/O.

use std::collections::VecDeque;
use std::sync::Arc;

use veena_contract::{StreamId, WalSeq};
use veena_storage::wal::parked::ParkedFile;
use veena_storage::wal::{WalGap, WalRecord};

use crate::produce::mend::{Mended, Place};

/// The files of one destination, oldest first, and what of the first of them is in memory.
#[derive(Default)]
pub struct ParkedQueue {
    files: VecDeque<Arc<ParkedFile>>,
    front: Front,
    /// Bytes of bodies that are not known to be committed, over all files.
    bytes: u64,
    records: u64,
}

/// How far the first file is.
#[derive(Default)]
struct Front {
    /// Records that were read and are not known to be committed, each with the place behind it.
    loaded: VecDeque<(WalRecord, u64)>,
    /// Where the next piece starts; 0 before the first.
    read_to: u64,
    /// Where it starts when what is loaded is dropped.
    done_to: u64,
    /// The last record that is known to be committed.
    last_done: Option<WalSeq>,
    is_read: bool,
    is_damaged: bool,
    /// Damage below this place was told.
    told_to: u64,
    /// What is lost below this was told.
    lost_told_to: WalSeq,
    bytes_done: u64,
    records_done: u64,
}

/// A file whose records are all committed.
pub struct DoneFile {
    /// The file.
    pub file: Arc<ParkedFile>,
    /// Not all of it could be read.
    pub is_damaged: bool,
}

/// What was found to be damaged.
#[derive(Default)]
pub struct News {
    /// Places, from and to, whose records are damaged.
    pub damaged: Vec<(u64, u64)>,
    /// What is lost of them.
    pub lost: Vec<WalGap>,
}

impl Front {
    /// What nobody was told of yet.
    fn untold(&self, mut news: News) -> News {
        news.damaged.retain(|(_, end)| *end > self.told_to);
        news.lost.retain(|gap| gap.end > self.lost_told_to);
        news
    }
}

impl ParkedQueue {
    /// Is nothing in files?
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.front.loaded.is_empty()
    }

    /// Bytes of bodies in files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many records are in files.
    pub fn len(&self) -> usize {
        usize::try_from(self.records).unwrap_or(usize::MAX)
    }

    /// The files, oldest first.
    pub fn files(&self) -> Vec<Arc<ParkedFile>> {
        self.files.iter().cloned().collect()
    }

    /// Up to where the first file is known to be committed.
    pub fn done_to(&self) -> Place {
        Place { at: self.front.done_to, after: self.front.last_done }
    }

    /// Is this record of the WAL in one of the files?
    pub fn covers(&self, stream: StreamId, seq: WalSeq) -> bool {
        self.files.iter().any(|file| file.covers(stream, seq))
    }

    /// A file with later records.
    pub fn push(&mut self, file: Arc<ParkedFile>) {
        self.bytes += file.bytes;
        self.records += file.records;
        self.files.push_back(file);
    }

    /// A file becomes part of another, and `news` was found in it on the way. Answers what of that nobody was told of yet, and the file.
    pub fn on_merged(&self, file: Arc<ParkedFile>, news: News) -> (News, DoneFile) {
        let mut is_damaged = file.is_head_damaged || !news.damaged.is_empty();
        if self.files.front().is_none_or(|front| front.number != file.number) {
            return (news, DoneFile { file, is_damaged });
        }
        is_damaged |= self.front.is_damaged;
        (self.front.untold(news), DoneFile { file, is_damaged })
    }

    /// All files are one now. Answers how many bytes were loaded of the first, and are no longer.
    pub fn replace(&mut self, file: Arc<ParkedFile>) -> usize {
        let loaded = self.unload();
        *self = Self::default();
        self.push(file);
        loaded
    }

    /// Takes all files out. Answers them and how many bytes were loaded.
    pub fn drain(&mut self) -> (Vec<Arc<ParkedFile>>, usize) {
        let loaded = self.unload();
        (std::mem::take(self).files.into(), loaded)
    }

    /// The piece to read next, as a file and a place in it.
    pub fn next_piece(&self) -> Option<(Arc<ParkedFile>, Place)> {
        let file = self.files.front().filter(|_| self.front.loaded.is_empty() && !self.front.is_read)?;
        // Nothing is loaded, so all that was read is committed.
        Some((Arc::clone(file), Place { at: self.front.read_to.max(file.start()), after: self.front.last_done }))
    }

    /// A piece was read. Answers what nobody was told of yet, and how many bytes are in memory now. A piece of a file that is no longer the
    /// first is forgotten.
    pub fn on_read(&mut self, number: u64, Mended { piece, lost }: Mended) -> (News, usize) {
        if self.files.front().is_none_or(|file| file.number != number) || !self.front.loaded.is_empty() {
            return (News::default(), 0);
        }
        let front = &mut self.front;
        let news = front.untold(News { damaged: piece.damaged, lost });
        front.told_to = news.damaged.last().map_or(front.told_to, |(_, end)| *end);
        front.lost_told_to = news.lost.iter().map(|gap| gap.end).fold(front.lost_told_to, WalSeq::max);
        front.is_damaged |= !news.damaged.is_empty();
        (front.done_to, front.read_to, front.is_read) = (front.read_to, piece.next, piece.is_end);
        front.loaded.extend(piece.records);
        (news, front.loaded.iter().map(|(record, _)| record.body.len()).sum())
    }

    /// What is loaded, in order.
    pub fn loaded(&self) -> impl Iterator<Item = &WalRecord> {
        self.front.loaded.iter().map(|(record, _)| record)
    }

    /// Everything of `stream` up to `through` is committed: what of it is loaded leaves. Answers how many records and bytes.
    pub fn settle(&mut self, stream: StreamId, through: u64) -> (usize, usize) {
        let (mut count, mut bytes) = (0, 0);
        while let Some((record, behind)) = self.front.loaded.pop_front_if(|(record, _)| record.stream == stream && record.seq.0 <= through)
        {
            count += 1;
            bytes += record.body.len();
            self.front.done_to = behind;
            self.front.last_done = Some(record.seq);
        }
        self.front.bytes_done += bytes as u64;
        self.front.records_done += count as u64;
        self.bytes = self.bytes.saturating_sub(bytes as u64);
        self.records = self.records.saturating_sub(count as u64);
        (count, bytes)
    }

    /// Drops what is loaded; it is read again. Answers how many bytes.
    pub fn unload(&mut self) -> usize {
        let front = &mut self.front;
        let bytes = front.loaded.iter().map(|(record, _)| record.body.len()).sum();
        if !front.loaded.is_empty() {
            front.loaded.clear();
            front.read_to = front.done_to;
            front.is_read = false;
        }
        bytes
    }

    /// Takes out the first file if all of it is committed.
    pub fn take_done(&mut self) -> Option<DoneFile> {
        let is_done = self.front.is_read && (self.front.loaded.is_empty() || veena_contract::sabotage::is("parked_file_goes_early"));
        if !is_done {
            return None;
        }
        let file = self.files.pop_front()?;
        let front = Front { loaded: std::mem::take(&mut self.front.loaded), ..Front::default() };
        let Front { is_damaged, bytes_done, records_done, .. } = std::mem::replace(&mut self.front, front);
        // What could not be read, or was left out, is waited for no longer.
        self.bytes = self.bytes.saturating_sub(file.bytes.saturating_sub(bytes_done));
        self.records = self.records.saturating_sub(file.records.saturating_sub(records_done));
        Some(DoneFile { is_damaged: is_damaged || file.is_head_damaged, file })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use veena_storage::disk::mem::MemDisk;
    use veena_storage::wal::Destination;
    use veena_storage::wal::parked::{ParkedPiece, ParkedWriter};

    use super::*;

    fn file(number: u64) -> Arc<ParkedFile> {
        let destination = Destination { group: 1, partition: 0 };
        let writer = ParkedWriter::begin(Arc::new(MemDisk::new()), Path::new("/"), 7, number, destination).expect("begun");
        Arc::new(writer.made().clone())
    }

    fn gap(end: u64) -> WalGap {
        WalGap { stream: StreamId(1), first: WalSeq(0), end: WalSeq(end), destination: None }
    }

    #[test]
    fn what_was_told_when_a_file_was_read_is_not_told_again_when_it_becomes_part_of_another() {
        let mut queue = ParkedQueue::default();
        let (first, second) = (file(1), file(2));
        [&first, &second].into_iter().for_each(|file| queue.push(Arc::clone(file)));
        let piece = ParkedPiece { damaged: vec![(72, 100)], next: 200, ..ParkedPiece::default() };
        let (news, _) = queue.on_read(1, Mended { piece, lost: vec![gap(3)] });
        assert_eq!((news.damaged, news.lost), (vec![(72, 100)], vec![gap(3)]));

        let met = || News { damaged: vec![(72, 100), (300, 400)], lost: vec![gap(3), gap(8)] };
        let (news, done) = queue.on_merged(Arc::clone(&first), met());
        assert_eq!((news.damaged, news.lost, done.is_damaged), (vec![(300, 400)], vec![gap(8)], true));
        let (news, done) = queue.on_merged(second, met());
        assert_eq!((news.damaged.len(), news.lost.len(), done.is_damaged), (2, 2, true), "another file");
        let (_, done) = queue.on_merged(first, News::default());
        assert!(done.is_damaged, "what was met before counts, though what is left of the file is sound");
    }
}
