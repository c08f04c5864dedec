//! The socket as hyper sees it. It tells the connection when bytes arrive and when everything written was taken by the kernel, and it
//! closes slowly when a client may still be sending: a reset would destroy the answer it has not read yet.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};
use veena_contract::limits;

use crate::conn::{Conn, Written};

/// How long a closing connection keeps reading what its client still sends.
const LINGER: Duration = Duration::from_millis(limits::LINGER_MS_MAX);

/// A stream that reports to its [`Conn`].
pub(crate) struct ClientIo<S, D: Written> {
    stream: S,
    conn: Arc<Conn<D>>,
    closing: Option<Closing>,
}

struct Closing {
    is_shut: bool,
    read_bytes: usize,
    until: Pin<Box<Sleep>>,
}

impl<S, D: Written> ClientIo<S, D> {
    pub(crate) fn new(stream: S, conn: Arc<Conn<D>>) -> Self {
        Self { stream, conn, closing: None }
    }
}

impl<S: AsyncRead + Unpin, D: Written> AsyncRead for ClientIo<S, D> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let result = Pin::new(&mut this.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            this.conn.bytes_arrived();
        }
        result
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, D: Written> AsyncWrite for ClientIo<S, D> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes the stream only when its own buffer is empty: everything it was given has then been written.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.stream).poll_flush(cx))?;
        this.conn.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.conn.lingers() {
            return Pin::new(&mut this.stream).poll_shutdown(cx);
        }
        let closing = this.closing.get_or_insert_with(|| Closing {
            is_shut: false,
            read_bytes: 0,
            until: Box::pin(tokio::time::sleep_until(Instant::now() + LINGER)),
        });
        if !closing.is_shut {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            closing.is_shut = true;
        }
        if closing.until.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        let mut scratch = [0u8; 4096];
        while closing.read_bytes < limits::LINGER_BYTES_MAX {
            let mut buf = ReadBuf::new(&mut scratch);
            match ready!(Pin::new(&mut this.stream).poll_read(cx, &mut buf)) {
                Ok(()) if !buf.filled().is_empty() => closing.read_bytes += buf.filled().len(),
                _ => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}
