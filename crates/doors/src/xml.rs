//! XML of WebDAV requests, in the least that is needed: elements, namespaces, text. No document type, no
//! entities but the five of XML itself and characters by number, and bounds on everything, since anybody may
//! send it.

use std::collections::HashMap;

/// Of a whole document.
pub(crate) const XML_BYTES_MAX: usize = 64 << 10;
const DEPTH_MAX: usize = 32;
const ELEMENTS_MAX: usize = 1_000;
const ATTRIBUTES_MAX: usize = 32;
const NAMESPACES_MAX: usize = 64;

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

    /// Its own, without that of its children.
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

    /// What is in it, as it stands in a document.
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
                XML => (format!("xml:{}", name.local), String::new()),
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

/// A name with that prefix, and what declares it.
fn shown(name: &Name, prefix: &str) -> (String, String) {
    match name.space.as_str() {
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
    let mut reader = Reader { rest: text.strip_prefix('\u{feff}').unwrap_or(text), elements: 0 };
    reader.document()
}

struct Reader<'a> {
    rest: &'a str,
    elements: usize,
}

/// A start tag.
struct Tag<'a> {
    name: &'a str,
    attributes: Vec<(&'a str, String)>,
    is_empty: bool,
}

type Spaces = HashMap<String, String>;

impl<'a> Reader<'a> {
    fn document(&mut self) -> Result<Element, String> {
        self.skip_to_markup()?;
        let mut spaces = Spaces::new();
        spaces.insert("xml".into(), XML.into());
        // Without recursion, so that depth is a number and not a stack.
        let mut open: Vec<(Element, &'a str, Spaces)> = Vec::new();
        loop {
            if open.is_empty() {
                self.skip_to_markup()?;
            } else {
                self.text_into(&mut open)?;
            }
            let mut done = None;
            if let Some(rest) = self.rest.strip_prefix("</") {
                self.rest = rest;
                let name = self.until('>')?.trim_end();
                let Some((element, opened, outer)) = open.pop() else {
                    return Err("an end without a start".into());
                };
                if name != opened {
                    return Err(format!("<{opened}> ends with </{name}>"));
                }
                spaces = outer;
                done = Some(element);
            } else {
                let tag = self.tag()?;
                if open.len() >= DEPTH_MAX {
                    return Err(format!("it is deeper than {DEPTH_MAX} elements"));
                }
                self.elements += 1;
                if self.elements > ELEMENTS_MAX {
                    return Err(format!("it has more than {ELEMENTS_MAX} elements"));
                }
                let outer = spaces.clone();
                declare(&tag, &mut spaces)?;
                let name = resolve(tag.name, &spaces)?;
                let mut element = Element { name, attributes: Vec::new(), nodes: Vec::new() };
                for (name, value) in tag.attributes.iter().filter(|(name, _)| !name.starts_with("xmlns")) {
                    let name = match name.contains(':') {
                        true => resolve(name, &spaces)?,
                        false => Name { space: String::new(), local: (*name).to_owned() },
                    };
                    element.attributes.push((name, value.clone()));
                }
                if tag.is_empty {
                    spaces = outer;
                    done = Some(element);
                } else {
                    open.push((element, tag.name, outer));
                }
            }
            let Some(element) = done else { continue };
            match open.last_mut() {
                Some((parent, ..)) => parent.nodes.push(Node::Element(element)),
                None => {
                    self.skip_misc()?;
                    return if self.rest.is_empty() {
                        Ok(element)
                    } else {
                        Err("something follows its end".into())
                    };
                }
            }
        }
    }

    /// Blanks, comments and instructions outside the root element.
    fn skip_misc(&mut self) -> Result<(), String> {
        loop {
            self.rest = self.rest.trim_start();
            if !self.skip_comment()? {
                return Ok(());
            }
        }
    }

    fn skip_to_markup(&mut self) -> Result<(), String> {
        self.skip_misc()?;
        if self.rest.starts_with("<!") {
            return Err("it has a document type, which is not taken".into());
        }
        if self.rest.starts_with('<') { Ok(()) } else { Err("there is no element".into()) }
    }

    fn skip_comment(&mut self) -> Result<bool, String> {
        for (start, end) in [("<!--", "-->"), ("<?", "?>")] {
            if let Some(rest) = self.rest.strip_prefix(start) {
                let length = rest.find(end).ok_or("a comment or instruction does not end")?;
                self.rest = &rest[length + end.len()..];
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Text up to the next tag, into the innermost element.
    fn text_into(&mut self, open: &mut [(Element, &'a str, Spaces)]) -> Result<(), String> {
        loop {
            let end = self.rest.find('<').ok_or("it ends within an element")?;
            let (raw, rest) = self.rest.split_at(end);
            self.rest = rest;
            if let Some((element, ..)) = open.last_mut() {
                element.add_text(&unescape(raw)?);
            }
            if let Some(rest) = self.rest.strip_prefix("<![CDATA[") {
                let end = rest.find("]]>").ok_or("a CDATA section does not end")?;
                if let Some((element, ..)) = open.last_mut() {
                    element.add_text(&rest[..end]);
                }
                self.rest = &rest[end + 3..];
            } else if !self.skip_comment()? {
                return Ok(());
            }
        }
    }

    fn until(&mut self, end: char) -> Result<&'a str, String> {
        let at = self.rest.find(end).ok_or("a tag does not end")?;
        let found = &self.rest[..at];
        self.rest = &self.rest[at + end.len_utf8()..];
        Ok(found)
    }

    fn name(&mut self) -> Result<&'a str, String> {
        let fits = |c: char| c.is_alphanumeric() || matches!(c, ':' | '_' | '-' | '.') || !c.is_ascii();
        let end = self.rest.find(|c: char| !fits(c)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        let starts = |part: &str| part.starts_with(|c: char| c.is_alphabetic() || c == '_');
        if !name.split(':').all(starts) || name.split(':').count() > 2 {
            return Err("a tag or an attribute has no proper name".into());
        }
        self.rest = rest;
        Ok(name)
    }

    fn tag(&mut self) -> Result<Tag<'a>, String> {
        self.rest = self.rest.strip_prefix('<').ok_or("a tag is expected")?;
        if self.rest.starts_with('!') {
            return Err("it has a declaration, which is not taken".into());
        }
        let name = self.name()?;
        let mut attributes: Vec<(&str, String)> = Vec::new();
        loop {
            let before = self.rest;
            self.rest = self.rest.trim_start();
            if let Some(rest) = self.rest.strip_prefix("/>") {
                self.rest = rest;
                return Ok(Tag { name, attributes, is_empty: true });
            }
            if let Some(rest) = self.rest.strip_prefix('>') {
                self.rest = rest;
                return Ok(Tag { name, attributes, is_empty: false });
            }
            if before.len() == self.rest.len() {
                return Err("attributes are not separated".into());
            }
            let key = self.name()?;
            self.rest =
                self.rest.trim_start().strip_prefix('=').ok_or("an attribute has no value")?.trim_start();
            let quote = self
                .rest
                .chars()
                .next()
                .filter(|c| matches!(c, '"' | '\''))
                .ok_or("a value has no quotes")?;
            self.rest = &self.rest[1..];
            let raw = self.until(quote)?;
            if raw.contains('<') {
                return Err("a value holds <".into());
            }
            if attributes.iter().any(|(other, _)| *other == key) {
                return Err("an attribute is given twice".into());
            }
            if attributes.len() >= ATTRIBUTES_MAX {
                return Err(format!("an element has more than {ATTRIBUTES_MAX} attributes"));
            }
            attributes.push((key, unescape(raw)?));
        }
    }
}

fn declare(tag: &Tag<'_>, spaces: &mut Spaces) -> Result<(), String> {
    for (key, value) in &tag.attributes {
        if *key == "xmlns" {
            spaces.insert(String::new(), value.clone());
        } else if let Some(prefix) = key.strip_prefix("xmlns:") {
            if value.is_empty() {
                return Err(format!("the prefix {prefix} stands for nothing"));
            }
            spaces.insert(prefix.to_owned(), value.clone());
        }
    }
    if spaces.len() > NAMESPACES_MAX {
        return Err(format!("more than {NAMESPACES_MAX} namespaces are declared"));
    }
    Ok(())
}

fn resolve(name: &str, spaces: &Spaces) -> Result<Name, String> {
    let (prefix, local) = name.split_once(':').unwrap_or(("", name));
    match spaces.get(prefix) {
        Some(space) => Ok(Name { space: space.clone(), local: local.to_owned() }),
        None if prefix.is_empty() => Ok(Name { space: String::new(), local: local.to_owned() }),
        None => Err(format!("the prefix {prefix} is not declared")),
    }
}

fn unescape(raw: &str) -> Result<String, String> {
    let mut text = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.find('&') {
        text.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let end = after.find(';').filter(|end| *end <= 8).ok_or("an entity is not known")?;
        text.push(character(&after[..end]).ok_or("an entity is not known")?);
        rest = &after[end + 1..];
    }
    text.push_str(rest);
    Ok(text)
}

fn character(entity: &str) -> Option<char> {
    Some(match entity {
        "lt" => '<',
        "gt" => '>',
        "amp" => '&',
        "quot" => '"',
        "apos" => '\'',
        number => {
            let digits = number.strip_prefix('#')?;
            let code = match digits.strip_prefix('x') {
                Some(hex) => u32::from_str_radix(hex, 16).ok()?,
                None => digits.parse().ok()?,
            };
            char::from_u32(code).filter(|c| is_held(*c))?
        }
    })
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
            <D:getetag/><o:a b="&lt;&#65;">x&amp;y<![CDATA[<z>]]></o:a><c xmlns="urn:c"/></D:prop></D:propfind> "#;
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
        let text = br#"<p:a xmlns:p="urn:p" b="1 &lt; 2" p:c="'" xml:lang="de"> x <q xmlns=""/>y&amp;<r xmlns="urn:r"><p:s/></r></p:a>"#;
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
        fn escaped_text_is_read_back(text in "[^\u{0}-\u{8}\u{b}\u{c}\u{e}-\u{1f}\u{7f}-\u{9f}\u{fffe}\u{ffff}]{0,40}") {
            let document = format!("<a b=\"{0}\">{0}</a>", escape(&text));
            prop_assert_eq!(parse(document.as_bytes()).unwrap().text(), text);
        }
    }
}
