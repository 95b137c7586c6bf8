"""A git server with one small repository, and the time to clone it through the product."""

import os
import ssl
import statistics
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST, REPOSITORY = "git.many.example.com", "owner/repo"
COMMITS = 200


class Forge:
    """Serves the repository over TLS with `git http-backend`."""

    def __init__(self, work, certificates):
        self.root = work / "forge"
        fill(self.root / f"{REPOSITORY}.git")
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler(self.root))
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificates / "leaf.pem", certificates / "leaf-key.pem")
        self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def clone(self, product, work, times=5):
        """Clones the repository `times` times; returns the median of the seconds."""
        proxy, ca = f"http.proxy=http://127.0.0.1:{product.port}", f"http.sslCAInfo={product.ca}"
        took = []
        for number in range(times):
            began = time.monotonic()
            ran = subprocess.run(["git", "-c", proxy, "-c", ca, "clone", "--quiet", f"https://{HOST}/{REPOSITORY}",
                                  work / f"clone-{number}"], stderr=subprocess.PIPE, text=True, env=plain_environment())
            if ran.returncode:
                sys.exit(f"product: git clone: {ran.stderr.strip()}")
            took.append(time.monotonic() - began)
        return statistics.median(took)


def plain_environment():
    return {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null",
            "GIT_TERMINAL_PROMPT": "0"}


def fill(repository):
    subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", repository], check=True)
    commits = []
    for number in range(COMMITS):
        text = f"line {number}\n" * 100
        commits.append(f"commit refs/heads/main\ncommitter A <a@example.com> {1_700_000_000 + number} +0000\ndata 1\nc\n"
                       f"M 100644 inline directory-{number % 20}/file-{number}\ndata {len(text)}\n{text}\n")
    subprocess.run(["git", "-C", repository, "fast-import", "--quiet"], input="".join(commits), text=True, check=True)


def handler(root):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def respond(self):
            path, _, query = self.path.partition("?")
            length = int(self.headers.get("Content-Length", 0))
            environment = {"GIT_PROJECT_ROOT": str(root), "GIT_HTTP_EXPORT_ALL": "1", "REQUEST_METHOD": self.command,
                           "PATH_INFO": path, "QUERY_STRING": query, "CONTENT_LENGTH": str(length),
                           "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                           "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                           "GIT_PROTOCOL": self.headers.get("Git-Protocol", "")}
            ran = subprocess.run(["git", "http-backend"], input=self.rfile.read(length), stdout=subprocess.PIPE,
                                 env=plain_environment() | environment, check=True)
            head, _, body = ran.stdout.partition(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
            self.send_response(int(fields.pop("Status", "200").split()[0]))
            for name, value in fields.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = respond

        def log_message(self, *_):
            """Logs nothing: a failed request makes `git clone` fail, which prints the error."""

    return Handler
