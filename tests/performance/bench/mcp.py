"""What a tool call and a tool list cost in the MCP gateway, in a bare server and in other proxies, what an idle
stream costs in the gateway, and how soon an approved call returns."""

import contextlib
import http.client
import json
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from . import report
from .loads import Load, Runner
from .processes import Peer, Processes, free_port
from .product import Product

ERAS = {"legacy": "2025-11-25", "modern": "2026-07-28"}
PEERS = ("direct", "relay", "product", "product, stdio", "FastMCP", "mcp-proxy")
# Few tools for calls: FastMCP reads the server's list at each call, so a long list would dominate the figure.
TOOLS_TO_CALL, TOOLS_TO_LIST, STREAMS, RULES = 10, 1_000, 1_000, 50
# 1 connection shows the latency. With 8, some cores sleep between calls; with 32, no core does.
CONNECTIONS = (1, 8, 32)
PACKAGES = {"mcp-proxy": "mcp-proxy==0.13.0", "FastMCP": "fastmcp==4.1.2"}
# The measured approvals. A container may ask 30 new questions a minute.
APPROVALS = 20
# The peers whose idle streams are measured.
IDLE = ("product", "product, stdio")

FASTMCP = """
import sys
from fastmcp.server import create_proxy
create_proxy(sys.argv[1]).run(transport="http", host="127.0.0.1", port=int(sys.argv[2]), show_banner=False, log_level="ERROR")
"""


def policy():
    """A policy of typical rules, all of which are evaluated before a call is allowed."""
    kinds = (
        'startswith(input.arguments.path, "/etc/area-{0}/")',
        'contains(lower(input.arguments.text), "forbidden-{0}")',
        'input.arguments.limit > 1000{0}',
        'endswith(input.arguments.path, ".secret-{0}")',
        'input.arguments.recursive; input.arguments.limit == {0}',
    )
    rules = [f"denied if {{ {kinds[number % len(kinds)].format(number)} }}" for number in range(RULES)]
    decisions = ['default decision := "allow"', 'decision := "deny_continue" if denied']
    return "\n\n".join(["package mcp.authz", *decisions, *rules]) + "\n"


class Gateway(Product):
    """The product, which mounts the bare server over HTTP for one container and over stdio for another."""

    policy = staticmethod(policy)

    def __init__(self, processes, binary, work, command, server, origin=None, nameserver=None):
        self.mcp, self.command, self.server = free_port(), command, server
        (work / "policy").mkdir()
        (work / "policy/authz.rego").write_text(self.policy())
        super().__init__(processes, binary, work, work, origin or free_port(), nameserver or free_port())

    def files(self, *arguments):
        files = super().files(*arguments)
        files["proxy.yaml"]["listen"]["mcp"] = [f"127.0.0.1:{self.mcp}"]
        files["mcp.yaml"] = {
            "version": 1,
            "mcpServers": {
                "http": {"type": "http", "url": f"http://127.0.0.1:{self.server}/mcp", "containers": ["bench-1"]},
                "stdio": {"command": self.command, "confine": "none", "containers": ["bench-2"]},
            },
            "policies": {
                "bundles": [{"id": "bench", "path": str(self.work / "policy"), "entrypoint": "mcp/authz"}],
            },
        }
        return files

    def peers(self):
        return [
            Peer("product", self.mcp, self.process.pid, tool="http_tool-0"),
            Peer("product, stdio", self.mcp, self.process.pid, source="127.0.0.2", tool="stdio_tool-0"),
        ]


class Asking(Gateway):
    """The product, whose policy asks a person about every call."""

    containers = 2

    @staticmethod
    def policy():
        return 'package mcp.authz\n\ndefault decision := "ask"\n'

    def measure(self, count):
        """The median of the milliseconds from the request that approves a waiting call to the end of the call's response. The
        tool answers at once."""
        return statistics.median(self.approve(number) for number in range(count))

    def approve(self, number):
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(self.call, number)
            while not (waiting := self.questions()) and not ended.done():
                # The admin API accepts ten writes a second.
                time.sleep(0.1)
            began = time.monotonic()
            if waiting:
                self.admin("POST", f"/internal/approvals/{waiting[0]['id']}/approve", {"scope": "once"})
            return (ended.result() - began) * 1e3

    def questions(self):
        _, text = self.admin("GET", "/internal/approvals?state=pending")
        return [question for question in json.loads(text)["approvals"] if question["waiting"]]

    def call(self, number):
        """Calls a tool; returns the time at which the response ends."""
        meta = {f"io.modelcontextprotocol/{key}": value for key, value in
                {"protocolVersion": ERAS["modern"], "clientInfo": {"name": "bench", "version": "1"}, "clientCapabilities": {}}.items()}
        params = {"name": "http_tool-0", "arguments": {"limit": number}, "_meta": meta}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {"accept": "application/json, text/event-stream", "content-type": "application/json",
                   "mcp-protocol-version": ERAS["modern"], "mcp-method": "tools/call", "mcp-name": "http_tool-0"}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.mcp, timeout=30)) as connection:
            connection.request("POST", "/mcp", json.dumps(body), headers)
            text = connection.getresponse().read().decode()
            ended = time.monotonic()
        if '"content"' not in text:
            sys.exit(f"the approved call failed: {text}")
        return ended


def installed(root):
    """Installs the peers that are missing; returns the directory of each peer's programs. Each peer has its own virtual
    environment, since the peers need different versions of the same library."""
    programs = {}
    for name, package in PACKAGES.items():
        place = root / "target/bench-peers" / package
        if not place.exists() and not install(place, package):
            print(f"{name} is missing, and left out: pip cannot install {package}", file=sys.stderr)
            continue
        programs[name] = place / "bin"
    return programs


def install(place, package):
    try:
        subprocess.run([sys.executable, "-m", "venv", place], check=True, capture_output=True)
        subprocess.run([place / "bin/pip", "install", "--quiet", package], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        shutil.rmtree(place, ignore_errors=True)
        return False
    return True


def start_relay(processes, performance, server):
    """Starts a relay that uses hyper on both sides and decides nothing: the least that a proxy made with hyper costs."""
    port = free_port()
    process = processes.start("relay", performance, "plain-relay", "--listen", f"127.0.0.1:{port}",
                              "--upstream", f"127.0.0.1:{server}")
    processes.await_port("relay", process, port)
    return Peer("relay", port, process.pid)


def start_peers(processes, programs, command, server):
    commands = {
        "FastMCP": lambda port: ["python", "-c", FASTMCP, f"http://127.0.0.1:{server}/mcp", port],
        "mcp-proxy": lambda port: ["mcp-proxy", "--log-level", "ERROR", "--port", port, "--", *command],
    }
    peers = []
    for name, place in programs.items():
        port = free_port()
        program, *arguments = commands[name](port)
        process = processes.start(name, place / program, *arguments)
        processes.await_port(name, process, port)
        peers.append(Peer(name, port, process.pid))
    return peers


class McpRunner(Runner):
    def begin(self, peer, arguments, seconds):
        return self.spawn("mcp", *arguments, "--server", f"127.0.0.1:{peer.port}", "--source", peer.source,
                          "--tool", peer.tool, "--pid", peer.pid, "--seconds", seconds)


def loads(quick, kind, what, connections):
    """The load in each era of the protocol."""
    many = "connection" if connections == 1 else "connections"
    # mcp-proxy supports only the older revision.
    return [Load(f"{version}: {what}, {connections} {many}", [kind, "--era", era, "--connections", connections],
                 PEERS if era == "legacy" else PEERS[:-1], rounds=3 if quick else 10, seconds=0.5 if quick else 1.0,
                 smallest=True)
            for era, version in ERAS.items()]


def idle(runner, gateway, quick):
    """Measures the idle streams of each peer in each era. Restarts the product before each measurement."""
    made = []
    for era, version in ERAS.items():
        load = Load(f"{version}: {STREAMS:,} idle streams",
                    ["idle", "--era", era, "--connections", STREAMS], IDLE, seconds=1 if quick else 3)
        for number, name in enumerate(IDLE):
            gateway.restart()
            peer = gateway.peers()[number]
            load.results[name] = [runner.load(peer, load.arguments, load.seconds)]
        made.append(load)
    return made


def least(load, peer, key):
    return min(load.figures(peer, key), default=None)


def bar(measured, idle_loads, approval_ms):
    rows = [("p50 in ms from an approval to the client's result", approval_ms, "≤", 50)]
    for load in measured:
        ours, bare = least(load, "product", "p50_ms"), least(load, "direct", "p50_ms")
        if "tools/list" in load.name:
            rows.append((f"p50 in ms, {load.name}", ours, "≤", 5))
            continue
        if " 1 connection" in load.name:
            # With 1 connection, CPU time has no limit, since most of it is spent on waking cores: even on the bare
            # server, a call takes three times the CPU time that it takes with 8 connections.
            rows.append((f"p50 added in µs, {load.name}", (ours - bare) * 1e3, "≤", 150))
        else:
            rows.append((f"CPU µs each, {load.name}", load.figure("product", "cpu_us_each"), "≤", 60))
    for load in idle_loads:
        rows.append((f"MB, {load.name}", load.figure("product", "kib_each") * STREAMS * 1024 / 1e6, "≤", 30))
    return rows


def quickest(load, peer):
    return " / ".join(report.number(least(load, peer, key), 2) for key in ("p50_ms", "p99_ms"))


def print_report(root, measured, idle_loads, approval_ms):
    command = " ".join(["scripts/bench", *sys.argv[1:]])
    print(f"`{command}` on {report.machine(root)}.")
    report.table("CPU µs each (spread)", measured, PEERS, report.cpu)
    report.table("each second", measured, PEERS, report.rate)
    report.table("p50 / p99 in ms, least of the rounds", measured, PEERS, quickest)
    report.table("KiB / sockets each", idle_loads, IDLE, report.memory)
    report.bars(bar(measured, idle_loads, approval_ms))


def start_gateway(product, processes, work, binary, performance, tools):
    """Starts a bare server, and the product in front of it."""
    subprocess.run([performance, "certificates", work], check=True)
    command = [str(performance), "mcp-server", "--tools", str(tools)]
    server = free_port()
    process = processes.start("mcp-server", *command, "--listen", f"127.0.0.1:{server}")
    processes.await_port("mcp-server", process, server)
    gateway = product(processes, binary, work, command, server)
    gateway.register()
    gateway.start()
    return process, server, command, gateway


class Setting:
    """A bare server with `tools` tools, and all peers in front of it."""

    def __init__(self, processes, work, root, binary, performance, tools):
        process, server, command, self.gateway = start_gateway(Gateway, processes, work, binary, performance, tools)
        others = start_peers(processes, installed(root), command, server)
        relay = start_relay(processes, performance, server)
        peers = [Peer("direct", server, process.pid), relay, *self.gateway.peers(), *others]
        self.runner = McpRunner(performance, {peer.name: peer for peer in peers})


def measure(quick, work, say, *builds):
    calls, lists, approvals = work / "calls", work / "lists", work / "approvals"
    for place in (calls, lists, approvals):
        place.mkdir()
    with Processes(calls) as processes:
        say("calls")
        setting = Setting(processes, calls, *builds, TOOLS_TO_CALL)
        calls = [load for connections in CONNECTIONS for load in loads(quick, "call", "tools/call", connections)]
        measured = setting.runner.run(calls)
        say("idle streams")
        streams = idle(setting.runner, setting.gateway, quick)
    with Processes(lists) as processes:
        say("lists")
        setting = Setting(processes, lists, *builds, TOOLS_TO_LIST)
        measured += setting.runner.run(loads(quick, "list", f"tools/list of {TOOLS_TO_LIST:,}", 1))
    with Processes(approvals) as processes:
        say("approvals")
        *_, asking = start_gateway(Asking, processes, approvals, *builds[1:], TOOLS_TO_CALL)
        approval_ms = asking.measure(APPROVALS // 2 if quick else APPROVALS)
    return measured, streams, approval_ms
