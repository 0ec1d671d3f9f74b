"""What ``di bench kernels`` measures, a module a family of operations."""
