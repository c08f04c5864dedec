//! Rendered requests.

use std::fmt::Write as _;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};

/// Everything but letters, digits and `-._~` is escaped.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The text, fit for a path segment or a query value.
#[must_use]
pub fn escape(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, QUERY).to_string()
}

/// One request as it goes over the wire. The body may be overwritten in place, as long as its length stays.
#[derive(Clone, Debug)]
pub struct RequestBytes {
    bytes: Vec<u8>,
    body_at: usize,
}

impl RequestBytes {
    /// A request with a body (maybe an empty one); `headers` are whole lines without their ends.
    #[must_use]
    pub fn new(method: &str, target: &str, headers: &[&str], body: &[u8]) -> Self {
        let mut head = format!("{method} {target} HTTP/1.1\r\nHost: veena\r\n");
        for header in headers {
            let _ = write!(head, "{header}\r\n");
        }
        if method != "GET" {
            let _ = write!(head, "Content-Length: {}\r\n", body.len());
        }
        head.push_str("\r\n");
        let body_at = head.len();
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        Self { bytes, body_at }
    }

    /// A GET.
    #[must_use]
    pub fn get(target: &str) -> Self {
        Self::new("GET", target, &["X-Veena-Client: load"], b"")
    }

    /// A POST of raw bytes.
    #[must_use]
    pub fn post(target: &str, body: &[u8]) -> Self {
        Self::new("POST", target, &["X-Veena-Client: load"], body)
    }

    /// A POST of JSON.
    #[must_use]
    pub fn post_json(target: &str, body: &[u8]) -> Self {
        Self::new("POST", target, &["X-Veena-Client: load", "Content-Type: application/json"], body)
    }

    /// The same request with one header more, a whole line without its end.
    #[must_use]
    pub fn with_header(mut self, header: &str) -> Self {
        let line = format!("{header}\r\n");
        // Before the empty line.
        let at = self.body_at - 2;
        self.bytes.splice(at..at, line.bytes());
        self.body_at += line.len();
        self
    }

    /// The body.
    pub fn body_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.body_at..]
    }

    /// The whole request.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}
