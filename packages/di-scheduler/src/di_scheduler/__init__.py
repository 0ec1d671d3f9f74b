"""Continuous-batching request scheduler in C++20, independent of any tensor library."""
