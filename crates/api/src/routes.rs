//! The list of routes.
