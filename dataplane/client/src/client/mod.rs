//! The typed client: one method per route.

mod accounts;
mod audit;
mod cluster;
mod issuer;
mod messages;
mod quota;
mod tenants;
mod topics;
mod users;

use std::net::IpAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use veena_auth::client_tls::{trusting, trusting_nobody};

use crate::bodies::Health;
use crate::error::ClientError;
use crate::headers;
use crate::retry::{self, Kind, Policy};
use crate::routes::Route;

pub use messages::{ProduceOptions, SettleMode};

/// How long one attempt may take, beside any wait it asks for.
const ATTEMPT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Changes of topics are answered after the cluster agreed, which may take this long.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(80);

/// For a change that takes no body.
const NO_BODY: Option<&()> = None;

/// Makes a [`Client`].
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    base: String,
    name: String,
    authorization: Option<HeaderValue>,
    authorities: Option<Vec<u8>>,
    timeout: Duration,
    policy: Policy,
}

impl ClientBuilder {
    /// The name sent as `X-Veena-Client`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// As whom it signs in, with Basic authentication. The password is not printed, and goes to the server of this client alone.
    #[must_use]
    pub fn sign_in(mut self, user: &str, password: &str) -> Self {
        let text = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
        let mut value = HeaderValue::try_from(text).expect("invariant: base64 is a header's value");
        value.set_sensitive(true);
        self.authorization = Some(value);
        self
    }

    /// Certificates (PEM) that are trusted beside the machine's own, for a server whose address begins with `https`.
    #[must_use]
    pub fn trust(mut self, authorities: Vec<u8>) -> Self {
        self.authorities = Some(authorities);
        self
    }

    /// As which service account it signs in: with a key of it. The key is not printed, and goes to the server of this client alone. White
    /// space around it, such as the newline of a file, does not count.
    ///
    /// # Errors
    /// When it cannot be sent as a header, so that it is no key. The error does not show it.
    pub fn api_key(mut self, key: &str) -> Result<Self, ClientError> {
        let invalid = |_| ClientError::invalid("what is given as an API key is none");
        let mut value = HeaderValue::try_from(format!("Bearer {}", key.trim())).map_err(invalid)?;
        value.set_sensitive(true);
        self.authorization = Some(value);
        Ok(self)
    }

    /// As whom it signs in: with a token of the issuer whom the cluster knows. The token is not printed, and goes to the server of this client
    /// alone. White space around it does not count.
    ///
    /// # Errors
    /// When it cannot be sent as a header, so that it is no token. The error does not show it.
    pub fn token(mut self, token: &str) -> Result<Self, ClientError> {
        let invalid = |_| ClientError::invalid("what is given as a token is none");
        let mut value = HeaderValue::try_from(format!("Bearer {}", token.trim())).map_err(invalid)?;
        value.set_sensitive(true);
        self.authorization = Some(value);
        Ok(self)
    }

    /// How long one attempt may take, beside any wait it asks for.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How often a call is repeated where that is certainly safe; 0 is never.
    #[must_use]
    pub fn repeats(mut self, repeats_max: u32) -> Self {
        self.policy.repeats_max = repeats_max;
        self
    }

    /// The client.
    ///
    /// # Errors
    /// When the address is not `http[s]://host[:port][/path]`, the name cannot be sent, or nobody can be trusted.
    pub fn build(self) -> Result<Client, ClientError> {
        let base = Url::parse(&self.base).map_err(|error| ClientError::invalid(format!("server address {:?}: {error}", self.base)))?;
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() || base.query().is_some() {
            return Err(ClientError::invalid(format!("server address {:?}: want http://host:port or https://host:port", self.base)));
        }
        let tls = if base.scheme() == "https" {
            trusting(self.authorities.as_deref()).map_err(|error| ClientError::invalid(error.to_string()))?
        } else {
            trusting_nobody()
        };
        let is_exposed = self.authorization.is_some() && base.scheme() == "http" && !is_loopback(&base);
        let name = HeaderValue::from_str(&self.name).map_err(|_| ClientError::invalid("the client's name cannot be sent as a header"))?;
        let mut defaults = HeaderMap::new();
        defaults.insert(HeaderName::from_static(headers::CLIENT), name.clone());
        // Narad's servers know only their own name for it.
        defaults.insert(HeaderName::from_static(headers::CLIENT_NARAD), name);
        if let Some(authorization) = self.authorization {
            defaults.insert(AUTHORIZATION, authorization);
        }
        let http = reqwest::Client::builder()
            .default_headers(defaults)
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .tls_backend_preconfigured(tls)
            .no_proxy()
            .build()
            .map_err(|error| ClientError::invalid(error.to_string()))?;
        Ok(Client { http, base, is_exposed, timeout: self.timeout, policy: self.policy })
    }
}

/// Speaks to one node. Cheap to clone; clones share connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    is_exposed: bool,
    timeout: Duration,
    policy: Policy,
}

/// Does it stay on this machine what is sent there?
fn is_loopback(base: &Url) -> bool {
    let host = base.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

struct Call {
    kind: Kind,
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Option<Bytes>,
    timeout: Duration,
}

struct Answer {
    kind: Kind,
    status: u16,
    body: Bytes,
    /// Did an earlier attempt end without saying whether it was applied?
    after_uncertain: bool,
}

impl Answer {
    fn json<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        serde_json::from_slice(&self.body)
            .map_err(|error| ClientError::unreadable(self.kind, self.status, format!("the server's answer cannot be read: {error}")))
    }
}

impl Client {
    /// A client with default settings.
    ///
    /// # Errors
    /// When the address is not `http://host[:port][/path]`.
    pub fn new(base: &str) -> Result<Self, ClientError> {
        Self::builder(base).build()
    }

    /// A client with settings.
    #[must_use]
    pub fn builder(base: &str) -> ClientBuilder {
        let name = concat!("veena/", env!("CARGO_PKG_VERSION")).to_owned();
        ClientBuilder {
            base: base.to_owned(),
            name,
            authorization: None,
            authorities: None,
            timeout: ATTEMPT_TIMEOUT_DEFAULT,
            policy: Policy::DEFAULT,
        }
    }

    /// The server's address.
    #[must_use]
    pub fn base(&self) -> &Url {
        &self.base
    }

    /// Do its credentials leave this machine in the clear?
    #[must_use]
    pub fn exposes_credentials(&self) -> bool {
        self.is_exposed
    }

    /// `GET /healthz`: is the process alive?
    ///
    /// # Errors
    /// When it is not, or is shutting down.
    pub async fn health(&self) -> Result<Health, ClientError> {
        self.get_once(Route::new(&self.base, &["healthz"])).await
    }

    /// `GET /readyz`: does the node take work?
    ///
    /// # Errors
    /// When it does not; the text says why.
    pub async fn ready(&self) -> Result<Health, ClientError> {
        self.get_once(Route::new(&self.base, &["readyz"])).await
    }

    /// `GET /metrics`: the metrics, as Prometheus text.
    ///
    /// # Errors
    /// When they are not served here.
    pub async fn metrics(&self) -> Result<String, ClientError> {
        let call = self.call(Kind::Read, Method::GET, Route::new(&self.base, &["metrics"]));
        let answer = self.send(call).await?;
        Ok(String::from_utf8_lossy(&answer.body).into_owned())
    }

    fn v1(&self, segments: &[&str]) -> Route {
        let mut path = vec!["v1"];
        path.extend_from_slice(segments);
        Route::new(&self.base, &path)
    }

    fn call(&self, kind: Kind, method: Method, route: Route) -> Call {
        let timeout = if kind == Kind::Change { self.timeout.max(CHANGE_TIMEOUT) } else { self.timeout };
        Call { kind, method, url: route.url(), headers: HeaderMap::new(), body: None, timeout }
    }

    fn json_call(&self, kind: Kind, method: Method, route: Route, body: &impl Serialize) -> Result<Call, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| ClientError::invalid(error.to_string()))?;
        let mut call = self.call(kind, method, route);
        call.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        call.body = Some(Bytes::from(body));
        Ok(call)
    }

    async fn get<T: DeserializeOwned>(&self, route: Route) -> Result<T, ClientError> {
        self.send(self.call(Kind::Read, Method::GET, route)).await?.json()
    }

    async fn get_bytes(&self, route: Route) -> Result<Vec<u8>, ClientError> {
        Ok(self.send(self.call(Kind::Read, Method::GET, route)).await?.body.into())
    }

    async fn get_once<T: DeserializeOwned>(&self, route: Route) -> Result<T, ClientError> {
        self.attempt(&self.call(Kind::Read, Method::GET, route)).await?.json()
    }

    async fn change<T: DeserializeOwned>(&self, method: Method, route: Route, body: Option<&impl Serialize>) -> Result<T, ClientError> {
        let call = match body {
            Some(body) => self.json_call(Kind::Change, method, route, body)?,
            None => self.call(Kind::Change, method, route),
        };
        self.send(call).await?.json()
    }

    async fn change_nothing_back(&self, method: Method, route: Route) -> Result<(), ClientError> {
        self.send(self.call(Kind::Change, method, route)).await.map(|_| ())
    }

    async fn remove(&self, route: Route) -> Result<(), ClientError> {
        self.change_nothing_back(Method::DELETE, route).await
    }

    async fn send(&self, call: Call) -> Result<Answer, ClientError> {
        let (result, after_uncertain) = self.attempt_all(call).await;
        result.map(|answer| Answer { after_uncertain, ..answer })
    }

    /// Attempts until one succeeds or must not be repeated; says whether any attempt before the last ended uncertain.
    async fn attempt_all(&self, call: Call) -> (Result<Answer, ClientError>, bool) {
        let mut after_uncertain = false;
        let mut repeat = 0;
        loop {
            let error = match self.attempt(&call).await {
                Ok(answer) => return (Ok(answer), after_uncertain),
                Err(error) => error,
            };
            let Some(pause) = self.policy.pause(call.kind, repeat, &error) else {
                return (Err(error), after_uncertain);
            };
            after_uncertain |= retry::is_uncertain(&error);
            repeat += 1;
            tokio::time::sleep(pause).await;
        }
    }

    async fn attempt(&self, call: &Call) -> Result<Answer, ClientError> {
        let mut request = self.http.request(call.method.clone(), call.url.clone()).timeout(call.timeout).headers(call.headers.clone());
        if let Some(body) = &call.body {
            request = request.body(body.clone());
        }
        let response = request.send().await.map_err(|error| ClientError::transport(call.kind, &error))?;
        let status = response.status();
        let header_map = response.headers().clone();
        let body = response.bytes().await.map_err(|error| ClientError::transport(call.kind, &error))?;
        if status.is_success() {
            return Ok(Answer { kind: call.kind, status: status.as_u16(), body, after_uncertain: false });
        }
        Err(ClientError::refusal(call.kind, status.as_u16(), &header_map, &body))
    }
}
