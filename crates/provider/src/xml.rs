//! XML subset for SOAP: elements with namespaces, attributes, text, the five predefined entities.

/// Deeper documents are rejected.
const DEPTH_MAX: usize = 40;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Element {
    /// Namespace URI; empty if it has none.
    pub(crate) space: String,
    pub(crate) name: String,
    pub(crate) attributes: Vec<(String, String)>,
    pub(crate) children: Vec<Element>,
    pub(crate) text: String,
}

impl Element {
    /// First child with this name and namespace; an empty namespace means unqualified.
    pub(crate) fn child(&self, space: &str, name: &str) -> Option<&Element> {
        self.children.iter().find(|child| child.space == space && child.name == name)
    }

    /// Text of an unqualified child.
    pub(crate) fn text_of(&self, name: &str) -> Option<&str> {
        self.child("", name).map(|child| child.text.trim())
    }
}

pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

pub(crate) fn read(text: &str) -> Result<Element, String> {
    let mut reader = Reader { rest: text, scopes: vec![(String::new(), String::new())] };
    reader.skip_misc()?;
    let root = reader.element(0)?;
    reader.skip_misc()?;
    match reader.rest {
        "" => Ok(root),
        _ => Err("something follows the document".to_owned()),
    }
}

struct Reader<'a> {
    rest: &'a str,
    /// Prefixes and their namespaces, innermost last.
    scopes: Vec<(String, String)>,
}

impl<'a> Reader<'a> {
    fn skip_misc(&mut self) -> Result<(), String> {
        loop {
            self.rest = self.rest.trim_start();
            let end = match self.rest {
                rest if rest.starts_with("<?") => "?>",
                rest if rest.starts_with("<!--") => "-->",
                _ => return Ok(()),
            };
            self.until(end)?;
        }
    }

    /// Reads up to `end`, which is consumed.
    fn until(&mut self, end: &str) -> Result<&'a str, String> {
        let (before, after) = self.rest.split_once(end).ok_or_else(|| format!("{end} is missing"))?;
        self.rest = after;
        Ok(before)
    }

    fn element(&mut self, depth: usize) -> Result<Element, String> {
        if depth > DEPTH_MAX {
            return Err("too deep".to_owned());
        }
        self.rest = self.rest.strip_prefix('<').ok_or("an element was expected")?;
        let tag = self.until(">")?;
        let (tag, is_empty) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let (qualified, attributes) = tag.split_once(char::is_whitespace).unwrap_or((tag, ""));
        if qualified.is_empty() || qualified.starts_with(['!', '/', '?']) {
            return Err(format!("<{qualified} where an element was expected"));
        }
        let known = self.scopes.len();
        let attributes = self.attributes(attributes)?;
        let (space, name) = self.resolve(qualified)?;
        let mut element = Element { space, name, attributes, ..Element::default() };
        if !is_empty {
            self.content(&mut element, qualified, depth)?;
        }
        self.scopes.truncate(known);
        Ok(element)
    }

    fn content(&mut self, element: &mut Element, qualified: &str, depth: usize) -> Result<(), String> {
        loop {
            let at = self.rest.find('<').ok_or_else(|| format!("</{qualified}> is missing"))?;
            let (text, rest) = self.rest.split_at(at);
            element.text.push_str(&unescape(text)?);
            self.rest = rest;
            if let Some(rest) = rest.strip_prefix("</") {
                self.rest = rest;
                let closed = self.until(">")?.trim_end();
                return match closed == qualified {
                    true => Ok(()),
                    false => Err(format!("</{closed}> closes <{qualified}>")),
                };
            } else if rest.starts_with("<!--") {
                self.until("-->")?;
            } else {
                let child = self.element(depth + 1)?;
                element.children.push(child);
            }
        }
    }

    fn attributes(&mut self, text: &str) -> Result<Vec<(String, String)>, String> {
        let mut attributes = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let (name, after) = rest.split_once('=').ok_or("an attribute without a value")?;
            let after = after.trim_start();
            let quote = after
                .chars()
                .next()
                .filter(|c| matches!(c, '"' | '\''))
                .ok_or("an attribute without quotes")?;
            let (value, after) = after[1..].split_once(quote).ok_or("an attribute without its end")?;
            let (name, value) = (name.trim(), unescape(value)?);
            match name.strip_prefix("xmlns") {
                Some("") => self.scopes.push((String::new(), value)),
                Some(prefix) => self.scopes.push((prefix.trim_start_matches(':').to_owned(), value)),
                None => attributes.push((name.to_owned(), value)),
            }
            rest = after.trim_start();
        }
        Ok(attributes)
    }

    fn resolve(&self, qualified: &str) -> Result<(String, String), String> {
        let (prefix, name) = qualified.split_once(':').unwrap_or(("", qualified));
        let found = self.scopes.iter().rev().find(|(known, _)| known == prefix);
        let (_, space) = found.ok_or_else(|| format!("the prefix {prefix} is not declared"))?;
        Ok((space.clone(), name.to_owned()))
    }
}

fn unescape(text: &str) -> Result<String, String> {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        plain.push_str(before);
        let (name, after) = after.split_once(';').ok_or("an entity without its end")?;
        plain.push(match name {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "apos" => '\'',
            _ => return Err(format!("the entity {name} is not known")),
        });
        rest = after;
    }
    plain.push_str(rest);
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_have_their_namespaces() {
        let text = "<?xml version=\"1.0\"?>\n<a:x xmlns:a='u:a' n=\"1 &amp; 2\"><y> t&lt; </y><a:z/><!-- c \
            --></a:x>";
        let root = read(text).unwrap();
        assert_eq!((root.space.as_str(), root.name.as_str()), ("u:a", "x"));
        assert_eq!(root.attributes, [("n".to_owned(), "1 & 2".to_owned())]);
        assert_eq!(root.text_of("y"), Some("t<"));
        assert!(root.child("u:a", "z").is_some() && root.child("", "z").is_none());
        for wrong in ["", "<a>", "<a></b>", "<p:a/>", "<a>&x;</a>", "<a/><b/>", "<!DOCTYPE a><a/>"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
