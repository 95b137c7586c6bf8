"""Prints the tables of docs/performance.md, in Markdown."""

import platform
import subprocess
from pathlib import Path


def machine(root):
    processor = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                      if line.startswith("model name")), platform.machine())
    cores = len([line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("processor")])
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    commit = subprocess.run(command, cwd=root, capture_output=True, text=True).stdout.strip() or "unknown"
    return f"{processor}, {cores} cores, Linux {platform.release().split('-')[0]}, commit {commit}"


def number(value, digits=1):
    return "–" if value is None else f"{value:,.{digits}f}"


def table(title, loads, peers, cell):
    peers = [peer for peer in peers if any(peer in load.results for load in loads)]
    print(f"\n| {title} | {' | '.join(peers)} |")
    print(f"| --- |{' ---: |' * len(peers)}")
    for load in loads:
        cells = [cell(load, peer) if peer in load.results else "–" for peer in peers]
        print(f"| {load.name} | {' | '.join(cells)} |")


def cpu(load, peer):
    figures = load.figures(peer, "cpu_us_each")
    digits = 0 if load.figure(peer, "cpu_us_each") >= 1000 else 1
    return f"{number(load.figure(peer, 'cpu_us_each'), digits)} ({number(min(figures), digits)}–{number(max(figures), digits)})"


def rate(load, peer):
    return number(load.figure(peer, "per_second"), 0 if load.figure(peer, "per_second") >= 100 else 1)


def latency(load, peer):
    return " / ".join(number(load.figure(peer, key), 2) for key in ("p50_ms", "p99_ms", "p999_ms"))


def memory(load, peer):
    return f"{number(load.figure(peer, 'kib_each'))} / {number(load.figure(peer, 'descriptors_each'), 2)}"


def bars(rows):
    print("\n| the bar | measured | allowed | |")
    print("| --- | ---: | ---: | --- |")
    for name, measured, sign, allowed in rows:
        if measured is None:
            print(f"| {name} | – | {sign} {allowed} | not measured |")
            continue
        kept = measured <= allowed if sign == "≤" else measured >= allowed
        print(f"| {name} | {measured:.2f} | {sign} {allowed:g} | {'pass' if kept else '**miss**'} |")
