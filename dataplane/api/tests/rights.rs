//! Who may do what: every route with every kind of caller.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use veena_api::ApiConfig;

use crate::support::{Answer, Node, PASSWORD, basic, bearer, until};

/// The kinds of users: their grants. Topics are named `o-*` and belong to `owner`; children `c-*`, to `childowner`; `new-*` is not there yet.
const USERS: [(&str, &[(&str, &str)]); 8] = [
    ("stranger", &[("produce", "other-*"), ("consume", "other-*"), ("create", "other-*")]),
    ("producer", &[("produce", "o-*")]),
    ("consumer", &[("consume", "o-*")]),
    ("creator", &[("create", "new-*")]),
    ("owner", &[("create", "o-*")]),
    ("childowner", &[("create", "c-*")]),
    ("administrator", &[("admin", "")]),
    ("admin", &[]),
];
const ADMINS: [&str; 2] = ["administrator", "admin"];
const NOBODY: [&str; 3] = ["nobody", "wrong", "unknown"];
/// Nobody either, with what looks like a key.
const BAD_KEYS: [&str; 4] = ["account-with-password", "expired-key", "deleted-key", "wrong-key"];

/// Service accounts: their grants, the scopes of the key that they sign in with, and the user who may as much.
type Account = (&'static str, &'static [(&'static str, &'static str)], Option<&'static [(&'static str, &'static str)]>, &'static str);
const ACCOUNTS: [Account; 4] = [
    ("service-producer", &[("produce", "o-*")], None, "producer"),
    ("service-scoped", &[("admin", "")], Some(&[("consume", "o-*")]), "consumer"),
    ("service-narrowed", &[("produce", "o-*"), ("consume", "o-*")], Some(&[("consume", "*"), ("admin", "")]), "both"),
    ("service-administrator", &[("admin", "")], None, "administrator"),
];

/// What a caller is to the tenant whose things a cell is about.
const KINDS: [&str; 6] = ["nobody", "expired", "of another tenant", "own without a grant", "own", "operator"];

/// Who is let in beside the admins.
enum LetIn {
    Everybody,
    Users,
    /// These and the admins.
    These(&'static [&'static str]),
    /// Nobody else.
    Root,
    /// The admins of the tenant `default`, whoever's the things are.
    Operators,
    /// The users of the tenant `default`.
    UsersOfDefault,
}

struct Row {
    method: &'static str,
    template: &'static str,
    query: &'static str,
    body: &'static str,
    /// The status of whoever is let in.
    status: u16,
    let_in: LetIn,
}

const fn row(method: &'static str, template: &'static str, status: u16, let_in: LetIn) -> Row {
    Row { method, template, query: "", body: "", status, let_in }
}

const WHO_SEES: LetIn = LetIn::These(&["producer", "consumer", "both", "owner"]);
const WHO_OWNS: LetIn = LetIn::These(&["owner"]);
const ONLY_ADMINS: LetIn = LetIn::These(&[]);

/// What the contract says, written down a second time. `$n` is the cell's number.
const ROWS: &[Row] = &[
    row("GET", "/v1/topics", 200, LetIn::Users),
    Row { body: r#"{"name":"new-$n"}"#, ..row("POST", "/v1/topics", 201, LetIn::These(&["creator"])) },
    row("GET", "/v1/topics/{topic}", 200, WHO_SEES),
    Row { body: r#"{"retention_ms":0}"#, ..row("PATCH", "/v1/topics/{topic}", 200, WHO_OWNS) },
    row("DELETE", "/v1/topics/{topic}", 204, WHO_OWNS),
    row("GET", "/v1/topics/{topic}/schema", 200, WHO_SEES),
    row("GET", "/v1/topics/{topic}/children", 200, WHO_SEES),
    Row { body: r#"{"child":"o-$n-free"}"#, ..row("POST", "/v1/topics/{topic}/children", 200, WHO_OWNS) },
    row("DELETE", "/v1/topics/{topic}/children/{child}", 204, LetIn::These(&["owner", "childowner"])),
    Row { body: "x", ..row("POST", "/v1/topics/{topic}/produce", 202, LetIn::These(&["producer", "both"])) },
    Row {
        body: r#"{"messages":[{"payload":1}]}"#,
        ..row("POST", "/v1/topics/{topic}/produce/batch", 202, LetIn::These(&["producer", "both"]))
    },
    row("GET", "/v1/topics/{topic}/consume", 204, LetIn::These(&["consumer", "both"])),
    Row { query: "?receipt_handle=0:0:1", ..row("POST", "/v1/topics/{topic}/ack", 410, LetIn::These(&["consumer", "both"])) },
    row("GET", "/v1/cluster/members", 200, LetIn::Operators),
    // No copies are made of this catalog: it is in memory.
    row("GET", "/v1/cluster/backup", 503, LetIn::Root),
    row("POST", "/v1/cluster/members/{member}/decommission", 404, LetIn::Operators),
    row("DELETE", "/v1/cluster/members/{member}/decommission", 404, LetIn::Operators),
    row("POST", "/v1/cluster/members/{member}/forget", 404, LetIn::Operators),
    row("GET", "/v1/cluster/moves", 200, LetIn::Operators),
    row("POST", "/v1/cluster/moves/{topic}/{partition}/abort", 404, LetIn::Operators),
    row("GET", "/v1/users", 200, ONLY_ADMINS),
    Row { body: r#"{"username":"made-$n","password":"x"}"#, ..row("POST", "/v1/users", 201, ONLY_ADMINS) },
    row("GET", "/v1/users/{user}", 200, ONLY_ADMINS),
    row("DELETE", "/v1/users/{user}", 204, ONLY_ADMINS),
    Row { body: r#"{"grants":[]}"#, ..row("PUT", "/v1/users/{user}/grants", 200, ONLY_ADMINS) },
    Row { body: r#"{"new_password":"x"}"#, ..row("PUT", "/v1/users/{user}/password", 204, ONLY_ADMINS) },
    row("GET", "/v1/admin/tenants", 200, LetIn::Operators),
    row("GET", "/v1/admin/tenants/{tenant}", 200, LetIn::Operators),
    Row { body: r#"{"state":"suspended"}"#, ..row("PUT", "/v1/admin/tenants/{tenant}", 200, LetIn::Operators) },
    row("DELETE", "/v1/admin/tenants/{tenant}", 202, LetIn::Operators),
    row("GET", "/v1/admin/tenants/{tenant}/users", 200, LetIn::Operators),
    Row { body: r#"{"grants":[{"action":"admin"}]}"#, ..row("PUT", "/v1/admin/tenants/{tenant}/users/{user}", 200, LetIn::Operators) },
    row("DELETE", "/v1/admin/tenants/{tenant}/users/{user}", 204, LetIn::Operators),
    row("GET", "/v1/accounts", 200, ONLY_ADMINS),
    Row { body: r#"{"name":"account-$n"}"#, ..row("POST", "/v1/accounts", 201, ONLY_ADMINS) },
    row("GET", "/v1/accounts/{account}", 200, ONLY_ADMINS),
    row("DELETE", "/v1/accounts/{account}", 204, ONLY_ADMINS),
    Row { body: r#"{"grants":[]}"#, ..row("PUT", "/v1/accounts/{account}/grants", 200, ONLY_ADMINS) },
    row("GET", "/v1/accounts/{account}/keys", 200, ONLY_ADMINS),
    Row { body: "{}", ..row("POST", "/v1/accounts/{account}/keys", 201, ONLY_ADMINS) },
    row("DELETE", "/v1/accounts/{account}/keys/{key}", 204, ONLY_ADMINS),
    row("GET", "/v1/whoami", 200, LetIn::Users),
    row("GET", "/v1/audit", 200, ONLY_ADMINS),
    row("GET", "/v1/admin/audit", 200, LetIn::Operators),
    Row { query: "?action=admin", ..row("GET", "/v1/explain", 200, LetIn::Users) },
    row("GET", "/v1/admin/tenants/{tenant}/quota", 200, LetIn::Operators),
    Row { body: r#"{"quota":{}}"#, ..row("PUT", "/v1/admin/tenants/{tenant}/quota", 200, LetIn::Operators) },
    row("GET", "/v1/admin/usage", 200, LetIn::Operators),
    row("GET", "/v1/quota", 200, LetIn::Users),
    row("GET", "/v1/usage", 200, ONLY_ADMINS),
    Row {
        body: r#"{"issuer":"https://id.example","audience":"veena","keys":[{"kty":"OKP","crv":"Ed25519","kid":"k","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#,
        ..row("PUT", "/v1/admin/token-issuer", 200, LetIn::Operators)
    },
    row("GET", "/v1/admin/token-issuer", 200, LetIn::Operators),
    row("DELETE", "/v1/admin/token-issuer", 204, LetIn::Operators),
    row("GET", "/healthz", 200, LetIn::Everybody),
    row("GET", "/readyz", 200, LetIn::Everybody),
    row("GET", "/metrics", 200, LetIn::UsersOfDefault),
];

/// Whose things a run is about, and who else calls.
struct Run {
    /// The tenant that the things are of.
    home: &'static str,
    callers: Vec<String>,
    /// What those send as `Authorization` who sign in with a key.
    keys: BTreeMap<String, String>,
}

impl Run {
    /// The tenant `default`, whose admins are the operators.
    fn of_default() -> Self {
        let callers = NOBODY.into_iter().chain(USERS.into_iter().map(|(name, _)| name));
        Self { home: "default", callers: callers.map(|name| format!("{name}@default")).collect(), keys: BTreeMap::new() }
    }

    /// Another tenant: its users; an admin of a tenant that has things of the same names, and of one that has nothing; and an operator.
    fn of_acme() -> Self {
        let users = NOBODY.into_iter().chain(USERS.into_iter().map(|(name, _)| name).filter(|name| *name != "admin"));
        let others = ["administrator@twin", "administrator@empty", "admin@default"];
        let callers = users.map(|name| format!("{name}@acme")).chain(others.map(str::to_owned));
        Self { home: "acme", callers: callers.collect(), keys: BTreeMap::new() }
    }

    /// Service accounts of a tenant, each with its key.
    async fn add_accounts(&mut self, node: &Node, tenant: &str) {
        for (name, grants, scopes, _) in ACCOUNTS {
            let account = format!("{name}@{tenant}");
            node.account(&account, grants).await;
            self.add(account.clone(), bearer(&node.key(&account, scopes, None).await));
        }
    }

    /// Who has what looks like a key of the admin among the service accounts, and is nobody.
    async fn add_bad_keys(&mut self, node: &Node) {
        let home = self.home;
        let (account, administrator) = (format!("service-administrator@{home}"), format!("administrator@{home}"));
        let deleted = node.key(&account, None, None).await;
        let path = format!("/v1/accounts/service-administrator/keys/{}", deleted.id());
        assert_eq!(send(node, &administrator, "DELETE", &path, "").await.status, 204);
        // Of its form, and of an id that there is; not the one that was given out under it.
        let forged = crate::support::forged(&node.key(&account, None, None).await);
        let expired = node.key(&account, None, Some(2)).await;
        for (name, header) in [
            ("account-with-password", basic(&account, PASSWORD)),
            ("expired-key", bearer(&expired)),
            ("deleted-key", bearer(&deleted)),
            ("wrong-key", bearer(&forged)),
        ] {
            assert!(BAD_KEYS.contains(&name));
            self.add(format!("{name}@{home}"), header);
        }
    }

    fn add(&mut self, who: String, header: String) {
        self.keys.insert(who.clone(), header);
        self.callers.push(who);
    }

    fn kind(&self, who: &str) -> &'static str {
        let (name, tenant) = who.split_once('@').expect("name@tenant");
        let kind = match name {
            "expired-key" => 1,
            _ if NOBODY.contains(&name) || BAD_KEYS.contains(&name) => 0,
            "admin" | "administrator" | "service-administrator" if tenant == "default" => 5,
            _ if tenant != self.home => 2,
            "stranger" => 3,
            _ => 4,
        };
        KINDS[kind]
    }

    /// How many cells there are, in one line, with how many callers there are of each kind.
    fn told(&self) -> String {
        let count = |kind: &str| self.callers.iter().filter(|who| self.kind(who) == kind).count();
        let kinds: Vec<String> = KINDS.iter().map(|kind| format!("{} {kind}", count(kind))).collect();
        let (rows, callers) = (ROWS.len(), self.callers.len());
        format!("{} cells: {rows} routes and methods x {callers} callers ({})", rows * callers, kinds.join(", "))
    }

    /// The tenants that have what the paths name.
    fn furnished(&self) -> Vec<&'static str> {
        if self.home == "acme" { vec!["acme", "twin"] } else { vec!["default"] }
    }

    fn expected(&self, row: &Row, who: &str) -> u16 {
        let (name, tenant) = who.split_once('@').expect("name@tenant");
        let is_nobody = NOBODY.contains(&name) || BAD_KEYS.contains(&name);
        let name = ACCOUNTS.iter().find(|(account, ..)| *account == name).map_or(name, |(.., user)| *user);
        let is_operator = tenant == "default" && ADMINS.contains(&name);
        let is_let_in = match row.let_in {
            LetIn::Everybody => true,
            LetIn::Users => !is_nobody,
            LetIn::UsersOfDefault => !is_nobody && tenant == "default",
            LetIn::Operators => is_operator,
            LetIn::Root => who == "admin@default",
            LetIn::These(users) => users.contains(&name) || ADMINS.contains(&name),
        };
        let is_of_the_caller = !matches!(row.let_in, LetIn::Operators | LetIn::Root);
        let names_something = ["{topic}", "{child}", "{user}", "{account}"].iter().any(|name| row.template.contains(name));
        match (is_let_in, is_nobody) {
            // A key is of one tenant, and its id is nobody else's.
            (true, _) if row.template.contains("{key}") && tenant != self.home => 404,
            // What is another tenant's is not there.
            (true, _) if is_of_the_caller && names_something && !self.furnished().contains(&tenant) => 404,
            (true, _) => row.status,
            (false, true) => 401,
            (false, false) => 403,
        }
    }
}

fn credentials(who: &str) -> Option<(String, &'static str)> {
    let (name, tenant) = who.split_once('@').expect("name@tenant");
    match name {
        "nobody" => None,
        "wrong" => Some((format!("producer@{tenant}"), "wrong horse")),
        "unknown" => Some((format!("nosuchuser@{tenant}"), PASSWORD)),
        _ => Some((who.to_owned(), PASSWORD)),
    }
}

async fn send(node: &Node, who: &str, method: &str, path: &str, body: &str) -> Answer {
    let credentials = credentials(who);
    node.send_as(credentials.as_ref().map(|(name, password)| (name.as_str(), *password)), method, path, body).await
}

async fn create_as(node: &Node, owner: &str, topic: &str) {
    let body = format!(r#"{{"name":"{topic}","partitions":1}}"#);
    let answer = node.send_as(Some((owner, PASSWORD)), "POST", "/v1/topics", &body).await;
    let name = owner.split('@').next().expect("a name");
    assert_eq!((answer.status, &answer.json()["owner"]), (201, &json!(name)), "{}", answer.text());
}

/// Makes what the path of one cell names, in each of these tenants, and the path.
async fn prepare(node: &Node, row: &Row, n: usize, tenants: &[&str]) -> String {
    let mut key = String::new();
    // The first is the one that the run is about: its key is in the path.
    for tenant in tenants.iter().rev().filter(|_| row.template.contains("{account}")) {
        let account = format!("account-of-{n}@{tenant}");
        node.account(&account, &[]).await;
        key = node.key(&account, None, None).await.id().to_string();
    }
    for tenant in tenants {
        let [owner, childowner] = ["owner", "childowner"].map(|name| format!("{name}@{tenant}"));
        let administrator = format!("administrator@{tenant}");
        if row.template.contains("{topic}") {
            create_as(node, &owner, &format!("o-{n}")).await;
        }
        if row.method == "POST" && row.template.ends_with("/children") {
            create_as(node, &owner, &format!("o-{n}-free")).await;
        }
        if row.template.contains("{child}") {
            create_as(node, &childowner, &format!("c-{n}")).await;
            let (path, body) = (format!("/v1/topics/o-{n}/children"), format!(r#"{{"child":"c-{n}"}}"#));
            let attached = send(node, &administrator, "POST", &path, &body).await;
            assert_eq!(attached.status, 200, "{}", attached.text());
        }
        if row.template.contains("{user}") && !row.template.contains("{tenant}") {
            node.user(&format!("target-{n}@{tenant}"), &[]).await;
        }
    }
    if row.template.contains("{tenant}") {
        node.tenant(&format!("t-{n}")).await;
        node.user(&format!("target-{n}@t-{n}"), &[]).await;
    }
    let names = [
        ("{account}", format!("account-of-{n}")),
        ("{key}", key),
        ("{topic}", format!("o-{n}")),
        ("{child}", format!("c-{n}")),
        ("{user}", format!("target-{n}")),
        ("{member}", "node-9".to_owned()),
        ("{tenant}", format!("t-{n}")),
    ];
    let path = names.iter().fold(row.template.replace("{partition}", "0"), |path, (name, value)| path.replace(name, value));
    format!("{path}{}", row.query)
}

async fn furnish(node: &Node, tenant: &str) {
    for (name, grants) in USERS.into_iter().filter(|(name, _)| *name != "admin") {
        node.user(&format!("{name}@{tenant}"), grants).await;
    }
}

async fn secured_with_users() -> Node {
    let node = Node::start_secured().await;
    furnish(&node, "default").await;
    node
}

/// What can be seen of what a cell is about, by who may see it all.
async fn seen(node: &Node, tenant: &str, n: usize) -> Vec<(u16, String)> {
    let mut seen = Vec::new();
    for path in [
        format!("/v1/topics/o-{n}"),
        format!("/v1/topics/c-{n}"),
        format!("/v1/users/target-{n}"),
        format!("/v1/accounts/account-of-{n}"),
        format!("/v1/accounts/account-of-{n}/keys"),
        "/v1/topics?limit=1000".to_owned(),
    ] {
        let answer = send(node, &format!("administrator@{tenant}"), "GET", &path, "").await;
        let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
        let shown = if answer.status == 404 { json!(body["error"]) } else { body };
        seen.push((answer.status, shown.to_string()));
    }
    seen
}

/// Every cell of a run; how many, and which came out otherwise.
async fn walk(node: &Node, run: &Run) -> (usize, Vec<String>) {
    let (mut cells, mut wrong) = (0, Vec::new());
    for row in ROWS {
        for who in &run.callers {
            cells += 1;
            let path = prepare(node, row, cells, &run.furnished()).await;
            let body = row.body.replace("$n", &cells.to_string());
            let is_from_elsewhere = !who.ends_with(run.home);
            let before = if is_from_elsewhere { seen(node, run.home, cells).await } else { Vec::new() };
            let answer = match run.keys.get(who) {
                Some(header) => node.send_with(Some(header), row.method, &path, &body).await,
                None => send(node, who, row.method, &path, &body).await,
            };
            let expected = run.expected(row, who);
            if answer.status != expected {
                wrong.push(format!("{who} {} {path}: {} and not {expected}: {}", row.method, answer.status, answer.text()));
            }
            if is_from_elsewhere && before != seen(node, run.home, cells).await {
                wrong.push(format!("{who} {} {path}: changed what is {}'s", row.method, run.home));
            }
        }
    }
    (cells, wrong)
}

#[tokio::test]
async fn every_route_lets_in_whom_it_should_and_nobody_else() {
    let (node, mut run) = (secured_with_users().await, Run::of_default());
    run.add_accounts(&node, "default").await;
    run.add_bad_keys(&node).await;
    let (cells, wrong) = walk(&node, &run).await;
    assert!(wrong.is_empty(), "{} of {cells} cells: {wrong:#?}", wrong.len());
    assert_eq!(cells, ROWS.len() * run.callers.len());
    println!("{}", run.told());
}

#[tokio::test]
async fn every_route_keeps_to_the_tenant_of_its_caller() {
    let (node, mut run) = (secured_with_users().await, Run::of_acme());
    for tenant in ["acme", "twin", "empty"] {
        node.tenant(tenant).await;
        furnish(&node, tenant).await;
    }
    for tenant in ["acme", "twin"] {
        run.add_accounts(&node, tenant).await;
    }
    run.add_bad_keys(&node).await;
    let (cells, wrong) = walk(&node, &run).await;
    assert!(wrong.is_empty(), "{} of {cells} cells: {wrong:#?}", wrong.len());
    assert_eq!(cells, ROWS.len() * run.callers.len());
    let kinds: BTreeSet<&str> = run.callers.iter().map(|who| run.kind(who)).collect();
    assert_eq!(kinds, BTreeSet::from(KINDS), "each kind of caller meets every route");
    println!("{}", run.told());
}

#[test]
fn every_route_has_its_row() {
    let document: Value = serde_json::from_str(&veena_api::openapi_json()).expect("the document is JSON");
    let paths = document["paths"].as_object().expect("paths");
    let served = paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().expect("an item");
        methods.keys().map(move |method| (method.to_uppercase(), path.clone()))
    });
    let rows = ROWS.iter().map(|row| (row.method.to_owned(), row.template.to_owned()));
    assert_eq!(served.collect::<BTreeSet<_>>(), rows.collect::<BTreeSet<_>>());
}

#[tokio::test]
async fn a_caller_is_asked_for_before_anything_else_is_looked_at() {
    let node = secured_with_users().await;
    let mut client = node.connect().await;
    for (method, path) in [
        ("POST", "/v1/topics"),
        ("PUT", "/v1/topics"),
        ("GET", "/v1/no-such-path"),
        ("GET", "/"),
        ("POST", "/v1/topics/a%20b/produce"),
        ("DELETE", "/metrics"),
    ] {
        let answer = client.request(method, path, &[], b"").await;
        assert_eq!(answer.refusal(401, "unauthenticated"), "authentication required", "{method} {path}");
        assert_eq!(answer.header("www-authenticate"), Some("Basic realm=\"narad\""));
    }
    let root = crate::support::basic("admin", PASSWORD);
    let signed = [("Authorization", root.as_str())];
    for (method, path, status) in
        [("POST", "/v1/topics", 415), ("PUT", "/v1/topics", 415), ("DELETE", "/v1/topics", 405), ("GET", "/v1/no-such-path", 404)]
    {
        assert_eq!(client.request(method, path, &signed, b"").await.status, status, "{method} {path}");
    }
    assert_eq!(client.request("DELETE", "/healthz", &[], b"").await.status, 405, "an open path tells everybody");
    for header in ["Bearer x", "Basic", "Basic %%%", "Basic YWRtaW4=", "Digest username=\"admin\""] {
        let answer = client.request("GET", "/v1/topics", &[("Authorization", header)], b"").await;
        assert_eq!(answer.refusal(401, "unauthenticated"), "authentication required", "{header}");
    }
    let of_tenant = |tenant: &str| crate::support::basic(&format!("admin@{tenant}"), PASSWORD);
    for (tenant, status) in [("default", 200), ("acme", 401), ("", 401), ("Default", 401)] {
        let header = of_tenant(tenant);
        assert_eq!(client.request("GET", "/v1/users", &[("Authorization", header.as_str())], b"").await.status, status, "{tenant}");
    }
}

#[tokio::test]
async fn a_refusal_says_what_is_missing_in_the_contracts_words() {
    let node = secured_with_users().await;
    create_as(&node, "owner", "o-1").await;
    create_as(&node, "childowner", "c-1").await;
    for (who, method, path, body, text) in [
        ("stranger", "POST", "/v1/topics/o-1/produce", "x", "produce not allowed on this topic"),
        ("stranger", "POST", "/v1/topics/o-1/produce?partition=x", "x", "produce not allowed on this topic"),
        ("stranger", "GET", "/v1/topics/o-1/consume", "", "consume not allowed on this topic"),
        ("stranger", "POST", "/v1/topics/o-1/ack", "", "consume not allowed on this topic"),
        ("stranger", "GET", "/v1/topics/unknown/consume", "", "consume not allowed on this topic"),
        ("stranger", "POST", "/v1/topics", r#"{"name":"o-2"}"#, "create not allowed on this topic"),
        ("stranger", "GET", "/v1/topics/o-1", "", "no grant on this topic"),
        ("stranger", "GET", "/v1/users", "", "admin privileges required"),
        ("producer", "PATCH", "/v1/topics/o-1", "{}", "only the topic owner or an admin may modify this topic"),
        ("owner", "POST", "/v1/topics/o-1/children", r#"{"child":"c-1"}"#, "only the topic owner or an admin may modify this topic"),
        ("childowner", "POST", "/v1/topics/o-1/children", r#"{"child":"c-1"}"#, "only the topic owner or an admin may modify this topic"),
        ("childowner", "POST", "/v1/topics", r#"{"name":"c-2","parent":"o-1"}"#, "only the topic owner or an admin may modify this topic"),
    ] {
        let answer = node.send_as(Some((who, PASSWORD)), method, path, body).await;
        assert_eq!(answer.refusal(403, "forbidden"), text, "{who} {method} {path}");
    }
    for (who, method, path, status) in [
        ("owner", "GET", "/v1/topics/unknown", 404),
        ("owner", "DELETE", "/v1/topics/unknown", 404),
        ("owner", "DELETE", "/v1/topics/o-1/children/c-1", 404),
        ("consumer", "GET", "/v1/topics/o-unknown/consume", 404),
        ("consumer", "GET", "/v1/topics/a%20b/consume", 404),
        ("stranger", "GET", "/v1/topics/a%20b", 404),
    ] {
        assert_eq!(node.send_as(Some((who, PASSWORD)), method, path, "").await.status, status, "{who} {method} {path}");
    }
}

#[tokio::test]
async fn a_list_shows_what_the_caller_may_see_and_goes_on_behind_the_rest() {
    let node = secured_with_users().await;
    for topic in ["o-1", "o-2"] {
        create_as(&node, "owner", topic).await;
    }
    create_as(&node, "childowner", "c-1").await;
    let list = async |who, query: &str| {
        let page = node.send_as(Some((who, PASSWORD)), "GET", &format!("/v1/topics{query}"), "").await.json();
        let names: Vec<String> =
            page["topics"].as_array().expect("a list").iter().map(|topic| topic["name"].as_str().expect("a name").to_owned()).collect();
        (names.join(" "), page["next_page_token"].as_str().expect("a token").to_owned())
    };
    for (who, seen) in
        [("stranger", ""), ("producer", "o-1 o-2"), ("owner", "o-1 o-2"), ("childowner", "c-1"), ("administrator", "c-1 o-1 o-2")]
    {
        assert_eq!(list(who, "").await, (seen.to_owned(), String::new()), "{who}");
    }
    assert_eq!(list("owner", "?limit=1").await, (String::new(), "c-1".to_owned()), "an empty page that is not the last");
    assert_eq!(list("owner", "?limit=1&page_token=c-1").await, ("o-1".to_owned(), "o-1".to_owned()));
}

#[tokio::test]
async fn counters_are_for_users_unless_they_were_opened() {
    let open = Node::start_secured_with(ApiConfig { metrics_unauthenticated: true, ..ApiConfig::default() }).await;
    assert_eq!(open.send_as(None, "GET", "/metrics", "").await.status, 200);
    assert_eq!(open.send_as(None, "GET", "/v1/topics", "").await.status, 401);
}

#[tokio::test]
async fn caps_on_requests_in_flight_are_each_users_own() {
    let node = Node::start_secured_with(ApiConfig { max_consume_in_flight_per_identity: 1, ..ApiConfig::default() }).await;
    node.user("ann", &[("consume", "t")]).await;
    node.user("joe", &[("consume", "t")]).await;
    assert_eq!(node.send_as_root("POST", "/v1/topics", r#"{"name":"t"}"#).await.status, 201);
    let header = crate::support::basic("ann", PASSWORD);
    let mut parked = node.connect().await;
    parked.start("GET", "/v1/topics/t/consume?wait=10s", &[("Authorization", header.as_str())], b"").await;
    let second = async || node.send_as(Some(("ann", PASSWORD)), "GET", "/v1/topics/t/consume", "").await;
    crate::support::until("the consumer is parked", async || second().await.status == 429).await;
    assert_eq!(second().await.refusal(429, "rate_limited"), "too many in-flight consume requests for this identity (limit 1 per node)");
    assert_eq!(node.send_as(Some(("joe", PASSWORD)), "GET", "/v1/topics/t/consume", "").await.status, 204);
}

#[tokio::test]
async fn a_member_asks_the_leader_about_a_topic_only_for_whom_it_could_matter() {
    let node = Node::start_secured_member().await;
    node.user("joe", &[("consume", "o-*")]).await;
    let joe = Some(("joe", PASSWORD));
    node.catalog.set_leaderless(true);
    for (method, path, status) in [
        ("POST", "/v1/topics/o-1/produce", 403),
        ("GET", "/v1/topics/x/consume", 403),
        ("GET", "/v1/topics/o-1/consume", 503),
        ("GET", "/v1/topics/o-1", 503),
        ("DELETE", "/v1/topics/o-1", 503),
    ] {
        assert_eq!(node.send_as(joe, method, path, "").await.status, status, "{method} {path}");
    }
}

#[tokio::test]
async fn a_member_that_is_behind_knows_a_new_user_when_it_has_caught_up_and_asks_before_it_says_that_there_is_none() {
    let node = Node::start_secured_member().await;
    node.catalog.stop_following();
    node.user("joe", &[]).await;
    assert_eq!(node.send_as(Some(("joe", PASSWORD)), "GET", "/v1/topics", "").await.status, 401);
    node.catalog.set_leaderless(true);
    assert!(!node.send_as_root("GET", "/v1/users/joe", "").await.refusal(503, "metadata_unavailable").is_empty());
    node.catalog.set_leaderless(false);
    assert_eq!(node.send_as_root("GET", "/v1/users/joe", "").await.status, 200);
    assert_eq!(node.send_as(Some(("joe", PASSWORD)), "GET", "/v1/topics", "").await.status, 200);
}

#[tokio::test]
async fn what_a_node_that_is_behind_lets_through_the_leader_refuses() {
    for (change, texts) in [
        (
            r#"{"grants":[]}"#,
            [
                "only the owner of topic \"t\" or an admin may modify it",
                "admin privileges required",
                "admin privileges required",
                "create not allowed on this topic",
            ],
        ),
        ("", ["caller unknown to the leader"; 4]),
    ] {
        let node = Node::start_secured_member().await;
        node.user("second", &[("admin", "")]).await;
        assert_eq!(node.send_as_root("POST", "/v1/topics", r#"{"name":"t"}"#).await.status, 201);
        node.catalog.stop_following();
        let changed = match change {
            "" => node.send_as_root("DELETE", "/v1/users/second", "").await,
            grants => node.send_as_root("PUT", "/v1/users/second/grants", grants).await,
        };
        assert!(changed.status < 300, "{}", changed.text());
        let second = Some(("second", PASSWORD));
        for ((method, path, body), text) in [
            ("DELETE", "/v1/topics/t", ""),
            ("PUT", "/v1/users/second/grants", r#"{"grants":[]}"#),
            ("DELETE", "/v1/users/joe", ""),
            ("POST", "/v1/topics", r#"{"name":"u"}"#),
        ]
        .into_iter()
        .zip(texts)
        {
            assert_eq!(node.send_as(second, method, path, body).await.refusal(403, "forbidden"), text, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn a_node_without_a_leader_for_too_long_decides_no_rights_until_there_is_one() {
    let config = ApiConfig { security_stale_after: Duration::from_millis(500), ..ApiConfig::default() };
    let node = Node::start_secured_with(config).await;
    let ask = async || node.send_as_root("GET", "/v1/topics", "").await;
    assert_eq!(ask().await.status, 200);
    node.catalog.set_leaderless(true);
    until("it has been too long", || async { ask().await.status == 503 }).await;
    ask().await.refusal(503, "security_stale");
    node.send_as(None, "GET", "/v1/topics", "").await.refusal(503, "security_stale");
    node.get("/metrics").await.refusal(503, "security_stale");
    assert_eq!(node.get("/healthz").await.status, 200, "it lives");
    node.get("/readyz").await.refusal(503, "not_ready");
    node.catalog.set_leaderless(false);
    until("it is served again", || async { ask().await.status == 200 }).await;
}
