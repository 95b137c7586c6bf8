"""Builds the programs, starts them, measures, and prints the tables."""

import argparse
import contextlib
import io
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from . import bar, instructions, loads, mcp, refusals, report, training
from .forge import Forge
from .peers import Peers
from .processes import Peer, Processes, free_port
from .product import Product

ROOT = Path(__file__).resolve().parents[3]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "unified-proxy-bench"
# The headings of docs/performance.md before and after the recorded tables.
FIGURES = "## Figures", "## What limits each"
MCP_FIGURES = "### Figures of MCP", "## How cost grows"
PACKAGES = "git nginx haproxy squid-openssl dnsmasq unbound"


def build(as_built):
    """Builds the binary that is shipped and the test programs, unless `as_built`; returns their paths."""
    if not shutil.which("cargo"):
        sys.exit("Missing: cargo. Install Rust with rustup; rust-toolchain.toml names the version.")
    if not as_built:
        subprocess.run([ROOT / "scripts/release", "binary"], check=True, stdout=sys.stderr)
    return ROOT / "target/dist/unified-proxy", build_programs(as_built)


def build_programs(as_built=False):
    place = ROOT / "tests/performance"
    if not as_built:
        subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=place, check=True)
    query = ["cargo", "metadata", "--format-version", "1", "--no-deps"]
    output = subprocess.run(query, cwd=place, check=True, capture_output=True).stdout
    return Path(json.loads(output)["target_directory"]) / "release/performance"


def install():
    subprocess.run(f"apt-get update -qq && apt-get install -qq -y --no-install-recommends {PACKAGES}", shell=True, check=True)
    subprocess.run([sys.executable, "-m", "venv", CACHE], check=True)
    subprocess.run([CACHE / "bin/pip", "install", "--quiet", "mitmproxy"], check=True)


def mitmdump():
    ours = CACHE / "bin/mitmdump"
    return ours if ours.exists() else shutil.which("mitmdump")


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def start_product(processes, binary, work, certificates, origin, nameserver, forge):
    """Registers the containers and starts the product; returns it with its median start time and its idle memory."""
    product = Product(processes, binary, work, certificates, origin, nameserver, forge)
    facts = {"empty_mib": product.register()}
    starts = []
    for last in (False, False, True):
        starts.append(product.start())
        if not last:
            product.stop()
    return product, facts | {"start_ms": statistics.median(starts), "idle_mib": product.resident_mib()}


def measure(options, work, processes, product_binary, performance):
    certificates, origin, nameserver = work, free_port(), free_port()
    subprocess.run([performance, "certificates", work], check=True)
    process = processes.start("origin", performance, "origin", "--listen", f"127.0.0.1:{origin}", "--certificates", work)
    processes.await_port("origin", process, origin)
    processes.start("nameserver", performance, "nameserver", "--listen", f"127.0.0.1:{nameserver}")
    say("starting the product with its registrations")
    forge = Forge(work, certificates)
    product, facts = start_product(processes, product_binary, work, certificates, origin, nameserver, forge)
    facts["clone_s"] = forge.clone(product.peer(), work)
    make = Peers(processes, work, performance, certificates, origin, nameserver, mitmdump())
    direct = Peer("direct", origin, process.pid, work / "ca.pem", route="reverse")
    peers = [direct, product.peer(), make.nginx(), make.ours("relay", "relay"),
             make.ours("hudsucker", "hudsucker", "--nodelay"), make.mitmproxy()]
    if not options.quick:
        peers += [make.nginx(logged=True), make.ours("hudsucker, Nagle", "hudsucker")]
    if options.all:
        peers += [make.haproxy(), make.squid()]
    forwarders = [Peer("product", product.dns, product.process.pid), make.dnsmasq(), make.unbound(),
                  make.unbound(cache=False)]
    if make.missing:
        say(f"missing, and left out: {', '.join(make.missing)}")
    http = loads.Runner(performance, {peer.name: peer for peer in peers if peer})
    dns = loads.Runner(performance, {peer.name: peer for peer in forwarders if peer})
    # The TLS of a passthrough host is the origin's, so clients trust the origin's CA.
    passed = loads.Runner(performance, {"product": replace(product.peer(), ca=direct.ca)})
    return run(options, http, dns, passed, facts, product, make)


def run(options, http, dns, passed, facts, product, make):
    def restart():
        product.restart()
        for runner in (http, dns, passed):
            runner.peers["product"] = replace(runner.peers["product"], pid=product.process.pid)

    say("HTTP")
    http_loads = http.run(loads.http_loads(options.quick))
    maximum = http_loads[0].figure("nginx", "per_second")
    say("pairs of product and relay")
    pairs = loads.paired_loads(options.quick)
    for _ in range(loads.PAIR_STARTS):
        # Where the kernel places a process in memory changes its CPU time by several percent.
        restart()
        http.peers["relay"] = make.ours("relay", "relay")
        http.run(pairs)
    say("a fixed rate")
    fixed = http.run([loads.fixed_rate(maximum / 2, options.quick)]) if maximum else []
    say("mitmproxy, denials beside another container")
    slow = http.run(loads.slow_loads()) + passed.run([loads.passthrough()])
    facts |= refusals.measure(http, http.peers["product"], 2 if options.quick else 5)
    say("DNS")
    questions = dns.run(loads.question_loads(options.quick))
    say("idle tunnels")
    idle = loads.idle_loads(options.quick)
    for load in idle:
        # A process that has served requests holds freed memory, which would hide the memory of tunnels.
        restart()
        http.run([load])
    return http_loads + pairs + fixed + slow, idle, questions, facts


def print_report(http, idle, questions, facts):
    command = " ".join(["scripts/bench", *sys.argv[1:]])
    print(f"`{command}` on {report.machine(ROOT)}.")
    peers = list(dict.fromkeys(peer for load in http for peer in load.results))
    peers.sort(key=loads.EVERY.index)
    report.table("CPU µs each (spread)", http, [peer for peer in peers if peer != "direct"], report.cpu)
    report.table("each second", http, peers, report.rate)
    report.table("p50 / p99 / p99.9 in ms", http, peers, report.latency)
    report.table("KiB / sockets each", idle, loads.RELAYS, report.memory)
    report.table("CPU µs each (spread)", questions, loads.FORWARDERS, report.cpu)
    report.table("each second", questions, loads.FORWARDERS, report.rate)
    report.bars(bar.rows(http + idle + questions, facts))


def record(text, heading, following):
    """Replaces the text between two headings of the document by the tables."""
    path = ROOT / "docs/performance.md"
    before, rest = path.read_text().split(f"{heading}\n")
    after = rest[rest.index(following):]
    path.write_text(f"{before}{heading}\n\n{text}\n{after}")


def main():
    arguments = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="fewer and shorter rounds: about three minutes")
    arguments.add_argument("--all", action="store_true", help="HAProxy and squid as well")
    arguments.add_argument("--install", action="store_true", help="install the other proxies first, with apt-get and pip")
    arguments.add_argument("--record", action="store_true", help="also write the tables to docs/performance.md")
    arguments.add_argument("--as-built", action="store_true", help="measure the existing binaries without a build")
    arguments.add_argument("--mcp", action="store_true", help="measure the MCP gateway instead of HTTP and DNS")
    arguments.add_argument("--train", nargs=2, type=Path, metavar=("BINARY", "DIRECTORY"),
                           help="send the loads to an instrumented binary, which writes its counts to the directory, instead")
    arguments.add_argument("--instructions", action="store_true", help="count instructions with callgrind instead")
    arguments.add_argument("--functions", action="store_true", help="with --instructions: also print the costliest functions")
    options = arguments.parse_args()
    if options.instructions:
        sys.exit(instructions.run(ROOT, options, say))
    if options.install:
        install()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if not shutil.which("git"):
        sys.exit("Missing: git (apt-get install git, or scripts/bench --install).")
    if options.train:
        binary, counts = (path.resolve() for path in options.train)
        with tempfile.TemporaryDirectory(prefix="training-") as directory:
            training.run(Path(directory), say, binary, build_programs(), counts)
        return
    product, performance = build(options.as_built)
    text = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        work = Path(directory)
        if options.mcp:
            figures = mcp.measure(options.quick, work, say, ROOT, product, performance)
        else:
            with Processes(work) as processes:
                figures = measure(options, work, processes, product, performance)
    with contextlib.redirect_stdout(text):
        mcp.print_report(ROOT, *figures) if options.mcp else print_report(*figures)
    print(text.getvalue())
    if options.record:
        record(text.getvalue(), *(MCP_FIGURES if options.mcp else FIGURES))
