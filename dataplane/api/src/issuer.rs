//! Whose bearer tokens are taken, as operators say it. Everything may be said again: it is done once.

use http::StatusCode;
use veena_auth::token;
use veena_client::bodies::{PutTokenIssuer, PutTokenKey, TokenIssuer as Shown, TokenKey as ShownKey};
use veena_contract::{CatalogView, Command, ErrorCode, TokenIssuer, TokenKey, limits};

use crate::answer::{self, Answer};
use crate::body::RequestBody;
use crate::catalog;
use crate::children::too_large_is_400;
use crate::edge::Call;
use crate::problem::Problem;
use crate::tenants;
use crate::users;

/// The one kind of key that signs tokens, as a JWK says it.
const KTY: &str = "OKP";
const CRV: &str = "Ed25519";

/// `GET /v1/admin/token-issuer`. As of a tenant, a node of a cluster says that there is none only when the leader knows none either.
pub(crate) async fn describe(call: &Call<'_>) -> Result<Answer, Problem> {
    let view = call.state.view();
    if call.state.parts.cluster.is_some() && view.token_issuer.is_none() {
        return told(&*call.state.parts.leader.confirmed_view().await?);
    }
    told(&view)
}

/// `PUT /v1/admin/token-issuer`.
pub(crate) async fn put(call: &Call<'_>, body: RequestBody) -> Result<Answer, Problem> {
    let body = call.body(body, limits::JSON_BODY_BYTES_MAX).await.map_err(too_large_is_400)?;
    let PutTokenIssuer { issuer, audience, keys, revision } = users::decode(&body)?;
    let keys = keys.into_iter().map(key).collect::<Result<_, Problem>>()?;
    let issuer = TokenIssuer { issuer, audience, keys };
    issuer.check().map_err(|error| Problem::invalid(error.to_string()))?;
    if issuer.keys.iter().any(|key| token::is_weak(&key.x)) {
        return Err(Problem::invalid("invalid x: that is a key for which anybody can sign"));
    }
    let command = Command::PutTokenIssuer { issuer: Box::new(issuer), revision: tenants::revision(revision)? };
    let view = catalog::propose(call, |_| Ok(command.clone())).await?;
    told(&view)
}

/// `DELETE /v1/admin/token-issuer`.
pub(crate) async fn delete(call: &Call<'_>) -> Result<Answer, Problem> {
    catalog::propose(call, |_| Ok(Command::DeleteTokenIssuer)).await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}

fn told(view: &CatalogView) -> Result<Answer, Problem> {
    let none = || Problem::new(StatusCode::NOT_FOUND, ErrorCode::NotFound, "not found: nobody's tokens are taken");
    let record = view.token_issuer.as_ref().ok_or_else(none)?;
    let TokenIssuer { issuer, audience, keys } = record.issuer.clone();
    let keys = keys.into_iter().map(|TokenKey { kid, x }| ShownKey { kty: KTY.to_owned(), crv: CRV.to_owned(), kid, x }).collect();
    Ok(answer::json(StatusCode::OK, &Shown { issuer, audience, keys, revision: record.revision }))
}

fn key(PutTokenKey { kty, crv, kid, x, usage, alg }: PutTokenKey) -> Result<TokenKey, Problem> {
    let is_ours = kty == KTY && crv == CRV && usage.is_none_or(|usage| usage == "sig") && alg.is_none_or(|alg| alg == "EdDSA");
    if is_ours { Ok(TokenKey { kid, x }) } else { Err(Problem::invalid("invalid keys: want kty OKP, crv Ed25519, use sig and alg EdDSA")) }
}
