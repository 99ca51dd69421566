//! PROPPATCH (RFC 4918): clients set dead properties. Live ones, which the door computes, are protected.

use crate::answer::{Outcome, Refusal};
use crate::body::Body;
use crate::locks::WriteScope;
use crate::properties::Edit;
use crate::propfind::{
    MULTISTATUS, PROPERTIES_MAX, begin_response, document, is_told_by_door, multistatus, propstat,
};
use crate::rights::Action;
use crate::serve::{Call, blocking};
use crate::tree::there;
use crate::xml::{Element, XML_BYTES_MAX, empty_element};

pub(crate) async fn proppatch(mut call: Call) -> Outcome {
    let body = call.small_body(XML_BYTES_MAX).await?;
    let edits = edits(&body)?;
    blocking(move || change(&call, edits)).await
}

/// The edits in the order of the request, in which they are applied.
fn edits(body: &[u8]) -> Outcome<Vec<Edit>> {
    let root = document(body, "propertyupdate")?;
    let mut edits = Vec::new();
    for step in root.children() {
        let sets = step.name.is_dav("set");
        if !sets && !step.name.is_dav("remove") {
            continue;
        }
        let named = step.child("prop").into_iter().flat_map(Element::children);
        edits.extend(named.map(|element| (element.name.clone(), sets.then(|| element.to_text()))));
    }
    if edits.is_empty() || edits.len() > PROPERTIES_MAX {
        let text = format!("the request changes {} properties: 1 to {PROPERTIES_MAX} are taken", edits.len());
        return Err(Refusal::bad(text));
    }
    Ok(edits)
}

fn change(call: &Call, edits: Vec<Edit>) -> Outcome {
    let (shared, place) = (&call.shared, &call.place);
    let entry = there(call, Action::Change)?;
    call.check_locks(&[WriteScope::One(&place.path)])?;
    let mut text = MULTISTATUS.to_owned();
    begin_response(&mut text, &place.path, &entry);
    let names = |of: &dyn Fn(&Edit) -> bool| -> String {
        edits.iter().filter(|edit| of(edit)).map(|(name, _)| empty_element(name)).collect()
    };
    let protected = |edit: &Edit| is_told_by_door(&edit.0);
    if edits.iter().any(protected) {
        // All or nothing.
        propstat(&mut text, &names(&protected), "403 Forbidden");
        let others = names(&|edit| !protected(edit));
        if !others.is_empty() {
            propstat(&mut text, &others, "424 Failed Dependency");
        }
    } else {
        propstat(&mut text, &names(&|_| true), "200 OK");
        shared.properties.change(&place.path, edits)?;
    }
    text.push_str("</D:response>\n</D:multistatus>\n");
    Ok(multistatus(Body::from(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_keep_their_order() {
        let body = b"<propertyupdate xmlns='DAV:'><remove><prop><a xmlns='u'/></prop></remove>\
                     <set><prop><a xmlns='u'>1<b/></a><c xmlns='u'/></prop></set></propertyupdate>";
        let read = edits(body).unwrap();
        let shown: Vec<(&str, Option<&str>)> =
            read.iter().map(|(name, element)| (name.local.as_str(), element.as_deref())).collect();
        assert_eq!(
            shown,
            [
                ("a", None),
                ("a", Some("<x:a xmlns:x=\"u\">1<x:b xmlns:x=\"u\"/></x:a>")),
                ("c", Some("<x:c xmlns:x=\"u\"/>"))
            ]
        );
        for bad in ["<propertyupdate xmlns='DAV:'/>", "<set xmlns='DAV:'><prop><a/></prop></set>", "x"] {
            assert!(edits(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
