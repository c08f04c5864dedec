//! A node to talk to, and a client that writes its bytes by hand.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use veena_api::{ApiConfig, ApiParts, ApiState};
use veena_auth::{ApiKey, Authenticator, KeyKind, Password, PasswordHash, ServerTls};
use veena_broker::Broker;
use veena_broker::ports::{BrokerConfig, BrokerPorts};
use veena_broker::tasks::Tasks;
use veena_contract::{
    BoxFuture, Catalog, CatalogView, CatalogWriter as _, Command, Entropy, ForgetError, GrantText, Grants, KeyRecord, LeaderPort, LogIndex,
    Member, Members, NodeDirectory, NodeId, Note, Obstacle, ObstacleCode, Origin, PeerAddr, ProposeError, Standing, TenantId, TenantState,
    UserKind, UserRecord, Username, WallClock, Witness, limits,
};
use veena_metastore::{MemLog, Metastore, MetastoreConfig, Runtime};
use veena_storage::disk::Disk;
use veena_storage::disk::mem::MemDisk;
use veena_storage::io::Io;

use crate::documented;

/// Seeded randomness (splitmix64).
pub struct Seeded(AtomicU64);

impl Entropy for Seeded {
    fn next_u64(&self) -> u64 {
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

struct TestClock(tokio::time::Instant);

impl WallClock for TestClock {
    fn now_ms(&self) -> u64 {
        1_700_000_000_000 + u64::try_from(self.0.elapsed().as_millis()).expect("a short test")
    }
}

/// A catalog that can be behind; the leader knows better, if there is one.
pub struct Behind {
    newest: Arc<Metastore>,
    /// What is seen while it is behind.
    shown: watch::Sender<Option<Arc<CatalogView>>>,
    is_leaderless: AtomicBool,
}

impl Behind {
    /// From here on nothing new is seen, until the leader has been asked.
    pub fn stop_following(&self) {
        self.shown.send_replace(Some(self.newest.view()));
    }

    /// The metadata as it is.
    pub fn newest(&self) -> &Metastore {
        &self.newest
    }

    /// While there is no leader, nothing can be confirmed.
    pub fn set_leaderless(&self, is_leaderless: bool) {
        self.is_leaderless.store(is_leaderless, Ordering::Relaxed);
    }
}

impl Catalog for Behind {
    fn view(&self) -> Arc<CatalogView> {
        self.shown.borrow().clone().unwrap_or_else(|| self.newest.view())
    }

    fn changed(&self, seen: LogIndex) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.newest.changed(seen).await;
            self.shown.subscribe().wait_for(Option::is_none).await.expect("invariant: the sender lives here");
        })
    }
}

impl LeaderPort for Behind {
    fn confirmed_view(&self) -> BoxFuture<'_, Result<Arc<CatalogView>, ProposeError>> {
        if self.is_leaderless.load(Ordering::Relaxed) {
            return Box::pin(async { Err(ProposeError::Unavailable { reason: "there is no leader".into() }) });
        }
        self.shown.send_replace(None);
        self.newest.confirmed_view()
    }

    fn not_ready_reason(&self) -> Option<String> {
        if self.is_leaderless.load(Ordering::Relaxed) { Some("no leader".to_owned()) } else { self.newest.not_ready_reason() }
    }
}

/// The name of another member, which is silent and may leave.
pub const LEAVER: &str = "leaver";

/// A cluster of one that has ever answered, which may be none any more.
struct OnlyMember(NodeId, watch::Sender<bool>, Arc<Metastore>);

impl NodeDirectory for OnlyMember {
    fn nodes(&self) -> Vec<NodeId> {
        vec![self.0.clone()]
    }

    fn address_of(&self, _: &NodeId) -> Option<PeerAddr> {
        None
    }
}

impl Members for OnlyMember {
    fn members(&self, _within: Duration) -> BoxFuture<'_, Vec<Member>> {
        let peer = PeerAddr { node: self.0.clone(), addr: Arc::from("nowhere") };
        Box::pin(async {
            vec![Member { peer, is_alive: true, is_ready: true, is_voter: true, is_leader: Some(true), silent: Duration::ZERO }]
        })
    }

    fn standing(&self, node: &NodeId) -> Standing {
        match &*node.0 {
            LEAVER => Standing::Dead,
            _ if *node == self.0 => Standing::Alive,
            _ => Standing::NotAMember,
        }
    }

    fn is_voter(&self, node: &NodeId) -> bool {
        *node == self.0
    }

    fn status(&self, _: &NodeId) -> BoxFuture<'_, Result<Bytes, String>> {
        Box::pin(std::future::ready(Err("there is no other".to_owned())))
    }

    fn obstacles(&self, node: &NodeId) -> Vec<Obstacle> {
        if *node.0 == *LEAVER {
            return Vec::new();
        }
        let message = "0 voters would be left".to_owned();
        vec![Obstacle { code: ObstacleCode::BelowMinVoters, message, is_lasting: true }]
    }

    /// As a node does it: recorded first.
    fn forget(&self, node: &NodeId, origin: Origin) -> BoxFuture<'_, Result<bool, ForgetError>> {
        let (is_leaver, note) = (*node.0 == *LEAVER, Command::Note { what: Note::ForgetMember { node: node.clone() } });
        Box::pin(async move {
            if !is_leaver {
                return Err(ForgetError::Oneself);
            }
            self.2.propose_from(origin, note).await.expect("recorded");
            Ok(true)
        })
    }

    fn not_ready_reason(&self) -> Option<String> {
        None
    }

    fn taken_out(&self) -> Option<&'static str> {
        self.1.borrow().then_some("this node was taken out")
    }

    fn until_taken_out(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.1.subscribe().wait_for(|is_out| *is_out).await.expect("invariant: the sender lives here");
        })
    }
}

/// The password of every user that a test makes.
pub const PASSWORD: &str = "correct horse";

/// One computation for all of them.
static HASH: LazyLock<PasswordHash> = LazyLock::new(|| {
    let password = Password::new(PASSWORD.to_owned()).expect("a password");
    PasswordHash::compute(&password).expect("random")
});

/// The value of an `Authorization` header.
pub fn basic(name: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{name}:{password}")))
}

/// The same with a key.
pub fn bearer(key: &ApiKey) -> String {
    format!("Bearer {}", key.expose())
}

/// A key of the same id that was never given out, with a checksum that is right.
pub fn forged(of: &ApiKey) -> ApiKey {
    const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut text = format!("veena_sk_{}_{}", of.id(), "x".repeat(30));
    let mut rest = crc32fast::hash(text.as_bytes()) as usize;
    let mut sum = Vec::new();
    for _ in 0..6 {
        sum.insert(0, char::from(ALPHABET[rest % 62]));
        rest /= 62;
    }
    text.extend(sum);
    let forged = ApiKey::parse(&text).expect("a key, as far as its form goes");
    assert!(forged.id() == of.id() && !forged.is(&of.hash()));
    forged
}

/// Action and pattern of each grant.
fn granted(grants: &[(&str, &str)]) -> Grants {
    let text = |(action, pattern): &(&str, &str)| GrantText {
        action: (*action).to_owned(),
        patterns: Some((*pattern).to_owned()).filter(|pattern| !pattern.is_empty()).into_iter().collect(),
    };
    Grants::parse(&grants.iter().map(text).collect::<Vec<_>>()).expect("grants")
}

/// A node with its HTTP plane listening. Ends when dropped.
pub struct Node {
    pub address: SocketAddr,
    pub shutdown: CancellationToken,
    /// The same plane without sockets.
    pub router: axum::Router,
    pub disk: MemDisk,
    pub catalog: Arc<Behind>,
    pub state: ApiState,
    /// Was it taken out of its cluster?
    pub is_out: watch::Sender<bool>,
    serving: JoinSet<std::io::Result<()>>,
}

impl Node {
    pub async fn start() -> Self {
        Self::start_with(ApiConfig::default()).await
    }

    pub async fn start_with(config: ApiConfig) -> Self {
        Self::start_as(ApiConfig { security_enabled: false, ..config }, false).await
    }

    /// With security on, and the root admin, whose password is [`PASSWORD`].
    pub async fn start_secured() -> Self {
        Self::start_secured_with(ApiConfig::default()).await
    }

    pub async fn start_secured_with(config: ApiConfig) -> Self {
        let node = Self::start_as(ApiConfig { security_enabled: true, ..config }, false).await;
        node.user(Username::ROOT, &[]).await;
        node
    }

    /// As a member of a cluster.
    pub async fn start_member() -> Self {
        Self::start_as(ApiConfig { security_enabled: false, ..ApiConfig::default() }, true).await
    }

    /// As a member of a cluster, with security on and the root admin.
    pub async fn start_secured_member() -> Self {
        let node = Self::start_as(ApiConfig::default(), true).await;
        node.user(Username::ROOT, &[]).await;
        node
    }

    /// A tenant.
    pub async fn tenant(&self, name: &str) {
        let tenant = TenantId::parse(name).expect("a name");
        let put = Command::PutTenant { tenant, state: TenantState::Active, revision: None, at_ms: 1, by_hand: false };
        self.catalog.newest().propose(put).await.expect("created");
    }

    /// A user whose password is [`PASSWORD`], `name` or `name@tenant`: action and pattern of each grant.
    pub async fn user(&self, name: &str, grants: &[(&str, &str)]) {
        self.user_of_kind(UserKind::Person, name, grants).await;
    }

    /// A service account, `name` or `name@tenant`.
    pub async fn account(&self, name: &str, grants: &[(&str, &str)]) {
        self.user_of_kind(UserKind::Service, name, grants).await;
    }

    /// A key of a service account.
    pub async fn key(&self, account: &str, scopes: Option<&[(&str, &str)]>, expires_at_ms: Option<u64>) -> ApiKey {
        let key = ApiKey::random(KeyKind::Service).expect("random");
        let (account, tenant) = account.split_once('@').unwrap_or((account, TenantId::DEFAULT));
        let record = KeyRecord {
            id: key.id(),
            tenant: TenantId::parse(tenant).expect("a name"),
            username: Username::parse(account).expect("a name"),
            hash: key.hash(),
            scopes: scopes.map(granted),
            created_at_ms: 1,
            created_by: None,
            expires_at_ms,
            description: None,
        };
        self.catalog.newest().propose(Command::CreateKey { key: record }).await.expect("created");
        key
    }

    async fn user_of_kind(&self, kind: UserKind, name: &str, grants: &[(&str, &str)]) {
        let (name, tenant) = name.split_once('@').unwrap_or((name, TenantId::DEFAULT));
        let user = UserRecord {
            tenant: TenantId::parse(tenant).expect("a name"),
            username: Username::parse(name).expect("a name"),
            kind,
            hash: kind.is_person().then(|| HASH.clone().into()),
            grants: granted(grants),
            is_root: name == Username::ROOT && tenant == TenantId::DEFAULT,
            created_at_ms: 1,
            updated_at_ms: 1,
            revision: 0,
        };
        self.catalog.newest().propose(Command::CreateUser { user }).await.expect("created");
    }

    /// Deletes what the metadata has of a tenant, as the leader does once the tenant is to be deleted.
    pub async fn empty(&self, tenant: &str) {
        let (tenant, view) = (TenantId::parse(tenant).expect("a name"), self.catalog.newest().view());
        let topics =
            view.topics_of(&tenant).map(|topic| Command::DeleteTopic { tenant: tenant.clone(), name: topic.name.clone(), id: topic.id });
        let users = view.users_of(&tenant).map(|user| Command::DeleteUser {
            tenant: tenant.clone(),
            username: user.username.clone(),
            kind: user.kind,
            by_hand: false,
        });
        for command in topics.chain(users) {
            self.catalog.newest().propose(command).await.expect("deleted");
        }
    }

    /// Forgets a tenant of which nothing is left, as the leader does.
    pub async fn gone(&self, tenant: &str, created_at_ms: u64) {
        let tenant = TenantId::parse(tenant).expect("a name");
        self.catalog.newest().propose(Command::TenantGone { tenant, created_at_ms }).await.expect("nothing was left");
    }

    /// The names in a directory.
    pub fn disk_names(&self, dir: &str) -> Vec<String> {
        self.disk.list(dir.as_ref()).expect("it is there").into_iter().map(|entry| entry.name).collect()
    }

    /// Sends a request as this user, or as nobody.
    pub async fn send_as(&self, user: Option<(&str, &str)>, method: &str, path: &str, body: &str) -> Answer {
        let credentials = user.map(|(name, password)| basic(name, password));
        self.send_with(credentials.as_deref(), method, path, body).await
    }

    /// Sends a request with this `Authorization` header, or without.
    pub async fn send_with(&self, credentials: Option<&str>, method: &str, path: &str, body: &str) -> Answer {
        let mut headers = vec![("Content-Type", "application/json")];
        headers.extend(credentials.map(|value| ("Authorization", value)));
        self.connect().await.request(method, path, &headers, body.as_bytes()).await
    }

    /// Sends a request as the root admin.
    pub async fn send_as_root(&self, method: &str, path: &str, body: &str) -> Answer {
        self.send_as(Some((Username::ROOT, PASSWORD)), method, path, body).await
    }

    /// With security on, and nothing kept that was set aside.
    pub async fn start_secured_emptying() -> Self {
        let node = Self::start_keeping(ApiConfig { security_enabled: true, ..ApiConfig::default() }, false, 0).await;
        node.user(Username::ROOT, &[]).await;
        node
    }

    async fn start_as(config: ApiConfig, is_member: bool) -> Self {
        Self::start_keeping(config, is_member, limits::QUARANTINE_BYTES_MAX).await
    }

    async fn start_keeping(config: ApiConfig, is_member: bool, quarantine_bytes_max: u64) -> Self {
        let node = Self::start_any(config, is_member, quarantine_bytes_max, None).await;
        until("the node is ready", || async { node.get("/readyz").await.status == 200 }).await;
        node
    }

    /// With TLS towards clients, and security off. Whether it is ready is not asked.
    pub async fn start_tls(config: ApiConfig, tls: Arc<ServerTls>) -> Self {
        Self::start_any(ApiConfig { security_enabled: false, ..config }, false, limits::QUARANTINE_BYTES_MAX, Some(tls)).await
    }

    async fn start_any(config: ApiConfig, is_member: bool, quarantine_bytes_max: u64, tls: Option<Arc<ServerTls>>) -> Self {
        let entropy: Arc<dyn Entropy> = Arc::new(Seeded(AtomicU64::new(7)));
        let clock: Arc<dyn WallClock> = Arc::new(TestClock(tokio::time::Instant::now()));
        let node = NodeId(Arc::from("node-1"));
        let runtime = Runtime::new(Arc::clone(&entropy)).with_clock(Arc::clone(&clock));
        let log = MemLog::new();
        let metastore = Metastore::start(MetastoreConfig::new(node.clone()), log, runtime).await.expect("the metastore starts");
        let metastore = Arc::new(metastore);
        let is_leaderless = AtomicBool::new(false);
        let catalog = Arc::new(Behind { newest: Arc::clone(&metastore), shown: watch::channel(None).0, is_leaderless });
        let (disk, is_out) = (MemDisk::new(), watch::Sender::new(false));
        let mut broker_config = BrokerConfig::new("/data".into());
        broker_config.wal.segment_bytes = 8 * 1024 * 1024;
        broker_config.disk_reserve_bytes = 0;
        broker_config.quarantine_bytes_max = quarantine_bytes_max;
        if quarantine_bytes_max == 0 {
            broker_config.retention_check_ms = 50;
        }
        disk.create_dir_all(&broker_config.data_dir).expect("a data directory");
        let ports = BrokerPorts {
            disk: Arc::new(disk.clone()),
            write_io: Io::threads(4),
            read_io: Io::threads(4),
            catalog: catalog.clone(),
            writer: metastore.clone(),
            witness: Witness::new(catalog.clone()),
            clock: Arc::clone(&clock),
            entropy: Arc::clone(&entropy),
            tasks: Tasks::new(Handle::current()),
            peers: None,
        };
        let broker = Broker::open(broker_config, ports).await.expect("the engine opens");
        let parts = ApiParts {
            broker,
            catalog: catalog.clone(),
            writer: metastore.clone(),
            leader: catalog.clone(),
            clock,
            entropy,
            authenticator: Authenticator::new().expect("random"),
            tls,
            cluster: is_member.then(|| Arc::new(OnlyMember(node.clone(), is_out.clone(), Arc::clone(&metastore))) as Arc<dyn Members>),
            node,
            version: "0.0.0",
        };
        let state = ApiState::new(config, parts);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let shutdown = CancellationToken::new();
        let mut serving = JoinSet::new();
        let router = veena_api::router(state.clone());
        serving.spawn(veena_api::serve(listener, state.clone(), shutdown.clone()));
        Self { address, shutdown, router, disk, catalog, state, is_out, serving }
    }

    /// Waits until the plane has stopped by itself.
    pub async fn stopped(&mut self) {
        let ended = tokio::time::timeout(Duration::from_secs(30), self.serving.join_next()).await;
        ended.expect("it stops").expect("it was serving").expect("no panic").expect("no error");
    }

    pub async fn connect(&self) -> Client {
        Client { stream: TcpStream::connect(self.address).await.expect("listening"), rest: Vec::new() }
    }

    /// From another address of this machine.
    pub async fn connect_from(&self, address: [u8; 4]) -> Client {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind((address, 0).into()).expect("every 127 is this machine's");
        Client { stream: socket.connect(self.address).await.expect("listening"), rest: Vec::new() }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.connect().await.request("GET", path, &[], b"").await
    }

    pub async fn send(&self, method: &str, path: &str, body: impl AsRef<[u8]>) -> Answer {
        self.connect().await.request(method, path, &[("Content-Type", "application/json")], body.as_ref()).await
    }

    pub async fn topic(&self, body: &str) {
        let answer = self.send("POST", "/v1/topics", body).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
    }

    pub async fn produce(&self, topic: &str, payload: &str) {
        let answer = self.send("POST", &format!("/v1/topics/{topic}/produce"), payload).await;
        assert_eq!(answer.status, 202, "{}", answer.text());
    }

    /// One leased message, waited for.
    pub async fn consume(&self, topic: &str) -> Value {
        let answer = self.get(&format!("/v1/topics/{topic}/consume?wait=10s")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    /// The value of one line of the metrics.
    pub async fn metric(&self, line: &str) -> u64 {
        let text = self.get("/metrics").await.text();
        text.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok()).unwrap_or(0)
    }
}

/// Waits for a condition, with a deadline.
pub async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline, "not within the deadline: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// One connection.
pub struct Client {
    pub stream: TcpStream,
    rest: Vec<u8>,
}

impl Client {
    pub async fn raw(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.expect("the node takes bytes");
    }

    /// Starts a request without waiting for its answer.
    pub async fn start(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: test\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() || method != "GET" {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        self.raw(bytes).await;
    }

    pub async fn request(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.start(method, path, headers, body).await;
        let answer = self.answer(method == "HEAD").await;
        documented::check(method, path, &answer);
        answer
    }

    /// Reads one answer.
    pub async fn answer(&mut self, is_head: bool) -> Answer {
        let end = loop {
            if let Some(end) = self.rest.windows(4).position(|four| four == b"\r\n\r\n") {
                break end;
            }
            assert!(self.read().await > 0, "the connection ended within a head: {:?}", String::from_utf8_lossy(&self.rest));
        };
        let head = String::from_utf8(self.rest.drain(..end + 4).collect()).expect("a head is text");
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|code| code.parse().ok()).expect("a status line");
        let headers: Vec<(String, String)> =
            lines.filter_map(|line| line.split_once(": ").map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))).collect();
        let mut answer = Answer { status, headers, body: Vec::new() };
        let length = answer.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        if !is_head {
            while self.rest.len() < length {
                assert!(self.read().await > 0, "the connection ended within a body");
            }
            answer.body = self.rest.drain(..length).collect();
        }
        answer
    }

    async fn read(&mut self) -> usize {
        let mut buffer = vec![0; 64 * 1024];
        let read = tokio::time::timeout(Duration::from_secs(30), self.stream.read(&mut buffer)).await;
        let count = read.expect("an answer within the deadline").unwrap_or(0);
        self.rest.extend_from_slice(&buffer[..count]);
        count
    }

    /// Does the node close the connection, with nothing more to say?
    pub async fn is_closed(&mut self) -> bool {
        self.rest.is_empty() && self.read().await == 0
    }
}

/// One answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        assert_eq!(self.header("content-type"), Some("application/json"));
        assert!(self.body.ends_with(b"\n"));
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// All that came, for a search.
    pub fn whole(&self) -> String {
        format!("{:?} {}", self.headers, self.text())
    }

    /// The text of a refusal, after checking its form.
    pub fn refusal(&self, status: u16, code: &str) -> String {
        assert_eq!(self.status, status, "{}", self.text());
        let body = self.json();
        assert_eq!(body["code"], code, "{body}");
        assert_eq!(body["instance"].as_str().map(str::len), Some(16));
        assert!(body["retryable"].is_boolean() && body["effect"].is_string());
        assert_eq!(self.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(self.header("retry-after").is_some(), matches!(status, 429 | 503) && body["retryable"] == true);
        body["error"].as_str().expect("a text").to_owned()
    }
}
