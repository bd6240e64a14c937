"""`python suites/architectures/random_options.py 0 100 --lines FILE`: models of x-transformers with options that nobody chose, one for each seed.

`pip install x-transformers` first. Each has three to seven options of its layers, its attention and its feed-forward part, and up to two of the whole
model. What x-transformers does not build, or does not run in float32, is left out. `FILE` gets a line of JSON for each run.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from sweep import PATIENCE, PRECISIONS, _late, judged, told
from tiny import Built

LAYERS: dict[str, Any] = {"num_residual_streams": 2, "sandwich_coef": 2, "shift_tokens": 1, "pre_norm": False, "norm_add_unit_offset": False}
LAYERS |= dict.fromkeys(
    "use_scalenorm use_rmsnorm use_dynamic_tanh use_derf use_simple_rmsnorm alibi_pos_bias rel_pos_bias dynamic_pos_bias rotary_pos_emb rotary_xpos "
    "polar_pos_emb weight_tie_layers residual_attn macaron pre_and_post_norm gate_residual orthog_residual mv_split_residual gated_multi_residual "
    "scale_residual depth_scale_residual sandwich_norm softclamp_output use_layerscale unet_skips integrate_layers reinject_input "
    "add_value_residual attn_aggregated_residuals".split(), True
)  # fmt: skip
ATTENTION: dict[str, Any] = {"attn_sparse_topk": 6, "attn_num_mem_kv": 4} | {
    f"attn_{name}": True
    for name in "pre_talking_heads post_talking_heads head_scale on_attn gate_value_heads swiglu_values gate_values output_gate qk_norm qk_rmsnorm "
    "k_rmsnorm value_rmsnorm l2_distance sigmoid selective cog_signed one_kv_head add_zero_kv head_learned_sink data_dependent_alibi "
    "use_rel_proj_pos_bias use_cope softclamp_logits orthog_projected_values laser flash qk_norm_dim_scale inverted_attention".split()
}
FEED_FORWARD = {f"ff_{name}": True for name in "glu swish relu_squared post_act_ln no_bias solu".split()}
WHOLE: dict[str, Any] = {"num_memory_tokens": 4, "use_abs_pos_emb": False} | dict.fromkeys(
    "scaled_sinu_pos_emb l2norm_embed recycling looped tie_embedding post_emb_norm mixture_of_softmax sigsoftmax_logits ff_deep_embed".split(), True
)


class WithLoss(torch.nn.Module):
    """A model that returns its loss, as those of transformers do."""

    def __init__(self, model: torch.nn.Module, labels: torch.Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("labels", labels)

    def forward(self, ids: torch.Tensor) -> Any:
        out = self.model(ids)
        self.loss = torch.nn.functional.cross_entropy((out[0] if isinstance(out, tuple) else out).float().flatten(0, 1), self.labels.flatten())
        return self


def built(seed: int) -> Built:
    """The model of that seed. Its name says its options."""
    from x_transformers import Decoder, Encoder, TransformerWrapper

    draw = random.Random(seed)
    options = dict(draw.sample(list((LAYERS | ATTENTION | FEED_FORWARD).items()), draw.randint(3, 7)))
    whole = dict(draw.sample(list(WHOLE.items()), draw.randint(0, 2)))
    kind = Decoder if draw.random() < 0.7 else Encoder
    name = " ".join([str(seed), kind.__name__, *options, *whole])
    torch.manual_seed(seed)
    ids = torch.randint(0, 64, (2, draw.choice((16, 32, 64))))
    try:
        layers = kind(dim=48, depth=draw.choice((2, 3, 4)), heads=4, attn_dim_head=12, verbose=False, **options)
        model = WithLoss(TransformerWrapper(num_tokens=64, max_seq_len=64, attn_layers=layers, **whole), ids.roll(-1, 1))
        model(ids).loss.backward()
        model.zero_grad(set_to_none=True)
    except Exception as error:  # options that exclude each other
        return Built(name, None, why=f"{type(error).__name__}: {error}".splitlines()[0][:120])
    return Built(name, model, {"ids": ids})


def main() -> int:
    """1 where a model is accused."""
    parser = argparse.ArgumentParser(prog="python suites/architectures/random_options.py", description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int)
    parser.add_argument("--lines", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _late)
    lines = []
    for seed in range(asked.first, asked.end):
        given = built(seed)
        for precision in PRECISIONS if given.model is not None else ():
            signal.alarm(PATIENCE)
            lines.append(judged(given, precision))
            signal.alarm(0)
            with asked.lines.open("a", encoding="utf8") as file:
                file.write(json.dumps(lines[-1]) + "\n")
    return told(lines)


if __name__ == "__main__":
    sys.exit(main())
