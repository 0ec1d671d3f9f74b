"""Errors of the engine. Those about input name the field, its value and what is allowed."""

from __future__ import annotations

from di_kernels.errors import shown


class EngineConfigError(ValueError):
    """A setting of the engine is out of range or contradicts the model, the machine or another setting."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(field, value, allowed)
        self.field, self.value, self.allowed = field, value, allowed

    def __str__(self) -> str:
        return f"{self.field}: got {shown(self.value)}, allowed: {self.allowed}"


class RequestError(ValueError):
    """A request was refused at the door; nothing of it is left in the engine.

    ``field`` is the part of the request at fault: ``request_id``, ``prompt``, ``params``, ``options`` or a
    field of :class:`~di_spec.SamplingParams`.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(field, message)
        self.field, self.message = field, message

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class EngineClosedError(RuntimeError):
    """The engine was used after ``close()``."""

    def __str__(self) -> str:
        return "the engine is closed"


class EngineBusyError(RuntimeError):
    """``step()`` was called while another call of it was going on, in another thread or in the drafter."""

    def __str__(self) -> str:
        return "step() was called while another call of it is going on; allowed: one thread at a time"


class ForkedProcessError(RuntimeError):
    """The device thread was used in a forked child, which has no such thread."""

    def __str__(self) -> str:
        return "the device thread stayed in the parent of this forked process; make the engine after the fork"


class StepTimeoutError(TimeoutError):
    """The device did not deliver within the time allowed."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(what, seconds)
        self.what, self.seconds = what, seconds

    def __str__(self) -> str:
        return f"waited {self.seconds:g} s for {self.what}"
