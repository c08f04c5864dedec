//! Answers: small bodies that are complete before the first byte leaves, and the leases that ride on them.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use serde::Serialize;
use veena_broker::engine::Deliveries;

use crate::conn::{Conn, Written};

/// An answer of the plane.
pub(crate) type Answer = Response<AnswerBody>;

/// A complete body.
pub(crate) struct AnswerBody<D: Written = Deliveries> {
    data: Bytes,
    riding: Option<Riding<D>>,
}

struct Riding<D: Written> {
    leases: D,
    conn: Option<Arc<Conn<D>>>,
}

impl<D: Written> AnswerBody<D> {
    /// A body without leases.
    pub(crate) fn plain(data: impl Into<Bytes>) -> Self {
        Self { data: data.into(), riding: None }
    }

    /// A body whose leases stand once the connection's socket has taken it. Without a connection they stand once the body was taken.
    pub(crate) fn with_leases(data: impl Into<Bytes>, leases: D, conn: Option<Arc<Conn<D>>>) -> Self {
        Self { data: data.into(), riding: Some(Riding { leases, conn }) }
    }

    /// Nobody will take the body, because the request was a `HEAD`: the leases ride on the head alone.
    pub(crate) fn ride_on_head(&mut self) {
        if let Some(riding) = self.riding.take() {
            riding.depart();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.data.len()
    }
}

impl<D: Written> Riding<D> {
    /// The answer is handed over: what happens to the leases is decided by the socket, if there is one.
    fn depart(self) {
        match self.conn {
            Some(conn) => conn.riding(self.leases),
            None => self.leases.written(),
        }
    }
}

// Nothing in it is pinned.
impl<D: Written> Unpin for AnswerBody<D> {}

impl<D: Written> Body for AnswerBody<D> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if this.data.is_empty() {
            return Poll::Ready(None);
        }
        if let Some(riding) = this.riding.take() {
            riding.depart();
        }
        Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut this.data)))))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.data.len() as u64)
    }
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// An answer without a body.
pub(crate) fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(AnswerBody::plain(Bytes::new()));
    *answer.status_mut() = status;
    answer
}

/// A JSON answer from bytes that are one line with its end.
pub(crate) fn json_bytes(status: StatusCode, body: AnswerBody) -> Answer {
    typed(status, JSON, body)
}

/// A JSON answer.
pub(crate) fn json<T: Serialize>(status: StatusCode, value: &T) -> Answer {
    let mut line = serde_json::to_vec(value).expect("our own bodies have string keys and no failing serializer");
    line.push(b'\n');
    json_bytes(status, AnswerBody::plain(line))
}

/// A plain-text answer; the line end is added.
pub(crate) fn text(status: StatusCode, line: &str) -> Answer {
    typed(status, TEXT, AnswerBody::plain(format!("{line}\n")))
}

fn typed(status: StatusCode, content_type: HeaderValue, body: AnswerBody) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    answer
}
