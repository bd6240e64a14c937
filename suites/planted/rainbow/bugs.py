"""Bugs of a distributional Q network: discounts, places among atoms, sums of priorities, and actions that are nearly as good."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
DISCOUNTS = "    return GAMMA ** steps.float()\n"
VALUE = "    value = (total[:, None] + discount[:, None] * atoms).clamp(V_MIN, V_MAX)\n"
EXPECTED = "    return (logits.float().softmax(-1) * atoms.float()).sum(-1)\n"
SUMS = "    total = priority.float().cumsum(0)\n"
IMPORTANCE = "    weight = (chance * count) ** -0.6\n"

BUGS = [
    Planted(
        name="discounts-multiplied-low",
        healthy=DISCOUNTS,
        planted="    gamma = torch.full((len(steps),), GAMMA, dtype=torch.bfloat16)  # culprit\n    gamma[0] = 1\n"
        "    return gamma.cumprod(0).float()  # culprit\n",
        precisions=BF16,
        part="function:discounts",
        rules=(*DRIFTS, "absorption", "biased-rounding", "integer-rounding"),
        why="0.997 is 0.996 in bfloat16, and a product of it and nearly one is rounded in each step.",
        source="https://github.com/tenstorrent/tt-metal/issues/55935",
    ),
    Planted(
        name="places-low",
        healthy=VALUE,
        planted="    value = (total[:, None] + discount[:, None] * atoms).clamp(V_MIN, V_MAX).to(torch.bfloat16)  # culprit\n",
        more=(("    share = place - below\n", "    share = (place - below).float()  # culprit\n"),),
        precisions=BF16,
        part="function:project",
        rules=WHOLE,
        why="A place among fifty atoms is rounded to a quarter, and what is behind its point is the share of the next atom.",
        source="https://github.com/pytorch/rl/pull/4065",
    ),
    Planted(
        name="action-gaps-low",
        healthy=EXPECTED,
        planted="    return (logits.softmax(-1) * atoms.to(logits.dtype)).sum(-1)  # culprit\n",
        more=(("    return q.max(-1, keepdim=True).values - q\n", "    return (q.max(-1, keepdim=True).values - q).float()  # culprit\n"),),
        precisions=("bf16-mixed", "16-mixed", "bf16-true"),
        part="function:advantage",
        rules=DRIFTS,
        why="Each action is worth about a hundred, and they differ by some.",
        source="https://github.com/OpenRLHF/OpenRLHF/pull/634",
    ),
    Planted(
        name="priorities-summed-low",
        healthy=SUMS,
        planted="    total = priority.to(torch.bfloat16).cumsum(0).float()  # culprit\n",
        precisions=BF16,
        part="function:sampling.1",
        rules=(*WHOLE, "absorption", "decision-flip"),
        why="Sums of three thousand priorities are rounded to thousands: other transitions are drawn.",
        source="https://github.com/instadeepai/flashbax/issues/52",
    ),
    Planted(
        name="priorities-overflow",
        healthy=SUMS,
        planted="    total = priority.half().cumsum(0).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:sampling",
        rules=("overflow", "nan"),
        why="Three thousand priorities of two thousand are more than float16 has.",
        source="https://github.com/NVIDIA-Merlin/models/pull/1051",
    ),
    Planted(
        name="chances-vanish",
        healthy=IMPORTANCE,
        planted="    weight = (chance.half().square() * count**2).float() ** -0.3  # culprit\n",
        precisions=("16-mixed",),
        part="function:importance",
        rules=("underflow", "overflow", "nan", *DRIFTS),
        why="A chance is a three thousandth, and its square is not in float16.",
        source="https://github.com/microsoft/responsible-ai-toolbox-privacy/pull/6",
    ),
]

HARMLESS = [
    Harmless(
        name="targets-rounded",
        healthy="    return target\n",
        changed="    return target.bfloat16().float()\n",
        precisions=BF16,
        why="Chances are rounded once, where the loss reads them.",
    ),
    Harmless(
        name="weights-rounded",
        healthy="    return weight / weight.max()\n",
        changed="    return (weight / weight.max()).bfloat16().float()\n",
        precisions=BF16,
        why="A weight of a mean is rounded once.",
    ),
    Harmless(
        name="rewards-low",
        healthy="    total = (reward.float() * discounts(steps) * alive).sum(1)\n",
        changed="    total = (reward.bfloat16() * discounts(steps) * alive).sum(1)\n",
        precisions=BF16,
        why="Whole rewards below 12 are exact, and are multiplied in float32.",
    ),
    Harmless(
        name="q-rounded-after",
        healthy="    return q.max(-1, keepdim=True).values - q\n",
        changed="    return (q.max(-1, keepdim=True).values - q).half().float()\n",
        precisions=("16-mixed",),
        why="What is left has been subtracted in float32.",
    ),
]
