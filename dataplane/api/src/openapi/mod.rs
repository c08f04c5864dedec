//! The interface as an OpenAPI document, made from the routes, the bodies' types and the registry of error codes.
//!
//! What each operation takes and answers is listed in [`operations`], beside the handlers and never on their way. Tests hold the list
//! against the routes and the registry, and every answer of every test against the document.

mod operations;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::header::Header;
use utoipa::openapi::path::{OperationBuilder, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, Content, ContentBuilder, HttpMethod, InfoBuilder, License, OpenApi, OpenApiBuilder, PathItem, PathsBuilder, Ref,
    RefOr, Required, Response, ResponseBuilder, Schema,
};
use utoipa::{PartialSchema, ToSchema};
use veena_client::bodies::ErrorBody;
use veena_contract::ErrorCode;

use crate::rights::Need;
use crate::route::{Route, Verb};
use operations::{Body, Form, Input, Operation, Refusals, Shape};

/// Schemas that are referred to, by name.
pub(crate) type Schemas = BTreeMap<String, RefOr<Schema>>;

const DESCRIPTION: &str = "Topics, leased queues, replay, fan-out and delay over plain HTTP/1.1. `HEAD` is served wherever `GET` is. \
Callers are users, with Basic auth, and service accounts, with a key as bearer token, unless the node was started with security off. A refusal names a code; `effect` says whether the thing may have happened all the same. A refusal in plain text says both in headers.";

/// The document as indented JSON.
#[must_use]
pub fn openapi_json() -> String {
    document().to_pretty_json().expect("invariant: our own document has string keys and no failing serializer")
}

/// The name of one way to prove who one is.
const BASIC: &str = "basic";
/// And of the other one.
const KEY: &str = "key";

const PATH_PARAMETERS: [(&str, Type, &str); 8] = [
    ("tenant", Type::String, "The tenant's name: 1 to 63 of `a-z 0-9 -`, the first no `-`."),
    ("account", Type::String, "The service account's name."),
    ("key", Type::String, "The id of the key."),
    ("user", Type::String, "The user's name."),
    ("topic", Type::String, "The topic's name."),
    ("child", Type::String, "The child's name."),
    ("member", Type::String, "The member's name."),
    ("partition", Type::Integer, "The partition, from 0."),
];

fn document() -> OpenApi {
    let mut schemas = Schemas::new();
    let mut items: BTreeMap<&'static str, PathItem> = BTreeMap::new();
    for operation in operations::ALL {
        let item = PathItem::new(method(operation.verb), describe(operation, &mut schemas));
        match items.get_mut(operation.route.template()) {
            Some(others) => others.merge_operations(item),
            None => drop(items.insert(operation.route.template(), item)),
        }
    }
    let paths = items.into_iter().fold(PathsBuilder::new(), |paths, (path, item)| paths.path(path, item));
    let mut license = License::new("Apache-2.0");
    license.identifier = Some("Apache-2.0".to_owned());
    let info =
        InfoBuilder::new().title("Veena").version(env!("CARGO_PKG_VERSION")).description(Some(DESCRIPTION)).license(Some(license)).build();
    let components = ComponentsBuilder::new()
        .schemas_from_iter(schemas)
        .security_scheme(BASIC, SecurityScheme::Http(Http::new(HttpAuthScheme::Basic)))
        .security_scheme(KEY, SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)))
        .build();
    OpenApiBuilder::new().info(info).paths(paths).components(Some(components)).build()
}

fn method(verb: Verb) -> HttpMethod {
    match verb {
        Verb::Get => HttpMethod::Get,
        Verb::Post => HttpMethod::Post,
        Verb::Put => HttpMethod::Put,
        Verb::Patch => HttpMethod::Patch,
        Verb::Delete => HttpMethod::Delete,
    }
}

/// A type's schema: kept by its name, with all that it refers to, and referred to.
pub(crate) fn shape<T: ToSchema>(schemas: &mut Schemas) -> RefOr<Schema> {
    let mut referred = Vec::new();
    T::schemas(&mut referred);
    schemas.extend(referred);
    schemas.insert(T::name().into_owned(), <T as PartialSchema>::schema());
    Ref::from_schema_name(T::name()).into()
}

/// A list of a type's values.
pub(crate) fn list_of<T: ToSchema>(schemas: &mut Schemas) -> RefOr<Schema> {
    ArrayBuilder::new().items(shape::<T>(schemas)).build().into()
}

fn of_type(of: Type) -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(of).build().into()
}

fn describe(operation: &Operation, schemas: &mut Schemas) -> utoipa::openapi::path::Operation {
    let mut built = OperationBuilder::new().operation_id(Some(operation.id)).summary(Some(operation.summary));
    let template = operation.route.template();
    for (name, of, what) in PATH_PARAMETERS {
        if template.contains(&format!("{{{name}}}")) {
            built = built.parameter(parameter(ParameterIn::Path, name, of, what));
        }
    }
    for input in operation.inputs {
        built = built.parameter(match *input {
            Input::Text(name, what) => parameter(ParameterIn::Query, name, Type::String, what),
            Input::Number(name, what) => parameter(ParameterIn::Query, name, Type::Integer, what),
            Input::Header(name, what) => parameter(ParameterIn::Header, name, Type::String, what),
        });
    }
    built = built.request_body(request_body(operation.body, schemas));
    for answer in operation.answers {
        let mut response = ResponseBuilder::new().description(answer.what);
        if let Some((media_type, content)) = content(answer.shape, schemas) {
            response = response.content(media_type, content);
        }
        for (name, what) in answer.headers {
            response = response.header(*name, header(Type::String, what));
        }
        built = built.response(answer.status.to_string(), response.build());
    }
    for (status, (codes, form)) in refusals(operation) {
        built = built.response(status.to_string(), refused(status, &codes, form, schemas));
    }
    if need(operation.route, operation.verb) != Need::Anybody {
        for scheme in [BASIC, KEY] {
            built = built.security(SecurityRequirement::new(scheme, Vec::<String>::new()));
        }
    }
    built.build()
}

fn need(route: Route, verb: Verb) -> Need {
    let served = route.methods().iter().find(|(served, _)| *served == verb);
    served.expect("invariant: what is described is served").1
}

/// All refusals of an operation by status: its own, and those that come before it.
fn refusals(operation: &Operation) -> BTreeMap<u16, (Vec<ErrorCode>, Form)> {
    let mut by_status: BTreeMap<u16, (Vec<ErrorCode>, Form)> = BTreeMap::new();
    let before = operations::everywhere(operation.verb).iter().chain(operations::of_caller(need(operation.route, operation.verb)));
    for Refusals { status, codes, form } in operation.refusals.iter().chain(before) {
        let (all, written) = by_status.entry(*status).or_insert((Vec::new(), *form));
        all.extend(codes.iter().filter(|code| !all.contains(code)).copied().collect::<Vec<_>>());
        if *written != *form {
            *written = Form::Either;
        }
    }
    by_status
}

fn parameter(place: ParameterIn, name: &str, of: Type, what: &str) -> Parameter {
    let required = if place == ParameterIn::Path { Required::True } else { Required::False };
    ParameterBuilder::new().parameter_in(place).name(name).required(required).description(Some(what)).schema(Some(of_type(of))).build()
}

fn request_body(body: Body, schemas: &mut Schemas) -> Option<RequestBody> {
    let (required, shape, what) = match body {
        Body::None => return None,
        Body::Optional(shape, what) => (Required::False, shape, what),
        Body::Required(shape, what) => (Required::True, shape, what),
    };
    let (media_type, content) = content(shape, schemas)?;
    Some(RequestBodyBuilder::new().description(Some(what)).required(Some(required)).content(media_type, content).build())
}

fn content(shape: Shape, schemas: &mut Schemas) -> Option<(&'static str, Content)> {
    match shape {
        Shape::Nothing => None,
        Shape::Json(shape) => Some(("application/json", Content::new(Some(shape(schemas))))),
        Shape::OneOf(shapes) => {
            let one_of = shapes.iter().fold(utoipa::openapi::OneOfBuilder::new(), |one_of, shape| one_of.item(shape(schemas)));
            Some(("application/json", Content::new(Some(Schema::OneOf(one_of.build())))))
        }
        Shape::Bytes => Some(("application/octet-stream", ContentBuilder::new().build())),
        Shape::Text => Some(("text/plain", Content::new(Some(of_type(Type::String))))),
    }
}

fn header(of: Type, what: &str) -> Header {
    let mut header = Header::new(of_type(of));
    header.description = Some(what.to_owned());
    header
}

/// The refusals of one status: their codes in words, and under `x-veena-codes` for programs.
fn refused(status: u16, codes: &[ErrorCode], form: Form, schemas: &mut Schemas) -> Response {
    let codes: Vec<&str> = codes.iter().map(|code| code.as_str()).collect();
    let words: Vec<String> = codes.iter().map(|code| format!("`{code}`")).collect();
    let extensions = Extensions::builder().add("x-veena-codes", codes).build();
    let mut response = ResponseBuilder::new().description(words.join(", ")).extensions(Some(extensions));
    if form != Form::Text {
        response = response.content("application/json", Content::new(Some(shape::<ErrorBody>(schemas))));
    }
    if form != Form::Json {
        response = response
            .content("text/plain", Content::new(Some(of_type(Type::String))))
            .header("Veena-Error-Code", header(Type::String, "The code, where the body is plain text."))
            .header("Veena-Effect", header(Type::String, "`none` or `possible`, where the body is plain text."));
    }
    if matches!(status, 429 | 503) {
        response = response.header("Retry-After", header(Type::Integer, "Seconds to wait before a repeat."));
    }
    if status == 401 {
        response = response.header("WWW-Authenticate", header(Type::String, "What credentials are wanted: Basic auth."));
    }
    if status == 405 {
        response = response.header("Allow", header(Type::String, "The methods that are served on this path."));
    }
    response.build()
}
