"""Sampling, logprobs, stop conditions and incremental detokenisation."""
