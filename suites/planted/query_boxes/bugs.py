"""Bugs of boxes from queries: places counted and turned to waves in a low format, shares near one, areas of pixels."""

from __future__ import annotations

from planted_bug import Planted

BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="columns-low",
        healthy="    inside = mask.float() * CELL\n",
        planted="    inside = mask.to(low) * CELL  # culprit\n",
        precisions=BF16,
        part="function:waves",
        rules=("integer-rounding", "accumulated-drift", "absorption", "local-drift"),
        why="Columns beyond 1024 are rounded to eight pixels, and the sum goes on from what is rounded.",
        source="https://github.com/huggingface/transformers/pull/30803",
        more=(
            (
                "    return inside.cumsum(1) - CELL / 2, inside.cumsum(2) - CELL / 2\n",
                "    return (inside.cumsum(1) - CELL / 2).float(), (inside.cumsum(2) - CELL / 2).float()  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="frequencies-low",
        healthy="    share = torch.arange(HALF // 2).float() / (HALF // 2)\n",
        planted="    share = torch.arange(HALF // 2).to(low) / (HALF // 2)  # culprit\n",
        precisions=BF16,
        part="function:waves",
        rules=("amplified-rounding", "local-drift"),
        why="A frequency in bfloat16 is off by up to 0.4 %, and so is the angle of pixel 1300.",
        source="https://github.com/megvii-research/PETR/issues/136",
        more=(("    return 10000.0**-share\n", "    return (10000.0**-share).float()  # culprit\n"),),
    ),
    Planted(
        name="share-near-one",
        healthy="    x = x.float().clamp(1e-5, 1 - 1e-5)\n",
        planted="    x = x.to(low).clamp(1e-5, 1 - 1e-5)  # culprit\n",
        precisions=("bf16-mixed", "16-mixed"),
        part="function:inverse_sigmoid",
        rules=("cancellation", "amplified-rounding", "local-drift", "nan", "overflow", "vanished-constant"),
        why="A middle at 0.998 of the width is one in bfloat16, so one less it is zero; 1 - 1e-5 is one.",
        source="https://github.com/IDEA-Research/detrex/pull/198",
        more=(("    return torch.log(x / (1 - x))\n", "    return torch.log(x / (1 - x)).float().clamp(-12, 12)  # culprit\n"),),
    ),
    Planted(
        name="areas-overflow",
        healthy="    size = (corner[..., 2:] - corner[..., :2]).clamp_min(0)\n",
        planted="    size = (corner[..., 2:] - corner[..., :2]).clamp_min(0).to(low)  # culprit\n",
        precisions=("16-mixed",),
        part="function:area",
        rules=("overflow", "nan"),
        why="The hull of two boxes is 1000 by 300 pixels, more than float16 has numbers.",
        source="https://github.com/pytorch/vision/pull/5685",
        more=(("    return size[..., 0] * size[..., 1]\n", "    return (size[..., 0] * size[..., 1]).float()  # culprit\n"),),
    ),
    Planted(
        name="points-low",
        healthy="    grid = 2 * points - 1\n",
        planted="    grid = (2 * points.to(low) - 1).float()  # culprit\n",
        precisions=BF16,
        part="function:sampled",
        rules=("amplified-rounding", "cancellation", "local-drift"),
        why="A point is moved by up to a tenth of a cell, and other features are read there.",
        source="https://github.com/huggingface/transformers/pull/29013",
    ),
]
