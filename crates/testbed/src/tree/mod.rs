//! Trees of files: made with everything that trips programs over, surveyed by the words of the design, and
//! compared.
//!
//! Written from the promises and not from the code that keeps them: it shares nothing with `storage`.

mod compare;
mod make;
mod real;
mod survey;

pub use compare::{Difference, assert_same, compare};
pub use make::{add_odd, content, make, make_uniform};
pub use real::real_tree;
pub use survey::{Content, Survey, content_of, stored, survey};
pub(crate) use survey::{bytes, names, path};
