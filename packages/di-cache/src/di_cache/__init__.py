"""Paged KV cache and per-sequence state of DeepSeek-V4.1: layouts, pools, slot maps."""
