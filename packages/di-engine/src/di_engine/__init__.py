"""Serving engine for DeepSeek-V4.1: LLM API, step loop, command line."""
