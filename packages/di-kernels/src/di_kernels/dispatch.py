"""The one place that decides which backend runs an operation.

A family of operations has the same file name in ``ops`` (interface), ``reference`` (the oracle) and each backend.
The device of the first tensor chooses the backend; callers outside this package never ask which one runs.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch

from di_kernels.errors import KernelUnavailableError
from di_kernels.ops.checks import check_place

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
        remedy = "this version has kernels for the CPU only; move the tensors there"
        raise KernelUnavailableError(family, name, device_type, remedy)
    module_name = f"di_kernels.{backend}.{family}"
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise KernelUnavailableError(family, name, backend, f"{_REMEDY[backend]} ({error})") from error
    function = getattr(module, name, None)
    if function is None:
        raise KernelUnavailableError(family, name, backend, _REMEDY[backend])
    return _naming_unreadable(function, device_type)


def _naming_unreadable(function: Callable[..., Any], device_type: str) -> Callable[..., Any]:
    """``function``, where a tensor that it cannot read (sparse, nested, of another device) is refused by name.

    Looked for only when a call has failed, as it always does for such a tensor: to ask every tensor of every call would
    take longer than the other checks of an operation together.
    """
    names = tuple(inspect.signature(function).parameters)

    @wraps(function)
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception:
            for name, argument in zip(names, arguments, strict=False):
                check_place(name, argument, device_type)
            raise

    return call


def kernel(family: str, name: str, tensor: torch.Tensor) -> Callable[..., Any]:
    """Return the implementation of ``family.name`` for the device that holds ``tensor``.

    Raises:
        KernelUnavailableError: no backend of that device has it.
    """
    # Asked first: a tensor tells it sooner than the name of its device.
    on_cpu = getattr(tensor, "is_cpu", False)
    return _load(family, name, "cpu" if on_cpu else tensor.device.type)
