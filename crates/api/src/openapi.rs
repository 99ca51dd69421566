//! The OpenAPI 3.1 description of the native API, generated from the table of routes and the types of
//! requests and replies.
//!
//! The repository has the same document as `openapi/native.json`; a test fails if they differ. After an
//! intended change: `cargo run -p longhaul-api --example openapi > openapi/native.json`.

use serde_json::{Map, Value, json};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::native::Page;
use crate::routes::{
    self, Access, Body, CSRF_HEADER, IDEMPOTENCY_HEADER, IDEMPOTENCY_KEY_SYNTAX, Method,
    QUERY_VALUE_BYTES_MAX, Query, QueryKind, Route, SESSION_COOKIE, SESSION_COOKIE_TLS,
};
use crate::{
    Problem, accounts, agent, circuits, commissioning, jobs, limits, measured, native, network, steering,
};

/// The complete document.
pub fn document() -> Value {
    let mut paths = Map::new();
    for route in routes::ALL {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.word().to_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Longhaul native API",
            "version": "1",
            "description": "Keeps datasets at sites and moves them there. Errors are problem documents (RFC \
                9457) with a code, the reason and the next step. Lists are paged: pass `next` of a page as \
                `after` to get the next one. A path parameter is one segment: write the `/` in dataset names \
                as `%2F`.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "responses": { "Problem": problem_response() },
            "securitySchemes": security_schemes(),
        },
    })
}

fn operation(route: &Route) -> Value {
    let mut operation = json!({
        "operationId": route.operation,
        "summary": route.summary,
        "description": role_text(route.access),
        "tags": [tag(route)],
        "security": security(route),
        "responses": {
            // Answered before the request is known to be one, so without a problem document.
            "431": { "description": "The head of the request, with its path and query, is over 32 KiB." },
            "default": { "$ref": "#/components/responses/Problem" },
        },
    });
    let mut success = json!({ "description": "Success." });
    if let Some(content) = content(route.reply) {
        success["content"] = content;
    }
    operation["responses"][route.status.to_string()] = success;
    let parameters = parameters(route);
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(content) = content(route.request) {
        operation["requestBody"] = json!({ "required": true, "content": content });
    }
    operation
}

/// The first segment of the path after the version, such as `datasets`.
fn tag(route: &Route) -> &'static str {
    let rest = route.path.strip_prefix("/api/v1/").unwrap_or("process");
    rest.split(['/', '.']).next().unwrap_or(rest)
}

fn role_text(access: Access) -> &'static str {
    match access {
        Access::Public => "Requires no credential.",
        Access::LocalOrViewer => {
            "Requires the role viewer; no credential from a loopback address of the service's host."
        }
        Access::Viewer => "Requires the role viewer.",
        Access::Manager => "Requires the role admin, or manager of the site or community concerned.",
        Access::Admin => "Requires the role admin.",
        Access::Submitter => {
            "Requires the role admin, or a community, given by `service.fts.people` or by the login."
        }
        Access::Observer => "Requires the role observer or admin.",
        Access::AgentCertificate => "Requires the certificate of an agent of this deployment, over TLS 1.3.",
    }
}

fn security(route: &Route) -> Value {
    match route.access {
        Access::Public => json!([]),
        Access::LocalOrViewer => json!([{}, { "token": [] }, { "session": [] }]),
        Access::AgentCertificate => json!([{ "agent": [] }]),
        Access::Observer => json!([{ "token": [] }, { "session": [], "csrf": [] }]),
        _ if route.method == Method::Get => json!([{ "token": [] }, { "session": [] }]),
        _ => json!([{ "token": [] }, { "session": [], "csrf": [] }]),
    }
}

fn security_schemes() -> Value {
    json!({
        "token": { "type": "http", "scheme": "bearer", "description": "An API token, lht_…" },
        "session": { "type": "apiKey", "in": "cookie", "name": SESSION_COOKIE,
            "description": format!("Over TLS its name is {SESSION_COOKIE_TLS}.") },
        "csrf": { "type": "apiKey", "in": "header", "name": CSRF_HEADER,
            "description": "CSRF token of the session, for requests that change something." },
        "agent": { "type": "mutualTLS", "description": "Certificate of an agent, issued by the deployment's \
            authority." },
    })
}

fn parameters(route: &Route) -> Vec<Value> {
    let in_path = route.parameters().map(|name| {
        let schema = routes::parameter_syntax(name).map_or_else(
            || json!({ "type": "string" }),
            |syntax| json!({ "type": "string", "pattern": syntax.pattern, "maxLength": syntax.chars_max }),
        );
        json!({ "name": name, "in": "path", "required": true, "schema": schema })
    });
    let in_query = route.query.iter().map(query_parameter);
    let key = route.idempotency_key.then(|| {
        let syntax = IDEMPOTENCY_KEY_SYNTAX;
        json!({ "name": IDEMPOTENCY_HEADER, "in": "header", "required": false,
            "schema": { "type": "string", "pattern": syntax.pattern, "maxLength": syntax.chars_max },
            "description": "A repetition with the same key gets the first answer and does nothing." })
    });
    in_path.chain(in_query).chain(key).collect()
}

fn query_parameter(query: &Query) -> Value {
    let schema = match query.kind {
        QueryKind::Text => json!({ "type": "string", "maxLength": QUERY_VALUE_BYTES_MAX }),
        // An empty value is the same as none.
        QueryKind::Name(syntax) => json!({ "type": "string", "pattern": format!("^$|{}", syntax.pattern),
            "maxLength": syntax.chars_max }),
        QueryKind::Word(words) => {
            let words = [&[""], words].concat();
            json!({ "type": "string", "enum": words })
        }
        QueryKind::Time => {
            let none = json!({ "type": "string", "maxLength": 0 });
            json!({ "anyOf": [none, { "type": "string", "format": "date-time" }] })
        }
        QueryKind::Integer(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
        QueryKind::Boolean => json!({ "type": "boolean" }),
    };
    json!({ "name": query.name, "in": "query", "required": query.required, "description": query.summary,
        "schema": schema })
}

fn content(body: Body) -> Option<Value> {
    let media_type = body.media_type()?;
    let schema = match body {
        Body::Json(name) | Body::Lines(name) | Body::Events(name) => json!({ "$ref": reference(name) }),
        Body::Document => json!({ "type": "object" }),
        Body::Text | Body::None => json!({ "type": "string" }),
    };
    let mut content = Map::new();
    content.insert(media_type.to_owned(), json!({ "schema": schema }));
    Some(content.into())
}

fn problem_response() -> Value {
    json!({
        "description": "What went wrong, why, what to do next, and an id to quote. 429: the caller exceeds \
            its limit of requests per second or of files under way. 503 and 507: the service cannot handle \
            the request now. All three say in `Retry-After` when to try again.",
        "headers": { "Retry-After": { "description": "For 429, 503 and 507: seconds to wait before another \
            try.",
            "schema": { "type": "integer", "minimum": 1 } } },
        "content": { "application/problem+json": { "schema": { "$ref": reference("Problem") } } },
    })
}

fn reference(name: &str) -> String {
    format!("#/components/schemas/{name}")
}

/// All types that routes name, and those inside them.
fn schemas() -> Map<String, Value> {
    let mut collected: Vec<(String, RefOr<Schema>)> = Vec::new();
    macro_rules! whole {
        ($($name:ty),* $(,)?) => { $(
            collected.push((<$name>::name().into_owned(), <$name>::schema()));
            <$name>::schemas(&mut collected);
        )* };
    }
    macro_rules! pages {
        ($($item:ty),* $(,)?) => { $(
            collected.push((format!("Page_{}", <$item>::name()), Page::<$item>::schema()));
            collected.push((<$item>::name().into_owned(), <$item>::schema()));
            <$item>::schemas(&mut collected);
        )* };
    }
    whole!(
        Problem,
        agent::JoinRequest,
        agent::JoinReply,
        agent::RenewRequest,
        agent::RenewReply,
        agent::Report,
        agent::ReportReply,
        agent::WorkRequest,
        agent::Work,
        native::DatasetCreate,
        native::ScanRequest,
        native::ManifestLine,
        native::Registered,
        native::DeletionRequest,
        native::CopyView,
        native::DeletionReply,
        native::VerificationRequest,
        native::FileReplicas,
        native::Subscribe,
        native::SubscriptionChange,
        native::TransferDetail,
        native::SiteAdd,
        native::SiteAdded,
        native::AgentRefusal,
        native::AgentRefused,
        native::AgentRemoval,
        native::AgentRemoved,
        native::SiteRemoval,
        native::SiteRemoved,
        native::StorageRemoval,
        native::StorageRemoved,
        native::StorageAllow,
        native::StorageAllowed,
        native::SiteChange,
        native::JoinTokenCreate,
        native::Status,
        native::RateHistory,
        native::CheckReport,
        native::ChangeEvent,
        native::WhoAmI,
        accounts::AccountAdd,
        accounts::AccountChange,
        native::TokenCreate,
        native::TokenCreated,
        native::LoginRequest,
        native::LoginReply,
        native::LoginToken,
        native::Health,
        circuits::CircuitRequest,
        circuits::CircuitDetail,
        circuits::CircuitPlan,
        commissioning::Commissioning,
        jobs::JobSubmit,
        jobs::JobChange,
        jobs::JobDetail,
        network::NetworkView,
        network::NetworkLinkDetail,
        network::NetworkImport,
        network::NetworkImported,
        measured::MeasurementsTaken,
        measured::HostsChange,
        measured::HostsChanged,
        steering::StorageChange,
        limits::LimitChange,
        steering::MoverGrantChange,
        steering::ShareChange,
        steering::LinksView,
        steering::LinksSet,
        steering::LinksChange,
    );
    pages!(
        native::DatasetView,
        native::BlockView,
        native::FileView,
        native::ReplicaView,
        native::TaskView,
        native::SubscriptionView,
        native::TransferView,
        native::SiteView,
        native::StorageView,
        native::ProblemView,
        native::TokenView,
        accounts::AccountView,
        jobs::JobView,
        network::NetworkLink,
        measured::HostView,
        measured::UnmappedHost,
        measured::ArchiveView,
        limits::LimitView,
        circuits::CircuitView,
        circuits::CircuitRecord,
        steering::MoverGrantView,
        steering::ShareView,
        steering::AuditEntry,
        steering::DecisionEntry,
    );
    let as_json = |schema| serde_json::to_value(schema).unwrap_or_default();
    let mut schemas = collected.into_iter().map(|(name, schema)| (name, as_json(schema))).collect();
    merge_flattened_requests(&mut schemas);
    schemas.values_mut().for_each(bound_integers);
    schemas
}

/// A whole number without a range of its own has the one of its type.
fn bound_integers(schema: &mut Value) {
    if let Some(format) = schema["format"].as_str().filter(|_| schema["minimum"] == 0) {
        let most = match format {
            "int32" => u64::from(u32::MAX),
            "int64" => u64::MAX,
            _ => return,
        };
        if schema.get("maximum").is_none() {
            schema["maximum"] = most.into();
        }
        return;
    }
    match schema {
        Value::Object(keys) => keys.values_mut().for_each(bound_integers),
        Value::Array(items) => items.iter_mut().for_each(bound_integers),
        _ => {}
    }
}

/// A request with a flattened part is one object without further keys. Composed with `allOf`, each part would
/// have to allow the keys of the other.
fn merge_flattened_requests(schemas: &mut Map<String, Value>) {
    let requests = routes::ALL.iter().filter_map(|route| match route.request {
        Body::Json(name) => Some(name),
        _ => None,
    });
    let mut merged_parts = Vec::new();
    for name in requests {
        let Some(parts) = schemas.get(name).and_then(|schema| schema["allOf"].as_array().cloned()) else {
            continue;
        };
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for part in parts {
            let named = part["$ref"].as_str().and_then(|path| path.rsplit('/').next()).map(str::to_owned);
            let part = named.as_ref().and_then(|part| schemas.get(part)).cloned().unwrap_or(part);
            properties.extend(part["properties"].as_object().cloned().unwrap_or_default());
            required.extend(part["required"].as_array().cloned().unwrap_or_default());
            merged_parts.extend(named);
        }
        let description = schemas[name]["description"].clone();
        schemas[name] = json!({ "type": "object", "description": description, "properties": properties,
            "required": required, "additionalProperties": false });
    }
    // What nothing else refers to has no place of its own any more.
    let text = Value::Object(schemas.clone()).to_string();
    for part in merged_parts.into_iter().filter(|part| !text.contains(&format!("{}\"", reference(part)))) {
        schemas.remove(&part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(map) => {
                if let Some(Value::String(target)) = map.get("$ref") {
                    found.insert(target.clone());
                }
                map.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_schema_is_used() {
        let document = document();
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        for target in &found {
            let pointer = target.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some_and(|schema| !schema.is_null()), "{target} is missing");
        }
        for name in document["components"]["schemas"].as_object().unwrap().keys() {
            assert!(found.contains(&reference(name)), "{name} is used nowhere");
        }
    }

    #[test]
    fn every_route_is_described_with_its_parameters() {
        let document = document();
        for route in routes::ALL {
            let operation = &document["paths"][route.path][route.method.word().to_lowercase()];
            assert_eq!(operation["operationId"], route.operation);
            assert!(operation["responses"][route.status.to_string()].is_object(), "{}", route.operation);
            let described = operation["parameters"].as_array().map_or(0, Vec::len);
            let known = route.parameters().count() + route.query.len() + usize::from(route.idempotency_key);
            assert_eq!(described, known, "{}", route.operation);
        }
    }

    #[test]
    fn parameters_have_their_syntax_and_their_range() {
        let document = document();
        let schema = |path: &str, name: &str| {
            let parameters = document["paths"][path]["get"]["parameters"].as_array().unwrap();
            parameters.iter().find(|parameter| parameter["name"] == name).unwrap()["schema"].clone()
        };
        let limit = schema("/api/v1/sites", "limit");
        assert_eq!(limit, json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX }));
        let site = schema("/api/v1/sites/{site}", "site");
        let syntax = longhaul_model::SiteName::SYNTAX;
        assert_eq!(site["pattern"], syntax.pattern);
        assert_eq!(site["maxLength"], syntax.chars_max);
        let source = schema("/api/v1/transfers", "source");
        assert!(source["pattern"].as_str().unwrap().starts_with("^$|"), "{source}");
    }

    #[test]
    fn the_committed_description_is_this_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../openapi/native.json");
        let committed: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert!(
            committed == document(),
            "openapi/native.json is out of date: cargo run --release -p longhaul-api --example openapi > \
                openapi/native.json"
        );
    }
}
