//! Prints the OpenAPI description, to be kept as `openapi/native.json`.

use std::io::Write;

fn main() -> std::io::Result<()> {
    let document = serde_json::to_string_pretty(&longhaul_api::openapi::document())?;
    writeln!(std::io::stdout(), "{document}")
}
