"""Other engines' models, timed in an environment of their own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from di_engine.benchmark.peers.process import run_peer
from di_engine.benchmark.timing import Timing, summarize_timings

TRANSFORMERS_SCRIPT = Path(__file__).with_name("transformers_decode.py")
LLAMA_CPP_SCRIPT = Path(__file__).with_name("llama_cpp_model.py")


@dataclass(frozen=True, slots=True)
class PeerStep:
    """A step of a peer.

    Attributes:
        peer: its name, version, and what else chooses the arithmetic.
        model: what it is compared with.
        name: decode or prefill.
        tokens: that the step computes.
        step: seconds.
        read: bytes of weights that the step reads; None where that is not known.
        flops: operations that it computes; None likewise.
    """

    peer: str
    model: str
    name: str
    tokens: int
    threads: int
    step: Timing
    read: float | None = None
    flops: float | None = None


def measure_transformers(
    interpreter: Path,
    model: str,
    text: dict[str, Any],
    threads: int,
    prompt: int,
    steps: int,
    script: Path = TRANSFORMERS_SCRIPT,
) -> list[PeerStep]:
    """Decode steps of the DeepSeek-V4 model of transformers at the sizes of a ``text_config``, in each dtype.

    Raises :class:`~di_engine.benchmark.peers.process.PeerError`.
    """
    arguments = ["--threads", str(threads), "--prompt", str(prompt), "--steps", str(steps)]
    found = run_peer(interpreter, script, arguments, text)
    return [
        PeerStep(
            peer=f"transformers {found['version']}, {dtype}",
            model=model,
            name="decode",
            tokens=1,
            threads=threads,
            step=summarize_timings(seconds),
        )
        for dtype, seconds in found["seconds"].items()
    ]


def measure_llama_cpp(
    interpreter: Path,
    model: str,
    token_bytes: int,
    threads: int,
    prompt: int,
    prefill: int,
    steps: int,
    script: Path = LLAMA_CPP_SCRIPT,
) -> list[PeerStep]:
    """Decode steps and prefills of llama.cpp on a model that reads about ``token_bytes`` bytes a token.

    Raises :class:`~di_engine.benchmark.peers.process.PeerError`.
    """
    arguments = ["--bytes", str(token_bytes), "--threads", str(threads), "--prompt", str(prompt)]
    found = run_peer(interpreter, script, [*arguments, "--prefill", str(prefill), "--steps", str(steps)])
    read, flops = found["token_bytes"], found["token_flops"]
    return [
        PeerStep(
            peer=f"llama.cpp (llama-cpp-python {found['version']})",
            model=model,
            name=name,
            tokens=tokens,
            threads=threads,
            step=summarize_timings(found["seconds"][name]),
            read=read if name == "decode" else None,
            flops=flops * tokens,
        )
        for name, tokens in (("decode", 1), ("prefill", prefill))
    ]
