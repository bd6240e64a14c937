"""Bugs of a mesh: places far from the origin, curvature as what is left of a turn, strain by squares, squares beyond float16."""

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
EDGES = "    corner = points[faces]\n    return (corner[:, 1:] - corner[:, :1]).float()\n"
NORMALS = "    sides = sides.float() / 1000\n    return torch.linalg.cross(sides[:, 0], sides[:, 1])\n"
LENGTHS = "    return normal.square().sum(-1).sqrt()\n"
ANGLES = "    return torch.atan2(across, (one * other).sum(-1))\n"
DEFECT = "    around = torch.zeros(count).index_add(0, faces.flatten(), angle.flatten())\n"
STRAIN = (
    "    moved = (bent - sides) / 1000\n    sides = sides / 1000\n    mixed = sides @ moved.mT\n"
    "    return (mixed + mixed.mT + moved @ moved.mT) / 2 / sides.square().sum(-1).mean()\n"
)
HEIGHT = "    height = (points[:, 2] - points[:, 2].min()).float() / 1000\n"
GROUND = "    ground = (one[:, 0] * other[:, 1] - one[:, 1] * other[:, 0]) / 2\n"
STEP = "        height = height + 0.02 * (mean - height)\n"

BUGS = [
    Planted(
        name="places-low",
        healthy=EDGES,
        planted="    corner = points.to(low)[faces]  # culprit\n    return (corner[:, 1:] - corner[:, :1]).float()\n",
        precisions=ALL,
        part="function:edges",
        rules=(*WHOLE, "underflow"),
        why="Of 41 000 micrometres bfloat16 knows every 256th and float16 every 32nd, and a side has 400.",
        source="https://github.com/viser-project/viser/pull/427",
    ),
    Planted(
        name="normals-overflow",
        healthy=NORMALS,
        planted="    sides = sides.half()\n    one, other = sides.unbind(1)\n"
        "    return (one.roll(-1, 1) * other.roll(-2, 1) - one.roll(-2, 1) * other.roll(-1, 1)).float() / 1e6  # culprit\n",
        precisions=("16-mixed",),
        part="function:normals",
        rules=("overflow", "nan"),
        why="Micrometres are multiplied before they become millimetres.",
        source="https://github.com/kscalelabs/minppo/pull/19",
    ),
    Planted(
        name="angles-by-low-cosines",
        healthy=ANGLES,
        planted="    near = (one * other).sum(-1) / (one.norm(dim=-1) * other.norm(dim=-1))\n"
        "    return torch.acos(near.to(torch.bfloat16).float())  # culprit\n",
        precisions=BF16,
        part="function:defect",
        rules=DRIFTS,
        why="Six angles, each rounded, are taken off a full turn, of which a tenth is left.",
        source="https://github.com/esheldon/smatch/pull/21",
    ),
    Planted(
        name="turn-low",
        healthy=DEFECT,
        planted="    around = torch.zeros(count, dtype=low).index_add(0, faces.flatten(), angle.flatten().to(low)).float()  # culprit\n",
        precisions=ALL,
        part="function:defect",
        rules=(*DRIFTS, "absorption"),
        why="Angles are added up to six, and what counts is how far that is from a turn.",
        source="https://github.com/rusty1s/pytorch_scatter/issues/269",
    ),
    Planted(
        name="strain-by-low-squares",
        healthy=STRAIN,
        planted="    sides, bent = (sides / 1000).to(low), (bent / 1000).to(low)  # culprit\n"
        "    change = (bent @ bent.mT - sides @ sides.mT).float()  # culprit\n"
        "    return change / 2 / sides.float().square().sum(-1).mean()\n",
        precisions=ALL,
        part="function:strain",
        rules=DRIFTS,
        why="Squares of sides change by some hundredths.",
        source="https://github.com/tenstorrent/tt-metal/issues/45968",
    ),
    Planted(
        name="heights-from-the-floor-low",
        healthy=HEIGHT,
        planted="    height = (points[:, 2].to(torch.bfloat16) - points[:, 2].min()).float() / 1000  # culprit\n",
        precisions=BF16,
        part="function:volume",
        rules=(*WHOLE, "underflow"),
        why="Heights of some hundred micrometres are on a floor of 41 000.",
        source="https://github.com/torchmd/torchmd-net/pull/275",
    ),
    Planted(
        name="smoothing-stands-still",
        healthy=STEP,
        planted="        height = (height + 0.02 * (mean - height)).to(torch.bfloat16).float()  # culprit\n",
        precisions=BF16,
        part="function:smoothed",
        rules=(*DRIFTS, "absorption"),
        why="Steps of a hundredth of a step are rounded away, turn by turn.",
        source="https://github.com/pytorch/audio/issues/3280",
    ),
]

HARMLESS = [
    Harmless(
        name="sides-rounded",
        healthy=EDGES,
        changed="    corner = points[faces]\n    return (corner[:, 1:] - corner[:, :1]).to(torch.bfloat16).float()\n",
        precisions=("bf16-mixed",),
        why="Sides are amounts, rounded once to a 512th, and only areas are made of them.",
        more=(
            ("stretched = strain(sides, edges(bent, faces, low), low)", "stretched = strain(way_of(points, faces), way_of(bent, faces), low)"),
            (
                "def normals(sides, low):\n",
                "def way_of(points, faces):\n    corner = points[faces]\n    return (corner[:, 1:] - corner[:, :1]).float()\n"
                "\n\ndef normals(sides, low):\n",
            ),
        ),
    ),
    Harmless(
        name="normals-rounded",
        healthy=NORMALS,
        changed="    sides = sides.float() / 1000\n    return torch.linalg.cross(sides[:, 0], sides[:, 1]).to(low).float()\n",
        precisions=ALL,
        why="A normal is rounded once, after its differences have been taken.",
    ),
    Harmless(
        name="lengths-rounded",
        healthy=LENGTHS,
        changed="    return normal.square().sum(-1).sqrt().to(low).float()\n",
        precisions=ALL,
        why="An area is rounded once.",
    ),
    Harmless(
        name="defect-rounded",
        healthy="    return torch.where(inside, 2 * math.pi - around, 0)\n",
        changed="    return torch.where(inside, 2 * math.pi - around, 0).to(low).float()\n",
        precisions=ALL,
        why="The curvature itself is rounded, not the turn.",
    ),
    Harmless(
        name="strain-rounded",
        healthy="    moved = (bent - sides) / 1000\n    sides = sides / 1000\n",
        changed="    moved = ((bent - sides) / 1000).to(torch.bfloat16).float()\n    sides = (sides / 1000).to(torch.bfloat16).float()\n",
        precisions=BF16,
        why="Sides are subtracted in float32, and what is rounded is multiplied.",
    ),
    Harmless(
        name="moves-low",
        healthy="            wanted = (bent - points).float() / 20\n",
        changed="            wanted = (bent - points).to(low).float() / 20\n",
        precisions=ALL,
        why="Whole micrometres up to nine.",
    ),
]
