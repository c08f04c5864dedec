//! The rows, one module per resource, and the few words they are written with.

mod accounts;
mod ack;
mod additions;
mod children;
mod cluster;
mod consume;
mod errors;
mod health;
mod keys;
mod produce;
mod produce_batch;
mod replay;
mod rights;
mod schema;
mod topics;
mod topics_change;
mod topics_read;
mod users;

use crate::expect::{Expect, Is, empty, json, plain, refusal, status};
use crate::row::{Profile, Row, Step};
use crate::wire::Request;

/// Every row.
#[must_use]
pub fn rows() -> Vec<Row> {
    [
        topics::rows(),
        topics_read::rows(),
        topics_change::rows(),
        schema::rows(),
        children::rows(),
        produce::rows(),
        produce_batch::rows(),
        consume::rows(),
        replay::rows(),
        ack::rows(),
        health::rows(),
        cluster::rows(),
        errors::rows(),
        additions::rows(),
        keys::rows(),
        rights::rows(),
        users::rows(),
        accounts::rows(),
    ]
    .concat()
}

fn get(target: impl Into<String>) -> Request {
    Request::new("GET", target)
}

fn head(target: impl Into<String>) -> Request {
    Request::new("HEAD", target)
}

fn delete(target: impl Into<String>) -> Request {
    Request::new("DELETE", target)
}

fn post(target: impl Into<String>, body: impl Into<String>) -> Request {
    Request::new("POST", target).header("Content-Type", "application/json").text(body)
}

fn put(target: impl Into<String>, body: impl Into<String>) -> Request {
    Request::new("PUT", target).header("Content-Type", "application/json").text(body)
}

/// As the root admin.
fn by_root(request: Request) -> Request {
    request.by("admin", Profile::ROOT_PASSWORD)
}

/// The root admin is there: it is made when the server has a leader.
fn root_is_there() -> Step {
    by_root(get("/v1/users/admin")).gives(json(200)).until()
}

/// Makes a user of the password `pw` with these grants.
fn user(name: &str, grants: &str) -> Step {
    by_root(post("/v1/users", format!(r#"{{"username":"{name}","password":"pw","grants":[{grants}]}}"#))).gives(json(201))
}

/// A topic of one partition that belongs to the root admin.
fn roots(topic: &str) -> Step {
    by_root(create(format!(r#"{{"name":"{topic}","partitions":1}}"#))).gives(json(201))
}

fn unauthenticated() -> Expect {
    refusal(401, "unauthenticated").says("authentication required").header("WWW-Authenticate", raw(r#"Basic realm="narad""#))
}

fn forbidden(text: &str) -> Expect {
    refusal(403, "forbidden").says(text)
}

fn patch(topic: &str, body: impl Into<String>) -> Request {
    Request::new("PATCH", format!("/v1/topics/{topic}")).header("Content-Type", "application/json").text(body)
}

/// `POST /v1/topics`.
fn create(body: impl Into<String>) -> Request {
    post("/v1/topics", body)
}

/// Creates a topic with these members beside its name (`"partitions":1`).
fn make(name: &str, members: &str) -> Step {
    let comma = if members.is_empty() { "" } else { "," };
    create(format!(r#"{{"name":"{name}"{comma}{members}}}"#)).gives(json(201))
}

/// Creates a topic of one partition.
fn make_one(name: &str) -> Step {
    make(name, r#""partitions":1"#)
}

fn describe(topic: &str) -> Request {
    get(format!("/v1/topics/{topic}"))
}

/// A single produce; `query` without the question mark.
fn send(topic: &str, query: &str, body: impl Into<String>) -> Request {
    Request::new("POST", with_query(format!("/v1/topics/{topic}/produce"), query))
        .header("Content-Type", "application/octet-stream")
        .text(body)
}

/// A single produce that is accepted.
fn sent(topic: &str, query: &str, body: impl Into<String>) -> Step {
    send(topic, query, body).gives(empty(202))
}

/// A single produce that is committed, and so visible, when it is answered.
fn committed(topic: &str, query: &str, body: impl Into<String>) -> Step {
    let query = if query.is_empty() { "wait_for=commit".to_owned() } else { format!("{query}&wait_for=commit") };
    send(topic, &query, body).gives(json(200))
}

fn send_batch(topic: &str, body: impl Into<String>) -> Request {
    post(format!("/v1/topics/{topic}/produce/batch"), body)
}

/// A consume; `query` without the question mark.
fn read(topic: &str, query: &str) -> Request {
    get(with_query(format!("/v1/topics/{topic}/consume"), query)).header("X-Narad-Client", "contract")
}

/// A consume that waits for a message that is on its way.
fn read_soon(topic: &str) -> Request {
    read(topic, "wait=10s")
}

/// Takes one message and keeps its handle as `$h`.
fn lease(topic: &str) -> Step {
    read_soon(topic).gives(json(200)).take("h", "receipt_handle")
}

/// An ack, extend or nack without a body.
fn settle(topic: &str, query: &str) -> Request {
    Request::new("POST", with_query(format!("/v1/topics/{topic}/ack"), query)).header("X-Narad-Client", "contract")
}

fn settle_batch(topic: &str, query: &str, body: impl Into<String>) -> Request {
    post(with_query(format!("/v1/topics/{topic}/ack"), query), body)
}

fn with_query(path: String, query: &str) -> String {
    if query.is_empty() { path } else { format!("{path}?{query}") }
}

/// A 400 whose code says that the request is wrong in itself.
fn bad() -> Expect {
    json(400)
        .field("error", Is::AnyText)
        .field("code", Is::OneOf(&["\"malformed_request\"", "\"invalid_argument\""]))
        .field("effect", Is::Text("none".into()))
}

fn topic_not_found() -> Expect {
    refusal(404, "topic_not_found").says("topic not found")
}

fn lease_lost() -> Expect {
    refusal(410, "lease_lost").says("receipt handle no longer matches an active reservation")
}

/// What a delay that outlasts the parent's retention is answered with: 409 in the newest pages, 400 in older code.
fn delay_conflict() -> Expect {
    json(409).or_status(400).mentions("delay exceeds what the parent's retention can buffer").field("effect", Is::Text("none".into()))
}

/// Nothing there now.
fn nothing() -> Expect {
    empty(204)
}

fn unsupported() -> Expect {
    status(415)
}

fn raw(text: &str) -> Is {
    Is::Raw(text.into())
}
