//! Secrets of the user, in files and in the environment.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use super::people;
use crate::attempts::check;
use crate::fixture::{NOBODY, Person, User, is_root, names};
use crate::support::Ran;

/// The mark: a text in every secret that these tests search for. Scripts get the mark in two parts,
/// so that their source does not contain it.
pub const MARK: &str = "secret-7c1e59ab04d2";

/// Python code that searches for the mark in the visible files outside `/usr` and `/opt`, and in
/// environments and command lines.
pub const SEARCH: &str = r#"
mark = (sys.argv[1] + sys.argv[2]).encode()
seen = 0
def search(path):
    global seen
    try:
        with open(path, "rb") as file:
            before = b""
            while block := file.read(1 << 20):
                if mark in before + block:
                    report(f"nothing in {path}", False, "the secret is there")
                    return
                before = block[-64:]
        seen += 1
    except OSError:
        pass

skipped = {os.path.join("/proc", name) for name in ("kcore", "kmsg", "kpagecount", "kpageflags", "kpagecgroup", "sys", "irq")}
# Programs of the system, without files of a user.
skipped |= {"/usr", "/opt"}
for directory, names, files in os.walk("/", followlinks=False):
    names[:] = [n for n in names if os.path.join(directory, n) not in skipped and n not in ("task", "map_files")]
    for name in files:
        path = os.path.join(directory, name)
        try:
            kind = os.lstat(path)
        except OSError:
            continue
        own = os.path.basename(path) in ("cmdline", "pagemap", "clear_refs", "mem", "kmsg") and directory.startswith("/proc")
        if stat.S_ISREG(kind.st_mode) and path not in skipped and not own:
            search(path)
holds("files were searched", lambda: seen > 300 and seen)
holds("nothing in the environment", lambda: not any(mark in value for value in os.environb.values()))
for name in os.listdir("/proc"):
    if name.isdigit():
        for file in ("environ", "cmdline"):
            try:
                text = open(f"/proc/{name}/{file}", "rb").read()
            except OSError:
                continue
            holds(f"nothing in /proc/{name}/{file}", lambda: mark not in text)
"#;

/// The mark in two parts.
pub fn mark() -> [&'static str; 2] {
    let (first, second) = MARK.split_at(6);
    [first, second]
}

const FILES: [&str; 30] = [
    ".ssh/id_ed25519",
    ".ssh/config",
    ".aws/credentials",
    ".aws/config",
    ".azure/msal_token_cache.json",
    ".config/gcloud/credentials.db",
    ".config/gh/hosts.yml",
    ".config/git/credentials",
    ".config/unified-proxy/credentials.yaml",
    ".config/fish/config.fish",
    ".netrc",
    ".git-credentials",
    ".gitconfig",
    ".docker/config.json",
    ".kube/config",
    ".gnupg/private-keys-v1.d/key",
    ".npmrc",
    ".pypirc",
    ".cargo/credentials.toml",
    ".m2/settings.xml",
    ".bashrc",
    ".bash_history",
    ".profile",
    ".zshrc",
    ".env",
    ".claude/.credentials.json",
    ".claude.json",
    ".codex/auth.json",
    ".gemini/oauth_creds.json",
    ".local/share/opencode/auth.json",
];

const VARIABLES: [&str; 14] = [
    "GITHUB_TOKEN",
    "GH_TOKEN",
    "ANTHROPIC_API_KEY",
    "OPENAI_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "NPM_TOKEN",
    "PGPASSWORD",
    "MYSQL_PWD",
    "SENTRY_DSN",
    "MY_SERVICE_SECRET",
    "SSH_AUTH_SOCK",
    "DOCKER_HOST",
    "KUBECONFIG",
];

#[test]
fn no_secret_of_the_home_directory_or_the_environment_is_visible() {
    for mut person in people() {
        for file in FILES {
            person.write(file, format!("token = {MARK}\n"));
        }
        person
            .env
            .extend(VARIABLES.map(|name| (name.to_owned(), MARK.to_owned())));
        let in_values = [
            (
                "DATABASE_URL",
                format!("postgres://user:{MARK}@db.example.com/name"),
            ),
            ("REMOTE", format!("https://{MARK}@git.example.com/a/b")),
            ("HARMLESS", format!("sk-{MARK}")),
        ];
        person
            .env
            .extend(in_values.map(|(name, value)| (name.to_owned(), value)));
        // Shows that the search finds a visible file.
        person.write("project/visible", MARK);
        let script = format!(
            "{SEARCH}\nholds('the parent process is not on the host', lambda: os.getppid() in (0, 1))"
        );
        let ran = {
            let command = crate::attempts::python(&script, &mark());
            let command: Vec<&str> = command.iter().map(String::as_str).collect();
            person.run(&[], &command)
        };
        let (found, held): (Vec<_>, Vec<_>) = crate::attempts::rows(&ran)
            .into_iter()
            .partition(|row| !row.held);
        let found: Vec<_> = found.iter().map(|row| row.name.clone()).collect();
        let visible = format!("nothing in {}", person.work().join("visible").display());
        assert_eq!(found, [visible], "{:?}", person.user);
        assert!(held.len() >= 5, "{held:?}");
    }
}

#[test]
fn secrets_in_variables_become_placeholders_and_values_that_refer_to_the_host_are_left_out() {
    let Some(mut person) = Person::new() else {
        return;
    };
    let of_the_host = [
        "SSH_AUTH_SOCK",
        "DOCKER_HOST",
        "DBUS_SESSION_BUS_ADDRESS",
        "DISPLAY",
        "WAYLAND_DISPLAY",
        "TMUX",
        "GPG_AGENT_INFO",
        "KUBECONFIG",
        "GIT_SSH_COMMAND",
        "GIT_CONFIG_COUNT",
        "UNIFIED_PROXY_SOCKET",
        "BASH_ENV",
    ];
    let secret = ["GITHUB_TOKEN", "OPENAI_API_KEY", "PGPASSWORD", "MY_SECRET"];
    let plain = ["EDITOR", "LANG", "MY_SETTING", "GIT_AUTHOR_NAME"];
    let all = of_the_host.iter().chain(&secret).chain(&plain);
    person
        .env
        .extend(all.map(|name| ((*name).to_owned(), "value-of-the-person".to_owned())));
    let printed = person.run(&[], &["env", "-0"]).ok();
    let env: BTreeMap<&str, &str> = printed
        .split('\0')
        .filter_map(|pair| pair.split_once('='))
        .collect();
    for name in of_the_host {
        assert_ne!(env.get(name), Some(&"value-of-the-person"), "{name}");
    }
    for name in secret {
        assert!(
            env[name].contains("up-placeholder-"),
            "{name}={}",
            env[name]
        );
    }
    for name in plain {
        assert_eq!(env[name], "value-of-the-person", "{name}");
    }
    for (name, value) in [
        ("HTTPS_PROXY", "http://127.0.0.1:3128"),
        ("http_proxy", "http://127.0.0.1:3128"),
        ("SSL_CERT_FILE", "/run/unified-proxy/certs/ca-bundle.pem"),
        ("NODE_EXTRA_CA_CERTS", "/run/unified-proxy/certs/ca.pem"),
        ("HOME", person.home().to_str().unwrap()),
    ] {
        assert_eq!(env[name], value, "{name}");
    }
}

#[test]
fn plain_settings_reach_the_command_and_options_of_the_user_are_kept() {
    let Some(mut person) = Person::new() else {
        return;
    };
    let kept = [
        ("MAX_THINKING_TOKENS", "31999"),
        ("DISABLE_AUTH", "true"),
        ("DB_CONNECTION", "sqlite"),
        ("SORT_KEY", "created_at"),
        ("JWT_EXPIRES_IN", "7d"),
        ("COOKIE_DOMAIN", ".example.com"),
        ("ENV", "production"),
    ];
    let masked = [
        ("DB_PASS", "summer"),
        (
            "OTEL_EXPORTER_OTLP_HEADERS",
            "authorization=Bearer%20summer",
        ),
    ];
    let merged = [
        ("no_proxy", "app.localhost,.corp.example.com"),
        (
            "JAVA_TOOL_OPTIONS",
            "-Dmy.option=1 -Dmy.password=summer -javaagent:/host/agent.jar",
        ),
    ];
    let all = kept.iter().chain(&masked).chain(&merged);
    let all = all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    person.env.extend(all);
    let printed = person.run(&[], &["env", "-0"]).ok();
    let env: BTreeMap<&str, &str> = printed
        .split('\0')
        .filter_map(|pair| pair.split_once('='))
        .collect();
    for (name, value) in kept {
        assert_eq!(env.get(name), Some(&value), "{name}");
    }
    for (name, _) in masked {
        assert!(env[name].starts_with("up-placeholder-"), "{name}");
    }
    assert!(!printed.contains("summer"), "{printed}");
    for name in ["NO_PROXY", "no_proxy"] {
        let hosts: Vec<_> = env[name].split(',').collect();
        assert!(
            hosts.contains(&"app.localhost") && hosts.contains(&"localhost"),
            "{hosts:?}"
        );
        assert!(!env[name].contains("example.com"), "{hosts:?}");
    }
    let java = env["JAVA_TOOL_OPTIONS"];
    assert!(
        java.starts_with("-Dmy.option=1 -Dhttp.proxyHost="),
        "{java}"
    );
    person
        .env
        .push(("ENV".to_owned(), "/host/start.sh".to_owned()));
    let ran = person.sh(&[], "echo ${ENV-unset}");
    assert_eq!(ran.ok(), "unset\n");
}

#[test]
fn private_files_and_logs_of_the_system_cannot_be_read() {
    for person in people() {
        let mut private: Vec<String> = [
            "/etc/shadow",
            "/etc/gshadow",
            "/etc/sudoers",
            "/etc/ssl/private",
        ]
        .iter()
        .filter(|path| {
            fs::symlink_metadata(path).is_ok_and(|found| found.permissions().mode() & 0o004 == 0)
        })
        .map(|path| (*path).to_owned())
        .collect();
        private.extend(
            [
                "/root/.bashrc",
                "/root/.ssh",
                "/proc/kcore",
                "/proc/kmsg",
                "/dev/mem",
                "/var/log",
                "/var/backups",
            ]
            .map(str::to_owned),
        );
        let script = r#"
for path in sys.argv[1:]:
    def read():
        if os.path.isdir(path):
            return os.listdir(path)
        with open(path, "rb") as file:
            return file.read(4096)
    try:
        content = read()
        report(path, not content, content)
    except OSError as error:
        report(path, True, error)
"#;
        let arguments: Vec<&str> = private.iter().map(String::as_str).collect();
        check(&person, &[], script, &arguments, 7);
    }
}

#[test]
fn the_appliances_state_is_not_visible_even_if_a_flag_opens_its_parent_directory() {
    let Some(person) = Person::new() else { return };
    assert_eq!(person.user, User::Unprivileged);
    let user = if is_root() {
        NOBODY
    } else {
        rustix::process::getuid().as_raw()
    };
    let states = format!("/tmp/unified-proxy-{user}");
    // The directory exists from the first run on.
    person.sh(&[], "true").ok();
    let script = "holds('the directory is empty', lambda: os.listdir(sys.argv[1]) == [])";
    check(&person, &["--read", &states], script, &[&states], 1);
}

/// A mount namespace in which a directory of another user is at the path of the state directory, as
/// if that user had created it before the first run.
#[test]
fn a_run_keeps_its_state_elsewhere_if_another_user_made_the_directory_for_it() {
    for mut person in people().into_iter().filter(|_| is_root()) {
        let (user, other_user) = match person.user {
            User::Unprivileged => (NOBODY, 0),
            User::Root => (0, NOBODY),
        };
        let states = format!("/tmp/unified-proxy-{user}");
        let taken = person.base().join("taken");
        fs::create_dir(&taken).unwrap();
        fs::set_permissions(&taken, fs::Permissions::from_mode(0o777)).unwrap();
        chown(&taken, Some(other_user), Some(other_user)).unwrap();
        // The directory exists from the first run on.
        person.sh(&[], "true").ok();
        let run = |person: &Person, flags: &[&str], command: &[&str]| {
            let run = person.command(flags, command);
            let mount = "mount --bind \"$0\" \"$1\"; shift; exec \"$@\"";
            let mut unshare = Command::new("unshare");
            unshare
                .args(["--mount", "sh", "-ec", mount])
                .args([taken.as_os_str(), states.as_ref(), run.get_program()])
                .args(run.get_args())
                .env_clear()
                .envs(
                    run.get_envs()
                        .filter_map(|(name, value)| Some((name, value?))),
                )
                .current_dir(person.work());
            Ran::of(&mut unshare).ok()
        };
        let kept = person.home().join(".local/state/unified-proxy/running");
        run(
            &person,
            &[],
            &["curl", "-fsS", "https://api.example.com/zen"],
        );
        let mode = fs::metadata(&kept).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let kept = kept.to_str().unwrap();
        assert_eq!(run(&person, &["--read", kept], &["ls", "-A", kept]), "");
        for directory in [kept.as_ref(), taken.as_path()] {
            assert_eq!(names(directory), [""; 0], "{}", directory.display());
        }
        // A path in which sockets would have names that are too long.
        let long = person.base().join("long-".repeat(20));
        let long = long.to_str().unwrap().to_owned();
        person.env.push(("XDG_STATE_HOME".to_owned(), long.clone()));
        fs::create_dir(&long).unwrap();
        person.own(long.as_ref());
        run(
            &person,
            &[],
            &["curl", "-fsS", "https://api.example.com/zen"],
        );
        assert_eq!(names(&person.runtime()), ["unified-proxy"]);
        assert_eq!(names(&person.runtime().join("unified-proxy")), [""; 0]);
    }
}

/// The script with which operators attack their sandboxes. Its search for secrets leaves out files
/// that are as a package installed them.
#[test]
fn the_red_team_script_finds_keys_except_in_unchanged_files_of_packages() {
    let Some(person) = Person::new() else { return };
    let script = r#"
cd "$HOME"
printf 'AIza%035d\n' 7 | tee leaked changed >packaged
sum="$(md5sum <packaged | cut -d ' ' -f 1)"
echo >>changed
mkdir bin
cat >bin/dpkg-query <<END
#!/bin/sh
echo " $HOME/packaged $sum"
echo " $HOME/changed $sum"
END
chmod +x bin/dpkg-query
PATH="$HOME/bin:$PATH" exec bash -s -- --kind run --only secrets
"#;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let red_team = File::open(root.join("tests/security/redteam-sandbox.sh")).unwrap();
    let mut command = person.command(&[], &["sh", "-ec", script]);
    let said = Ran::of(command.stdin(red_team)).exits(1);
    let mut lines = said.lines();
    let found = lines.find_map(|line| line.strip_prefix("OPEN secrets-in-files: "));
    let found: Vec<_> = found.expect(&said).split(' ').map(Path::new).collect();
    let is_found = |name: &str| found.contains(&person.home().join(name).as_path());
    let expected = [("leaked", true), ("changed", true), ("packaged", false)];
    assert_eq!(
        expected.map(|(name, _)| (name, is_found(name))),
        expected,
        "{said}"
    );
}
