"""The DeepSeek-V4 model of ``transformers``, timed like ours: decode steps with a cache, random weights.

A script of its own that imports nothing of ours, so that it runs in the interpreter of an environment with what
``benchmarks/peers/requirements-models.txt`` names. Sizes come as JSON on stdin: keys of ``text_config`` of a V4.1
checkpoint. It writes one JSON object: the version and, for each dtype, the seconds of every decode step.

V4 has no layers of ratio 1 or 2 and no Engram; a compressed layer of ours is one of its ratio 4, everything else has
the same sizes.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import sys
import time
from typing import Any

WARM_UP_STEPS = 4
SAME = (
    "vocab_size",
    "hidden_size",
    "moe_intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "q_lora_rank",
    "o_lora_rank",
    "o_groups",
    "num_experts_per_tok",
    "n_routed_experts",
    "n_shared_experts",
    "max_position_embeddings",
    "hc_mult",
    "hc_sinkhorn_iters",
    "swiglu_limit",
    "sliding_window",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
)
"""Keys that mean the same in both configurations."""


def build_model(text: dict[str, Any], dtype: str) -> Any:
    """A model of those sizes."""
    import torch
    from transformers import DeepseekV4Config, DeepseekV4ForCausalLM  # type: ignore[import-not-found, unused-ignore]

    ratios = text["compress_ratios"][: text["num_hidden_layers"]]
    config = DeepseekV4Config(
        **{name: text[name] for name in SAME},
        layer_types=["compressed_sparse_attention" if ratio else "sliding_attention" for ratio in ratios],
        mlp_layer_types=["moe"] * text["num_hidden_layers"],
        partial_rotary_factor=text["qk_rope_head_dim"] / text["head_dim"],
        num_nextn_predict_layers=0,
        pad_token_id=2,
    )
    torch.manual_seed(0)
    return DeepseekV4ForCausalLM(config).to(getattr(torch, dtype)).eval()


def measure(text: dict[str, Any], dtype: str, prompt: int, steps: int) -> list[float]:
    """Seconds of each decode step of one sequence."""
    import torch

    model = build_model(text, dtype)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, text["vocab_size"], (1, prompt), generator=generator)
    seconds = []
    with torch.inference_mode():
        out = model(input_ids=tokens, use_cache=True, logits_to_keep=1)
        gc.collect()
        gc.disable()
        for step in range(WARM_UP_STEPS + steps):
            start = time.perf_counter()
            tokens = out.logits[:, -1].argmax(-1, keepdim=True)
            out = model(
                input_ids=tokens, past_key_values=out.past_key_values, use_cache=True, logits_to_keep=1
            )
            if step >= WARM_UP_STEPS:
                seconds.append(time.perf_counter() - start)
        gc.enable()
    return seconds


def main(arguments: list[str] | None = None) -> int:
    """Measure and write the result to stdout; everything else goes to stderr."""
    parser = argparse.ArgumentParser(description="Time the DeepSeek-V4 model of transformers.")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    options = parser.parse_args(arguments)
    text = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        import torch
        import transformers  # type: ignore[import-not-found, unused-ignore]

        torch.set_num_threads(options.threads)
        seconds = {dtype: measure(text, dtype, options.prompt, options.steps) for dtype in options.dtypes}
    sys.stdout.write(json.dumps({"version": transformers.__version__, "seconds": seconds}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
