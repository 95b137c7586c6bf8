"""The product, with the whole chain enabled and many registered containers."""

import contextlib
import http.client
import json
import socket
import sqlite3
import sys
import time
from pathlib import Path

from .forge import HOST, REPOSITORY
from .processes import Peer, free_port

CONTAINERS = 10_000
# Host names without a cached certificate: their number in each round, and the number of rounds.
NEW_HOSTS, NEW_HOST_ROUNDS = 200, 5
# The largest value that the configuration accepts: the product counts against such a limit, but no load reaches it.
MOST = 1_000_000


class Product:
    containers = CONTAINERS

    def __init__(self, processes, binary, work, certificates, origin, nameserver, forge=None):
        self.processes, self.binary, self.work = processes, binary, work
        self.port, self.dns, self.socket = free_port(), free_port(), work / "api.sock"
        self.config = work / "config"
        self.config.mkdir()
        for name, content in self.files(certificates, origin, nameserver, forge).items():
            (self.config / name).write_text(json.dumps(content))

    def files(self, certificates, origin, nameserver, forge):
        origin = f"127.0.0.1:{origin}"
        hosts = {"api.example.com": origin, "plain.many.example.com": origin, "pass.many.example.com": origin}
        hosts |= {f"h{number}.many.example.com": origin for number in range(NEW_HOSTS * NEW_HOST_ROUNDS)}
        if forge:
            hosts[HOST] = f"127.0.0.1:{forge.port}"
        return {
            "proxy.yaml": {
                "version": 1,
                "listen": {
                    "proxy": [f"127.0.0.1:{self.port}"],
                    "dns": [f"127.0.0.1:{self.dns}"],
                    "mcp": [],
                    "admin": str(self.socket),
                },
                "data_dir": str(self.work / "data"),
                "certs_dir": str(self.work / "certs"),
                "upstream": {
                    "hosts": hosts,
                    "nameservers": [f"127.0.0.1:{nameserver}"],
                    "allow_private": ["127.0.0.0/8"],
                },
                "tls": {"upstream_ca": str(certificates / "ca.pem"), "passthrough": ["pass.many.example.com"]},
                "limits": {
                    "certificates_per_minute": MOST,
                    "max_connections_per_container": 20_000,
                    "tunnels_per_second": MOST,
                },
                "dns": {"queries_per_minute": MOST, "distinct_names_per_minute": MOST},
                "audit": {"lines_per_minute_per_container": MOST, "bytes_per_minute_per_container": "1GB"},
            },
            "allowlist.yaml": {"version": 1, "domains": ["api.example.com", "*.many.example.com"]},
            "policy.yaml": {
                "version": 1,
                "git": {"hosts": [HOST]},
                "rate_limits": {"defaults": {"requests_per_second": MOST, "burst_size": MOST}},
            },
            "credentials.yaml": {
                "version": 1,
                "credentials": [{
                    "name": "bench",
                    "hosts": ["api.example.com"],
                    "set_headers": {"x-api-key": "a-secret-that-is-long-enough"},
                }],
            },
        }

    def start(self, *under, seconds=30):
        """Starts the product, under another program if `under` names one; returns the milliseconds until it was
        healthy."""
        began = time.monotonic()
        self.process = self.processes.start("unified-proxy", *under, self.binary, "serve", "--config", self.config)
        while time.monotonic() < began + seconds and self.process.poll() is None:
            with contextlib.suppress(OSError):
                if self.admin("GET", "/internal/health")[0] == 200:
                    return (time.monotonic() - began) * 1e3
            time.sleep(0.002)
        sys.exit(f"unified-proxy did not start:\n{(self.work / 'unified-proxy.log').read_text()}")

    def stop(self):
        self.processes.end(self.process)

    def restart(self):
        self.stop()
        self.start()

    def admin(self, method, path, body=None):
        """Status and text of a response of the admin API."""
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        with contextlib.closing(connection):
            connection.sock.connect(str(self.socket))
            connection.request(method, path, body and json.dumps(body))
            response = connection.getresponse()
            return response.status, response.read().decode()

    def register(self):
        """Starts the product, registers all containers, and stops it; returns its memory without containers, in MiB.

        Two containers go through the API. The others are copies of the first in the registry's file, since the API
        accepts ten writes a second; the next start loads them."""
        self.start()
        empty_mib = self.resident_mib()
        for number in (1, 2):
            body = {"container_ip": f"127.0.0.{number}", "container_id": f"bench-{number}", "repos": [REPOSITORY]}
            status, text = self.admin("POST", "/internal/containers", body)
            if status != 201:
                sys.exit(f"cannot register a container: {text}")
        self.stop()
        path = self.work / "data/registry.db"
        with contextlib.closing(sqlite3.connect(path)) as registry:
            rows = [(f"00000000-0000-7000-8000-{n:012x}", f"c{n}", f"127.1.{n // 250}.{n % 250 + 1}")
                    for n in range(self.containers - 2)]
            registry.executemany(
                "INSERT INTO containers"
                " (lease, id, address, repos, auth_mode, allowed_domains, created_at, expires_at, level)"
                " SELECT ?, ?, ?, repos, auth_mode, allowed_domains, created_at, expires_at, level FROM containers"
                " WHERE id = 'bench-1'", rows)
            registry.commit()
        return empty_mib

    def resident_mib(self):
        """The resident memory after two idle seconds."""
        time.sleep(2)
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(resident.split()[1]) / 1024

    def peer(self):
        return Peer("product", self.port, self.process.pid, self.work / "certs/ca.pem", plain_port=self.port)
