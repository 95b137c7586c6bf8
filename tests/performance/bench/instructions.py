"""Instructions of one request, tunnel, DNS question and tool call, counted by callgrind and compared with a baseline.

The number of instructions hardly depends on the machine and its other load, so CI can compare it. Time depends on both. The product
runs under callgrind. In several rounds, each load is sent with a small and with a large number of units. The cost of one unit is the
difference of the smallest counts for the two numbers, divided by the difference of the numbers: the cost of connecting is in both
counts and cancels out. The instructions of timers, counted while the product is idle, are subtracted.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from .loads import Runner
from .mcp import TOOLS_TO_CALL, Gateway, McpRunner
from .processes import Processes, free_port
from .product import NEW_HOSTS, NEW_HOST_ROUNDS

BASELINE = Path("tests/performance/instructions.json")
ROUNDS = 3
# Timeouts: callgrind makes the product slower by a factor of 50.
START_SECONDS, LOAD_SECONDS = 120, 120
# The pause after the start, and the time over which the instructions of timers are counted.
SETTLING_SECONDS, IDLE_SECONDS = 2, 5
# Prefix of callgrind's profiles, one for each dump, in the directory of the run.
PROFILE = "callgrind.out"
ANNOTATED_LINES = 60


@dataclass
class Unit:
    """A kind of work, the load that causes it, and the larger number of units."""

    name: str
    arguments: list
    many: int
    # At least twice the difference that was seen between two runs on a busy machine.
    tolerance_percent: float = 2.0


HTTP = [
    Unit("HTTP request on a kept TLS connection", ["keep-alive", "--connections", 1], 1000),
    Unit("denied HTTP request", ["denials", "--connections", 1], 2000),
    Unit("new tunnel with one request", ["tunnels", "--connections", 1], 100, tolerance_percent=4.0),
]
NEW_HOST = [Unit("first tunnel to a host, with one request", ["tunnels", "--connections", 1], 80)]
# A DNS question takes so few instructions that those of timers are a large part of the count. So the tolerance is larger.
DNS = [Unit(f"DNS question, {names}", [names, "--clients", 1], 2000, tolerance_percent=10.0)
       for names in ("cached", "denied", "forwarded")]
CALL = ["call", "--era", "modern", "--connections", 1]
CALLS = {
    False: Unit("tools/call, no policy", CALL, 300, tolerance_percent=5.0),
    True: Unit("tools/call, policy of 50 rules", CALL, 200, tolerance_percent=5.0),
}
TOLERANCES = {unit.name: unit.tolerance_percent for unit in [*HTTP, *NEW_HOST, *DNS, *CALLS.values()]}


class HttpLoad(Runner):
    def send(self, peer, unit, number):
        self.finish(self.begin(peer, [*unit.arguments, "--requests", number], 0), peer.name, LOAD_SECONDS)


class NewHostLoad(HttpLoad):
    """Every tunnel is the first one to its host: the product mints a leaf and verifies the upstream's certificate."""

    first = 0

    def send(self, peer, unit, number):
        hosts = ["--hosts", NEW_HOSTS * NEW_HOST_ROUNDS, "--first-host", self.first]
        super().send(peer, replace(unit, arguments=[*unit.arguments, *hosts]), number)
        self.first += number


class McpLoad(HttpLoad, McpRunner):
    pass


class DnsLoad(Runner):
    def send(self, peer, unit, number):
        self.finish(self.ask(peer, [*unit.arguments, "--questions", number], 0), peer.name, LOAD_SECONDS)


class SmallGateway(Gateway):
    """The product with one MCP server, which it mounts over HTTP; if `with_policy`, with a policy of 50 rules."""

    # Registers only the containers that send the loads. Maintenance reads each container's state every second: with 10,000
    # containers that takes 5 million instructions a second, on a slow machine a large part of each count.
    containers = 3

    def __init__(self, *arguments, with_policy=True, **ports):
        self.with_policy = with_policy
        super().__init__(*arguments, **ports)

    def files(self, *arguments):
        files = super().files(*arguments)
        del files["mcp.yaml"]["mcpServers"]["stdio"]
        if not self.with_policy:
            del files["mcp.yaml"]["policies"]
        return files


class CountedProduct(SmallGateway):
    """The product under callgrind."""

    def files(self, *arguments):
        files = super().files(*arguments)
        if self.with_policy:
            # An evaluation takes 0.1 s under callgrind, and much longer beside a build, since its thread has a low priority.
            files["mcp.yaml"]["policies"]["evaluator"] = {"timeout": f"{LOAD_SECONDS}s"}
        return files

    def start_counted(self):
        options = ["--tool=callgrind", f"--callgrind-out-file={self.work / PROFILE}", "--quiet"]
        self.start("valgrind", *options, seconds=START_SECONDS)
        time.sleep(SETTLING_SECONDS)
        self.per_second, self.dumped = 0, time.monotonic()
        self.dump()
        time.sleep(IDLE_SECONDS)
        self.per_second = self.dump()[0] / IDLE_SECONDS

    def dump(self):
        """Returns the instructions since the previous dump, without those of timers, and the path of the profile."""
        before = set(self.work.glob(f"{PROFILE}.*"))
        command = ["callgrind_control", "--dump", str(self.process.pid)]
        subprocess.run(command, check=True, capture_output=True, timeout=LOAD_SECONDS)
        [profile] = set(self.work.glob(f"{PROFILE}.*")) - before
        with profile.open() as lines:
            total = next(line for line in lines if line.startswith("summary:"))
        began, self.dumped = self.dumped, time.monotonic()
        return int(total.split()[1]) - self.per_second * (self.dumped - began), profile

    def count(self, load, peer, unit, functions):
        """Returns the instructions of one unit, and by how many percent the median count of `unit.many` units exceeds
        the smallest such count."""
        few = unit.many // 10
        load.send(peer, unit, few)
        of_few, of_many = [], []
        for _ in range(ROUNDS):
            self.dump()
            load.send(peer, unit, few)
            of_few.append(self.dump()[0])
            load.send(peer, unit, unit.many)
            count, profile = self.dump()
            of_many.append(count)
        if functions:
            print_functions(unit, profile)
        each = (min(of_many) - min(of_few)) / (unit.many - few)
        return round(each), (statistics.median(of_many) / min(of_many) - 1) * 100


def print_functions(unit, profile):
    """Prints the functions with the most instructions; a function's count includes the functions that it calls."""
    command = ["callgrind_annotate", "--inclusive=yes", "--auto=no", "--threshold=99", str(profile)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    print(f"\n{unit.name}, {unit.many} units:", *lines[:ANNOTATED_LINES], sep="\n")


def toolchain():
    """The key of the baseline: counts differ between versions of the compiler."""
    said = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    facts = dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)
    return f"rustc {facts['release']} {facts['host']}"


def build(root, as_built):
    """Builds the product and the load program, unless `as_built`; returns their paths. The product's own crates are
    optimised too. The target directory is that of the tests, whose builds have compiled all other crates."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    if not as_built:
        optimised = [f"--config=profile.dev.package.{crate}.opt-level=1" for crate in ("addons", "unified-proxy")]
        # A test of the workspace is built too: only then does cargo choose the features of dependencies as for all tests.
        targets = ["--workspace", "--bin", "unified-proxy", "--test", "mcp", "--features", "jemalloc"]
        product = ["cargo", "build", "--quiet", "--locked", *targets, *optimised]
        subprocess.run(product, cwd=root, check=True)
        load = ["cargo", "build", "--quiet", "--locked", "--no-default-features", "--target-dir", target]
        subprocess.run(load, cwd=root / "tests/performance", check=True)
    return target / "debug/unified-proxy", target / "debug/performance"


def prepare(kind, processes, work, binary, performance, **options):
    """Starts the servers that the product contacts; returns a product of the class `kind`, not started, with its registrations."""
    subprocess.run([performance, "certificates", work], check=True)
    origin, nameserver, server = free_port(), free_port(), free_port()
    commands = {
        "origin": (origin, "origin", "--certificates", work),
        "mcp-server": (server, "mcp-server", "--tools", TOOLS_TO_CALL),
    }
    for name, (port, *arguments) in commands.items():
        process = processes.start(name, performance, *arguments, "--listen", f"127.0.0.1:{port}")
        processes.await_port(name, process, port)
    processes.start("nameserver", performance, "nameserver", "--listen", f"127.0.0.1:{nameserver}")
    product = kind(processes, binary, work, [], server, origin=origin, nameserver=nameserver, **options)
    product.register()
    return product


def parts(product, performance, with_http):
    """The loads, each with its peer and its units: those of HTTP and DNS if `with_http`, and the tool calls."""
    plain, resolver = product.peer(), replace(product.peer(), port=product.dns)
    http = [
        (HttpLoad(performance, {}), plain, HTTP),
        (NewHostLoad(performance, {}), plain, NEW_HOST),
        (DnsLoad(performance, {}), resolver, DNS),
    ]
    calls = McpLoad(performance, {}), product.peers()[0], [CALLS[product.with_policy]]
    return [*(http if with_http else []), calls]


def measure(work, say, binary, performance, functions):
    """Returns cost and spread of each unit, by its name."""
    copy = work / "unified-proxy"
    # valgrind reads a small file faster. A build during the run does not replace the copy.
    subprocess.run(["strip", "--strip-debug", "-o", copy, binary], check=True)

    def count(with_policy):
        place = work / f"policy-{with_policy}"
        place.mkdir()
        counts = {}
        with Processes(place) as processes:
            say("starting the product")
            product = prepare(CountedProduct, processes, place, copy, performance, with_policy=with_policy)
            product.start_counted()
            for load, peer, units in parts(product, performance, not with_policy):
                for unit in units:
                    say(unit.name)
                    counts[unit.name] = product.count(load, peer, unit, functions)
        return counts

    # At the same time, since a count hardly depends on the other load of the machine.
    with ThreadPoolExecutor() as pool:
        return {name: counted for counts in pool.map(count, CALLS) for name, counted in counts.items()}


def compare(counts, baseline):
    """Prints a table; returns the names of the units that cost more than the baseline allows."""
    more, less = [], []
    print("| instructions each | counted | median over smallest | baseline | difference |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, (count, spread) in counts.items():
        known = baseline.get(name)
        difference = (count / known - 1) * 100 if known else 0.0
        more += [name] if difference > TOLERANCES[name] else []
        less += [name] if difference < -TOLERANCES[name] else []
        against = f"{known:,} | {difference:+.1f} %" if known else "– | –"
        print(f"| {name} | {count:,} | +{spread:.1f} % | {against} |")
    if less:
        print(f"\nCheaper than the baseline: {'; '.join(less)}. `scripts/bench --instructions --record` lowers it.")
    return more


def left_out(root, reason):
    """Prints why nothing was counted, and writes it to the summary that .ci/run reads."""
    print(f"not run: instructions: {reason}")
    summary = Path(os.environ.get("CARGO_TARGET_DIR", root / "target")) / "instructions/summary"
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(f"not run: instructions: {reason}\n")


def run(root, options, say):
    """Counts instructions and compares or records them; returns the exit code."""
    for program in ("valgrind", "callgrind_control", "strip"):
        if not shutil.which(program):
            left_out(root, f"{program} is missing (apt-get install valgrind binutils)")
            return 0
    probe = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "true"]
    if subprocess.run(probe, capture_output=True).returncode:
        left_out(root, "valgrind cannot run here: try `valgrind --tool=callgrind true`")
        return 0
    binaries = build(root, options.as_built)
    with tempfile.TemporaryDirectory(prefix="instructions-") as work:
        counts = measure(Path(work), say, *binaries, options.functions)
    key, path = toolchain(), root / BASELINE
    baselines = json.loads(path.read_text()) if path.exists() else {}
    print(f"{key}\n")
    more = compare(counts, baselines.get(key, {}))
    if options.record:
        baselines[key] = {name: count for name, (count, _) in counts.items()}
        path.write_text(json.dumps(baselines, indent=2) + "\n")
        return 0
    if key not in baselines:
        print(f"\n{BASELINE} has no baseline for {key}, so nothing was compared.")
    elif more:
        print(f"\nAbove the baseline: {'; '.join(more)}. If that is intended,"
              " `scripts/bench --instructions --record` raises the baseline; give the reason in the commit.")
        return 1
    return 0
