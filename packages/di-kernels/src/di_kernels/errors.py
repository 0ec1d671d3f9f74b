"""Typed errors of the package."""


class KernelUnavailableError(RuntimeError):
    """An operation was called that the chosen backend does not provide.

    Raised when the operation is *called*, never at import, and names the operation, the backend and what would
    provide it.
    """

    def __init__(self, family: str, name: str, backend: str, remedy: str) -> None:
        super().__init__(f"operation {family}.{name} has no {backend} kernel: {remedy}")
        self.family, self.name, self.backend = family, name, backend
