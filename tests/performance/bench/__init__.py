"""Measures the proxy beside its peers; see docs/performance.md."""
