//! The body of a batch produce: unpacked within bounds, read entry by entry, every entry checked before any is stored.

use std::borrow::Cow;
use std::fmt;
use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_ENCODING, HeaderMap};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use veena_broker::message::NewMessage;
use veena_contract::{ErrorCode, IdempotencyKey, Key, PartitionIndex, limits};

use crate::budget::Reserved;
use crate::headers;
use crate::json::{self, ObjectOnly, present};
use crate::problem::Problem;
use crate::produce::partition_index;

/// How a body is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    None,
    Zstd,
    Gzip,
}

impl Encoding {
    /// What the request says.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        let mut values = headers.get_all(CONTENT_ENCODING).iter();
        let (first, second) = (values.next(), values.next());
        let name = first.map_or(Some(""), |value| value.to_str().ok()).unwrap_or("?").trim();
        let encoding = match name {
            "" => Self::None,
            name if name.eq_ignore_ascii_case("identity") => Self::None,
            name if name.eq_ignore_ascii_case("zstd") => Self::Zstd,
            name if name.eq_ignore_ascii_case("gzip") => Self::Gzip,
            _ => return Err(unknown_encoding()),
        };
        if second.is_some() { Err(unknown_encoding()) } else { Ok(encoding) }
    }
}

fn unknown_encoding() -> Problem {
    let text = "unsupported Content-Encoding: want zstd, gzip or none";
    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, ErrorCode::UnsupportedMediaType, text)
}

const UNPACK_STEP_BYTES: u64 = 256 * 1024;

/// Unpacks a body. What it grows to is reserved before it is there.
pub(crate) fn unpack(packed: Bytes, encoding: Encoding, reserved: &mut Reserved, free_up_to: usize) -> Result<Bytes, Problem> {
    let packed_len = packed.len();
    let broken = |error: std::io::Error| Problem::malformed(format!("invalid compressed body: {error}"));
    let mut reader: Box<dyn Read + '_> = match encoding {
        Encoding::None => return Ok(packed),
        Encoding::Gzip => Box::new(flate2::read::MultiGzDecoder::new(packed.as_ref())),
        Encoding::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(packed.as_ref()).map_err(broken)?;
            decoder.window_log_max(limits::PRODUCE_BATCH_ZSTD_WINDOW_LOG_MAX).map_err(broken)?;
            Box::new(decoder)
        }
    };
    let mut whole = Vec::new();
    loop {
        let total = packed_len + whole.len() + usize::try_from(UNPACK_STEP_BYTES).unwrap_or(usize::MAX);
        if total > free_up_to && !reserved.grow_to(total) {
            return Err(crate::body::BodyError::NoBudget.into());
        }
        let read = reader.by_ref().take(UNPACK_STEP_BYTES).read_to_end(&mut whole).map_err(broken)?;
        if whole.len() > limits::PRODUCE_BATCH_BYTES_MAX {
            return Err(crate::body::BodyError::TooLarge.into());
        }
        if read == 0 {
            return Ok(Bytes::from(whole));
        }
    }
}

/// Reads and checks every message of an unpacked body.
pub(crate) fn messages(body: &Bytes) -> Result<Vec<NewMessage>, Problem> {
    let batch: Batch<'_> = json::decode(body)?;
    let Entries { list, total } = batch.messages.unwrap_or_default();
    if total > limits::PRODUCE_BATCH_MESSAGES_MAX {
        let max = limits::PRODUCE_BATCH_MESSAGES_MAX;
        return Err(Problem::invalid(format!("too many messages: more than {max} (max {max})")));
    }
    if list.is_empty() {
        return Err(Problem::invalid("messages required"));
    }
    list.into_iter().enumerate().map(|(index, entry)| entry.check(body).map_err(|problem| problem.of_message(index))).collect()
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Batch<'a> {
    #[serde(default, borrow)]
    messages: Option<Entries<'a>>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry<'a> {
    #[serde(default, borrow, deserialize_with = "present")]
    payload: Option<&'a RawValue>,
    #[serde(default, borrow)]
    payload_encoding: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    key: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    key_encoding: Option<Cow<'a, str>>,
    #[serde(default)]
    partition: Option<i64>,
    #[serde(default, borrow)]
    headers: Option<Pairs<'a>>,
    #[serde(default, borrow)]
    idempotency_key: Option<Cow<'a, str>>,
}

impl Entry<'_> {
    fn check(self, body: &Bytes) -> Result<NewMessage, Problem> {
        let payload = self.payload(body)?;
        if payload.is_empty() {
            return Err(Problem::invalid("message required"));
        }
        if payload.len() > limits::MESSAGE_BYTES_MAX {
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, ErrorCode::BodyTooLarge, "message too large"));
        }
        let key = match self.key_encoding.as_deref() {
            None | Some("") => self.key.as_deref().map(|key| Bytes::copy_from_slice(key.as_bytes())),
            Some("base64") => self.key.as_deref().map(|key| decode(key, "key")).transpose()?,
            Some(other) => return Err(Problem::invalid(format!("invalid key_encoding {other:?}: want \"base64\" or none"))),
        };
        let key = Key::parse(key.unwrap_or_default())?;
        let partition: Option<PartitionIndex> = self.partition.map(partition_index).transpose()?;
        let pairs = self.headers.as_ref().map(|pairs| pairs.0.as_slice()).unwrap_or_default();
        let headers = headers::from_pairs(pairs.iter().map(|(name, value)| (name.as_ref(), value.as_ref())))?;
        let idempotency_key = self.idempotency_key.as_deref().map(|key| IdempotencyKey::parse(key.as_bytes())).transpose()?;
        Ok(NewMessage { key, partition, headers, idempotency_key, payload })
    }

    fn payload(&self, body: &Bytes) -> Result<Bytes, Problem> {
        let Some(raw) = self.payload else { return Ok(Bytes::new()) };
        match self.payload_encoding.as_deref() {
            None | Some("") => Ok(body.slice_ref(raw.get().as_bytes())),
            Some("base64") => {
                let text: Cow<'_, str> = serde_json::from_str::<Text<'_>>(raw.get())
                    .map_err(|_| Problem::invalid("invalid payload: with payload_encoding \"base64\" it has to be a string"))?
                    .0;
                decode(&text, "payload")
            }
            Some(other) => Err(Problem::invalid(format!("invalid payload_encoding {other:?}: want \"base64\" or none"))),
        }
    }
}

fn decode(text: &str, what: &str) -> Result<Bytes, Problem> {
    STANDARD.decode(text).map(Bytes::from).map_err(|error| Problem::invalid(format!("invalid {what}: not base64: {error}")))
}

#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// The entries, up to one more than may be; the rest is counted without being kept.
#[derive(Default)]
struct Entries<'a> {
    list: Vec<Entry<'a>>,
    total: usize,
}

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of messages")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Entries<'de>, A::Error> {
                let mut entries = Entries::default();
                while entries.total < limits::PRODUCE_BATCH_MESSAGES_MAX {
                    let Some(ObjectOnly(entry)) = seq.next_element()? else { return Ok(entries) };
                    entries.list.push(entry);
                    entries.total += 1;
                }
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    entries.total += 1;
                }
                Ok(entries)
            }
        }
        deserializer.deserialize_seq(Reader)
    }
}

/// An object of strings in which a repeated name is still seen.
struct Pairs<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'de>, A::Error> {
                let mut pairs = Vec::new();
                while let Some((name, value)) = map.next_entry::<Text<'de>, Text<'de>>()? {
                    // One more than may be is enough to refuse it.
                    if pairs.len() <= limits::HEADERS_MAX {
                        pairs.push((name.0, value.0));
                    }
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::budget::Budget;

    fn read(text: &str) -> Result<Vec<NewMessage>, Problem> {
        messages(&Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn a_payload_is_stored_exactly_as_it_was_written() {
        let text = r#"{"messages":[{"payload": {"b":1,  "a":[1.50]} },{"payload":"s\u0041"},{"payload":null},{"payload":"aGk=","payload_encoding":"base64","key":"AP8=","key_encoding":"base64","partition":2,"headers":{"a":"1"}}]}"#;
        let list = read(text).expect("valid");
        assert_eq!(list[0].payload, r#"{"b":1,  "a":[1.50]}"#);
        assert_eq!(list[1].payload, r#""s\u0041""#);
        assert_eq!(list[2].payload, "null");
        assert_eq!(list[3].payload, "hi");
        assert_eq!(list[3].key.as_ref().expect("a key").as_bytes().as_ref(), [0, 255]);
        assert_eq!(list[3].partition, Some(PartitionIndex(2)));
        assert_eq!(list[3].headers[0].1, "1");
        assert!(list[0].key.is_none());
    }

    #[test]
    fn the_first_bad_entry_is_named() {
        for (entry, status, want) in [
            ("{}", 400, "message 1: message required"),
            (r#"{"payload":"","payload_encoding":"base64"}"#, 400, "message 1: message required"),
            (r#"{"payload":"!","payload_encoding":"base64"}"#, 400, "message 1: invalid payload: "),
            (r#"{"payload":1,"payload_encoding":"base64"}"#, 400, "message 1: invalid payload: "),
            (r#"{"payload":1,"payload_encoding":"hex"}"#, 400, "message 1: invalid payload_encoding"),
            (r#"{"payload":1,"key":"!","key_encoding":"base64"}"#, 400, "message 1: invalid key: "),
            (r#"{"payload":1,"partition":-1}"#, 400, "message 1: invalid partition: "),
            (r#"{"payload":1,"headers":{"a":"1","a":"2"}}"#, 400, "message 1: header a is given twice"),
        ] {
            let problem = read(&format!(r#"{{"messages":[{{"payload":1}},{entry}]}}"#)).expect_err("refused");
            assert_eq!(problem.status.as_u16(), status);
            assert!(problem.text.starts_with(want), "{entry}: {}", problem.text);
        }
        for key in ["", "\u{e9}", &"k".repeat(256)] {
            let problem =
                read(&format!(r#"{{"messages":[{{"payload":1}},{{"payload":1,"idempotency_key":"{key}"}}]}}"#)).expect_err("refused");
            assert!(problem.text.starts_with("message 1: invalid idempotency key: "), "{key}: {}", problem.text);
        }
        let keyed = read(r#"{"messages":[{"payload":1,"idempotency_key":"a b"},{"payload":2,"idempotency_key":null}]}"#).expect("valid");
        let keys: Vec<_> = keyed.iter().map(|message| message.idempotency_key.as_ref().map(|key| key.as_str())).collect();
        assert_eq!(keys, [Some("a b"), None]);
        let large = format!(r#"{{"messages":[{{"payload":"{}"}}]}}"#, "x".repeat(limits::MESSAGE_BYTES_MAX));
        let problem = read(&large).expect_err("too large");
        assert_eq!((problem.status.as_u16(), problem.text.as_ref()), (413, "message 0: message too large"));
    }

    #[test]
    fn none_and_too_many_are_refused_and_a_thousand_taken() {
        for text in ["{}", r#"{"messages":[]}"#, r#"{"messages":null}"#] {
            assert_eq!(read(text).expect_err("refused").text, "messages required");
        }
        let of = |n: usize| format!(r#"{{"messages":[{}]}}"#, vec![r#"{"payload":1}"#; n].join(","));
        assert_eq!(read(&of(1000)).expect("fits").len(), 1000);
        assert_eq!(read(&of(1001)).expect_err("refused").text, "too many messages: more than 1000 (max 1000)");
        assert!(read(r#"{"messages":[{"payload":1,"idempotency_key":7}]}"#).expect_err("refused").text.starts_with("invalid json: "));
        assert!(read(r#"{"messages":[[1]]}"#).expect_err("refused").text.starts_with("invalid json: "));
        assert!(read(r#"{"messages":[]} {}"#).expect_err("refused").text.starts_with("invalid json: "));
    }

    fn packed(encoding: Encoding, data: &[u8]) -> Bytes {
        match encoding {
            Encoding::None => Bytes::copy_from_slice(data),
            Encoding::Zstd => Bytes::from(zstd::stream::encode_all(data, 3).expect("packs")),
            Encoding::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(data).expect("packs");
                Bytes::from(encoder.finish().expect("packs"))
            }
        }
    }

    #[test]
    fn a_packed_body_may_not_grow_past_the_limit_or_the_budget() {
        let budget = Budget::new(64 * 1024 * 1024);
        for encoding in [Encoding::Zstd, Encoding::Gzip] {
            let full = vec![b'x'; limits::PRODUCE_BATCH_BYTES_MAX];
            let unpacked = unpack(packed(encoding, &full), encoding, &mut budget.empty(), 0).expect("fits");
            assert_eq!(unpacked.len(), full.len());
            let over = vec![b'x'; limits::PRODUCE_BATCH_BYTES_MAX + 1];
            let problem = unpack(packed(encoding, &over), encoding, &mut budget.empty(), 0).expect_err("too large");
            assert_eq!(problem.status, 413);
            let tight = Budget::new(1024 * 1024);
            let problem = unpack(packed(encoding, &full), encoding, &mut tight.empty(), 0).expect_err("no room");
            assert_eq!(problem.status, 503);
            assert_eq!(tight.free(), 1024 * 1024);
            let broken = Bytes::from_static(b"not packed at all");
            assert_eq!(unpack(broken, encoding, &mut budget.empty(), 0).expect_err("broken").status, 400);
        }
    }

    #[test]
    fn an_unknown_encoding_is_refused() {
        let of = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_ENCODING, http::HeaderValue::from_static(value));
            Encoding::of(&headers)
        };
        assert_eq!(Encoding::of(&HeaderMap::new()).expect("none"), Encoding::None);
        assert_eq!(of("zstd").expect("known"), Encoding::Zstd);
        assert_eq!(of("GZIP").expect("known"), Encoding::Gzip);
        assert_eq!(of("br").expect_err("unknown").status, 415);
        assert_eq!(of("gzip, zstd").expect_err("unknown").status, 415);
    }
}
