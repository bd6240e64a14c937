"""Bugs of learning from samples: sums of squares of 16 bits, lengths and places rounded, a guard that vanishes."""

from __future__ import annotations

from planted_bug import Planted

BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="squares-overflow",
        healthy="    spread = apart.square().sum(-1, keepdim=True) / count\n",
        planted="    spread = apart.to(low).square().sum(-1, keepdim=True).float() / count  # culprit\n",
        precisions=("16-mixed",),
        part="function:normalised",
        rules=("overflow", "nan"),
        why="The square of a sample of 700 is beyond float16, so is the sum, and the sound is divided by infinity.",
        source="https://github.com/vadimkantorov/convasr/pull/73",
    ),
    Planted(
        name="variance-by-moments",
        healthy="    spread = apart.square().sum(-1, keepdim=True) / count\n",
        planted="    second = ((wave * valid).to(low).square().sum(-1, keepdim=True) / count).to(low)  # culprit\n",
        precisions=BF16,
        part="function:normalised",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="With an offset of 4000 the mean of squares and the square of the mean lose most of their digits to each other.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
        more=(
            (
                "    return apart / torch.sqrt(spread + 1e-5)\n",
                "    spread = (second - mean.to(low).square()).float()  # culprit\n    return apart / torch.sqrt(spread + 1e-5)\n",
            ),
        ),
    ),
    Planted(
        name="lengths-low",
        healthy='    return torch.div(lengths - KERNEL, STRIDE, rounding_mode="floor") + 1\n',
        planted="    return torch.floor((lengths.to(low) - KERNEL) / STRIDE + 1).long()  # culprit\n",
        precisions=BF16,
        part="result",
        rules=("integer-rounding", "decision-flip"),
        why="Lengths beyond 4096 are rounded to 32 samples, which is more than a frame.",
        source="https://github.com/huggingface/transformers/issues/28685",
    ),
    Planted(
        name="starts-low",
        healthy="    return (chances.float() * (frames - SPAN).unsqueeze(-1)).long()\n",
        planted="    return (chances.to(low) * (frames - SPAN).to(low).unsqueeze(-1)).long()  # culprit\n",
        precisions=("bf16-mixed",),
        part="result",
        rules=("integer-rounding", "decision-flip"),
        why="A start of 200 is rounded to a whole number before its fraction is cut, and frames beyond 256 are even.",
        source="https://github.com/modelscope/DiffSynth-Studio/issues/562",
    ),
    Planted(
        name="guard-vanishes",
        healthy="    x, units = x.float(), units.float()\n",
        planted="    x, units = x.to(low), units.to(low)  # culprit\n",
        precisions=("16-mixed",),
        part="function:likeness",
        rules=("vanished-constant", "nan"),
        why="A hundred-millionth is zero in float16, and padding is zero by zero.",
        source="https://github.com/lightonai/pylate/issues/239",
        more=(
            (
                "    x = x / (x.norm(dim=-1, keepdim=True) + 1e-8)\n",
                "    x = x / (x.norm(dim=-1, keepdim=True) + 1e-8)  # culprit\n",
            ),
            (
                "    units = units / (units.norm(dim=-1, keepdim=True) + 1e-8)\n",
                "    units = units / (units.norm(dim=-1, keepdim=True) + 1e-8)  # culprit\n",
            ),
        ),
    ),
]
