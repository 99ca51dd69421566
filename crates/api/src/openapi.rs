//! OpenAPI description.
