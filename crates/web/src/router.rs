//! Routes of the pages.
