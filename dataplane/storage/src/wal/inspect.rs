//! Looking at a log without opening it. Takes no lock and changes nothing.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use veena_contract::WalSeq;

use super::format::{BadSegmentHeader, SEGMENT_HEADER_BYTES, SegmentHeader};
use super::replay::{FileSource, Found, Source, scan};
use super::{WalIoError, WalStream, failed, number_of};
use crate::disk::{Disk, OpenMode};

/// What one segment holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    /// The file.
    pub path: PathBuf,
    /// Its generation, by its name.
    pub generation: u64,
    /// Its header, or what is wrong with it.
    pub header: Result<SegmentHeader, BadSegmentHeader>,
    /// How many intact records it holds.
    pub records: u64,
    /// The streams of those records, each with the sequences it spans.
    pub streams: Vec<WalStream>,
    /// The place behind the last intact record. What follows may never have been written.
    pub good_end: u64,
    /// Damage before that place: offsets from and to.
    pub damage: Vec<(u64, u64)>,
}

/// Reads every segment of a log and verifies every record, in order of generation. For tools; blocks.
///
/// # Errors
/// Of the file system.
pub fn inspect(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Vec<SegmentReport>, WalIoError> {
    let entries = disk.list(dir).map_err(failed(dir, "list"))?;
    let ours = entries.iter().filter(|entry| !entry.is_dir).filter_map(|entry| number_of(&entry.name, "wal").map(|number| (number, entry)));
    ours.map(|(generation, entry)| inspect_segment(&**disk, dir.join(&entry.name), generation)).collect()
}

fn inspect_segment(disk: &dyn Disk, path: PathBuf, generation: u64) -> Result<SegmentReport, WalIoError> {
    let file = disk.open(&path, OpenMode::Read).map_err(failed(&path, "open"))?;
    let mut source = FileSource::new(file).map_err(failed(&path, "measure"))?;
    let header = SegmentHeader::decode(source.view(0, SEGMENT_HEADER_BYTES).map_err(failed(&path, "read"))?);
    let mut report = SegmentReport { path, generation, header, records: 0, streams: Vec::new(), good_end: 0, damage: Vec::new() };
    if header.is_err() {
        report.damage.push((0, SEGMENT_HEADER_BYTES as u64));
    }
    let outcome = scan(&mut source, generation, SEGMENT_HEADER_BYTES as u64, &mut |found| {
        match found {
            Found::Bad { at, end } => report.damage.push((at, end)),
            Found::Record { head, .. } => {
                report.records += 1;
                match report.streams.last_mut().filter(|last| last.stream == head.stream) {
                    Some(last) => last.end = head.seq.next(),
                    None => report.streams.push(WalStream {
                        stream: head.stream,
                        ordinal: head.ordinal,
                        first: head.seq,
                        end: WalSeq(head.seq.0.saturating_add(1)),
                    }),
                }
            }
        }
        ControlFlow::Continue(())
    });
    report.good_end = outcome.map_err(failed(&report.path, "read"))?;
    Ok(report)
}
