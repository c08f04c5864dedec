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
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{
    ComponentsBuilder, Content, ContentBuilder, HttpMethod, InfoBuilder, License, OpenApi, OpenApiBuilder, PathItem, PathsBuilder, Ref,
    RefOr, Required, Response, ResponseBuilder, Schema,
};
use utoipa::{PartialSchema, ToSchema};
use veena_client::bodies::ErrorBody;

use crate::route::Verb;
use operations::{Body, Form, Input, Operation, Refusals, Shape};

/// Schemas that are referred to, by name.
pub(crate) type Schemas = BTreeMap<String, RefOr<Schema>>;

const DESCRIPTION: &str = "Topics, leased queues, replay, fan-out and delay over plain HTTP/1.1. `HEAD` is served wherever `GET` is. \
A refusal names a code; `effect` says whether the thing may have happened all the same. A refusal in plain text says both in headers.";

/// The document as indented JSON.
#[must_use]
pub fn openapi_json() -> String {
    document().to_pretty_json().expect("invariant: our own document has string keys and no failing serializer")
}

const PATH_PARAMETERS: [(&str, Type, &str); 4] = [
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
    let components = ComponentsBuilder::new().schemas_from_iter(schemas).build();
    OpenApiBuilder::new().info(info).paths(paths).components(Some(components)).build()
}

fn method(verb: Verb) -> HttpMethod {
    match verb {
        Verb::Get => HttpMethod::Get,
        Verb::Post => HttpMethod::Post,
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
    for refusals in operation.refusals.iter().chain(operations::everywhere(operation.verb)) {
        built = built.response(refusals.status.to_string(), refused(refusals, schemas));
    }
    built.build()
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
fn refused(refusals: &Refusals, schemas: &mut Schemas) -> Response {
    let codes: Vec<&str> = refusals.codes.iter().map(|code| code.as_str()).collect();
    let words: Vec<String> = codes.iter().map(|code| format!("`{code}`")).collect();
    let extensions = Extensions::builder().add("x-veena-codes", codes).build();
    let mut response = ResponseBuilder::new().description(words.join(", ")).extensions(Some(extensions));
    if refusals.form != Form::Text {
        response = response.content("application/json", Content::new(Some(shape::<ErrorBody>(schemas))));
    }
    if refusals.form != Form::Json {
        response = response
            .content("text/plain", Content::new(Some(of_type(Type::String))))
            .header("Veena-Error-Code", header(Type::String, "The code, where the body is plain text."))
            .header("Veena-Effect", header(Type::String, "`none` or `possible`, where the body is plain text."));
    }
    if matches!(refusals.status, 429 | 503) {
        response = response.header("Retry-After", header(Type::Integer, "Seconds to wait before a repeat."));
    }
    if refusals.status == 405 {
        response = response.header("Allow", header(Type::String, "The methods that are served on this path."));
    }
    response.build()
}
