//! A message as clients see it, written by hand: the contract fixes the order of keys and wants payloads embedded as they are.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::IgnoredAny;
use veena_broker::message::Delivery;
use veena_contract::limits;

/// Appends one message, without a line end.
pub(crate) fn write(out: &mut Vec<u8>, topic: &str, message: &Delivery) {
    out.reserve(192 + topic.len() + message.payload.len() + message.payload.len() / 8);
    // A topic's name needs no escapes.
    out.extend_from_slice(b"{\"topic\":\"");
    out.extend_from_slice(topic.as_bytes());
    out.extend_from_slice(b"\",\"partition\":");
    number(out, u64::from(message.partition.get()));
    out.extend_from_slice(b",\"offset\":");
    number(out, message.offset.get());
    if let Some(key) = &message.key {
        out.extend_from_slice(b",\"key\":");
        if !text_or_base64(out, key) {
            out.extend_from_slice(b",\"key_encoding\":\"base64\"");
        }
    }
    out.extend_from_slice(b",\"payload\":");
    payload(out, &message.payload);
    out.extend_from_slice(b",\"timestamp\":");
    number(out, message.commit_ms / 1000);
    if let Some(lease) = &message.lease {
        let handle = lease.handle;
        out.extend_from_slice(b",\"receipt_handle\":\"");
        number(out, u64::from(handle.partition.get()));
        out.push(b':');
        number(out, handle.offset.get());
        out.push(b':');
        number(out, handle.nonce);
        out.push(b'"');
    }
    out.extend_from_slice(b",\"id\":");
    string(out, &message.id.to_string());
    if let Some(lease) = &message.lease {
        out.extend_from_slice(b",\"delivery_count\":");
        number(out, u64::from(lease.delivery_count));
    }
    if !message.headers.is_empty() {
        headers(out, &message.headers);
    }
    out.push(b'}');
}

fn headers(out: &mut Vec<u8>, headers: &[(String, String)]) {
    out.extend_from_slice(b",\"headers\":{");
    for (index, (name, value)) in headers.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        string(out, name);
        out.push(b':');
        string(out, value);
    }
    out.push(b'}');
}

/// One valid JSON text goes in as it is; else UTF-8 as a string; else base64, which is then said.
fn payload(out: &mut Vec<u8>, payload: &[u8]) {
    if payload.is_empty() {
        out.extend_from_slice(b"null");
        return;
    }
    let is_json = starts_like_json(payload)
        && std::str::from_utf8(payload).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok() && is_flat_enough(payload));
    if is_json {
        out.extend_from_slice(payload);
    } else if !text_or_base64(out, payload) {
        out.extend_from_slice(b",\"payload_encoding\":\"base64\"");
    }
}

/// Spares the parser what cannot be JSON.
fn starts_like_json(payload: &[u8]) -> bool {
    let first = payload.iter().find(|b| !matches!(b, b' ' | b'\t' | b'\n' | b'\r'));
    first.is_some_and(|b| matches!(b, b'{' | b'[' | b'"' | b'-' | b't' | b'f' | b'n' | b'0'..=b'9'))
}

/// Does a valid JSON text stay within the depth that may be embedded?
fn is_flat_enough(json: &[u8]) -> bool {
    if json.len() <= limits::EMBED_DEPTH_MAX {
        return true;
    }
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for byte in json {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > limits::EMBED_DEPTH_MAX {
            return false;
        }
    }
    true
}

/// Writes a string; `false` when it had to be base64.
fn text_or_base64(out: &mut Vec<u8>, bytes: &[u8]) -> bool {
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            string(out, text);
            true
        }
        Err(_) => {
            out.push(b'"');
            let encoded = STANDARD.encode(bytes);
            out.extend_from_slice(encoded.as_bytes());
            out.push(b'"');
            false
        }
    }
}

fn string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("writing to memory does not fail");
}

fn number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use veena_broker::message::{Leased, ReceiptHandle};
    use veena_contract::{MessageId, Offset, PartitionIndex, StreamId};

    use super::*;

    fn delivery(payload: impl Into<Bytes>) -> Delivery {
        Delivery {
            partition: PartitionIndex(2),
            offset: Offset(5),
            id: MessageId { stream: StreamId(1), sequence: 9 },
            key: None,
            headers: Vec::new(),
            payload: payload.into(),
            commit_ms: 1_700_000_000_999,
            lease: None,
        }
    }

    fn text(message: &Delivery) -> String {
        let mut out = Vec::new();
        write(&mut out, "t.x", message);
        String::from_utf8(out).expect("JSON is UTF-8")
    }

    #[test]
    fn keys_come_in_the_contracts_order() {
        let mut message = delivery(r#"{"a": 1}"#);
        message.key = Some(Bytes::from_static(b"\xff"));
        message.headers = vec![("trace".into(), "a\"b".into())];
        let handle = ReceiptHandle { partition: PartitionIndex(2), offset: Offset(5), nonce: 77 };
        message.lease = Some(Leased { handle, delivery_count: 3 });
        assert_eq!(
            text(&message),
            concat!(
                r#"{"topic":"t.x","partition":2,"offset":5,"key":"/w==","key_encoding":"base64","payload":{"a": 1},"timestamp":1700000000,"#,
                r#""receipt_handle":"2:5:77","id":"00000000000000000000000000000001-9","delivery_count":3,"headers":{"trace":"a\"b"}}"#
            )
        );
    }

    #[test]
    fn a_payload_is_json_or_text_or_base64() {
        for (payload, want) in [
            (&b"1e999999999"[..], r#""payload":1e999999999,"#),
            (b" [1] ", r#""payload": [1] ,"#),
            (b"\"s\"", r#""payload":"s","#),
            (b"{\"a\":1}{", r#""payload":"{\"a\":1}{","#),
            (b"hello\n", r#""payload":"hello\n","#),
            (b"nul", r#""payload":"nul","#),
            (b"\"\xff\"", r#""payload":"Iv8i","payload_encoding":"base64","#),
            (b"", r#""payload":null,"#),
        ] {
            let text = text(&delivery(payload.to_vec()));
            assert!(text.contains(want), "{text}");
        }
    }

    #[test]
    fn a_payload_nested_too_deep_for_its_reader_is_a_string() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(text(&delivery(nested(1000))).contains("\"payload\":[["));
        assert!(text(&delivery(nested(1001))).contains("\"payload\":\"[["));
        assert!(text(&delivery(nested(500_000))).contains("\"payload\":\"[["));
        let in_string = format!("\"{}\"", "[".repeat(5000));
        assert!(text(&delivery(in_string)).contains("\"payload\":\"[["));
    }

    proptest! {
        #[test]
        fn every_payload_and_key_comes_back(payload in prop::collection::vec(any::<u8>(), 1..200), key in prop::collection::vec(any::<u8>(), 1..50)) {
            let mut message = delivery(payload.clone());
            message.key = Some(Bytes::from(key.clone()));
            let value: serde_json::Value = serde_json::from_str(&text(&message)).expect("an answer is JSON");
            let bytes = |name: &str| {
                let text = value[name].as_str().expect("a string").to_owned();
                if value[format!("{name}_encoding")] == "base64" { STANDARD.decode(text).expect("base64") } else { text.into_bytes() }
            };
            prop_assert_eq!(bytes("key"), key);
            if value["payload"].is_string() && !payload.starts_with(b"\"") {
                prop_assert_eq!(bytes("payload"), payload);
            }
        }
    }
}
