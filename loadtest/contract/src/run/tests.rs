//! The runner against servers of a few lines: it must see what is wrong.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::*;
use crate::expect::{json, status};

/// Answers every connection with the same bytes until the test ends.
fn server(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let addr = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut seen = Vec::new();
            let mut part = [0; 1024];
            while !seen.windows(4).any(|end| end == b"\r\n\r\n") {
                match stream.read(&mut part) {
                    Ok(count) if count > 0 => seen.extend_from_slice(&part[..count]),
                    _ => break,
                }
            }
            if stream.write_all(answer).is_err() {
                continue;
            }
        }
    });
    addr
}

fn get(path: &str) -> Request {
    Request::new("GET", path)
}

fn report(addr: SocketAddr, rows: &[Row]) -> Report {
    run_rows(addr, rows, &Filter::default())
}

#[test]
fn a_row_that_holds_passes_and_one_that_does_not_is_named() {
    let addr = server(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{\"a\":17}\n");
    let rows = [
        Row::new("holds", "1", vec![get("/").gives(json(200).raw("a", "17")).take("a", "a"), get("/$a").gives(json(200).raw("a", "$a"))]),
        Row::new("does_not_hold", "2", vec![get("/").gives(json(200)), get("/").gives(json(200).raw("a", "18"))]),
        Row::new("has_another_status", "3", vec![get("/").gives(status(404))]),
        Row::new("is_for_another_server", "4", vec![get("/").gives(status(404))]).on(Profile::GuardOff),
    ];
    let report = report(addr, &rows);
    assert_eq!(report.passed, 1);
    let names: Vec<_> = report.failed.iter().map(|failure| failure.name).collect();
    assert_eq!(names, ["does_not_hold", "has_another_status"]);
    assert!(report.failed[0].why.starts_with("step 2: GET /: "), "{}", report.failed[0].why);
    assert!(report.to_string().ends_with("1 passed, 2 failed"), "{report}");
}

#[test]
fn a_chunked_answer_is_read_whole() {
    let addr = server(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    );
    let rows = [Row::new("is_chunked", "1", vec![get("/").gives(crate::expect::plain(200, "abcde"))])];
    assert_eq!(report(addr, &rows).to_string(), "1 passed, 0 failed");
}

#[test]
fn an_answer_cut_short_is_a_failure() {
    let addr = server(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
    let rows = [Row::new("is_cut", "1", vec![get("/").gives(status(200))])];
    let report = report(addr, &rows);
    assert!(report.failed[0].why.contains("the answer broke off"), "{report}");
}

#[test]
fn a_server_that_is_not_there_fails_every_row() {
    let addr = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.local_addr().expect("bound")
    };
    let rows = [Row::new("is_alone", "1", vec![get("/").gives(status(200))])];
    assert!(report(addr, &rows).failed[0].why.contains("no connection"));
}

#[test]
fn a_parked_request_is_compared_when_it_is_joined() {
    let addr = server(b"HTTP/1.1 204 No Content\r\n\r\n");
    let join = |code| Step::Join { slot: "a", expect: status(code), take: Vec::new() };
    let rows = [
        Row::new("is_joined", "1", vec![get("/").park("a"), join(204)]),
        Row::new("is_joined_wrongly", "1", vec![get("/").park("a"), join(200)]),
        Row::new("was_never_parked", "1", vec![join(204)]),
    ];
    let report = report(addr, &rows);
    assert_eq!((report.passed, report.failed.len()), (1, 2), "{report}");
}

#[test]
fn the_filter_looks_at_names_and_sections() {
    let addr = server(b"HTTP/1.1 204 No Content\r\n\r\n");
    let rows = [Row::new("apples", "1.1", vec![]), Row::new("pears", "1.2", vec![]), Row::new("plums", "1.2 apples", vec![])];
    let filter = Filter { contains: Some("apples".into()), ..Filter::default() };
    assert_eq!(run_rows(addr, &rows, &filter).passed, 2);
}
