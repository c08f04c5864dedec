//! One kept-alive connection, one request at a time.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const HEADERS_MAX: usize = 32;
const BUFFER_BYTES: usize = 16 * 1024;
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How an exchange failed.
#[derive(Debug, thiserror::Error)]
pub enum Exchange {
    /// No byte of the request left: certainly nothing happened.
    #[error("not sent: {0}")]
    NotSent(#[source] io::Error),
    /// The request, or a part of it, left; what came of it is not known.
    #[error("not answered: {0}")]
    Unanswered(#[source] io::Error),
}

/// An answer, borrowed from the connection's buffer.
#[derive(Debug)]
pub struct Answer<'a> {
    /// The status.
    pub status: u16,
    /// The whole body.
    pub body: &'a [u8],
    /// The header `Veena-Effect`, as text.
    pub effect: Option<&'a str>,
    /// The header `Retry-After`, as text.
    pub retry_after: Option<&'a str>,
}

#[derive(Clone, Copy, Default)]
struct Head {
    status: u16,
    body_at: usize,
    body_bytes: usize,
    effect: Option<(usize, usize)>,
    retry_after: Option<(usize, usize)>,
    is_last: bool,
}

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    is_over: bool,
}

impl Connection {
    /// Connects, without delay on small writes.
    ///
    /// # Errors
    /// Nobody listens there.
    pub async fn open(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: vec![0; BUFFER_BYTES], is_over: false })
    }

    /// Is it known that the next request cannot be answered here?
    #[must_use]
    pub fn is_over(&self) -> bool {
        let mut byte = [0; 1];
        // Between exchanges the server has nothing to say: an end, an error or a byte all mean that this connection is done.
        self.is_over || !matches!(self.stream.try_read(&mut byte), Err(err) if err.kind() == io::ErrorKind::WouldBlock)
    }

    /// Sends `request`, waits for the whole answer.
    ///
    /// # Errors
    /// See [`Exchange`]. The connection cannot be used again after one.
    pub async fn exchange(&mut self, request: &[u8]) -> Result<Answer<'_>, Exchange> {
        if self.is_over {
            return Err(Exchange::NotSent(io::ErrorKind::NotConnected.into()));
        }
        // A future dropped on the way leaves half an exchange behind.
        self.is_over = true;
        self.send(request).await?;
        let head = self.receive().await.map_err(Exchange::Unanswered)?;
        self.is_over = head.is_last;
        let text = |range: Option<(usize, usize)>| range.and_then(|(at, end)| std::str::from_utf8(&self.buffer[at..end]).ok());
        Ok(Answer {
            status: head.status,
            body: &self.buffer[head.body_at..head.body_at + head.body_bytes],
            effect: text(head.effect),
            retry_after: text(head.retry_after),
        })
    }

    async fn send(&mut self, request: &[u8]) -> Result<(), Exchange> {
        let sent = match self.stream.try_write(request) {
            Ok(sent) => sent,
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => self.stream.write(request).await.map_err(Exchange::NotSent)?,
            Err(err) => return Err(Exchange::NotSent(err)),
        };
        if sent < request.len() {
            self.stream.write_all(&request[sent..]).await.map_err(Exchange::Unanswered)?;
        }
        Ok(())
    }

    async fn receive(&mut self) -> io::Result<Head> {
        let mut filled = 0;
        let mut head = None;
        loop {
            let wanted = head.map(|head: Head| head.body_at + head.body_bytes);
            if let (Some(wanted), Some(head)) = (wanted, head)
                && filled >= wanted
            {
                let is_clean = filled == wanted;
                return if is_clean { Ok(head) } else { Err(invalid("bytes behind the answer")) };
            }
            let room = wanted.unwrap_or(filled + 1).max(self.buffer.len());
            if room > self.buffer.len() || filled == self.buffer.len() {
                self.buffer.resize(room.max(self.buffer.len() * 2), 0);
            }
            let read = self.stream.read(&mut self.buffer[filled..]).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            filled += read;
            if head.is_none() {
                head = parse_head(&self.buffer[..filled])?;
            }
        }
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The head, once it is whole.
fn parse_head(bytes: &[u8]) -> io::Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let body_at = match response.parse(bytes).map_err(|err| io::Error::new(io::ErrorKind::InvalidData, err))? {
        httparse::Status::Complete(body_at) => body_at,
        httparse::Status::Partial => return Ok(None),
    };
    let mut head = Head { status: response.code.ok_or_else(|| invalid("no status"))?, body_at, ..Head::default() };
    for header in response.headers.iter() {
        let range = || {
            let at = header.value.as_ptr().addr() - bytes.as_ptr().addr();
            (at, at + header.value.len())
        };
        if header.name.eq_ignore_ascii_case("content-length") {
            let text = std::str::from_utf8(header.value).map_err(|_| invalid("content length is no number"))?;
            head.body_bytes = text.parse().map_err(|_| invalid("content length is no number"))?;
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(invalid("chunked answers are not read here"));
        } else if header.name.eq_ignore_ascii_case("connection") {
            head.is_last = header.value.eq_ignore_ascii_case(b"close");
        } else if header.name.eq_ignore_ascii_case("veena-effect") {
            head.effect = Some(range());
        } else if header.name.eq_ignore_ascii_case("retry-after") {
            head.retry_after = Some(range());
        }
    }
    if head.body_bytes > ANSWER_BYTES_MAX {
        return Err(invalid("an answer of this size is not read here"));
    }
    Ok(Some(head))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// A server that reads something, sends `parts` one by one, and closes.
    async fn served(parts: &'static [&'static [u8]]) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a client comes");
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            for part in parts {
                stream.write_all(part).await.expect("the client reads");
                tokio::task::yield_now().await;
            }
        });
        tasks.detach_all();
        Connection::open(addr).await.expect("the server listens")
    }

    #[tokio::test]
    async fn an_answer_in_pieces_is_read_whole() {
        let mut connection =
            served(&[b"HTTP/1.1 50", b"3 Busy\r\nVeena-Effect: none\r\nRetry-After: 1\r\ncontent-le", b"ngth: 5\r\n\r\nhe", b"llo"]).await;
        let answer = connection.exchange(b"GET / HTTP/1.1\r\n\r\n").await.expect("an answer");
        assert_eq!((answer.status, answer.body, answer.effect, answer.retry_after), (503, &b"hello"[..], Some("none"), Some("1")));
    }

    #[tokio::test]
    async fn an_answer_larger_than_the_buffer_is_read_whole() {
        static LARGE: [u8; 40_000] = [b'x'; 40_000];
        static PARTS: [&[u8]; 3] = [b"HTTP/1.1 200 OK\r\ncontent-length: 80000\r\n\r\n", &LARGE, &LARGE];
        let mut connection = served(&PARTS).await;
        let answer = connection.exchange(b"GET / HTTP/1.1\r\n\r\n").await.expect("an answer");
        assert_eq!(answer.body.len(), 80_000);
    }

    #[tokio::test]
    async fn an_answer_cut_off_is_unanswered_and_ends_the_connection() {
        let mut connection = served(&[b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe"]).await;
        assert!(matches!(connection.exchange(b"GET / HTTP/1.1\r\n\r\n").await, Err(Exchange::Unanswered(_))));
        assert!(matches!(connection.exchange(b"GET / HTTP/1.1\r\n\r\n").await, Err(Exchange::NotSent(_))));
    }

    #[tokio::test]
    async fn a_connection_the_server_closes_takes_no_second_request() {
        let mut connection = served(&[b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"]).await;
        assert_eq!(connection.exchange(b"GET / HTTP/1.1\r\n\r\n").await.expect("an answer").status, 204);
        assert!(connection.is_over());
    }
}
