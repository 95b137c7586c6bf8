"""The product's targets. Most are ratios of two figures of the same run, since a ratio depends less on the machine."""

import statistics


def ratio(load, key, denominator, numerator="product"):
    above, below = load.figure(numerator, key), load.figure(denominator, key)
    return None if above is None or not below else above / below


def median_ratio(load, key, peer):
    """The median of the ratios of the rounds. In a round, product and peer are measured one after the other."""
    pairs = zip(load.figures("product", key), load.figures(peer, key))
    ratios = [ours / theirs for ours, theirs in pairs if theirs]
    return statistics.median(ratios) if ratios else None


def rows(loads, facts):
    """The rows of the table: name, measured value, `≤` or `≥`, limit."""
    by_name = {load.name: load for load in loads}

    def against(name, key, peer):
        load = by_name.get(name)
        return load and ratio(load, key, peer)

    def between(name, other):
        ours, theirs = (by_name[load].median("product", "cpu_us_each") for load in (name, other))
        return None if ours is None or not theirs else ours / theirs

    def figure(name, key):
        return by_name[name].figure("product", key)

    rows = []
    for connections, allowed in ((32, 1.3), (256, 1.25)):
        name = f"keep-alive 1 KiB, {connections} connections"
        pairs = by_name[f"{name}, in pairs"]
        rows += [
            (f"CPU each, {name}, × relay", median_ratio(pairs, "cpu_us_each", "relay"), "≤", allowed),
            (f"CPU each, {name}, × nginx", against(name, "cpu_us_each", "nginx"), "≤", 1.0),
        ]
    body, streams = "keep-alive 100 KiB, 32 connections", "HTTP/2, 100 streams on 1 connection"
    rows += [
        (f"CPU each, {body}, × relay", median_ratio(by_name[f"{body}, in pairs"], "cpu_us_each", "relay"), "≤", 1.15),
        (f"CPU each, {body}, × nginx", median_ratio(by_name[body], "cpu_us_each", "nginx"), "≤", 1.0),
        (f"CPU each, {streams}, × nginx", median_ratio(by_name[streams], "cpu_us_each", "nginx"), "≤", 1.0),
    ]
    fixed = next((load for load in loads if "requests/s" in load.name), None)
    rows.append(("p99 at half of nginx's rate, × nginx", fixed and ratio(fixed, "p99_ms", "nginx"), "≤", 1.0))
    tunnels = "new tunnels, 1 host"
    rows += [
        ("CPU of a new tunnel, × nginx", against(tunnels, "cpu_us_each", "nginx"), "≤", 0.80),
        ("rate of new tunnels, × nginx", against(tunnels, "per_second", "nginx"), "≥", 1.0),
        ("CPU of a tunnel to a new host, × a known one", between("new tunnels, each to a new host", tunnels), "≤", 2.0),
        ("CPU per MB, × relay", against("keep-alive 100 MB body, no secret injected, 1 connection", "cpu_us_each", "relay"), "≤", 1.1),
        ("CPU per MB with scrubbing, × relay", against("keep-alive 100 MB body, scrubbed, 1 connection", "cpu_us_each", "relay"), "≤", 1.5),
    ]
    for load in loads:
        if "idle tunnels" in load.name:
            rows.append((f"KiB each, {load.name}", load.figure("product", "kib_each"), "≤", 22))
            rows.append((f"sockets each, {load.name}", load.figure("product", "descriptors_each"), "≤", 1.05))
    rows += [
        ("CPU of a cached DNS answer, × dnsmasq", against("DNS, cached", "cpu_us_each", "dnsmasq"), "≤", 1.0),
        ("CPU of a denied DNS question, × dnsmasq", against("DNS, denied", "cpu_us_each", "dnsmasq"), "≤", 1.0),
        ("CPU of a forwarded DNS question, × unbound without cache",
         against("DNS, forwarded", "cpu_us_each", "unbound, no cache"), "≤", 1.5),
        ("CPU of a unique name, × forwarded", between("DNS, unique", "DNS, forwarded"), "≤", 1.5),
    ]
    slow = next((load for load in loads if "same minute" in load.name), None)
    rows += [
        ("requests/s, × mitmproxy", slow and ratio(slow, "per_second", "mitmproxy"), "≥", 30),
        ("mitmproxy's CPU each, × ours", slow and ratio(slow, "cpu_us_each", "product", "mitmproxy"), "≥", 30),
        ("a container's p99 beside 10,000 denials/s of another, × alone", facts["beside"] / facts["alone"], "≤", 2.0),
        ("p99 in ms with a secret injected, 1 connection", figure("keep-alive 1 KiB, 1 connection", "p99_ms"), "≤", 10),
        ("p99 in ms to a passthrough host", figure("keep-alive 1 KiB to a passthrough host, 32 connections", "p99_ms"), "≤", 50),
        ("s to clone a small repository", facts["clone_s"], "≤", 2),
        ("MiB when idle, no container", facts["empty_mib"], "≤", 20),
        ("MiB when idle, 10,000 containers", facts["idle_mib"], "≤", 20),
        ("ms from start to healthy, 10,000 containers", facts["start_ms"], "≤", 150),
    ]
    return rows
