"""Bugs of decoders with rotary positions."""

from __future__ import annotations

from planted_bug import Planted

BUGS = [
    Planted(
        name="rope-positions-low",
        healthy="        angles = positions.float()[:, None] * frequencies\n",
        planted="        angles = (positions.to(dtype)[:, None] * frequencies).float()  # culprit\n",
        precisions=("bf16-true",),
        part="function:rotary_table.0",
        rules=("integer-rounding", "amplified-rounding"),
        why="Positions above 256 are no bfloat16 numbers, so neighbours share one. The model cannot tell them apart in a long text.",
        source="https://github.com/huggingface/transformers/pull/28760",
    ),
]
