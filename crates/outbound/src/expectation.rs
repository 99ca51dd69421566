//! `Expect: 100-continue` (RFC 9110 section 10.1.1): a server that redirects or refuses says so before the
//! content is on its way.

use http::header::{CONTENT_LENGTH, EXPECT, HeaderValue};
use http::{Request, StatusCode};

/// Makes the server say whether it wants the content; `on_continue` is called when it does. Returns whether
/// there is an answer to wait for: a request without content must not expect one, and some servers (XRootD)
/// answer 100 to it and then wait for content for ever.
pub fn expect_continue<B>(
    request: &mut Request<B>,
    content_bytes: u64,
    on_continue: impl Fn() + Send + Sync + 'static,
) -> bool {
    request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(content_bytes));
    request.headers_mut().remove(EXPECT);
    if content_bytes == 0 {
        return false;
    }
    request.headers_mut().insert(EXPECT, HeaderValue::from_static("100-continue"));
    hyper::ext::on_informational(request, move |response| {
        if response.status() == StatusCode::CONTINUE {
            on_continue();
        }
    });
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(content_bytes: u64, before: Option<&'static str>) -> (bool, Option<HeaderValue>, HeaderValue) {
        let mut request = Request::new(());
        if let Some(before) = before {
            request.headers_mut().insert(EXPECT, HeaderValue::from_static(before));
        }
        let waits = expect_continue(&mut request, content_bytes, || {});
        let headers = request.headers();
        (waits, headers.get(EXPECT).cloned(), headers[CONTENT_LENGTH].clone())
    }

    #[test]
    fn a_request_without_content_expects_nothing() {
        assert_eq!(sent(0, None), (false, None, HeaderValue::from(0)));
        assert_eq!(sent(0, Some("100-continue")), (false, None, HeaderValue::from(0)));
    }

    #[test]
    fn content_of_any_length_waits_to_be_wanted() {
        for content_bytes in [1, 1 << 40] {
            let (waits, expect, length) = sent(content_bytes, None);
            assert!(waits);
            assert_eq!(expect.unwrap(), "100-continue");
            assert_eq!(length, HeaderValue::from(content_bytes));
        }
    }
}
