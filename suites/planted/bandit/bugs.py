"""Bugs of a bandit: ages of seconds since 1970, counts that forget, weights of rare choices, and rates near one."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
MIXED = ("bf16-mixed", "16-mixed")
HALF = ("16-mixed",)
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = ("integer-rounding", "decision-flip", "absorption", *DRIFTS)
INFINITE = ("overflow", "nan")
AGE = "    age = (now - published).float()\n"
TAKEN = "        inverse = inverse - along[:, None] * along[None, :] / (1 + (row * along).sum())\n"
SQUARED = "    squared = (features[..., None, :] * inverse).sum(-1)\n"
ZEROS = "    hits, seen = torch.zeros(ARTICLES), torch.full((ARTICLES,), 300.0)\n"
SEEN = "        seen = KEPT * seen + show\n"
BONUS = "    return (2 * rounds.float().log() / seen).sqrt()\n"
BETA = "    total = clicks.float() + passes.float()\n    return (clicks.float() * passes.float() / (total.square() * (total + 1))).sqrt()\n"
CHANCE = "    return (1 - ARTICLES * FLOOR) * (scores / GENTLE).softmax(-1) + FLOOR\n"
WEIGHT = "    return (chance.log() - logged.float() / 1000).exp().clamp_max(CUT)\n"
SIZE = "    return weight.sum().square() / weight.square().sum()\n"
RESIDUAL = "    residual = reward - model.gather(-1, chosen[:, None]).squeeze(-1)\n"

BUGS = [
    Planted(
        name="seconds-low",
        healthy=AGE,
        planted="    now, published = now.bfloat16(), published.bfloat16()  # culprit\n    age = (now - published).float()\n",
        precisions=BF16,
        part="function:freshness",
        rules=(*WHOLE, "overflow"),
        why="Seconds since 1970 are known to months.",
        source="https://github.com/amazon-science/chronos-forecasting/issues/193",
    ),
    Planted(
        name="learnt-low",
        healthy=TAKEN,
        planted="        inverse = (inverse - along[:, None] * along[None, :] / (1 + (row * along).sum())).bfloat16().float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:learnt",
        rules=("absorption", *DRIFTS),
        why="Each round takes a little of the inverse, and it is rounded after each.",
        source="https://github.com/chainer/chainer/pull/2271",
    ),
    Planted(
        name="seen-low",
        healthy=ZEROS + "    for click, show in zip(clicks, shown, strict=True):\n        hits = KEPT * hits + click\n" + SEEN,
        planted="    hits, seen = torch.zeros(ARTICLES), torch.full((ARTICLES,), 300.0)\n    for click, show in zip(clicks, shown, strict=True):\n"
        "        hits = KEPT * hits + click\n        seen = (KEPT * seen + show).bfloat16().float()  # culprit\n",
        precisions=BF16,
        part="function:discounted.1",
        rules=WHOLE,
        why="300 lose three fifths of one and get one: bfloat16 has every second number there.",
        source="https://github.com/openxla/xla/issues/2425",
    ),
    Planted(
        name="certainty-half",
        healthy=BETA,
        planted="    clicks, passes = clicks.half(), passes.half()  # culprit\n    total = clicks + passes  # culprit\n"
        "    return (clicks * passes / (total.square() * (total + 1))).sqrt().float()  # culprit\n",
        precisions=HALF,
        part="function:certainty",
        rules=(*INFINITE, "integer-rounding"),
        why="Products of thousands are more than float16 has numbers for.",
        source="https://github.com/QueensGambit/CrazyAra/issues/39",
    ),
    Planted(
        name="floor-lost",
        healthy=CHANCE,
        planted="    share = (scores / GENTLE).softmax(-1)\n    return 1 - (1 - share).bfloat16().float() * (1 - FLOOR)  # culprit\n",
        precisions=BF16,
        part="function:chances",
        rules=(*DRIFTS, "vanished-constant"),
        why="A chance of a twentieth is taken off one, rounded, and taken off again.",
        source="https://github.com/xflouris/libpll/issues/129",
    ),
    Planted(
        name="weights-half",
        healthy=WEIGHT,
        planted="    old = (logged.float() / 1000).exp().half()  # culprit\n    return (chance / old.float()).clamp_max(CUT)\n",
        precisions=HALF,
        part="function:weights",
        rules=("underflow", *DRIFTS, *INFINITE),
        why="A choice that was made with a chance of a few millionths has five bits in float16, and counts ten thousand times.",
        source="https://github.com/tensorflow/recommenders/pull/441",
    ),
    Planted(
        name="logarithms-low",
        healthy=WEIGHT,
        planted="    new, old = chance.log().bfloat16(), (logged / 1000).bfloat16()  # culprit\n"
        "    return (new - old).float().exp().clamp_max(CUT)\n",
        precisions=BF16,
        part="function:weights",
        rules=DRIFTS,
        why="A logarithm of nine is rounded to a sixteenth, and the ratio is an exponential of it.",
        source="https://github.com/meta-pytorch/torchforge/pull/237",
    ),
    Planted(
        name="size-half",
        healthy=SIZE,
        planted="    weight = weight.half()\n    return weight.sum().square() / (weight * weight).sum()  # culprit\n",
        precisions=HALF,
        part="function:sample_size",
        rules=INFINITE,
        why="The square of a weight of a thousand is beyond float16.",
        source="https://github.com/facebookresearch/fairscale/pull/263",
    ),
    Planted(
        name="rewards-less-rates-low",
        healthy=RESIDUAL,
        planted="    rate = model.gather(-1, chosen[:, None]).squeeze(-1).bfloat16()  # culprit\n    residual = reward - rate.float()\n",
        precisions=("bf16-mixed",),
        part="function:doubly_robust",
        rules=DRIFTS,
        why="Rates are near one, and so are most rewards; the weight enlarges what is left.",
        source="https://github.com/OpenRLHF/OpenRLHF/pull/634",
    ),
]

HARMLESS = [
    Harmless(
        name="fresh-rounded",
        healthy="    return torch.exp2(-age / HALF_LIFE)\n",
        changed="    return torch.exp2(-age / HALF_LIFE).bfloat16().float()\n",
        precisions=BF16,
        why="The tower rounds what it reads as well.",
    ),
    Harmless(
        name="bonus-low",
        healthy=BONUS,
        changed="    return (2 * rounds.float().log() / seen).bfloat16().sqrt().float()\n",
        precisions=BF16,
        why="A root halves the error of what it reads.",
    ),
    Harmless(
        name="width-of-halves",
        healthy=SQUARED,
        changed="    squared = (features.half().float()[..., None, :] * inverse).sum(-1)\n",
        precisions=HALF,
        why="Features come of a layer that computes in float16.",
    ),
]
