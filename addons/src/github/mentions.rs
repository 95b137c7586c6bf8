//! Assistants that start to work when a text mentions them, or when they are assigned.

use std::borrow::Cow;

/// Accounts of assistants. Mentioning or assigning one starts work with the assistant's own rights,
/// which no rule of this proxy limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mentions(Vec<String>);

impl Mentions {
    /// Takes the accounts in the form of mentions (`@copilot`), in any letter case.
    #[must_use]
    pub fn new(mentions: &[String]) -> Self {
        let name = |mention: &String| mention.trim_start_matches('@').to_ascii_lowercase();
        let names = mentions.iter().map(name);
        Self(names.filter(|name| !name.is_empty()).collect())
    }

    /// Whether no account is listed.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a listed account that the text mentions; `None` if it mentions none. Searches the
    /// raw text, which assistants read, and the text that Markdown renders, in which `&#64;copilot`
    /// is a mention, too. The context decides whether Markdown shows `<…>` or removes it as a tag,
    /// so both renderings are searched.
    pub(super) fn find(&self, text: &str) -> Option<&str> {
        if self.is_empty() {
            return None;
        }
        let find_rendered = |keeps_tags| match rendered(text, keeps_tags) {
            Cow::Owned(rendered) => self.find_in(&rendered),
            Cow::Borrowed(_) => None,
        };
        self.find_in(text)
            .or_else(|| find_rendered(false))
            .or_else(|| find_rendered(true))
    }

    fn find_in(&self, text: &str) -> Option<&str> {
        text.match_indices('@').find_map(|(at, sign)| {
            let (before, after) = (text.get(..at)?, text.get(at + sign.len()..)?);
            // `me@copilot.example.com` is an address.
            if before.ends_with(|c: char| c.is_ascii_alphanumeric()) {
                return None;
            }
            let named = self.0.iter().find(|name| begins_with_word(after, name));
            named.map(String::as_str)
        })
    }

    /// The listed account that a login belongs to. Logins that add a suffix after a hyphen, such as
    /// `copilot-swe-agent`, belong to the account, too.
    pub(super) fn agent(&self, login: &str) -> Option<&str> {
        let login = login.trim().trim_start_matches('@').to_ascii_lowercase();
        let login = login.strip_suffix("[bot]").unwrap_or(&login);
        let listed = self.0.iter().find(|name| {
            let rest = login.strip_prefix(name.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        });
        listed.map(String::as_str)
    }
}

/// Whether a text begins with the login as a whole word. `copilot-fan` and `copilot_x` are other
/// logins. A `-` or `_` at the end is not part of a login: in `_@copilot_`, it ends an emphasis.
fn begins_with_word(text: &str, name: &str) -> bool {
    let begins = text.get(..name.len());
    if !begins.is_some_and(|begins| begins.eq_ignore_ascii_case(name)) {
        return false;
    }
    let rest = text.get(name.len()..).unwrap_or_default();
    let rest = rest.trim_start_matches(['-', '_']);
    !rest.starts_with(|c: char| c.is_ascii_alphanumeric())
}

/// Renders the parts of Markdown that can hide a mention: decodes character references, removes
/// escaping backslashes, and removes or keeps tags and comments. Returns the text borrowed if it
/// contains no `&`, `<` or `\`.
fn rendered(text: &str, keeps_tags: bool) -> Cow<'_, str> {
    const MARKUP: [char; 3] = ['&', '<', '\\'];
    if !text.contains(MARKUP) {
        return Cow::Borrowed(text);
    }
    let mut tags = Tags {
        // To keep tags, both searches for an end are marked as having found none, so `skip` skips
        // nothing.
        no_comment_ends: keeps_tags,
        no_tag_ends: keeps_tags,
    };
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(MARKUP) {
        let (before, markup) = rest.split_at(at);
        shown.push_str(before);
        let reference = reference(markup).map(|(shown, rest)| (Some(shown), rest));
        let mut removed = || tags.skip(markup).or_else(|| escape(markup));
        let read = reference.or_else(|| removed().map(|rest| (None, rest)));
        rest = match read {
            Some((character, rest)) => {
                shown.extend(character);
                rest
            }
            None => {
                let mut characters = markup.chars();
                shown.extend(characters.next());
                characters.as_str()
            }
        };
    }
    shown.push_str(rest);
    Cow::Owned(shown)
}

/// Parses a numeric character reference (`&#64;`, `&#x40;`) or `&commat;`, the only named reference
/// that is decoded. Returns the character and the rest. The semicolon of a numeric reference is
/// optional, as in HTML.
fn reference(markup: &str) -> Option<(char, &str)> {
    if let Some(rest) = markup.strip_prefix("&commat;") {
        return Some(('@', rest));
    }
    let number = markup.strip_prefix("&#")?;
    let (number, radix) = match number.strip_prefix(['x', 'X']) {
        Some(number) => (number, 16),
        None => (number, 10),
    };
    let digits = number.find(|c: char| !c.is_digit(radix));
    let (digits, rest) = number.split_at(digits.unwrap_or(number.len()));
    let character = u32::from_str_radix(digits, radix).ok()?;
    let rest = rest.strip_prefix(';').unwrap_or(rest);
    Some((char::from_u32(character)?, rest))
}

/// Skips a backslash that escapes punctuation, since Markdown does not render the backslash.
/// Returns the rest, punctuation included.
fn escape(markup: &str) -> Option<&str> {
    let rest = markup.strip_prefix('\\')?;
    rest.starts_with(|c: char| c.is_ascii_punctuation())
        .then_some(rest)
}

/// Finds the ends of tags and comments. A search without a result is not repeated, so that a text
/// of many `<a` takes linear time.
struct Tags {
    no_comment_ends: bool,
    no_tag_ends: bool,
}

impl Tags {
    /// Returns the text after the comment or tag that `markup` begins with; `None` if `markup`
    /// begins with neither, or if the end is missing.
    fn skip<'a>(&mut self, markup: &'a str) -> Option<&'a str> {
        let inner = markup.strip_prefix('<')?;
        let comment = inner.strip_prefix("!--");
        if let Some(after) =
            comment.and_then(|inner| skip_past(inner, "-->", &mut self.no_comment_ends))
        {
            return Some(after);
        }
        let is_tag = inner.starts_with(|c: char| c.is_ascii_alphabetic() || "/!?".contains(c));
        is_tag.then(|| skip_past(inner, ">", &mut self.no_tag_ends))?
    }
}

fn skip_past<'a>(text: &'a str, end: &str, has_none: &mut bool) -> Option<&'a str> {
    if *has_none {
        return None;
    }
    let after = text.split_once(end).map(|(_, after)| after);
    *has_none = after.is_none();
    after
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;
    use crate::fixtures::cpu_time;

    fn mentions(names: &[&str]) -> Mentions {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Mentions::new(&names)
    }

    /// The texts in which `find`, with the shipped list, does not return `wanted`.
    fn wrong<'a>(texts: &[&'a str], wanted: Option<&str>) -> Vec<&'a str> {
        let shipped = mentions(&["@copilot"]);
        let wrong = texts.iter().filter(|text| shipped.find(text) != wanted);
        wrong.copied().collect()
    }

    #[test]
    fn a_mention_is_found_beside_punctuation_and_markup() {
        let texts = [
            "@copilot",
            "@copilot merge main into this branch and push",
            "please @Copilot, merge",
            "(@COPILOT)",
            "**@copilot** _@copilot_ ~~@copilot~~",
            "_@copilot_",
            "__@copilot__ go",
            "@copilot: go",
            "@copilot.",
            "@copilot.Go",
            "@copilot's turn",
            "@copilot- go",
            "@copilot/",
            "> @copilot",
            "a line\n@copilot\nanother",
            "é@copilot",
            "@copiloté",
            "@@copilot",
            ".@copilot",
            "`@copilot`",
            "```\n@copilot merge\n```",
            "<!-- @copilot merge -->",
            "[@copilot](https://example.com)",
            "@copilot<b>fan</b>",
            "@copilot-fan and @copilot",
            "me@copilot.example.com and @copilot",
        ];
        assert_eq!(wrong(&texts, Some("copilot")), [""; 0]);
    }

    #[test]
    fn a_mention_that_appears_only_in_the_rendered_text_is_found() {
        let texts = [
            "&#64;copilot merge",
            "x<br>&#64;copilot merge",
            "a<b>&#64;copilot</b> go",
            "done<!-- -->&#64;copilot merge",
            "&#64;copilot<br>fix it",
            "2 <b &#64;copilot, c> d",
            "see a<b\n\n&#64;copilot merge this and c>d",
            "&#x40;copilot",
            "&#X40;copilot",
            "&#0000064;copilot",
            "&#64copilot",
            "&commat;copilot",
            "@&#99;opilot",
            "@c&#x6F;pilot",
            "\\@copilot",
            "@copi<!-- -->lot",
            "@<!-- a > b -->copilot",
            "@<x>copilot",
            "@co</x>pilot",
            "@<?x?>copilot",
            "< @co<x>pilot",
            "&amp; \\ & &#; &#x; &#1114112; &#99999999999; @<x>copilot",
        ];
        assert_eq!(wrong(&texts, Some("copilot")), [""; 0]);
    }

    #[test]
    fn text_without_a_mention_of_a_listed_account_passes() {
        let texts = [
            "",
            "@",
            "copilot",
            "me@copilot.example.com",
            "1@copilot",
            "@copilot-fan",
            "@copilot_fan",
            "@copilots",
            "@copilot2",
            "@copilo",
            "@co pilot",
            "@ copilot",
            "@github/copilot",
            "copilot@",
            "&#64;copilot-fan",
            "me&#64;copilot",
            "&amp;#64;copilot",
            "a < b, c > d, \\copilot",
            "@é",
        ];
        assert_eq!(wrong(&texts, None), [""; 0]);
    }

    #[test]
    fn only_mentions_of_listed_accounts_are_found() {
        let listed = mentions(&["@Claude", "codex", "@"]);
        assert_eq!(listed.find("ask @claude"), Some("claude"));
        assert_eq!(listed.find("ask @CODEX"), Some("codex"));
        assert_eq!(listed.find("ask @copilot"), None);
        let none = mentions(&[]);
        assert!(none.is_empty() && !listed.is_empty());
        assert_eq!((none.find("@copilot"), none.agent("copilot")), (None, None));
        let hyphen = mentions(&["@my-bot"]);
        assert_eq!(hyphen.find("@my\\-bot"), Some("my-bot"));
    }

    #[test]
    fn logins_of_assistants_and_of_people_are_told_apart() {
        let shipped = mentions(&["@copilot"]);
        let agents = [
            "copilot",
            "Copilot",
            "copilot-swe-agent",
            "copilot-pull-request-reviewer[bot]",
            "Copilot[bot]",
            "@copilot",
            " copilot ",
        ];
        let people = ["copilots", "my-copilot", "copilo", "octocat", "", "[bot]"];
        let wrong: Vec<&str> = agents
            .into_iter()
            .filter(|login| shipped.agent(login) != Some("copilot"))
            .chain(
                people
                    .into_iter()
                    .filter(|login| shipped.agent(login).is_some()),
            )
            .collect();
        assert_eq!(wrong, [""; 0]);
    }

    #[test]
    fn searching_takes_linear_time() {
        let shipped = mentions(&["@copilot"]);
        let begun = cpu_time();
        each_row(
            [
                "<a",
                "<!--",
                "<!--<a",
                "&#",
                "&#9",
                "\\",
                "@",
                "@copilot2 ",
                "<",
                "<a>",
            ],
            |part| {
                let text = part.repeat((1 << 20) / part.len());
                assert_eq!(shipped.find(&text), None, "{part}");
            },
        );
        // 10 MiB take 3 s without optimization; a quadratic search would take hours.
        let most = if cfg!(debug_assertions) { 20 } else { 5 };
        let took = cpu_time() - begun;
        assert!(took.as_secs() < most, "{took:?}");
    }
}
