//! A server that answers what the test tells it to, in order, and remembers what it was asked.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, Response, Uri};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use veena_client::Client;

/// One request as received.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: Method,
    pub uri: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// One scripted answer: status, headers, body; status 0 drops the connection.
pub type Scripted = (u16, &'static [(&'static str, &'static str)], &'static str);

#[derive(Default)]
struct Shared {
    answers: Vec<Scripted>,
    asked: Vec<Asked>,
}

pub struct Server {
    shared: Arc<Mutex<Shared>>,
    pub address: String,
    _tasks: JoinSet<()>,
}

impl Server {
    pub async fn start(answers: &[Scripted]) -> Self {
        let shared = Arc::new(Mutex::new(Shared { answers: answers.iter().rev().copied().collect(), asked: Vec::new() }));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = format!("http://{}", listener.local_addr().expect("bound"));
        let app = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, app).await.expect("serves until dropped") });
        Self { shared, address, _tasks: tasks }
    }

    pub fn client(&self) -> Client {
        Client::new(&self.address).expect("a valid address")
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.shared.lock().asked.clone()
    }
}

async fn answer(State(shared): State<Arc<Mutex<Shared>>>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let scripted = {
        let mut shared = shared.lock();
        shared.asked.push(Asked { method, uri: uri.to_string(), headers, body });
        shared.answers.pop()
    };
    let (status, headers, text) = scripted.unwrap_or((599, &[], "nothing more is scripted"));
    if status == 0 {
        // A body that fails before its promised length closes the connection in the client's face.
        let broken = broken_body();
        return Response::builder().status(200).header("content-length", "10").body(broken).expect("a valid answer");
    }
    let mut builder = Response::builder().status(status);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(Body::from(text)).expect("a valid answer")
}

fn broken_body() -> Body {
    struct Broken;
    impl http_body::Body for Broken {
        type Data = Bytes;
        type Error = std::io::Error;

        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, std::io::Error>>> {
            std::task::Poll::Ready(Some(Err(std::io::Error::other("cut"))))
        }
    }
    Body::new(Broken)
}
