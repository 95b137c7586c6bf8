"""Starts the programs of a run, and ends them at its end."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Peer:
    """A running program, and how a load connects to it."""

    name: str
    port: int
    pid: int
    ca: Path | None = None
    route: str = "connect"
    plain_port: int | None = None
    source: str = "127.0.0.1"
    # The name under which this peer lists the MCP tool.
    tool: str = "tool-0"


class Processes:
    """Starts programs. When the `with` block ends, also by an exception, ends them by their process ids."""

    def __init__(self, work):
        self.work = work
        self.running = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.running):
            self.end(process)

    def start(self, name, *command):
        log = open(self.work / f"{name}.log", "a")
        command = [str(part) for part in command]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.work)
        self.running.append(process)
        return process

    def end(self, process):
        if process in self.running:
            self.running.remove(process)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def await_port(self, name, process, port, seconds=30):
        """Waits until a connection to the port succeeds; exits if the process ends first, or after `seconds`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.02)
        sys.exit(f"{name} did not start:\n{(self.work / f'{name}.log').read_text()}")


# The ports that `free_port` has returned. It returns each once, since the program that gets it opens it later.
GIVEN = set()


def free_port():
    """A port that is free for TCP and UDP."""
    while True:
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", 0))
            port = tcp.getsockname()[1]
            try:
                udp.bind(("127.0.0.1", port))
            except OSError:
                continue
            if port not in GIVEN:
                GIVEN.add(port)
                return port


def find(program):
    """The path of a program on PATH or in the system's sbin directories; `None` if there is none."""
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin:/sbin")
