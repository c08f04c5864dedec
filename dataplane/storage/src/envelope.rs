//! The body of a record: key, headers and payload, as accepted. Encoded once, on the accept path; the WAL and the partition log store
//! these same bytes.
//!
//! ```text
//! version u8 = 1
//! field*            in rising order of number, each at most once
//!   tag u8          bit 7: critical; bits 0 to 6: number
//!   len u32
//!   bytes
//! ```
//!
//! Fields are only ever added. A reader skips an unknown optional field and refuses an unknown critical one: a field that carries a rule
//! is critical, so that an old node never acts as if the rule were not there. This module must never look at what a payload says.

use bytes::{BufMut, Bytes, BytesMut};

use crate::partition::wire::{WireReader, len32};

const VERSION: u8 = 1;
const CRITICAL: u8 = 0x80;

/// The registry of fields. It only grows.
mod tag {
    use super::CRITICAL;

    /// The payload. Always present.
    pub const PAYLOAD: u8 = CRITICAL | 1;
    /// The key.
    pub const KEY: u8 = CRITICAL | 2;
    /// The headers: count u16, then (name len u16, name, value len u32, value).
    pub const HEADERS: u8 = CRITICAL | 3;
    // Not used: 4, once meant for the idempotency key, which stands in the frame. Reserved: 5, the cluster of first acceptance.
}

const FIELD_HEAD_BYTES: usize = 5;
const HEADER_HEAD_BYTES: usize = 6;

/// What one record carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    /// The message's key.
    pub key: Option<Bytes>,
    /// The message's headers, in order.
    pub headers: Vec<(String, String)>,
    /// The message's payload.
    pub payload: Bytes,
}

/// The bytes are not an envelope this version can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// Another version of the format.
    #[error("envelope version {version} is not known")]
    UnknownVersion {
        /// What was found.
        version: u8,
    },
    /// A field this version does not know and must not skip.
    #[error("envelope field {tag:#04x} is not known and must not be skipped")]
    UnknownCritical {
        /// What was found.
        tag: u8,
    },
    /// Lengths, order or text are wrong.
    #[error("envelope is malformed: {what}")]
    Malformed {
        /// Which rule was broken.
        what: &'static str,
    },
}

const fn malformed(what: &'static str) -> EnvelopeError {
    EnvelopeError::Malformed { what }
}

impl Envelope {
    /// How many bytes [`Envelope::encode`] gives.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let key = self.key.as_ref().map_or(0, |key| FIELD_HEAD_BYTES + key.len());
        let headers = if self.headers.is_empty() { 0 } else { FIELD_HEAD_BYTES + self.headers_len() };
        1 + FIELD_HEAD_BYTES + self.payload.len() + key + headers
    }

    fn headers_len(&self) -> usize {
        2 + self.headers.iter().map(|(name, value)| HEADER_HEAD_BYTES + name.len() + value.len()).sum::<usize>()
    }

    /// The record's body.
    ///
    /// # Panics
    /// When a part is larger than 4 GiB, or there are more than 65,535 headers or a header name over 65,535 bytes: `contract::limits` is far
    /// below, and names are parsed before they get here.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.encoded_len());
        self.encode_into(&mut out);
        out.freeze()
    }

    /// Appends the record's body.
    ///
    /// # Panics
    /// As [`Envelope::encode`].
    pub fn encode_into(&self, out: &mut BytesMut) {
        out.reserve(self.encoded_len());
        out.put_u8(VERSION);
        put_field(out, tag::PAYLOAD, &self.payload);
        if let Some(key) = &self.key {
            put_field(out, tag::KEY, key);
        }
        if !self.headers.is_empty() {
            out.put_u8(tag::HEADERS);
            out.put_u32(len32(self.headers_len()));
            out.put_u16(u16::try_from(self.headers.len()).expect("invariant: headers are bounded by limits::HEADERS_MAX"));
            for (name, value) in &self.headers {
                out.put_u16(u16::try_from(name.len()).expect("invariant: names are bounded by limits::HEADER_NAME_BYTES_MAX"));
                out.put_slice(name.as_bytes());
                out.put_u32(len32(value.len()));
                out.put_slice(value.as_bytes());
            }
        }
    }

    /// Reads a record's body. Key and payload share its memory.
    ///
    /// # Errors
    /// [`EnvelopeError`]; the bytes are never trusted.
    pub fn decode(body: &Bytes) -> Result<Self, EnvelopeError> {
        let mut reader = WireReader::new(body);
        let version = reader.u8().ok_or(malformed("empty"))?;
        if version != VERSION {
            return Err(EnvelopeError::UnknownVersion { version });
        }
        let mut envelope = Self::default();
        let mut has_payload = false;
        let mut number_last = 0;
        while reader.remaining() > 0 {
            let tag = reader.u8().ok_or(malformed("field cut short"))?;
            let number = tag & !CRITICAL;
            if number <= number_last {
                return Err(malformed("fields out of order"));
            }
            number_last = number;
            let len = reader.len32().ok_or(malformed("field cut short"))?;
            let start = reader.position();
            let field = reader.take(len).ok_or(malformed("field cut short"))?;
            match tag {
                tag::PAYLOAD => {
                    envelope.payload = body.slice(start..start + len);
                    has_payload = true;
                }
                tag::KEY => envelope.key = Some(body.slice(start..start + len)),
                tag::HEADERS => envelope.headers = decode_headers(field)?,
                _ if tag & CRITICAL != 0 => return Err(EnvelopeError::UnknownCritical { tag }),
                _ => {}
            }
        }
        if has_payload { Ok(envelope) } else { Err(malformed("no payload")) }
    }
}

fn put_field(out: &mut BytesMut, tag: u8, bytes: &[u8]) {
    out.put_u8(tag);
    out.put_u32(len32(bytes.len()));
    out.put_slice(bytes);
}

fn decode_headers(field: &[u8]) -> Result<Vec<(String, String)>, EnvelopeError> {
    let mut reader = WireReader::new(field);
    let count = usize::from(reader.u16().ok_or(malformed("headers cut short"))?);
    if count > reader.remaining() / HEADER_HEAD_BYTES {
        return Err(malformed("more headers than bytes"));
    }
    let mut headers = Vec::with_capacity(count);
    for _ in 0..count {
        let name_len = reader.u16().ok_or(malformed("header cut short"))?;
        let name = reader.take(usize::from(name_len)).ok_or(malformed("header cut short"))?;
        let value_len = reader.len32().ok_or(malformed("header cut short"))?;
        let value = reader.take(value_len).ok_or(malformed("header cut short"))?;
        headers.push((text(name)?, text(value)?));
    }
    if reader.remaining() > 0 {
        return Err(malformed("bytes behind the headers"));
    }
    Ok(headers)
}

fn text(bytes: &[u8]) -> Result<String, EnvelopeError> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| malformed("header is not text"))
}
