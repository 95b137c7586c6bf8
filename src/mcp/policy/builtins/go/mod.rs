//! The syntax of Go's regular expressions.
//!
//! A pattern is translated to the syntax of the crate `regex`, so that no difference between the
//! two can be overlooked: what is not translated is not matched.

mod classes;
mod repetition;

use super::{Stop, unsupported};
use classes::{ASCII_CLASSES, CATEGORIES, SCRIPTS};
use repetition::{Last, MAX_REPETITION, repetition};

/// Translates a regular expression of Go to the syntax of the crate `regex`. Also returns the names
/// of its groups in order, empty without a name. Undefined if Go refuses the expression.
pub fn translate(pattern: &str) -> Result<(String, Vec<String>), Stop> {
    Parser::translate(pattern)
}

/// Appends a character to a pattern as itself.
pub fn push_literal(text: &mut String, c: char) {
    match c {
        '0'..='9' | 'A'..='Z' | 'a'..='z' => text.push(c),
        _ => text.push_str(&format!("\\x{{{:x}}}", u32::from(c))),
    }
}

/// Translates a regular expression of Go.
struct Parser<'a> {
    rest: &'a str,
    text: String,
    names: Vec<String>,
    /// The groups around the position, with the pattern itself as the outermost one.
    groups: Vec<Group>,
}

/// A group whose end is not reached.
#[derive(Default)]
struct Group {
    last: Last,
    /// The greatest product of nested repetitions in front of `last`.
    repetitions: u32,
}

impl<'a> Parser<'a> {
    fn translate(pattern: &'a str) -> Result<(String, Vec<String>), Stop> {
        let mut parser = Self {
            rest: pattern,
            text: String::new(),
            names: Vec::new(),
            groups: vec![Group::default()],
        };
        while let Some(c) = parser.next() {
            parser.item(c)?;
        }
        match parser.groups.len() {
            1 => Ok((parser.text, parser.names)),
            _ => Err(Stop::Undefined),
        }
    }

    fn next(&mut self) -> Option<char> {
        let mut characters = self.rest.chars();
        let next = characters.next();
        self.rest = characters.as_str();
        next
    }

    /// Skips a text; false if the rest does not begin with it.
    fn skip(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Skips the text up to a delimiter and the delimiter. Undefined without a delimiter.
    fn until(&mut self, delimiter: &str) -> Result<&'a str, Stop> {
        let (text, rest) = self.rest.split_once(delimiter).ok_or(Stop::Undefined)?;
        self.rest = rest;
        Ok(text)
    }

    fn group(&mut self) -> Result<&mut Group, Stop> {
        self.groups.last_mut().ok_or(Stop::Undefined)
    }

    /// Appends an expression.
    fn push(&mut self, text: &str) -> Result<(), Stop> {
        self.text.push_str(text);
        self.set_last(Last::Expression(1))
    }

    fn set_last(&mut self, last: Last) -> Result<(), Stop> {
        let group = self.group()?;
        group.repetitions = group.repetitions.max(group.last.repetitions());
        group.last = last;
        Ok(())
    }

    fn literal(&mut self, c: char) -> Result<(), Stop> {
        push_literal(&mut self.text, c);
        self.set_last(Last::Expression(1))
    }

    fn item(&mut self, c: char) -> Result<(), Stop> {
        match c {
            '(' if self.skip("?P<") || self.skip("?<") => {
                let name = self.until(">")?;
                let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
                if name.is_empty() || !name.bytes().all(is_word) {
                    return Err(Stop::Undefined);
                }
                if self.names.iter().any(|other| other == name) {
                    return unsupported(format!("two groups have the name {name}"));
                }
                self.open("(");
                self.names.push(name.to_owned());
                Ok(())
            }
            '(' if self.skip("?") => self.flags(),
            '(' => {
                self.open("(");
                self.names.push(String::new());
                Ok(())
            }
            '|' => {
                self.text.push('|');
                self.set_last(Last::Nothing)
            }
            ')' => {
                self.set_last(Last::Nothing)?;
                let group = self.groups.pop().unwrap_or_default();
                self.text.push(')');
                // Fails if there is no group around it.
                self.set_last(Last::Expression(group.repetitions))
            }
            '^' | '$' | '.' => self.push(c.encode_utf8(&mut [0; 4])),
            '[' => self.class(),
            '*' | '+' | '?' => self.repeat(c.encode_utf8(&mut [0; 4]), None),
            '{' => match repetition(self.rest) {
                Some((bounds, rest)) => {
                    self.rest = rest;
                    let (least, most) = bounds.ok_or(Stop::Undefined)?;
                    let most_text = most.map(|most| most.to_string()).unwrap_or_default();
                    let factor = most.or(Some(least).filter(|least| *least > 0));
                    self.repeat(&format!("{{{least},{most_text}}}"), factor)
                }
                None => self.literal('{'),
            },
            '\\' => self.escape(),
            _ => self.literal(c),
        }
    }

    fn open(&mut self, text: &str) {
        self.text.push_str(text);
        self.groups.push(Group::default());
    }

    /// Translates flags, such as `(?i)` or `(?i-s:`, from behind the question mark.
    fn flags(&mut self) -> Result<(), Stop> {
        let (mut on, mut off) = (String::new(), String::new());
        let mut sign = None;
        loop {
            match self.next() {
                Some(flag @ ('i' | 'm' | 's' | 'U')) => {
                    on.retain(|other| other != flag);
                    off.retain(|other| other != flag);
                    sign = sign.map(|_| true);
                    if sign.is_some() {
                        off.push(flag)
                    } else {
                        on.push(flag)
                    }
                }
                Some('-') if sign.is_none() => sign = Some(false),
                Some(end @ (':' | ')')) if sign != Some(false) => {
                    let minus = if off.is_empty() { "" } else { "-" };
                    let flags = format!("(?{on}{minus}{off}{end}");
                    if end == ':' {
                        self.open(&flags);
                    } else if flags != "(?)" {
                        self.text.push_str(&flags);
                        let group = self.group()?;
                        if !matches!(group.last, Last::Nothing) {
                            group.last = Last::Flags(group.last.repetitions());
                        }
                    } else if let Last::Repetition(product) = self.group()?.last {
                        self.group()?.last = Last::Flags(product);
                    }
                    return Ok(());
                }
                _ => return Err(Stop::Undefined),
            }
        }
    }

    /// Appends a repetition. `factor` is its number.
    fn repeat(&mut self, text: &str, factor: Option<u32>) -> Result<(), Stop> {
        let product = match self.group()?.last {
            Last::Nothing | Last::Repetition(_) => return Err(Stop::Undefined),
            Last::Flags(_) => return unsupported("a repetition follows flags"),
            Last::Expression(product) => match factor {
                Some(0) => 1,
                Some(factor) => product.saturating_mul(factor),
                None => product,
            },
        };
        if factor.is_some() && product > MAX_REPETITION {
            return Err(Stop::Undefined);
        }
        self.text.push_str(text);
        if self.skip("?") {
            self.text.push('?');
        }
        self.group()?.last = Last::Repetition(product);
        Ok(())
    }

    /// Translates an escape outside a class, from behind the backslash.
    fn escape(&mut self) -> Result<(), Stop> {
        let whole = self.rest;
        match self.next() {
            Some('A') => self.push(r"\A"),
            Some('z') => self.push(r"\z"),
            Some('b') => self.push(r"(?-u:\b)"),
            Some('B') => self.push(r"(?-u:\B)"),
            Some('Q') => {
                let (literal, rest) = self.rest.split_once(r"\E").unwrap_or((self.rest, ""));
                self.rest = rest;
                if literal.is_empty() && !matches!(self.group()?.last, Last::Nothing) {
                    // Go allows to repeat what is in front of an empty literal.
                    let repetitions = self.group()?.last.repetitions();
                    self.group()?.last = Last::Flags(repetitions);
                }
                literal.chars().try_for_each(|c| self.literal(c))
            }
            _ => {
                self.rest = whole;
                match self.class_escape()? {
                    Some(class) => self.push(&format!("[{class}]")),
                    None => {
                        let c = self.character_escape()?;
                        self.literal(c)
                    }
                }
            }
        }
    }

    /// Translates a class such as `\d` or `\pL` to an item of a class, from behind the backslash.
    fn class_escape(&mut self) -> Result<Option<String>, Stop> {
        let whole = self.rest;
        let class = match self.next() {
            Some('d') => "0-9",
            Some('D') => "[^0-9]",
            Some('s') => r"\t\n\f\r ",
            Some('S') => r"[^\t\n\f\r ]",
            Some('w') => "0-9A-Za-z_",
            Some('W') => "[^0-9A-Za-z_]",
            Some(kind @ ('p' | 'P')) => return self.unicode_class(kind == 'P').map(Some),
            _ => {
                self.rest = whole;
                return Ok(None);
            }
        };
        Ok(Some(class.to_owned()))
    }

    /// Translates the name of a Unicode class.
    fn unicode_class(&mut self, negated: bool) -> Result<String, Stop> {
        let name = if self.skip("{") {
            self.until("}")?
        } else {
            let whole = self.rest;
            self.next().ok_or(Stop::Undefined)?;
            whole.strip_suffix(self.rest).unwrap_or_default()
        };
        let (name, negated) = match name.strip_prefix('^') {
            Some(name) => (name, !negated),
            None => (name, negated),
        };
        let letter = if negated { 'P' } else { 'p' };
        if CATEGORIES.contains(&name) {
            Ok(format!(r"\{letter}{{gc={name}}}"))
        } else if SCRIPTS.contains(&name) {
            Ok(format!(r"\{letter}{{sc={name}}}"))
        } else {
            unsupported(format!("the Unicode class {name:.20} is not known here"))
        }
    }

    /// Reads an escaped character, from behind the backslash.
    fn character_escape(&mut self) -> Result<char, Stop> {
        let c = self.next().ok_or(Stop::Undefined)?;
        let code = match c {
            '0' => self.octal(0),
            '1'..='7' if self.rest.starts_with(|c: char| c.is_digit(8)) => {
                self.octal(c.to_digit(8).unwrap_or(0))
            }
            'x' if self.skip("{") => {
                let digits = self.until("}")?;
                let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                let code = u32::from_str_radix(digits, 16).ok().filter(|_| is_hex);
                // Go allows any number of zeros.
                code.filter(|code| *code <= u32::from(char::MAX))
                    .ok_or(Stop::Undefined)?
            }
            'x' => {
                let (high, low) = (self.next(), self.next());
                let digit = |c: Option<char>| c.and_then(|c| c.to_digit(16)).ok_or(Stop::Undefined);
                digit(high)? * 16 + digit(low)?
            }
            'a' => 7,
            'f' => 12,
            'n' => 10,
            'r' => 13,
            't' => 9,
            'v' => 11,
            _ if c.is_ascii() && !c.is_ascii_alphanumeric() => u32::from(c),
            _ => return Err(Stop::Undefined),
        };
        match char::from_u32(code) {
            Some(c) => Ok(c),
            None => unsupported("a pattern has a surrogate"),
        }
    }

    /// Reads up to two more octal digits.
    fn octal(&mut self, first: u32) -> u32 {
        let mut code = first;
        for _ in 0..2 {
            let Some(digit) = self.rest.chars().next().and_then(|c| c.to_digit(8)) else {
                break;
            };
            self.next();
            code = code * 8 + digit;
        }
        code
    }

    /// Translates a class, from behind the bracket.
    fn class(&mut self) -> Result<(), Stop> {
        let mut class = String::from(if self.skip("^") { "[^" } else { "[" });
        let mut is_first = true;
        while is_first || !self.skip("]") {
            is_first = false;
            let named = self.rest.strip_prefix("[:");
            if let Some((name, rest)) = named.and_then(|rest| rest.split_once(":]")) {
                self.rest = rest;
                if !ASCII_CLASSES.contains(&name.strip_prefix('^').unwrap_or(name)) {
                    return Err(Stop::Undefined);
                }
                class.push_str(&format!("[:{name}:]"));
                continue;
            }
            if let Some(rest) = self.rest.strip_prefix('\\') {
                let whole = std::mem::replace(&mut self.rest, rest);
                if let Some(item) = self.class_escape()? {
                    class.push_str(&item);
                    continue;
                }
                self.rest = whole;
            }
            let low = self.class_character()?;
            push_literal(&mut class, low);
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") && self.rest.len() > 1 {
                self.next();
                let high = self.class_character()?;
                if high < low {
                    return Err(Stop::Undefined);
                }
                class.push('-');
                push_literal(&mut class, high);
            }
        }
        class.push(']');
        self.push(&class)
    }

    fn class_character(&mut self) -> Result<char, Stop> {
        match self.next() {
            Some('\\') => self.character_escape(),
            next => next.ok_or(Stop::Undefined),
        }
    }
}
