//! Parking: a destination that has failed for a while and is in the way has what it keeps in memory written to a file, and holds up neither
//! the WAL's checkpoint nor the memory of the node any more. When it works again, its files are read back and sent first.
//!
//! What must never happen: a record leaves memory before the name of its file is durable; a file goes before its records are committed; a
//! stream is called finished while a file of it may be found again.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{error, info, warn};
use veena_contract::{Confirmed, TopicGone, WalSeq, limits};
use veena_storage::disk::Disk;
use veena_storage::wal::parked::{self, ParkedFile, ParkedOpenError, ParkedWriter};
use veena_storage::wal::{Destination, WalIoError, WalOpened, WalReadError, WalStream};

use crate::core::Core;
use crate::layout;
use crate::owners::stream::OwnerCalls;
use crate::partition::Partition;
use crate::produce::dispatch;
use crate::produce::mend::{self, Mended, Place};
use crate::produce::parked::{DoneFile, News};
use crate::produce::request::CommitError;
use crate::streams::StreamKey;
use crate::topics::Topic;

/// How often the node looks for destinations that are in the way.
const CHECK: Duration = Duration::from_secs(1);
/// How long nothing is parked after a file could not be written.
const RETRY: Duration = Duration::from_secs(10);
/// How much of a file is in memory at once.
const PIECE_BYTES: usize = 1024 * 1024;

/// The files of parked records, over all destinations.
#[derive(Default)]
pub struct ParkedFiles {
    bytes: AtomicU64,
    next_number: AtomicU64,
    /// Streams of which a file is there, or may be found again, by ordinal: how many files. They are not finished.
    ordinals: Mutex<BTreeMap<u32, usize>>,
    /// Those found at start.
    found: Vec<parked::ParkedStream>,
}

impl ParkedFiles {
    /// What former lives left, and how many files there are that cannot be used: they stay where they are.
    ///
    /// # Errors
    /// [`ParkedOpenError`]: without its parked records a destination must not get later ones.
    pub fn open(disk: &dyn Disk, dir: &Path, opened: &WalOpened) -> Result<(Self, Vec<Arc<ParkedFile>>, u64), ParkedOpenError> {
        let (mut files, mut strangers, mut next) = (Vec::new(), 0, 0);
        let failed = |step| move |source| WalIoError { path: dir.to_owned(), step, source };
        for entry in disk.list(dir).map_err(failed("list"))? {
            if parked::is_temp_name(&entry.name) {
                disk.remove_file(&dir.join(&entry.name)).map_err(failed("clean"))?;
            }
            let Some((_, number)) = parked::parse_name(&entry.name) else { continue };
            next = next.max(number + 1);
            match ParkedFile::open(disk, &dir.join(&entry.name), opened.wal_id) {
                Ok(file) => files.push(file),
                Err(error @ ParkedOpenError::NotOfThisLog { .. }) => {
                    error!(%error, "a file of parked records is left where it is");
                    strangers += 1;
                }
                Err(error) => return Err(error),
            }
        }
        files.sort_by_key(|file| file.number);
        bound_damaged(&mut files, opened);
        let files: Vec<_> = files.into_iter().map(Arc::new).collect();
        let found = files.iter().flat_map(|file| file.streams.clone()).collect();
        let all = Self { next_number: AtomicU64::new(next), found, ..Self::default() };
        files.iter().for_each(|file| all.hold(file));
        Ok((all, files, strangers))
    }

    /// The older streams that may have records to send: those of the WAL, and those that only files have.
    #[must_use]
    pub fn streams_beside(&self, opened: &WalOpened) -> Vec<WalStream> {
        let mut streams = opened.streams.clone();
        for part in &self.found {
            match streams.iter_mut().find(|known| known.stream == part.stream) {
                Some(known) => known.first = known.first.min(part.first),
                None => streams.push(WalStream {
                    stream: part.stream,
                    ordinal: part.ordinal,
                    first: part.first,
                    end: opened.checkpoint.max(part.last.next()),
                }),
            }
        }
        streams
    }

    /// Did former lives leave files?
    #[must_use]
    pub fn has_found(&self) -> bool {
        !self.found.is_empty()
    }

    /// The oldest stream that a file has.
    pub fn oldest_ordinal(&self) -> Option<u32> {
        self.ordinals.lock().keys().next().copied()
    }

    /// Bytes of bodies in files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// A file is there, or will be.
    fn hold(&self, file: &ParkedFile) {
        self.bytes.fetch_add(file.bytes, Ordering::Relaxed);
        let mut ordinals = self.ordinals.lock();
        file.streams.iter().for_each(|part| *ordinals.entry(part.ordinal).or_default() += 1);
    }

    /// A file is gone, and cannot be found again.
    fn release(&self, file: &ParkedFile) {
        self.bytes.fetch_sub(file.bytes, Ordering::Relaxed);
        let mut ordinals = self.ordinals.lock();
        for part in &file.streams {
            if let Some(count) = ordinals.get_mut(&part.ordinal) {
                *count -= 1;
            }
        }
        ordinals.retain(|_, count| *count > 0);
    }
}

/// Says how far down and up files without heads may have gone: what the WAL replays, and what later files hold, was in none of them.
fn bound_damaged(files: &mut [ParkedFile], opened: &WalOpened) {
    for index in 0..files.len() {
        let (file, later) = files[index..].split_first_mut().expect("invariant: below the length");
        if !file.is_head_damaged {
            continue;
        }
        let known = |stream| opened.streams.iter().find(|known| known.stream == stream);
        if let Some(part) = file.streams.first_mut() {
            let known = known(part.stream).filter(|known| known.first <= part.last);
            part.first = known.map_or(part.first, |known| part.first.max(known.first));
        }
        let later = later.iter().filter(|later| later.destination == file.destination).flat_map(|later| &later.streams);
        let last_stream = file.streams.last().and_then(|part| known(part.stream));
        let ends = later.map(|part| part.first).chain(last_stream.map(|known| known.end));
        file.reach(ends.fold(opened.checkpoint, WalSeq::min));
    }
}

/// What a destination that takes nothing keeps from the others.
#[derive(Clone, Copy, Debug)]
pub struct Stuck {
    /// Its oldest record in memory.
    pub front: WalSeq,
    /// Bytes of bodies in memory.
    pub bytes: usize,
}

/// How near the node is to refusing produce.
struct Pressure {
    /// Undispatched bytes in memory.
    memory: usize,
    /// Over it, memory is short.
    memory_max: usize,
    /// How many bytes of the WAL one destination may hold up.
    pinned_max: u64,
    /// How many bytes more may be parked.
    room: u64,
}

impl Pressure {
    /// Which of the stuck destinations is parked next; each comes with the bytes of the WAL that it holds up.
    fn choose(&self, stuck: &[(Stuck, u64)]) -> Option<usize> {
        let fits = |(_, (stuck, _)): &(usize, &(Stuck, u64))| stuck.bytes as u64 <= self.room;
        let by_pin = stuck.iter().enumerate().filter(fits).max_by_key(|(_, (_, pinned))| *pinned);
        if let Some((index, _)) = by_pin.filter(|(_, (_, pinned))| *pinned > self.pinned_max) {
            return Some(index);
        }
        let by_bytes = stuck.iter().enumerate().filter(fits).max_by_key(|(_, (stuck, _))| stuck.bytes);
        by_bytes.filter(|_| self.memory > self.memory_max).map(|(index, _)| index)
    }
}

/// Parks what is in the way, until the node stops.
pub async fn run(core: Arc<Core>) {
    let token = core.ports.tasks.token().clone();
    let mut due = Instant::now() + CHECK;
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(due) => {}
            () = token.cancelled() => return,
        }
        due = Instant::now() + CHECK;
        while let Some(partition) = next_to_park(&core) {
            let (worker, target) = (Arc::clone(&core), Arc::clone(&partition));
            match core.ports.write_io.run(move || park(&worker, &target)).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(failed) => {
                    warn!(
                        partition = %partition.dir.display(), err = &failed as &dyn Error,
                        "the records of a partition that takes nothing could not be set aside; tried again later"
                    );
                    due = Instant::now() + RETRY;
                    break;
                }
            }
        }
    }
}

fn next_to_park(core: &Core) -> Option<Arc<Partition>> {
    let config = &core.config;
    let pressure = Pressure {
        memory: core.dispatch.bytes(),
        memory_max: config.undispatched_bytes_max / limits::PARK_MEMORY_SHARE,
        pinned_max: config.wal.undispatched_bytes_max / limits::PARK_WAL_SHARE,
        room: config.parked_bytes_max.saturating_sub(core.parked.bytes()),
    };
    let is_calm = pressure.memory <= pressure.memory_max && core.wal.live_bytes_from(WalSeq(0)) <= pressure.pinned_max;
    // The reserve of the disk is not for this.
    // What former lives moved is not put into a file again.
    if is_calm || !core.moved.is_known() || core.is_disk_low.load(Ordering::Relaxed) {
        return None;
    }
    let (now, end) = (Instant::now(), core.dispatch.read_to());
    let mut partitions = Vec::new();
    let mut stuck = Vec::new();
    for partition in core.dispatch.active() {
        let found = partition.queue.lock().stuck(now);
        if let Some(found) = found.filter(|found| found.front < end) {
            stuck.push((found, core.wal.live_bytes_from(found.front)));
            partitions.push(partition);
        }
    }
    pressure.choose(&stuck).map(|index| partitions.swap_remove(index))
}

/// Blocking. Sets aside what a destination has in memory. Says whether it did: not when the destination moves again, or its records go elsewhere.
fn park(core: &Core, partition: &Partition) -> Result<bool, WalReadError> {
    if !partition.queue.lock().begin_park() {
        return Ok(false);
    }
    let outcome = write_aside(core, partition);
    partition.queue.lock().end_park();
    outcome
}

/// 1 temp file written and synced   2 renamed   3 directory synced   4 dropped from memory, so that the checkpoint may pass    — a crash before
/// 4 leaves the WAL's copy, and after 3 both
fn write_aside(core: &Core, partition: &Partition) -> Result<bool, WalReadError> {
    let destination = Destination { group: partition.id.topic.0, partition: partition.id.index.get() };
    let (departures, old, from) = {
        let queue = partition.queue.lock();
        (queue.departures(), queue.parked.files(), queue.parked.done_to())
    };
    let old = if old.len() < limits::PARKED_FILES_PER_PARTITION_MAX { Vec::new() } else { old };
    let dir = layout::parked_dir(&core.config.data_dir);
    let number = core.parked.next_number.fetch_add(1, Ordering::Relaxed);
    let mut writer = ParkedWriter::begin(Arc::clone(&core.ports.disk), &dir, core.wal_id(), number, destination)?;
    let (last, news) = match fill(core, partition, &mut writer, &old, from) {
        Ok(filled) => filled,
        Err(failed) => {
            writer.give_up();
            return Err(failed);
        }
    };
    let Some(last) = last else {
        writer.give_up();
        return Ok(false);
    };
    let made = writer.made().clone();
    core.parked.hold(&made);
    let file = match writer.finish() {
        Ok(file) => Arc::new(file),
        Err(failed) => {
            give_up(core, partition, &made);
            return Err(failed.into());
        }
    };
    let merged: Vec<(News, DoneFile)> = {
        let mut queue = partition.queue.lock();
        if queue.departures() != departures {
            drop(queue);
            give_up(core, partition, &file);
            return Ok(false);
        }
        let merged = old.into_iter().zip(news).map(|(file, news)| queue.parked.on_merged(file, news)).collect::<Vec<_>>();
        let loaded = if merged.is_empty() {
            queue.parked.push(Arc::clone(&file));
            0
        } else {
            queue.parked.replace(Arc::clone(&file))
        };
        let (bytes, former) = queue.drop_parked(last);
        core.dispatch.sub_bytes(bytes + loaded);
        core.dispatch.sub_former(former);
        merged
    };
    core.dispatch.note_progress();
    core.metrics.records_parked.add(file.records);
    warn!(
        partition = %partition.dir.display(), records = file.records, bytes = file.bytes, file = %file.path.display(),
        "a partition takes nothing and was in the way: its records wait in a file until it does"
    );
    for (news, done) in merged {
        tell(core, &done.file, &news);
        discard_now(core, &done);
    }
    Ok(true)
}

/// Writes what is left of older files, and what is in memory. Answers the last record of memory, if there is any, and what was found in each of
/// the older files.
fn fill(
    core: &Core,
    partition: &Partition,
    writer: &mut ParkedWriter,
    old: &[Arc<ParkedFile>],
    from: Place,
) -> Result<(Option<WalSeq>, Vec<News>), WalReadError> {
    let end = core.dispatch.read_to();
    let mut found = Vec::new();
    let mut place = from;
    for file in old {
        place.at = place.at.max(file.start());
        let mut news = News::default();
        loop {
            let Mended { piece, lost } = mend::read(core.ports.disk.as_ref(), &core.wal, &core.moved, file, place, PIECE_BYTES)?;
            for (record, _) in &piece.records {
                writer.add(record, core.wal_origin(record.stream).ordinal)?;
            }
            // A place that takes several steps is met at each.
            let known_to = news.damaged.last().map_or(0, |(_, to)| *to);
            news.damaged.extend(piece.damaged.into_iter().filter(|(_, to)| *to > known_to));
            news.lost.extend(lost);
            place = Place { at: piece.next, after: piece.records.last().map(|(record, _)| record.seq).or(place.after) };
            if piece.is_end {
                break;
            }
        }
        // The next file begins behind this one's last record, also one that does not say where.
        place.at = 0;
        found.push(news);
    }
    let mut last = None;
    loop {
        let records = partition.queue.lock().records_behind(last, end, PIECE_BYTES);
        let Some(newest) = records.last() else { return Ok((last, found)) };
        last = Some(newest.seq);
        for record in &records {
            writer.add(record, core.wal_origin(record.stream).ordinal)?;
        }
    }
}

/// Reads a piece of a file into memory, once the owner takes records again.
///
/// # Errors
/// While it does not, or the file cannot be read.
pub async fn load(
    core: &Arc<Core>,
    topic: &Arc<Topic>,
    partition: &Arc<Partition>,
    file: Arc<ParkedFile>,
    from: Place,
) -> Result<(), CommitError> {
    for part in file.streams.iter().take(1) {
        OwnerCalls::to(core, topic, partition).open(StreamKey { stream: part.stream, source: 0 }).await?;
    }
    let (worker, wanted) = (Arc::clone(core), Arc::clone(&file));
    let reading = move || mend::read(worker.ports.disk.as_ref(), &worker.wal, &worker.moved, &wanted, from, PIECE_BYTES);
    let mended = core.ports.read_io.run(reading).await.map_err(|failed| {
        warn!(file = %file.path.display(), err = &failed as &dyn Error, "parked records cannot be read; tried again");
        CommitError::NotOpen
    })?;
    let news = {
        let mut queue = partition.queue.lock();
        let (news, bytes) = queue.parked.on_read(file.number, mended);
        core.dispatch.add_bytes(bytes);
        news
    };
    tell(core, &file, &news);
    Ok(())
}

fn tell(core: &Core, file: &ParkedFile, news: &News) {
    for (from, to) in &news.damaged {
        error!(file = %file.path.display(), from, to, "parked records are damaged; what the WAL still holds of them is taken from there");
        core.metrics.damage_found.add(1);
    }
    for gap in &news.lost {
        error!(file = %file.path.display(), stream = %gap.stream, first = gap.first.0, end = gap.end.0, "parked records are damaged and lost");
    }
}

/// A file of a former life goes to its destination, or waits until its topic is known.
pub fn attach(core: &Arc<Core>, file: Arc<ParkedFile>) {
    if file.is_head_damaged {
        error!(file = %file.path.display(), records = file.records, "the head of a file of parked records is damaged; its records are read without it");
        core.metrics.damage_found.add(1);
    }
    if let Some(file) = attach_known(core, file) {
        core.orphans.add_parked(core, file);
    }
}

/// A file goes to its destination. Comes back if that is not known.
pub fn attach_known(core: &Arc<Core>, file: Arc<ParkedFile>) -> Option<Arc<ParkedFile>> {
    let Some((topic, partition)) = core.destination(file.destination) else {
        return Some(file);
    };
    let mut queue = partition.queue.lock();
    queue.parked.push(file);
    dispatch::start(core, &topic, &partition, &mut queue);
    None
}

/// All records of a file are committed.
pub async fn discard(core: &Arc<Core>, done: DoneFile) {
    let worker = Arc::clone(core);
    core.ports.write_io.run(move || discard_now(&worker, &done)).await;
}

fn discard_now(core: &Core, done: &DoneFile) {
    if done.is_damaged {
        if let Err(failed) = set_aside(core, &done.file) {
            warn!(file = %done.file.path.display(), error = %failed, "a damaged file of parked records could not be set aside; it stays");
        }
    } else {
        let_go(core, &done.file);
    }
    info!(file = %done.file.path.display(), records = done.file.records, "parked records are committed");
}

/// Removes a file whose records are still in memory. One that stays is found by the next start, which must not find what was moved.
fn give_up(core: &Core, partition: &Partition, file: &ParkedFile) {
    if !let_go(core, file) {
        partition.queue.lock().keep_from_moving();
    }
}

/// Removes a file whose records are elsewhere. One that cannot be removed is found by the next start, which sees that they are committed. Says
/// whether it is gone.
fn let_go(core: &Core, file: &ParkedFile) -> bool {
    match parked::remove(core.ports.disk.as_ref(), &file.path) {
        Ok(()) => {
            core.parked.release(file);
            true
        }
        Err(failed) => {
            warn!(err = &failed as &dyn Error, "a file of parked records that nobody needs any more could not be removed");
            false
        }
    }
}

/// The topic is gone: its files are set aside, and those that cannot be come back.
pub fn drop_files(core: &Core, files: Vec<Arc<ParkedFile>>, why: &Confirmed<TopicGone>) -> Vec<Arc<ParkedFile>> {
    let mut kept = Vec::new();
    for file in files {
        assert_eq!(file.destination.group, why.fact().topic.0, "the fact is about this topic");
        match set_aside(core, &file) {
            Ok(()) => core.metrics.records_discarded.add(file.records),
            Err(failed) => {
                warn!(file = %file.path.display(), error = %failed, "parked records of a deleted topic could not be set aside; tried again later");
                kept.push(file);
            }
        }
    }
    kept
}

/// Destroying begins with a rename, as for topics.
fn set_aside(core: &Core, file: &ParkedFile) -> io::Result<()> {
    let disk = &core.ports.disk;
    let quarantine = layout::quarantine_dir(&core.config.data_dir);
    let name = parked::file_name(file.destination, file.number);
    let to = quarantine.join(format!("{:013}-{name}", core.ports.clock.now_ms()));
    disk.create_dir_all(&to)?;
    disk.sync_dir(&quarantine)?;
    // 1 renamed   2 target directory synced   3 source directory synced    — a crash in between leaves the file under one name
    match disk.rename(&file.path, &to.join(name)) {
        // Renamed by an attempt that failed behind this step.
        Err(failed) if failed.kind() == io::ErrorKind::NotFound => {}
        renamed => renamed?,
    }
    disk.sync_dir(&to)?;
    disk.sync_dir(&layout::parked_dir(&core.config.data_dir))?;
    core.parked.release(file);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stuck(front: u64, bytes: usize, pinned: u64) -> (Stuck, u64) {
        (Stuck { front: WalSeq(front), bytes }, pinned)
    }

    #[test]
    fn who_holds_up_the_wal_goes_first_then_who_holds_most_memory() {
        let calm = Pressure { memory: 50, memory_max: 50, pinned_max: 1_000, room: u64::MAX };
        let all = [stuck(3, 10, 900), stuck(1, 1, 1_000), stuck(2, 30, 950)];
        assert_eq!(calm.choose(&all), None, "nobody is in the way");
        assert_eq!(Pressure { memory: 51, ..calm }.choose(&all), Some(2));
        assert_eq!(Pressure { pinned_max: 940, ..calm }.choose(&all), Some(1), "also one that holds little memory");
        assert_eq!(Pressure { memory: 51, room: 29, ..calm }.choose(&all), Some(0), "what there is no room for stays");
        assert_eq!(Pressure { memory: 51, ..calm }.choose(&[]), None);
    }
}
