//! The unproven tail: which of its records count, where the log goes on, and what of it is damage to promised data.
//!
//! The rule (design 3): a hole at or above the highest `synced_end` behind it belongs to a group nobody was told about, and the log is cut
//! there. A hole below it is damage to promised data: it is reported, and the records behind it stay.

use std::io;
use std::ops::ControlFlow;

use veena_contract::{StreamId, WalSeq};

use super::format::SEGMENT_HEADER_BYTES;
use super::replay::{Found, Source, scan};

/// Records that follow each other without a break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Which segment of the log.
    pub segment: usize,
    /// The place of its first record.
    pub at: u64,
    /// The place behind its last record.
    pub end_at: u64,
    pub first: WalSeq,
    pub end: WalSeq,
    /// The proof in its first record: where that record's group began.
    pub group_first: WalSeq,
    /// The highest proof among its records.
    pub synced_end: WalSeq,
}

/// A stream's first record in what was scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SeenStream {
    pub stream: StreamId,
    pub ordinal: u32,
    pub first: WalSeq,
}

/// What the scan of the tail came upon.
#[derive(Clone, Debug, Default)]
pub(super) struct Scanned {
    pub runs: Vec<Run>,
    pub streams: Vec<SeenStream>,
    /// Intact records that cannot follow those before them: left over from a group that was cut.
    pub has_stale: bool,
}

impl Scanned {
    /// Adds a segment's records.
    pub fn add(&mut self, source: &mut dyn Source, segment: usize, generation: u64) -> io::Result<()> {
        scan(source, generation, SEGMENT_HEADER_BYTES as u64, &mut |found| {
            let Found::Record { at, end: end_at, head, .. } = found else { return ControlFlow::Continue(()) };
            let last = self.runs.last_mut();
            let is_older = self.streams.last().is_some_and(|seen| head.ordinal < seen.ordinal);
            if is_older || last.as_ref().is_some_and(|run| head.seq < run.end) || head.seq.0 == u64::MAX {
                self.has_stale = true;
                return ControlFlow::Continue(());
            }
            match last.filter(|run| run.segment == segment && run.end_at == at && run.end == head.seq) {
                Some(run) => {
                    run.end_at = end_at;
                    run.end = head.seq.next();
                    run.synced_end = run.synced_end.max(head.synced_end);
                }
                None => {
                    let (first, end) = (head.seq, head.seq.next());
                    let (group_first, synced_end) = (head.synced_end, head.synced_end);
                    self.runs.push(Run { segment, at, end_at, first, end, group_first, synced_end });
                }
            }
            if self.streams.last().is_none_or(|seen| seen.stream != head.stream) {
                self.streams.push(SeenStream { stream: head.stream, ordinal: head.ordinal, first: head.seq });
            }
            ControlFlow::Continue(())
        })
        .map(|_| ())
    }
}

/// Where a log begins none of whose segments has a header: with its first record if nothing can stand before it, else with what that
/// record's group lacks, else with the checkpoint.
pub(super) fn first_without_header(runs: &[Run], checkpoint: WalSeq) -> WalSeq {
    match runs.first() {
        None => WalSeq(0),
        Some(run) if run.at == SEGMENT_HEADER_BYTES as u64 => run.first,
        Some(run) if run.group_first < run.first => run.group_first.max(checkpoint).min(run.first),
        Some(run) => checkpoint.min(run.first),
    }
}

/// Promised sequences that are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hole {
    pub first: WalSeq,
    pub end: WalSeq,
    /// How many runs stand before it.
    pub after_runs: usize,
}

/// What counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Decision {
    /// How many runs count, from the first.
    pub accepted: usize,
    /// The position behind the last record that is there.
    pub reached: WalSeq,
    /// Where the log goes on; above `reached` when promised records at the end are missing.
    pub end: WalSeq,
    pub holes: Vec<Hole>,
}

/// Applies the rule. `proof` is what is known to have been synced from elsewhere.
pub(super) fn decide(runs: &[Run], first: WalSeq, proof: WalSeq) -> Decision {
    let mut decision = Decision { reached: first, end: first, ..Decision::default() };
    for (index, run) in runs.iter().enumerate() {
        let hole = Hole { first: decision.end, end: run.first, after_runs: index };
        if hole.first < hole.end {
            let proven = runs[index..].iter().map(|run| run.synced_end).max().unwrap_or(proof).max(proof);
            if hole.first >= proven {
                break;
            }
            if hole.end > proven {
                // the hole goes on above what was promised: behind it stands a torn group
                decision.holes.push(Hole { end: proven, ..hole });
                decision.end = proven;
                break;
            }
            decision.holes.push(hole);
        }
        decision.accepted = index + 1;
        decision.reached = run.end;
        decision.end = run.end;
    }
    if decision.end < proof {
        decision.holes.push(Hole { first: decision.end, end: proof, after_runs: decision.accepted });
        decision.end = proof;
    }
    decision
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u64, end: u64, synced_end: u64) -> Run {
        let (first, end, synced_end) = (WalSeq(first), WalSeq(end), WalSeq(synced_end));
        Run { segment: 0, at: 0, end_at: 0, first, end, group_first: synced_end, synced_end }
    }

    fn decided(runs: &[Run], first: u64, proof: u64) -> (usize, u64, u64, Vec<(u64, u64)>) {
        let decision = decide(runs, WalSeq(first), WalSeq(proof));
        let holes = decision.holes.iter().map(|hole| (hole.first.0, hole.end.0)).collect();
        (decision.accepted, decision.reached.0, decision.end.0, holes)
    }

    #[test]
    fn without_holes_everything_counts() {
        assert_eq!(decided(&[], 7, 0), (0, 7, 7, vec![]));
        assert_eq!(decided(&[run(7, 9, 8), run(9, 12, 9)], 7, 0), (2, 12, 12, vec![]));
    }

    #[test]
    fn a_hole_in_a_group_nobody_was_told_about_cuts_the_log() {
        assert_eq!(decided(&[run(0, 5, 3), run(6, 8, 5)], 0, 0), (1, 5, 5, vec![]));
        assert_eq!(decided(&[run(1, 2, 0)], 0, 0), (0, 0, 0, vec![]));
    }

    #[test]
    fn a_hole_below_a_proof_behind_it_is_damage_and_the_rest_stays() {
        assert_eq!(decided(&[run(0, 5, 3), run(6, 8, 6)], 0, 0), (2, 8, 8, vec![(5, 6)]));
        assert_eq!(decided(&[run(0, 5, 3), run(6, 8, 5), run(8, 9, 8)], 0, 0), (3, 9, 9, vec![(5, 6)]));
    }

    #[test]
    fn a_hole_that_goes_on_above_the_proof_is_damage_and_then_a_cut() {
        assert_eq!(decided(&[run(0, 5, 3), run(9, 10, 7)], 0, 0), (1, 5, 7, vec![(5, 7)]));
    }

    #[test]
    fn a_proof_from_elsewhere_tells_of_records_missing_at_the_end() {
        assert_eq!(decided(&[run(0, 5, 3)], 0, 6), (1, 5, 6, vec![(5, 6)]));
        assert_eq!(decided(&[run(0, 5, 3)], 0, 5), (1, 5, 5, vec![]));
    }
}
