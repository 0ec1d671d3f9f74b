"""Compiles the deliberate defects of the tables `mutations_*.py` and runs tests against them, one at a time.

All native defects are in one module: in a copy of the sources, the body of a function that has defects becomes

    { if (di_mutants::defect == 7) { the body with defect 7 } ... the body as it is }

and the process chooses one by the environment variable DI_DEFECT. A defect in Python is a copy of the package with that
line changed. `Runner` is a process that has loaded what every test needs; for each test it forks, and the child loads
the package with the defect.
"""

import fcntl
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = Path(__file__).resolve().parents[1]
SOURCE = PACKAGE / "src" / "di_scheduler"
BUILD = PACKAGE / "build" / "mutants"
GUARD = "defect.hpp"
GUARD_TEXT = """#pragma once
#include <cstdlib>
namespace di_mutants {
inline const int defect = std::getenv("DI_DEFECT") ? std::atoi(std::getenv("DI_DEFECT")) : 0;
}
"""


class MutationError(ValueError):
    """A mutation that does not fit the sources; the message says which and why."""


class Change(NamedTuple):
    """One mutation of a file: its number from 1, and the text that it replaces."""

    number: int
    before: str
    after: str


# Changing C++.

_COMMENT = r"//[^\n]*|/\*.*?\*/"
_STRING = r'"(?:\\.|[^"\\\n])*"'
_CHARACTER = r"(?<![0-9A-Za-z])'(?:\\.|[^'\\\n])*'"  # and no digit separator
_DIRECTIVE = r"^[ \t]*#[^\n]*"
_SKIP = re.compile("|".join((_COMMENT, _STRING, _CHARACTER, _DIRECTIVE)), re.S | re.M)


def blanked(text: str) -> str:
    """The text with comments, strings and directives as spaces, so that every brace left is one of the grammar."""
    return _SKIP.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def function_bodies(text: str) -> list[tuple[int, int]]:
    """(opening brace, closing brace) of every function defined at namespace or class scope."""
    code, bodies = blanked(text), []
    scopes: list[tuple[int, bool]] = []  # (where it opens, whether functions may be defined in it)
    begin = 0  # of the declaration that is being read
    for at, char in enumerate(code):
        if char == "{":
            declaration = code[begin:at]
            outside = all(is_open for _, is_open in scopes)
            is_open = (
                outside and re.search(r"\b(namespace|class|struct|enum|union)\b", declaration) is not None
            )
            is_open = is_open and ")" not in declaration.split(":")[0]
            scopes.append((at, is_open))
        elif char == "}":
            opened, is_open = scopes.pop()
            if (
                not is_open
                and all(parent for _, parent in scopes)
                and ")" in code[begin_of(code, opened) : opened]
            ):
                bodies.append((opened, at))
        if char in "{};":
            begin = at + 1
    return bodies


def begin_of(code: str, opened: int) -> int:
    """Where the declaration starts whose brace opens at `opened`."""
    return max(code.rfind(mark, 0, opened) for mark in "{};") + 1


def mutate(text: str, changes: Sequence[Change], name: str) -> str:
    """The file with all of these defects, each behind its number."""
    bodies = function_bodies(text)
    by_body: dict[tuple[int, int], list[str]] = {}
    for change in changes:
        at = unique(text, change, name)
        inside = [body for body in bodies if body[0] < at and at + len(change.before) <= body[1]]
        if not inside:
            raise MutationError(f"{name}: defect {change.number} is not inside the body of a function")
        opened, closed = inside[0]
        body = text[opened + 1 : at] + change.after + text[at + len(change.before) : closed]
        variant = f" if (di_mutants::defect == {change.number}) {{{body} {ending(text, opened)} }}\n"
        by_body.setdefault(inside[0], []).append(variant)
    for (opened, _), variants in sorted(by_body.items(), reverse=True):
        text = text[: opened + 1] + "".join(variants) + text[opened + 1 :]
    return f'#include "{GUARD}"\n' + text if changes else text


def ending(text: str, opened: int) -> str:
    """What keeps a body from running on into the next variant: functions without a result need it."""
    code = blanked(text)
    head = code[begin_of(code, opened) : opened]
    constructs = re.search(r"^\s*(explicit\s+)?(\w+::)?(\w+)\s*\(", head)
    return "return;" if re.search(r"\bvoid\b\s+[\w:]+\s*\(", head) or constructs else "std::abort();"


def unique(text: str, change: Change, name: str) -> int:
    """Where the text to be replaced stands."""
    count = text.count(change.before)
    if count != 1:
        raise MutationError(f"{name}: {change.before!r} of defect {change.number} occurs {count} times")
    return text.index(change.before)


# Building.


def tools() -> str | None:
    """What is missing to build, or None."""
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        return "cmake and ninja are needed to compile the defects"
    if importlib.util.find_spec("nanobind") is None:
        return "nanobind is needed to compile the defects"
    return None


def build(changes: dict[str, list[Change]]) -> Path:
    """The directory of a package with all native defects; `changes` are by file, relative to this package."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        copy_sources(changes)
        if not (BUILD / "out" / "build.ninja").exists():
            configure()
        run_tool(["ninja", "-C", str(BUILD / "out"), "_native"])
        package = BUILD / "native" / "di_scheduler"
        copy_package(SOURCE, package)
        (module,) = (BUILD / "out").glob("_native*.so")
        write(package / module.name, module.read_bytes())
    return package.parent


def copy_sources(changes: dict[str, list[Change]]) -> None:
    write(BUILD / "csrc" / GUARD, GUARD_TEXT.encode())
    # Compiled once and run for seconds: optimising takes longer than it saves.
    cmake = (PACKAGE / "CMakeLists.txt").read_text().replace("-O2", "-O0")
    write(BUILD / "CMakeLists.txt", cmake.encode())
    wanted = {BUILD / "csrc" / GUARD}
    for path in sorted((PACKAGE / "csrc").rglob("*.[ch]pp")):
        name = path.relative_to(PACKAGE).as_posix()
        wanted.add(BUILD / name)
        write(BUILD / name, mutate(path.read_text(), changes.get(name, []), name).encode())
    for path in set((BUILD / "csrc").rglob("*.[ch]pp")) - wanted:
        path.unlink()


def configure() -> None:
    nanobind = subprocess.run(
        [sys.executable, "-m", "nanobind", "--cmake_dir"], check=True, capture_output=True, text=True
    ).stdout.strip()
    run_tool(
        [
            *("cmake", "-G", "Ninja", "-S", str(BUILD), "-B", str(BUILD / "out")),
            *("-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG="),
            *(f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind}"),
        ]
    )


def run_tool(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise MutationError(f"{' '.join(command)}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def write(path: Path, content: bytes) -> None:
    """Without touching a file that is so already: it would be compiled again."""
    if path.exists() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def copy_package(source: Path, target: Path) -> None:
    for path in source.glob("*.py*"):
        if path.suffix in (".py", ".pyi"):
            write(target / path.name, path.read_bytes())


def patched_package(native: Path, change: Change, file: str) -> Path:
    """The directory of a package with one defect in Python, all else as in `native`."""
    target = BUILD / f"python-{change.number}" / "di_scheduler"
    copy_package(native / "di_scheduler", target)
    name = Path(file).name
    text = (native / "di_scheduler" / name).read_text()
    at = unique(text, change, file)
    changed = text[:at] + change.after + text[at + len(change.before) :]
    write(target / name, changed.encode())
    (module,) = (native / "di_scheduler").glob("_native*.so")
    link = target / module.name
    link.unlink(missing_ok=True)
    link.symlink_to(module)
    return target.parent


# Running.


class Verdict(NamedTuple):
    failed: bool
    output: str


class Runner:
    """A process that runs tests against packages, each test in a child of its own."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).resolve())]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=PACKAGE
        )

    def run(self, package: Path, tests: Sequence[str], defect: int = 0, timeout_s: int = 60) -> Verdict:
        """Whether one of `tests` (node ids relative to this package) fails, or they do not end in time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"package": str(package), "tests": list(tests), "defect": defect, "timeout_s": timeout_s}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        # 0: passed, 1: failed, below 0: killed by a signal; anything else is not about the defect.
        if answer["status"] in (0, 1) or answer["status"] < 0:
            return Verdict(answer["status"] != 0, answer["output"])
        raise MutationError(f"{tests} could not be run (status {answer['status']}):\n{answer['output']}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)


class Redirect(MetaPathFinder):
    """Finds `di_scheduler` in one directory, before any installed one."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def find_spec(
        self, fullname: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != "di_scheduler":
            return None
        return importlib.machinery.PathFinder.find_spec(fullname, path or [self.directory])


def serve() -> None:
    """Answer requests until the input ends."""
    import hypothesis.stateful  # noqa: F401  loaded once for all children
    import numpy as np  # noqa: F401
    import pytest  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        status, output = in_child(request)
        sys.stdout.write(json.dumps({"status": status, "output": output}) + "\n")
        sys.stdout.flush()


def in_child(request: dict[str, Any]) -> tuple[int, str]:
    log = BUILD / "child.log"
    pid = os.fork()
    if pid == 0:
        run_tests(request, log)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), log.read_text(errors="replace")[-3000:]


def run_tests(request: dict[str, Any], log: Path) -> None:
    """In the child. A test that a defect keeps from ending is killed by the alarm, which counts as a failure."""
    import pytest

    with log.open("wb") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    import signal

    signal.alarm(request["timeout_s"])
    os.environ["DI_DEFECT"] = str(request["defect"])
    sys.meta_path.insert(0, Redirect(request["package"]))
    arguments = ["-x", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", "-p", "no:timeout"]
    tests = [str(PACKAGE / test) for test in request["tests"]]
    status = pytest.main([*arguments, *tests])
    sys.stdout.flush()
    os._exit(int(status))


if __name__ == "__main__":
    serve()
