//! XML of WebDAV requests as a tree of elements, namespaces and text, read by quick-xml's `NsReader`. Anybody
//! may send it, so there is no document type, no entity but the five of XML itself and characters by number,
//! and a bound on everything. Dead properties are written back with prefixes of our own.

use quick_xml::NsReader;
use quick_xml::events::{BytesStart, Event};
use quick_xml::name::{PrefixDeclaration, QName, ResolveResult};

/// A whole document. Clients ask for some dozens of properties; dead ones are small.
pub(crate) const XML_BYTES_MAX: usize = 64 << 10;
const DEPTH_MAX: usize = 32;
const ELEMENTS_MAX: usize = 1_000;
const ATTRIBUTES_MAX: usize = 32;
/// Namespaces in scope at once, each declaration counted: as many as elements of that depth can declare with
/// all of their attributes, so that the library's own, smaller limit does not refuse what these bounds allow.
const NAMESPACES_MAX: usize = DEPTH_MAX * ATTRIBUTES_MAX;

/// A name with its namespace; an empty one is none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) space: String,
    pub(crate) local: String,
}

impl Name {
    pub(crate) fn is_dav(&self, local: &str) -> bool {
        self.space == "DAV:" && self.local == local
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) name: Name,
    /// Without declarations of namespaces.
    attributes: Vec<(Name, String)>,
    nodes: Vec<Node>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Element(Element),
    Text(String),
}

impl Element {
    pub(crate) fn children(&self) -> impl Iterator<Item = &Element> {
        self.nodes.iter().filter_map(|node| match node {
            Node::Element(element) => Some(element),
            Node::Text(_) => None,
        })
    }

    pub(crate) fn child(&self, local: &str) -> Option<&Element> {
        self.children().find(|child| child.name.is_dav(local))
    }

    /// The element's own text, without that of its children.
    #[cfg(test)]
    pub(crate) fn text(&self) -> String {
        let text = |node: &Node| match node {
            Node::Text(text) => Some(text.clone()),
            Node::Element(_) => None,
        };
        self.nodes.iter().filter_map(text).collect()
    }

    fn add_text(&mut self, more: &str) {
        match self.nodes.last_mut() {
            Some(Node::Text(text)) => text.push_str(more),
            _ if more.is_empty() => {}
            _ => self.nodes.push(Node::Text(more.to_owned())),
        }
    }

    /// The element as a document of its own: the same names in the same namespaces, by other prefixes.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text);
        text
    }

    /// The content of the element as XML.
    pub(crate) fn inner(&self) -> String {
        let mut text = String::new();
        self.write_nodes(&mut text);
        text
    }

    /// As deep as a document may be.
    fn write(&self, out: &mut String) {
        let (shown, declared) = shown(&self.name, "x");
        out.push_str(&format!("<{shown}{declared}"));
        for (number, (name, value)) in self.attributes.iter().enumerate() {
            let (shown, declared) = match name.space.as_str() {
                // Attributes without a prefix are in no namespace.
                "" => (name.local.clone(), String::new()),
                _ => self::shown(name, &format!("a{number}")),
            };
            out.push_str(&format!("{declared} {shown}=\"{}\"", escape(value)));
        }
        if self.nodes.is_empty() {
            return out.push_str("/>");
        }
        out.push('>');
        self.write_nodes(out);
        out.push_str(&format!("</{shown}>"));
    }

    fn write_nodes(&self, out: &mut String) {
        for node in &self.nodes {
            match node {
                Node::Element(element) => element.write(out),
                Node::Text(text) => out.push_str(&escape(text)),
            }
        }
    }
}

const XML: &str = "http://www.w3.org/XML/1998/namespace";
const XMLNS: &str = "http://www.w3.org/2000/xmlns/";

/// A name with that prefix, and what declares it. The prefix `xml` is declared by itself and has no other.
fn shown(name: &Name, prefix: &str) -> (String, String) {
    match name.space.as_str() {
        XML => (format!("xml:{}", name.local), String::new()),
        "" => (name.local.clone(), " xmlns=\"\"".to_owned()),
        space => (format!("{prefix}:{}", name.local), format!(" xmlns:{prefix}=\"{}\"", escape(space))),
    }
}

/// An empty element of a name that anybody may have made up.
pub(crate) fn empty_element(name: &Name) -> String {
    let (shown, declared) = shown(name, "x");
    format!("<{shown}{declared}/>")
}

/// The root element of a document, or what is wrong with it.
pub(crate) fn parse(bytes: &[u8]) -> Result<Element, String> {
    if bytes.len() > XML_BYTES_MAX {
        return Err(format!("it has more than {XML_BYTES_MAX} bytes"));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8")?;
    if !text.chars().all(is_held) {
        return Err("it holds a control character, which XML has not".into());
    }
    let mut reader = NsReader::from_str(text.strip_prefix('\u{feff}').unwrap_or(text));
    reader.resolver_mut().set_max_namespace_bindings(NAMESPACES_MAX);
    // Without recursion, so that depth is a number and not a stack.
    let mut open: Vec<Element> = Vec::new();
    let mut root = None;
    let mut elements = 0;
    loop {
        let event = reader.read_event().map_err(|error| error.to_string())?;
        let closed = match &event {
            Event::Start(start) | Event::Empty(start) => {
                elements += 1;
                if root.is_some() {
                    return Err("something follows its end".into());
                }
                if open.len() >= DEPTH_MAX {
                    return Err(format!("it is deeper than {DEPTH_MAX} elements"));
                }
                if elements > ELEMENTS_MAX {
                    return Err(format!("it has more than {ELEMENTS_MAX} elements"));
                }
                open.push(element(&reader, start)?);
                matches!(event, Event::Empty(_))
            }
            Event::End(_) => true,
            Event::Text(text) => {
                add_text(&mut open, text)?;
                false
            }
            Event::CData(text) if !open.is_empty() => {
                add_text(&mut open, text)?;
                false
            }
            Event::GeneralRef(reference) if !open.is_empty() => {
                add_text(&mut open, &unescape(&format!("&{};", &**reference))?)?;
                false
            }
            Event::CData(_) | Event::GeneralRef(_) => return Err("text stands outside its element".into()),
            Event::DocType(_) => return Err("it has a document type, which is not taken".into()),
            Event::Eof => break,
            Event::Decl(_) | Event::PI(_) | Event::Comment(_) => false,
        };
        if closed {
            let element = open.pop().ok_or("an end without a start")?;
            match open.last_mut() {
                Some(parent) => parent.nodes.push(Node::Element(element)),
                None => root = Some(element),
            }
        }
    }
    if !open.is_empty() {
        return Err("it ends within an element".into());
    }
    root.ok_or_else(|| "there is no element".into())
}

/// Outside the root element there are blanks only.
fn add_text(open: &mut [Element], text: &str) -> Result<(), String> {
    match open.last_mut() {
        Some(element) => element.add_text(text),
        None if text.trim().is_empty() => {}
        None => return Err("text stands outside its element".into()),
    }
    Ok(())
}

fn element(reader: &NsReader<&[u8]>, start: &BytesStart<'_>) -> Result<Element, String> {
    check_separated(start.attributes_raw())?;
    if start.attributes().with_checks(false).count() > ATTRIBUTES_MAX {
        return Err(format!("an element has more than {ATTRIBUTES_MAX} attributes"));
    }
    let resolver = reader.resolver();
    let mut attributes = Vec::new();
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|error| error.to_string())?;
        if attribute.value.contains('<') {
            return Err("a value holds <".into());
        }
        let value = unescape(&attribute.value)?;
        match attribute.key.as_namespace_binding() {
            None => {
                attributes.push((name(attribute.key, resolver.resolve_attribute(attribute.key).0)?, value))
            }
            Some(PrefixDeclaration::Named(prefix)) if value.is_empty() => {
                return Err(format!("the prefix {prefix} stands for nothing"));
            }
            Some(_) => {}
        }
    }
    let name = name(start.name(), resolver.resolve_element(start.name()).0)?;
    Ok(Element { name, attributes, nodes: Vec::new() })
}

/// The library checks neither the characters of a name nor how many parts it has.
fn name(written: QName<'_>, space: ResolveResult<'_>) -> Result<Name, String> {
    let text: &str = written.as_ref();
    let fits = |c: char| c.is_alphanumeric() || matches!(c, ':' | '_' | '-' | '.') || !c.is_ascii();
    let starts = |part: &str| part.starts_with(|c: char| c.is_alphabetic() || c == '_');
    if !text.chars().all(fits) || !text.split(':').all(starts) || text.split(':').count() > 2 {
        return Err("a tag or an attribute has no proper name".into());
    }
    let space = match space {
        ResolveResult::Bound(space) if space.as_ref() != XMLNS => unescape(space.as_ref())?,
        ResolveResult::Unbound => String::new(),
        ResolveResult::Bound(_) | ResolveResult::Unknown(_) => {
            return Err(format!("the prefix of {text} is not declared"));
        }
    };
    Ok(Name { space, local: written.local_name().as_ref().to_owned() })
}

/// The library takes `b='1'c='2'`.
fn check_separated(mut attributes: &str) -> Result<(), String> {
    while let Some(open) = attributes.find(['"', '\'']) {
        let quote = &attributes[open..=open];
        let value = &attributes[open + 1..];
        let close = value.find(quote).ok_or("a value does not end")?;
        attributes = &value[close + 1..];
        if attributes.starts_with(|c: char| !c.is_whitespace()) {
            return Err("attributes are not separated".into());
        }
    }
    Ok(())
}

/// Resolves the five entities of XML itself, and characters by number that a document may hold.
fn unescape(raw: &str) -> Result<String, String> {
    let text = quick_xml::escape::unescape(raw).map_err(|_| "an entity is not known")?;
    if text.chars().all(is_held) { Ok(text.into_owned()) } else { Err("an entity is not known".into()) }
}

/// Whether a document may hold it: XML 1.0 without the control characters that it discourages.
fn is_held(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r') || !(c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'))
}

/// Text as it stands in a document. Characters that XML cannot hold are replaced.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            '\t' | '\n' | '\r' => escaped.push_str(&format!("&#{};", u32::from(c))),
            c if is_held(c) => escaped.push(c),
            _ => escaped.push('\u{fffd}'),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_clients_send() {
        let text = br#"<?xml version="1.0" encoding="utf-8"?><!-- x -->
            <D:propfind xmlns:D='DAV:' xmlns:o="urn:other"><D:prop>
            <D:getetag/><o:a b="&lt;&#65;">x&amp;y<![CDATA[<z>]]></o:a><c xmlns="urn:c"/></D:prop>
            </D:propfind> "#;
        let root = parse(text).unwrap();
        assert!(root.name.is_dav("propfind"));
        let prop = root.child("prop").unwrap();
        let names: Vec<(&str, &str)> =
            prop.children().map(|child| (child.name.space.as_str(), child.name.local.as_str())).collect();
        assert_eq!(names, [("DAV:", "getetag"), ("urn:other", "a"), ("urn:c", "c")]);
        assert_eq!(prop.children().nth(1).unwrap().text(), "x&y<z>");
    }

    /// Nothing but prefixes, declarations and the way that text is escaped may change.
    #[test]
    fn what_is_written_means_what_was_read() {
        let text = concat!(
            r#"<p:a xmlns:p="urn:p" b="1 &lt; 2" p:c="'" xml:lang="de"> x <q xmlns=""/>"#,
            r#"y&amp;<r xmlns="urn:r"><p:s/></r></p:a>"#,
        )
        .as_bytes();
        let read = parse(text).unwrap();
        let written = read.to_text();
        assert_eq!(
            written,
            "<x:a xmlns:x=\"urn:p\" b=\"1 &lt; 2\" xmlns:a1=\"urn:p\" a1:c=\"'\" xml:lang=\"de\"> x <q \
                xmlns=\"\"/>y&amp;\
             <x:r xmlns:x=\"urn:r\"><x:s xmlns:x=\"urn:p\"/></x:r></x:a>"
        );
        assert_eq!(parse(written.as_bytes()).unwrap(), read);
        assert!(read.inner().starts_with(" x <q"));
        assert_eq!(empty_element(&read.name), "<x:a xmlns:x=\"urn:p\"/>");
    }

    #[test]
    fn bombs_and_garbage_are_refused() {
        let deep = format!("{}{}", "<a>".repeat(40), "</a>".repeat(40));
        let wide = format!("<a>{}</a>", "<b/>".repeat(1_001));
        let many = format!("<a {}/>", (0..40).map(|n| format!("a{n}='' ")).collect::<String>());
        let large = format!("<a>{}</a>", "x".repeat(XML_BYTES_MAX));
        for bad in [
            "",
            "x",
            "<",
            "<a",
            "<a>",
            "<a></b>",
            "</a>",
            "<a/><b/>",
            "<a b=c/>",
            "<a b='1' b='2'/>",
            "<a>&x;</a>",
            "<a>&#0;</a>",
            "<a>&#1;</a>",
            "<a b='\u{1}'/>",
            "<a>&lt</a>",
            "<b:a/>",
            "<a xmlns:b=''/>",
            "<a x:y='1'/>",
            "<a b='<'/>",
            "<a b='1'c='2'/>",
            "<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>",
            "<!DOCTYPE a SYSTEM 'file:///etc/passwd'><a/>",
            "<a><!ELEMENT b></a>",
            "<a><![CDATA[</a>",
            "<!-- <a/>",
            "<?xml",
            "<:a/>",
            "<a:/>",
            "<a:b:c/>",
            &deep,
            &wide,
            &many,
            &large,
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{}", &bad[..bad.len().min(60)]);
        }
        assert!(parse(b"<a>\xff</a>").is_err());
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "(<a>|</a>|<b:c |xmlns:b='x'|/>|>|<|&amp;|&#x41;|&|'|\"|<!--|-->|é| \
            |x){0,30}") {
            if let Ok(element) = parse(text.as_bytes()) {
                prop_assert_eq!(parse(element.to_text().as_bytes()).unwrap(), element);
            }
        }

        #[test]
        fn escaped_text_is_read_back(
            text in "[^\u{0}-\u{8}\u{b}\u{c}\u{e}-\u{1f}\u{7f}-\u{9f}\u{fffe}\u{ffff}]{0,40}",
        ) {
            let document = format!("<a b=\"{0}\">{0}</a>", escape(&text));
            prop_assert_eq!(parse(document.as_bytes()).unwrap().text(), text);
        }
    }
}
