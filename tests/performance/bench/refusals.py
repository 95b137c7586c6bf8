"""The effect of one container's denials on the latency of another container."""

import statistics

QUIET = ["keep-alive", "--connections", 8, "--rate", 500, "--source", "127.0.0.1"]
FLOOD = ["denials", "--connections", 16, "--rate", 10_000, "--source", "127.0.0.2"]
SECONDS = 2.0


def measure(runner, product, rounds):
    """The median p99 of a quiet container, alone and beside a flood of denials."""
    alone, beside = [], []
    for _ in range(rounds):
        alone.append(runner.load(product, QUIET, SECONDS)["p99_ms"])
        flood = runner.begin(product, FLOOD, SECONDS + 1)
        beside.append(runner.load(product, QUIET, SECONDS)["p99_ms"])
        runner.finish(flood, product.name)
    return {"alone": statistics.median(alone), "beside": statistics.median(beside)}
