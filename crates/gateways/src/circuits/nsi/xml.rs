//! A bounded XML tree of messages from providers: no document types, no entities but the five of XML, limits
//! on depth and number. Elements are matched by local name: providers disagree about namespaces, and unknown
//! elements are ignored.

use longhaul_model::{Fault, FaultCode};
use quick_xml::Reader;
use quick_xml::events::{BytesRef, Event};

const DEPTH_MAX: usize = 32;
const ELEMENTS_MAX: usize = 50_000;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Element {
    pub(crate) name: String,
    pub(crate) attributes: Vec<(String, String)>,
    pub(crate) text: String,
    pub(crate) children: Vec<Element>,
}

impl Element {
    pub(crate) fn child(&self, name: &str) -> Option<&Element> {
        self.children.iter().find(|child| child.name == name)
    }

    pub(crate) fn children<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Element> {
        self.children.iter().filter(move |child| child.name == name)
    }

    /// The text of a child, if there is any.
    pub(crate) fn text_of(&self, name: &str) -> Option<&str> {
        self.child(name).map(|child| child.text.trim()).filter(|text| !text.is_empty())
    }

    pub(crate) fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

pub(crate) fn read(text: &str) -> Result<Element, Fault> {
    read_root(text).map_err(|why| Fault::new(FaultCode::ProtocolError, format!("an answer is no XML: {why}")))
}

fn read_root(text: &str) -> Result<Element, String> {
    let mut reader = Reader::from_str(text);
    let mut open: Vec<Element> = Vec::new();
    let mut count = 0;
    loop {
        let event = reader.read_event().map_err(|error| error.to_string())?;
        let ended = match &event {
            Event::Start(start) | Event::Empty(start) => {
                count += 1;
                if open.len() >= DEPTH_MAX || count > ELEMENTS_MAX {
                    return Err(format!("more than {DEPTH_MAX} deep, or than {ELEMENTS_MAX} elements"));
                }
                let mut element =
                    Element { name: start.local_name().as_ref().to_string(), ..Element::default() };
                for attribute in start.attributes() {
                    let attribute = attribute.map_err(|error| error.to_string())?;
                    let name = attribute.key.local_name().as_ref().to_string();
                    element.attributes.push((name, attribute.value.to_string()));
                }
                open.push(element);
                matches!(event, Event::Empty(_))
            }
            Event::End(_) => true,
            Event::Text(text) => {
                add(&mut open, &text.xml10_content());
                false
            }
            Event::CData(text) => {
                add(&mut open, &text.xml10_content());
                false
            }
            Event::GeneralRef(reference) => {
                add(&mut open, &known(reference)?.to_string());
                false
            }
            Event::DocType(_) => return Err("it has a document type, which is never read".to_owned()),
            Event::Eof => return Err("it ends too early".to_owned()),
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) => false,
        };
        if !ended {
            continue;
        }
        let element = open.pop().ok_or("an end without a beginning")?;
        match open.last_mut() {
            Some(parent) => parent.children.push(element),
            None => return Ok(element),
        }
    }
}

fn add(open: &mut [Element], text: &str) {
    if let Some(element) = open.last_mut() {
        element.text.push_str(text);
    }
}

fn known(reference: &BytesRef<'_>) -> Result<char, String> {
    if let Some(letter) = reference.resolve_char_ref().map_err(|error| error.to_string())? {
        return Ok(letter);
    }
    match reference.xml10_content().as_ref() {
        "amp" => Ok('&'),
        "lt" => Ok('<'),
        "gt" => Ok('>'),
        "quot" => Ok('"'),
        "apos" => Ok('\''),
        other => Err(format!("the entity {:?} is not known", other.chars().take(20).collect::<String>())),
    }
}

pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // No document may have these.
            control if control.is_control() && !matches!(control, '\n' | '\t') => escaped.push(' '),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn elements_are_known_by_their_local_names() {
        let root =
            read("<a:x xmlns:a='u' id='7'><b:y xmlns:b='v'> t&lt;&#65; </b:y><y>2</y><z/></a:x>").unwrap();
        assert_eq!((root.name.as_str(), root.attribute("id")), ("x", Some("7")));
        assert_eq!(root.text_of("y"), Some("t<A"));
        assert_eq!((root.children("y").count(), root.text_of("z")), (2, None));
    }

    #[test]
    fn what_could_grow_is_refused() {
        let bomb = "<!DOCTYPE a [<!ENTITY e \"ha\">]><a>&e;</a>";
        assert!(read(bomb).unwrap_err().detail.contains("document type"));
        assert!(read("<a>&e;</a>").unwrap_err().detail.contains("entity"));
        assert!(read(&"<a>".repeat(1000)).unwrap_err().detail.contains("deep"));
        let wide = format!("<a>{}</a>", "<b/>".repeat(ELEMENTS_MAX));
        assert!(read(&wide).unwrap_err().detail.contains("elements"));
        assert!(read("<a>").unwrap_err().detail.contains("too early"));
        assert!(read("</a>").is_err() && read("").is_err() && read("\u{0}}{").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,200}", tags in "(<[ab]( \
            x='1')?/?>|</[ab]>|&[a-z]{2};|]]>|<!--|<!\\[CDATA\\[|t){0,40}") {
            let _ = read(&text);
            let _ = read(&tags);
            let escaped = format!("<a>{}</a>", escape(&text));
            prop_assert!(read(&escaped).is_ok());
        }
    }
}
