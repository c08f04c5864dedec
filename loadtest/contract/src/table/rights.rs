//! Who is let in (1.0), and who may do what (1.1 to 1.4, 1.6), on a server with security on.

use super::*;

fn row(name: &'static str, section: &'static str, steps: Vec<Step>) -> Row {
    let steps = std::iter::once(root_is_there()).chain(steps).collect();
    Row::new(name, section, steps).on(Profile::Secured)
}

fn grant(action: &str) -> String {
    format!(r#"{{"action":"{action}","patterns":["$t*"]}}"#)
}

/// The rows of this module.
pub(super) fn rows() -> Vec<Row> {
    vec![
        row(
            "a_request_without_credentials_is_asked_for_them",
            "1.0 auth",
            vec![
                get("/v1/topics").gives(unauthenticated()),
                head("/v1/topics").gives(status(401)),
                send("$t", "", "x").gives(unauthenticated()),
            ],
        ),
        row(
            "wrong_credentials_are_answered_like_none",
            "1.0 auth",
            vec![
                user("$t-joe", ""),
                get("/v1/topics").by("$t-joe", "not-pw").gives(unauthenticated()),
                get("/v1/topics").by("$t-nobody", "pw").gives(unauthenticated()),
                get("/v1/topics").header("Authorization", "Bearer x").gives(unauthenticated()),
                get("/v1/topics").header("Authorization", "Basic %").gives(unauthenticated()),
                get("/v1/topics").by("$t-joe", "pw").gives(json(200)),
            ],
        ),
        row(
            "probes_are_for_everybody_and_counters_for_users",
            "1.0 auth",
            vec![
                get("/healthz").gives(json(200)),
                get("/readyz").gives(json(200)),
                get("/metrics").gives(unauthenticated()),
                user("$t-joe", ""),
                get("/metrics").by("$t-joe", "pw").gives(status(200)),
            ],
        ),
        row(
            "credentials_are_asked_for_before_the_guard_and_the_guard_before_the_method",
            "1.0 order",
            vec![
                Request::new("POST", "/v1/topics").gives(unauthenticated()),
                Request::new("DELETE", "/v1/topics").gives(unauthenticated()),
                get("/no-such-path").gives(unauthenticated()),
                by_root(Request::new("POST", "/v1/topics")).gives(unsupported()),
                by_root(Request::new("PUT", "/v1/topics")).gives(unsupported()),
                by_root(Request::new("DELETE", "/v1/topics")).gives(plain(405, "Method Not Allowed")),
                by_root(get("/no-such-path")).gives(plain(404, "404 page not found")),
            ],
        ),
        row(
            "too_many_wrong_passwords_of_a_user_are_throttled",
            "1.0 throttle",
            vec![
                user("$t-joe", ""),
                get("/v1/topics").by("$t-joe", "1").gives(unauthenticated()),
                get("/v1/topics").by("$t-joe", "2").gives(unauthenticated()),
                get("/v1/topics").by("$t-joe", "3").gives(unauthenticated()),
                get("/v1/topics").by("$t-joe", "4").gives(unauthenticated()),
                get("/v1/topics").by("$t-joe", "5").gives(unauthenticated()),
                get("/v1/topics")
                    .by("$t-joe", "6")
                    .gives(refusal(429, "rate_limited").says("too many failed authentication attempts").header("Retry-After", Is::AnyText)),
            ],
        ),
        row(
            "the_default_tenant_needs_no_suffix_and_another_is_unknown",
            "0 users of tenants",
            vec![
                get("/v1/users").by("admin@default", Profile::ROOT_PASSWORD).gives(json(200)),
                get("/v1/users").by("admin@acme", Profile::ROOT_PASSWORD).gives(unauthenticated()),
            ],
        ),
        row(
            "to_create_a_topic_takes_the_grant_and_makes_its_owner",
            "1.1 create",
            vec![
                user("$t-joe", &grant("create")),
                create(r#"{"name":"x$t"}"#).by("$t-joe", "pw").gives(forbidden("create not allowed on this topic")),
                create(r#"{"name":"$t","partitions":1,"owner":"somebody"}"#).by("$t-joe", "pw").gives(json(201).text("owner", "$t-joe")),
                by_root(describe("$t")).gives(json(200).text("owner", "$t-joe")),
                roots("$t-p"),
                create(r#"{"name":"$t-c","parent":"$t-p"}"#)
                    .by("$t-joe", "pw")
                    .gives(forbidden("only the topic owner or an admin may modify this topic")),
                create(r#"{"name":"$t-c","parent":"$t"}"#).by("$t-joe", "pw").gives(json(201).text("parent", "$t")),
            ],
        ),
        row(
            "a_list_is_filtered_to_what_the_caller_has_a_grant_on_or_owns",
            "1.1 list",
            vec![
                roots("$t-a"),
                user("$t-joe", r#"{"action":"create","patterns":["$t-b"]}"#),
                user("$t-ann", r#"{"action":"consume","patterns":["$t-a"]}"#),
                create(r#"{"name":"$t-b"}"#).by("$t-joe", "pw").gives(json(201)),
                get("/v1/topics").by("$t-joe", "pw").gives(json(200).field("topics", Is::Len(1)).text("topics.0.name", "$t-b")),
                get("/v1/topics").by("$t-ann", "pw").gives(json(200).field("topics", Is::Len(1)).text("topics.0.name", "$t-a")),
            ],
        ),
        row(
            "any_grant_shows_a_topic_and_no_grant_hides_it",
            "1.1 describe",
            vec![
                roots("$t"),
                user("$t-joe", &grant("produce")),
                user("$t-ann", r#"{"action":"produce","patterns":["x$t"]}"#),
                describe("$t").by("$t-joe", "pw").gives(json(200)),
                get("/v1/topics/$t/schema").by("$t-joe", "pw").gives(json(200)),
                describe("$t").by("$t-ann", "pw").gives(forbidden("no grant on this topic")),
                get("/v1/topics/$t/schema").by("$t-ann", "pw").gives(forbidden("no grant on this topic")),
                get("/v1/topics/$t/children").by("$t-ann", "pw").gives(forbidden("no grant on this topic")),
            ],
        ),
        row(
            "only_the_owner_and_admins_change_a_topic",
            "1.1 manage",
            vec![
                user("$t-joe", &grant("create")),
                user("$t-ann", &[grant("create"), grant("produce"), grant("consume")].join(",")),
                create(r#"{"name":"$t","partitions":1}"#).by("$t-joe", "pw").gives(json(201)),
                patch("$t", r#"{"retention_ms":0}"#)
                    .by("$t-ann", "pw")
                    .gives(forbidden("only the topic owner or an admin may modify this topic")),
                delete("/v1/topics/$t").by("$t-ann", "pw").gives(forbidden("only the topic owner or an admin may modify this topic")),
                patch("$t", r#"{"retention_ms":0}"#).by("$t-joe", "pw").gives(json(200)),
                by_root(patch("$t", r#"{"partitions":2}"#)).gives(json(200)),
                delete("/v1/topics/$t").by("$t-joe", "pw").gives(empty(204)),
                delete("/v1/topics/$t").by("$t-joe", "pw").gives(topic_not_found()),
            ],
        ),
        row(
            "an_attach_takes_both_topics_and_a_detach_either",
            "1.2 rights",
            vec![
                user("$t-joe", &grant("create")),
                user("$t-ann", &grant("create")),
                create(r#"{"name":"$t-p","partitions":1}"#).by("$t-joe", "pw").gives(json(201)),
                create(r#"{"name":"$t-c","partitions":1}"#).by("$t-ann", "pw").gives(json(201)),
                attach("$t-joe").gives(forbidden("only the topic owner or an admin may modify this topic")),
                attach("$t-ann").gives(forbidden("only the topic owner or an admin may modify this topic")),
                by_root(post("/v1/topics/$t-p/children", r#"{"child":"$t-c"}"#)).gives(json(200)),
                user("$t-bob", &grant("create")),
                delete("/v1/topics/$t-p/children/$t-c")
                    .by("$t-bob", "pw")
                    .gives(forbidden("only the topic owner or an admin may modify this topic")),
                delete("/v1/topics/$t-p/children/$t-c").by("$t-ann", "pw").gives(empty(204)),
            ],
        ),
        row(
            "a_produce_takes_the_grant_before_anything_else_is_judged",
            "1.3 produce rights",
            vec![
                roots("$t"),
                user("$t-joe", &grant("produce")),
                user("$t-ann", &grant("consume")),
                send("$t", "", "x").by("$t-joe", "pw").gives(empty(202)),
                send("$t", "partition=x", "").by("$t-ann", "pw").gives(forbidden("produce not allowed on this topic")),
                send("$t-no", "", "x").by("$t-ann", "pw").gives(forbidden("produce not allowed on this topic")),
                send_batch("$t", r#"{"messages":[{"payload":1}]}"#)
                    .by("$t-ann", "pw")
                    .gives(forbidden("produce not allowed on this topic")),
                send_batch("$t", r#"{"messages":[{"payload":1}]}"#).by("$t-joe", "pw").gives(json(202)),
            ],
        ),
        row(
            "a_consume_and_an_ack_take_the_same_grant",
            "1.3 consume rights",
            vec![
                roots("$t"),
                user("$t-joe", &grant("consume")),
                user("$t-ann", &grant("produce")),
                send("$t", "", "x").by("$t-ann", "pw").gives(empty(202)),
                read("$t", "").by("$t-ann", "pw").gives(forbidden("consume not allowed on this topic")),
                read("$t", "partition=0&offset=0").by("$t-ann", "pw").gives(forbidden("consume not allowed on this topic")),
                read_soon("$t").by("$t-joe", "pw").gives(json(200)).take("h", "receipt_handle"),
                settle("$t", "receipt_handle=$h").by("$t-ann", "pw").gives(forbidden("consume not allowed on this topic")),
                settle("$t", "receipt_handle=x").by("$t-ann", "pw").gives(forbidden("consume not allowed on this topic")),
                settle("$t", "receipt_handle=$h").by("$t-joe", "pw").gives(empty(204)),
            ],
        ),
        row(
            "the_cluster_is_the_admins",
            "1.6 rights",
            vec![
                user("$t-joe", &[grant("create"), grant("produce"), grant("consume")].join(",")),
                get("/v1/cluster/members").by("$t-joe", "pw").gives(forbidden("admin privileges required")),
                get("/v1/cluster/moves").by("$t-joe", "pw").gives(forbidden("admin privileges required")),
                post("/v1/cluster/members/x/decommission", "").by("$t-joe", "pw").gives(forbidden("admin privileges required")),
                by_root(get("/v1/cluster/members")).gives(json(200)),
                user("$t-adm", r#"{"action":"admin"}"#),
                get("/v1/cluster/members").by("$t-adm", "pw").gives(json(200)),
            ],
        ),
    ]
}

fn attach(user: &str) -> Request {
    post("/v1/topics/$t-p/children", r#"{"child":"$t-c"}"#).by(user, "pw")
}
