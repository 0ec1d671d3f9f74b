"""The workspace holds together: layering, versions, pins, licences, documents."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("di-kernels", "di-cache", "di-scheduler", "di-model", "di-spec", "di-engine")


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _metadata(package: str) -> dict[str, object]:
    return tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())["project"]


def test_imports_point_down_only() -> None:
    assert list(_script("check_imports").violations()) == []


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("di_kernels", "from di_cache import CachePool"),
        ("di_cache", "def f():\n    import di_model.config"),
        ("di_scheduler", "import torch"),
        ("di_model", "from di_engine.llm import LLM"),
    ],
)
def test_an_upward_import_is_found(
    package: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = _script("check_imports")
    for name in check.ALLOWED:
        source = tmp_path / "packages" / name.replace("_", "-") / "src" / name
        source.mkdir(parents=True)
        (source / "__init__.py").write_text(line if name == package else "")
    monkeypatch.setattr(check, "ROOT", tmp_path)
    found = list(check.violations())
    assert len(found) == 1
    assert f"{package} may not import" in found[0]


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_complete(package: str) -> None:
    folder = ROOT / "packages" / package
    for name in (
        "README.md",
        "CHANGELOG.md",
        "pyproject.toml",
        "tests",
        f"src/{package.replace('-', '_')}/py.typed",
    ):
        assert (folder / name).exists(), f"{package} lacks {name}"
    module = importlib.import_module(package.replace("-", "_"))
    project = _metadata(package)
    assert project["requires-python"] == ">=3.11,<3.14"
    assert getattr(module, "__version__", project["version"]) == project["version"]


@pytest.mark.parametrize("package", PACKAGES)
def test_metadata_keeps_ranges_and_pins_stay_in_one_file(package: str) -> None:
    pins = {
        line.split("==")[0]: line.split("==")[1]
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    dependencies = _metadata(package)["dependencies"]
    assert isinstance(dependencies, list)
    for requirement in dependencies:
        name = re.split(r"[<>=~!\[; ]", requirement)[0]
        assert "==" not in requirement, f"{package} pins {requirement}"
        assert ">=" in requirement, f"{package} does not say which {name} it needs at least"
        assert name in pins or name in PACKAGES, f"{name} has no pin in constraints.txt"


def test_python_is_a_supported_one() -> None:
    assert (3, 11) <= sys.version_info[:2] <= (3, 13)


def test_documents_link_to_files_that_exist() -> None:
    documents = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("packages/*/*.md")]
    for document in documents:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.relative_to(ROOT)} links to {target}"


FIELD_REPORTS = (1, 2, 7, 10, 13, 14, 19, 22, 23, 25, 26, 28, 29, 46, 47, 64, 65, 68)
"""Faults of other engines that the parts built so far must not have; see the tests that name them."""


@pytest.mark.parametrize("number", FIELD_REPORTS)
def test_a_field_report_has_its_test(number: int) -> None:
    named = re.compile(rf"(?<![A-Za-z0-9])[Rr]{number}(?![0-9])")
    tests = list(ROOT.glob("packages/*/tests/test_*.py"))
    assert any(named.search(path.read_text()) for path in tests), f"no test names field report R{number}"
