//! A log on a disk in memory, and a model of what it must hold.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use veena_contract::{Entropy, MessageId, Offset, StreamId};
use veena_storage::disk::mem::MemDisk;
use veena_storage::disk::{Disk, OpenMode};
use veena_storage::partition::{
    AppendError, Codec, FrameCache, LogReader, Mark, Marks, NewRecord, OpenError, Origin, PartitionConfig, PartitionLog, PartitionOpened,
    RecordKey, Section, StreamKey, Visible,
};

/// Repeatable randomness.
pub struct Dice(AtomicU64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    pub fn roll(&self) -> u64 {
        // splitmix64
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&self, bound: u64) -> u64 {
        self.roll() % bound
    }

    pub fn one_in(&self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

impl Entropy for Dice {
    fn next_u64(&self) -> u64 {
        self.roll()
    }
}

pub fn dir() -> PathBuf {
    PathBuf::from("/log")
}

pub fn config(segment_bytes_max: u64) -> PartitionConfig {
    PartitionConfig { segment_bytes_max, segment_age_ms_max: 0, codec: Codec::None }
}

pub fn cache() -> Arc<FrameCache> {
    Arc::new(FrameCache::new(1024 * 1024))
}

pub fn open(disk: &MemDisk, config: PartitionConfig, cache: &Arc<FrameCache>) -> Result<(PartitionLog, PartitionOpened), OpenError> {
    PartitionLog::open(Arc::new(disk.clone()), &dir(), config, Arc::clone(cache), &Dice::new(7), Offset(0))
}

pub fn stream(number: u128) -> StreamKey {
    StreamKey { stream: StreamId(number), source: 3 }
}

/// Records of one stream with bodies that tell them apart.
pub fn section(number: u128, first: u64, count: u64, body_len: usize) -> Section {
    let records: Vec<NewRecord> = (first..first + count)
        .map(|sequence| NewRecord { sequence, id: None, key: None, body: body(number, sequence, body_len) })
        .collect();
    Section { key: stream(number), origin: Origin::default(), is_tracked: true, last: first + count - 1, records }
}

pub fn advance(number: u128, last: u64) -> Section {
    Section { key: stream(number), origin: Origin::default(), is_tracked: true, last, records: Vec::new() }
}

/// The same records, each with an idempotency key of its own.
pub fn keyed(mut section: Section) -> Section {
    for record in &mut section.records {
        record.key = Some(RecordKey { hash: section.key.stream.0 << 64 | u128::from(record.sequence), digest: 5 });
    }
    section
}

pub fn body(number: u128, sequence: u64, len: usize) -> Bytes {
    let dice = Dice::new(u64::try_from(number).expect("small stream numbers") << 32 | sequence);
    Bytes::from((0..len).map(|_| u8::try_from(dice.below(256)).expect("below 256")).collect::<Vec<u8>>())
}

/// One record as the model knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    pub sequence: u64,
    pub id: MessageId,
    pub body: Bytes,
}

pub fn expected(sections: &[Section]) -> Vec<Expected> {
    let of = |section: &Section, record: &NewRecord| Expected {
        sequence: record.sequence,
        id: record.id.unwrap_or(MessageId { stream: section.key.stream, sequence: record.sequence }),
        body: record.body.clone(),
    };
    sections.iter().flat_map(|section| section.records.iter().map(move |record| of(section, record))).collect()
}

pub fn mark(marks: &mut Marks, sections: &[Section]) {
    for section in sections.iter().filter(|section| section.is_tracked) {
        let mark = Mark::after(section, marks.get(&section.key));
        marks.insert(section.key, mark);
    }
}

/// All the way from append to publish.
pub fn commit(log: &mut PartitionLog, sections: &[Section], commit_ms: u64, marks: &Marks) -> Result<Visible, AppendError> {
    let appended = log.append(sections, commit_ms, &|| marks.clone())?;
    let synced = log.sync(appended).expect("the disk is well");
    let verified = log.verify(synced).expect("the disk is well");
    Ok(log.publish(verified))
}

/// A log with its model.
pub struct Modelled {
    pub disk: MemDisk,
    pub log: PartitionLog,
    pub config: PartitionConfig,
    pub cache: Arc<FrameCache>,
    pub records: Vec<Expected>,
    pub marks: Marks,
    /// Idempotency keys, with the offsets of their records.
    pub keys: Vec<(RecordKey, Offset)>,
    pub now_ms: u64,
}

impl Modelled {
    pub fn new(config: PartitionConfig) -> Self {
        Self::on(MemDisk::new(), config)
    }

    pub fn on(disk: MemDisk, config: PartitionConfig) -> Self {
        let cache = cache();
        let (log, opened) = open(&disk, config, &cache).expect("an empty disk");
        assert!(opened.is_new && opened.marks.is_empty() && opened.damage.is_empty());
        Self { disk, log, config, cache, records: Vec::new(), marks: Marks::new(), keys: Vec::new(), now_ms: 1_000 }
    }

    pub fn commit(&mut self, sections: &[Section]) -> Visible {
        self.try_commit(sections).expect("the disk is well")
    }

    pub fn try_commit(&mut self, sections: &[Section]) -> Result<Visible, AppendError> {
        self.now_ms += 10;
        let visible = commit(&mut self.log, sections, self.now_ms, &self.marks)?;
        assert_eq!(visible.first, Offset(self.records.len() as u64));
        self.note(sections);
        assert_eq!(visible.end, Offset(self.records.len() as u64));
        Ok(visible)
    }

    pub fn note(&mut self, sections: &[Section]) {
        let records = sections.iter().flat_map(|section| &section.records);
        for (at, key) in records.enumerate().filter_map(|(at, record)| Some((at, record.key?))) {
            self.keys.retain(|(other, _)| other.hash != key.hash);
            self.keys.push((key, Offset((self.records.len() + at) as u64)));
        }
        self.records.extend(expected(sections));
        mark(&mut self.marks, sections);
    }

    /// Closes and opens the log, with a cold cache.
    pub fn reopen(&mut self) -> PartitionOpened {
        self.cache = cache();
        self.reopen_warm()
    }

    /// Closes and opens the log within the same process.
    pub fn reopen_warm(&mut self) -> PartitionOpened {
        self.disk = self.disk.reopen();
        let (log, opened) = open(&self.disk, self.config, &self.cache).expect("opens");
        self.log = log;
        opened
    }

    /// Every offset holds what the model says, and the stream table and the idempotency keys too.
    pub fn check(&self, opened: &PartitionOpened) {
        assert_eq!(opened.marks, self.marks);
        assert_eq!(opened.damage, Vec::new());
        self.check_keys();
        check_records(&self.log.reader(), &self.records);
    }
}

impl Modelled {
    pub fn check_keys(&self) {
        assert_eq!(self.log.keys().iter().map(|mark| (mark.key, mark.offset)).collect::<Vec<_>>(), self.keys);
        for mark in self.log.keys().iter() {
            let record = &self.records[usize::try_from(mark.offset.get()).expect("small")];
            assert_eq!(mark.id, record.id);
        }
    }
}

pub fn check_records(reader: &LogReader, records: &[Expected]) {
    assert_eq!(reader.high_watermark(), Offset(records.len() as u64));
    let oldest = usize::try_from(reader.oldest().get()).expect("small");
    for (offset, expected) in records.iter().enumerate().skip(oldest) {
        let stored = reader.read(Offset(offset as u64)).unwrap_or_else(|error| panic!("offset {offset}: {error:?}"));
        assert_eq!((stored.sequence, stored.id, &stored.body), (expected.sequence, expected.id, &expected.body), "offset {offset}");
        assert_eq!(stored.offset, Offset(offset as u64));
    }
}

/// The segments of the log, in order.
pub fn segments(disk: &MemDisk) -> Vec<PathBuf> {
    names(disk, ".log")
}

pub fn names(disk: &MemDisk, suffix: &str) -> Vec<PathBuf> {
    let entries = disk.list(&dir()).expect("listed");
    entries.into_iter().filter(|entry| entry.name.ends_with(suffix)).map(|entry| dir().join(entry.name)).collect()
}

pub fn bytes_of(disk: &MemDisk, path: &Path) -> Vec<u8> {
    let file = disk.open(path, OpenMode::Read).expect("opens");
    let mut bytes = vec![0; usize::try_from(file.len().expect("has a length")).expect("small")];
    assert_eq!(file.read_at(&mut bytes, 0).expect("reads"), bytes.len());
    bytes
}

pub fn overwrite(disk: &MemDisk, path: &Path, bytes: &[u8], at: u64) {
    let file = disk.open(path, OpenMode::ReadWrite).expect("opens");
    assert_eq!(file.write_at(bytes, at).expect("writes"), bytes.len());
    file.sync_data().expect("syncs");
}

/// Positions and lengths of the frames of a segment.
pub fn frames(disk: &MemDisk, path: &Path) -> Vec<(u64, u64)> {
    let (_, scan) = veena_storage::partition::recover::scan(&bytes_of(disk, path)).expect("known format").expect("has a header");
    scan.frames.iter().map(|frame| (frame.position, frame.header.frame_len())).collect()
}
