"""An MCP server on stdio with a tool for each behaviour that tests need. The first argument is the
mode, which `python` in fixture.rs describes. An optional second argument only marks the command
line."""

import json
import os
import socket
import subprocess
import sys
import threading
import time

MODE = sys.argv[1]
cancelled = []
answers = {}


def send(message):
    sys.stdout.write(json.dumps(dict(jsonrpc="2.0", **message)) + "\n")
    sys.stdout.flush()


def result(id, **members):
    send({"id": id, "result": members})


def error(id, code, message, data=None):
    send({"id": id, "error": {"code": code, "message": message, "data": data}})


def text(id, value):
    content = [{"type": "text", "text": json.dumps(value)}]
    result(id, content=content, resultType="complete")


def reaches(kind, address):
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    try:
        with socket.socket(family) as client:
            client.settimeout(2)
            client.connect(address if kind == "unix" else tuple(address))
            return True
    except OSError:
        return False


def can_write(path):
    try:
        with open(path, "w"):
            return True
    except OSError:
        return False


def probe(arguments):
    status = open("/proc/self/status").read().splitlines()
    status = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    return {
        "environment": dict(os.environ),
        "sees": [path for path in arguments.get("paths", []) if os.path.exists(path)],
        "writes": [path for path in arguments.get("writes", []) if can_write(path)],
        "reaches": [to for to in arguments.get("addresses", []) if reaches(*to)],
        "processes": [name for name in os.listdir("/proc") if name.isdigit()],
        "no_new_privs": status["NoNewPrivs"],
        "seccomp": status["Seccomp"],
        "capabilities": status["CapEff"],
        "directory": os.getcwd(),
        "home": os.listdir(os.environ["HOME"]),
    }


def ask_proxy(arguments):
    """Sends a request to the port that leads to the proxy, and returns the response."""
    with socket.create_connection(("127.0.0.1", 3128), 5) as client:
        client.sendall(arguments["request"].encode())
        client.settimeout(5)
        return client.recv(4096).decode(errors="replace")


def flood(kind):
    if kind == "notifications":
        while True:
            send({"method": "notifications/x", "params": {"a": "b" * 200}})
    if kind == "noise":
        while True:
            sys.stdout.write("no JSON\n")
    if kind == "line":
        while True:
            sys.stdout.write("x" * 65536)
    if kind == "stderr":
        for _ in range(200_000):
            sys.stderr.write("spam spam spam\n")


def call(id, name, arguments, meta):
    if name == "echo":
        text(id, arguments)
    elif name == "exit":
        os._exit(arguments["code"])
    elif name == "probe":
        text(id, probe(arguments))
    elif name == "proxy":
        text(id, ask_proxy(arguments))
    elif name == "cancelled":
        text(id, cancelled)
    elif name == "progress":
        token = meta["progressToken"]
        send({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
        text(id, "done")
    elif name == "ask":
        send({"method": "notifications/message", "params": {"level": "error", "data": "?"}})
        send({"id": "mine", "method": "elicitation/create", "params": {"message": "?"}})
        answers["mine"] = lambda message: text(id, message.get("result") or message["error"])
    elif name == "spoil":
        sys.stdout.write('{"jsonrpc":"2.0","id":%d,"result":{"a":1,"a":2}}\n' % id)
        sys.stdout.flush()
    elif name == "flood":
        flood(arguments["kind"])
        text(id, "done")
    elif name == "daemon":
        # `sleep` runs in a new session, and its parent exits at once.
        script = "import os,subprocess,sys; os.setsid(); subprocess.Popen(['sleep', sys.argv[1]])"
        subprocess.run([sys.executable, "-c", script, arguments["seconds"]], check=False)
        text(id, "started")


if "slow" in MODE:
    # Longer than the gateway waits for the answer to `server/discover` before it sends `initialize`.
    time.sleep(5.5)
served = None
for line in sys.stdin:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    params = message.get("params") or {}
    if method == "initialize":
        if "legacy" in MODE and served != "modern":
            capabilities = {"tools": {"listChanged": True}, "tasks": {}}
            version = params["protocolVersion"]
            result(id, protocolVersion=version, capabilities=capabilities, serverInfo={"name": "t"})
        else:
            error(id, -32022, "no handshake", {"supported": ["2026-07-28"]})
    elif method == "server/discover":
        if "modern" in MODE:
            served = "modern"
            versions = ["2026-07-28"]
            result(id, supportedVersions=versions, capabilities={"tools": {}}, ttlMs=0)
        elif "strict" in MODE:
            sys.exit(3)
        elif "silent" not in MODE:
            error(id, -32602, "Invalid request parameters")
    elif method == "tools/list":
        result(id, tools=[{"name": "echo", "inputSchema": {"type": "object"}}], ttlMs=0)
    elif method == "tools/call":
        if params["name"] != "hang":
            call(id, params["name"], params.get("arguments", {}), params.get("_meta", {}))
    elif method == "notifications/initialized" and "deaf" in MODE:
        time.sleep(3600)
    elif method == "notifications/cancelled":
        cancelled.append(params["requestId"])
    elif method is None and id in answers:
        answers.pop(id)(message)
