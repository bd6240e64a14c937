"""Bugs of reinforcement learning from checked answers: differences of logarithms, divergences, spreads of rewards, lengths, ratios near one."""

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
CHANCE = "    return logits.gather(-1, word[..., None])[..., 0] - logits.logsumexp(-1)\n"
LEASH = "    return torch.expm1(change) - change\n"
LOGS = "    logs, other = logits.float().log_softmax(-1), others.float().log_softmax(-1)\n"
SUM = "    return (logs.exp() * (logs - other)).sum(-1)\n"
RATIO = "    return mean.exp()\n"
REWARD = "    reward = points.float() / 1000\n"
SPREAD = "    spread = reward.std(1, unbiased=False, keepdim=True)\n"
ADVANTAGE = "    return (reward - reward.mean(1, keepdim=True)) / (spread + 1e-6)\n"
OVER = "    over = (words - SOFT).clamp_min(0)\n"

BUGS = [
    Planted(
        name="chances-low",
        healthy=CHANCE,
        planted="    return (logits.gather(-1, word[..., None])[..., 0] - logits.logsumexp(-1)).bfloat16()  # culprit\n",
        precisions=BF16,
        part="function:drift",
        rules=DRIFTS,
        why="A logarithm of four is known to a 64th, and policies that follow each other differ by less.",
        source="https://github.com/verl-project/verl/issues/6280",
    ),
    Planted(
        name="leash-low",
        healthy=LEASH,
        planted="    change = change.bfloat16()  # culprit\n    return (change.exp().bfloat16() - change - 1).float()  # culprit\n",
        precisions=BF16,
        part="function:leash",
        rules=DRIFTS,
        why="What is left of the exponential is the square of a twentieth, and it is rounded to a 128th.",
        source="https://github.com/unslothai/unsloth-zoo/pull/1240",
    ),
    Planted(
        name="leash-half",
        healthy=LEASH,
        planted="    change = change.half()  # culprit\n    return (change.exp().half() - change - 1).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:leash",
        rules=DRIFTS,
        why="What is left of the exponential is the square of a twentieth, and it is rounded to a 1024th.",
        source="https://github.com/google/tunix/issues/2315",
    ),
    Planted(
        name="divergence-low",
        healthy=LOGS,
        planted="    logs, other = logits.float().log_softmax(-1).bfloat16(), others.float().log_softmax(-1).bfloat16()  # culprit\n",
        more=((SUM, "    return (logs.exp() * (logs - other)).sum(-1).float()  # culprit\n"),),
        precisions=BF16,
        part="function:divergence",
        rules=DRIFTS,
        why="Logarithms of four are rounded and subtracted, and what they differ by is a hundredth.",
        source="https://github.com/google-deepmind/optax/issues/1020",
    ),
    Planted(
        name="ratio-low",
        healthy=RATIO,
        planted="    return mean.exp().bfloat16()  # culprit\n",
        precisions=BF16,
        part="gradient:writer.head.weight",
        rules=(*DRIFTS, "decision-flip"),
        why="All ratios near one are one, so none of them is clipped.",
        source="https://github.com/InternLM/xtuner/pull/1108",
    ),
    Planted(
        name="spread-by-squares",
        healthy=SPREAD,
        planted="    low = reward.bfloat16()  # culprit\n"
        "    variance = low.square().mean(1, keepdim=True) - low.mean(1, keepdim=True).square()  # culprit\n"
        "    spread = variance.float().clamp_min(0).sqrt()\n",
        precisions=BF16,
        part="function:advantages",
        rules=DRIFTS,
        why="Rewards near one have squares near one, which are known to a 256th, and a variance of a thousandth.",
        source="https://github.com/NVIDIA-NeMo/RL/pull/4158",
    ),
    Planted(
        name="rewards-low",
        healthy=REWARD,
        planted="    reward = (points.float() / 1000).bfloat16().float()  # culprit\n",
        precisions=BF16,
        part="function:advantages",
        rules=WHOLE,
        why="Rewards of 0.93 to 0.99 are known to a 256th, and their mean is taken off.",
        source="https://github.com/huggingface/trl/pull/2669",
    ),
    Planted(
        name="lengths-low",
        healthy=OVER,
        planted="    over = (words.to(torch.bfloat16) - SOFT).clamp_min(0)  # culprit\n",
        precisions=BF16,
        part="function:too_long",
        rules=WHOLE,
        why="Five thousand words are known to 32, and the room behind the limit is 300.",
        source="https://github.com/pytorch/pytorch/issues/70179",
    ),
    Planted(
        name="lengths-half",
        healthy=OVER,
        planted="    over = (words.half() - SOFT).clamp_min(0)  # culprit\n",
        precisions=("16-mixed",),
        part="function:too_long",
        rules=WHOLE,
        why="Five thousand words are known to four.",
        source="https://github.com/pytorch/pytorch/issues/70179",
    ),
]

HARMLESS = [
    Harmless(
        name="leash-rounded",
        healthy=LEASH,
        changed="    return (torch.expm1(change) - change).bfloat16().float()\n",
        precisions=BF16,
        why="It is made in float32, and rounded once.",
    ),
    Harmless(
        name="points-half",
        healthy=REWARD,
        changed="    reward = points.half().float() / 1000\n",
        precisions=("16-mixed",),
        why="Thousandths up to 2048 are whole numbers that float16 has.",
    ),
    Harmless(
        name="over-rounded",
        healthy=OVER,
        changed="    over = (words - SOFT).clamp_min(0).to(torch.bfloat16)\n",
        precisions=BF16,
        why="Most of what is over is below 256, which bfloat16 has.",
    ),
    Harmless(
        name="rewards-centred-low",
        healthy=ADVANTAGE,
        changed="    apart = (points - points.sum(1, keepdim=True) // SIZE).half().float() / 1000\n"
        "    return (apart - apart.mean(1, keepdim=True)) / (spread + 1e-6)\n",
        precisions=ALL,
        why="Thousandths beside those of the group are small whole numbers.",
    ),
]
