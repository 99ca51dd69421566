//! A bounded walk over the XML of storages: no document type, no entities but the five of XML, and limits on
//! depth, attributes and text. The server is not trusted. A document is read as it comes: one element of it
//! is held at a time.

use std::io::{self, BufRead, Read};

use quick_xml::NsReader;
use quick_xml::events::{BytesStart, Event};
use quick_xml::name::ResolveResult;

use crate::failure::sanitized;

const DEPTH_MAX: usize = 32;
/// Bytes of the text of one element.
const TEXT_BYTES_MAX: usize = 8 << 10;
const ATTRIBUTES_MAX: usize = 32;
/// Bytes of one tag, of one text between tags, or of one comment.
const EVENT_BYTES_MAX: u64 = 64 << 10;

/// Receives the elements of a document. An error ends the walk.
pub(crate) trait Visit {
    /// An element begins; its namespace is empty if it has none.
    fn begin(&mut self, namespace: &str, local: &str) -> Result<(), String>;

    /// The innermost element ends, and this is the text since the last beginning or end, with the blanks
    /// around it: they may be layout, or part of a name ([`without_layout`]).
    fn end(&mut self, text: &str) -> Result<(), String>;
}

/// A name without the line breaks around it and the blanks that indent them; it may begin and end with blanks
/// of its own.
pub(crate) fn without_layout(text: &str) -> &str {
    let is_blank = |c: char| c.is_ascii_whitespace();
    let before = &text[..text.len() - text.trim_start_matches(is_blank).len()];
    let text = if before.contains('\n') { text.trim_start_matches(is_blank) } else { text };
    let after = &text[text.trim_end_matches(is_blank).len()..];
    if after.contains('\n') { text.trim_end_matches(is_blank) } else { text }
}

/// # Errors
/// The error is fit to be shown.
pub(crate) fn walk(document: impl BufRead, bytes_max: u64, visitor: &mut dyn Visit) -> Result<(), String> {
    read(document, bytes_max, visitor).map_err(|why| sanitized(&why))
}

fn read(document: impl BufRead, bytes_max: u64, visitor: &mut dyn Visit) -> Result<(), String> {
    let bounded = BoundedDocument { document, bytes_max, bytes: 0, event_bytes: 0 };
    let mut reader = NsReader::from_reader(bounded);
    let mut walk = Walk { visitor, depth: 0, text: String::new() };
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        reader.get_mut().event_bytes = 0;
        let (namespace, event) =
            reader.read_resolved_event_into(&mut buffer).map_err(|error| error.to_string())?;
        match event {
            Event::Start(element) => walk.begin(&namespace, &element)?,
            Event::Empty(element) => {
                walk.begin(&namespace, &element)?;
                walk.end()?;
            }
            Event::End(_) => walk.end()?,
            Event::Text(text) => walk.text(&text.xml10_content())?,
            Event::CData(text) => walk.text(&text.xml10_content())?,
            Event::GeneralRef(entity) => {
                let character = match entity.resolve_char_ref().map_err(|error| error.to_string())? {
                    Some(character) => character,
                    None => known_entity(&entity.xml10_content())?,
                };
                walk.text(character.encode_utf8(&mut [0; 4]))?;
            }
            Event::DocType(_) => return Err("it has a document type, which none of these needs".into()),
            Event::Eof => break,
            Event::Decl(_) | Event::PI(_) | Event::Comment(_) => {}
        }
    }
    if walk.depth > 0 {
        return Err("it ends early".into());
    }
    Ok(())
}

fn known_entity(name: &str) -> Result<char, String> {
    match name {
        "amp" => Ok('&'),
        "lt" => Ok('<'),
        "gt" => Ok('>'),
        "quot" => Ok('"'),
        "apos" => Ok('\''),
        _ => Err("it has an entity of its own".into()),
    }
}

/// A document that fails to be read beyond its bounds.
struct BoundedDocument<R> {
    document: R,
    bytes_max: u64,
    /// That were read.
    bytes: u64,
    /// Those since the last event.
    event_bytes: u64,
}

impl<R: BufRead> BufRead for BoundedDocument<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let available = self.document.fill_buf()?;
        let left = (self.bytes_max - self.bytes).min(EVENT_BYTES_MAX - self.event_bytes);
        if left == 0 && !available.is_empty() {
            return Err(io::Error::other(match self.bytes == self.bytes_max {
                true => format!("it has more than {} bytes", self.bytes_max),
                false => format!("a tag, a text or a comment in it has more than {EVENT_BYTES_MAX} bytes"),
            }));
        }
        Ok(&available[..available.len().min(usize::try_from(left).unwrap_or(usize::MAX))])
    }

    fn consume(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.event_bytes += bytes as u64;
        self.document.consume(bytes);
    }
}

impl<R: BufRead> Read for BoundedDocument<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut available = self.fill_buf()?;
        let read = available.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

struct Walk<'a> {
    visitor: &'a mut dyn Visit,
    depth: usize,
    text: String,
}

impl Walk<'_> {
    fn begin(&mut self, namespace: &ResolveResult<'_>, element: &BytesStart<'_>) -> Result<(), String> {
        if element.attributes().with_checks(false).count() > ATTRIBUTES_MAX {
            return Err(format!("an element has more than {ATTRIBUTES_MAX} attributes"));
        }
        if self.depth >= DEPTH_MAX {
            return Err(format!("it is nested deeper than {DEPTH_MAX}"));
        }
        self.depth += 1;
        self.text.clear();
        let namespace = match namespace {
            ResolveResult::Bound(namespace) => namespace.as_ref(),
            _ => "",
        };
        self.visitor.begin(namespace, element.local_name().as_ref())
    }

    fn text(&mut self, text: &str) -> Result<(), String> {
        if self.text.len() + text.len() > TEXT_BYTES_MAX {
            return Err(format!("a text in it has more than {TEXT_BYTES_MAX} bytes"));
        }
        self.text.push_str(text);
        Ok(())
    }

    fn end(&mut self) -> Result<(), String> {
        self.depth = self.depth.checked_sub(1).ok_or("it ends more than it begins")?;
        let text = std::mem::take(&mut self.text);
        self.visitor.end(&text)
    }
}
