//! Decides by the name of a variable what its value may be.

/// Words, or ends of words, after which every value is secret except a boolean: `GITHUB_TOKEN`,
/// `dbpassword`, `CLIENTSECRETS`. Two words of a name count as one word too: `API_KEY`.
const SECRET_ENDS: [&str; 21] = [
    "accesskey",
    "accountkey",
    "aikey",
    "apikey",
    "appkey",
    "authorization",
    "encryptionkey",
    "licensekey",
    "masterkey",
    "passcode",
    "passphrase",
    "passwd",
    "password",
    "passwords",
    "privatekey",
    "secret",
    "secretkey",
    "secrets",
    "signingkey",
    "token",
    "webhook",
];
/// Whole words with the same meaning.
const SECRET_WORDS: [&str; 5] = ["auth", "bearer", "otp", "pass", "pwd"];
/// Words after which a value is secret unless it is [plain](super::values::is_plain).
const DOUBTFUL_WORDS: [&str; 14] = [
    "connection",
    "connstr",
    "cookie",
    "cookies",
    "credential",
    "credentials",
    "creds",
    "dsn",
    "headers",
    "jwt",
    "key",
    "keys",
    "license",
    "pat",
];
/// Last words of names that describe a secret: a plain value is not the secret itself.
const PROPERTIES: [&str; 49] = [
    "age",
    "alg",
    "algorithm",
    "audience",
    "backend",
    "class",
    "count",
    "days",
    "dir",
    "domain",
    "enabled",
    "expiration",
    "expires",
    "expiry",
    "file",
    "format",
    "header",
    "helper",
    "host",
    "hours",
    "id",
    "in",
    "issuer",
    "length",
    "lifetime",
    "limit",
    "max",
    "method",
    "min",
    "minutes",
    "mode",
    "name",
    "path",
    "policy",
    "port",
    "prefix",
    "provider",
    "scope",
    "scopes",
    "seconds",
    "size",
    "store",
    "timeout",
    "ttl",
    "type",
    "uri",
    "url",
    "user",
    "version",
];
/// First words of names whose values are numbers.
const QUANTITIES: [&str; 4] = ["max", "maximum", "min", "num"];

/// What a name says about its value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Secret,
    /// A secret, unless the value is a number.
    Quantity,
    /// A secret, unless the value is plain.
    Doubtful,
    Other,
}

/// The words of a name are separated by `_`, `-` and `.`; case and digits at the end of a word are
/// ignored.
pub fn kind(name: &str) -> Kind {
    let name = name.to_ascii_lowercase();
    // `SECRET1` and `SECRET_1` count as `SECRET`.
    let words = name.split(['_', '-', '.']);
    let words = words.map(|word| word.trim_end_matches(|c: char| c.is_ascii_digit()));
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let ends = |word: &str| SECRET_ENDS.iter().any(|end| word.ends_with(end));
    let mut pairs = words.iter().zip(words.iter().skip(1));
    let is_secret = words
        .iter()
        .any(|word| SECRET_WORDS.contains(word) || ends(word))
        || pairs.any(|(first, second)| ends(&format!("{first}{second}")));
    let is_doubtful = |word: &&str| DOUBTFUL_WORDS.contains(word) || word.ends_with("tokens");
    let is_property = words.last().is_some_and(|word| PROPERTIES.contains(word));
    let is_quantity = words.first().is_some_and(|word| QUANTITIES.contains(word));
    match is_secret {
        true if is_property => Kind::Doubtful,
        true if is_quantity => Kind::Quantity,
        true => Kind::Secret,
        false if words.iter().any(is_doubtful) => Kind::Doubtful,
        false => Kind::Other,
    }
}
