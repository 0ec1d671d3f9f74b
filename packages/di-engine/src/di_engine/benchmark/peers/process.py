"""Running a peer's script in the interpreter of the environment it is installed in."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from di_engine.benchmark.timing import Timing, summarize_timings

VLLM_SCRIPT = Path(__file__).with_name("vllm_scheduler.py")
DEADLINE_S = 570.0


class PeerError(RuntimeError):
    """The peer could not be measured; the message says what its script said last."""


@dataclass(frozen=True, slots=True)
class PeerTimings:
    """A peer's scheduler: the same step as our case ``decode``."""

    name: str
    version: str
    steps: dict[int, Timing]
    """By the number of running requests: seconds a step."""


def vllm_interpreter() -> Path | None:
    """This interpreter when vLLM is installed in its environment, else None. Imports nothing."""
    return Path(sys.executable) if importlib.util.find_spec("vllm") is not None else None


def measure_vllm(
    interpreter: Path, running: Sequence[int], steps: int, script: Path = VLLM_SCRIPT
) -> PeerTimings:
    """Run vLLM's scheduler under ``interpreter``. Raises :class:`PeerError`."""
    found = run_peer(interpreter, script, ["--steps", str(steps), "--running", *map(str, running)])
    timings = {int(count): summarize_timings(seconds) for count, seconds in found["seconds"].items()}
    return PeerTimings("vLLM", found["version"], timings)


def run_peer(
    interpreter: Path, script: Path, arguments: Sequence[str], given: object = None
) -> dict[str, Any]:
    """What a peer's script wrote, with ``given`` as JSON on its stdin. Raises :class:`PeerError`."""
    # The script is no module of ours there: our path must not leak into the other environment.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(
            [str(interpreter), str(script), *arguments],
            capture_output=True,
            text=True,
            input=json.dumps(given),
            timeout=DEADLINE_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"{interpreter}: not finished within {DEADLINE_S:g} s") from error
    except OSError as error:
        raise PeerError(f"{interpreter}: {error.strerror}") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise PeerError(f"{interpreter}: exit code {done.returncode}: {last}")
    try:
        found = json.loads(done.stdout)
    except ValueError as error:
        raise PeerError(f"{interpreter}: {script.name} wrote no JSON object: {error}") from error
    if not isinstance(found, dict):
        raise PeerError(f"{interpreter}: {script.name} wrote no JSON object")
    return found
