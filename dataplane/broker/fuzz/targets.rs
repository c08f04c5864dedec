// What each fuzz target does with its input; shared with the plain test that replays the checked-in inputs.

use veena_broker::consume::frontier;
use veena_broker::consume::lease::LeaseTable;
use veena_broker::consume::promised;
use veena_broker::fanout::position;
use veena_broker::message::ReceiptHandle;
use veena_contract::Offset;

/// A target: its name, and what it does.
pub type Target = (&'static str, fn(&[u8]));

/// All targets of this crate.
pub const TARGETS: [Target; 4] = [
    ("settle_state", settle_state),
    ("promised_end", promised_end),
    ("cursor_position", cursor_position),
    ("receipt_handle", receipt_handle),
];

/// The settle state of a log: what is read is written back with the same meaning (in the newest format), and leases can be restored from it.
pub fn settle_state(bytes: &[u8]) {
    if let Ok(state) = frontier::decode(bytes) {
        assert_eq!(frontier::decode(&frontier::encode(&state)).as_ref(), Ok(&state));
        let table = LeaseTable::restore(&state);
        assert!(table.frontier() >= Offset(state.frontier));
    }
}

/// The position of a cursor: what is read is written back with the same meaning.
pub fn cursor_position(bytes: &[u8]) {
    if let Ok(found) = position::decode(bytes) {
        assert_eq!(position::decode(&position::encode(&found)).as_ref(), Ok(&found));
    }
}

/// Up to where a log was published: what is read is written back byte for byte.
pub fn promised_end(bytes: &[u8]) {
    if let Ok(promise) = promised::decode(bytes) {
        assert_eq!(&promised::encode(&promise)[..], bytes);
    }
}

/// A receipt handle as a client sends it: what is read has one text, which is read as the same.
pub fn receipt_handle(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(handle) = text.parse::<ReceiptHandle>() {
        assert!(handle.nonce > 0);
        assert_eq!(handle.to_string().parse(), Ok(handle));
    }
}
