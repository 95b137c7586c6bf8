"""Writes the list by which the linker places the functions of a release: docs/adr/019-function-order.md.

The product runs under callgrind, which counts the instructions of each function and the calls between functions. For each kind of
work, and last for the start, functions are listed that take part in it, callers next to their callees.
"""

import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from . import instructions
from .processes import Processes

SCRIPT = "packaging/function-order.ld"
HEADER = """\
/* Functions that requests, tunnels, DNS questions, tool calls and the start execute: the linker puts them next to each
   other, in this order. Written by `scripts/bench --order`; docs/adr/019-function-order.md has the reason. */
SECTIONS
{
  .text.ordered :
  {
"""
FOOTER = """\
  }
}
INSERT BEFORE .text;
"""
# A function is listed if it takes this many instructions of one unit of work, on average.
LEAST_INSTRUCTIONS = 5
# Characters of a name before the wildcard. Longer names differ only in the types of nested futures.
LONGEST_NAME = 150
# Limits of hfsort's reference implementation: bytes of a cluster, and by how much a merge may lower its density.
LARGEST_CLUSTER, DENSITY_LOSS = 1 << 20, 8


@dataclass
class Profile:
    """What callgrind counted, by the mangled names of functions."""

    cost: Counter = field(default_factory=Counter)
    calls: dict = field(default_factory=lambda: defaultdict(Counter))

    @classmethod
    def read(cls, path):
        profile, names, function, callee, of_call = cls(), {}, None, None, False
        with path.open() as lines:
            for line in lines:
                if named := re.match(r"(c?fn)=(\(\d+\))(?: (.*))?", line):
                    key, number, name = named.groups()
                    if name:
                        # callgrind numbers the levels of a recursion.
                        names[number] = re.sub(r"'\d+$", "", name)
                    if key == "fn":
                        function = names[number]
                    else:
                        callee = names[number]
                elif line.startswith("calls="):
                    profile.calls[callee][function] += int(line[len("calls="):].split()[0])
                    # The next line has the inclusive cost of these calls.
                    of_call = True
                elif counted := re.match(r"[+\-*\d]\S* (\d+)", line):
                    if not of_call:
                        profile.cost[function] += int(counted[1])
                    of_call = False
        return profile


def in_order(profile, size, units):
    """hfsort (Ottoni and Maher, "Optimizing Function Placement for Large-Scale Data-Center Applications", 2017): appends
    each function to the cluster of its most frequent caller, the functions with the most instructions per byte first."""
    listed = {name: cost for name, cost in profile.cost.items()
              if size.get(name) and cost >= LEAST_INSTRUCTIONS * units}

    def density(names):
        return sum(listed[name] for name in names) / sum(size[name] for name in names)

    clusters = {name: [name] for name in listed}
    for name in sorted(listed, key=lambda name: density([name]), reverse=True):
        callers = Counter({caller: n for caller, n in profile.calls[name].items() if caller in listed})
        if not callers:
            continue
        ours, theirs = clusters[name], clusters[callers.most_common(1)[0][0]]
        merged = theirs + ours
        too_large = sum(size[name] for name in merged) > LARGEST_CLUSTER
        if ours is theirs or too_large or density(merged) * DENSITY_LOSS < density(theirs):
            continue
        theirs += ours
        clusters.update(dict.fromkeys(ours, theirs))
    distinct = {id(cluster): cluster for cluster in clusters.values()}.values()
    return [name for cluster in sorted(distinct, key=density, reverse=True) for name in cluster]


def pattern(name):
    """A pattern for the function's name. It leaves out what differs between versions of the compiler and of dependencies: hashes
    of crates, back references, and the version of aws-lc."""
    name = re.sub(r"(Cs|B)[0-9A-Za-z]*_", r"\1*_", name.split(".llvm.")[0])
    name = re.sub(r"^aws_lc_\d+_\d+_\d+_", "aws_lc_*_", name)
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME].rstrip('*')}*"


def symbols(binary):
    """The sizes of the functions, by their mangled names."""
    lines = subprocess.run(["nm", "--print-size", binary], check=True, capture_output=True, text=True).stdout.splitlines()
    fields = (line.split() for line in lines)
    return {name: int(size, 16) for _, size, kind, name in (f for f in fields if len(f) == 4) if kind in "tTwW"}


def share_found(root, binary):
    """The share of the list for which the binary has a function."""
    listed = re.findall(r"\*\(\.text\.(\S+)\)", (root / SCRIPT).read_text())
    return len({pattern(name) for name in symbols(binary)}.intersection(listed)) / len(listed)


def write(root, work, say, binary, performance):
    for program in ("valgrind", "callgrind_control", "strip", "nm"):
        if not shutil.which(program):
            sys.exit(f"Missing: {program} (apt-get install valgrind binutils).")
    size, profiles = symbols(binary), []
    copy = work / "unified-proxy"
    subprocess.run(["strip", "--strip-debug", "-o", copy, binary], check=True)
    with Processes(work) as processes:
        say("starting the product")
        product = instructions.start(processes, work, copy, performance, True, "--demangle=no")
        for load, peer, units in instructions.parts(product, performance, True):
            for unit in units:
                say(unit.name)
                # The first units open connections.
                load.send(peer, unit, unit.many // 10)
                product.dump()
                load.send(peer, unit, unit.many)
                profiles.append((Profile.read(product.dump()[1]), unit.many))
        profiles.append((Profile.read(product.profile_of_start), 1))
    # A dictionary keeps the order of insertion, and has each name once.
    listed = dict.fromkeys(pattern(name) for profile, units in profiles for name in in_order(profile, size, units))
    (root / SCRIPT).write_text(HEADER + "".join(f"    *(.text.{name})\n" for name in listed) + FOOTER)
    say(f"{SCRIPT}: {len(listed)} functions; the next release build uses it")
