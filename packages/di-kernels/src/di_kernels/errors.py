"""Typed errors of the package."""


class KernelUnavailableError(RuntimeError):
    """An operation was called that the chosen backend does not provide.

    Raised when the operation is *called*, never at import, and names the operation, the backend and what would
    provide it.
    """

    def __init__(self, family: str, name: str, backend: str, remedy: str) -> None:
        super().__init__(family, name, backend, remedy)
        self.family, self.name, self.backend, self.remedy = family, name, backend, remedy

    def __str__(self) -> str:
        return f"operation {self.family}.{self.name} has no {self.backend} kernel: {self.remedy}"
