"""Sends loads to an instrumented product, which counts how often each function and branch is executed.

From the counts, the compiler optimises a release: docs/adr/019-profile-guided-optimisation.md.
"""

import os
from dataclasses import replace

from . import loads, mcp
from .instructions import SmallGateway, prepare
from .processes import Peer, Processes
from .product import CONTAINERS

# The instrumented product takes several times as long as the product.
START_SECONDS = 60


class TrainedProduct(SmallGateway):
    # The sources of the DNS questions are registered too.
    containers = CONTAINERS


def run(work, say, binary, performance, counts):
    """Sends every load of the bench, each for a short time. When the product ends, it writes a file to the directory `counts`."""
    os.environ["LLVM_PROFILE_FILE"] = str(counts / "%p.profraw")
    with Processes(work) as processes:
        product = prepare(TrainedProduct, processes, work, binary, performance)
        product.start(seconds=START_SECONDS)
        peer = product.peer()
        say("training with HTTP")
        loads.Runner(performance, {"product": peer}).run(loads.http_loads(quick=True))
        # The TLS of a passthrough host is the origin's, so clients trust the origin's CA.
        loads.Runner(performance, {"product": replace(peer, ca=work / "ca.pem")}).run([loads.passthrough()])
        say("training with DNS")
        resolver = Peer("product", product.dns, peer.pid)
        loads.Runner(performance, {"product": resolver}).run(loads.question_loads(quick=True))
        say("training with MCP")
        calls = [*mcp.loads(True, "call", "tools/call", 8), *mcp.loads(True, "list", "tools/list", 1)]
        mcp.McpRunner(performance, {"product": product.peers()[0]}).run(calls)
