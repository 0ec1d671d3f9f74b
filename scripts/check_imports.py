#!/usr/bin/env python3
"""Imports point down only: fail when a package imports one that stands above it (ARCHITECTURE, section 2)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = {
    "di_kernels": set(),
    "di_cache": {"di_kernels"},
    "di_scheduler": set(),
    "di_model": {"di_kernels", "di_cache"},
    "di_spec": {"di_kernels", "di_cache", "di_model"},
    "di_engine": {"di_kernels", "di_cache", "di_scheduler", "di_model", "di_spec"},
}
NO_TORCH = {"di_scheduler"}


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and top-level name of every import of a file, whatever block it stands in."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.split(".")[0]


def violations() -> Iterator[str]:
    """One line for each import that points up."""
    for package, below in ALLOWED.items():
        source = ROOT / "packages" / package.replace("_", "-") / "src" / package
        files = sorted(source.rglob("*.py")) + sorted(source.rglob("*.pyi"))
        if not files:
            yield f"{source.relative_to(ROOT)}: no sources found"
        for path in files:
            for line, name in imported(path):
                above = name in ALLOWED and name != package and name not in below
                if above or (package in NO_TORCH and name == "torch"):
                    yield f"{path.relative_to(ROOT)}:{line}: {package} may not import {name}"


def main() -> int:
    """Print what is wrong and return the exit status."""
    found = list(violations())
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
