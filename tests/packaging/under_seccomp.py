"""Runs a command under a seccomp profile in the JSON format of container engines.

    python3 under_seccomp.py PROFILE COMMAND…

Applies the rules that an engine applies to a container without capabilities on this machine. Needs
libseccomp's Python module (Debian: python3-seccomp). Sets no_new_privs, which a user without privileges needs to load a filter.
"""

import ctypes
import json
import os
import platform
import sys

import seccomp

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
OPERATORS = {
    "SCMP_CMP_EQ": seccomp.EQ,
    "SCMP_CMP_NE": seccomp.NE,
    "SCMP_CMP_LT": seccomp.LT,
    "SCMP_CMP_LE": seccomp.LE,
    "SCMP_CMP_GT": seccomp.GT,
    "SCMP_CMP_GE": seccomp.GE,
}
PR_SET_NO_NEW_PRIVS = 38


def action(rule, default):
    if rule["action"] == "SCMP_ACT_ALLOW":
        return seccomp.ALLOW
    if rule["action"] == "SCMP_ACT_ERRNO":
        return seccomp.ERRNO(rule.get("errnoRet", default))
    sys.exit(f"unknown action {rule['action']}")


def applies(rule):
    """Whether an engine applies the rule to a container without capabilities."""
    includes, excludes = rule.get("includes") or {}, rule.get("excludes") or {}
    architecture = ARCHITECTURES[platform.machine()]
    if includes.get("caps") or architecture in excludes.get("arches", []):
        return False
    return architecture in includes.get("arches", [architecture])


def argument(given):
    if given["op"] == "SCMP_CMP_MASKED_EQ":
        return seccomp.Arg(given["index"], seccomp.MASKED_EQ, given["value"], given.get("valueTwo", 0))
    return seccomp.Arg(given["index"], OPERATORS[given["op"]], given["value"])


def load(profile):
    default = profile.get("defaultErrnoRet", 1)
    fallback = seccomp.ERRNO(default)
    rules = seccomp.SyscallFilter(fallback)
    for rule in filter(applies, profile["syscalls"]):
        chosen = action(rule, default)
        arguments = [argument(given) for given in rule.get("args") or []]
        for name in rule["names"]:
            try:
                number = seccomp.resolve_syscall(seccomp.Arch(), name)
            except ValueError:
                number = -1
            # Names of other architectures, or unknown to this version of libseccomp, are skipped.
            if number >= 0:
                rules.add_rule(chosen, number, *arguments)
    rules.load()


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        profile = json.load(file)
    ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    load(profile)
    os.execvp(sys.argv[2], sys.argv[2:])


main()
