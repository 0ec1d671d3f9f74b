"""Benchmarks: what our parts cost, beside a peer measured in the same run."""
