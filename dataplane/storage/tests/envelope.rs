//! The body of a record, as bytes.

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use veena_storage::envelope::{Envelope, EnvelopeError};

fn sample() -> Envelope {
    Envelope {
        key: Some(Bytes::from_static(b"key")),
        headers: vec![("trace".into(), "ab".into()), ("empty".into(), String::new())],
        payload: Bytes::from_static(b"hello"),
    }
}

#[test]
fn the_bytes_of_an_envelope_do_not_change() {
    let golden: &[u8] = b"\x01\x81\x00\x00\x00\x05hello\x82\x00\x00\x00\x03key\x83\x00\x00\x00\x1a\x00\x02\x00\x05trace\x00\x00\x00\x02ab\x00\x05empty\x00\x00\x00\x00";
    assert_eq!(sample().encode().as_ref(), golden);
    assert_eq!(Envelope::decode(&Bytes::from_static(golden)).expect("golden bytes"), sample());
}

#[test]
fn key_and_payload_share_the_memory_of_the_body() {
    let body = sample().encode();
    let envelope = Envelope::decode(&body).expect("own bytes");
    let inside = body.as_ptr_range();
    assert!(inside.contains(&envelope.payload.as_ptr()));
    assert!(inside.contains(&envelope.key.expect("has a key").as_ptr()));
}

#[test]
fn an_unknown_optional_field_is_skipped_and_an_unknown_critical_one_refused() {
    let mut optional = BytesMut::from(sample().encode().as_ref());
    optional.extend_from_slice(b"\x05\x00\x00\x00\x04home");
    assert_eq!(Envelope::decode(&optional.freeze()).expect("skipped"), sample());
    let mut critical = BytesMut::from(sample().encode().as_ref());
    critical.extend_from_slice(b"\x84\x00\x00\x00\x01x");
    assert_eq!(Envelope::decode(&critical.freeze()), Err(EnvelopeError::UnknownCritical { tag: 0x84 }));
    let mut version = BytesMut::from(sample().encode().as_ref());
    version[0] = 2;
    assert_eq!(Envelope::decode(&version.freeze()), Err(EnvelopeError::UnknownVersion { version: 2 }));
}

#[test]
fn an_envelope_cut_anywhere_is_refused_or_lacks_whole_fields() {
    let whole = sample().encode();
    for len in 0..whole.len() {
        if let Ok(envelope) = Envelope::decode(&whole.slice(..len)) {
            assert_eq!(envelope.payload, sample().payload);
            assert!(envelope.key.is_none() || envelope.headers.is_empty());
        }
    }
}

#[test]
fn a_field_given_twice_or_out_of_order_is_refused() {
    for bytes in [
        b"\x01\x81\x00\x00\x00\x00\x81\x00\x00\x00\x00".as_slice(),
        b"\x01\x82\x00\x00\x00\x00\x81\x00\x00\x00\x00",
        b"\x01",
        b"",
        b"\x01\x82\x00\x00\x00\x00",
        b"\x01\x81\xff\xff\xff\xff",
        b"\x01\x81\x00\x00\x00\x00\x83\x00\x00\x00\x02\xff\xff",
        b"\x01\x81\x00\x00\x00\x00\x83\x00\x00\x00\x09\x00\x01\x00\x01\xff\x00\x00\x00\x00",
    ] {
        assert!(matches!(Envelope::decode(&Bytes::from_static(bytes)), Err(EnvelopeError::Malformed { .. })), "{bytes:?}");
    }
}

proptest! {
    #[test]
    fn an_envelope_survives_its_bytes(
        key in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40)),
        headers in proptest::collection::vec(("[a-z0-9-]{1,20}", ".{0,20}"), 0..8),
        payload in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let envelope = Envelope { key: key.map(Bytes::from), headers, payload: Bytes::from(payload) };
        let body = envelope.encode();
        prop_assert_eq!(body.len(), envelope.encoded_len());
        prop_assert_eq!(Envelope::decode(&body).expect("own bytes"), envelope);
    }

    #[test]
    fn decoding_anything_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..100), lead in any::<bool>()) {
        let mut body = if lead { vec![1, 0x81] } else { Vec::new() };
        body.extend(bytes);
        let _ = Envelope::decode(&Bytes::from(body));
    }
}
