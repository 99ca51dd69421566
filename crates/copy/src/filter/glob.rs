//! Glob matching in linear time: at most (tokens + 1) × (characters + 1) steps, however many stars the
//! pattern has.
//!
//! Simulates the pattern as a nondeterministic finite automaton (Thompson, 1968): the set of states is
//! advanced character by character and nothing is backtracked, so a pattern of many stars, exponential for a
//! backtracking matcher, is harmless.

use super::PATTERN_CHARS_MAX;

/// The longest pattern, the token that `beginning_anywhere` adds, and the end state.
const STATES_MAX: usize = PATTERN_CHARS_MAX + 2;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Char(char),
    /// `?`
    One,
    Class(Box<CharClass>),
    /// `*`
    Star,
    /// `**`
    Stars,
    /// Empty, or any text that ends in `/`.
    Components,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct CharClass {
    negated: bool,
    ranges: Vec<(char, char)>,
    named: Vec<NamedClass>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NamedClass {
    Alnum,
    Alpha,
    Digit,
    Lower,
    Punct,
    Space,
    Upper,
    Xdigit,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Glob {
    tokens: Vec<Token>,
}

/// Position in characters, from 0, and what is wrong there.
type ParseError = (usize, &'static str);

impl Glob {
    /// Parses a pattern; the flag says whether it can match more than one path component.
    pub(super) fn parse(pattern: &[char]) -> Result<(Glob, bool), ParseError> {
        let mut tokens = Vec::with_capacity(pattern.len());
        let mut at = 0;
        while let Some(&c) = pattern.get(at) {
            at += 1;
            let token = match c {
                '\\' => {
                    let escaped =
                        pattern.get(at).ok_or((at - 1, "the backslash at the end escapes nothing"))?;
                    at += 1;
                    Token::Char(*escaped)
                }
                '?' => Token::One,
                '[' => {
                    let (class, after) = CharClass::parse(pattern, at)?;
                    at = after;
                    Token::Class(Box::new(class))
                }
                '*' => {
                    let more = pattern[at..].iter().take_while(|c| **c == '*').count();
                    at += more;
                    if more > 0 { Token::Stars } else { Token::Star }
                }
                c => Token::Char(c),
            };
            tokens.push(token);
        }
        let spans = tokens.iter().any(|token| matches!(token, Token::Stars | Token::Char('/')));
        Ok((Glob { tokens }, spans))
    }

    /// The same pattern, matching from the beginning of any component.
    pub(super) fn beginning_anywhere(mut self) -> Glob {
        self.tokens.insert(0, Token::Components);
        self
    }

    pub(super) fn matches(&self, text: &str) -> bool {
        self.run(text).0
    }

    /// Whether the whole text matches, and how many steps that took.
    fn run(&self, text: &str) -> (bool, usize) {
        let states = self.tokens.len() + 1;
        assert!(states <= STATES_MAX, "parse admits no longer pattern");
        let (mut now, mut next) = ([false; STATES_MAX], [false; STATES_MAX]);
        now[0] = true;
        self.skip_empty_at_start(&mut now);
        let mut steps = states;
        for c in text.chars() {
            next[..states].fill(false);
            let mut alive = false;
            for (at, token) in self.tokens.iter().enumerate().filter(|(at, _)| now[*at]) {
                match token.step(c) {
                    TokenStep::Reject => continue,
                    TokenStep::Advance => next[at + 1] = true,
                    TokenStep::Stay => next[at] = true,
                    TokenStep::StayOrAdvance => (next[at], next[at + 1]) = (true, true),
                }
                alive = true;
            }
            steps += states;
            if !alive {
                return (false, steps);
            }
            self.skip_stars(&mut next);
            std::mem::swap(&mut now, &mut next);
        }
        (now[states - 1], steps)
    }

    /// Adds the states reachable without reading a character at the beginning of the text.
    fn skip_empty_at_start(&self, states: &mut [bool; STATES_MAX]) {
        if self.tokens.first() == Some(&Token::Components) {
            states[1] = true;
        }
        self.skip_stars(states);
    }

    fn skip_stars(&self, states: &mut [bool; STATES_MAX]) {
        for (at, token) in self.tokens.iter().enumerate() {
            if states[at] && matches!(token, Token::Star | Token::Stars) {
                states[at + 1] = true;
            }
        }
    }
}

/// How a state moves on reading a character.
enum TokenStep {
    Reject,
    /// The token is consumed: move to the next state.
    Advance,
    /// The token may match more: stay.
    Stay,
    StayOrAdvance,
}

impl Token {
    fn step(&self, c: char) -> TokenStep {
        let whole = |fits: bool| if fits { TokenStep::Advance } else { TokenStep::Reject };
        match self {
            Token::Char(own) => whole(*own == c),
            Token::One => whole(c != '/'),
            Token::Class(class) => whole(c != '/' && class.contains(c)),
            Token::Star if c == '/' => TokenStep::Reject,
            Token::Star | Token::Stars => TokenStep::Stay,
            Token::Components if c == '/' => TokenStep::StayOrAdvance,
            Token::Components => TokenStep::Stay,
        }
    }
}

impl CharClass {
    /// Parses a class. `at` is after the opening bracket; returns the position after the closing one.
    fn parse(pattern: &[char], mut at: usize) -> Result<(CharClass, usize), ParseError> {
        let opened = at - 1;
        let unclosed = (opened, "the [ is not closed");
        let mut class = CharClass { negated: false, ranges: Vec::new(), named: Vec::new() };
        if matches!(pattern.get(at), Some('!' | '^')) {
            class.negated = true;
            at += 1;
        }
        let first = at;
        loop {
            let c = *pattern.get(at).ok_or(unclosed)?;
            if c == ']' && at > first {
                return Ok((class, at + 1));
            }
            if c == '[' && pattern.get(at + 1) == Some(&':') {
                let (named, after) = NamedClass::parse(pattern, at).ok_or((
                    at,
                    "unknown class: use alnum, alpha, digit, lower, punct, space, upper or xdigit",
                ))?;
                class.named.push(named);
                at = after;
                continue;
            }
            let start = at;
            let low = class_char(pattern, &mut at).ok_or(unclosed)?;
            // A hyphen at the end is literal.
            let is_range = pattern.get(at) == Some(&'-') && pattern.get(at + 1).is_some_and(|c| *c != ']');
            let high = if is_range {
                at += 1;
                class_char(pattern, &mut at).ok_or(unclosed)?
            } else {
                low
            };
            if high < low {
                return Err((start, "the range is reversed"));
            }
            class.ranges.push((low, high));
        }
    }

    fn contains(&self, c: char) -> bool {
        let listed = self.ranges.iter().any(|(low, high)| (*low..=*high).contains(&c));
        (listed || self.named.iter().any(|named| named.contains(c))) != self.negated
    }
}

/// Reads one character of a class, escaped or not.
fn class_char(pattern: &[char], at: &mut usize) -> Option<char> {
    if pattern.get(*at) == Some(&'\\') {
        *at += 1;
    }
    let c = *pattern.get(*at)?;
    *at += 1;
    Some(c)
}

impl NamedClass {
    /// Parses `[:name:]` at `at`; returns the position after it.
    fn parse(pattern: &[char], at: usize) -> Option<(NamedClass, usize)> {
        let name = &pattern[at + 2..];
        let end = name.iter().position(|c| *c == ':')?;
        if name.get(end + 1) != Some(&']') {
            return None;
        }
        let named = match name[..end].iter().collect::<String>().as_str() {
            "alnum" => NamedClass::Alnum,
            "alpha" => NamedClass::Alpha,
            "digit" => NamedClass::Digit,
            "lower" => NamedClass::Lower,
            "punct" => NamedClass::Punct,
            "space" => NamedClass::Space,
            "upper" => NamedClass::Upper,
            "xdigit" => NamedClass::Xdigit,
            _ => return None,
        };
        Some((named, at + 2 + end + 2))
    }

    fn contains(self, c: char) -> bool {
        match self {
            NamedClass::Alnum => c.is_ascii_alphanumeric(),
            NamedClass::Alpha => c.is_ascii_alphabetic(),
            NamedClass::Digit => c.is_ascii_digit(),
            NamedClass::Lower => c.is_ascii_lowercase(),
            NamedClass::Punct => c.is_ascii_punctuation(),
            NamedClass::Space => matches!(c, ' ' | '\t'..='\r'),
            NamedClass::Upper => c.is_ascii_uppercase(),
            NamedClass::Xdigit => c.is_ascii_hexdigit(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn glob(pattern: &str) -> Option<(Glob, bool)> {
        Glob::parse(&pattern.chars().collect::<Vec<_>>()).ok()
    }

    /// Reference implementation: backtracks over every possibility.
    fn slowly(tokens: &[Token], text: &[char]) -> bool {
        let Some((token, rest)) = tokens.split_first() else { return text.is_empty() };
        match token {
            Token::Star | Token::Stars => (0..=text.len()).any(|taken| {
                (*token == Token::Stars || !text[..taken].contains(&'/')) && slowly(rest, &text[taken..])
            }),
            Token::Components => (0..=text.len())
                .any(|taken| (taken == 0 || text[taken - 1] == '/') && slowly(rest, &text[taken..])),
            token => {
                text.first().is_some_and(|c| matches!(token.step(*c), TokenStep::Advance))
                    && slowly(rest, &text[1..])
            }
        }
    }

    #[test]
    fn many_stars_take_no_time() {
        let pattern = "*a".repeat(PATTERN_CHARS_MAX / 2);
        let (glob, _) = glob(&pattern).unwrap();
        let (fits, steps) = glob.run(&("a".repeat(1_000) + "b"));
        assert!(!fits && steps <= (PATTERN_CHARS_MAX + 1) * 1_002, "{steps}");
    }

    proptest! {
        #[test]
        fn it_fits_what_the_definition_fits(
            pattern in "(a|b|/|\\*|\\*\\*|\\?|\\[ab\\]|\\[!a\\]){1,7}",
            text in "[ab/]{0,8}",
        ) {
            let (glob, spans) = glob(&pattern).unwrap();
            let chars: Vec<char> = text.chars().collect();
            prop_assert_eq!(glob.matches(&text), slowly(&glob.tokens, &chars));
            if glob.matches(&text) && text.contains('/') {
                prop_assert!(spans);
            }
            let anywhere = glob.beginning_anywhere();
            prop_assert_eq!(anywhere.matches(&text), slowly(&anywhere.tokens, &chars));
        }

        /// The number of steps is bounded by pattern length times text length.
        #[test]
        fn time_is_bounded(pattern in "(a|\\*|\\*\\*/|\\?|\\[a-z\\]){1,200}", text in "[a/]{0,600}") {
            let (glob, _) = glob(&pattern).unwrap();
            let glob = glob.beginning_anywhere();
            let (_, steps) = glob.run(&text);
            prop_assert!(steps <= (glob.tokens.len() + 1) * (text.len() + 1));
        }
    }
}
