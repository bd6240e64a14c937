"""Bugs of a network that plays chess: counts of visits, differences of results, clocks, ages of games, and chances that are nearly one."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
INFINITE = ("overflow", "nan")
TOTAL = "    total = counts.sum(-1, keepdim=True).float()\n"
SHARES = "    return counts.float() / total\n"
EDGE = "    return (won - lost).float() / (won + lost + drawn).float()\n"
DRAWN = "    return 1 - win.float() - loss.float()\n"
SHARE = "    share = points.float() / games.float()\n"
ELO = "    return 400 * (share.log10() - (1 - share).log10())\n"
FADED = "    return torch.exp(-math.log(2) * age.float() / HALF_LIFE)\n"
CLOCK = "    return (before - after).float() / 1000\n"
VALUE = "    value = value.float()\n"
VARIANCE = "    return (value - value.mean(-1, keepdim=True)).square().mean(-1)\n"
LEARNT = "    return progress.float() / (progress.float() + 1000)\n"

BUGS = [
    Planted(
        name="visits-overflow",
        healthy=TOTAL,
        planted="    total = counts.half().sum(-1, keepdim=True).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:visited",
        rules=(*INFINITE, "integer-rounding"),
        why="A search of 68 000 positions is more than float16 has.",
        source="https://github.com/QueensGambit/CrazyAra/issues/39",
    ),
    Planted(
        name="visits-counted-low",
        healthy=TOTAL,
        planted="    total = torch.zeros(len(counts), 1, dtype=torch.bfloat16)\n"
        "    for each in counts.split(1, -1):\n        total = total + each  # culprit\n    total = total.float()\n",
        precisions=BF16,
        part="function:visited",
        rules=("absorption", *WHOLE),
        why="To 60 000 visits bfloat16 adds no hundred.",
        source="https://github.com/QueensGambit/CrazyAra/issues/39",
    ),
    Planted(
        name="edge-low",
        healthy=EDGE,
        planted="    won, lost = won.bfloat16(), lost.bfloat16()  # culprit\n"
        "    return (won - lost).float() / (won + lost + drawn).float()  # culprit\n",
        precisions=BF16,
        part="function:edge",
        rules=WHOLE,
        why="1500 wins are known to eight, and there are twenty more of them than of losses.",
        source="https://github.com/leela-zero/leela-zero/issues/1662",
    ),
    Planted(
        name="draws-low",
        healthy=DRAWN,
        planted="    win, loss = win.bfloat16(), loss.bfloat16()  # culprit\n    return (1 - win - loss).float()  # culprit\n",
        precisions=BF16,
        part="function:drawn_share",
        rules=DRIFTS,
        why="One game in a hundred is drawn, and each of the two chances is known to a 256th.",
        source="https://github.com/leela-zero/leela-zero/issues/1662",
    ),
    Planted(
        name="draws-half",
        healthy=DRAWN,
        planted="    win, loss = win.half(), loss.half()  # culprit\n    return (1 - win - loss).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:drawn_share",
        rules=DRIFTS,
        why="One game in a hundred is drawn, and each of the two chances is known to a 2048th.",
        source="https://github.com/leela-zero/leela-zero/issues/1662",
    ),
    Planted(
        name="elo-low",
        healthy=SHARE,
        planted="    share = (points.float() / games.float()).bfloat16()  # culprit\n",
        more=((ELO, "    return (400 * (share.log10() - (1 - share).log10())).float()  # culprit\n"),),
        precisions=BF16,
        part="function:stronger",
        rules=(*DRIFTS, *INFINITE),
        why="Who makes 996 points of 1000 has made all of them in bfloat16, and is infinitely strong.",
        source="https://github.com/ml-explore/mlx/pull/1280",
    ),
    Planted(
        name="elo-half",
        healthy=SHARE,
        planted="    share = (points.float() / games.float()).half()  # culprit\n",
        more=((ELO, "    return 400 * (share.log10() - (1 - share).log10()).float()  # culprit\n"),),
        precisions=("16-mixed",),
        part="function:stronger",
        rules=(*DRIFTS, *INFINITE),
        why="Of 0.996 float16 knows a 2048th, and one less it is two 512ths.",
        source="https://github.com/ml-explore/mlx/pull/1280",
    ),
    Planted(
        name="ages-low",
        healthy=FADED,
        planted="    return torch.exp(-math.log(2) * age.bfloat16() / HALF_LIFE).float()  # culprit\n",
        precisions=BF16,
        part="function:faded",
        rules=WHOLE,
        why="An exponent of ten is known to a 32nd, and the exponential makes three in a hundred of it.",
        source="https://github.com/pytorch/pytorch/issues/70179",
    ),
    Planted(
        name="clock-low",
        healthy=CLOCK,
        planted="    before, after = before.bfloat16() / 1000, after.bfloat16() / 1000  # culprit\n    return (before - after).float()  # culprit\n",
        precisions=BF16,
        part="function:thought",
        rules=WHOLE,
        why="A clock at 400 seconds is read to two, and a move takes four.",
        source="https://github.com/facebookresearch/fairo/pull/537",
    ),
    Planted(
        name="clock-half",
        healthy=CLOCK,
        planted="    return (before.half() - after.half()).float() / 1000  # culprit\n",
        precisions=("16-mixed",),
        part="function:thought",
        rules=(*INFINITE, *WHOLE),
        why="400 000 milliseconds are more than float16 has.",
        source="https://github.com/facebookresearch/fairo/pull/537",
    ),
    Planted(
        name="swing-by-squares-low",
        healthy=VALUE,
        planted="    value = value.bfloat16()  # culprit\n",
        more=((VARIANCE, "    return (value.square().mean(-1) - value.mean(-1).square()).float()  # culprit\n"),),
        precisions=BF16,
        part="function:unsteady",
        rules=DRIFTS,
        why="Values around 0.6 differ by some hundredths, and their squares by less than bfloat16 has.",
        source="https://github.com/saforem2/ezpz/pull/137",
    ),
    Planted(
        name="swing-by-squares-half",
        healthy=VALUE,
        planted="    value = value.half()  # culprit\n",
        more=((VARIANCE, "    return (value.square().mean(-1) - value.mean(-1).square()).float()  # culprit\n"),),
        precisions=("16-mixed",),
        part="function:unsteady",
        rules=DRIFTS,
        why="Values around 0.6 differ by some hundredths, and float16 knows 0.36 to a 4096th.",
        source="https://github.com/saforem2/ezpz/pull/137",
    ),
]

HARMLESS = [
    Harmless(
        name="shares-rounded",
        healthy=SHARES,
        changed="    return (counts.float() / total).bfloat16()\n",
        precisions=BF16,
        why="Shares of exact counts are rounded once.",
    ),
    Harmless(
        name="edge-rounded",
        healthy=EDGE,
        changed="    return (won - lost).bfloat16() / (won + lost + drawn).bfloat16()\n",
        precisions=BF16,
        why="The difference is exact, and below 256.",
    ),
    Harmless(
        name="faded-rounded",
        healthy=FADED,
        changed="    return torch.exp(-math.log(2) * age.float() / HALF_LIFE).half()\n",
        precisions=("16-mixed",),
        why="A weight is rounded once.",
    ),
    Harmless(
        name="learnt-in-low-numbers",
        healthy=LEARNT,
        changed="    progress = progress.bfloat16()\n    return progress / (progress + 1000)\n",
        precisions=BF16,
        why="All are positive: neither sum nor quotient makes the rounding larger.",
    ),
    Harmless(
        name="clock-rounded",
        healthy=CLOCK,
        changed="    return ((before - after).float() / 1000).bfloat16()\n",
        precisions=BF16,
        why="What is rounded is the difference.",
    ),
]
