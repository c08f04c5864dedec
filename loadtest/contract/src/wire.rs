//! HTTP/1.1 by hand: requests are bytes that a row controls in full, answers are read as they are framed.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::vars::{Vars, expand};

/// How long one read or write may stay silent. Longer than the longest wait of a row.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How large an answer may be.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How many header lines an answer may have.
const HEADER_LINES_MAX: usize = 64;

/// Why no answer could be read.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The server took no connection.
    #[error("no connection to {addr}: {detail}")]
    Connect {
        /// The server.
        addr: SocketAddr,
        /// What the system said.
        detail: String,
    },
    /// The answer ended, or stayed away, before it was complete.
    #[error("the answer broke off: {0}")]
    Broken(String),
    /// The answer is not HTTP/1.1.
    #[error("the answer is not HTTP/1.1: {0}")]
    Malformed(String),
}

/// How a request's body is encoded before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    None,
    Gzip,
    Zstd,
}

/// A request's body.
#[derive(Clone, Debug)]
enum Payload {
    None,
    /// With `$name` replaced.
    Text(String),
    Bytes(Vec<u8>),
}

/// One request, as it will be written. `$name` is replaced in the target, the headers and text bodies.
#[derive(Clone, Debug)]
pub struct Request {
    method: &'static str,
    target: String,
    headers: Vec<(String, Vec<u8>)>,
    credentials: Option<(String, String)>,
    payload: Payload,
    encoding: Encoding,
    is_chunked: bool,
}

impl Request {
    /// A request without body and without any header but `Host`.
    #[must_use]
    pub fn new(method: &'static str, target: impl Into<String>) -> Self {
        Self {
            method,
            target: target.into(),
            headers: Vec::new(),
            credentials: None,
            payload: Payload::None,
            encoding: Encoding::None,
            is_chunked: false,
        }
    }

    /// Adds a header line.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sends it as this user, with this password; `$name` is replaced in the user's name.
    #[must_use]
    pub fn by(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.credentials = Some((user.into(), password.into()));
        self
    }

    /// Sets a text body; `$name` is replaced.
    #[must_use]
    pub fn text(mut self, body: impl Into<String>) -> Self {
        self.payload = Payload::Text(body.into());
        self
    }

    /// Sets a body that is sent as it is.
    #[must_use]
    pub fn bytes(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.payload = Payload::Bytes(body.into());
        self
    }

    /// Compresses the body and says so.
    #[must_use]
    pub fn gzip(mut self) -> Self {
        self.encoding = Encoding::Gzip;
        self.header("Content-Encoding", "gzip")
    }

    /// Compresses the body and says so.
    #[must_use]
    pub fn zstd(mut self) -> Self {
        self.encoding = Encoding::Zstd;
        self.header("Content-Encoding", "zstd")
    }

    /// Sends the body in two chunks instead of announcing its length.
    #[must_use]
    pub fn chunked(mut self) -> Self {
        self.is_chunked = true;
        self
    }

    /// The method and the target, for messages.
    #[must_use]
    pub fn title(&self) -> String {
        let target: String = self.target.chars().take(120).collect();
        format!("{} {target}", self.method)
    }

    pub(crate) fn is_head(&self) -> bool {
        self.method == "HEAD"
    }

    /// The bytes that go onto the wire.
    pub(crate) fn to_bytes(&self, addr: SocketAddr, vars: &Vars) -> Vec<u8> {
        let body = self.encoded_body(vars);
        let mut out =
            format!("{} {} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n", self.method, expand(&self.target, vars)).into_bytes();
        for (name, value) in &self.headers {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            match std::str::from_utf8(value) {
                Ok(text) => out.extend_from_slice(expand(text, vars).as_bytes()),
                Err(_) => out.extend_from_slice(value),
            }
            out.extend_from_slice(b"\r\n");
        }
        if let Some((user, password)) = &self.credentials {
            let value = STANDARD.encode(format!("{}:{password}", expand(user, vars)));
            out.extend_from_slice(format!("Authorization: Basic {value}\r\n").as_bytes());
        }
        if self.is_chunked {
            out.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
            let (head, tail) = body.split_at(body.len() / 2);
            for part in [head, tail].into_iter().filter(|part| !part.is_empty()) {
                out.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
                out.extend_from_slice(part);
                out.extend_from_slice(b"\r\n");
            }
            out.extend_from_slice(b"0\r\n\r\n");
            return out;
        }
        if !matches!(self.payload, Payload::None) || matches!(self.method, "POST" | "PUT" | "PATCH") {
            out.extend_from_slice(format!("Content-Length: {}\r\n", body.len()).as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&body);
        out
    }

    fn encoded_body(&self, vars: &Vars) -> Vec<u8> {
        let plain = match &self.payload {
            Payload::None => Vec::new(),
            Payload::Text(text) => expand(text, vars).into_bytes(),
            Payload::Bytes(bytes) => bytes.clone(),
        };
        match self.encoding {
            Encoding::None => plain,
            Encoding::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(&plain).expect("invariant: a vector takes every write");
                encoder.finish().expect("invariant: a vector takes every write")
            }
            Encoding::Zstd => zstd::encode_all(plain.as_slice(), 1).expect("invariant: a vector takes every write"),
        }
    }
}

/// One answer as it was framed.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Header names in lower case, in the order they came.
    pub headers: Vec<(String, String)>,
    /// The body without its framing.
    pub body: Vec<u8>,
}

impl Response {
    /// The first header of this name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The body as text, damaged bytes replaced.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Sends bytes over a fresh connection and reads one answer per entry of `is_head`.
///
/// # Errors
/// [`WireError`] when there is no connection, or the answers are cut short, late or not HTTP/1.1.
pub(crate) fn exchange(addr: SocketAddr, request: &[u8], is_head: &[bool]) -> Result<Vec<Response>, WireError> {
    let mut stream = connect(addr)?;
    // A server may refuse before it has read everything: the answer counts, not the failed write.
    let written = stream.write_all(request);
    read_answers(stream, is_head, written.is_ok())
}

/// Opens a connection and sends the first part of a request.
///
/// # Errors
/// [`WireError`] when there is no connection.
pub(crate) fn hold(addr: SocketAddr, part: &[u8]) -> Result<TcpStream, WireError> {
    let mut stream = connect(addr)?;
    stream.write_all(part).map_err(|error| WireError::Broken(error.to_string()))?;
    Ok(stream)
}

/// Sends the rest of a request and reads its answer.
///
/// # Errors
/// [`WireError`] when the answer is cut short, late or not HTTP/1.1.
pub(crate) fn release(mut stream: TcpStream, rest: &[u8]) -> Result<Response, WireError> {
    let written = stream.write_all(rest);
    read_answers(stream, &[false], written.is_ok())?.pop().ok_or_else(|| WireError::Broken("no answer".into()))
}

fn connect(addr: SocketAddr) -> Result<TcpStream, WireError> {
    let connect = |error: std::io::Error| WireError::Connect { addr, detail: error.to_string() };
    let stream = TcpStream::connect_timeout(&addr, SILENCE_MAX).map_err(connect)?;
    stream.set_read_timeout(Some(SILENCE_MAX)).map_err(connect)?;
    stream.set_write_timeout(Some(SILENCE_MAX)).map_err(connect)?;
    stream.set_nodelay(true).map_err(connect)?;
    Ok(stream)
}

fn read_answers(stream: TcpStream, is_head: &[bool], is_written: bool) -> Result<Vec<Response>, WireError> {
    let mut reader = Reader { stream, buffer: Vec::new(), used: 0 };
    let mut answers = Vec::with_capacity(is_head.len());
    for head in is_head {
        match reader.response(*head) {
            Ok(answer) => answers.push(answer),
            Err(WireError::Broken(detail)) if !is_written => {
                return Err(WireError::Broken(format!("{detail} (the request could not be written whole)")));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(answers)
}

struct Reader {
    stream: TcpStream,
    buffer: Vec<u8>,
    used: usize,
}

impl Reader {
    fn response(&mut self, is_head: bool) -> Result<Response, WireError> {
        let mut response = self.head()?;
        while (100..200).contains(&response.status) {
            response = self.head()?;
        }
        if is_head || matches!(response.status, 204 | 304) {
            return Ok(response);
        }
        response.body = if response.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            self.chunks()?
        } else if let Some(length) = response.header("content-length") {
            let length = length.parse().map_err(|_| WireError::Malformed(format!("content-length {length:?}")))?;
            self.exactly(length)?
        } else {
            self.rest()?
        };
        Ok(response)
    }

    fn head(&mut self) -> Result<Response, WireError> {
        loop {
            let mut lines = [httparse::EMPTY_HEADER; HEADER_LINES_MAX];
            let mut parsed = httparse::Response::new(&mut lines);
            let outcome = parsed.parse(&self.buffer[self.used..]).map_err(|error| WireError::Malformed(error.to_string()))?;
            if let httparse::Status::Complete(length) = outcome {
                let status = parsed.code.ok_or_else(|| WireError::Malformed("no status".into()))?;
                let headers = parsed
                    .headers
                    .iter()
                    .map(|line| (line.name.to_ascii_lowercase(), String::from_utf8_lossy(line.value).into_owned()))
                    .collect();
                self.used += length;
                return Ok(Response { status, headers, body: Vec::new() });
            }
            self.more()?;
        }
    }

    fn chunks(&mut self) -> Result<Vec<u8>, WireError> {
        let mut body = Vec::new();
        loop {
            let outcome = httparse::parse_chunk_size(&self.buffer[self.used..]);
            match outcome.map_err(|_| WireError::Malformed("chunk size".into()))? {
                httparse::Status::Partial => self.more()?,
                httparse::Status::Complete((length, size)) => {
                    self.used += length;
                    let size = usize::try_from(size).map_err(|_| WireError::Malformed("chunk size".into()))?;
                    let part = self.exactly(size)?;
                    self.exactly(2)?;
                    if size == 0 {
                        return Ok(body);
                    }
                    body.extend_from_slice(&part);
                }
            }
        }
    }

    fn exactly(&mut self, length: usize) -> Result<Vec<u8>, WireError> {
        while self.buffer.len() - self.used < length {
            self.more()?;
        }
        let body = self.buffer[self.used..self.used + length].to_vec();
        self.used += length;
        Ok(body)
    }

    fn rest(&mut self) -> Result<Vec<u8>, WireError> {
        loop {
            match self.more() {
                Ok(()) => {}
                Err(WireError::Broken(_)) => break,
                Err(error) => return Err(error),
            }
        }
        let body = self.buffer.split_off(self.used);
        Ok(body)
    }

    fn more(&mut self) -> Result<(), WireError> {
        let mut part = [0; 64 * 1024];
        let count = loop {
            match self.stream.read(&mut part) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(WireError::Broken(error.to_string())),
                Ok(count) => break count,
            }
        };
        if count == 0 {
            return Err(WireError::Broken(format!("connection closed after {} bytes", self.buffer.len() - self.used)));
        }
        self.buffer.extend_from_slice(&part[..count]);
        if self.buffer.len() > ANSWER_BYTES_MAX {
            return Err(WireError::Malformed("answer over the bound".into()));
        }
        Ok(())
    }
}
