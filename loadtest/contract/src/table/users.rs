//! Users and grants (1.5).

use super::*;

fn row(name: &'static str, steps: Vec<Step>) -> Row {
    let steps = std::iter::once(root_is_there()).chain(steps).collect();
    Row::new(name, "1.5 users", steps).on(Profile::Secured)
}

/// Another admin, whose password is `pw`.
fn second_admin() -> Step {
    user("$t-adm", r#"{"action":"admin"}"#)
}

fn not_found() -> Expect {
    refusal(404, "not_found").says("user not found")
}

/// The rows of this module.
pub(super) fn rows() -> Vec<Row> {
    vec![
        row(
            "a_user_is_created_and_shown_without_a_word_of_the_password",
            vec![
                by_root(post(
                    "/v1/users",
                    r#"{"username":"$t-joe","password":"pw","grants":[{"action":"produce","patterns":["a.*","b"]},{"action":"admin"}]}"#,
                ))
                .gives(
                    json(201)
                        .text("username", "$t-joe")
                        .raw("grants", r#"[{"action":"produce","patterns":["a.*","b"]},{"action":"admin"}]"#)
                        .field("created_at_ms", Is::AtLeast(1_500_000_000_000))
                        .field("updated_at_ms", Is::AtLeast(1_500_000_000_000))
                        .field("root", Is::Absent)
                        .field("password", Is::Absent)
                        .field("hash", Is::Absent),
                ),
                by_root(get("/v1/users/$t-joe")).gives(json(200).text("username", "$t-joe").field("hash", Is::Absent)),
                get("/v1/users/$t-joe").by("$t-joe", "pw").gives(json(200)),
            ],
        ),
        row("the_root_admin_says_so", vec![by_root(get("/v1/users/admin")).gives(json(200).text("username", "admin").raw("root", "true"))]),
        row(
            "a_user_without_grants_shows_none",
            vec![user("$t-joe", ""), by_root(get("/v1/users/$t-joe")).gives(json(200).field("grants", Is::Absent))],
        ),
        row("users_are_listed_as_a_bare_array_in_name_order", vec![by_root(get("/v1/users")).gives(json(200).text("0.username", "admin"))]),
        row(
            "a_users_name_is_taken_once",
            vec![
                user("$t-joe", ""),
                by_root(post("/v1/users", r#"{"username":"$t-joe","password":"pw"}"#))
                    .gives(refusal(409, "already_exists").mentions("already exists")),
            ],
        ),
        row(
            "a_user_has_a_name_of_1_to_64_plain_characters",
            vec![
                by_root(post("/v1/users", r#"{"username":"a b","password":"pw"}"#)).gives(bad()),
                by_root(post("/v1/users", r#"{"username":"..","password":"pw"}"#)).gives(bad()),
                by_root(post("/v1/users", format!(r#"{{"username":"{}","password":"pw"}}"#, "x".repeat(65)))).gives(bad()),
            ],
        ),
        row(
            "a_password_has_1_to_72_bytes",
            vec![
                by_root(post("/v1/users", r#"{"username":"$t-joe","password":""}"#)).gives(bad()),
                by_root(post("/v1/users", format!(r#"{{"username":"$t-joe","password":"{}"}}"#, "x".repeat(73)))).gives(bad()),
                by_root(post("/v1/users", format!(r#"{{"username":"$t-joe","password":"{}"}}"#, "x".repeat(72)))).gives(json(201)),
                get("/v1/topics").by("$t-joe", "x".repeat(72)).gives(json(200)),
            ],
        ),
        row(
            "a_grant_has_patterns_unless_it_is_admin",
            vec![
                by_root(post("/v1/users", r#"{"username":"$t-joe","password":"pw","grants":[{"action":"produce"}]}"#)).gives(bad()),
                by_root(post("/v1/users", r#"{"username":"$t-joe","password":"pw","grants":[{"action":"admin","patterns":["*"]}]}"#))
                    .gives(bad()),
                by_root(post("/v1/users", r#"{"username":"$t-joe","password":"pw","grants":[{"action":"produce","patterns":["a*b"]}]}"#))
                    .gives(bad()),
                by_root(post("/v1/users", r#"{"username":"$t-joe","password":"pw","grants":[{"action":"fly","patterns":["a"]}]}"#))
                    .gives(bad()),
            ],
        ),
        row(
            "a_body_of_the_users_routes_is_strict_and_over_1_mib_a_bad_request",
            vec![
                by_root(post("/v1/users", r#"{"username":"$t-joe","password":"pw","role":1}"#)).gives(bad().begins("invalid json: ")),
                by_root(post("/v1/users", format!(r#"{{"username":"{}"}}"#, "x".repeat(1024 * 1024)))).gives(status(400)),
            ],
        ),
        row(
            "users_are_the_admins",
            vec![
                user("$t-joe", r#"{"action":"create","patterns":["*"]}"#),
                get("/v1/users").by("$t-joe", "pw").gives(forbidden("admin privileges required")),
                get("/v1/users/$t-joe").by("$t-joe", "pw").gives(forbidden("admin privileges required")),
                post("/v1/users", r#"{"username":"$t-x","password":"pw"}"#)
                    .by("$t-joe", "pw")
                    .gives(forbidden("admin privileges required")),
                put("/v1/users/$t-joe/grants", r#"{"grants":[]}"#).by("$t-joe", "pw").gives(forbidden("admin privileges required")),
                delete("/v1/users/admin").by("$t-joe", "pw").gives(forbidden("admin privileges required")),
            ],
        ),
        row(
            "only_root_confers_admin",
            vec![
                second_admin(),
                post("/v1/users", r#"{"username":"$t-x","password":"pw","grants":[{"action":"admin"}]}"#)
                    .by("$t-adm", "pw")
                    .gives(forbidden("cannot grant permissions you do not hold")),
                user("$t-joe", ""),
                put("/v1/users/$t-joe/grants", r#"{"grants":[{"action":"admin"}]}"#)
                    .by("$t-adm", "pw")
                    .gives(forbidden("cannot grant permissions you do not hold")),
                by_root(put("/v1/users/$t-joe/grants", r#"{"grants":[{"action":"admin"}]}"#)).gives(json(200)),
            ],
        ),
        row(
            "grants_are_replaced_whole_and_count_at_once",
            vec![
                roots("$t"),
                user("$t-joe", r#"{"action":"produce","patterns":["$t"]}"#),
                send("$t", "", "x").by("$t-joe", "pw").gives(empty(202)),
                by_root(put("/v1/users/$t-joe/grants", r#"{"grants":[{"action":"consume","patterns":["$t"]}]}"#))
                    .gives(json(200).text("username", "$t-joe").raw("grants", r#"[{"action":"consume","patterns":["$t"]}]"#)),
                send("$t", "", "x").by("$t-joe", "pw").gives(forbidden("produce not allowed on this topic")),
                read_soon("$t").by("$t-joe", "pw").gives(json(200)),
            ],
        ),
        row(
            "nobody_changes_their_own_grants_nor_roots",
            vec![
                second_admin(),
                put("/v1/users/$t-adm/grants", r#"{"grants":[]}"#).by("$t-adm", "pw").gives(refusal(403, "forbidden")),
                put("/v1/users/admin/grants", r#"{"grants":[]}"#).by("$t-adm", "pw").gives(refusal(403, "forbidden")),
                by_root(put("/v1/users/admin/grants", r#"{"grants":[]}"#)).gives(refusal(403, "forbidden")),
            ],
        ),
        row(
            "a_deleted_user_is_gone_and_root_and_oneself_stay",
            vec![
                second_admin(),
                user("$t-joe", ""),
                get("/v1/topics").by("$t-joe", "pw").gives(json(200)),
                delete("/v1/users/$t-joe").by("$t-adm", "pw").gives(empty(204)),
                get("/v1/topics").by("$t-joe", "pw").gives(unauthenticated()),
                by_root(get("/v1/users/$t-joe")).gives(not_found()),
                by_root(delete("/v1/users/$t-joe")).gives(not_found()),
                by_root(put("/v1/users/$t-joe/grants", r#"{"grants":[]}"#)).gives(not_found()),
                delete("/v1/users/admin").by("$t-adm", "pw").gives(forbidden("the root admin cannot be deleted")),
                delete("/v1/users/$t-adm").by("$t-adm", "pw").gives(forbidden("cannot delete your own account")),
            ],
        ),
        row(
            "a_user_changes_their_password_with_the_one_they_have",
            vec![
                user("$t-joe", ""),
                put("/v1/users/$t-joe/password", r#"{"new_password":"p2"}"#)
                    .by("$t-joe", "pw")
                    .gives(forbidden("current password is incorrect")),
                put("/v1/users/$t-joe/password", r#"{"new_password":"p2","current_password":"no"}"#)
                    .by("$t-joe", "pw")
                    .gives(forbidden("current password is incorrect")),
                put("/v1/users/$t-joe/password", r#"{"new_password":"p2","current_password":"pw"}"#).by("$t-joe", "pw").gives(empty(204)),
                get("/v1/topics").by("$t-joe", "pw").gives(unauthenticated()),
                get("/v1/topics").by("$t-joe", "p2").gives(json(200)),
            ],
        ),
        row(
            "an_admin_sets_passwords_but_roots_is_roots_own",
            vec![
                second_admin(),
                user("$t-joe", ""),
                put("/v1/users/$t-joe/password", r#"{"new_password":"p2"}"#).by("$t-adm", "pw").gives(empty(204)),
                get("/v1/topics").by("$t-joe", "p2").gives(json(200)),
                put("/v1/users/admin/password", r#"{"new_password":"p2"}"#).by("$t-adm", "pw").gives(refusal(403, "forbidden")),
                put("/v1/users/$t-adm/password", r#"{"new_password":"p2"}"#)
                    .by("$t-joe", "p2")
                    .gives(forbidden("admin privileges required")),
            ],
        ),
    ]
}
