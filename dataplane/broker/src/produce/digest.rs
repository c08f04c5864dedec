//! What an idempotency key and a message are remembered by: 128 bits each. Pure.
//!
//! These values are stored, and compared between nodes: they never change. They keep messages apart that differ by accident; nobody is kept
//! from making two messages alike on purpose, in a topic of its own.

use veena_contract::IdempotencyKey;
use veena_storage::partition::RecordKey;

use crate::message::NewMessage;

/// Another one in each try of a message, although the message is the same.
const HEADER_OF_TRY: &str = "traceparent";

/// What a message with an idempotency key is remembered by. Its digest is that of its own key, headers and payload.
#[must_use]
pub fn record_key(key: &IdempotencyKey, message: &NewMessage) -> RecordKey {
    let mut headers: Vec<_> = message.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    headers.retain(|(name, _)| *name != HEADER_OF_TRY);
    headers.sort_unstable();
    let mut digest = SipHash::new();
    digest.part(message.key.as_ref().map_or(&[][..], |key| key.as_bytes()));
    digest.write(&(headers.len() as u64).to_le_bytes());
    for (name, value) in headers {
        digest.part(name.as_bytes());
        digest.part(value.as_bytes());
    }
    digest.part(&message.payload);
    let mut hash = SipHash::new();
    hash.write(key.as_str().as_bytes());
    RecordKey { hash: hash.finish(), digest: digest.finish() }
}

/// SipHash-2-4 with a result of 128 bits.
struct SipHash {
    v: [u64; 4],
    tail: [u8; 8],
    len: usize,
}

impl SipHash {
    fn new() -> Self {
        Self::with_key(0, 0)
    }

    fn with_key(k0: u64, k1: u64) -> Self {
        let v = [k0 ^ 0x736f_6d65_7073_6575, k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee, k0 ^ 0x6c79_6765_6e65_7261, k1 ^ 0x7465_6462_7974_6573];
        Self { v, tail: [0; 8], len: 0 }
    }

    /// Bytes behind their length, so that two parts are never taken for one.
    fn part(&mut self, bytes: &[u8]) {
        self.write(&(bytes.len() as u64).to_le_bytes());
        self.write(bytes);
    }

    fn write(&mut self, mut bytes: &[u8]) {
        let held = self.len % 8;
        self.len += bytes.len();
        if held > 0 {
            let more = bytes.len().min(8 - held);
            self.tail[held..held + more].copy_from_slice(&bytes[..more]);
            if held + more < 8 {
                return;
            }
            self.word(u64::from_le_bytes(self.tail));
            bytes = &bytes[more..];
        }
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        self.tail[..rest.len()].copy_from_slice(rest);
    }

    fn word(&mut self, word: u64) {
        self.v[3] ^= word;
        self.rounds(2);
        self.v[0] ^= word;
    }

    fn rounds(&mut self, count: usize) {
        let [mut v0, mut v1, mut v2, mut v3] = self.v;
        for _ in 0..count {
            v0 = v0.wrapping_add(v1);
            v1 = v1.rotate_left(13) ^ v0;
            v0 = v0.rotate_left(32);
            v2 = v2.wrapping_add(v3);
            v3 = v3.rotate_left(16) ^ v2;
            v0 = v0.wrapping_add(v3);
            v3 = v3.rotate_left(21) ^ v0;
            v2 = v2.wrapping_add(v1);
            v1 = v1.rotate_left(17) ^ v2;
            v2 = v2.rotate_left(32);
        }
        self.v = [v0, v1, v2, v3];
    }

    fn finish(mut self) -> u128 {
        let held = self.len % 8;
        self.tail[held..].fill(0);
        self.tail[7] = u8::try_from(self.len % 256).expect("invariant: below 256");
        self.word(u64::from_le_bytes(self.tail));
        let fold = |v: &[u64; 4]| v[0] ^ v[1] ^ v[2] ^ v[3];
        self.v[2] ^= 0xee;
        self.rounds(4);
        let first = fold(&self.v);
        self.v[1] ^= 0xdd;
        self.rounds(4);
        u128::from(first.swap_bytes()) << 64 | u128::from(fold(&self.v).swap_bytes())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use veena_contract::{HeaderName, Key};

    use super::*;

    fn sip(bytes: &[u8], step: usize) -> u128 {
        let mut hash = SipHash::with_key(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
        bytes.chunks(step).for_each(|part| hash.write(part));
        hash.finish()
    }

    #[test]
    fn the_hash_is_siphash_2_4_128() {
        // The published vectors: the key is 00 01 .. 0f, the input 00 01 ..
        assert_eq!(sip(&[], 1), 0xa381_7f04_ba25_a8e6_6df6_7214_c755_0293);
        assert_eq!(sip(&[0], 1), 0xda87_c1d8_6b99_af44_3476_5911_9b22_fc45);
    }

    #[test]
    fn the_hash_does_not_depend_on_how_its_input_comes() {
        let input: Vec<u8> = (0..100).collect();
        for len in 0..input.len() {
            let whole = sip(&input[..len], 100);
            for step in 1..20 {
                assert_eq!(sip(&input[..len], step), whole, "{len} in steps of {step}");
            }
        }
    }

    fn message(key: Option<&'static str>, headers: &[(&str, &str)], payload: &'static str) -> NewMessage {
        NewMessage {
            key: key.and_then(|key| Key::parse(Bytes::from_static(key.as_bytes())).expect("short")),
            partition: None,
            headers: headers.iter().map(|(name, value)| (HeaderName::parse(name).expect("valid"), (*value).to_owned())).collect(),
            idempotency_key: None,
            payload: Bytes::from_static(payload.as_bytes()),
        }
    }

    fn digest(message: &NewMessage) -> u128 {
        record_key(&IdempotencyKey::parse(b"k").expect("valid"), message).digest
    }

    #[test]
    fn a_repeat_is_what_it_repeats_in_whatever_order_its_headers_come_and_whoever_traces_it() {
        let first = digest(&message(Some("a"), &[("x", "1"), ("y", "2"), ("traceparent", "t1")], "p"));
        assert_eq!(digest(&message(Some("a"), &[("traceparent", "t2"), ("y", "2"), ("x", "1")], "p")), first);
        let others = [
            message(None, &[("x", "1"), ("y", "2")], "p"),
            message(Some("a"), &[("x", "1")], "p"),
            message(Some("a"), &[("x", "2"), ("y", "1")], "p"),
            message(Some("a"), &[("x", "1"), ("y", "2")], "q"),
            message(Some("ax"), &[("x", "1"), ("y", "2")], "p"),
        ];
        assert!(others.iter().all(|other| digest(other) != first));
    }

    #[test]
    fn what_is_remembered_of_a_key_never_changes() {
        let key = record_key(&IdempotencyKey::parse(b"order-1").expect("valid"), &message(Some("a"), &[("x", "1")], "p"));
        assert_eq!((key.hash, key.digest), (GOLDEN_HASH, GOLDEN_DIGEST));
    }

    const GOLDEN_HASH: u128 = 0x839d_dc05_c67f_163c_ef21_b89b_5f00_be3a;
    const GOLDEN_DIGEST: u128 = 0xf3a0_a457_5539_965f_39e9_cfce_f7fb_01e6;
}
