//! Arguments of the recorded calls of `explain`, by subject.

/// Container, method and URL or `HOST:PORT`, as the command gets them.
pub type Question = (&'static str, &'static str, &'static str);

pub const SUBJECTS: &[(&str, &[Question])] = &[
    ("schemes", SCHEMES),
    ("hosts", HOSTS),
    ("addresses", ADDRESSES),
    ("ports-and-methods", PORTS_AND_METHODS),
    ("rules", RULES),
    ("containers", CONTAINERS),
    ("git", GIT),
    ("github", GITHUB),
    ("credentials", CREDENTIALS),
    ("passthrough", PASSTHROUGH),
    ("no-questions", NO_QUESTIONS),
];

const SCHEMES: &[Question] = &[
    ("sandbox", "GET", "https://open.example.com/"),
    (
        "sandbox",
        "GET",
        "https://open.example.com/echo?key=value#part",
    ),
    ("sandbox", "GET", "http://open-plain.example.com/echo"),
    ("sandbox", "GET", "wss://open.example.com/websocket"),
    ("sandbox", "GET", "ws://open-plain.example.com/websocket"),
    ("sandbox", "CONNECT", "open.example.com:443"),
    ("sandbox", "CONNECT", "open-plain.example.com:80"),
    ("sandbox", "HEAD", "https://open.example.com/"),
    ("sandbox", "OPTIONS", "https://open.example.com/"),
    ("sandbox", "POST", "https://open.example.com/echo"),
    ("sandbox", "GET", "wss://silent.example.com/websocket"),
    ("sandbox", "GET", "ws://silent-plain.example.com/websocket"),
    ("sandbox", "GET", "https://silent.example.com/"),
];

const HOSTS: &[Question] = &[
    ("sandbox", "GET", "https://unlisted.example.com/"),
    ("sandbox", "GET", "http://unlisted-plain.example.com/"),
    ("sandbox", "GET", "wss://unlisted.example.com/"),
    ("sandbox", "CONNECT", "unlisted.example.com:443"),
    ("sandbox", "GET", "https://OPEN.Example.COM./echo"),
    ("sandbox", "GET", "https://sub.open.example.com/"),
    ("sandbox", "GET", "https://a.wild.example.com/"),
    ("sandbox", "GET", "https://deep.a.wild.example.com/"),
    ("sandbox", "GET", "https://wild.example.com/"),
    ("sandbox", "GET", "https://unresolved.example.org/"),
];

const ADDRESSES: &[Question] = &[
    ("sandbox", "GET", "http://192.0.2.1/"),
    ("sandbox", "GET", "https://8.8.8.8/"),
    ("sandbox", "GET", "http://127.0.0.1/"),
    ("sandbox", "GET", "http://2130706433/"),
    ("sandbox", "GET", "http://[::1]/"),
    ("sandbox", "GET", "http://169.254.169.254/latest/meta-data/"),
    ("sandbox", "CONNECT", "192.0.2.1:443"),
    ("sandbox", "CONNECT", "[2001:db8::1]:443"),
    ("sandbox", "GET", "https://inside.example.com/"),
    ("sandbox", "CONNECT", "inside.example.com:443"),
    ("sandbox", "GET", "https://private.example.com/"),
    ("sandbox", "CONNECT", "private.example.com:443"),
    ("sandbox", "GET", "https://metadata.example.com/"),
];

const PORTS_AND_METHODS: &[Question] = &[
    ("sandbox", "GET", "https://open.example.com:8443/"),
    ("sandbox", "GET", "http://open-plain.example.com:8080/"),
    ("sandbox", "CONNECT", "open.example.com:22"),
    ("sandbox", "GET", "https://ports.example.com:8443/"),
    ("sandbox", "GET", "https://ports.example.com/"),
    ("sandbox", "TRACE", "https://open.example.com/"),
    ("sandbox", "FROB", "https://open.example.com/"),
    ("sandbox", "PROPFIND", "http://open-plain.example.com/"),
    ("sandbox", "PATCH", "https://open.example.com/echo"),
];

const RULES: &[Question] = &[
    ("sandbox", "GET", "https://ruled.example.com/zen"),
    ("sandbox", "GET", "https://ruled.example.com/echo"),
    ("sandbox", "HEAD", "https://ruled.example.com/echo"),
    ("sandbox", "PUT", "https://ruled.example.com/echo"),
    ("sandbox", "GET", "https://ruled.example.com/x/../zen"),
    ("sandbox", "GET", "http://ruled-plain.example.com/echo"),
    ("sandbox", "CONNECT", "ruled.example.com:443"),
    ("sandbox", "GET", "wss://ruled.example.com/websocket"),
    ("sandbox", "GET", "https://shut.example.com/"),
    ("sandbox", "CONNECT", "shut.example.com:443"),
    ("sandbox", "GET", "https://asked.example.com/"),
    ("sandbox", "PUT", "https://asked.example.com/"),
    ("sandbox", "CONNECT", "asked.example.com:443"),
    ("sandbox", "GET", "https://waits.example.com/"),
    ("sandbox", "CONNECT", "waits.example.com:443"),
];

const CONTAINERS: &[Question] = &[
    ("narrow", "GET", "https://other.example.com/"),
    ("narrow", "GET", "https://open.example.com/"),
    ("narrow", "CONNECT", "open.example.com:443"),
    ("narrow", "GET", "https://unlisted.example.com/"),
    ("raised", "GET", "https://public.example.com/"),
    ("raised", "CONNECT", "public.example.com:443"),
    ("raised", "GET", "https://open.example.com/"),
    ("nobody", "GET", "https://open.example.com/"),
    ("no container", "GET", "https://open.example.com/"),
];

const GIT: &[Question] = &[
    ("sandbox", "GET", "https://git.example.com/acme/web"),
    (
        "sandbox",
        "GET",
        "https://git.example.com/ACME/Web.git/HEAD",
    ),
    (
        "sandbox",
        "GET",
        "https://git.example.com/acme/web.git/info/refs?service=git-upload-pack",
    ),
    (
        "sandbox",
        "GET",
        "https://git.example.com/acme/web.git/info/refs?service=git-receive-pack",
    ),
    (
        "sandbox",
        "GET",
        "https://git.example.com/acme/web.git/info/refs?service=git-shell",
    ),
    (
        "sandbox",
        "POST",
        "https://git.example.com/acme/web.git/git-upload-pack",
    ),
    (
        "sandbox",
        "POST",
        "https://git.example.com/acme/web.git/git-receive-pack",
    ),
    (
        "bot",
        "POST",
        "https://git.example.com/acme/web.git/git-receive-pack",
    ),
    (
        "sandbox",
        "POST",
        "https://git.example.com/acme/web.git/info/lfs/objects/batch",
    ),
    (
        "sandbox",
        "POST",
        "https://git.example.com/acme/web.git/info/lfs/locks",
    ),
    (
        "sandbox",
        "PUT",
        "https://git.example.com/acme/web.git/info/lfs/objects/ab",
    ),
    ("sandbox", "GET", "https://git.example.com/acme/other"),
    ("narrow", "GET", "https://git.example.com/acme/web"),
    (
        "sandbox",
        "POST",
        "https://git.example.com/acme/other.git/git-receive-pack",
    ),
    (
        "sandbox",
        "GET",
        "https://git.example.com/acme/web/other.git/info/refs",
    ),
    (
        "sandbox",
        "POST",
        "https://git.example.com/acme/web/settings",
    ),
    (
        "sandbox",
        "DELETE",
        "https://git.example.com/acme/web.git/refs/heads/main",
    ),
    ("sandbox", "GET", "https://git.example.com/"),
    ("sandbox", "GET", "https://git.example.com/search?q=acme"),
    (
        "sandbox",
        "GET",
        "https://git.example.com/acme/..%2fother/info/refs",
    ),
    ("sandbox", "GET", "https://git.example.com//acme/web"),
    ("sandbox", "GET", "http://git-plain.example.com/acme/web"),
];

const GITHUB: &[Question] = &[
    ("sandbox", "GET", "https://api.example.com/repos/acme/web"),
    (
        "sandbox",
        "GET",
        "https://api.example.com/REPOS/Acme/Web/pulls/",
    ),
    ("sandbox", "GET", "https://api.example.com/repos/acme/other"),
    ("sandbox", "GET", "https://api.example.com/user"),
    ("sandbox", "GET", "https://api.example.com/rate_limit"),
    ("sandbox", "GET", "https://api.example.com/user/repos"),
    (
        "sandbox",
        "GET",
        "https://api.example.com/search/code?q=acme",
    ),
    ("sandbox", "POST", "https://api.example.com/graphql"),
    (
        "sandbox",
        "POST",
        "https://api.example.com/repos/acme/web/issues",
    ),
    (
        "sandbox",
        "POST",
        "https://api.example.com/repos/acme/web/pulls",
    ),
    (
        "sandbox",
        "PATCH",
        "https://api.example.com/repos/acme/web/issues/1",
    ),
    (
        "sandbox",
        "POST",
        "https://api.example.com/repos/acme/web/issues?title=a",
    ),
    (
        "sandbox",
        "PUT",
        "https://api.example.com/repos/acme/web/pulls/1/merge",
    ),
    (
        "sandbox",
        "POST",
        "https://api.example.com/repos/acme/web/releases",
    ),
    (
        "sandbox",
        "DELETE",
        "https://api.example.com/repos/acme/web",
    ),
    (
        "sandbox",
        "PUT",
        "https://api.example.com/repos/acme/web/contents/a",
    ),
    (
        "sandbox",
        "POST",
        "https://api.example.com/repos/acme/other/issues",
    ),
    (
        "sandbox",
        "GET",
        "https://api.example.com/repos/acme/web/../other",
    ),
    ("bot", "GET", "https://api.example.com/repos/acme/web"),
];

const CREDENTIALS: &[Question] = &[
    ("sandbox", "GET", "https://other.example.com/echo"),
    ("sandbox", "GET", "https://other.example.com:8443/echo"),
    ("sandbox", "GET", "http://other-plain.example.com/echo"),
    ("sandbox", "CONNECT", "other.example.com:443"),
    ("sandbox", "GET", "wss://other.example.com/websocket"),
    ("sandbox", "GET", "https://api.example.com/user"),
    (
        "sandbox",
        "GET",
        "https://open.example.com/echo?key=up-placeholder-0123456789abcdef0123456789abcdef",
    ),
];

const PASSTHROUGH: &[Question] = &[
    ("sandbox", "CONNECT", "pass.example.com:443"),
    ("sandbox", "GET", "https://pass.example.com/"),
    ("sandbox", "GET", "http://pass.example.com/"),
    ("sandbox", "CONNECT", "pass-inside.example.com:443"),
    ("sandbox", "CONNECT", "pass.example.com:22"),
];

/// Arguments that `explain` refuses with exit code 64.
const NO_QUESTIONS: &[Question] = &[
    ("sandbox", "GET", "open.example.com:443"),
    ("sandbox", "GET", "open.example.com"),
    ("sandbox", "GET", "/echo"),
    ("sandbox", "GET", "ftp://open.example.com/"),
    ("sandbox", "GET", "https://"),
    ("sandbox", "GET", "https://a b/"),
    ("sandbox", "GET", "https://user@open.example.com/"),
    ("sandbox", "GET", "https://open.example.com:0/"),
    ("sandbox", "GET", "https://open.example.com:99999/"),
    ("sandbox", "POST", "wss://open.example.com/"),
    ("sandbox", "CONNECT", "open.example.com"),
    ("sandbox", "CONNECT", "https://open.example.com/"),
    ("sandbox", "G E T", "https://open.example.com/"),
];
