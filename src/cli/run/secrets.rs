//! Decides which variables of the environment are secrets, by name and value.

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
/// Words after which a value is secret unless it is [plain](is_plain).
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
/// Variables that are not secret, even if their name or value matches one of the lists.
const PLAIN: [&str; 3] = ["PWD", "OLDPWD", "XAUTHLOCALHOSTNAME"];
/// Values that are secret under no name.
const BOOLEANS: [&str; 15] = [
    "", "0", "1", "disabled", "enabled", "false", "n", "no", "none", "null", "off", "on", "true",
    "y", "yes",
];
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
/// The least bytes of a secret in a pair within a value, which is not the variable's own value.
const MIN_PAIRED: usize = 4;

/// What a name says about its value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Secret,
    /// A secret, unless the value is a number.
    Quantity,
    /// A secret, unless the value is plain.
    Doubtful,
    Other,
}

/// Whether a variable looks like a secret, by its name or its value.
pub fn is_secret(name: &str, value: &str) -> bool {
    !PLAIN.contains(&name) && (is_secret_under(name, value) || has_secret_value(value))
}

fn is_secret_under(name: &str, value: &str) -> bool {
    if BOOLEANS.contains(&value.to_ascii_lowercase().as_str()) {
        return false;
    }
    match kind(name) {
        Kind::Secret => true,
        Kind::Quantity => !is_number(value),
        Kind::Doubtful => !is_plain(value),
        Kind::Other => false,
    }
}

/// The words of a name are separated by `_`, `-` and `.`; case and digits at the end of a word are
/// ignored.
fn kind(name: &str) -> Kind {
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

/// Whether a value is a number, a few words, or a path, host or URL of words: no key looks like that.
fn is_plain(value: &str) -> bool {
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

fn is_number(value: &str) -> bool {
    let value = value.strip_prefix('-').unwrap_or(value);
    let unit = value.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let digits = value.chars().filter(char::is_ascii_digit).count();
    let [_, max] = MAX_DIGITS;
    (1..=max).contains(&digits) && UNITS.contains(&unit.trim().to_ascii_lowercase().as_str())
}

fn has_secret_value(value: &str) -> bool {
    SECRET_VALUES.iter().any(|start| value.starts_with(start))
        || SECRET_PARTS.iter().any(|part| value.contains(part))
        || pairs(value).any(|(name, text)| text.len() >= MIN_PAIRED && is_secret_under(name, text))
        || has_password(value)
}

/// The pairs of names and texts in a value, such as options, headers, queries and JSON: `name=text`,
/// `Name: text`, `"name":"text"`.
fn pairs(value: &str) -> impl Iterator<Item = (&str, &str)> {
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

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn names_and_values_of_secrets_are_recognised() {
        each_row(
            [
                ("GITHUB_TOKEN", "x"),
                ("PROXIES", "https://a.example,https://ada:s3cr@b.example"),
                (
                    "INDEXES",
                    "https://a.example/simple https://ada:s3cr@b.example",
                ),
                ("ANTHROPIC_API_KEY", "x"),
                ("AWS_SECRET_ACCESS_KEY", "x"),
                ("AWS_SESSION_TOKEN", "x"),
                ("dbpassword", "x"),
                ("PGPASSWORD", "x"),
                ("PASSWORD", "summer"),
                ("PASSWORD", "12345678"),
                ("DB_PASS", "hunter"),
                ("DB_PASSWORD_PROD", "hunter"),
                ("MYSQL_PWD", "x"),
                ("REDIS_AUTH", "hunter"),
                ("SLACK_WEBHOOK", "x"),
                ("SECRET1", "x"),
                ("SECRET_1", "plain"),
                ("SECRET_KEY_BASE", "changeme"),
                ("APP_ENCRYPTION_KEY", "changeme"),
                ("AWSSECRETKEY", "x"),
                ("MY_PRIVATEKEY", "x"),
                ("OPENAIKEY", "x"),
                ("NPM_OTP", "123456"),
                ("MAX_TOKEN", "hunter"),
                ("TOKENS", "f81d4fae7dec"),
                ("SORT_KEY", "f81d4fae7dec11d0"),
                ("SORT_KEY", "qXvTbYpLmZsKwRnd"),
                ("LICENSE", "ABCD-EFGH-IJKL-MNOP"),
                ("LICENSE", "12345678901234"),
                ("COOKIE", "session=f81d4fae"),
                ("TOKEN_FILE_URL", "https://f81d4fae7dec@example.com/"),
                ("JWT_ID", "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"),
                ("SENTRY_DSN", "https://f81d4fae7dec@sentry.example.com/1"),
                (
                    "AZURE_STORAGE_CONNECTION_STRING",
                    "AccountName=a;AccountKey=b+c/d==",
                ),
                ("BASIC_CREDENTIALS", "ada:hunter"),
                ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x"),
                ("OTEL_EXPORTER_OTLP_HEADERS", "x-team=f81d4fae"),
                ("MY_OPTIONS", "a=b,x-api-key=f81d4fae"),
                ("MY_OPTIONS", "Authorization: Bearer f81d4fae"),
                (
                    "MY_OPTIONS",
                    "{\"user\": \"ada\", \"password\": \"hunter\"}",
                ),
                ("MY_OPTIONS", "--token=f81d4fae"),
                (
                    "JDBC_URL",
                    "jdbc:mysql://db.example.com/a?user=ada&password=hunter",
                ),
                ("CONN", "Server=db;User Id=ada;Password=hunter;"),
                ("SOMETHING", "sk_live_0123456789"),
                ("SOMETHING", "gsk_0123456789"),
                ("SAS_URL", "https://blob.example.com/a?sv=1&sig=0123"),
                ("NOTIFY", "https://hooks.slack.com/services/T0/B0/x"),
                ("SOMETHING", "ghp_0123456789"),
                ("SOMETHING", "sk-ant-api03-0123456789"),
                ("SOMETHING", "eyJhbGciOiJIUzI1NiJ9.e30.x"),
                ("SOMETHING", "-----BEGIN PRIVATE KEY-----"),
                ("DATABASE_URL", "postgres://user:secret@db.example.com/name"),
                ("REMOTE", "https://0123456789@git.example.com/a/b"),
            ],
            |(name, value)| assert!(is_secret(name, value), "{name}={value}"),
        );
    }

    #[test]
    fn other_names_and_values_are_not_taken_for_secrets() {
        each_row(
            [
                ("PWD", "/work"),
                ("PATH", "/opt/secret:/opt/token/bin:/usr/bin"),
                ("EDITOR", "vim"),
                ("MONKEY", "x"),
                ("KEYBOARD", "us"),
                ("AUTHOR", "Ada"),
                ("COMPASS", "x"),
                ("MAX_THINKING_TOKENS", "31999"),
                ("MAX_TOKEN", "4096"),
                ("CLAUDE_CODE_MAX_OUTPUT_TOKENS", "32000"),
                ("PASSWORD_MIN_LENGTH", "12"),
                ("TOKEN_TTL", "15m"),
                ("DISABLE_AUTH", "true"),
                ("ALLOW_EMPTY_PASSWORD", "Yes"),
                ("USE_TOKEN", "1"),
                ("API_KEY", ""),
                ("DB_CONNECTION", "sqlite"),
                ("SORT_KEY", "created_at"),
                ("SORT_KEY", "createdAt"),
                ("PARTITION_KEY", "user.name"),
                ("JWT_EXPIRES_IN", "7d"),
                ("JWT_EXPIRES_IN", "15 minutes"),
                ("JWT_ALGORITHM", "HS256"),
                ("COOKIE_DOMAIN", ".example.com"),
                ("COOKIE_DOMAIN", "app1.example.com:8443"),
                ("AUTH_URL", "https://login.example.com/oauth/token"),
                ("PASSWORD_STORE_DIR", "/home/ada/.password-store"),
                ("POSTGRES_PASSWORD_FILE", "/run/secrets/postgres"),
                ("TOKEN_TYPE", "bearer"),
                ("LICENSE", "Apache-2.0"),
                ("LS_COLORS", "*.key=01;31:*.token=00;36"),
                ("JAVA_OPTS", "-Xmx2g -Dsort.key=name"),
                ("DATABASE_URL", "postgres://db.example.com/name"),
                ("HOMEPAGE", "https://example.com/@ada"),
            ],
            |(name, value)| assert!(!is_secret(name, value), "{name}={value}"),
        );
    }
}
