//! What the decoders of this room promise of any form that a browser sends. A broken promise is a panic:
//! fuzzing (`fuzz/`) looks for one, nothing else calls this.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use axum::body::Body;
use axum::extract::FromRequest;
use axum::{Form, http};
use serde::de::DeserializeOwned;

use crate::{jobs, login, router, steer};

/// The first byte says which form it is.
pub fn forms(bytes: &[u8]) {
    let Some((&which, body)) = bytes.split_first() else { return };
    match which % 12 {
        0 => drop(form::<login::TokenForm>(body)),
        1 => drop(form::<login::PasswordForm>(body)),
        2 => drop(form::<router::SubscribeForm>(body)),
        3 => drop(form::<router::SubscriptionForm>(body)),
        4 => drop(form::<jobs::JobForm>(body)),
        5 => {
            let Some(change) = form::<steer::ShareForm>(body).and_then(|form| form.change().ok()) else {
                return;
            };
            assert_eq!(change.community, change.community.trim());
            assert!(change.activity.is_none_or(|activity| !activity.trim().is_empty()));
        }
        6 => {
            let Some(change) = form::<steer::LimitForm>(body).and_then(|form| form.change().ok()) else {
                return;
            };
            assert_eq!(change.name, change.name.trim());
        }
        7 => {
            let Some(links) = form::<steer::LinkForm>(body).and_then(|form| form.link().ok()) else { return };
            assert_eq!(links.len(), 1);
        }
        8 => drop(form::<router::SiteForm>(body)),
        9 => drop(form::<router::BareForm>(body)),
        10 => drop(form::<login::LogoutForm>(body)),
        _ => drop(form::<steer::StorageForm>(body)),
    }
}

/// As the handlers get it.
fn form<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    let request = http::Request::post("/ui/")
        .header(http::header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(Body::from(body.to_vec()))
        .ok()?;
    // The whole body is there: there is nothing to wait for.
    match pin!(Form::<T>::from_request(request, &())).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(form) => form.ok().map(|Form(form)| form),
        Poll::Pending => panic!("a form whose bytes are there is waited for"),
    }
}
