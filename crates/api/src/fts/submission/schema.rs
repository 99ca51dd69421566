//! The JSON schema of a submission, for people and tools.

use serde_json::{Value, json};

use super::STRATEGIES;

/// Reply to `GET /api-docs/schema/submit`.
pub fn schema() -> Value {
    let maybe = |kind: &str| json!({ "type": [kind, "null"] });
    let number = json!({ "type": ["integer", "string", "null"] });
    let metadata = json!({ "type": ["object", "string", "null"] });
    let urls = json!({ "type": "array", "items": { "type": "string", "format": "uri", "maxLength": 1100 } });
    let mut parameters = serde_json::Map::new();
    for name in [
        "overwrite",
        "overwrite_on_retry",
        "overwrite_hop",
        "overwrite_when_only_on_disk",
        "multihop",
        "dst_file_report",
        "strict_copy",
        "disable_cleanup",
        "ipv4",
        "ipv6",
        "s3alternate",
        "unmanaged_tokens",
    ] {
        parameters.insert(name.to_owned(), maybe("boolean"));
    }
    for name in [
        "retry",
        "retry_delay",
        "bring_online",
        "copy_pin_lifetime",
        "archive_timeout",
        "timeout",
        "nostreams",
        "buffer_size",
    ] {
        parameters.insert(name.to_owned(), number.clone());
    }
    parameters.insert("priority".into(), json!({ "type": ["integer", "null"], "minimum": 1, "maximum": 5 }));
    parameters.insert("reuse".into(), json!({ "type": ["boolean", "string", "null"] }));
    parameters.insert("verify_checksum".into(), json!({ "type": ["boolean", "string", "null"] }));
    parameters.insert("job_metadata".into(), metadata.clone());
    parameters.insert("max_time_in_queue".into(), number);
    parameters.insert("id_generator".into(), json!({ "enum": ["standard", "deterministic", null] }));
    parameters.insert("sid".into(), maybe("string"));
    let file = json!({
        "type": "object",
        "required": ["sources", "destinations"],
        "properties": {
            "sources": urls, "destinations": urls,
            "source_tokens": { "type": "array", "items": { "type": "string" } },
            "destination_tokens": { "type": "array", "items": { "type": "string" } },
            "checksum": maybe("string"), "filesize": maybe("integer"), "metadata": metadata,
            "staging_metadata": maybe("object"), "archive_metadata": maybe("object"),
                "activity": maybe("string"),
            "scitag": { "type": ["integer", "null"], "minimum": 65, "maximum": 65535 },
            "selection_strategy": { "enum": STRATEGIES },
        },
    });
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A job of FTS3",
        "type": "object",
        "required": ["files"],
        "properties": {
            "files": { "type": "array", "minItems": 1, "items": file },
            "params": { "type": ["object", "null"], "properties": parameters },
        },
    })
}
