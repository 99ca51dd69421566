//! What every storage must do.
use crate::Storage;
pub fn check(make: &dyn Fn() -> Box<dyn Storage>) {
    let _ = make();
}
