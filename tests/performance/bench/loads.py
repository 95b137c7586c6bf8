"""The HTTP and DNS loads, and the runner that sends each load through its peers."""

import random
import statistics
import subprocess
import sys
from dataclasses import dataclass, field

from .product import NEW_HOSTS, NEW_HOST_ROUNDS

RELAYS = ("product", "relay", "nginx")
PROXIES = ("direct", *RELAYS, "hudsucker", "mitmproxy")
EVERY = (*PROXIES, "nginx, access log", "hudsucker, Nagle", "haproxy", "squid")
FORWARDERS = ("product", "dnsmasq", "unbound", "unbound, no cache")


@dataclass
class Load:
    """A load, the names of the peers through which it is sent, and the results of each."""

    name: str
    arguments: list
    peers: tuple = RELAYS
    rounds: int = 3
    seconds: float = 1.0
    # Whether the CPU time is the smallest of the rounds instead of the median: other programs can only increase it.
    smallest: bool = False
    results: dict = field(default_factory=dict)

    def figures(self, peer, key):
        return [result[key] for result in self.results.get(peer, []) if key in result]

    def figure(self, peer, key):
        """The median of the rounds, or the smallest value for CPU time if `smallest`; `None` without results."""
        figures = self.figures(peer, key)
        if not figures:
            return None
        return min(figures) if self.smallest and key == "cpu_us_each" else statistics.median(figures)

    def median(self, peer, key):
        figures = self.figures(peer, key)
        return statistics.median(figures) if figures else None


def keep_alive(connections, *more, name="1 KiB", suffix="", **options):
    word = "connection" if connections == 1 else "connections"
    arguments = ["keep-alive", "--connections", connections, *more]
    return Load(f"keep-alive {name}, {connections} {word}{suffix}", arguments, **options)


def http_loads(quick):
    seconds = 0.5 if quick else 1.0
    rounds = 3 if quick else 12
    plain = ["--host", "plain.many.example.com"]
    big = ["--size", 100 << 20, "--requests", 2 if quick else 5]
    return [
        keep_alive(32, peers=RELAYS if quick else EVERY, rounds=rounds, smallest=True),
        keep_alive(256, rounds=rounds, smallest=True, seconds=seconds,
                   peers=RELAYS if quick else EVERY),
        keep_alive(1, seconds=seconds, peers=("direct", *RELAYS)),
        keep_alive(32, "--size", 100 << 10, name="100 KiB", seconds=seconds, rounds=rounds),
        keep_alive(1, *big, name="100 MB body, scrubbed"),
        keep_alive(1, *big, *plain, name="100 MB body, no secret injected"),
        Load("HTTP/2, 100 streams on 1 connection", ["streams", "--connections", 1], seconds=seconds, rounds=rounds,
             peers=("direct", "product", "nginx", "hudsucker")),
        Load("new tunnels, 1 host", ["tunnels", "--connections", 16], rounds=3 if quick else 10, smallest=True,
             seconds=seconds, peers=RELAYS if quick else EVERY),
        Load("new tunnels, each to a new host", ["tunnels", "--connections", 16, "--requests", NEW_HOSTS, "--hosts",
             NEW_HOSTS], peers=("product", "relay", "hudsucker"), rounds=3 if quick else NEW_HOST_ROUNDS),
        Load("denials", ["denials", "--connections", 32], seconds=seconds, peers=("product", "nginx")),
    ]


# The number of processes of the product and of the relay that are measured in pairs.
PAIR_STARTS = 5


def paired_loads(quick):
    """Loads for the ratio of the product to the relay, with the rounds for each pair of processes. On a machine that is shared with
    others, the median of many short pairs is more precise than the ratio of two smallest values."""
    def pairs(connections, rounds, *more, **options):
        return keep_alive(connections, *more, suffix=", in pairs", peers=("product", "relay"), rounds=rounds, seconds=0.5, **options)

    return [pairs(32, 4 if quick else 20), pairs(256, 1 if quick else 6),
            pairs(32, 2 if quick else 6, "--size", 100 << 10, name="100 KiB")]


def slow_loads():
    """The load for comparison with mitmproxy, which is slower by an order of magnitude."""
    return [Load("keep-alive 1 KiB, 32 connections, in the same minute",
                 ["keep-alive", "--connections", 32], peers=("product", "mitmproxy"))]


def passthrough():
    return keep_alive(32, "--host", "pass.many.example.com", name="1 KiB to a passthrough host", peers=("product",))


def idle_loads(quick):
    """Loads of idle tunnels; memory is read ten seconds after the last tunnel was opened."""
    def idle(count, how, *more):
        return Load(f"{count:,} idle tunnels, {how}", ["idle", "--connections", count, *more], rounds=1, seconds=10)

    at_once = [idle(1_000, "opened at once")]
    return at_once if quick else [*at_once, idle(1_000, "opened over 20 s", "--ramp", 20), idle(2_000, "opened at once")]


def fixed_rate(rate, quick):
    rounds, seconds = (3, 1.0) if quick else (5, 2.0)
    return keep_alive(32, "--rate", rate, name=f"1 KiB at {rate:.0f} requests/s", rounds=rounds, seconds=seconds)


def question_loads(quick):
    rounds, seconds = (3, 0.3) if quick else (5, 1.0)
    return [Load(f"DNS, {names}", [names], FORWARDERS, rounds=rounds, seconds=seconds, smallest=True)
            for names in ("cached", "denied", "forwarded", "unique")]


class Runner:
    """Runs loads through those of their peers that were started."""

    def __init__(self, performance, peers):
        self.performance = performance
        self.peers = peers

    def run(self, loads):
        """Runs all rounds of all loads. In each round, every load is sent through its peers in random order, so that
        other programs on the machine affect all peers alike."""
        for number in range(max(load.rounds for load in loads)):
            for load in loads:
                peers = [self.peers[name] for name in load.peers if self.peers.get(name)]
                for peer in random.sample(peers, len(peers)):
                    if number < load.rounds and (figures := self.once(load, peer, number)):
                        load.results.setdefault(peer.name, []).append(figures)
        return loads

    def once(self, load, peer, number):
        if load.name.startswith("DNS"):
            return self.questions(load, peer)
        arguments = list(load.arguments)
        if "--hosts" in arguments:
            arguments += ["--first-host", number * NEW_HOSTS]
        return self.load(peer, arguments, load.seconds)

    def load(self, peer, arguments, seconds):
        return self.finish(self.begin(peer, arguments, seconds), peer.name)

    def begin(self, peer, arguments, seconds):
        port = peer.plain_port if arguments[0] == "denials" else peer.port
        return self.spawn("load", *arguments, "--proxy", f"127.0.0.1:{port}", "--route", peer.route, "--ca", peer.ca,
                          "--pid", peer.pid, "--seconds", seconds)

    def questions(self, load, peer):
        return self.finish(self.ask(peer, load.arguments, load.seconds), peer.name)

    def ask(self, peer, arguments, seconds):
        return self.spawn("questions", *arguments, "--server", f"127.0.0.1:{peer.port}", "--pid", peer.pid,
                          "--seconds", seconds)

    def spawn(self, *arguments):
        command = [str(part) for part in (self.performance, *arguments)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(self, process, peer, timeout=60):
        """Returns the figures that the process printed. If it failed: exits with the error if the peer is the
        product, otherwise prints the error and returns no figures."""
        try:
            out, error = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, error = process.communicate()
            error = error or f"no figures within {timeout} s"
        if process.returncode:
            text = f"{peer}: {' '.join(process.args[1:])}: {error.strip()}"
            if peer == "product":
                sys.exit(text)
            print(text, file=sys.stderr)
            return {}
        return {key: float(value) for key, value in (pair.split("=") for pair in out.split())}
