"""The one place that decides which backend runs an operation.

A family of operations has the same file name in ``ops`` (interface), ``reference`` (the oracle) and each backend.
The device of the first tensor chooses the backend; callers outside this package never ask which one runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from di_kernels.errors import KernelUnavailableError

BACKEND_OF_DEVICE = {"cpu": "cpu", "cuda": "cuda", "npu": "asc"}
_REMEDY = {
    "cpu": "reinstall di-kernels with a C++ compiler present, so that its native module is built",
    "cuda": "the CUDA backend of di-kernels is not part of this version; move the tensors to the CPU",
    "asc": "the Ascend backend of di-kernels is not part of this version; move the tensors to the CPU",
}


@cache
def _load(family: str, name: str, device_type: str) -> Callable[..., Any]:
    backend = BACKEND_OF_DEVICE.get(device_type)
    if backend is None:
        raise KernelUnavailableError(
            family, name, device_type, f"supported devices: {', '.join(BACKEND_OF_DEVICE)}"
        )
    module_name = f"di_kernels.{backend}.{family}"
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise KernelUnavailableError(family, name, backend, f"{_REMEDY[backend]} ({error})") from error
    function = getattr(module, name, None)
    if function is None:
        raise KernelUnavailableError(family, name, backend, _REMEDY[backend])
    return function  # type: ignore[no-any-return]


def kernel(family: str, name: str, tensor: torch.Tensor) -> Callable[..., Any]:
    """Return the implementation of ``family.name`` for the device that holds ``tensor``.

    Raises:
        KernelUnavailableError: no backend of that device has it.
    """
    # Asked first: a tensor tells it sooner than the name of its device.
    on_cpu = getattr(tensor, "is_cpu", False)
    return _load(family, name, "cpu" if on_cpu else tensor.device.type)
