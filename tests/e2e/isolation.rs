//! Packets that a sandbox cannot send, even as root in its network namespace, because the firewall
//! is on the host's side of the link. Also the admin socket, files and processes of the host, which
//! a sandbox does not see.

use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::time::Duration;

use crate::attempts::{Listeners, everything, reach};
use crate::fixture::{Fixture, HOST, INTERNET, Sandbox};
use crate::summary::can_run;

/// Gives a sandbox default routes and IPv6, on both ends of its link, so that only the firewall
/// prevents its packets from leaving.
fn open_up(fixture: &Fixture, sandbox: &Sandbox) {
    let (device, proxy) = (&sandbox.device, sandbox.proxy);
    fixture.host.sh(&format!(
        "echo 0 >/proc/sys/net/ipv6/conf/{device}/disable_ipv6
         ip -6 address add 2001:db8:5::1/64 dev {device} nodad"
    ));
    sandbox.machine().sh(&format!(
        "ip route add default via {proxy}
         echo 0 >/proc/sys/net/ipv6/conf/eth0/disable_ipv6
         ip -6 address add 2001:db8:5::2/64 dev eth0 nodad
         ip -6 route add default via 2001:db8:5::1"
    ));
}

#[test]
fn a_sandbox_reaches_only_the_proxy() {
    if !can_run("a_sandbox_reaches_only_the_proxy") {
        return;
    }
    let fixture = Fixture::start();
    let (a, b) = (fixture.up("a", &[]), fixture.up("b", &[]));
    open_up(&fixture, &a);
    let internet = Listeners::on(&fixture.internet, true);
    let host = Listeners::on(&fixture.host, false);
    let neighbour = Listeners::on(&b.machine(), true);
    let received = || [internet.received(), host.received(), neighbour.received()].concat();

    // All attempts work from the host.
    assert_eq!(reach(&fixture.host, &[INTERNET.into()]).len(), 5);
    let from_host = internet.received();
    for packet in everything(HOST) {
        assert!(
            from_host.contains(&packet),
            "{packet} is not among {from_host:?}"
        );
    }
    // The other sandbox gets packets of the host, and cannot answer them.
    assert_eq!(reach(&fixture.host, &[b.address.into()]), [""; 0]);
    assert_eq!(
        neighbour.received().len(),
        5,
        "four datagrams and a raw packet"
    );

    let six = ["2001:db8::1", "2001:db8::2", "2001:db8:5::1", "fe80::1"];
    let six = six.map(|address| address.parse().unwrap());
    let four = [INTERNET, HOST, a.proxy, b.proxy, b.address].map(IpAddr::V4);
    let inside = a.machine();
    assert_eq!(reach(&inside, &[&four[..], &six].concat()), [""; 0]);
    assert_eq!(received(), [""; 0]);
    assert_eq!(
        fixture.status("a", "https://api.example.com/echo"),
        "200/200"
    );

    // The sandbox reaches the proxy only at the host's address on the sandbox's own link.
    let connects = |address: Ipv4Addr| {
        let (target, patience) = ((address, 8080).into(), Duration::from_millis(300));
        inside.run(|| TcpStream::connect_timeout(&target, patience).is_ok())
    };
    assert!(connects(a.proxy));
    assert!(!connects(HOST) && !connects(b.proxy));

    // Without the firewall rules, the attempts succeed.
    let device = &a.device;
    fixture.host.sh(&format!(
        "nft delete table netdev {device}; nft delete table inet {device}"
    ));
    assert_eq!(reach(&inside, &[INTERNET.into()]).len(), 5);
    let from_sandbox = internet.received();
    for packet in everything(a.address) {
        assert!(
            from_sandbox.contains(&packet),
            "{packet} is not among {from_sandbox:?}"
        );
    }
}

#[test]
fn packets_with_another_ip_or_mac_address_are_dropped() {
    if !can_run("packets_with_another_ip_or_mac_address_are_dropped") {
        return;
    }
    let fixture = Fixture::start();
    let (a, b) = (fixture.up("a", &[]), fixture.up("b", &[]));
    let inside = a.machine();
    let ask = |source: Ipv4Addr, inside: &crate::machine::Machine| {
        let (proxy, url) = (a.proxy, "http://plain.example.com/echo");
        let http =
            format!("curl -s -m2 -o /dev/null --interface {source} -x http://{proxy}:8080 {url}");
        let dns = format!("dig -b {source} @{proxy} +time=1 +tries=1 api.example.com >/dev/null");
        inside
            .sh(&format!("r=0; {http} || r=$?; {dns} || r=$r,$?; echo $r"))
            .trim()
            .to_owned()
    };
    assert_eq!(ask(a.address, &inside), "0");
    // The route back to b's address goes to a now, so that only the rules prevent an answer.
    inside.sh(&format!("ip address add {}/32 dev eth0", b.address));
    fixture.host.sh(&format!(
        "ip route replace {}/32 dev {}",
        b.address, a.device
    ));
    assert_eq!(ask(b.address, &inside), "28,9");
    assert!(
        fixture
            .proxy
            .audit()
            .iter()
            .all(|line| line["container_id"] != "b")
    );

    let device = &a.device;
    let rules = fixture.host.sh(&format!("nft list table netdev {device}"));
    fixture
        .host
        .sh(&format!("nft delete table netdev {device}"));
    assert_eq!(
        ask(b.address, &inside),
        "0",
        "without the rules, a reaches the proxy from b's address"
    );
    fixture
        .proxy
        .audited(serde_json::json!({ "container_id": "b", "host": "plain.example.com" }));

    let file = fixture.proxy.path("rules");
    std::fs::write(&file, rules).unwrap();
    fixture.host.sh(&format!("nft -f {}", file.display()));
    assert_eq!(ask(a.address, &inside), "0");
    // Static neighbour entries on both ends, so that ARP cannot be the reason for a failure.
    let link = fixture.host.sh(&format!("ip -oneline link show {device}"));
    let host_mac = link.split("link/ether ").nth(1).unwrap();
    let host_mac = host_mac.split(' ').next().unwrap();
    let (address, proxy) = (a.address, a.proxy);
    let mac = "02:00:00:00:00:01";
    fixture.host.sh(&format!(
        "ip neighbour replace {address} lladdr {mac} dev {device} nud permanent"
    ));
    inside.sh(&format!(
        "ip link set eth0 address {mac}
         ip neighbour replace {proxy} lladdr {host_mac} dev eth0 nud permanent"
    ));
    assert_eq!(ask(a.address, &inside), "28,9");
}

#[test]
fn a_sandbox_does_not_see_the_admin_socket_or_files_and_processes_of_the_host() {
    if !can_run("a_sandbox_does_not_see_the_admin_socket_or_files_and_processes_of_the_host") {
        return;
    }
    let fixture = Fixture::start();
    fixture.up("a", &[]);
    let socket = fixture.proxy.path("api.sock");
    assert!(socket.exists());
    let found = fixture.exec("a", "find / -xdev -type s 2>/dev/null; find /run /tmp /home /root /var -name '*.sock' 2>/dev/null");
    assert_eq!(found.stdout, "");
    let socket = socket.display().to_string();
    assert_eq!(
        fixture.exec("a", &format!("test -e {socket}")).code,
        Some(1)
    );
    let outside = std::process::id();
    assert_eq!(
        fixture.exec("a", &format!("kill -0 {outside}")).code,
        Some(1)
    );
    let status = fixture
        .exec("a", "cat /proc/self/status; id -u; ls /proc/self/fd")
        .ok();
    for line in [
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ] {
        assert!(status.contains(line), "{line} is not in {status}");
    }
    for file in ["/etc/shadow", "/etc/unified-proxy", "/root", "/sys/kernel"] {
        assert_eq!(
            fixture.exec("a", &format!("test -e {file}")).code,
            Some(1),
            "{file}"
        );
    }
}
