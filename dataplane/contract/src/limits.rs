//! Every bound of the data plane, in one place. Units come last in a name. Relations between bounds are asserted at compile time.

/// The largest message, before any encoding (http-contract 3).
pub const MESSAGE_BYTES_MAX: usize = 1024 * 1024;
/// The longest message key.
pub const KEY_BYTES_MAX: usize = 32 * 1024;
/// The longest name of a message header.
pub const HEADER_NAME_BYTES_MAX: usize = 64;
/// How many headers one message may carry.
pub const HEADERS_MAX: usize = 32;
/// How large the headers of one message may be, names and values together.
pub const HEADERS_BYTES_MAX: usize = 8 * 1024;
/// The longest topic name.
pub const TOPIC_NAME_BYTES_MAX: usize = 200;
/// How many children one topic may have.
pub const CHILDREN_MAX: usize = 108;
/// The longest delay of a child: one year.
pub const DELAY_MS_MAX: u64 = 31_536_000_000;
/// The shortest finite retention: one hour.
pub const RETENTION_MS_MIN: u64 = 3_600_000;
/// The smallest finite retention by size.
pub const RETENTION_BYTES_MIN: u64 = 64 * 1024 * 1024;
/// The longest window in which an idempotency key is remembered.
pub const DEDUP_WINDOW_MS_MAX: u64 = 3_600_000;
/// The window in which an idempotency key is remembered, unless a topic says otherwise.
pub const DEDUP_WINDOW_MS_DEFAULT: u64 = 300_000;
/// The longest idempotency key.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;
/// What one remembered idempotency key takes in memory, whatever its length.
pub const DEDUP_KEY_BYTES: usize = 160;
/// How many bytes of idempotency keys one partition remembers; over it, a produce with a key is refused until the oldest ones end.
pub const DEDUP_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The same, in keys.
pub const DEDUP_KEYS_MAX: usize = DEDUP_BYTES_MAX / DEDUP_KEY_BYTES;
/// How many messages one batch produce may carry.
pub const PRODUCE_BATCH_MESSAGES_MAX: usize = 1000;
/// How large the body of a batch produce may be, as sent and as decoded.
pub const PRODUCE_BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The largest window a packed batch produce may ask for, as a power of two: more than a whole body is never needed.
pub const PRODUCE_BATCH_ZSTD_WINDOW_LOG_MAX: u32 = 24;
/// A batch produce up to this size needs no room in the node's budget for bodies in flight.
pub const PRODUCE_BATCH_FREE_BYTES_MAX: usize = 1024 * 1024;
/// How many messages one consume may answer.
pub const CONSUME_BATCH_MESSAGES_MAX: usize = 100;
/// How many bytes of keys and payloads one batch consume scans.
pub const CONSUME_SCAN_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How large the answer to a batch consume may be.
pub const CONSUME_ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;
/// How many receipt handles one batch ack may carry.
pub const ACK_BATCH_HANDLES_MAX: usize = 100;
/// How large the body of a batch ack may be.
pub const ACK_BATCH_BYTES_MAX: usize = 64 * 1024;
/// How large a JSON request body may be unless its route says otherwise.
pub const JSON_BODY_BYTES_MAX: usize = 1024 * 1024;
/// How long a whole body may take, however steadily it trickles.
pub const BODY_MS_MAX: u64 = 60_000;
/// How many header lines a request may have. More than hyper's 100, which it would keep on the stack: up to some 2000 the two tables that it
/// allocates for each head instead cost about 80 ns together, untouched; from 4096 on the allocator maps fresh pages and a head costs 10 µs.
pub const HEADER_LINES_MAX: usize = 1024;
/// How long a closing connection keeps reading what its client still sends.
pub const LINGER_MS_MAX: u64 = 5_000;
/// How many bytes a closing connection reads of what its client still sends.
pub const LINGER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How many lines are logged about failed requests in each [`FAILURE_LINES_WINDOW_MS`]; the others are counted.
pub const FAILURE_LINES_MAX: u32 = 10;
/// The window of [`FAILURE_LINES_MAX`].
pub const FAILURE_LINES_WINDOW_MS: u64 = 60_000;
/// A JSON payload nested deeper than this is served as a string: embedded, it would break its reader's parser, and with it the whole answer.
pub const EMBED_DEPTH_MAX: usize = 1000;
/// The longest lease. One that outlives a year is a mistake, and its deadline has to stay a point in time.
pub const VISIBILITY_TIMEOUT_MS_MAX: u64 = 31_536_000_000;
/// How many topics one page of a listing holds.
pub const LIST_PAGE_MAX: usize = 1000;
/// How many topics one page of a listing holds unless the caller says otherwise.
pub const LIST_PAGE_DEFAULT: usize = 100;
/// How large a JSON Schema document may be.
pub const SCHEMA_BYTES_MAX: usize = 256 * 1024;
/// How deep a JSON Schema document may nest.
pub const SCHEMA_DEPTH_MAX: usize = 64;
/// How many versions one topic's schema may have.
pub const SCHEMA_VERSIONS_MAX: usize = 1000;
/// How large all schema versions of one topic may be.
pub const SCHEMA_TOPIC_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How many parts of a schema may apply to one place of a value.
pub const SCHEMA_PATHS_MAX: usize = 64;
/// How many different situations of a schema are explored to find out what a check costs; one with more is refused.
pub const SCHEMA_SITUATIONS_MAX: usize = 2_000;
/// How many steps that exploration takes; a schema that needs more is refused.
pub const SCHEMA_WORK_STEPS_MAX: usize = 400_000;
/// How large a compiled pattern of a schema may be.
pub const SCHEMA_PATTERN_BYTES_MAX: usize = 512 * 1024;
/// How long a text about a schema may be, since it quotes what clients wrote.
pub const SCHEMA_TEXT_BYTES_MAX: usize = 2048;
/// How long a large payload waits for its turn to be checked.
pub const SCHEMA_SLOT_WAIT_MS_MAX: u64 = 5_000;
/// How many compiled schemas a node keeps.
pub const SCHEMAS_COMPILED_MAX: usize = 1024;
/// How large all schema versions of a cluster may be.
pub const SCHEMA_CLUSTER_BYTES_MAX: usize = 256 * 1024 * 1024;
/// How deep a payload that is validated may nest.
pub const PAYLOAD_DEPTH_MAX: usize = 256;
/// How large the exponent of a number in a validated payload may be.
pub const PAYLOAD_EXPONENT_MAX: u64 = 1000;
/// The largest number of partitions a topic may have, unless configured otherwise.
pub const PARTITIONS_MAX_DEFAULT: u32 = 108;
/// How many topics one tenant may have on a cluster.
pub const TOPICS_MAX: usize = 100_000;

/// How many bytes of records may wait in the WAL's staging area; over it, produce is refused.
pub const WAL_STAGED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How long a staged record waits for its sync before its sender is told that the outcome is unknown.
pub const WAL_OUTCOME_WAIT_MS: u64 = 10_000;
/// A WAL that has synced nothing for this long while records wait takes no more of them.
pub const WAL_STALL_MS: u64 = 5_000;
/// The size of one WAL segment, pre-written and recycled.
pub const WAL_SEGMENT_BYTES: u64 = 64 * 1024 * 1024;
/// How many clean WAL segments are kept for reuse.
pub const WAL_SEGMENTS_SPARE_MAX: usize = 4;
/// A fully dispatched active WAL segment is recycled once it holds this much.
pub const WAL_ROTATE_BYTES_MIN: u64 = 1024 * 1024;
/// How many bytes of undispatched WAL one node keeps on disk; over it, produce is refused.
pub const WAL_LIVE_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;
/// The largest record in a WAL.
pub const WAL_RECORD_BYTES_MAX: usize = 2 * 1024 * 1024;
/// How many places are remembered where readers of the WAL stopped.
pub const WAL_READ_HINTS_MAX: usize = 8;
/// How much of a former life's records is read from the WAL at once.
pub const BACKLOG_PIECE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// How long new records wait for those of former lives while these cannot be read on.
pub const BACKLOG_ORDER_WAIT_MS_MAX: u64 = 5_000;
/// A destination with this many records waiting is not paced.
pub const DISPATCH_PACED_RECORDS_MAX: usize = 512;
/// How many undispatched bytes of records one node keeps in memory; over it, produce is refused.
pub const UNDISPATCHED_NODE_BYTES_MAX: usize = 192 * 1024 * 1024;
/// How many undispatched bytes one partition may have; over it, produce to that partition is refused.
pub const UNDISPATCHED_PARTITION_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How many undispatched bytes one tenant may have at one node, those in files included; over it, produce to its partitions that take nothing
/// is refused: a half of what may be in files, so that a tenant whose owners are away leaves room for others.
pub const UNDISPATCHED_TENANT_BYTES_MAX: u64 = PARKED_NODE_BYTES_MAX / 2;
/// A destination that failed this many passes in a row is parked when it is in the way: some two seconds after the first error.
pub const PARK_AFTER_PASSES: u32 = 6;
/// A destination whose pass is under way for this long is parked when it is in the way.
pub const PARK_AFTER_MS: u64 = 5_000;
/// A destination is in the way when it keeps more than this part of [`WAL_LIVE_BYTES_MAX`] from being recycled: a quarter.
pub const PARK_WAL_SHARE: u64 = 4;
/// A destination is in the way when more than this part of [`UNDISPATCHED_NODE_BYTES_MAX`] is in memory: a half. The reader of a former
/// life's records stops at the same mark.
pub const PARK_MEMORY_SHARE: usize = 2;
/// Records of an owner that is away go to another partition after this many passes that failed in a row.
pub const REROUTE_AFTER_PASSES: u32 = 3;
/// How many bytes of bodies are accepted anew for another partition at once.
pub const REROUTE_BYTES_MAX: usize = 1024 * 1024;
/// How many partitions have records accepted anew at once: beside them there is room in the WAL for what is produced.
pub const REROUTES_AT_ONCE_MAX: usize = 8;
/// How long an owner is waited for when it is asked whether it is there, and how long one that was not is not asked again.
pub const REROUTE_PROBE_MS: u64 = 1_000;
/// How many files one partition's parked records are in before they become one.
pub const PARKED_FILES_PER_PARTITION_MAX: usize = 16;
/// How many bytes of parked records one node keeps on disk; over it, nothing more is parked.
pub const PARKED_NODE_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;

/// The size at which a partition's active segment is sealed.
pub const SEGMENT_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// How many record bytes one frame holds, before compression.
pub const FRAME_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How many records one frame holds.
pub const FRAME_RECORDS_MAX: usize = 4096;
/// How many bytes of records one owner commit takes.
pub const COMMIT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// How many records one owner commit takes.
pub const COMMIT_RECORDS_MAX: usize = 16_384;
/// How many partition syncs run at once on one node.
pub const PARTITION_SYNCS_MAX: usize = 16;
/// How many bytes of owner-synchronous produces may wait for one partition's writer.
pub const COMMIT_INBOX_BYTES_MAX: usize = 32 * 1024 * 1024;
/// How many reads run at once on one node; apart from writes, so that no commit waits for a reader.
pub const READS_MAX: usize = 16;
/// How many sealed segments of one log are open at once.
pub const SEALED_SEGMENTS_OPEN_MAX: usize = 4;
/// How many streams one log keeps marks of; over it, an unknown stream is refused until others are finished.
pub const STREAMS_PER_LOG_MAX: usize = 65_536;
/// The largest file of a stream table that is read. The owner bounds the table far below.
pub const STREAM_TABLE_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// The largest value of a small durable file.
pub const CELL_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How long a log that cannot be opened is left alone before it is tried again.
pub const REOPEN_WAIT_MS_MAX: u64 = 10_000;
/// How many bytes of decoded frames a node keeps for readers.
pub const READ_CACHE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How many bytes wait in quarantine before the oldest go.
pub const QUARANTINE_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// How long what is destroyed waits in quarantine, unless there is too much of it.
pub const QUARANTINE_GRACE_MS: u64 = 3_600_000;
/// How many bytes of sealed segments a node reads again per second to find damage before a consumer does.
pub const SCRUB_BYTES_PER_SECOND: u64 = 8 * 1024 * 1024;
/// A segment is read again for damage at most this often: once a day.
pub const SCRUB_PASS_MS: u64 = 86_400_000;

/// The longest key in the settle journal.
pub const SETTLE_KEY_BYTES_MAX: usize = 64;
/// The largest value in the settle journal.
pub const SETTLE_VALUE_BYTES_MAX: usize = 1024 * 1024;
/// How often settle state is appended to the settle journal.
pub const SETTLE_APPEND_MS: u64 = 100;
/// How often the settle journal is synced, unless configured otherwise.
pub const SETTLE_SYNC_MS_DEFAULT: u64 = 1000;
/// How many consumers may be parked on one topic of one node.
pub const WAITERS_PER_TOPIC_MAX: usize = 100_000;
/// How often expired leases are swept.
pub const LEASE_SWEEP_MS: u64 = 1000;
/// How much space must be free on the data disk for produce to be accepted.
pub const DISK_RESERVE_BYTES: u64 = 256 * 1024 * 1024;

/// How many changes of the metadata log one sync covers.
pub const METADATA_GROUP_JOBS_MAX: usize = 256;
/// How many bytes of written entries of the metadata log are kept for readers.
pub const METADATA_TAIL_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long a change of metadata may take before its outcome is called unknown.
pub const METADATA_PROPOSE_MS_MAX: u64 = 10_000;
/// How long a confirmed read of metadata may take.
pub const METADATA_CONFIRM_MS_MAX: u64 = 5_000;
/// How long a change or a confirmed read of metadata waits for a leader to be found: an election, and some.
pub const METADATA_LEADER_WAIT_MS_MAX: u64 = 3_000;
/// How long it waits before it looks for the leader again.
pub const METADATA_LEADER_RETRY_MS: u64 = 50;
/// How long the leader may take to be confirmed by a majority before it is asked again.
pub const METADATA_CONFIRM_TRY_MS_MAX: u64 = 1_000;
/// The largest change of metadata: it has to fit into a call between nodes.
pub const METADATA_COMMAND_BYTES_MAX: usize = PEER_CONTROL_BYTES_MAX - 64 * 1024;
/// How much of a snapshot of the metadata is in one call: little, since signs of life wait behind it.
pub const METADATA_SNAPSHOT_PIECE_BYTES: usize = 256 * 1024;
/// How long one piece of a snapshot may take.
pub const METADATA_SNAPSHOT_PIECE_MS_MAX: u64 = 5_000;
/// How long the last piece may take: the snapshot is written and restored before it is answered.
pub const METADATA_SNAPSHOT_INSTALL_MS_MAX: u64 = 60_000;
/// The largest snapshot of the metadata that a node takes from another.
pub const METADATA_SNAPSHOT_BYTES_MAX: usize = 1024 * 1024 * 1024;
/// How many bytes of entries one call brings, unless a single entry has more: the call must not take longer than a sign of life may.
pub const METADATA_APPEND_BYTES_MAX: usize = 512 * 1024;
/// After a member could not be reached, it is left alone for this long; twice as long with each failure.
pub const METADATA_BACKOFF_MS_MIN: u64 = 50;
/// The same, at most.
pub const METADATA_BACKOFF_MS_MAX: u64 = 500;
/// How large the write-ahead log of the metadata store grows before what it holds is written to its tables.
pub const METADATA_WAL_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// How much room opening the metadata store may take: what its write-ahead log holds, written to tables, and a new one.
pub const METADATA_OPEN_BYTES: u64 = 32 * 1024 * 1024;
/// How much room is held back for starts on a full disk; each takes up to [`METADATA_OPEN_BYTES`] of it.
pub const BALLAST_BYTES: u64 = 64 * 1024 * 1024;
/// Topics can be deleted on a full disk while this much is free.
pub const METADATA_REMOVAL_BYTES_MIN: u64 = 4 * 1024 * 1024;

/// How long a TLS handshake with a client may take, as long as the head of a request.
pub const TLS_HANDSHAKE_MS_MAX: u64 = 10_000;
/// How many handshakes with clients are under way; more wait in the listener's backlog. One may hold 64 KiB of what its client has sent.
pub const TLS_HANDSHAKES_MAX: usize = 1024;
/// How long a node without a leader goes on deciding who may do what by its own copy of the metadata, unless configured otherwise.
pub const SECURITY_STALE_MS_DEFAULT: u64 = 60_000;
/// The shortest such time: elections take a second or two.
pub const SECURITY_STALE_MS_MIN: u64 = 5_000;
/// How often it is looked whether there is a leader.
pub const SECURITY_STALE_LOOK_MS: u64 = 250;
/// The largest file with a certificate, or its key, or authorities.
pub const TLS_FILE_BYTES_MAX: usize = 1024 * 1024;

/// How many callers are answered at once while a node starts; more wait in the listener's backlog.
pub const EARLY_CALLERS_MAX: usize = 64;
/// How much of a request is read while a node starts.
pub const EARLY_HEAD_BYTES_MAX: usize = 8 * 1024;
/// How long one caller may take while a node starts.
pub const EARLY_CALLER_MS_MAX: u64 = 2_000;
/// How long such callers may take once the node is up.
pub const EARLY_HANDOVER_MS_MAX: u64 = 500;
/// How long the engine and the metastore may take to stop, once no request is under way.
pub const STOP_MS_MAX: u64 = 8_000;

const _: () = assert!(METADATA_WAL_BYTES_MAX * 2 <= METADATA_OPEN_BYTES && METADATA_OPEN_BYTES <= BALLAST_BYTES);
const _: () = assert!(METADATA_REMOVAL_BYTES_MIN < METADATA_OPEN_BYTES);
const _: () = assert!(MESSAGE_BYTES_MAX + KEY_BYTES_MAX + HEADERS_BYTES_MAX < WAL_RECORD_BYTES_MAX);
const _: () = assert!(WAL_RECORD_BYTES_MAX < FRAME_BYTES_MAX);
const _: () = assert!(FRAME_BYTES_MAX <= COMMIT_BYTES_MAX);
const _: () = assert!(FRAME_RECORDS_MAX <= COMMIT_RECORDS_MAX);
const _: () = assert!(WAL_RECORD_BYTES_MAX as u64 * 4 < WAL_SEGMENT_BYTES);
const _: () = assert!(PRODUCE_BATCH_BYTES_MAX < COMMIT_INBOX_BYTES_MAX);
const _: () = assert!(PRODUCE_BATCH_BYTES_MAX <= 1 << PRODUCE_BATCH_ZSTD_WINDOW_LOG_MAX);
const _: () = assert!(WAL_STALL_MS < WAL_OUTCOME_WAIT_MS);
const _: () = assert!(PRODUCE_BATCH_BYTES_MAX < WAL_STAGED_BYTES_MAX);
const _: () = assert!((REROUTE_BYTES_MAX + WAL_RECORD_BYTES_MAX) * REROUTES_AT_ONCE_MAX < WAL_STAGED_BYTES_MAX / 2);
const _: () = assert!(UNDISPATCHED_PARTITION_BYTES_MAX < UNDISPATCHED_NODE_BYTES_MAX);
const _: () = assert!(SCHEMA_BYTES_MAX <= SCHEMA_TOPIC_BYTES_MAX && SCHEMA_TOPIC_BYTES_MAX <= SCHEMA_CLUSTER_BYTES_MAX);
const _: () = assert!((UNDISPATCHED_PARTITION_BYTES_MAX as u64) < UNDISPATCHED_TENANT_BYTES_MAX);
const _: () = assert!(CONSUME_SCAN_BYTES_MAX < CONSUME_ANSWER_BYTES_MAX);

/// The shortest cluster secret, in characters: random ones of this length cannot be found by trying.
pub const CLUSTER_SECRET_BYTES_MIN: usize = 32;
/// The longest cluster secret.
pub const CLUSTER_SECRET_BYTES_MAX: usize = 1024;
/// The largest value of a limit of a tenant or topic: a million times that still is a number.
pub const QUOTA_MAX: u64 = 1_000_000_000_000;
/// How many tenants and topics may have limits.
pub const QUOTAS_MAX: usize = 200_000;
/// How many tenants have series of their own in the metrics, if the operator wants them.
pub const METRICS_TENANTS_MAX: usize = 100;
/// How many tenants a node keeps counts of rates for; those that have been idle are forgotten first.
pub const QUOTA_TENANTS_MAX: usize = 16_384;
/// How long a connection over its tenant's limits is left alone before its next request is looked at.
pub const QUOTA_PAUSE_MS_MAX: u64 = 1_000;
/// When a request that a limit on rates will refuse for long is told to come back at the latest.
pub const QUOTA_RETRY_MS_MAX: u64 = 60_000;
/// When a request that a limit on what is stored has refused is told to come back.
pub const QUOTA_STORED_RETRY_MS: u64 = 5_000;
/// How often nodes tell what they store and need while there are limits, and how old what another has told may be.
pub const QUOTA_TALLY_MS: u64 = 1_000;
/// How often what is stored is added up while there are no limits on it, for the sake of its peak.
pub const USAGE_TALLY_MS: u64 = 10_000;
/// The longest secret that is sealed.
pub const SEALED_SECRET_BYTES_MAX: usize = 64 * 1024;
/// How many users a tenant has.
pub const USERS_MAX: usize = 10_000;
/// How many users all tenants have together. Every node holds them all in memory.
pub const USERS_CLUSTER_MAX: usize = 100_000;
/// How many tenants there are.
pub const TENANTS_MAX: usize = 10_000;
/// How many tenants are deleted at once; others wait for their turn.
pub const TENANTS_DELETED_AT_ONCE_MAX: usize = 16;
/// How often the leader goes on with deleting tenants.
pub const TENANT_DELETE_EVERY_MS: u64 = 1_000;
/// How many topics and users of a tenant that is being deleted go in one round.
pub const TENANT_DELETE_BATCH_MAX: usize = 256;
/// How long nothing of a tenant must have been found anywhere before it is called gone: what was accepted just before may be on its way.
pub const TENANT_GONE_AFTER_MS: u64 = 5_000;
/// How many API keys there are. Every node holds them all in memory.
pub const KEYS_MAX: usize = 100_000;
/// How many API keys one tenant has, as long as no operator has set its limit `keys`: none takes the room of all others.
pub const KEYS_PER_TENANT_MAX: usize = 10_000;
/// How many names of deleted tenants and users are remembered, so that what is older does not make them again.
pub const TOMBSTONES_MAX: usize = 10_000;
/// How many keys of one account are good at once: enough for one to take the place of another, everywhere it is used.
pub const KEYS_PER_ACCOUNT_MAX: usize = 5;
/// How many keys of one account are still shown when they have expired; the one that was over first is forgotten first.
pub const EXPIRED_KEYS_PER_ACCOUNT_MAX: usize = 5;
/// The longest life of a key that is given one: ten years.
pub const KEY_LIFE_MS_MAX: u64 = 10 * 365 * 24 * 3_600_000;
/// The longest description of a key.
pub const KEY_DESCRIPTION_BYTES_MAX: usize = 256;
/// How exactly the last use of a key is known: to write each use would move a cache line between cores for nothing.
pub const KEY_USE_MS: u64 = 3_600_000;
/// The longest user name.
pub const USERNAME_BYTES_MAX: usize = 64;
/// The longest password (http-contract 1.5); a shorter one has at least a byte.
pub const PASSWORD_BYTES_MAX: usize = 72;
/// The longest stored form of a password hash.
pub const PASSWORD_HASH_BYTES_MAX: usize = 256;
/// The memory that a password hash takes while it is computed, in KiB. A stored hash that asks for more is refused.
pub const PASSWORD_MEMORY_KIB: u32 = 19 * 1024;
/// How often a password hash goes over its memory. A stored hash that asks for more is refused.
pub const PASSWORD_ROUNDS: u32 = 2;
/// How many password hashes a node computes at once: what they take is this times their memory, and a core each.
pub const PASSWORD_COMPUTATIONS_MAX: usize = 2;
/// How many checks of passwords are under way on a node, those that wait for their turn included. More are told to come back.
pub const PASSWORD_CHECKS_MAX: usize = 256;
/// How many of those checks may be for names that no user has. More are told to come back.
pub const PASSWORD_CHECKS_UNKNOWN_MAX: usize = 32;
/// How long a check of a password waits for its turn before it is told to come back.
pub const PASSWORD_WAIT_MS_MAX: u64 = 2_000;
/// When a check that found no place is told to come back.
pub const PASSWORD_RETRY_MS: u64 = 1_000;
/// How many users' checked credentials a node remembers.
pub const VERIFIED_USERS_MAX: usize = 4096;
/// How long credentials that were found right are remembered after their last use.
pub const VERIFIED_IDLE_MS: u64 = 900_000;
/// How many wrong passwords of one user are remembered.
pub const REFUSED_PER_USER_MAX: usize = 16;
/// How long a wrong password is remembered.
pub const REFUSED_MS: u64 = 60_000;
/// How many failed checks in a row a user has.
pub const LOGIN_FAILURES_MAX: u64 = 5;
/// How long until a user gets one of them back.
pub const LOGIN_FAILURE_MS: u64 = 12_000;
/// How many failed checks in a row a node has for all users with recent failures.
pub const LOGIN_FAILURES_NODE_MAX: u64 = 32;
/// How long until a node gets one of them back.
pub const LOGIN_FAILURE_NODE_MS: u64 = 250;
/// Of how many users, and of how many addresses, a node remembers recent failures; and of how many users from where they signed in.
pub const LOGIN_FAILURE_USERS_MAX: usize = 16_384;
/// How many failed checks in a row an address has over all users that did not sign in from there lately: enough for the mistakes of many behind
/// one address, and no more than a node has, so that an address does not take them all.
pub const LOGIN_FAILURES_SOURCE_MAX: u64 = LOGIN_FAILURES_NODE_MAX;
/// How long until an address gets one of them back: a quarter of what a node gets.
pub const LOGIN_FAILURE_SOURCE_MS: u64 = 4 * LOGIN_FAILURE_NODE_MS;
/// How long it is remembered from where a user signed in.
pub const LOGIN_DEVICE_MS: u64 = 7 * 86_400_000;
/// How many addresses are remembered of one user.
pub const LOGIN_DEVICES_MAX: usize = 8;
/// The largest `Authorization` header that is looked at: the longest user and password, in base64, and as much again.
pub const AUTHORIZATION_BYTES_MAX: usize = 512;
/// The longest token that is looked at.
pub const TOKEN_BYTES_MAX: usize = 4096;
/// How long a token may be good for: what its issuer takes away is gone by then.
pub const TOKEN_LIFETIME_MS_MAX: u64 = 3_600_000;
/// How far the clock of a token's issuer may be ahead of a node's. A token that is over is over: there is none at that end.
pub const TOKEN_SKEW_MS: u64 = 60_000;
/// How many public keys the issuer of tokens has at once: enough for one to take the place of another.
pub const TOKEN_KEYS_MAX: usize = 8;
/// The longest name of such a key.
pub const TOKEN_KID_BYTES_MAX: usize = 64;
/// The longest name of the issuer, and of whom its tokens are for.
pub const TOKEN_ISSUER_BYTES_MAX: usize = 256;
/// How many tokens that were found right a node remembers.
pub const TOKENS_VERIFIED_MAX: usize = 4096;
/// How long after a change of the catalog a parked consumer's rights are looked at again: what was taken away ends its wait within 5 s of when
/// the change was made.
pub const REVOCATION_LOOK_MS: u64 = 2_000;
/// How many grants a user has.
pub const GRANTS_MAX: usize = 64;
/// How many patterns all grants of a user have together.
pub const GRANT_PATTERNS_MAX: usize = 1000;
/// The longest pattern, without its `*`.
pub const GRANT_PATTERN_BYTES_MAX: usize = 255;

const _: () = assert!(KEYS_MAX <= USERS_CLUSTER_MAX * KEYS_PER_ACCOUNT_MAX);
const _: () = assert!(PASSWORD_CHECKS_UNKNOWN_MAX + PASSWORD_COMPUTATIONS_MAX < PASSWORD_CHECKS_MAX);
const _: () = assert!((2 * USERNAME_BYTES_MAX + PASSWORD_BYTES_MAX + 2) * 4 / 3 < AUTHORIZATION_BYTES_MAX);
const _: () = assert!(REFUSED_MS < VERIFIED_IDLE_MS);
/// The largest call or answer between nodes of class `control`.
pub const PEER_CONTROL_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The largest call or answer between nodes of class `data`: a batch as it is stored, and room for what is written around it.
pub const PEER_DATA_BYTES_MAX: usize = PRODUCE_BATCH_BYTES_MAX + 4 * 1024 * 1024;
/// The largest call or answer between nodes of class `wait`.
pub const PEER_WAIT_BYTES_MAX: usize = 64 * 1024;
/// The largest call or answer between nodes of class `settle`.
pub const PEER_SETTLE_BYTES_MAX: usize = 64 * 1024;
/// How many calls of class `control` one node may have open at another. Who wants more waits.
pub const PEER_CONTROL_CALLS_MAX: u32 = 128;
/// How many calls of class `data` one node may have open at another.
pub const PEER_DATA_CALLS_MAX: u32 = 256;
/// Of them, calls about messages of tenants, which take turns; the rest is for what nodes have to tell each other besides.
pub const PEER_TENANT_CALLS_MAX: usize = 192;
/// How many calls of class `wait` one node may have open at another.
pub const PEER_WAIT_CALLS_MAX: u32 = 16_384;
/// How many calls of class `settle` one node may have open at another.
pub const PEER_SETTLE_CALLS_MAX: u32 = 1_024;
/// How large the calls of one class that a node is receiving and serving may be together. More wait at the sender.
pub const PEER_RECEIVING_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How many connections from other nodes may be open. More are refused.
pub const PEER_CONNECTIONS_MAX: usize = 1024;
/// How large the first message on a connection between nodes may be.
pub const PEER_HELLO_BYTES_MAX: usize = 4 * 1024;
/// How long making a connection to another node may take.
pub const PEER_CONNECT_MS_MAX: u64 = 2_000;
/// After a node could not be reached, others are told so at once for this long at first.
pub const PEER_UNREACHABLE_MS_MIN: u64 = 50;
/// The same, at most; it doubles with each failure.
pub const PEER_UNREACHABLE_MS_MAX: u64 = 1_000;
/// How often a quiet connection between nodes is probed.
pub const PEER_KEEP_ALIVE_MS: u64 = 1_000;
/// A connection between nodes on which nothing came for this long is given up.
pub const PEER_SILENCE_MS_MAX: u64 = 5_000;
/// How long a node waits for the answer of a partition's owner.
pub const OWNER_ANSWER_MS_MAX: u64 = 10_000;
/// How long an owner whose catalog is behind that of its caller waits to catch up, before it refuses.
pub const OWNER_CATCH_UP_MS_MAX: u64 = 1_000;
/// How many partitions one call to an owner may name.
pub const OWNER_CALL_PARTITIONS_MAX: usize = 4_096;
/// How long a consumer that may wait asks owners one after the other, before it waits at all of them.
pub const OWNER_PATIENCE_MS: u64 = 100;
/// How long a consumer waits for an owner that is asked for messages, before it asks another.
pub const OWNER_CLAIM_MS_MAX: u64 = 1_000;
/// How long an ack waits for the partition's owner.
pub const OWNER_SETTLE_MS_MAX: u64 = 2_000;
/// How long a description waits for the owners.
pub const OWNER_LOOK_MS_MAX: u64 = 2_000;
/// How long an owner that did not answer a consumer is not asked for messages again.
pub const OWNER_SKIP_MS: u64 = 1_000;
/// How long a consumer that was told of a message may take to claim it, before another is told: it has a few round trips, and no time to
/// hold up what others wait for.
pub const TOKEN_CLAIM_MS_MAX: u64 = 1_000;
/// How many claims of other nodes an owner remembers until it hears how they ended. Of one that is forgotten, the deliveries are not counted.
pub const OWNER_CLAIMS_MAX: usize = 65_536;
/// How many ends of claims an owner remembers, so that a claim that comes after its end takes nothing.
pub const OWNER_CLAIMS_ENDED_MAX: usize = 16_384;
/// How many ends of claims and tokens are told to an owner in one call.
pub const OWNER_ENDINGS_MAX: usize = 1_024;
/// How many ends of claims and tokens wait to be told to one owner before the oldest are given up: their leases end by themselves.
pub const OWNER_ENDINGS_QUEUED_MAX: usize = 65_536;

/// How long a node that stops waits for others to take an answer. One that has gone without a word is found out later than that, after a freeze
/// much later.
pub const PEER_ANSWER_AT_STOP_MS_MAX: u64 = 2_000;
/// How much of a partition that moves is in one call.
pub const MOVE_PIECE_BYTES: usize = 1024 * 1024;
/// A partition that moves is asked for by its new owner once so little of it is missing, and so little of it not sealed: what is missing then is
/// copied, and what is not sealed is checked, while nobody serves it.
pub const MOVE_REST_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Or after so many rounds of copying: what is written as fast as it can be copied would never move otherwise.
pub const MOVE_ROUNDS_MAX: u32 = 16;
/// A file that is copied is synced each time so much more of it has come: synced at once in the end, it would hold up everybody's syncs.
pub const MOVE_SYNC_BYTES: u64 = 4 * 1024 * 1024;
/// How long a node that is used pauses at most after a piece of a copy; otherwise as long as the piece took it.
pub const MOVE_PAUSE_MS_MAX: u64 = 200;
/// A copy that was all there and did not fit together so often is given up: made once more, it would be the same.
pub const MOVE_MISFITS_MAX: u32 = 2;
/// A move whose files cannot be read or written this many times one after the other, with the pauses between them about a minute, is given up.
pub const MOVE_FAILURES_MAX: u32 = 30;
/// How many moves that it has given up a node remembers, to tell why.
pub const MOVES_ENDED_KEPT_MAX: usize = 64;
/// How many directories that it has set aside a node tells one by one.
pub const QUARANTINE_LISTED_MAX: usize = 100;
/// How long a node that is asked for them looks for them.
pub const QUARANTINE_TOLD_MS_MAX: u64 = 500;
/// How long one piece of a copy may take.
pub const MOVE_PIECE_MS_MAX: u64 = 10_000;
/// How long handing a partition over may take, with the change of metadata that records it.
pub const MOVE_FREEZE_MS_MAX: u64 = METADATA_PROPOSE_MS_MAX + 5_000;
/// How long a move that did not get on pauses before it is tried again; twice as long with each failure.
pub const MOVE_RETRY_MS_MIN: u64 = 100;
/// The same, at most.
pub const MOVE_RETRY_MS_MAX: u64 = 2_000;
/// How many leases of one partition move with it; the messages of others are delivered again.
pub const MOVE_LEASES_MAX: usize = 262_144;

/// How long a node that stops waits for others to hear that its connections end. They find out by themselves too.
pub const PEER_CLOSE_MS_MAX: u64 = 500;
/// How long a node waits for another to say that it is there.
pub const MEMBER_ANSWER_MS_MAX: u64 = 1_000;
/// The same when partitions are to be placed: a node that lets one wait for longer is given none this time.
pub const PLACEMENT_ANSWER_MS_MAX: u64 = 400;
/// How often a node asks the others whether they are there.
pub const MEMBER_WATCH_MS: u64 = 1_000;
/// A member that was silent for this long is given nothing, and while one is, nothing is moved that need not be.
pub const MEMBER_SILENT_MS: u64 = 5_000;
/// A member that was silent for this long is dead, until it is heard again.
pub const MEMBER_DEAD_MS: u64 = 30_000;
/// How far the clock of a node may be from the leader's, beyond what cannot be known: leases and retention are reckoned with it.
pub const CLOCK_OFF_MS_MAX: u64 = 2_000;
/// How often the leader looks whether partitions have to move.
pub const CONTROL_EVERY_MS: u64 = 1_000;
/// How many partitions are moved at once.
pub const MOVES_MAX: usize = 8;
/// How many of them from or to one node.
pub const MOVES_PER_NODE_MAX: usize = 4;
/// A move whose target is alive and has not taken over within this time after the owner had stopped is aborted, so that the owner goes on.
pub const MOVE_FROZEN_MS_MAX: u64 = 30_000;
/// How long a partition whose move was aborted is left where it is; twice as long each time.
pub const MOVE_REST_MS: u64 = 60_000;
/// The same, at most.
pub const MOVE_REST_MS_MAX: u64 = 3_600_000;
/// Partitions are moved for balance only after the members have been the same, and all there, for this long.
pub const REBALANCE_AFTER_MS: u64 = 30_000;
/// How many voters stay when a node is decommissioned.
pub const VOTERS_MIN: usize = 3;
/// How long what was being taken out stays marked once it is no member: what was begun before may still name it as an owner, and is refused.
pub const DRAINED_MARK_MS: u64 = 2 * METADATA_PROPOSE_MS_MAX;
/// How long a start waits to come into its cluster, before it says what it waits for and begins anew.
pub const CLUSTER_ENTER_MS_MAX: u64 = 10_000;
/// How many records of the audit trail are kept, of all tenants together. Every node holds them all in memory.
pub const AUDIT_RECORDS_MAX: usize = 10_000;
/// How many bytes they have together.
pub const AUDIT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// What is told of a change in its record, beside who and what; of what is larger, its hash.
pub const AUDIT_DETAIL_BYTES_MAX: usize = 1024;
/// How many records one answer has, unless fewer are asked for.
pub const AUDIT_PAGE_MAX: usize = 1_000;
/// How many denials a node tells apart, by who, what and rule, until it writes them down.
pub const DENIALS_MAX: usize = 256;
/// How many of them may be of one tenant.
pub const DENIALS_PER_TENANT_MAX: usize = 64;
/// How often a node writes down what it has denied.
pub const DENIALS_EVERY_MS: u64 = 60_000;
/// How many former lives a metastore names. One more is begun by each restore and each recovery.
pub const FORMER_LIVES_MAX: usize = 64;
/// How long a node that founds a cluster without knowing others listens for members of one that has it already: they call it again and again,
/// after the longest pause with an attempt that may take the longest time.
pub const FOUND_LISTEN_MS: u64 = PEER_UNREACHABLE_MS_MAX + PEER_CONNECT_MS_MAX;
/// A node that joins becomes a voter by itself while there are fewer than this many: more make each change of metadata slower.
pub const VOTERS_UNASKED_MAX: usize = 5;
/// How long a node that could not become a voter waits before it asks again.
pub const PROMOTE_AGAIN_MS: u64 = 1_000;

const _: () = {
    assert!(MEMBER_ANSWER_MS_MAX + MEMBER_WATCH_MS < MEMBER_SILENT_MS && MEMBER_SILENT_MS < MEMBER_DEAD_MS, "a lost answer is no silence");
    assert!(MOVES_PER_NODE_MAX <= MOVES_MAX);
    assert!(QUARANTINE_TOLD_MS_MAX < MEMBER_ANSWER_MS_MAX, "what does not answer keeps no answer");
    assert!(MOVE_REST_MS <= MOVE_REST_MS_MAX && MOVE_PAUSE_MS_MAX * 10 <= MOVE_PIECE_MS_MAX, "a pause is no failure");
    assert!(PEER_KEEP_ALIVE_MS * 3 <= PEER_SILENCE_MS_MAX, "a lost probe or two are no silence");
    assert!(PEER_DATA_BYTES_MAX <= PEER_RECEIVING_BYTES_MAX, "one call always fits");
    assert!(OWNER_CATCH_UP_MS_MAX < OWNER_ANSWER_MS_MAX);
    assert!(MOVE_LEASES_MAX * 24 + SETTLE_VALUE_BYTES_MAX + 4 * 1024 * 1024 <= PEER_DATA_BYTES_MAX, "every partition can be handed over");
    assert!(OWNER_CALL_PARTITIONS_MAX * 12 + 64 <= PEER_WAIT_BYTES_MAX);
    assert!(OWNER_ENDINGS_MAX * 11 + 64 <= PEER_SETTLE_BYTES_MAX);
    assert!(ACK_BATCH_HANDLES_MAX * 28 + 64 <= PEER_SETTLE_BYTES_MAX);
    assert!(CONSUME_SCAN_BYTES_MAX + CONSUME_BATCH_MESSAGES_MAX * HEADERS_BYTES_MAX * 2 + WAL_RECORD_BYTES_MAX <= PEER_DATA_BYTES_MAX);
    assert!(PEER_TENANT_CALLS_MAX < PEER_DATA_CALLS_MAX as usize);
    assert!(PEER_UNREACHABLE_MS_MIN <= PEER_UNREACHABLE_MS_MAX);
    assert!(METADATA_SNAPSHOT_PIECE_BYTES < METADATA_COMMAND_BYTES_MAX);
    assert!(METADATA_APPEND_BYTES_MAX < METADATA_COMMAND_BYTES_MAX);
    assert!(METADATA_BACKOFF_MS_MIN <= METADATA_BACKOFF_MS_MAX);
    assert!(METADATA_LEADER_WAIT_MS_MAX < METADATA_CONFIRM_MS_MAX && METADATA_CONFIRM_MS_MAX < METADATA_PROPOSE_MS_MAX);
};
