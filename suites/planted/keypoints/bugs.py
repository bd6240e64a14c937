"""Bugs of tracks: pixels of a thousand, light of a 16-bit camera, squares of slopes, small determinants, microseconds of a day."""

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
ALONG = "    along = (torch.arange(GRID).float() + 0.5) * CELL\n"
BETWEEN = "    return found - wanted.float() / 10\n"
SECONDS = "    return (microseconds - microseconds[:1]).float() / 1e6\n"
SPEED = "    return (places[:, 1:] - places[:, :-1]) / (seconds[1:] - seconds[:-1])[:, None]\n"
TENSOR = "    return slope_x.square().sum(-1), slope_y.square().sum(-1), (slope_x * slope_y).sum(-1)\n"
CORNER = "    return xx * yy - xy.square()\n"
LIGHT = "    return (after - before).float()\n"
BELOW = "    below = place @ (lens[2, :2].float() / 1e9) + 1\n"
STATE = "        state = state + share * (each - state)\n"

BUGS = [
    Planted(
        name="between-low",
        healthy=BETWEEN,
        planted="    return (found.to(low) - (wanted.float() / 10).to(low)).float()  # culprit\n",
        precisions=BF16,
        part="function:between",
        rules=DRIFTS,
        why="Pixels of a thousand are known to four, and a Huber loss asks for one.",
        source="https://github.com/princeton-vl/RAFT/issues/54",
    ),
    Planted(
        name="microseconds-low",
        healthy=SECONDS,
        planted="    return ((microseconds.to(low) - microseconds[:1].to(low)) / 1e6).float()  # culprit\n",
        precisions=BF16,
        part="function:times",
        rules=(*WHOLE, "nan", "overflow", "underflow"),
        why="Of 73 thousand million microseconds bfloat16 knows every 536 millionth.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="seconds-low",
        healthy=SPEED,
        planted="    places, seconds = places.to(low), seconds.to(low)  # culprit\n"
        "    return ((places[:, 1:] - places[:, :-1]) / (seconds[1:] - seconds[:-1])[:, None]).float()  # culprit\n",
        precisions=BF16,
        part="function:speeds",
        rules=DRIFTS,
        why="Places are known to four pixels, and move by some tens.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="light-low",
        healthy=LIGHT,
        planted="    return (after.to(low) - before.to(low)).float()  # culprit\n",
        precisions=ALL,
        part="function:changes",
        rules=WHOLE,
        why="Of 30 000 levels bfloat16 knows every 128th and float16 every 16th, and a change is forty.",
        source="https://github.com/princeton-vl/RAFT/issues/54",
    ),
    Planted(
        name="slopes-overflow",
        healthy=TENSOR,
        planted="    slope_x, slope_y = slope_x.to(low), slope_y.to(low)  # culprit\n"
        "    return slope_x.square().sum(-1).float(), slope_y.square().sum(-1).float(), (slope_x * slope_y).sum(-1).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:tensor",
        rules=("overflow", "nan"),
        why="Squares of slopes of hundreds are beyond float16.",
        source="https://github.com/aqlaboratory/openfold/pull/295",
    ),
    Planted(
        name="corners-low",
        healthy=CORNER,
        planted="    xx, yy, xy = xx.to(low), yy.to(low), xy.to(low)  # culprit\n    return (xx * yy - xy.square()).float()  # culprit\n",
        precisions=BF16,
        part="function:determinant",
        rules=DRIFTS,
        why="At an edge the two products are nearly the same.",
        source="https://github.com/kornia/kornia/issues/4021",
    ),
]

HARMLESS = [
    Harmless(
        name="centres-low",
        healthy=ALONG,
        changed="    along = ((torch.arange(GRID).to(low).float() + 0.5) * CELL)\n",
        precisions=ALL,
        why="There are 24 cells, and the product is float32.",
    ),
    Harmless(
        name="between-rounded-late",
        healthy=BETWEEN,
        changed="    return (found - wanted.float() / 10).to(low).float()\n",
        precisions=ALL,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="seconds-rounded-late",
        healthy=SECONDS,
        changed="    return ((microseconds - microseconds[:1]).float() / 1e6).double().float()\n",
        precisions=ALL,
        why="Differences of whole microseconds are exact, and more digits than need be change nothing.",
    ),
    Harmless(
        name="speed-rounded",
        healthy=SPEED,
        changed="    return ((places[:, 1:] - places[:, :-1]) / (seconds[1:] - seconds[:-1])[:, None]).to(low).float()\n",
        precisions=ALL,
        why="A speed is rounded once.",
    ),
    Harmless(
        name="light-rounded-late",
        healthy=LIGHT,
        changed="    return (after - before).to(low).float()\n",
        precisions=("16-mixed",),
        why="The difference is of whole numbers, and small.",
    ),
    Harmless(
        name="corners-rounded",
        healthy=CORNER,
        changed="    return (xx * yy - xy.square()).to(low).float()\n",
        precisions=BF16,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="spread-rounded",
        healthy="    return (heat.float() * off.square().sum(-1)).sum(-1).add(1).sqrt()\n",
        changed="    return (heat.float() * off.to(low).float().square().sum(-1)).sum(-1).add(1).sqrt()\n",
        precisions=ALL,
        why="The place has been taken off in float32, and what is left is rounded once.",
    ),
    Harmless(
        name="horizon-as-a-share",
        healthy=BELOW,
        changed="    below = (place @ (lens[2, :2].float() / 1e9)).to(low).float() + 1\n",
        precisions=ALL,
        why="The hundredth is rounded once, before one is added in float32.",
    ),
    Harmless(
        name="steps-of-the-state-rounded",
        healthy=STATE,
        changed="        state = state + share * (each - state).to(low).float()\n",
        precisions=BF16,
        why="What the state moves by is rounded once; the state is float32.",
    ),
]
