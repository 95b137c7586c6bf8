//! Decides by a value whether it is a secret, or part of one is.

/// Units of numbers.
const UNITS: [&str; 18] = [
    "", "%", "d", "day", "days", "g", "gb", "h", "hours", "k", "kb", "m", "mb", "min", "minutes",
    "ms", "s", "seconds",
];
/// Prefixes of values that are secret under any name.
const SECRET_VALUES: [&str; 24] = [
    "-----BEGIN",
    "AIza",
    "AKIA",
    "ASIA",
    "Basic ",
    "Bearer ",
    "SG.",
    "dop_v1_",
    "eyJ",
    "ghp_",
    "gho_",
    "ghr_",
    "ghs_",
    "ghu_",
    "github_pat_",
    "glpat-",
    "gsk_",
    "hf_",
    "npm_",
    "pypi-",
    "rk_live_",
    "sk-",
    "sk_",
    "xox",
];
/// Texts that are followed by a secret within a value.
const SECRET_PARTS: [&str; 4] = [
    "SharedAccessKey=",
    "discord.com/api/webhooks/",
    "hooks.slack.com/services/",
    "sig=",
];

/// Limit on the letters of a word in a plain value.
const MAX_WORD: usize = 14;
/// Limit on the upper-case letters of a plain value without lower-case ones, and on those within a
/// word of another value.
const MAX_CAPITALS: [usize; 2] = [12, 2];
/// Limit on the digits of a plain value, and of a plain number.
const MAX_DIGITS: [usize; 2] = [4, 9];

/// Whether a value is a number, a few words, or a path, host or URL of words: no key looks like that.
pub fn is_plain(value: &str) -> bool {
    let capitals = value.chars().filter(char::is_ascii_uppercase).count();
    let has_lower = value.contains(|c: char| c.is_ascii_lowercase());
    let [max_alone, max_within] = MAX_CAPITALS;
    let is_word = |word: &str| {
        // `HS256` and `app1` are words, and so is `1`.
        let letters = word.trim_end_matches(|c: char| c.is_ascii_digit());
        letters.len() <= MAX_WORD
            && letters.chars().all(|c| c.is_ascii_alphabetic())
            && (!has_lower
                || letters
                    .chars()
                    .skip(1)
                    .filter(char::is_ascii_uppercase)
                    .count()
                    <= max_within)
    };
    let (scheme, rest) = value.split_once("://").unwrap_or_default();
    let rest = if scheme.is_empty() { value } else { rest };
    // The port of a host.
    let port = rest.rsplit_once(':');
    let rest = match port {
        Some((host, port)) if port.chars().all(|c| c.is_ascii_digit()) => host,
        _ => rest,
    };
    let [max_digits, _] = MAX_DIGITS;
    let digits = rest.chars().filter(char::is_ascii_digit).count();
    let few = digits <= max_digits && (has_lower || capitals <= max_alone);
    let mut words = rest.split(['_', '-', '.', '/', ',', '*', '~']);
    is_number(value) || few && is_word(scheme) && words.all(is_word)
}

pub fn is_number(value: &str) -> bool {
    let value = value.strip_prefix('-').unwrap_or(value);
    let unit = value.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let digits = value.chars().filter(char::is_ascii_digit).count();
    let [_, max] = MAX_DIGITS;
    (1..=max).contains(&digits) && UNITS.contains(&unit.trim().to_ascii_lowercase().as_str())
}

/// Whether a value is secret under any name, as a whole or by a part of it.
pub fn is_secret(value: &str) -> bool {
    SECRET_VALUES.iter().any(|start| value.starts_with(start))
        || SECRET_PARTS.iter().any(|part| value.contains(part))
        || has_password(value)
}

/// The pairs of names and texts in a value, such as options, headers, queries and JSON: `name=text`,
/// `Name: text`, `"name":"text"`.
pub fn pairs(value: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    value
        .match_indices(['=', ':'])
        .filter_map(move |(at, sign)| {
            let before = value.get(..at)?.trim_end_matches(['"', '\'', ' ']);
            let name = before.rsplit(|c| !is_of_name(c)).next()?;
            let after = value.get(at + 1..)?.trim_start_matches(['"', '\'', ' ']);
            let text = after.split(['"', '\'', ' ', '&', ';', ',', '\n']).next()?;
            // A colon separates also the parts of URLs and of lists of paths.
            let begins = before.strip_suffix(name)?;
            let is_start =
                begins.is_empty() || begins.ends_with(['{', ',', ';', '"', '\'', '\n', ' ']);
            (sign == "=" || is_start && !text.starts_with('/')).then_some((name, text))
        })
}

/// Whether a value has a URL with a password, or with a user name only, which may be a token.
fn has_password(value: &str) -> bool {
    value.match_indices("://").any(|(at, separator)| {
        let rest = value.get(at + separator.len()..).unwrap_or_default();
        let authority = rest.split(['/', '?', '#', ',', ' ']).next();
        let user = authority.and_then(|authority| authority.rsplit_once('@'));
        user.is_some_and(|(user, _)| {
            user.split_once(':')
                .is_none_or(|(_, password)| !password.is_empty())
        })
    })
}
