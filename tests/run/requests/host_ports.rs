//! Servers on the host's loopback: `--allow-host-port`.

use testkit::each_row;

use super::answers::summary;
use crate::fixture::Person;
use crate::support::{Ran, free_address};

/// The configuration is the shipped one, which opens no private address.
#[test]
fn only_the_given_ports_of_the_hosts_loopback_are_reached() {
    let Some(person) = Person::new() else { return };
    let port = person.origin.http.port();
    let other = free_address().port();
    let flag = port.to_string();
    let flags = ["--allow-host-port", &flag];
    each_row(
        [
            (
                &flags[..],
                format!("curl -sSf http://localhost:{port}/zen"),
                true,
            ),
            (
                &flags,
                format!("curl -sSf http://127.0.0.1:{port}/zen"),
                true,
            ),
            (
                &flags,
                format!("curl -sSf --noproxy '' http://localhost:{port}/zen"),
                true,
            ),
            (
                &flags,
                format!(
                    "python3 -c 'import urllib.request as u; u.urlopen(\"http://localhost:{port}/zen\")'"
                ),
                true,
            ),
            (
                &flags,
                format!("head -c 1000000 /dev/zero | curl -sSf -T - http://localhost:{port}/echo"),
                true,
            ),
            (
                &flags,
                format!("curl -sf http://localhost:{other}/zen"),
                false,
            ),
            (
                &flags,
                format!("curl -sf --noproxy '' http://localhost:{other}/zen"),
                false,
            ),
            (
                &flags,
                format!("curl -sf --noproxy '' http://127.0.0.2:{port}/zen"),
                false,
            ),
            (
                &flags,
                format!("curl -sf -H 'Host: a.example.com' http://localhost:{port}/zen"),
                false,
            ),
            (&[], format!("curl -sf http://localhost:{port}/zen"), false),
            (
                &["--allow", "*.example.com"],
                format!("curl -sf --noproxy '' http://localhost:{port}/zen"),
                false,
            ),
        ],
        |(flags, script, is_reached)| {
            let before = person.origin.seen().len();
            let ran = Ran::of(&mut person.bare(flags, &["sh", "-c", &script]));
            assert_eq!(ran.code == Some(0), is_reached, "{ran:?}");
            assert_eq!(
                person.origin.seen().len() - before,
                usize::from(is_reached),
                "{ran:?}"
            );
        },
    );
    let denied = format!("curl -s --noproxy '' http://localhost:{other}/zen");
    let ran = Ran::of(&mut person.bare(&flags, &["sh", "-c", &denied]));
    let (host, other) = (format!("localhost:{other}"), other.to_string());
    assert_eq!(
        summary(&ran.stderr),
        [[&*host, "1", "time", "--allow-host-port", &*other]],
        "{ran:?}"
    );
}

#[test]
fn loopback_is_refused_as_a_host_with_the_flag_for_it_and_ports_of_the_proxy_are_refused() {
    let Some(person) = Person::new() else { return };
    each_row(
        [
            (["--allow", "localhost:18434"], "--allow-host-port 18434"),
            (["--allow", "localhost"], "--allow-host-port PORT"),
            (["--allow", "127.0.0.1:18434"], "--allow-host-port 18434"),
            (["--allow", "a.localhost:8080"], "--allow-host-port 8080"),
            (["--allow-host-port", "80"], "from 1024 to 65535"),
            (["--allow-host-port", "all"], "from 1024 to 65535"),
            (["--allow-host-port", "3128"], "belong to the proxy"),
            (["--allow-host-port", "8090"], "belong to the proxy"),
        ],
        |(flags, says)| {
            let ran = Ran::of(&mut person.bare(&flags, &["true"]));
            assert_eq!(ran.code, Some(64), "{ran:?}");
            assert!(ran.stderr.contains(says), "{ran:?}");
        },
    );
}

#[test]
fn a_port_of_the_host_that_is_given_twice_is_reached() {
    let Some(person) = Person::new() else { return };
    let port = person.origin.http.port().to_string();
    let script = format!("curl -sSf http://localhost:{port}/zen");
    let twice = ["--allow-host-port", &port, "--allow-host-port", &port];
    let ran = Ran::of(&mut person.bare(&twice, &["sh", "-c", &script]));
    assert_eq!(
        (ran.code, person.origin.seen().len()),
        (Some(0), 1),
        "{ran:?}"
    );
}
