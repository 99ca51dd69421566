use crate::Principal;
use longhaul_model::{Fault, Timestamp};

/// A person who is logged in.
#[derive(Clone)]
pub struct Session {
    pub principal: Principal,
    pub csrf_token: String,
    pub expires: Timestamp,
}

/// Login sessions and one-time login tokens, in memory: a restart logs everyone out.
pub struct Sessions {}

impl Default for Sessions {
    fn default() -> Self {
        Self::new()
    }
}

impl Sessions {
    pub fn new() -> Self {
        todo!()
    }
    /// Opens a session; returns the cookie's value.
    pub fn create(&self, _principal: Principal, _now: Timestamp) -> String {
        todo!()
    }
    pub fn get(&self, _cookie: &str, _now: Timestamp) -> Option<Session> {
        todo!()
    }
    pub fn end(&self, _cookie: &str) {
        todo!()
    }
    /// Whether `token` is the CSRF token of that session.
    pub fn check_csrf(&self, _cookie: &str, _token: &str, _now: Timestamp) -> Result<(), Fault> {
        todo!()
    }
    /// A token that opens one session within ten minutes.
    pub fn create_login_token(&self, _principal: Principal, _now: Timestamp) -> String {
        todo!()
    }
    /// Uses up a login token; returns the cookie's value.
    pub fn redeem(&self, _login_token: &str, _now: Timestamp) -> Result<String, Fault> {
        todo!()
    }
}
