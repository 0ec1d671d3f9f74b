"""Public operations, one module a family. Numerics follow the element type of the activations:

* bfloat16: the *release* numerics; results are rounded to bfloat16 where the released model rounds.
* float32: the *float32* numerics; no rounding, no activation or cache quantization.

Every operation computes each row of its result from that row's own inputs, in an order fixed by the shape of the
row, so the bits of a row never depend on how many rows, threads or sequences there are.

Every operation raises TypeError for an argument of another kind or element type, ValueError for a shape, a layout or a
value that is not allowed, IndexError for an index outside of what it points into, MemoryError for a result that the
system has no memory for, and
:class:`~di_kernels.errors.KernelUnavailableError` for tensors of a device that has no kernel for it. Messages name the
argument, what it is and what is allowed. A docstring tells what does not follow from its list of arguments.
"""
