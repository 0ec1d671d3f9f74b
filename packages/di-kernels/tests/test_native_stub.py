"""The stub of the native module names what the module has, so that mypy checks every call of it."""

from __future__ import annotations

import ast
from pathlib import Path

import di_kernels
from di_kernels import _native


def test_the_stub_and_the_module_have_the_same_names() -> None:
    tree = ast.parse((Path(di_kernels.__file__).parent / "_native.pyi").read_text())
    stub = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    stub |= {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}  # type: ignore[union-attr]
    module = {name for name in dir(_native) if not name.startswith("_")}
    assert stub - {"_Weight"} == module
