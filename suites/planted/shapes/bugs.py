"""Bugs of diffusion of points: far places of small things, levels of noise by a seventh power, squares beyond float16 or below it, neighbours."""

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
CHOICE = (*DRIFTS, "decision-flip")
LADDER = "    return (LARGEST ** (1 / 7) + along * (SMALLEST ** (1 / 7) - LARGEST ** (1 / 7))) ** 7\n"
METRES = "    metres = millimetres.float() / 1000\n"
TOTAL = "    total = sigma.square() + SPREAD**2\n"
WEIGHT = "    return (sigma.square() + SPREAD**2) / (sigma * SPREAD).square()\n"
ANGLE = "    angle = 2 * math.pi * (sigma.log() / 4)[:, None] * 2.0 ** torch.arange(8).float()\n"
SQUARES = "    return (one[:, :, None] - other[:, None]).square().sum(-1)\n"
NEAREST = "    return squared(points, points, low).topk(NEAR, largest=False).indices\n"
CHAMFER = "    square = squared(one, other, low)\n"
GAPS = "    return following - sigma\n"
ERRORS = "    return (cleaned - clean).square().mean((1, 2))\n"

BUGS = [
    Planted(
        name="metres-low",
        healthy=METRES,
        planted="    metres = (millimetres.float() / 1000).to(low).float()  # culprit\n",
        precisions=ALL,
        part="function:unit",
        rules=DRIFTS,
        why="A thing of half a metre is 31 metres away, which bfloat16 knows to an eighth of one.",
        source="https://github.com/open-mmlab/mmdetection3d/issues/296",
    ),
    Planted(
        name="levels-low",
        healthy=LADDER,
        planted="    along = along.to(low)  # culprit\n"
        "    return ((LARGEST ** (1 / 7) + along * (SMALLEST ** (1 / 7) - LARGEST ** (1 / 7))) ** 7).float()  # culprit\n",
        precisions=ALL,
        part="function:waves",
        rules=DRIFTS,
        why="A seventh power makes seven roundings of one, and more at the low end, where two numbers nearly cancel.",
        source="https://github.com/NVlabs/edm/issues/11",
    ),
    Planted(
        name="scales-overflow",
        healthy=TOTAL,
        planted="    sigma = sigma.to(low)  # culprit\n    total = sigma.square() + SPREAD**2  # culprit\n",
        precisions=("16-mixed",),
        part="function:scales",
        rules=("overflow", "nan"),
        why="The square of 280 is beyond float16, so nothing of the network arrives.",
        source="https://github.com/NVlabs/edm/issues/11",
    ),
    Planted(
        name="waves-low",
        healthy=ANGLE,
        planted="    angle = (2 * math.pi * (sigma.log() / 4)[:, None]).to(low) * (2.0 ** torch.arange(8)).to(low)  # culprit\n",
        precisions=BF16,
        part="function:waves",
        rules=DRIFTS,
        why="An angle of some hundreds is known to one or two.",
        source="https://github.com/huggingface/transformers/issues/28685",
    ),
    Planted(
        name="neighbours-expanded",
        healthy=NEAREST,
        planted="    points = points.to(low)  # culprit\n"
        "    length = points.square().sum(-1)  # culprit\n"
        "    gap = length[:, :, None] + length[:, None] - 2 * points @ points.transpose(1, 2)  # culprit\n"
        "    return gap.topk(NEAR, largest=False).indices  # culprit\n",
        precisions=ALL,
        part="function:nearest",
        rules=CHOICE,
        why="A small square of a distance is the difference of three large numbers.",
        source="https://github.com/NVIDIA/cuvs/issues/991",
    ),
    Planted(
        name="importance-overflows",
        healthy=WEIGHT,
        planted="    sigma = sigma.to(low)  # culprit\n    return ((sigma.square() + SPREAD**2) / (sigma * SPREAD).square()).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:importance",
        rules=("overflow", "underflow", "nan"),
        why="A noise of a 450th weighs 160 000, which is beyond float16.",
        source="https://github.com/NVlabs/edm/issues/11",
    ),
    Planted(
        name="errors-low",
        healthy=ERRORS,
        planted="    return (cleaned.to(low) - clean.to(low)).float().square().mean((1, 2))  # culprit\n",
        precisions=BF16,
        part="loss",
        rules=DRIFTS,
        why="Where there is little noise, both are the same but for a thousandth, and that error weighs most.",
        source="https://github.com/NVIDIA/cuvs/issues/991",
    ),
    Planted(
        name="gaps-of-levels-low",
        healthy=GAPS,
        planted="    return (following.to(low) - sigma.to(low)).float()  # culprit\n",
        precisions=ALL,
        part="function:gaps",
        rules=DRIFTS,
        why="Two levels differ by a thirtieth of themselves, and each is rounded.",
        source="https://github.com/huggingface/diffusers/pull/3005",
    ),
]

HARMLESS = [
    Harmless(
        name="importance-rounded",
        healthy=WEIGHT,
        changed="    return ((sigma.square() + SPREAD**2) / (sigma * SPREAD).square()).to(low).float()\n",
        precisions=BF16,
        why="A weight is rounded once.",
    ),
    Harmless(
        name="waves-rounded-late",
        healthy="    return torch.cat([angle.sin(), angle.cos()], -1)\n",
        changed="    return torch.cat([angle.sin(), angle.cos()], -1).to(low)\n",
        precisions=ALL,
        why="The angle is float32, and the wave is rounded where the next layer would.",
    ),
    Harmless(
        name="differences-rounded",
        healthy=SQUARES,
        changed="    return (one[:, :, None] - other[:, None]).to(low).float().square().sum(-1)\n",
        precisions=("bf16-mixed",),
        why="The difference is made in float32, and rounded once. Neighbours that are as near as that are as good.",
    ),
    Harmless(
        name="gaps-of-levels-rounded",
        healthy=GAPS,
        changed="    return (following - sigma).to(low).float()\n",
        precisions=ALL,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="steps-low",
        healthy="    along = torch.arange(count).float() / (count - 1)\n",
        changed="    along = torch.arange(count).to(low).float() / (count - 1)\n",
        precisions=ALL,
        why="A hundred and sixty steps are whole numbers that either format holds.",
    ),
    Harmless(
        name="chamfer-rounded",
        healthy=CHAMFER,
        changed="    square = squared(one, other, low).to(low).float()\n",
        precisions=BF16,
        why="Squares are made in float32, and rounded once.",
    ),
    Harmless(
        name="errors-rounded",
        healthy=ERRORS,
        changed="    return (cleaned - clean).to(low).float().square().mean((1, 2))\n",
        precisions=BF16,
        why="The difference is made in float32, and rounded once.",
    ),
]
