"""Bugs of a network that lays scans over each other: coordinates far from zero, small turns, small residuals, places in cells."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
DISTANCES = '    with torch.autocast("cpu", enabled=False):\n        return (one[:, :, None] - other[:, None]).float().square().sum(-1)\n'
OFFSETS = "    return around - points[:, :, None]\n"
MOVED = '    with torch.autocast("cpu", enabled=False):\n        return (points - source_middle) @ turn.mT + target_middle\n'
RESIDUALS = "    return points - partners\n"
ANGLE = (
    "    skew = turn - turn.mT\n    sine = torch.stack([skew[:, 2, 1], skew[:, 0, 2], skew[:, 1, 0]], -1).norm(dim=-1) / 2\n"
    "    return torch.atan2(sine, (turn.diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2)\n"
)
PLACE = "    return (points % CELL).float() / CELL\n"

BUGS = [
    Planted(
        name="offsets-of-rounded-points",
        healthy=OFFSETS,
        planted="    around, points = around.bfloat16(), points.bfloat16()  # culprit\n    return (around - points[:, :, None]).float()  # culprit\n",
        precisions=BF16,
        part="function:nearest_offsets",
        rules=DRIFTS,
        why="Half a kilometre is rounded to two metres, and neighbours are a metre apart.",
        source="https://github.com/nerfstudio-project/gsplat/pull/270",
    ),
    Planted(
        name="offsets-of-half-points",
        healthy=OFFSETS,
        planted="    around, points = around.half(), points.half()  # culprit\n    return (around - points[:, :, None]).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:nearest_offsets",
        rules=DRIFTS,
        why="Half a kilometre is rounded to a quarter of a metre.",
        source="https://github.com/viser-project/viser/pull/427",
    ),
    Planted(
        name="distances-by-a-product-under-autocast",
        healthy=DISTANCES,
        planted="    product = one @ other.mT  # culprit\n"
        "    return (one.square().sum(-1)[:, :, None] + other.square().sum(-1)[:, None] - 2 * product.float()).clamp_min(0)  # culprit\n",
        precisions=("bf16-mixed", "16-mixed"),
        part="function:residuals",
        rules=(*DRIFTS, "overflow", "nan"),
        why="Squares of half a kilometre are subtracted, and their product is low: any point may be the partner.",
        source="https://github.com/pytorch/pytorch/issues/57690",
    ),
    Planted(
        name="moved-under-autocast",
        healthy=MOVED,
        planted="    shift = target_middle - source_middle @ turn.mT\n    return points @ turn.mT + shift  # culprit\n",
        precisions=("bf16-mixed", "16-mixed"),
        part="function:residuals",
        rules=DRIFTS,
        why="A matrix product of coordinates is low under autocast, and they are half a kilometre from zero.",
        source="https://github.com/aqlaboratory/openfold/pull/222",
    ),
    Planted(
        name="residuals-low",
        healthy=RESIDUALS,
        planted="    return (points.bfloat16() - partners.bfloat16()).float()  # culprit\n",
        precisions=BF16,
        part="function:residuals",
        rules=DRIFTS,
        why="Coordinates are rounded to two metres, and partners are centimetres apart.",
        source="https://github.com/aqlaboratory/openfold-3/pull/353",
    ),
    Planted(
        name="angle-by-its-cosine",
        healthy=ANGLE,
        planted="    cosine = (turn.bfloat16().diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2  # culprit\n"
        "    return torch.acos(cosine.float().clamp(-1 + 1e-7, 1 - 1e-7))\n",
        precisions=BF16,
        part="function:turned_by",
        rules=DRIFTS,
        why="The cosine of a hundredth is nearly one, and bfloat16 rounds it to one.",
        source="https://github.com/personalrobotics/ssik/issues/199",
    ),
    Planted(
        name="cells-of-rounded-points",
        healthy=PLACE,
        planted="    cell = points.to(torch.bfloat16) / CELL  # culprit\n    return (cell - cell.floor()).float()  # culprit\n",
        precisions=BF16,
        part="function:place_in_cell",
        rules=(*WHOLE, "underflow"),
        why="Four hundred thousand millimetres are rounded to two thousand, and a cell has 250.",
        source="https://github.com/isl-org/Open3D/issues/2108",
    ),
]

HARMLESS = [
    Harmless(
        name="offsets-rounded",
        healthy=OFFSETS,
        changed="    return (around - points[:, :, None]).bfloat16().float()\n",
        precisions=BF16,
        why="The first layer rounds them anyway.",
    ),
    Harmless(
        name="places-rounded",
        healthy=PLACE,
        changed="    return ((points % CELL).float() / CELL).half().float()\n",
        precisions=("16-mixed",),
        why="A place in its cell is rounded after the cell has been taken off.",
    ),
    Harmless(
        name="whole-places-low",
        healthy=PLACE,
        changed="    return (points % CELL).to(torch.bfloat16).float() / CELL\n",
        precisions=BF16,
        why="Whole numbers below 256 are exact.",
    ),
    Harmless(
        name="residuals-rounded",
        healthy=RESIDUALS,
        changed="    return (points - partners).bfloat16().float()\n",
        precisions=BF16,
        why="A difference is rounded after it has been taken.",
    ),
]
