//! No password, no key and no token, and nothing that is stored of one, in any answer and any line of the log; but for a key in the answer that creates it.

use std::fmt::{Debug, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::support::{Node, basic};

/// All that is logged, at any level, in one text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0.lock(), "{field}={value:?} ");
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        span.record(&mut self.clone());
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        values.record(&mut self.clone());
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn no_password_and_no_key_comes_out_again() {
    const CANARY: &str = "canary7351";
    let log = Log::default();
    tracing::subscriber::set_global_default(log.clone()).expect("each test has its process");
    let node = Node::start_secured().await;
    let root = Some(("admin", crate::support::PASSWORD));
    let mut said = String::new();
    for (method, path, body) in [
        ("POST", "/v1/users", format!(r#"{{"username":"joe","password":"{CANARY}"}}"#)),
        ("POST", "/v1/users", format!(r#"{{"username":"joe","password":"{CANARY}"}}"#)),
        ("POST", "/v1/users", format!(r#"{{"username":"j e","password":"{CANARY}"}}"#)),
        ("POST", "/v1/users", format!(r#"{{"username":"ann","password":"{CANARY}","grants":[{{"action":"x"}}]}}"#)),
        ("POST", "/v1/users", format!(r#"{{"username":"ann","password":"{}"}}"#, CANARY.repeat(10))),
        ("POST", "/v1/users", format!(r#"{{"username":"ann","password":["{CANARY}"]}}"#)),
        ("POST", "/v1/users", format!(r#"{{"username":"ann","password":{{"{CANARY}":1}}}}"#)),
        ("POST", "/v1/users", r#"{"username":"ann","password":7351735173517351}"#.to_owned()),
        ("POST", "/v1/users", format!(r#"{{"username":"ann","password":"{CANARY}"#)),
        ("POST", "/v1/users", format!(r#"{{"username":"ann","password":"{CANARY}"}} {{}}"#)),
        ("POST", "/v1/users", format!(r#"{{"password":"{CANARY}"}}"#)),
        ("POST", "/v1/users", format!(r#""{CANARY}""#)),
        ("PUT", "/v1/users/joe/password", format!(r#"{{"new_password":"{CANARY}","current_password":["{CANARY}"]}}"#)),
        ("PUT", "/v1/users/joe/password", format!(r#"{{"new_password":"{CANARY}2"}}"#)),
        ("PUT", "/v1/users/ann/password", format!(r#"{{"new_password":"{CANARY}"}}"#)),
        ("GET", "/v1/users", String::new()),
        ("GET", "/v1/users/joe", String::new()),
        ("GET", "/metrics", String::new()),
    ] {
        let answer = node.send_as(root, method, path, &body).await;
        writeln!(said, "{method} {path} {} {}", answer.status, answer.whole()).expect("a text takes it");
    }
    let wrong = format!("{CANARY}3");
    for (name, password) in [("joe", wrong.as_str()), ("nosuchuser", CANARY), ("j e", CANARY)] {
        let answer = node.send_as(Some((name, password)), "GET", "/v1/topics", "").await;
        assert_eq!(answer.status, 401);
        said.push_str(&answer.whole());
    }
    let joe = format!("{CANARY}2");
    let body = format!(r#"{{"new_password":"{CANARY}4","current_password":"{CANARY}"}}"#);
    let answer = node.send_as(Some(("joe", &joe)), "PUT", "/v1/users/joe/password", &body).await;
    assert_eq!(answer.status, 403, "{}", answer.text());
    said.push_str(&answer.whole());
    node.send_as(root, "POST", "/v1/accounts", r#"{"name":"ci"}"#).await;
    let created = node.send_as(root, "POST", "/v1/accounts/ci/keys", "{}").await;
    let key = created.json()["key"].as_str().expect("a key").to_owned();
    let bearer = format!("Bearer {key}");
    for (header, method, path, body) in [
        (Some(bearer.as_str()), "GET", "/v1/whoami", String::new()),
        (Some(&bearer), "GET", "/v1/users", String::new()),
        (Some(&bearer[..bearer.len() - 1]), "GET", "/v1/whoami", String::new()),
        (Some(&basic("apikey", &key)), "GET", "/v1/whoami", String::new()),
        (Some(&basic("admin", crate::support::PASSWORD)), "GET", "/v1/accounts/ci/keys", String::new()),
        (Some(&basic("admin", crate::support::PASSWORD)), "GET", "/metrics", String::new()),
        (Some(&basic("admin", crate::support::PASSWORD)), "DELETE", "/v1/accounts/ci/keys/AAAAAAAAAAAA", String::new()),
    ] {
        let answer = node.send_with(header, method, path, &body).await;
        writeln!(said, "{method} {path} {} {}", answer.status, answer.whole()).expect("a text takes it");
    }
    crate::tokens::take(&node, &[1]).await;
    let token = crate::tokens::token(1, "joe");
    let (good, bad) = (format!("Bearer {token}"), format!("Bearer {}x", &token[..token.len() - 2]));
    for (header, method, path, status) in [
        (&good, "GET", "/v1/whoami", 200),
        (&good, "GET", "/v1/users", 403),
        (&bad, "GET", "/v1/whoami", 401),
        (&basic("joe", &token), "GET", "/v1/whoami", 401),
    ] {
        let answer = node.send_with(Some(header), method, path, "").await;
        assert_eq!(answer.status, status, "{path}");
        writeln!(said, "{method} {path} {} {}", answer.status, answer.whole()).expect("a text takes it");
    }
    for path in ["/metrics", "/v1/audit", "/v1/audit?kind=denials", "/v1/admin/token-issuer"] {
        said.push_str(&node.send_as(root, "GET", path, "").await.whole());
    }
    let [claims_of_token, signature_of_token] = [1, 2].map(|part| token.split('.').nth(part).expect("three parts"));
    let secret_of_key = &key[key.len() - 36..];
    let view = veena_contract::Catalog::view(&*node.catalog);
    let stored = String::from(view.keys.values().next().expect("a key").hash.clone());
    let view = format!("{view:?}");

    let log = log.0.lock().clone();
    for line in [r#"actor="admin" action="create" user=joe"#, r#"actor="admin" action="set password" user=joe"#] {
        assert!(log.contains(line), "{line}: {log}");
    }
    assert!(log.len() > 1000 && said.len() > 1000 && view.contains("joe"), "something was looked at");
    for (place, text) in [("log", &log), ("answers", &said), ("view", &view)] {
        for secret in [
            CANARY,
            "73517351",
            "argon2",
            &basic("joe", &joe)["Basic ".len()..],
            secret_of_key,
            &stored,
            claims_of_token,
            signature_of_token,
        ] {
            assert!(!text.contains(secret), "{secret} is in the {place}: {text}");
        }
    }
}
