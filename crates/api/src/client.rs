//! Typed HTTP client.
