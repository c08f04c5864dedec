//! Service accounts and their keys (12).

use super::*;

fn row(name: &'static str, steps: Vec<Step>) -> Row {
    let steps = std::iter::once(root_is_there()).chain(steps).collect();
    Row::new(name, "12 accounts", steps).on(Profile::Secured)
}

fn account(name: &str, grants: &str) -> Step {
    by_root(post("/v1/accounts", format!(r#"{{"name":"{name}","grants":[{grants}]}}"#))).gives(json(201).text("name", name))
}

/// A key of an account, kept under `$key` and its id under `$id`.
fn key(account: &str, body: &str) -> Step {
    let made = by_root(post(format!("/v1/accounts/{account}/keys"), body)).gives(
        json(201)
            .header("Cache-Control", raw("no-store"))
            .field("id", Is::AnyText)
            .field("key", Is::Starts("veena_sk_".to_owned()))
            .text("created_by", "admin"),
    );
    made.take("key", "key").take("id", "id")
}

fn by_key(request: Request) -> Request {
    request.header("Authorization", "Bearer $key")
}

/// The rows of this module.
pub(super) fn rows() -> Vec<Row> {
    let produce = r#"{"action":"produce","patterns":["$t*"]}"#;
    vec![
        row(
            "an_account_signs_in_with_a_key_and_is_told_who_it_is",
            vec![
                account("$t-ci", produce),
                key("$t-ci", "{}"),
                by_key(get("/v1/whoami")).gives(
                    json(200)
                        .text("tenant", "default")
                        .text("name", "$t-ci")
                        .text("kind", "service")
                        .text("key_id", "$id")
                        .raw("operator", "false"),
                ),
                roots("$t"),
                by_key(post("/v1/topics/$t/produce", "x")).gives(empty(202)),
                by_key(get("/v1/topics/$t/consume")).gives(refusal(403, "forbidden").says("consume not allowed on this topic")),
            ],
        ),
        row(
            "a_key_that_was_deleted_or_mistyped_is_nobodys",
            vec![
                account("$t-ci", produce),
                key("$t-ci", "{}"),
                get("/v1/whoami").header("Authorization", "Bearer $key0").gives(unauthenticated()),
                by_root(delete("/v1/accounts/$t-ci/keys/$id")).gives(empty(204)),
                by_key(get("/v1/whoami")).gives(unauthenticated()),
                by_root(delete("/v1/accounts/$t-ci/keys/$id")).gives(refusal(404, "not_found").says("key not found")),
            ],
        ),
        row(
            "a_key_is_listed_without_what_is_secret",
            vec![
                account("$t-ci", produce),
                key("$t-ci", r#"{"description":"a build","expires_in_ms":60000}"#),
                by_root(get("/v1/accounts/$t-ci/keys")).gives(
                    json(200)
                        .text("0.id", "$id")
                        .text("0.description", "a build")
                        .field("0.expires_at_ms", Is::AtLeast(1_500_000_000_000))
                        .field("0.key", Is::Absent)
                        .field("0.hash", Is::Absent),
                ),
            ],
        ),
        row(
            "the_scopes_of_a_key_bound_it",
            vec![
                account("$t-ci", r#"{"action":"admin"}"#),
                key("$t-ci", r#"{"scopes":[{"action":"produce","patterns":["$t"]}]}"#),
                roots("$t"),
                by_key(post("/v1/topics/$t/produce", "x")).gives(empty(202)),
                by_key(get("/v1/users")).gives(refusal(403, "forbidden").says("admin privileges required")),
            ],
        ),
        row(
            "an_account_is_no_user_and_a_user_no_account",
            vec![
                account("$t-ci", ""),
                user("$t-joe", ""),
                by_root(get("/v1/users/$t-ci")).gives(refusal(404, "not_found").says("user not found")),
                by_root(get("/v1/accounts/$t-joe")).gives(refusal(404, "not_found").says("account not found")),
                by_root(post("/v1/accounts", r#"{"name":"$t-joe"}"#)).gives(refusal(409, "already_exists").mentions("already exists")),
                by_root(post("/v1/users", r#"{"username":"$t-ci","password":"pw"}"#))
                    .gives(refusal(409, "already_exists").mentions("already exists")),
            ],
        ),
        row(
            "what_an_account_may_is_replaced_and_it_is_deleted_with_its_keys",
            vec![
                account("$t-ci", produce),
                key("$t-ci", "{}"),
                by_root(put("/v1/accounts/$t-ci/grants", r#"{"grants":[]}"#)).gives(json(200).field("grants", Is::Absent)),
                by_key(post("/v1/topics/$t/produce", "x")).gives(refusal(403, "forbidden")),
                by_root(delete("/v1/accounts/$t-ci")).gives(empty(204)),
                by_key(get("/v1/whoami")).gives(unauthenticated()),
            ],
        ),
        row(
            "an_account_has_five_keys_that_have_not_expired",
            std::iter::once(account("$t-ci", ""))
                .chain((0..5).map(|_| key("$t-ci", "{}")))
                .chain([by_root(post("/v1/accounts/$t-ci/keys", "{}")).gives(refusal(409, "limit_reached"))])
                .collect(),
        ),
    ]
}
