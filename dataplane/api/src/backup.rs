//! A copy of the metadata.

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};

use crate::answer::{Answer, AnswerBody};
use crate::edge::Call;
use crate::problem::Problem;

/// `GET /v1/cluster/backup`: no older than what was committed when it was asked for; whole, or not at all.
pub(crate) async fn backup(call: &Call<'_>) -> Result<Answer, Problem> {
    let bytes = call.state.parts.leader.backup().await?;
    let mut answer = Response::new(AnswerBody::plain(bytes));
    *answer.status_mut() = StatusCode::OK;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    Ok(answer)
}
