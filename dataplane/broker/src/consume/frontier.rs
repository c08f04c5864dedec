//! The durable form of a partition's settle state, and its way to the settle journal.
//!
//! Written every 100 ms, synced every second and at a clean stop: a kill redelivers at most 100 ms of acks, a power cut 1.1 s.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::consume::lease::SettleState;

const VERSION: u8 = 2;
/// Without the high watermark. Read, never written.
const VERSION_UNPROMISED: u8 = 1;

/// Room for the two lists in one value of the journal.
const LISTS_BYTES_MAX: usize = veena_storage::journal::VALUE_BYTES_MAX - 25;

/// The stored bytes are not a settle state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a settle state")]
pub struct NotASettleState;

/// version u8 | frontier u64 | high watermark u64 | ranges u32 | (start u64, end u64)* | counts u32 | (offset u64, count u32)*, big-endian.
#[must_use]
pub fn encode(state: &SettleState) -> Bytes {
    // What does not fit comes again, or counts low: both are allowed. One topic with wild caps must not stop the journal of all.
    let ahead = &state.ahead[..state.ahead.len().min(LISTS_BYTES_MAX / 16)];
    let deliveries = &state.deliveries[..state.deliveries.len().min((LISTS_BYTES_MAX - ahead.len() * 16) / 12)];
    let mut out = BytesMut::with_capacity(25 + ahead.len() * 16 + deliveries.len() * 12);
    out.put_u8(VERSION);
    out.put_u64(state.frontier);
    out.put_u64(state.high_watermark);
    out.put_u32(u32::try_from(ahead.len()).expect("invariant: bounded above"));
    for &(start, end) in ahead {
        out.put_u64(start);
        out.put_u64(end);
    }
    out.put_u32(u32::try_from(deliveries.len()).expect("invariant: bounded above"));
    for &(offset, count) in deliveries {
        out.put_u64(offset);
        out.put_u32(count);
    }
    out.freeze()
}

/// The reverse of [`encode`].
///
/// # Errors
/// [`NotASettleState`] for anything else; never panics, never allocates more than the bytes given.
pub fn decode(mut bytes: &[u8]) -> Result<SettleState, NotASettleState> {
    let version = bytes.try_get_u8().map_err(|_| NotASettleState)?;
    let frontier = bytes.try_get_u64().map_err(|_| NotASettleState)?;
    let high_watermark = match version {
        VERSION => bytes.try_get_u64().map_err(|_| NotASettleState)?,
        VERSION_UNPROMISED => 0,
        _ => return Err(NotASettleState),
    };
    let ranges = bytes.try_get_u32().map_err(|_| NotASettleState)?;
    let mut state = SettleState { frontier, high_watermark, ..SettleState::default() };
    let mut floor = frontier;
    for _ in 0..ranges {
        let start = bytes.try_get_u64().map_err(|_| NotASettleState)?;
        let end = bytes.try_get_u64().map_err(|_| NotASettleState)?;
        if start < floor || end <= start {
            return Err(NotASettleState);
        }
        floor = end;
        state.ahead.push((start, end));
    }
    let counts = bytes.try_get_u32().map_err(|_| NotASettleState)?;
    for _ in 0..counts {
        let offset = bytes.try_get_u64().map_err(|_| NotASettleState)?;
        let count = bytes.try_get_u32().map_err(|_| NotASettleState)?;
        state.deliveries.push((offset, count));
    }
    if bytes.is_empty() { Ok(state) } else { Err(NotASettleState) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_format_is_fixed() {
        let state = SettleState { frontier: 3, high_watermark: 9, ahead: vec![(5, 7)], deliveries: vec![(3, 2)] };
        let golden = "02000000000000000300000000000000090000000100000000000000050000000000000007000000010000000000000003\
                      00000002";
        let hex: String = encode(&state).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, golden);
        assert_eq!(decode(&encode(&state)), Ok(state));
    }

    #[test]
    fn the_first_version_is_read_and_says_nothing_of_the_high_watermark() {
        let golden = "0100000000000000030000000100000000000000050000000000000007000000010000000000000003\
                      00000002";
        let byte = |at: usize| u8::from_str_radix(&golden[at..at + 2], 16).expect("hex");
        let bytes: Vec<u8> = (0..golden.len()).step_by(2).map(byte).collect();
        let state = SettleState { frontier: 3, high_watermark: 0, ahead: vec![(5, 7)], deliveries: vec![(3, 2)] };
        assert_eq!(decode(&bytes), Ok(state));
    }

    #[test]
    fn a_state_of_wild_size_still_fits_the_journal() {
        let ahead: Vec<(u64, u64)> = (0..200_000).map(|n| (10 + 2 * n, 11 + 2 * n)).collect();
        let deliveries: Vec<(u64, u32)> = (0..200_000).map(|n| (n, 1)).collect();
        let state = SettleState { frontier: 1, ahead, deliveries, ..SettleState::default() };
        let bytes = encode(&state);
        assert!(bytes.len() <= veena_storage::journal::VALUE_BYTES_MAX);
        let kept = decode(&bytes).expect("own form");
        assert!(state.ahead.starts_with(&kept.ahead), "what is left out comes again");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(state) = decode(&bytes) && bytes[0] == VERSION {
                let again = encode(&state);
                prop_assert_eq!(again.as_ref(), bytes.as_slice());
            }
        }
    }
}
