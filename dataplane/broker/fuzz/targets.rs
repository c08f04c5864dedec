// What each fuzz target does with its input; shared with the plain test that replays the checked-in inputs.

use bytes::Bytes;
use veena_broker::consume::frontier;
use veena_broker::consume::lease::LeaseTable;
use veena_broker::consume::promised;
use veena_broker::fanout::position;
use veena_broker::message::ReceiptHandle;
use veena_broker::owners::bodies::lease::{self, Claim, Wait, Waited};
use veena_broker::owners::bodies::look::{self, LagAsked};
use veena_broker::owners::bodies::moves;
use veena_broker::owners::bodies::settle::{Settling, settled, take_settled};
use veena_broker::owners::wire;
use veena_contract::Offset;

/// A target: its name, and what it does.
pub type Target = (&'static str, fn(&[u8]));

/// All targets of this crate.
pub const TARGETS: [Target; 8] = [
    ("settle_state", settle_state),
    ("promised_end", promised_end),
    ("cursor_position", cursor_position),
    ("receipt_handle", receipt_handle),
    ("owner_request", owner_request),
    ("owner_answer", owner_answer),
    ("queue_request", queue_request),
    ("queue_answer", queue_answer),
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

/// What another node asks of a partition's owner about streams: what is read is written back byte for byte.
pub fn owner_request(bytes: &[u8]) {
    let whole = Bytes::copy_from_slice(bytes);
    let mut body = whole.clone();
    let Ok(tenure) = wire::take_request(&mut body) else { return };
    if let Ok(key) = wire::take_open(body.clone()) {
        assert_eq!(wire::open(&tenure, key), whole);
    }
    if let Ok(commit) = wire::take_commit(body.clone()) {
        assert_eq!(wire::commit(&tenure, &commit), whole);
    }
    if let Ok(bodies) = wire::take_produce(body) {
        assert_eq!(wire::produce(&tenure, &bodies), whole);
    }
    if let Ok((tenure, token, asked)) = moves::take_ask_copy(whole.clone()) {
        assert_eq!(moves::ask_copy(&tenure, token, &asked), whole);
    }
    if let Ok((tenure, token)) = moves::take_ask_freeze(whole.clone()) {
        assert_eq!(moves::ask_freeze(&tenure, token), whole);
    }
}

/// What a partition's owner answers about streams: what is read is written back byte for byte.
pub fn owner_answer(bytes: &[u8]) {
    let whole = Bytes::copy_from_slice(bytes);
    let mut body = whole.clone();
    match wire::take_answer(&mut body) {
        Ok(Ok(())) => {}
        Ok(Err(_)) => return assert_eq!(wire::not_owner(), whole),
        Err(_) => return,
    }
    if let Ok(standing) = wire::take_standing(body.clone()) {
        assert_eq!(wire::standing(&standing), whole);
    }
    if let Ok(answer) = wire::take_commit_answer(body.clone()) {
        assert_eq!(wire::commit_answer(&answer), whole);
    }
    if let Ok(Ok(list)) = moves::take_listed(body.clone()) {
        assert_eq!(moves::listed(&list), whole);
    }
    if let Ok(Ok(piece)) = moves::take_piece(body.clone()) {
        assert_eq!(moves::piece(&piece), whole);
    }
    match moves::take_handed_over(body) {
        Ok(Ok(hand_over)) => assert_eq!(moves::handed_over(&hand_over), whole),
        Ok(Err(why)) => assert_eq!(moves::refused(why), whole),
        Err(_) => {}
    }
}

/// A call to an owner about the queue, as every one of them: what is read is written back byte for byte.
pub fn queue_request(bytes: &[u8]) {
    let body = Bytes::copy_from_slice(bytes);
    let written = [
        Claim::decode(body.clone()).map(|claim| claim.encode()),
        Wait::decode(body.clone()).map(|wait| wait.encode()),
        Settling::decode(body.clone()).map(|settling| settling.encode()),
        LagAsked::decode(body.clone()).map(|asked| asked.encode()),
        lease::take_endings(body.clone()).map(|list| lease::endings(&list)),
        look::take_ask(body.clone()).map(|tenures| look::ask(&tenures)),
        look::take_ask_read(body).map(|(tenure, offset)| look::ask_read(&tenure, offset)),
    ];
    for written in written.into_iter().flatten() {
        assert_eq!(&written[..], bytes);
    }
}

/// An owner's answer to one of them: what is read is written back with the same meaning.
pub fn queue_answer(bytes: &[u8]) {
    let body = Bytes::copy_from_slice(bytes);
    if let Ok(waited) = Waited::decode(body.clone()) {
        assert_eq!(&waited.encode()[..], bytes);
    }
    if let Ok(results) = take_settled(body.clone()) {
        assert_eq!(&settled(&results)[..], bytes);
    }
    if let Ok(stats) = look::take_described(body.clone()) {
        assert_eq!(&look::described(&stats)[..], bytes);
    }
    if let Ok(lags) = look::take_lags(body.clone()) {
        assert_eq!(&look::lags(&lags)[..], bytes);
    }
    match lease::take_claimed(body.clone()) {
        // A newer node may have written more about a message than is kept here.
        Ok(Ok(messages)) => {
            let again = lease::take_claimed(lease::claimed(&messages)).expect("own form").expect("messages");
            assert_eq!(format!("{again:?}"), format!("{messages:?}"));
        }
        Ok(Err(why)) => assert_eq!(&lease::claim_refused(why)[..], bytes),
        Err(_) => {}
    }
    let mut read = body;
    if let Ok(Ok(())) = wire::take_answer(&mut read)
        && let Ok(result) = look::take_read(&mut read, Offset(7))
    {
        let mut again = look::read(&result);
        wire::take_answer(&mut again).expect("own form").expect("served");
        let again = look::take_read(&mut again, Offset(7)).expect("own form");
        assert_eq!(format!("{again:?}"), format!("{result:?}"));
    }
}
