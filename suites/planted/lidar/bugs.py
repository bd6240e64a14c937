"""Bugs of clouds of points: places on a map in 16 bits, cells by rounded places, counts that stop, expanded squares, guards, angles."""

from __future__ import annotations

from planted_bug import Planted

BOTH = ("bf16-mixed", "16-mixed")
BF16 = ("bf16-mixed",)

BUGS = [
    Planted(
        name="map-places-low",
        healthy="    return points - points.mean(1, keepdim=True)\n",
        planted="    points = points.to(low)  # culprit\n    return (points - points.mean(1, keepdim=True)).float()  # culprit\n",
        precisions=BOTH,
        part="function:centred",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="At 700 metres bfloat16 knows every fourth metre, float16 every half, and the street is 24 wide.",
        source="https://github.com/viser-project/viser/pull/427",
    ),
    Planted(
        name="counts-stop",
        healthy="    counts = torch.zeros(SCENES * ACROSS * ACROSS).index_add(0, place, torch.ones(len(place)))\n",
        planted="    counts = torch.zeros(SCENES * ACROSS * ACROSS, dtype=low).index_add(0, place, torch.ones(len(place), dtype=low))  # culprit\n",
        precisions=BF16,
        part="function:counted",
        rules=("absorption", "integer-rounding", "accumulated-drift"),
        why="Adding one ends at 256, and a pillar has 400 points.",
        source="https://github.com/rusty1s/pytorch_scatter/issues/269",
    ),
    Planted(
        name="distances-expanded",
        healthy="    return (one.unsqueeze(2) - other.unsqueeze(1)).square().sum(-1)\n",
        planted=(
            "    one, other = one.to(low), other.to(low)  # culprit\n"
            "    ends = one.square().sum(-1).unsqueeze(2) + other.square().sum(-1).unsqueeze(1)  # culprit\n"
            "    return (ends - 2 * one @ other.transpose(1, 2)).float().clamp_min(0)  # culprit\n"
        ),
        precisions=BOTH,
        part="function:shares",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Squares of 200 are known to one, or an eighth; neighbours are nearer than that.",
        source="https://github.com/NVIDIA/cuvs/issues/991",
    ),
    Planted(
        name="shape-by-moments",
        healthy="    apart = group - middle\n",
        planted="    group, middle = group.to(low), middle.to(low)  # culprit\n",
        precisions=BOTH,
        part="function:shape",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="A neighbourhood of half a metre at ten metres: the second moments are a hundred, and their difference a tenth.",
        source="https://github.com/Physical-Intelligence/openpi/pull/1051",
        more=(
            (
                "    return (apart.unsqueeze(-1) * apart.unsqueeze(-2)).mean(-3)\n",
                "    second = (group.unsqueeze(-1) * group.unsqueeze(-2)).mean(-3)  # culprit\n"
                "    return (second - (middle.unsqueeze(-1) * middle.unsqueeze(-2)).squeeze(-3)).float()  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="guard-vanishes",
        healthy="    inverse = 1 / (distance.sqrt() + 1e-8)\n",
        planted="    inverse = 1 / (distance.to(low).sqrt() + 1e-8)  # culprit\n",
        precisions=("16-mixed",),
        part="function:shares",
        rules=("vanished-constant", "nan", "overflow"),
        why="A seed is at no distance from itself. The guard is zero in float16, so its share is infinity over infinity.",
        source="https://github.com/pytorch/pytorch/issues/32137",
    ),
    Planted(
        name="angles-low",
        healthy="    angle = torch.atan2(points[..., 1], points[..., 0])\n",
        planted="    angle = torch.atan2(points[..., 1], points[..., 0]).to(low)  # culprit\n",
        precisions=BOTH,
        part="function:beams",
        rules=("amplified-rounding", "local-drift"),
        why="An angle of three in a low format, turned 512 times: the wave has any value.",
        source="https://github.com/wfondrie/depthcharge/pull/82",
        more=(
            (
                "    turns = angle.unsqueeze(-1) * 2.0 ** torch.arange(4, 10).float()\n",
                "    turns = angle.float().unsqueeze(-1) * 2.0 ** torch.arange(4, 10).float()  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="cells-low",
        healthy="    cell = torch.floor((points[..., :2] - points[..., :2].amin(1, keepdim=True)) / CELL).long().clamp(0, ACROSS - 1)\n",
        planted=(
            "    points = points.to(low)  # culprit\n"
            "    cell = torch.floor((points[..., :2] - points[..., :2].amin(1, keepdim=True)) / CELL).long().clamp(0, ACROSS - 1)  # culprit\n"
        ),
        precisions=BF16,
        part="function:pillar_of",
        rules=("integer-rounding", "decision-flip", "cancellation", "amplified-rounding"),
        why="Places are rounded to a 16th, and points at the edge of a cell fall into the next one.",
        source="https://github.com/mit-han-lab/spvnas/issues/55",
    ),
]
