"""llama.cpp on a mixture-of-experts model with MXFP4 experts, timed like ours: decode steps and prefills.

A script of its own that imports nothing of ours, so that it runs in the interpreter of an environment with what
``benchmarks/peers/requirements-models.txt`` names. It writes a model with random weights (ordinary attention in Q8_0,
experts in MXFP4, the format of the release's experts) that reads about ``--bytes`` bytes a token, and one JSON object:
the version, bytes and operations a token, and the seconds of every step.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HEAD_DIM = 128
GROUP = 32
"""Weights that share a scale, in both formats."""
MXFP4_BYTES, Q8_BYTES = 17, 34
WARM_UP_STEPS = 4


@dataclass(frozen=True)
class Sizes:
    """Of the model; ``used`` of ``experts`` experts for each token."""

    layers: int
    hidden: int = 1024
    inter: int = 256
    experts: int = 32
    used: int = 5
    vocab: int = 16384
    heads: int = 16
    kv_heads: int = 4

    def attention_shapes(self) -> dict[str, tuple[int, int]]:
        """Projections of a layer, [outputs, inputs]."""
        width, kv = self.heads * HEAD_DIM, self.kv_heads * HEAD_DIM
        return {
            "attn_q": (width, self.hidden),
            "attn_k": (kv, self.hidden),
            "attn_v": (kv, self.hidden),
            "attn_output": (self.hidden, width),
        }

    def layer_weights(self) -> tuple[int, int, int]:
        """Weights that a token meets in a layer: in Q8_0, in MXFP4, in float32."""
        attention = sum(n * k for n, k in self.attention_shapes().values())
        return attention, self.used * 3 * self.hidden * self.inter, self.experts * self.hidden

    def layer_bytes(self) -> float:
        """Bytes of them."""
        attention, experts, router = self.layer_weights()
        return attention * Q8_BYTES / GROUP + experts * MXFP4_BYTES / GROUP + 4 * router

    def head_bytes(self) -> float:
        """Bytes of the output head."""
        return self.vocab * self.hidden * Q8_BYTES / GROUP

    def token_bytes(self) -> float:
        """Weights that a token reads."""
        return self.layers * self.layer_bytes() + self.head_bytes()

    def token_flops(self) -> float:
        """Two for each weight that a token meets in the layers; a prefill computes the head once."""
        return 2.0 * self.layers * sum(self.layer_weights())


def sizes_for(token_bytes: float) -> Sizes:
    """With as many layers as come closest to that many bytes a token."""
    one = Sizes(layers=1)
    return Sizes(layers=max(1, round((token_bytes - one.head_bytes()) / one.layer_bytes())))


def write_model(path: Path, sizes: Sizes) -> None:
    """A GGUF file with random weights."""
    import gguf  # type: ignore[import-not-found, import-untyped, unused-ignore]

    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(str(path), "qwen3moe")
    writer.add_block_count(sizes.layers)
    writer.add_context_length(4096)
    writer.add_embedding_length(sizes.hidden)
    writer.add_feed_forward_length(sizes.inter)
    writer.add_expert_feed_forward_length(sizes.inter)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_expert_count(sizes.experts)
    writer.add_expert_used_count(sizes.used)
    writer.add_vocab_size(sizes.vocab)
    writer.add_tokenizer_model("no_vocab")
    q8, mxfp4 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.MXFP4

    def add(name: str, shape: tuple[int, ...], kind: Any) -> None:
        groups = int(np.prod(shape)) // GROUP
        size = Q8_BYTES if kind is q8 else MXFP4_BYTES
        data = rng.integers(0, 256, (groups, size), dtype=np.uint8)
        if kind is q8:
            data[:, :2] = np.frombuffer(np.float16(2.0**-12).tobytes(), np.uint8)
        else:
            data[:, 0] = 120
        writer.add_tensor(name, data.reshape(*shape[:-1], shape[-1] // GROUP * size), raw_dtype=kind)

    def ones(name: str, size: int) -> None:
        writer.add_tensor(name, np.ones(size, np.float32))

    add("token_embd.weight", (sizes.vocab, sizes.hidden), q8)
    add("output.weight", (sizes.vocab, sizes.hidden), q8)
    ones("output_norm.weight", sizes.hidden)
    for layer in range(sizes.layers):
        prefix = f"blk.{layer}"
        for name, shape in sizes.attention_shapes().items():
            add(f"{prefix}.{name}.weight", shape, q8)
        for name in ("attn_norm", "ffn_norm"):
            ones(f"{prefix}.{name}.weight", sizes.hidden)
        for name in ("attn_q_norm", "attn_k_norm"):
            ones(f"{prefix}.{name}.weight", HEAD_DIM)
        router = rng.standard_normal((sizes.experts, sizes.hidden)).astype(np.float32) * 0.02
        writer.add_tensor(f"{prefix}.ffn_gate_inp.weight", router)
        for name in ("ffn_gate_exps", "ffn_up_exps"):
            add(f"{prefix}.{name}.weight", (sizes.experts, sizes.inter, sizes.hidden), mxfp4)
        add(f"{prefix}.ffn_down_exps.weight", (sizes.experts, sizes.hidden, sizes.inter), mxfp4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Engine:
    """A model in llama.cpp, through its C interface."""

    def __init__(self, path: Path, threads: int, context: int) -> None:
        import llama_cpp  # type: ignore[import-not-found, unused-ignore]

        self._api: Any = llama_cpp
        self._quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = context, 512, 512
        params.n_threads = params.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError("llama.cpp does not load the model")

    def forget(self) -> None:
        """Empty the cache."""
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), True)

    def run(self, tokens: list[int]) -> float:
        """Compute tokens behind the cached ones; seconds."""
        array = (self._api.llama_token * len(tokens))(*tokens)
        start = time.perf_counter()
        failed = self._api.llama_decode(self._context, self._api.llama_batch_get_one(array, len(tokens)))
        self._api.llama_synchronize(self._context)
        seconds = time.perf_counter() - start
        if failed:
            raise RuntimeError(f"llama_decode failed: {failed}")
        return seconds


def measure(engine: Engine, vocab: int, prompt: int, prefill: int, steps: int) -> dict[str, list[float]]:
    """Seconds of ``steps`` decode steps behind a prompt, and of as many prefills."""
    drawn = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [drawn.randrange(vocab) for _ in range(count)]

    def prefilled() -> float:
        engine.forget()
        return engine.run(tokens(prefill))

    engine.run(tokens(prompt))
    calls: dict[str, Callable[[], float]] = {"decode": lambda: engine.run(tokens(1)), "prefill": prefilled}
    return {
        name: [call() for _ in range(WARM_UP_STEPS + steps)][WARM_UP_STEPS:] for name, call in calls.items()
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure and write the result to stdout."""
    parser = argparse.ArgumentParser(description="Time llama.cpp.")
    parser.add_argument("--bytes", type=float, required=True, help="bytes that a token should read")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args(arguments)
    result = os.dup(1)
    os.dup2(2, 1)  # what the library itself prints goes to stderr
    import llama_cpp

    sizes = sizes_for(options.bytes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.gguf")
        write_model(path, sizes)
        engine = Engine(path, options.threads, max(1024, options.prompt + options.steps + 64))
        seconds = measure(engine, sizes.vocab, options.prompt, options.prefill, options.steps)
    found = {
        "version": llama_cpp.__version__,
        "token_bytes": sizes.token_bytes(),
        "token_flops": sizes.token_flops(),
        "seconds": seconds,
    }
    os.write(result, (json.dumps(found) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
