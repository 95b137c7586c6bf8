"""Runs a binary as in the container image: as user 65532, without capabilities, with only the image's files.

    python3 image.py BINARY

Makes the image's root directory with packaging/image/root, enters new namespaces, and starts `serve` in
that root. Runs `health` until it succeeds, for at most 15 s. Registers a container, sends requests to DNS
and the proxy, and ends the server with SIGTERM. Prints a line for each step. Exits with 0, or, if a
step fails, prints the failure and exits with 1. Works for every user who may make user namespaces.

If the binary is linked dynamically, its libraries are copied into the root, and the output says so.
"""

import contextlib
import ctypes
import fcntl
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
UID = 65532
DEVICES = ["null", "random", "urandom"]
LIMIT_BYTES = 40 * 1024 * 1024
START_SECONDS = 15

LIBC = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, LAST_CAPABILITY = 24, 38, 40
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
REFUSED, NXDOMAIN = 5, 3


def checked(result, what):
    if result != 0:
        sys.exit(f"{what}: {os.strerror(ctypes.get_errno())}")


def require(holds, what):
    if not holds:
        sys.exit(f"failed: {what}")
    print(f"ok: {what}", flush=True)


def lay_out(root, binary):
    """Makes the root directory; returns whether the binary is static, as scripts/release builds it."""
    licences = [HERE / "LICENSE", binary.with_name("third-party-licences.txt")]
    licences = [file for file in licences if file.exists()]
    subprocess.run([HERE / "packaging/image/root", root, binary, CERTIFICATES, HERE / "config", *licences], check=True)
    if os.geteuid() == 0:
        # The namespace maps the caller, here root, to the image's user. So the image's files must belong to
        # root outside of the namespace.
        subprocess.run(["chown", "--recursive", "0:0", root], check=True)
    held = sum(file.lstat().st_size for file in root.rglob("*") if file.is_file())
    # The files that an engine mounts into every container and that the binary uses.
    (root / "etc/resolv.conf").write_text("nameserver 127.0.0.11\n")
    (root / "dev").mkdir()
    for device in DEVICES:
        (root / "dev" / device).touch()
    linked = subprocess.run(["ldd", binary], capture_output=True, text=True)
    libraries = re.findall(r"(/\S+) \(0x", linked.stdout)
    for library in libraries:
        copy = root / library.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(Path(library).read_bytes())
        copy.chmod(0o755)
    if libraries:
        print(f"not as in the image: linked dynamically, {len(libraries)} libraries were copied", flush=True)
    else:
        require(held <= LIMIT_BYTES, f"the image holds {held / 1e6:.1f} MB, and at most {LIMIT_BYTES / 1e6:.1f} MB are allowed")
    return not libraries


def enter_namespaces(root):
    """Enters a user namespace as the image's user, with the devices, sysctl and loopback that an engine sets up."""
    outside = os.geteuid(), os.getegid()
    checked(LIBC.unshare(NEWUSER | NEWNS | NEWNET | NEWPID | NEWIPC), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{UID} {outside[0]} 1")
    Path("/proc/self/gid_map").write_text(f"{UID} {outside[1]} 1")
    checked(LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "make / private")
    for device in DEVICES:
        there = bytes(root / "dev" / device)
        checked(LIBC.mount(f"/dev/{device}".encode(), there, None, MS_BIND, None), f"bind {device}")
    Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("53")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))


def start(root, *arguments, **streams):
    def confine():
        os.chroot(root)
        os.chdir("/")
        for capability in range(LAST_CAPABILITY + 1):
            LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)

    command = ["/usr/bin/unified-proxy", *arguments]
    return subprocess.Popen(command, preexec_fn=confine, env={}, text=True, **streams)


def run(root, *arguments):
    process = start(root, *arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output, _ = process.communicate(timeout=10)
    return process.returncode, output.strip()


def ask_dns(name):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    question = struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as dns:
        dns.settimeout(5)
        dns.sendto(question, ("127.0.0.1", 53))
        return dns.recv(512)[3] & 15


def ask_proxy(url):
    with socket.create_connection(("127.0.0.1", 8080), timeout=5) as proxy:
        proxy.sendall(f"GET {url} HTTP/1.1\r\nHost: {url.split('/')[2]}\r\nConnection: close\r\n\r\n".encode())
        return proxy.makefile("rb").read().decode()


def threads():
    """The names of all threads of this PID namespace. /proc is that of the host, so process ids in it are others."""
    own, names = os.readlink("/proc/self/ns/pid"), set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(process / "ns/pid") == own:
                names |= {file.read_text().strip() for file in process.glob("task/*/comm")}
    return names


def serve(root, is_static):
    server = start(root, "serve", stderr=open(root / "log", "w"))
    began = time.monotonic()
    while (ended := run(root, "health"))[0] != 0:
        if server.poll() is not None or time.monotonic() - began > START_SECONDS:
            sys.exit(f"failed: not healthy: {ended[1]}\n{(root / 'log').read_text()}")
        time.sleep(0.1)
    require(True, f"healthy after {time.monotonic() - began:.1f} s")

    if is_static:
        require("jemalloc_bg_thd" in threads(), "jemalloc's thread returns freed memory")

    require(ask_dns("api.github.com") == REFUSED, "DNS on port 53 refuses an unregistered source")
    require("unknown_source" in ask_proxy("http://example.com/"), "the proxy denies an unregistered source")
    code, output = run(root, "container", "add", "sandbox", "--ip", "127.0.0.1")
    require(code == 0, f"a container is registered: {output}")
    require(ask_dns("example.com") == NXDOMAIN, "DNS denies a name that is not listed")
    require("domain_not_allowed" in ask_proxy("http://example.com/"), "the proxy denies a host that is not listed")
    public = (root / "certs/ca-bundle.pem").read_text().count("BEGIN CERTIFICATE")
    require(public > 100, f"{public} certificates are in ca-bundle.pem")

    server.send_signal(signal.SIGTERM)
    require(server.wait(timeout=15) == 0, "SIGTERM ends the server with exit code 0")


def forked(work):
    """Runs `work` in a child process; exits if it fails."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except SystemExit as failure:
            print(failure.code, flush=True)
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status != 0:
        sys.exit("failed: see above")


def serve_isolated(root, is_static):
    enter_namespaces(root)
    # The next child is PID 1 of the new PID namespace, so the kernel kills its descendants when it ends.
    forked(lambda: serve(root, is_static))


def main():
    binary = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "root"
        root.mkdir(mode=0o755)
        is_static = lay_out(root, binary)
        version = subprocess.run([binary, "--version"], capture_output=True, text=True)
        require(version.returncode == 0, version.stdout.strip())
        forked(lambda: serve_isolated(root, is_static))


main()
