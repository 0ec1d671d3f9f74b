"""Tensor operations of DeepSeek-V4.1: number formats, reference formulas and CPU kernels."""
