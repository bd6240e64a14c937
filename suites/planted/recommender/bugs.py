"""Bugs of recommenders: long bags, popular items, a factorisation machine's difference of squares, rare events, tiny shares."""

from __future__ import annotations

from planted_bug import Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BFLOAT = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="bag-sum-low",
        healthy="    rows = rows.float()\n    return torch.zeros(USERS, dtype=rows.dtype, device=rows.device).index_add(0, user, rows[:, column])\n",
        planted="    return torch.zeros(USERS, dtype=rows.dtype, device=rows.device).index_add(0, user, rows[:, column])  # culprit\n",
        precisions=ALL,
        part="function:bag_means",
        rules=("absorption", "local-drift", "accumulated-drift"),
        why="The sum over a history of two thousand items is rounded after each: beyond 256 bfloat16 moves by 2, and an item adds 0.5. The heaviest "
        "users' profiles are a fraction of what they should be.",
        source="https://github.com/rusty1s/pytorch_scatter/issues/269",
    ),
    Planted(
        name="interactions-low",
        healthy="        fields = fields.float()\n"
        "        of_sum = fields.sum(1) * fields.sum(1)\n"
        "        return 0.5 * (of_sum - (fields * fields).sum(1))\n",
        planted="        of_sum = fields.sum(1) * fields.sum(1)\n        return 0.5 * (of_sum - (fields * fields).sum(1))  # culprit\n",
        precisions=ALL,
        part="function:interactions",
        rules=("cancellation", "amplified-rounding", "accumulated-drift"),
        why="One field is much larger than the others, so the square of the sum and the sum of the squares are nearly "
        "equal, and their difference in a "
        "low format has few right digits.",
        source="https://github.com/meta-recsys/generative-recommenders/pull/259",
    ),
    Planted(
        name="share-eps-low",
        healthy="        share = counts.float() / INTERACTIONS\n        return torch.log(share + 1e-12)\n",
        planted="        share = (counts.float() / INTERACTIONS).to(like.dtype)  # culprit\n"
        "        return torch.log(share + 1e-12).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:log_frequencies",
        rules=("underflow", "vanished-constant", "overflow", "nan"),
        why="Most items are less than one in ten million interactions, which float16 stores as 0, and so it does the 1e-12 "
        "that keeps the logarithm finite.",
        source="https://github.com/tensorflow/recommenders/pull/441",
    ),
    Planted(
        name="seen-counts-low",
        healthy="    ones = torch.ones(len(items), dtype=torch.float32, device=like.device)\n"
        "    return torch.zeros(ITEMS, dtype=ones.dtype, device=like.device).index_add(0, items, ones).float()\n",
        planted="    ones = torch.ones(len(items), dtype=like.dtype, device=like.device)\n"
        "    return torch.zeros(ITEMS, dtype=ones.dtype, device=like.device).index_add(0, items, ones).float()  # culprit\n",
        precisions=BFLOAT,
        part="function:seen_counts",
        rules=("absorption", "integer-rounding", "local-drift"),
        why="Counting by one ends at 256 in bfloat16, and the most popular items were seen a thousand times.",
        source="https://github.com/Lightning-AI/pytorch-lightning/issues/18620",
    ),
    Planted(
        name="log-one-minus-low",
        healthy="    logits = logits.float()\n    return -functional.logsigmoid(-logits)\n",
        planted="    return -torch.log(1 - torch.sigmoid(logits)).float()  # culprit\n",
        precisions=ALL,
        part="function:miss_loss",
        rules=("amplified-rounding", "absorption", "cancellation", "accumulated-drift", "vanished-constant"),
        why="A click has a probability of 0.0025. 1 less that is 1 in bfloat16 or 0.996, and the logarithm 0 or twice as much as it should be: "
        "what is not clicked is hardly learnt from.",
        source="https://github.com/pytorch/pytorch/issues/61098",
    ),
]
