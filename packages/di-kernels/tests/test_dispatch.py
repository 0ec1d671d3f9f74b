"""An operation without a kernel says so when it is called: which operation, which backend, what would provide it."""

from __future__ import annotations

import pytest
import torch
from di_kernels import KernelUnavailableError
from di_kernels.dispatch import kernel
from di_kernels.ops.norm import rms_norm


class OnDevice:
    """Stands in for a tensor of a device that this machine need not have."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)


@pytest.mark.parametrize(("device", "backend"), [("cuda", "cuda"), ("privateuseone", "privateuseone")])
def test_a_device_without_kernels_is_named(device: str, backend: str) -> None:
    with pytest.raises(
        KernelUnavailableError, match=f"operation norm.rms_norm has no {backend} kernel: "
    ) as caught:
        kernel("norm", "rms_norm", OnDevice(device))  # type: ignore[arg-type]
    assert (caught.value.family, caught.value.name, caught.value.backend) == ("norm", "rms_norm", backend)


def test_a_call_on_such_a_device_raises() -> None:
    x = torch.empty(2, 4, device="meta")
    with pytest.raises(
        KernelUnavailableError, match="has no meta kernel: this version has kernels for the CPU only"
    ):
        rms_norm(x, torch.ones(4), 1e-6)


def test_an_operation_that_no_backend_has_is_named() -> None:
    with pytest.raises(KernelUnavailableError, match=r"operation norm\.softmax has no cpu kernel"):
        kernel("norm", "softmax", torch.empty(0))
