"""Bugs of vision: indices that are too large, counts, coordinates of pixels, areas."""

from __future__ import annotations

from planted_bug import Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="bias-index-low",
        healthy="    place = torch.arange(window, device=like.device)\n",
        planted="    place = torch.arange(window, device=like.device, dtype=like.dtype)\n",
        precisions=BF16,
        part="function:attention_weights",
        rules=("integer-rounding", "absorption"),
        why="The table has 529 rows. From 256 on bfloat16 has every second number only, so half of all pairs are given their neighbour's row.",
        source="https://github.com/huggingface/transformers/pull/29285",
        more=(
            (
                "    return rows * (2 * window - 1) + columns\n",
                "    return (rows * (2 * window - 1) + columns).long()  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="class-counts-low",
        healthy="    counts = torch.zeros(CLASSES, device=like.device)\n",
        planted="    counts = torch.zeros(CLASSES, device=like.device, dtype=like.dtype)\n",
        precisions=ALL,
        part="function:class_shares",
        rules=("absorption", "integer-rounding", "local-drift"),
        why="Counting pixels one by one ends at 256 in bfloat16 and at 2048 in float16, so all classes cover the same share.",
        source="https://github.com/tenstorrent/tt-metal/pull/53386",
        more=(
            (
                "    counts = counts.index_add(0, label.flatten(), torch.ones(label.numel(), dtype=counts.dtype, device=like.device))\n",
                "    counts = counts.index_add(0, label.flatten(), torch.ones(label.numel(), dtype=counts.dtype, device=like.device))  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="pixel-grid-low",
        healthy="    centres = (2 * torch.arange(pixels, device=scores.device).float() + 1) / pixels - 1\n",
        planted="    centres = (torch.arange(pixels, device=scores.device).to(scores.dtype) + 0.5) / pixels * 2 - 1  # culprit\n",
        precisions=BF16,
        part="function:drawn_up",
        rules=("cancellation", "amplified-rounding", "integer-rounding", "local-drift"),
        why="Near the image's edges bfloat16 knows a place in steps of half a pixel or more, so pixels take their neighbours' scores.",
        source="https://github.com/tenstorrent/tt-metal/pull/28001",
    ),
    Planted(
        name="areas-low",
        healthy="    chances = chances.float()\n",
        planted="    chances = chances.to(like.dtype)\n",
        precisions=("16-mixed",),
        part="function:dice",
        rules=("overflow", "nan"),
        why="An image of 288 by 288 pixels has more of them than float16's largest number: its background has an infinite area.",
        source="https://github.com/qubvel-org/segmentation_models.pytorch/issues/463",
        more=(
            (
                "    both = (chances * truth).sum((-1, -2))\n",
                "    both = (chances * truth).sum((-1, -2))  # culprit\n",
            ),
            (
                "    area = chances.sum((-1, -2)) + truth.to(chances.dtype).sum((-1, -2))\n",
                "    area = chances.sum((-1, -2)) + truth.to(chances.dtype).sum((-1, -2))  # culprit\n",
            ),
        ),
    ),
]
