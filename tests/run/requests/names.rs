//! DNS inside a sandbox.

use testkit::each_row;

use crate::fixture::Person;

#[test]
fn allowed_names_resolve_and_other_names_do_not_exist() {
    let Some(person) = Person::new() else { return };
    each_row(
        [
            ("dig +short api.example.com", "127.0.0.1\n"),
            ("dig +tcp +short api.example.com", "127.0.0.1\n"),
            ("dig +notcp +noedns +short api.example.com", "127.0.0.1\n"),
            (
                "getent ahosts api.example.com | awk '{print $1}' | sort -u",
                "127.0.0.1\n",
            ),
            (
                "python3 -c 'import socket; print(socket.gethostbyname(\"api.example.com\"))'",
                "127.0.0.1\n",
            ),
            (
                "dig denied.example.org | grep -o 'status: [A-Z]*'",
                "status: NXDOMAIN\n",
            ),
            (
                "dig +tcp denied.example.org | grep -o 'status: [A-Z]*'",
                "status: NXDOMAIN\n",
            ),
            ("dig +short api.example.com TXT", ""),
            ("dig +short api.example.com HTTPS", ""),
            ("getent ahosts denied.example.org || echo none", "none\n"),
            ("getent hosts localhost | awk '{print $2}'", "localhost\n"),
            (
                "getent ahosts unified-proxy | awk '{print $1}' | sort -u",
                "127.0.0.1\n",
            ),
            ("hostname", "sandbox\n"),
        ],
        |(client, printed)| {
            let ran = person.sh(&["--quiet"], client);
            assert_eq!(ran.stdout, printed, "{ran:?}");
        },
    );
}

#[test]
fn a_denied_name_is_in_the_summary_once() {
    let Some(person) = Person::new() else { return };
    let ran = person.sh(
        &[],
        "dig +short denied.example.org A; dig +tcp +short denied.example.org A",
    );
    let words = super::answers::summary(&ran.stderr);
    assert_eq!(
        words,
        [[
            "denied.example.org",
            "2",
            "times",
            "--allow",
            "denied.example.org"
        ]],
        "{ran:?}"
    );
}

#[test]
fn many_questions_at_once_are_all_answered() {
    let Some(person) = Person::new() else { return };
    let script = "import concurrent.futures as c, socket\n\
        with c.ThreadPoolExecutor(50) as pool: print(set(pool.map(lambda _: socket.gethostbyname('api.example.com'), range(300))))";
    let ran = person.run(&[], &["python3", "-c", script]);
    assert_eq!(ran.ok(), "{'127.0.0.1'}\n");
}
