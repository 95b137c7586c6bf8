"""Writes the list by which the linker places the functions of a release: docs/adr/019-function-order.md.

The product runs under callgrind, which counts the instructions of each function and the calls between functions. The list has the
functions that each kind of work executes, callers next to their callees. Those of the start come last.
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
# A function is listed if it executes at least this many instructions of its own in a unit of work, on average.
LEAST_INSTRUCTIONS = 5
# A longer name is cut after this many characters. After them, names differ only in the types of nested futures.
LONGEST_NAME = 150
# Limits of hfsort's reference implementation: bytes of a cluster, and the factor by which a merge may lower its density.
LARGEST_CLUSTER, DENSITY_FACTOR = 1 << 20, 8


@dataclass
class Profile:
    """What callgrind counted, by the mangled names of functions."""

    cost: Counter = field(default_factory=Counter)
    # The number of calls, by callee and then by caller.
    callers: dict = field(default_factory=lambda: defaultdict(Counter))

    @classmethod
    def read(cls, path):
        profile, names, function, callee, is_inclusive = cls(), {}, None, None, False
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
                    profile.callers[callee][function] += int(line[len("calls="):].split()[0])
                    # The next line has the inclusive cost of these calls.
                    is_inclusive = True
                elif counted := re.match(r"[+\-*\d]\S* (\d+)", line):
                    if not is_inclusive:
                        profile.cost[function] += int(counted[1])
                    is_inclusive = False
        return profile


def in_order(profile, size, units):
    """hfsort (Ottoni and Maher, "Optimizing Function Placement for Large-Scale Data-Center Applications", 2017): takes the
    functions with the most instructions per byte (the highest density) first, and appends the cluster of each to the cluster of
    its most frequent caller. Then sorts the clusters by density. `size` has the bytes of each function, `units` is the number
    of units of work in the profile."""
    listed = {name: cost for name, cost in profile.cost.items()
              if size.get(name) and cost >= LEAST_INSTRUCTIONS * units}

    def density(names):
        return sum(listed[name] for name in names) / sum(size[name] for name in names)

    clusters = {name: [name] for name in listed}
    for name in sorted(listed, key=lambda name: density([name]), reverse=True):
        callers = Counter({caller: n for caller, n in profile.callers[name].items() if caller in listed})
        if not callers:
            continue
        own, before = clusters[name], clusters[callers.most_common(1)[0][0]]
        merged = before + own
        too_large = sum(size[name] for name in merged) > LARGEST_CLUSTER
        if own is before or too_large or density(merged) * DENSITY_FACTOR < density(before):
            continue
        clusters.update(dict.fromkeys(merged, merged))
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
    """The fraction of the listed patterns that match a function of the binary."""
    listed = re.findall(r"\*\(\.text\.(\S+)\)", (root / SCRIPT).read_text())
    return len({pattern(name) for name in symbols(binary)}.intersection(listed)) / len(listed)


def write(root, work, say, binary, performance):
    for program in ("valgrind", "callgrind_control", "strip", "nm"):
        if not shutil.which(program):
            sys.exit(f"Missing: {program} (apt-get install valgrind binutils).")
    sizes, profiles = symbols(binary), []
    copy = work / "unified-proxy"
    subprocess.run(["strip", "--strip-debug", "-o", copy, binary], check=True)
    with Processes(work) as processes:
        say("starting the product")
        product = instructions.start(processes, work, copy, performance, True, "--demangle=no")
        for load, peer, units in instructions.parts(product, performance, with_http=True):
            for unit in units:
                say(unit.name)
                # The first units open connections. They are not counted, since each dump begins a new profile.
                load.send(peer, unit, unit.many // 10)
                product.dump()
                load.send(peer, unit, unit.many)
                profiles.append((Profile.read(product.dump()[1]), unit.many))
        profiles.append((Profile.read(product.profile_of_start), 1))
    # A dictionary keeps the order of insertion, and has each name once.
    listed = dict.fromkeys(pattern(name) for profile, units in profiles for name in in_order(profile, sizes, units))
    (root / SCRIPT).write_text(HEADER + "".join(f"    *(.text.{name})\n" for name in listed) + FOOTER)
    say(f"{SCRIPT}: {len(listed)} functions; the next release build uses it")
