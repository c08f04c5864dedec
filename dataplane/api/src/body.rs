//! Request bodies: bounded, grown with the data and not with what `Content-Length` promises, and never waited for without an end.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};
use veena_contract::{ErrorCode, limits};

use crate::budget::Reserved;
use crate::problem::Problem;

/// How long a whole body may take, however steadily it trickles.
const BODY_TOTAL: Duration = Duration::from_millis(limits::BODY_MS_MAX);
/// Up to this size a body is copied out of the connection's read buffer instead of pinning it.
const COPY_BYTES_MAX: usize = 16 * 1024;

/// A body from the wire or from a test.
pub(crate) enum RequestBody {
    /// From a connection.
    Wire(hyper::body::Incoming),
    /// From a router.
    Boxed(axum::body::Body),
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match self.get_mut() {
            Self::Wire(body) => Pin::new(body).poll_frame(cx).map_err(axum::Error::new),
            Self::Boxed(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Wire(body) => body.is_end_stream(),
            Self::Boxed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Wire(body) => body.size_hint(),
            Self::Boxed(body) => body.size_hint(),
        }
    }
}

/// Why there is no body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// More than the route takes.
    TooLarge,
    /// It stood still, or took too long.
    TooSlow,
    /// The client stopped in the middle, or its framing is broken.
    Broken,
    /// No room for it on this node now.
    NoBudget,
}

impl From<BodyError> for Problem {
    fn from(error: BodyError) -> Self {
        match error {
            // Closing, here and below: what is left of the body stays unread, so the connection cannot go on.
            BodyError::TooLarge => Self::new(StatusCode::PAYLOAD_TOO_LARGE, ErrorCode::BodyTooLarge, "request body too large").closing(),
            BodyError::TooSlow => {
                Self::new(StatusCode::REQUEST_TIMEOUT, ErrorCode::RequestTimeout, "the request body did not arrive in time").closing()
            }
            BodyError::Broken => Self::malformed("the request body ended early or is malformed").closing(),
            BodyError::NoBudget => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                ErrorCode::Overloaded,
                "batch produce bodies in flight on this node are at their limit; retry",
            )
            .closing(),
        }
    }
}

/// What bounds the reading of one body.
pub(crate) struct BodyLimits<'a> {
    /// The most it may have.
    pub(crate) bytes_max: usize,
    /// How long it may stand still.
    pub(crate) stall: Duration,
    /// Bytes over this size are reserved from a budget.
    pub(crate) reserve: Option<(usize, &'a mut Reserved)>,
}

/// Reads a whole body.
pub(crate) async fn read(mut body: RequestBody, mut limits: BodyLimits<'_>) -> Result<Bytes, BodyError> {
    let promised = body.size_hint().lower();
    if promised > limits.bytes_max as u64 {
        return Err(BodyError::TooLarge);
    }
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    let began = Instant::now();
    let Some(first) = next(&mut body, began, limits.stall).await? else { return Ok(Bytes::new()) };
    if first.len() > limits.bytes_max {
        return Err(BodyError::TooLarge);
    }
    limits.reserve(first.len())?;
    if body.is_end_stream() {
        let is_small = first.len() <= COPY_BYTES_MAX;
        return Ok(if is_small { Bytes::copy_from_slice(&first) } else { first });
    }
    let mut whole = BytesMut::from(first.as_ref());
    drop(first);
    while let Some(data) = next(&mut body, began, limits.stall).await? {
        let total = whole.len() + data.len();
        if total > limits.bytes_max {
            return Err(BodyError::TooLarge);
        }
        limits.reserve(total)?;
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}

async fn next(body: &mut RequestBody, began: Instant, stall: Duration) -> Result<Option<Bytes>, BodyError> {
    let until = (Instant::now() + stall).min(began + BODY_TOTAL);
    loop {
        match timeout_at(until, body.frame()).await {
            Err(_) => return Err(BodyError::TooSlow),
            Ok(None) => return Ok(None),
            Ok(Some(Err(_))) => return Err(BodyError::Broken),
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => return Ok(Some(data)),
                Err(_trailers) => {}
            },
        }
    }
}

impl BodyLimits<'_> {
    fn reserve(&mut self, total: usize) -> Result<(), BodyError> {
        match &mut self.reserve {
            Some((free_up_to, reserved)) if total > *free_up_to => {
                if reserved.grow_to(total) {
                    Ok(())
                } else {
                    Err(BodyError::NoBudget)
                }
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;
    use crate::budget::Budget;

    fn chunks(sizes: &[usize]) -> RequestBody {
        let chunks: Vec<_> = sizes.iter().map(|n| Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; *n]))).collect();
        RequestBody::Boxed(axum::body::Body::from_stream(stream::iter(chunks)))
    }

    fn limits(bytes_max: usize) -> BodyLimits<'static> {
        BodyLimits { bytes_max, stall: Duration::from_secs(10), reserve: None }
    }

    #[tokio::test]
    async fn a_body_of_exactly_the_limit_is_taken_and_one_byte_more_is_not() {
        assert_eq!(read(chunks(&[4, 6]), limits(10)).await.expect("fits").len(), 10);
        assert_eq!(read(chunks(&[4, 7]), limits(10)).await, Err(BodyError::TooLarge));
        assert_eq!(read(chunks(&[11]), limits(10)).await, Err(BodyError::TooLarge));
        let sized = RequestBody::Boxed(axum::body::Body::from(vec![0; 11]));
        assert_eq!(read(sized, limits(10)).await, Err(BodyError::TooLarge));
        assert!(read(chunks(&[]), limits(10)).await.expect("empty").is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stands_still_is_given_up() {
        let first = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"x"))]);
        let body = RequestBody::Boxed(axum::body::Body::from_stream(futures_util::StreamExt::chain(first, stream::pending())));
        assert_eq!(read(body, limits(10)).await, Err(BodyError::TooSlow));
    }

    #[tokio::test]
    async fn a_large_body_needs_room_in_the_budget() {
        let budget = Budget::new(15);
        let mut reserved = budget.empty();
        let within = BodyLimits { reserve: Some((5, &mut reserved)), ..limits(100) };
        assert_eq!(read(chunks(&[6, 4]), within).await.expect("fits").len(), 10);
        let mut second = budget.empty();
        let over = BodyLimits { reserve: Some((5, &mut second)), ..limits(100) };
        assert_eq!(read(chunks(&[6]), over).await, Err(BodyError::NoBudget));
        let mut third = budget.empty();
        let small = BodyLimits { reserve: Some((5, &mut third)), ..limits(100) };
        assert!(read(chunks(&[5]), small).await.is_ok());
    }
}
