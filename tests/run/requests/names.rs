//! DNS inside a sandbox.

use std::fs;
use std::os::unix::fs::symlink;

use testkit::each_row;

use crate::fixture::{Person, is_root};

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

/// Each row has links in a copy of /etc, which a mount namespace has in the place of /etc. Their
/// targets are in directories that no sandbox shows, or lead there in several steps.
#[test]
fn names_resolve_wherever_the_links_of_the_system_lead() {
    let Some(person) = Person::new().filter(|_| is_root()) else {
        return;
    };
    let run = person.command(
        &["--quiet"],
        &[
            "sh",
            "-c",
            "cat /etc/resolv.conf; getent ahosts unified-proxy | awk '{print $1}' | sort -u; dig +short api.example.com",
        ],
    );
    let wsl = "mount -t tmpfs none /mnt; mkdir /mnt/wsl; cp /etc/resolv.conf /etc/hosts /mnt/wsl";
    each_row(
        [
            vec![("resolv.conf", "/mnt/wsl/resolv.conf")],
            vec![
                ("resolv.conf", "../mnt/wsl/resolv.conf"),
                ("hosts", "../mnt/wsl/hosts"),
            ],
            vec![
                ("resolv.conf", "/var/lib/own/resolv.conf"),
                ("hosts", "/home/own/hosts"),
            ],
            vec![
                ("resolv.conf", "/var/run/own/resolv.conf"),
                ("hosts", "/run/own/hosts"),
            ],
            vec![
                ("resolv.conf", "static/resolv.conf"),
                ("hosts", "/etc/static/hosts"),
                ("static", "real"),
                ("real/resolv.conf", "/run/own/resolv.conf"),
                ("real/hosts", "../first"),
                ("first", "second"),
                ("second", "/nowhere/hosts"),
            ],
        ],
        |links| {
            let ran = person.run_with_etc(&run, wsl, |etc| {
                fs::create_dir(etc.join("real")).unwrap();
                for (name, to) in &links {
                    let at = etc.join(name);
                    let _ = fs::remove_file(&at);
                    symlink(to, at).unwrap();
                }
            });
            assert_eq!(
                ran.ok(),
                "nameserver 127.0.0.1\noptions timeout:30 attempts:2\n127.0.0.1\n127.0.0.1\n",
                "{links:?}"
            );
        },
    );
}
