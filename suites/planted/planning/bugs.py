"""Bugs of a learner that plans: values squeezed near one, numbers of bins, discounts near one, counts, chances of a large buffer."""

from __future__ import annotations

from planted_bug import Harmless, Planted

MIXED = ("bf16-mixed", "16-mixed")

BUGS = [
    Planted(
        name="stretched-low",
        healthy="    root = (1 + 4 * EPSILON * (x.abs() + 1 + EPSILON)).sqrt()\n",
        planted="    root = (1 + 4 * EPSILON * (x.abs() + 1 + EPSILON)).sqrt().to(low)  # culprit\n",
        more=(
            (
                "    return x.sign() * (((root - 1) / (2 * EPSILON)).square() - 1)\n",
                "    return x.sign() * (((root - 1) / (2 * EPSILON)).square() - 1).float()  # culprit\n",
            ),
        ),
        precisions=MIXED,
        part="function:stretched",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="The root is 1.03, which bfloat16 knows to a 128th: most of what is above one is lost.",
        source="https://github.com/fastino-ai/GLiNER2/pull/155",
    ),
    Planted(
        name="shares-low",
        healthy="    share = x - below\n",
        planted="    share = (x.to(low) - below).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:two_hot",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="A number of 21.3 is known to an eighth, and the share between two bins with it.",
        source="https://github.com/bayesiains/nflows/issues/87",
    ),
    Planted(
        name="discount-low",
        healthy="    total, out = torch.zeros(len(rewards)), []\n",
        planted="    gamma = torch.tensor(gamma).to(low).float()  # culprit\n    total, out = torch.zeros(len(rewards)), []\n",
        precisions=("bf16-mixed",),
        part="function:discounted",
        rules=("amplified-rounding", "accumulated-drift", "local-drift"),
        why="A discount of 0.997 is 0.996 in bfloat16, so the future is a quarter shorter.",
        source="https://github.com/fla-org/flash-linear-attention/issues/181",
    ),
    Planted(
        name="returns-low",
        healthy="        total = rewards[:, k] + gamma * total\n",
        planted="        total = rewards[:, k].to(low) + gamma * total.to(low)  # culprit\n",
        more=(("    return torch.stack(out[::-1], 1)\n", "    return torch.stack(out[::-1], 1).float()\n"),),
        precisions=("bf16-mixed",),
        part="function:discounted",
        rules=("absorption", "local-drift", "accumulated-drift"),
        why="Of a return of 130 bfloat16 knows whole numbers, and takes neither a reward off it nor a 300th.",
        source="https://github.com/agi-brain/xuance/pull/125",
    ),
    Planted(
        name="exploration-low",
        healthy="    return torch.log((total + base + 1) / base) * 100 + init\n",
        planted="    ratio = ((total + base + 1) / base).to(low)  # culprit\n    return torch.log(ratio.float()) * 100 + init\n",
        precisions=("bf16-mixed",),
        part="function:exploration",
        rules=("amplified-rounding", "cancellation", "local-drift", "accumulated-drift", "absorption"),
        why="After 180 visits the ratio is 1.009, which bfloat16 knows to a 128th.",
        source="https://github.com/fastino-ai/GLiNER2/pull/155",
    ),
    Planted(
        name="range-low",
        healthy="    least, most = q.min(), q.max()\n    return (q - least) / (most - least)\n",
        planted="    q = q.to(low)  # culprit\n    least, most = q.min(), q.max()\n    return ((q - least) / (most - least)).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:normalised",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Values of 210 are known to an eighth in float16, and they differ by a half.",
        source="https://github.com/agi-brain/xuance/pull/125",
    ),
    Planted(
        name="simulations-absorbed",
        healthy="        total = total + each\n",
        planted="        total = total.to(low) + each.to(low)  # culprit\n",
        more=(("    return total / len(values)\n", "    return total.float() / len(values)\n"),),
        precisions=MIXED,
        part="function:backed_up",
        rules=("absorption", "local-drift", "accumulated-drift"),
        why="From 1024 on bfloat16 moves by eight, and a simulation adds five.",
        source="https://github.com/pytorch/pytorch/pull/133085",
    ),
    Planted(
        name="chances-vanish",
        healthy="    weights = (200000 * chance) ** -beta\n",
        planted="    weights = (200000 * (chance / 100).half().float()) ** -beta  # culprit\n",
        precisions=("16-mixed",),
        part="function:importance",
        rules=("underflow", "amplified-rounding", "local-drift"),
        why="A chance of five ten-millionths is a few of the smallest steps of float16.",
        source="https://github.com/apple/coremltools/pull/2727",
    ),
]

HARMLESS = [
    Harmless(
        name="stretched-rounded",
        healthy="    return x.sign() * (((root - 1) / (2 * EPSILON)).square() - 1)\n",
        changed="    return x.sign() * (((root - 1).to(low).float() / (2 * EPSILON)).square() - 1)\n",
        precisions=("16-mixed",),
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="bins-low",
        healthy="                bins = torch.arange(BINS, dtype=torch.float32) / 1.5\n",
        changed="                bins = torch.arange(BINS, dtype=low).float() / 1.5\n",
        precisions=MIXED,
        why="Whole numbers up to forty.",
    ),
    Harmless(
        name="rewards-rounded",
        healthy="        total = rewards[:, k] + gamma * total\n",
        changed="        total = rewards[:, k].to(low).float() + gamma * total\n",
        precisions=MIXED,
        why="A reward is rounded once, and it is added in float32.",
    ),
    Harmless(
        name="visits-low",
        healthy="    total = visits.sum(-1, keepdim=True).float()\n",
        changed="    total = visits.to(low).float().sum(-1, keepdim=True)\n",
        precisions=MIXED,
        why="Visits are whole numbers up to sixty.",
    ),
    Harmless(
        name="range-after-difference",
        healthy="    return (q - least) / (most - least)\n",
        changed="    return (q - least).to(low).float() / (most - least)\n",
        precisions=MIXED,
        why="Differences are made in float32, and rounded once.",
    ),
    Harmless(
        name="simulations-rounded",
        healthy="        total = total + each\n",
        changed="        total = total + each.to(low).float()\n",
        precisions=MIXED,
        why="Each value is rounded once and by itself, and the sum is of float32.",
    ),
    Harmless(
        name="weights-rounded",
        healthy="    return weights / weights.max()\n",
        changed="    return (weights / weights.max()).to(low).float()\n",
        precisions=MIXED,
        why="A weight is rounded once.",
    ),
    Harmless(
        name="guard-in-float32",
        healthy="    return (hidden.float() - least) / (most - least + 1e-5)\n",
        changed="    return (hidden.float() - least).to(low).float() / ((most - least).to(low).float() + 1e-5)\n",
        precisions=MIXED,
        why="Differences are rounded once, and the guard is added in float32.",
    ),
]
