//! Every operation: what it takes, what it answers, what it refuses.

use utoipa::openapi::{RefOr, Schema};
use veena_client::bodies::{
    Account, AckBatch, AckResults, AttachChild, BatchAccepted, Children, ClusterMembers, ClusterMoves, CommitResults, Committed,
    CreateAccount, CreateKey, CreateTopic, CreateUser, CreatedKey, Decommission, Explained, Forgotten, Health, Key, Message, MessageBatch,
    MoveAborted, PatchTopic, ProduceBatch, PutTenant, PutTokenIssuer, PutUser, QuotaView, SchemaHistory, SetGrants, SetPassword, SetQuota,
    Tenant, TenantList, TokenIssuer, Topic, TopicDetail, TopicList, Usage, User, Whoami,
};
use veena_contract::ErrorCode::{self, *};

use super::{Schemas, list_of, shape};
use crate::rights::Need;
use crate::route::{Route, Verb};

/// One route and method.
pub(super) struct Operation {
    pub(super) route: Route,
    pub(super) verb: Verb,
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    pub(super) inputs: &'static [Input],
    pub(super) body: Body,
    pub(super) answers: &'static [Answer],
    pub(super) refusals: &'static [Refusals],
}

/// A parameter with its name and meaning; none but those in the path has to be given.
#[derive(Clone, Copy)]
pub(super) enum Input {
    /// A text in the query.
    Text(&'static str, &'static str),
    /// A number in the query.
    Number(&'static str, &'static str),
    /// A header.
    Header(&'static str, &'static str),
}

/// What a body looks like.
#[derive(Clone, Copy)]
pub(super) enum Shape {
    /// There is none.
    Nothing,
    /// JSON of this type.
    Json(fn(&mut Schemas) -> RefOr<Schema>),
    /// JSON of one of these types.
    OneOf(&'static [fn(&mut Schemas) -> RefOr<Schema>]),
    /// Any bytes.
    Bytes,
    /// Plain text.
    Text,
    /// Lines of JSON.
    Lines,
}

/// A request's body, with its meaning.
#[derive(Clone, Copy)]
pub(super) enum Body {
    /// None is read.
    None,
    /// May be left out.
    Optional(Shape, &'static str),
    /// Has to be there.
    Required(Shape, &'static str),
}

/// One way in which an operation succeeds, or a probe fails.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) what: &'static str,
    pub(super) shape: Shape,
    pub(super) headers: &'static [(&'static str, &'static str)],
}

/// How a refusal is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// As JSON.
    Json,
    /// As plain text, with the code in a header.
    Text,
    /// As JSON or as plain text.
    Either,
}

/// The refusals of one status.
pub(super) struct Refusals {
    pub(super) status: u16,
    pub(super) codes: &'static [ErrorCode],
    pub(super) form: Form,
}

const fn answer(status: u16, what: &'static str, shape: Shape) -> Answer {
    Answer { status, what, shape, headers: &[] }
}

const fn refused(status: u16, codes: &'static [ErrorCode]) -> Refusals {
    Refusals { status, codes, form: Form::Json }
}

const METHOD: Refusals = Refusals { status: 405, codes: &[MethodNotAllowed], form: Form::Text };
const HEAD: Refusals = Refusals { status: 431, codes: &[HeadersTooLarge], form: Form::Text };
const MEDIA_TYPE: Refusals = refused(415, &[UnsupportedMediaType]);
const NO_MEMBER: Refusals = refused(404, &[NotFound]);
const NO_TOPIC: Refusals = refused(404, &[TopicNotFound]);
const TOO_SLOW: Refusals = refused(408, &[RequestTimeout]);
const TOO_LARGE: Refusals = refused(413, &[BodyTooLarge]);
const TOO_MANY: Refusals = refused(429, &[RateLimited]);
/// The tenant may have limits.
const OVER_LIMITS: Refusals = refused(429, &[RateLimited, QuotaExceeded]);
const BAD_QUERY: Refusals = refused(400, &[MalformedRequest, InvalidArgument]);
const PANIC: Refusals = refused(500, &[Internal]);
const METADATA: Refusals = refused(503, &[MetadataUnavailable, MetadataUncertain, NotReady]);
/// New partitions have to be given to somebody.
const METADATA_OR_NOBODY: Refusals = refused(503, &[MetadataUnavailable, MetadataUncertain, Draining, NotReady]);
/// A node of a cluster says "not found" only of what the leader does not know either.
const UNCONFIRMED: Refusals = refused(503, &[MetadataUnavailable, NotReady]);
/// A partition's owner was asked, and has not answered.
const NO_ANSWER: Refusals = Refusals { status: 502, codes: &[OutcomeUnknown], form: Form::Text };
const OWNER_DOWN: Refusals = Refusals { status: 503, codes: &[OwnerDown, MetadataUnavailable], form: Form::Either };
const OWNER_DOWN_OR_STOPPING: Refusals = Refusals { status: 503, codes: &[OwnerDown, MetadataUnavailable, NotReady], form: Form::Either };

/// What any operation may answer: for another method of its path, to a head that is too large, and to a write that any web page could send.
pub(super) fn everywhere(verb: Verb) -> &'static [Refusals] {
    match verb {
        Verb::Post | Verb::Put | Verb::Patch => &[METHOD, HEAD, MEDIA_TYPE],
        Verb::Get | Verb::Delete => &[METHOD, HEAD],
    }
}

const NO_USER: Refusals = refused(401, &[Unauthenticated]);
const FORBIDDEN: Refusals = refused(403, &[ErrorCode::Forbidden, ErrorCode::TenantSuspended]);
/// Every user may, of a tenant whose users may anything.
const SUSPENDED: Refusals = refused(403, &[ErrorCode::TenantSuspended]);
const BUSY: Refusals = refused(503, &[Overloaded, SecurityStale]);

/// What is answered to a caller who is not known, cannot be found out, or may not, while security is on.
pub(super) fn of_caller(need: Need) -> &'static [Refusals] {
    match need {
        Need::Anybody => &[],
        Need::User => &[NO_USER, SUSPENDED, OVER_LIMITS, PANIC, BUSY],
        Need::Do(_) | Need::Create | Need::See | Need::Manage | Need::ManageEither | Need::Oneself | Need::Admin => {
            &[NO_USER, FORBIDDEN, OVER_LIMITS, PANIC, BUSY]
        }
        Need::Counters | Need::Root | Need::Operator => &[NO_USER, FORBIDDEN, TOO_MANY, PANIC, BUSY],
    }
}

const NO_TENANT: Refusals = refused(404, &[NotFound]);
const NO_SUCH_USER: Refusals = refused(404, &[NotFound]);
const BAD_USER: Refusals = refused(400, &[MalformedRequest, InvalidArgument, BodyTooLarge]);

const NOT_KEPT: &[(&str, &str)] = &[("Cache-Control", "`no-store`: nobody on the way keeps it.")];

const CLIENT: Input = Input::Header(
    "X-Veena-Client",
    "Names the client; any text. Needed for a write without `Content-Type: application/json` or `application/octet-stream`, and for `max`.",
);
const KIND: Input = Input::Text("kind", "`changes` (default), or `denials`: what nodes have refused with 401, 403 and 429, counted.");
const AFTER: Input = Input::Number("after", "Only records behind this number: the last one that was seen.");
const RECORDS: Input = Input::Number("limit", "How many at most: 1000 unless given, and no more.");
const WAIT_FOR: Input =
    Input::Text("wait_for", "`wal` (default): answered when synced here. `commit`: answered when consumers can see it.");
const FORCE: Input = Input::Text("force", "`true` or `false`; changes nothing without remote children.");

const REPLAYED: (&str, &str) = ("Veena-Replayed", "`true` when nothing was stored: all of it had been, under the same idempotency keys.");

/// Every operation, in order of the routes.
pub(super) const ALL: &[Operation] = &[
    Operation {
        route: Route::Topics,
        verb: Verb::Get,
        id: "listTopics",
        summary: "Lists topics by name.",
        inputs: &[
            Input::Number("limit", "How many topics a page has: 100 unless given, 1000 at most."),
            Input::Text("page_token", "Where the page begins: `next_page_token` of the page before."),
        ],
        body: Body::None,
        answers: &[answer(200, "One page.", Shape::Json(shape::<TopicList>))],
        refusals: &[BAD_QUERY, PANIC],
    },
    Operation {
        route: Route::Topics,
        verb: Verb::Post,
        id: "createTopic",
        summary: "Creates a topic, on its own or as a child.",
        inputs: &[CLIENT],
        body: Body::Required(Shape::Json(shape::<CreateTopic>), "What is to be created."),
        answers: &[answer(201, "The topic; its role is left out when it has no parent.", Shape::Json(shape::<Topic>))],
        refusals: &[
            refused(400, &[MalformedRequest, InvalidArgument]),
            NO_TOPIC,
            TOO_SLOW,
            refused(409, &[AlreadyExists, Conflict, RoleConflict, LimitReached, SchemaIncompatible, InvalidArgument]),
            TOO_LARGE,
            PANIC,
            METADATA_OR_NOBODY,
        ],
    },
    Operation {
        route: Route::Topic,
        verb: Verb::Get,
        id: "describeTopic",
        summary: "Shows a topic with its schema and partitions.",
        inputs: &[Input::Number("partition", "Only this partition.")],
        body: Body::None,
        answers: &[answer(200, "The topic.", Shape::Json(shape::<TopicDetail>))],
        refusals: &[BAD_QUERY, NO_TOPIC, PANIC, UNCONFIRMED],
    },
    Operation {
        route: Route::Topic,
        verb: Verb::Patch,
        id: "patchTopic",
        summary: "Changes a topic: retention, then caps, then partitions, then schema. The first failure answers, what came before stays.",
        inputs: &[CLIENT],
        body: Body::Required(Shape::Json(shape::<PatchTopic>), "What is to be changed; at least one field."),
        answers: &[answer(200, "The topic as it is now.", Shape::Json(shape::<Topic>))],
        refusals: &[
            refused(400, &[MalformedRequest, InvalidArgument, SchemaIncompatible]),
            NO_TOPIC,
            TOO_SLOW,
            refused(409, &[Conflict, RoleConflict, LimitReached, InvalidArgument]),
            TOO_LARGE,
            PANIC,
            METADATA_OR_NOBODY,
        ],
    },
    Operation {
        route: Route::Topic,
        verb: Verb::Delete,
        id: "deleteTopic",
        summary: "Deletes a topic and its messages.",
        inputs: &[FORCE],
        body: Body::None,
        answers: &[answer(204, "It is gone.", Shape::Nothing)],
        refusals: &[BAD_QUERY, NO_TOPIC, refused(409, &[Conflict]), PANIC, METADATA],
    },
    Operation {
        route: Route::Schema,
        verb: Verb::Get,
        id: "topicSchema",
        summary: "Shows the history of a topic's schema.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(200, "Every version, oldest first.", Shape::Json(shape::<SchemaHistory>))],
        refusals: &[NO_TOPIC, PANIC, UNCONFIRMED],
    },
    Operation {
        route: Route::Children,
        verb: Verb::Get,
        id: "listChildren",
        summary: "Lists a topic's children and how far each is behind.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(200, "The children.", Shape::Json(shape::<Children>))],
        refusals: &[NO_TOPIC, PANIC, UNCONFIRMED],
    },
    Operation {
        route: Route::Children,
        verb: Verb::Post,
        id: "attachChild",
        summary: "Attaches a child: from now on it gets every message of the topic.",
        inputs: &[CLIENT],
        body: Body::Required(Shape::Json(shape::<AttachChild>), "Which child, and its delay."),
        answers: &[answer(200, "The parent.", Shape::Json(shape::<Topic>))],
        refusals: &[
            refused(400, &[MalformedRequest, InvalidArgument, BodyTooLarge]),
            NO_TOPIC,
            TOO_SLOW,
            refused(409, &[Conflict, RoleConflict, LimitReached, SchemaIncompatible, InvalidArgument]),
            PANIC,
            METADATA,
        ],
    },
    Operation {
        route: Route::Child,
        verb: Verb::Delete,
        id: "detachChild",
        summary: "Detaches a child; it keeps what it has.",
        inputs: &[FORCE],
        body: Body::None,
        answers: &[answer(204, "It is detached.", Shape::Nothing)],
        refusals: &[BAD_QUERY, refused(404, &[TopicNotFound, NotFound]), PANIC, METADATA],
    },
    Operation {
        route: Route::Produce,
        verb: Verb::Post,
        id: "produce",
        summary: "Takes one message: the body. Headers `Veena-Header-<name>` are kept with it.",
        inputs: &[
            Input::Text("key", "Chooses the partition when `partition` does not; any bytes, escaped."),
            Input::Number("partition", "Chooses the partition."),
            WAIT_FOR,
            Input::Header(
                "Idempotency-Key",
                "1 to 255 printable ASCII characters. What is sent again under it within the topic's `dedup_window_ms` is stored once; answered after the commit.",
            ),
            CLIENT,
        ],
        body: Body::Required(Shape::Bytes, "The message: 1 byte to 1 MiB."),
        answers: &[
            Answer { status: 200, what: "Committed (`wait_for=commit`).", shape: Shape::Json(shape::<Committed>), headers: &[REPLAYED] },
            Answer {
                status: 202,
                what: "Synced here, it will be committed; with an `Idempotency-Key` committed.",
                shape: Shape::Nothing,
                headers: &[REPLAYED],
            },
        ],
        refusals: &[
            refused(400, &[MalformedRequest, InvalidArgument, SchemaViolation]),
            NO_TOPIC,
            TOO_SLOW,
            refused(409, &[DelayedChild, IdempotencyKeyReused]),
            TOO_LARGE,
            refused(429, &[RateLimited, DedupWindowFull]),
            refused(500, &[Internal, LogPoisoned]),
            refused(502, &[OutcomeUnknown]),
            refused(503, &[Overloaded, OwnerDown, MetadataUnavailable, DiskFull, NotReady, Draining, ValidationBusy]),
        ],
    },
    Operation {
        route: Route::ProduceBatch,
        verb: Verb::Post,
        id: "produceBatch",
        summary: "Takes up to 1000 messages: all or none. With `wait_for=commit` each has its own result.",
        inputs: &[WAIT_FOR, Input::Header("Content-Encoding", "`zstd` or `gzip` when the body is packed."), CLIENT],
        body: Body::Required(Shape::Json(shape::<ProduceBatch>), "The messages: 16 MiB at most, packed and unpacked."),
        answers: &[
            Answer {
                status: 200,
                what: "What became of each message (`wait_for=commit`).",
                shape: Shape::Json(shape::<CommitResults>),
                headers: &[REPLAYED],
            },
            Answer {
                status: 202,
                what: "All are synced here and will be committed; when one has an `idempotency_key`, all are committed.",
                shape: Shape::Json(shape::<BatchAccepted>),
                headers: &[REPLAYED],
            },
        ],
        refusals: &[
            refused(400, &[MalformedRequest, InvalidArgument, SchemaViolation]),
            NO_TOPIC,
            TOO_SLOW,
            refused(409, &[DelayedChild, IdempotencyKeyReused]),
            TOO_LARGE,
            refused(429, &[RateLimited, DedupWindowFull]),
            refused(500, &[Internal, LogPoisoned]),
            refused(502, &[OutcomeUnknown]),
            refused(503, &[Overloaded, OwnerDown, MetadataUnavailable, DiskFull, NotReady, Draining, ValidationBusy]),
        ],
    },
    Operation {
        route: Route::Consume,
        verb: Verb::Get,
        id: "consume",
        summary: "Hands out messages under a lease, or reads one again without a lease (`partition` and `offset`).",
        inputs: &[
            Input::Text("wait", "How long to wait for a message, such as `500ms` or `10s`."),
            Input::Number("partition", "Only from this partition."),
            Input::Number("offset", "Reads this message of `partition` without a lease."),
            Input::Number("max", "Up to so many messages, 100 at most; wants the client to name itself."),
            Input::Text("local_only", "`1`: do not wait."),
            CLIENT,
        ],
        body: Body::None,
        answers: &[
            Answer {
                status: 200,
                what: "A message; with `max`, several.",
                shape: Shape::OneOf(&[shape::<Message>, shape::<MessageBatch>]),
                headers: &[("X-Narad-Wait-Clamped", "The wait that was used, when the one asked for is longer than allowed.")],
            },
            Answer {
                status: 204,
                what: "Nothing to hand out.",
                shape: Shape::Nothing,
                headers: &[("X-Narad-Wait-Clamped", "The wait that was used, when the one asked for is longer than allowed.")],
            },
        ],
        refusals: &[BAD_QUERY, NO_TOPIC, refused(410, &[OffsetGone]), TOO_MANY, PANIC, NO_ANSWER, OWNER_DOWN_OR_STOPPING],
    },
    Operation {
        route: Route::Ack,
        verb: Verb::Post,
        id: "ack",
        summary: "Settles one lease, or up to 100: done, longer, or back.",
        inputs: &[
            Input::Text("receipt_handle", "The lease; without it, the body names them."),
            Input::Text("extend", "`true`: the lease is renewed. `0`: the message is handed back."),
            CLIENT,
        ],
        body: Body::Optional(Shape::Json(shape::<AckBatch>), "Leases that are settled together."),
        answers: &[answer(200, "What became of each lease.", Shape::Json(shape::<AckResults>)), answer(204, "Settled.", Shape::Nothing)],
        refusals: &[BAD_QUERY, NO_TOPIC, TOO_SLOW, refused(410, &[LeaseLost]), TOO_LARGE, PANIC, NO_ANSWER, OWNER_DOWN],
    },
    Operation {
        route: Route::ClusterMembers,
        verb: Verb::Get,
        id: "clusterMembers",
        summary: "Lists the members of the cluster.",
        inputs: &[Input::Text(
            "detail",
            "`true`: with who votes and who leads, how long each is silent, and what those wait for that leave.",
        )],
        body: Body::None,
        answers: &[answer(200, "The members.", Shape::Json(shape::<ClusterMembers>))],
        refusals: &[BAD_QUERY, PANIC],
    },
    Operation {
        route: Route::ClusterBackup,
        verb: Verb::Get,
        id: "clusterBackup",
        summary: "Copies the metadata: topics, schemas, links, owners, users; no message. `veena cluster restore` reads it. It holds what is stored of passwords, so only the root admin may have it.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(200, "No older than what was known when it was asked for.", Shape::Bytes)],
        refusals: &[PANIC, UNCONFIRMED],
    },
    Operation {
        route: Route::ClusterDecommission,
        verb: Verb::Post,
        id: "decommission",
        summary: "Begins to take a member out: its partitions are moved away, it takes no new messages, and in the end it is a member no more.",
        inputs: &[Input::Text("dry_run", "`true`: nothing is begun, and what would stand in the way is told."), CLIENT],
        body: Body::None,
        answers: &[answer(200, "What it would come to.", Shape::Json(shape::<Decommission>)), answer(204, "It is begun.", Shape::Nothing)],
        refusals: &[BAD_QUERY, NO_MEMBER, refused(409, &[Blocked]), PANIC, METADATA],
    },
    Operation {
        route: Route::ClusterDecommission,
        verb: Verb::Delete,
        id: "cancelDecommission",
        summary: "Keeps a member that was being taken out. What was moved away stays where it is.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(204, "It stays.", Shape::Nothing)],
        refusals: &[BAD_QUERY, NO_MEMBER, refused(409, &[Blocked]), PANIC, METADATA],
    },
    Operation {
        route: Route::ClusterForget,
        verb: Verb::Post,
        id: "forgetMember",
        summary: "Gives up a member that is dead for good. What only it had is lost; its partitions keep it as their owner.",
        inputs: &[CLIENT],
        body: Body::None,
        answers: &[answer(200, "It is a member no more.", Shape::Json(shape::<Forgotten>))],
        refusals: &[refused(400, &[InvalidArgument]), NO_MEMBER, refused(409, &[Blocked]), PANIC, METADATA],
    },
    Operation {
        route: Route::ClusterMoves,
        verb: Verb::Get,
        id: "clusterMoves",
        summary: "Lists the partitions that are being moved to other nodes.",
        inputs: &[Input::Text("detail", "`true`: with what is known of the two nodes.")],
        body: Body::None,
        answers: &[answer(200, "The moves.", Shape::Json(shape::<ClusterMoves>))],
        refusals: &[BAD_QUERY, PANIC],
    },
    Operation {
        route: Route::ClusterAbort,
        verb: Verb::Post,
        id: "abortMove",
        summary: "Ends a move: the partition stays with its owner.",
        inputs: &[
            Input::Text("target", "Only if it goes to this node."),
            Input::Text("tenant", "Whose topic, if not the caller's."),
            CLIENT,
        ],
        body: Body::None,
        answers: &[answer(202, "It is ended.", Shape::Json(shape::<MoveAborted>))],
        refusals: &[BAD_QUERY, refused(404, &[TopicNotFound, NotFound]), refused(409, &[Conflict]), PANIC, METADATA],
    },
    Operation {
        route: Route::Users,
        verb: Verb::Get,
        id: "listUsers",
        summary: "Lists all users by name.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(200, "The users.", Shape::Json(list_of::<User>))],
        refusals: &[PANIC],
    },
    Operation {
        route: Route::Users,
        verb: Verb::Post,
        id: "createUser",
        summary: "Creates a user. Only the root admin gives `admin`.",
        inputs: &[CLIENT],
        body: Body::Required(Shape::Json(shape::<CreateUser>), "Who, with which password, and what they may do."),
        answers: &[answer(201, "The user.", Shape::Json(shape::<User>))],
        refusals: &[BAD_USER, TOO_SLOW, refused(409, &[AlreadyExists, LimitReached]), PANIC, METADATA],
    },
    Operation {
        route: Route::User,
        verb: Verb::Get,
        id: "describeUser",
        summary: "Shows a user.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(200, "The user.", Shape::Json(shape::<User>))],
        refusals: &[NO_SUCH_USER, PANIC, UNCONFIRMED],
    },
    Operation {
        route: Route::User,
        verb: Verb::Delete,
        id: "deleteUser",
        summary: "Deletes a user. Topics they own stay theirs by name.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(204, "They are gone.", Shape::Nothing)],
        refusals: &[NO_SUCH_USER, PANIC, METADATA],
    },
    Operation {
        route: Route::Grants,
        verb: Verb::Put,
        id: "setGrants",
        summary: "Replaces all that a user may do.",
        inputs: &[CLIENT],
        body: Body::Required(Shape::Json(shape::<SetGrants>), "All of it."),
        answers: &[answer(200, "The user.", Shape::Json(shape::<User>))],
        refusals: &[BAD_USER, NO_SUCH_USER, TOO_SLOW, PANIC, METADATA],
    },
    Operation {
        route: Route::Password,
        verb: Verb::Put,
        id: "setPassword",
        summary: "Replaces a user's password, one's own or, for admins, another's.",
        inputs: &[CLIENT],
        body: Body::Required(Shape::Json(shape::<SetPassword>), "The new one; with the old one, unless an admin sets it."),
        answers: &[answer(204, "It is set.", Shape::Nothing)],
        refusals: &[BAD_USER, NO_SUCH_USER, TOO_SLOW, refused(409, &[Conflict]), PANIC, METADATA],
    },
    Operation {
        route: Route::Tenants,
        verb: Verb::Get,
        id: "listTenants",
        summary: "Lists tenants by name.",
        inputs: &[
            Input::Number("limit", "How many tenants a page has: 100 unless given, 1000 at most."),
            Input::Text("page_token", "Where the page begins: `next_page_token` of the page before."),
        ],
        body: Body::None,
        answers: &[answer(200, "One page.", Shape::Json(shape::<TenantList>))],
        refusals: &[BAD_QUERY, PANIC],
    },
    Operation {
        route: Route::Tenant,
        verb: Verb::Get,
        id: "describeTenant",
        summary: "Shows a tenant; of one that is being deleted, also what is left of it.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(200, "The tenant.", Shape::Json(shape::<Tenant>))],
        refusals: &[NO_TENANT, PANIC, UNCONFIRMED],
    },
    Operation {
        route: Route::Tenant,
        verb: Verb::Put,
        id: "putTenant",
        summary: "Creates a tenant, suspends it or resumes it. The same may be said again.",
        inputs: &[CLIENT],
        body: Body::Required(Shape::Json(shape::<PutTenant>), "What it shall be."),
        answers: &[answer(200, "The tenant as it is now.", Shape::Json(shape::<Tenant>))],
        refusals: &[BAD_USER, TOO_SLOW, refused(409, &[Conflict, LimitReached]), PANIC, METADATA],
    },
    Operation {
        route: Route::Tenant,
        verb: Verb::Delete,
        id: "deleteTenant",
        summary: "Begins to delete a tenant with its users, its topics and their messages. It is named until nothing of it is left on any node.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(202, "The tenant, which nobody of it can use any more.", Shape::Json(shape::<Tenant>))],
        refusals: &[NO_TENANT, refused(409, &[Conflict]), PANIC, METADATA],
    },
    Operation {
        route: Route::TenantUsers,
        verb: Verb::Get,
        id: "listTenantUsers",
        summary: "Lists the users of a tenant by name.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(200, "The users.", Shape::Json(list_of::<User>))],
        refusals: &[NO_TENANT, PANIC, UNCONFIRMED],
    },
    Operation {
        route: Route::TenantUser,
        verb: Verb::Put,
        id: "putTenantUser",
        summary: "Creates a user of a tenant, or sets what is given of one. The same may be said again.",
        inputs: &[CLIENT],
        body: Body::Required(Shape::Json(shape::<PutUser>), "The password, which a new user needs, and all that the user may do."),
        answers: &[answer(200, "The user as it is now.", Shape::Json(shape::<User>))],
        refusals: &[BAD_USER, NO_TENANT, TOO_SLOW, refused(409, &[Conflict, AlreadyExists, LimitReached]), PANIC, METADATA],
    },
    Operation {
        route: Route::TenantUser,
        verb: Verb::Delete,
        id: "deleteTenantUser",
        summary: "Deletes a user of a tenant. What they own stays theirs by name.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(204, "The user is gone.", Shape::Nothing)],
        refusals: &[NO_TENANT, PANIC, METADATA],
    },
    Operation {
        route: Route::Accounts,
        verb: Verb::Get,
        id: "listAccounts",
        summary: "Lists all service accounts by name.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(200, "The accounts.", Shape::Json(list_of::<Account>))],
        refusals: &[PANIC],
    },
    Operation {
        route: Route::Accounts,
        verb: Verb::Post,
        id: "createAccount",
        summary: "Creates a service account: it has no password, and signs in with keys. Only the root admin gives `admin`.",
        inputs: &[CLIENT],
        body: Body::Required(Shape::Json(shape::<CreateAccount>), "Its name, and what it may do."),
        answers: &[answer(201, "The account.", Shape::Json(shape::<Account>))],
        refusals: &[BAD_USER, TOO_SLOW, refused(409, &[AlreadyExists, LimitReached]), PANIC, METADATA],
    },
    Operation {
        route: Route::Account,
        verb: Verb::Get,
        id: "describeAccount",
        summary: "Shows a service account.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(200, "The account.", Shape::Json(shape::<Account>))],
        refusals: &[NO_SUCH_USER, PANIC, UNCONFIRMED],
    },
    Operation {
        route: Route::Account,
        verb: Verb::Delete,
        id: "deleteAccount",
        summary: "Deletes a service account, and its keys. Topics that it owns stay its by name.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(204, "It is gone.", Shape::Nothing)],
        refusals: &[NO_SUCH_USER, PANIC, METADATA],
    },
    Operation {
        route: Route::AccountGrants,
        verb: Verb::Put,
        id: "setAccountGrants",
        summary: "Replaces all that a service account may do.",
        inputs: &[CLIENT],
        body: Body::Required(Shape::Json(shape::<SetGrants>), "All of it."),
        answers: &[answer(200, "The account.", Shape::Json(shape::<Account>))],
        refusals: &[BAD_USER, NO_SUCH_USER, TOO_SLOW, PANIC, METADATA],
    },
    Operation {
        route: Route::Keys,
        verb: Verb::Get,
        id: "listKeys",
        summary: "Lists the keys of a service account, oldest first, without what is secret of them.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(200, "The keys.", Shape::Json(list_of::<Key>))],
        refusals: &[NO_SUCH_USER, PANIC, UNCONFIRMED],
    },
    Operation {
        route: Route::Keys,
        verb: Verb::Post,
        id: "createKey",
        summary: "Creates a key of a service account, with which it signs in as `Authorization: Bearer`. It is shown in this answer alone.",
        inputs: &[CLIENT],
        body: Body::Required(Shape::Json(shape::<CreateKey>), "What it is for, and what bounds it."),
        answers: &[Answer { status: 201, what: "The key.", shape: Shape::Json(shape::<CreatedKey>), headers: NOT_KEPT }],
        refusals: &[BAD_USER, NO_SUCH_USER, TOO_SLOW, refused(409, &[Conflict, LimitReached]), PANIC, METADATA],
    },
    Operation {
        route: Route::Key,
        verb: Verb::Delete,
        id: "deleteKey",
        summary: "Deletes a key: whoever signs in with it is refused from then on, and what waits with it is cut off.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(204, "It is gone.", Shape::Nothing)],
        refusals: &[NO_SUCH_USER, PANIC, METADATA],
    },
    Operation {
        route: Route::Whoami,
        verb: Verb::Get,
        id: "whoami",
        summary: "Says who the caller is, and what they may do.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(200, "Who.", Shape::Json(shape::<Whoami>))],
        refusals: &[PANIC],
    },
    Operation {
        route: Route::Audit,
        verb: Verb::Get,
        id: "audit",
        summary: "Lists who changed what of the caller's tenant, oldest first: lines of JSON, each with its SHA-256 and that of the one before it.",
        inputs: &[KIND, AFTER, RECORDS],
        body: Body::None,
        answers: &[answer(200, "The next records; none, if there are no more.", Shape::Lines)],
        refusals: &[BAD_QUERY, PANIC, UNCONFIRMED],
    },
    Operation {
        route: Route::AdminAudit,
        verb: Verb::Get,
        id: "adminAudit",
        summary: "Lists the same of any tenant. What concerns nodes and tenants stands with the tenant `default`.",
        inputs: &[Input::Text("tenant", "Which; `default` unless given."), KIND, AFTER, RECORDS],
        body: Body::None,
        answers: &[answer(200, "The next records; none, if there are no more.", Shape::Lines)],
        refusals: &[BAD_QUERY, refused(404, &[NotFound]), PANIC, UNCONFIRMED],
    },
    Operation {
        route: Route::Explain,
        verb: Verb::Get,
        id: "explain",
        summary: "Tells why a user may do something, or may not, and what is missing. Of others than oneself, to admins; of another tenant's, to operators.",
        inputs: &[
            Input::Text("tenant", "Whose user; one's own tenant unless given."),
            Input::Text("user", "Who; whoever asks unless given."),
            Input::Text("action", "`produce`, `consume`, `create`, `see`, `manage` or `admin`."),
            Input::Text("topic", "To which topic, which need not be there. Needed for every action but `admin`."),
        ],
        body: Body::None,
        answers: &[answer(200, "Whether, and why.", Shape::Json(shape::<Explained>))],
        refusals: &[BAD_QUERY, NO_SUCH_USER, refused(403, &[ErrorCode::Forbidden]), PANIC, UNCONFIRMED],
    },
    Operation {
        route: Route::TenantQuota,
        verb: Verb::Get,
        id: "describeQuota",
        summary: "Shows the limits of a tenant and of its topics. For operators.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(200, "The limits; what is absent is not limited.", Shape::Json(shape::<QuotaView>))],
        refusals: &[NO_TENANT, PANIC, UNCONFIRMED],
    },
    Operation {
        route: Route::TenantQuota,
        verb: Verb::Put,
        id: "setQuota",
        summary: "Replaces the limits of a tenant or of one of its topics. For operators.",
        inputs: &[CLIENT],
        body: Body::Required(Shape::Json(shape::<SetQuota>), "All limits of the tenant, or of the topic that is named."),
        answers: &[answer(200, "All limits of the tenant and of its topics.", Shape::Json(shape::<QuotaView>))],
        refusals: &[BAD_USER, refused(404, &[NotFound, TopicNotFound]), TOO_SLOW, refused(409, &[Conflict, LimitReached]), PANIC, METADATA],
    },
    Operation {
        route: Route::AdminUsage,
        verb: Verb::Get,
        id: "listUsage",
        summary: "Tells what every tenant has used, by name. For operators.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(200, "Of every tenant that has used something.", Shape::Json(list_of::<Usage>))],
        refusals: &[PANIC],
    },
    Operation {
        route: Route::Quota,
        verb: Verb::Get,
        id: "quota",
        summary: "Shows the limits of one's own tenant and of its topics.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(200, "The limits; what is absent is not limited.", Shape::Json(shape::<QuotaView>))],
        refusals: &[PANIC],
    },
    Operation {
        route: Route::Usage,
        verb: Verb::Get,
        id: "usage",
        summary: "Tells what one's own tenant has used.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(200, "Over all nodes that answered.", Shape::Json(shape::<Usage>))],
        refusals: &[PANIC],
    },
    Operation {
        route: Route::TokenIssuer,
        verb: Verb::Get,
        id: "describeTokenIssuer",
        summary: "Shows whose bearer tokens are taken, and by which public keys they are known. For operators.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(200, "The issuer.", Shape::Json(shape::<TokenIssuer>))],
        refusals: &[refused(404, &[NotFound]), PANIC, UNCONFIRMED],
    },
    Operation {
        route: Route::TokenIssuer,
        verb: Verb::Put,
        id: "putTokenIssuer",
        summary: "Says whose bearer tokens are taken, and by which public keys they are known. The same may be said again. For operators.",
        inputs: &[CLIENT],
        body: Body::Required(Shape::Json(shape::<PutTokenIssuer>), "All of it: a key that is absent is not good any more."),
        answers: &[answer(200, "The issuer as it is now.", Shape::Json(shape::<TokenIssuer>))],
        refusals: &[BAD_USER, TOO_SLOW, refused(409, &[Conflict]), PANIC, METADATA],
    },
    Operation {
        route: Route::TokenIssuer,
        verb: Verb::Delete,
        id: "deleteTokenIssuer",
        summary: "Takes nobody's bearer tokens any more; so also where nobody's were taken. For operators.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(204, "Nobody's are.", Shape::Nothing)],
        refusals: &[PANIC, METADATA],
    },
    Operation {
        route: Route::Healthz,
        verb: Verb::Get,
        id: "healthz",
        summary: "Does the process answer?",
        inputs: &[],
        body: Body::None,
        answers: &[
            answer(200, "It does.", Shape::Json(shape::<Health>)),
            answer(503, "It is about to stop.", Shape::Json(shape::<Health>)),
        ],
        refusals: &[PANIC],
    },
    Operation {
        route: Route::Readyz,
        verb: Verb::Get,
        id: "readyz",
        summary: "Does the node take work?",
        inputs: &[],
        body: Body::None,
        answers: &[answer(200, "It does.", Shape::Json(shape::<Health>))],
        refusals: &[PANIC, refused(503, &[NotReady])],
    },
    Operation {
        route: Route::Metrics,
        verb: Verb::Get,
        id: "metrics",
        summary: "Counters and gauges in Prometheus' text format.",
        inputs: &[],
        body: Body::None,
        answers: &[answer(200, "All of them.", Shape::Text)],
        refusals: &[Refusals { status: 404, codes: &[NotFound], form: Form::Text }, PANIC],
    },
];
