//! PhEDEx's `storage.xml`, the trivial file catalogue of a site, as name rules:
//!
//! ```xml
//! <storage-mapping>
//!   <lfn-to-pfn protocol="disk" path-match="/+(.*)" result="/pool/$1"/>
//!   <pfn-to-lfn protocol="disk" path-match="^/pool/(.*)" result="/$1"/>
//! </storage-mapping>
//! ```
//!
//! A rule that cannot be taken over as it is meant is refused with its line: a condition left out would send
//! files elsewhere. No document type, no entities but the five of XML. Start with [`read`].

use longhaul_model::rules::{Direction, NameRule, Pattern, PatternRule, RULES_MAX};
use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode};
use quick_xml::Reader;
use quick_xml::escape::unescape;
use quick_xml::events::{BytesStart, Event};

/// The catalogues of the largest sites had some kilobytes.
pub const STORAGE_XML_BYTES_MAX: usize = 1 << 20;

/// The rules in their order, each sound by itself; whether they belong together,
/// [`longhaul_model::NameRules::check`] says.
///
/// # Errors
/// What is wrong, with the number of its line.
pub fn read(bytes: &[u8]) -> Result<Vec<NameRule>, Fault> {
    let wrong = |why: String| Fault::new(FaultCode::BadRequest, format!("it is no storage.xml: {why}"));
    if bytes.len() > STORAGE_XML_BYTES_MAX {
        return Err(wrong(format!("it has {} bytes, the limit is {STORAGE_XML_BYTES_MAX}", bytes.len())));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| wrong("it is not UTF-8".into()))?;
    let mut document = Document { reader: Reader::from_str(text), text, line: 1, counted: 0 };
    document.rules().map_err(|why| wrong(format!("line {}: {why}", document.line)))
}

struct Document<'a> {
    reader: Reader<&'a [u8]>,
    text: &'a str,
    /// The offset of the element being read.
    line: usize,
    /// Bytes whose ends of lines are counted.
    counted: usize,
}

impl<'a> Document<'a> {
    fn next(&mut self) -> Result<Event<'a>, String> {
        let at = usize::try_from(self.reader.buffer_position()).unwrap_or(usize::MAX).min(self.text.len());
        self.line += self.text.as_bytes()[self.counted..at].iter().filter(|&&byte| byte == b'\n').count();
        self.counted = at;
        self.reader.read_event().map_err(|error| error.to_string())
    }

    fn rules(&mut self) -> Result<Vec<NameRule>, String> {
        let mut rules = Vec::new();
        // `storage-mapping`, and a rule within it.
        let (mut begun, mut in_mapping, mut in_rule) = (false, false, false);
        loop {
            match self.next()? {
                event @ (Event::Start(_) | Event::Empty(_)) => {
                    let is_open = matches!(event, Event::Start(_));
                    let (Event::Start(element) | Event::Empty(element)) = event else { continue };
                    if in_rule {
                        return Err(format!("{} stands within a rule", named(&element)));
                    }
                    if in_mapping {
                        if rules.len() == RULES_MAX {
                            return Err(format!("more than {RULES_MAX} rules"));
                        }
                        rules.push(NameRule::Pattern(rule(&element)?));
                        in_rule = is_open;
                    } else if begun || element.name().as_ref() != "storage-mapping" {
                        let name = named(&element);
                        return Err(format!("one storage-mapping is expected around all rules, not {name}"));
                    } else {
                        (begun, in_mapping) = (true, is_open);
                    }
                }
                // That beginnings and ends belong together, the reader sees to.
                Event::End(_) if in_rule => in_rule = false,
                Event::End(_) => in_mapping = false,
                Event::Text(text) if text.xml10_content().trim().is_empty() => {}
                Event::Text(_) | Event::CData(_) | Event::GeneralRef(_) => {
                    return Err("text stands between the rules".into());
                }
                Event::DocType(_) => return Err("it has a document type, which is never read".into()),
                Event::Eof if begun && !in_mapping && !in_rule => return Ok(rules),
                Event::Eof => return Err("it ends before the storage-mapping has ended".into()),
                Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
            }
        }
    }
}

fn named(element: &BytesStart<'_>) -> String {
    format!("<{}>", short(element.name().as_ref()))
}

fn short(text: &str) -> String {
    printable(&text.chars().take(60).collect::<String>())
}

#[derive(Default)]
struct RuleAttributes {
    protocol: Option<String>,
    target_match: Option<String>,
    custodial: Option<bool>,
    chain: Option<String>,
    path_match: Option<String>,
    result: Option<String>,
    space_token: Option<String>,
}

fn rule(element: &BytesStart<'_>) -> Result<PatternRule, String> {
    let direction = match element.name().as_ref() {
        "lfn-to-pfn" => Direction::LfnToPfn,
        "pfn-to-lfn" => Direction::PfnToLfn,
        _ => return Err(format!("lfn-to-pfn or pfn-to-lfn is expected, not {}", named(element))),
    };
    let mut given = RuleAttributes::default();
    // The reader refuses an attribute that is there twice.
    for attribute in element.attributes() {
        let attribute = attribute.map_err(|error| error.to_string())?;
        let name = attribute.key.as_ref();
        let value = unescape(&attribute.value).map_err(|error| format!("{}: {error}", short(name)))?;
        // As XML has it of attributes.
        given.take(name, value.replace(['\n', '\t', '\r'], " "))?;
    }
    let missing = |what: &str| format!("{what} of a rule is missing");
    let rule = PatternRule {
        direction,
        protocol: given.protocol.ok_or_else(|| missing("protocol"))?,
        target_match: given.target_match.map(Pattern::new),
        custodial: given.custodial,
        chain: given.chain,
        path_match: Pattern::new(given.path_match.ok_or_else(|| missing("path-match"))?),
        result: given.result.ok_or_else(|| missing("result"))?,
        space_token: given.space_token,
    };
    rule.check().map_err(|why| format!("{direction} of {}: {why}", short(&rule.protocol)))?;
    Ok(rule)
}

impl RuleAttributes {
    fn take(&mut self, name: &str, value: String) -> Result<(), String> {
        match name {
            "protocol" => self.protocol = Some(value),
            "destination-match" => self.target_match = Some(value),
            "chain" => self.chain = Some(value),
            "path-match" => self.path_match = Some(value),
            "result" => self.result = Some(value),
            "space-token" => self.space_token = Some(value),
            "is-custodial" => match value.as_str() {
                "y" => self.custodial = Some(true),
                "n" => self.custodial = Some(false),
                other => return Err(format!("is-custodial is \"{}\": y or n is expected", short(other))),
            },
            other => return Err(format!("a rule has the attribute {}, which is not known", short(other))),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use longhaul_model::NameRules;
    use longhaul_model::rules::{NameQuery, OwnNames};
    use proptest::prelude::*;

    use super::*;

    const EXAMPLE: &str = r#"<?xml version="1.0"?>
<!-- T1_XX_A -->
<storage-mapping>
  <lfn-to-pfn protocol="disk" is-custodial="y" path-match="/+(.*)" result="/pool/keep/$1" space-token="KEEP"/>
  <lfn-to-pfn protocol="disk" path-match="/+(.*)" result="/pool/temp/$1"></lfn-to-pfn>
  <lfn-to-pfn protocol="srm" destination-match="^T[12]_XX_" chain="disk"
              path-match="(.*)" result="srm://door1.example.org:8446/srm?a=1&amp;SFN=$1"/>
  <pfn-to-lfn protocol="disk" path-match="^/pool/(?:keep|temp)/(.*)" result="/$1"/>
  <pfn-to-lfn protocol="srm" chain="disk" path-match=".*\?a=1&#38;SFN=(.*)" result="$1"/>
</storage-mapping>
"#;

    #[test]
    fn a_sites_catalogue_is_read() {
        let rules = read(EXAMPLE.as_bytes()).unwrap();
        assert_eq!(rules.len(), 5);
        let own = OwnNames { protocol: "disk".into(), base: "/pool".into(), custodial: false };
        let rules = NameRules { version: 1, rules, own };
        rules.check().unwrap();
        let asked = NameQuery { protocol: "srm", target: Some("T2_XX_B"), custodial: true };
        let lfn = "store/a".parse().unwrap();
        let mapped = rules.lfn_to_pfn(&lfn, &asked).unwrap().unwrap();
        assert_eq!(mapped.name, "srm://door1.example.org:8446/srm?a=1&SFN=/pool/keep/store/a");
        assert_eq!(mapped.space_token.as_deref(), Some("KEEP"));
        assert_eq!(rules.pfn_to_lfn(&mapped.name, &asked).unwrap(), Some(lfn));
        assert_eq!(read(b"<storage-mapping/>").unwrap(), []);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let why = |from: &str, to: &str| {
            assert!(EXAMPLE.contains(from), "{from}");
            read(EXAMPLE.replacen(from, to, 1).as_bytes()).unwrap_err().detail
        };
        let told = |from: &str, to: &str, expected: &str| {
            let why = why(from, to);
            assert!(why.contains(expected), "{why}");
        };
        told("(?:keep|temp)", "(?!keep)", "line 8: pfn-to-lfn of disk: path_match: ");
        told("\"/pool/keep/$1\"", "\"/pool/keep/$2\"", "line 4: lfn-to-pfn of disk: result has $2");
        told("is-custodial=\"y\"", "is-custodial=\"yes\"", "line 4: is-custodial is \"yes\"");
        told("is-custodial", "is-precious", "line 4: a rule has the attribute is-precious");
        told("protocol=\"srm\" destination", "destination", "line 6: protocol of a rule is missing");
        told("&amp;", "&bomb;", "line 6: result: ");
        told(
            "<lfn-to-pfn protocol=\"srm\"",
            "<lfn2pfn protocol=\"srm\"",
            "line 6: lfn-to-pfn or pfn-to-lfn is expected",
        );
        told("</lfn-to-pfn>", "<x/></lfn-to-pfn>", "line 5: <x> stands within a rule");
        told("</lfn-to-pfn>", "</pfn-to-lfn>", "line 5: ");
        told("</storage-mapping>", "", "it ends before");
        told(
            "</storage-mapping>",
            "</storage-mapping><storage-mapping/>",
            "line 10: one storage-mapping is expected",
        );
        told(
            "<storage-mapping>",
            "<mapping>",
            "line 3: one storage-mapping is expected around all rules, not <mapping>",
        );
        told("<!--", "hello <!--", "line 1: text stands between the rules");
        told("<!--", "<!DOCTYPE a [<!ENTITY b \"c\">]><!--", "line 2: it has a document type");
        let many = format!(
            "<storage-mapping>{}</storage-mapping>",
            r#"<pfn-to-lfn protocol="a" path-match="b" result=""/>"#.repeat(RULES_MAX + 1)
        );
        assert!(read(many.as_bytes()).unwrap_err().detail.contains("more than 256 rules"));
        assert!(read(&vec![b' '; STORAGE_XML_BYTES_MAX + 1]).unwrap_err().detail.contains("the limit is"));
        assert!(read(b"\xff").is_err() && read(b"").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(
            text in ".{0,200}",
            tags in "(<storage-mapping>|</storage-mapping>|<(lfn-to-pfn|pfn-to-lfn)( protocol='[ab]'| \
                path-match='[a(.*)]{0,4}'| result='[$1a&;]{0,3}'){0,4}/?>|</lfn-to-pfn>|\n|&a;){0,20}",
        ) {
            let _ = read(text.as_bytes());
            if let Ok(rules) = read(format!("<storage-mapping>{tags}</storage-mapping>").as_bytes()) {
                prop_assert!(rules.len() <= RULES_MAX);
            }
        }
    }
}
