"""Bugs of a generative flow network: differences of sums of log-chances, rewards to a high power, running sums of chances, steps near the end."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
MIXED = ("bf16-mixed", "16-mixed")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
CHOSEN = "    return logits.float().log_softmax(-1).gather(-1, letters[..., None]).squeeze(-1)\n"
TOTALS = "    return F.pad(steps.float().cumsum(1), (1, 0))\n"
REWARD = "    return BETA * (hits.float() / tries.float()).log()\n"
ORDERS = "    return -(torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1))\n"
BALANCE = "    return log_z + forward - backward - reward\n"
OWN = "    own = flows - forward\n"
CHANCES = "    return torch.searchsorted(chances.cumsum(0), draws.double()).clamp_max(BUFFER - 1)\n"
LEFT = "    left = 1 - step.double() / HORIZON\n"
COUNT = "    weights = (reward - forward).softmax(0)\n    return 1 / weights.square().sum()\n"
NOVEL = "    return counts.float().rsqrt() - counts.max().float().rsqrt()\n"

BUGS = [
    Planted(
        name="log-of-softmax",
        healthy=CHOSEN,
        planted="    return (40 * logits.to(low)).softmax(-1).gather(-1, letters[..., None]).squeeze(-1).log().float() / 40  # culprit\n",
        precisions=("16-mixed",),
        part="function:log_forward",
        rules=("underflow", "overflow", "nan", *DRIFTS),
        why="Below 6e-8 a chance is nought in float16, whose logarithm is minus infinity.",
        source="https://github.com/apple/coremltools/pull/2727",
    ),
    Planted(
        name="totals-low",
        healthy=TOTALS,
        planted="    total, out = torch.zeros_like(steps[:, 0], dtype=low), []\n"
        "    for step in steps.unbind(1):\n"
        "        out.append(total)\n"
        "        total = total + step.to(low)  # culprit\n"
        "    return torch.stack([*out, total], 1).float()\n",
        precisions=("bf16-mixed",),
        part="function:balance",
        rules=("absorption", *DRIFTS),
        why="Of a sum of 110 bfloat16 knows a half, and 48 letters are added one by one.",
        source="https://github.com/OpenRLHF/OpenRLHF/pull/634",
    ),
    Planted(
        name="share-low",
        healthy=REWARD,
        planted="    return (BETA * (hits.float() / tries.float()).to(low).log()).float()  # culprit\n",
        precisions=BF16,
        part="function:log_reward",
        rules=DRIFTS,
        why="The logarithm of a share of 0.94 is 0.06, and the share is known to a 256th.",
        source="https://github.com/fastino-ai/GLiNER2/pull/155",
    ),
    Planted(
        name="tries-overflow",
        healthy=REWARD,
        planted="    hits, tries = hits.to(low), (2 * tries).to(low)  # culprit\n    return BETA * (2 * hits / tries).log().float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:log_reward",
        rules=("overflow", "nan"),
        why="Twice 35000 tries are beyond float16.",
        source="https://github.com/business-science/pytimetk/issues/274",
    ),
    Planted(
        name="orders-low",
        healthy=ORDERS,
        planted="    whole, part, rest = (torch.lgamma(each + 1).to(low) for each in (n, k, n - k))  # culprit\n"
        "    return -(whole - part - rest).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:balance",
        rules=DRIFTS,
        why="Logarithms of factorials near 1900 are known to eight, and their difference is 110.",
        source="https://github.com/VincentStimper/normalizing-flows/pull/52",
    ),
    Planted(
        name="balance-low",
        healthy=BALANCE,
        planted="    return (log_z.to(low) + forward.to(low) - backward.to(low) - reward.to(low)).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:balance",
        rules=DRIFTS,
        why="Three numbers of a hundred nearly cancel, each known to a half.",
        source="https://github.com/OpenRLHF/OpenRLHF/issues/525",
    ),
    Planted(
        name="neighbours-low",
        healthy=OWN,
        planted="    own = (flows - forward).to(low)  # culprit\n",
        more=(
            (
                "    return own[:, 1:] - own[:, :-1]\n",
                "    return (own[:, 1:] - own[:, :-1]).float()  # culprit\n",
            ),
        ),
        precisions=("bf16-mixed",),
        part="function:detailed",
        rules=DRIFTS,
        why="Sums of a hundred are known to a half, and neighbouring states differ by two.",
        source="https://github.com/ROCm/rocm-libraries/pull/7851",
    ),
    Planted(
        name="power-low",
        healthy="    weights = torch.triu(torch.tensor(0.99) ** distance, 1)\n",
        planted="    weights = torch.triu(torch.tensor(0.99, dtype=low).float() ** distance, 1)  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:pair_weights",
        rules=DRIFTS,
        why="0.99 is 0.9883 in bfloat16, and distances of 48 are its powers.",
        source="https://github.com/fla-org/flash-linear-attention/issues/181",
    ),
    Planted(
        name="running-chances-low",
        healthy=CHANCES,
        planted="    runs = chances.to(low).cumsum(0)  # culprit\n"
        "    return torch.searchsorted(runs, draws.to(low)).clamp_max(BUFFER - 1)  # culprit\n",
        precisions=BF16,
        part="result",
        rules=("decision-flip", "integer-rounding", "absorption", *DRIFTS),
        why="A chance of a 700th is less than half of what bfloat16 knows of a running sum beyond a half.",
        source="https://github.com/pytorch/executorch/pull/20089",
    ),
    Planted(
        name="step-low",
        healthy=LEFT,
        planted="    left = (1 - (step.double() / HORIZON).to(low)).float()  # culprit\n",
        precisions=ALL,
        part="function:explored",
        rules=DRIFTS,
        why="Of a share of 0.9967 of the steps bfloat16 makes 0.9961 and float16 0.9966: what is left is off by an eighth.",
        source="https://github.com/vllm-project/vllm/pull/46665",
    ),
    Planted(
        name="weights-overflow",
        healthy=COUNT,
        planted="    weights = ((reward - forward) / 8).to(low).exp()\n    return weights.sum().square() / weights.square().sum()  # culprit\n",
        precisions=("16-mixed",),
        part="function:effective",
        rules=("overflow", "nan"),
        why="The square of e to the 14 is beyond float16, since nothing was taken off.",
        source="https://github.com/facebookresearch/xformers/pull/98",
    ),
    Planted(
        name="novelty-low",
        healthy=NOVEL,
        planted="    return counts.float().rsqrt().to(low).float() - counts.max().float().rsqrt()  # culprit\n",
        precisions=BF16,
        part="function:novelty",
        rules=DRIFTS,
        why="Roots of a thirtieth are known to an 8000th, and differ by a 300th.",
        source="https://github.com/NVIDIA/cuvs/issues/991",
    ),
]

HARMLESS = [
    Harmless(
        name="log-chances-rounded",
        healthy=CHOSEN,
        changed="    return logits.float().log_softmax(-1).gather(-1, letters[..., None]).squeeze(-1).to(low)\n",
        precisions=("16-mixed",),
        why="Each log-chance is rounded once, and summed in float32.",
    ),
    Harmless(
        name="balance-rounded",
        healthy=BALANCE,
        changed="    return (log_z + forward - backward - reward).to(low)\n",
        precisions=MIXED,
        why="What is left is rounded once.",
    ),
    Harmless(
        name="weights-rounded",
        healthy="    return weights / weights.sum()\n",
        changed="    return (weights / weights.sum()).to(low)\n",
        precisions=BF16,
        why="The powers are made in float32, and each weight is rounded once.",
    ),
    Harmless(
        name="left-rounded",
        healthy="    return (0.5 * left).float()\n",
        changed="    return (0.5 * left).to(low).float()\n",
        precisions=ALL,
        why="What is left is made in double precision, and rounded once.",
    ),
    Harmless(
        name="weights-after-the-largest",
        healthy="    weights = (reward - forward).softmax(0)\n",
        changed="    gaps = reward - forward\n    weights = (gaps - gaps.max()).to(low).softmax(0).float()\n",
        precisions=("16-mixed",),
        why="The largest is taken off in float32, so what counts is near nought.",
    ),
    Harmless(
        name="novelty-rounded",
        healthy=NOVEL,
        changed="    return (counts.float().rsqrt() - counts.max().float().rsqrt()).to(low).float()\n",
        precisions=ALL,
        why="The difference is rounded once.",
    ),
    Harmless(
        name="advantages-rounded",
        healthy="    return reward - reward.mean()\n",
        changed="    return (reward - reward.mean()).to(low)\n",
        precisions=ALL,
        why="Differences are rounded once.",
    ),
]
