"""An MCP server on stdio. The tool `probe` reports the files, variables, processes and addresses
that the server can reach; the tool `flood` writes without end to stdout, or 100 MB to stderr."""

import json
import os
import socket
import sys

# The types of Unix socket pairs that every server may make.
PAIRS = [socket.SOCK_STREAM, socket.SOCK_SEQPACKET]


def send(message):
    sys.stdout.write(json.dumps(dict(jsonrpc="2.0", **message)) + "\n")
    sys.stdout.flush()


def text(id, value):
    content = [{"type": "text", "text": json.dumps(value)}]
    send({"id": id, "result": {"content": content}})


def reaches(family, address):
    try:
        with socket.socket(family) as client:
            client.settimeout(2)
            client.connect(address)
            return True
    except OSError:
        return False


def sends(kind, path):
    """Whether a socket of a pair can send to the datagram socket at the path."""
    try:
        pair = socket.socketpair(socket.AF_UNIX, kind)
        pair[0].sendto(b"x", path)
        return True
    except OSError:
        return False


def is_connected(pair):
    pair[0].sendall(b"x")
    return pair[1].recv(1) == b"x"


def probe(arguments):
    status = open("/proc/self/status").read().splitlines()
    found = [path for path in arguments.get("sockets", []) if reaches(socket.AF_UNIX, path)]
    for path in arguments.get("datagrams", []):
        kinds = [socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK]
        found += [path for kind in kinds if sends(kind, path)]
    for host, port in arguments.get("addresses", []):
        if reaches(socket.AF_INET, (host, port)):
            found.append([host, port])
    return {
        "environment": dict(os.environ),
        "marker": os.readlink("/proc/self/ns/net"),
        "pairs": [is_connected(socket.socketpair(type=kind)) for kind in PAIRS],
        "processes": len([name for name in os.listdir("/proc") if name.isdigit()]),
        "reaches": found,
        "sees": [path for path in arguments.get("paths", []) if readable(path)],
        "status": dict(line.split(":\t", 1) for line in status if ":\t" in line),
    }


def readable(path):
    """Whether the path is a readable file with content or a directory with entries."""
    try:
        return bool(os.listdir(path)) if os.path.isdir(path) else bool(open(path).read(1))
    except OSError:
        return False


def flood(kind, token):
    if kind == "stderr":
        for _ in range(100_000):
            sys.stderr.write("spam " * 100 + "\n")
        sys.stderr.write("x" * 50_000_000)
    while kind == "stdout":
        sys.stdout.write("x" * 65536)
    while kind == "notifications":
        params = {"level": "error", "data": "x" * 1000}
        send({"method": "notifications/message", "params": params})
    while kind == "large":
        params = {"progressToken": token, "progress": 1, "message": "x" * 1_000_000}
        send({"method": "notifications/progress", "params": params})


for line in sys.stdin:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    if method == "initialize":
        capabilities = {"tools": {}, "logging": {}}
        version = message["params"]["protocolVersion"]
        info = {"name": "probe", "version": "1"}
        result = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
        send({"id": id, "result": result})
    elif method == "tools/list":
        names = ["probe", "flood"]
        send({"id": id, "result": {"tools": [{"name": n, "inputSchema": {"type": "object"}} for n in names]}})
    elif method == "tools/call":
        arguments = message["params"].get("arguments", {})
        if message["params"]["name"] == "flood":
            token = message["params"].get("_meta", {}).get("progressToken")
            flood(arguments["kind"], token)
            text(id, "done")
        else:
            text(id, probe(arguments))
    elif id is not None:
        send({"id": id, "error": {"code": -32601, "message": "no"}})
