//! Attempts to reach the network without the proxy.

use std::net::{TcpListener, UdpSocket};
use std::time::Duration;

use super::people;
use crate::attempts::check;

/// Python code that tries to reach services of the host and other addresses. The arguments are the
/// ports of the host's TCP, UDP and IPv6 listeners, and addresses of the host.
const CONNECT: &str = r#"
tcp, udp, six = (int(port) for port in sys.argv[1:4])
own = sys.argv[4:]

def connect(host, port, family=socket.AF_INET):
    with socket.socket(family) as client:
        client.settimeout(2)
        client.connect((host, port))
        return "connected"

def ask(host, port, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_DGRAM) as client:
        client.settimeout(1)
        client.connect((host, port))
        client.send(b"question")
        return client.recv(100)

def refused(answer):
    """Raises the error in a response of a netlink route socket."""
    code = -struct.unpack_from("=i", answer, 16)[0]
    if code:
        raise OSError(code, os.strerror(code))

for host in ("127.0.0.1", "127.0.0.2", "0.0.0.0", *own, "192.0.2.1", "198.51.100.7", "10.0.0.1", "169.254.169.254", "1.1.1.1"):
    for port in (tcp, 22, 80, 443):
        fails(f"TCP {host}:{port}", lambda: connect(host, port))
    for port in (udp, 443, 5353):
        fails(f"UDP {host}:{port}", lambda: ask(host, port))
    if not host.startswith(("127.", "0.")):
        fails(f"DNS {host}", lambda: ask(host, 53))
for host in ("::1", "2001:db8::1", "fe80::1", "::ffff:192.0.2.1", "2606:4700:4700::1111"):
    fails(f"TCP [{host}]", lambda: connect(host, six, socket.AF_INET6))
    fails(f"UDP [{host}]", lambda: ask(host, 53, socket.AF_INET6))
fails("a broadcast", lambda: (lambda s: (s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1), s.sendto(b"x", ("255.255.255.255", 9))))(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
fails("a multicast", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("224.0.0.251", 5353)))
fails("ICMP", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP).sendto(b"\x08\0\0\0\0\0\0\0", ("192.0.2.1", 0)))
holds("loopback is the only interface", lambda: [name for _, name in socket.if_nameindex()] == ["lo"])
holds("there is no route", lambda: len(open("/proc/net/route").readlines()) <= 1)
fails("adding an address", lambda: (lambda s: s.send(struct.pack("=IHHIIBBBBIHH4sHH4s", 40, 20, 0x505, 1, 0, 2, 24, 0, 0, 1, 8, 2, bytes([192, 0, 2, 9]), 8, 1, bytes([192, 0, 2, 9]))) and refused(s.recv(4096)))(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)), errno.EPERM)

# Only the proxy, the MCP gateway and DNS listen inside.
holds("the proxy", lambda: connect("127.0.0.1", 3128) == "connected")
holds("DNS", lambda: connect("127.0.0.1", 53) == "connected")
listening = sorted({int(line.split()[1].rsplit(":", 1)[1], 16) for line in open("/proc/net/tcp").readlines()[1:] if line.split()[3] == "0A"})
holds("only DNS, the proxy and the gateway listen", lambda: listening == [53, 3128, 8090] or report("listening", False, listening))

# The admin API cannot be reached over these ports.
import http.client
for port in (3128, 8090):
    for path in ("/internal/health", "/internal/containers", "/internal/metrics", "/internal/flows", "/"):
        for method in ("GET", "POST", "DELETE"):
            def ask_admin():
                client = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                client.request(method, path, "{}" if method == "POST" else None)
                return client.getresponse().status
            holds(f"{method} {path} at {port}", lambda: ask_admin() in (400, 403, 404, 405))

# The gateway's health has only its checks, the state of the container's MCP servers, and a status.
import json
def health():
    client = http.client.HTTPConnection("127.0.0.1", 8090, timeout=5)
    client.request("GET", "/health")
    return sorted(json.load(client.getresponse()))
holds("the gateway's health", lambda: health() == ["checks", "servers", "status"])

server = socket.create_server(("127.0.0.1", 0))
holds("a server in the sandbox", lambda: connect("127.0.0.1", server.getsockname()[1]) == "connected")
for port in (53, 3128, 8090):
    fails(f"taking the port {port}", lambda: socket.create_server(("127.0.0.1", port)))
"#;

#[test]
fn only_the_proxy_dns_and_the_mcp_gateway_can_be_reached() {
    for person in people() {
        let tcp = TcpListener::bind("0.0.0.0:0").unwrap();
        let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
        let six = TcpListener::bind("[::]:0").map(|six| six.local_addr().unwrap().port());
        udp.set_read_timeout(Some(Duration::from_millis(10)))
            .unwrap();
        let ports = [
            tcp.local_addr().unwrap().port(),
            udp.local_addr().unwrap().port(),
            six.unwrap_or(443),
        ];
        let mut arguments: Vec<String> = ports.iter().map(ToString::to_string).collect();
        let addresses = std::process::Command::new("hostname")
            .arg("-I")
            .output()
            .unwrap()
            .stdout;
        let addresses = String::from_utf8_lossy(&addresses).into_owned();
        let of_the_host = addresses
            .split_whitespace()
            .filter(|address| !address.contains(':'));
        arguments.extend(of_the_host.take(2).map(str::to_owned));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        check(&person, &[], CONNECT, &arguments, 70);
        tcp.set_nonblocking(true).unwrap();
        assert!(tcp.accept().is_err(), "a connection arrived");
        assert!(udp.recv(&mut [0; 16]).is_err(), "a datagram arrived");
    }
}
