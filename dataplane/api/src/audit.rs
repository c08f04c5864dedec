//! The audit trail, as it is read: one chain of a tenant, of changes or of denials. A page is lines of JSON, one record each, and not a list in JSON: a record is the text that its hash is of, and
//! goes out, into a file and through `sha256sum` as it is.

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use veena_contract::{AuditKind, CommandError, TenantId, limits};

use crate::answer::{Answer, AnswerBody};
use crate::edge::Call;
use crate::problem::Problem;
use crate::query;

/// `GET /v1/audit`: a chain of the caller's tenant.
pub(crate) async fn own(call: &Call<'_>) -> Result<Answer, Problem> {
    page(call, call.tenant()).await
}

/// `GET /v1/admin/audit`: a chain of the tenant that is named, or of the tenant `default`.
pub(crate) async fn of_tenant(call: &Call<'_>) -> Result<Answer, Problem> {
    let tenant = match parameter(call, "tenant")? {
        None => TenantId::default_tenant(),
        Some(text) => {
            TenantId::parse(&text).ok_or_else(|| Problem::invalid("invalid tenant: want 1 to 63 of a-z 0-9 -, the first no -"))?
        }
    };
    page(call, &tenant).await
}

/// The value of a parameter; none if it is empty.
fn parameter(call: &Call<'_>, name: &str) -> Result<Option<String>, Problem> {
    let value = query::first(call.query(), name).map_err(|error| Problem::malformed(format!("invalid {name}: {error}")))?;
    Ok(value.filter(|text| !text.is_empty()).map(|text| text.into_owned()))
}

fn number(call: &Call<'_>, name: &str) -> Result<Option<u64>, Problem> {
    let number = |text: String| text.parse().map_err(|_| Problem::invalid(format!("invalid {name}: want a whole number from 0")));
    parameter(call, name)?.map(number).transpose()
}

/// The records behind number `after`, no older than what was committed when this was asked: whoever looks whether something was done is not told
/// that it was not by a node that is behind.
async fn page(call: &Call<'_>, tenant: &TenantId) -> Result<Answer, Problem> {
    let after = number(call, "after")?.unwrap_or(0);
    let limit = number(call, "limit")?.map_or(limits::AUDIT_PAGE_MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let kind = match parameter(call, "kind")? {
        None => AuditKind::Changes,
        Some(text) => {
            let kind = AuditKind::ALL.into_iter().find(|kind| kind.as_str() == text);
            kind.ok_or_else(|| Problem::invalid("invalid kind: want changes or denials"))?
        }
    };
    let view = call.state.parts.leader.confirmed_view().await?;
    // With a tenant its records go; that it was deleted stands with the tenant `default`.
    if view.tenant_state(tenant).is_none() {
        return Err(CommandError::TenantNotFound.into());
    }
    let mut lines = String::new();
    for line in view.audit.after(tenant, kind, after).take(limit.clamp(1, limits::AUDIT_PAGE_MAX)) {
        lines.push_str(line);
        lines.push('\n');
    }
    let mut answer = Response::new(AnswerBody::plain(lines));
    *answer.status_mut() = StatusCode::OK;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(answer)
}
