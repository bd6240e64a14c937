"""Bugs of trips: degrees of which the sixth digit matters, seconds of a week, numbers of cells, kilometres that are added to a day's."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
MIXED = ("bf16-mixed", "16-mixed")
BF16 = ("bf16-mixed", "bf16-true")
LEGS = """    north = radians(lat[:, 1:] - lat[:, :-1])
    east = radians(lon[:, 1:] - lon[:, :-1])
    across = radians(lat[:, 1:]).cos() * radians(lat[:, :-1]).cos()
"""
ANGLES = "    angles = 2 * math.pi * turns[..., None] * torch.arange(1, harmonics + 1)\n"
COUNT = "    count = torch.zeros(CLASSES).index_add_(0, road.flatten(), torch.ones(road.numel()))\n"
DIFFERENCES = ("cancellation", "amplified-rounding", "local-drift", "accumulated-drift", "integer-rounding")

BUGS = [
    Planted(
        name="degrees-low",
        healthy=LEGS,
        planted="""    lat, lon = (lat / 1e6).to(like.dtype), (lon / 1e6).to(like.dtype)  # culprit
    north = torch.deg2rad(lat[:, 1:] - lat[:, :-1]).float()
    east = torch.deg2rad(lon[:, 1:] - lon[:, :-1]).float()
    across = torch.deg2rad(lat[:, 1:].float()).cos() * torch.deg2rad(lat[:, :-1].float()).cos()
""",
        precisions=ALL,
        part="function:leg_lengths",
        rules=DIFFERENCES,
        why="A longitude of 116 degrees is known to half a degree in bfloat16, and to a sixteenth in float16; a leg has a thousandth.",
        source="https://github.com/networknext/next/pull/1494",
    ),
    Planted(
        name="chord-vanishes",
        healthy="    chord = (north / 2).sin().square() + across * (east / 2).sin().square()\n",
        planted="""    north, east = (north / 2).sin().to(like.dtype), (east / 2).sin().to(like.dtype)
    chord = (north * north + across.to(like.dtype) * (east * east)).float()  # culprit
""",
        precisions=("16-mixed",),
        part="function:leg_lengths",
        rules=("underflow",),
        why="Half an angle of a hundred metres is 8e-6, and its square is below what float16 has.",
        source="https://github.com/facebookresearch/fairscale/pull/263",
    ),
    Planted(
        name="week-low",
        healthy="    turns = (seconds % WEEK).float() / WEEK\n",
        planted="    turns = (seconds % WEEK).to(like.dtype).float() / WEEK  # culprit\n",
        precisions=BF16,
        part="function:calendar",
        rules=("integer-rounding",),
        why="A second of the week is a number up to 604800, which bfloat16 has to the half hour.",
        source="https://github.com/kohya-ss/musubi-tuner/pull/729",
    ),
    Planted(
        name="waves-low",
        healthy=ANGLES + "    return torch.cat([angles.cos(), angles.sin()], -1)\n",
        planted="""    angles = 2 * math.pi * turns.to(like.dtype)[..., None] * torch.arange(1, harmonics + 1)  # culprit
    return torch.cat([angles.cos(), angles.sin()], -1)
""",
        precisions=("bf16-mixed",),
        part="function:calendar",
        rules=("amplified-rounding", "accumulated-drift", "local-drift"),
        why="A turn is rounded, and multiplied by two pi and six.",
        source="https://github.com/huggingface/transformers/issues/25681",
    ),
    Planted(
        name="cells-low",
        healthy="    return row * COLUMNS + column\n",
        planted="    return (row.to(like.dtype) * COLUMNS + column).long()  # culprit\n",
        precisions=("bf16-true",),
        part="cell",
        rules=("integer-rounding", "decision-flip", "local-drift"),
        why="There are 4608 cells, and beyond 256 bfloat16 has every second number, beyond 4096 every 32nd.",
        source="https://github.com/mit-han-lab/spvnas/issues/55",
    ),
    Planted(
        name="day-absorbs",
        healthy="    total, out = torch.zeros_like(legs[:, 0]), []\n",
        planted="    start = total = since_morning[:, 0].to(like.dtype)\n    out = []\n",
        more=(
            (
                "        total = total + legs[:, k]\n        out.append(total)\n    return torch.stack(out, 1)\n",
                "        total = total + legs[:, k].to(like.dtype)  # culprit\n        out.append(total - start)\n"
                "    return torch.stack(out, 1).float()\n",
            ),
        ),
        precisions=("bf16-mixed", "16-mixed"),
        part="function:driven",
        rules=("absorption", "amplified-rounding", "cancellation", "local-drift"),
        why="Eighty metres are added to eighty kilometres, of which bfloat16 knows half a kilometre and float16 sixty metres.",
        source="https://github.com/fla-org/flash-linear-attention/issues/29",
    ),
    Planted(
        name="legs-counted-low",
        healthy=COUNT,
        planted="""    one = torch.ones(road.numel(), dtype=like.dtype)
    count = torch.zeros(CLASSES, dtype=like.dtype).index_add_(0, road.flatten(), one)  # culprit
""",
        precisions=("bf16-true",),
        part="function:class_speeds",
        rules=("absorption", "integer-rounding", "local-drift"),
        why="Six hundred legs are counted one by one, and bfloat16 counts to 256.",
        source="https://github.com/rusty1s/pytorch_scatter/issues/269",
    ),
    Planted(
        name="logarithms-low",
        healthy="    return correction.float() + (usual.float() / seconds.float()).log()\n",
        planted="""    expected = usual.float().log().to(like.dtype) + correction  # culprit
    return expected - seconds.float().log().to(like.dtype)  # culprit
""",
        precisions=("bf16-mixed", "bf16-true"),
        part="function:residual",
        rules=DIFFERENCES,
        why="The logarithm of 1400 seconds is seven, known to a 32nd, and the two differ by some hundredths.",
        source="https://github.com/amazon-science/chronos-forecasting/issues/193",
    ),
]

HARMLESS = [
    Harmless(
        name="legs-rounded",
        healthy="    return 2 * EARTH * chord.sqrt().asin()\n",
        changed="    return (2 * EARTH * chord.sqrt().asin()).to(like.dtype)\n",
        precisions=("bf16-mixed", "bf16-true"),
        why="The length is rounded once, and only a network reads it.",
    ),
    Harmless(
        name="headings-from-rounded-steps",
        healthy="    return F.normalize(torch.stack([east, north], -1), dim=-1)\n",
        changed="    return F.normalize(torch.stack([east.to(like.dtype), north.to(like.dtype)], -1).float(), dim=-1)\n",
        precisions=MIXED,
        why="Whole steps are subtracted exactly, then rounded once each; the direction is off by as much.",
    ),
    Harmless(
        name="waves-rounded",
        healthy="    return torch.cat([angles.cos(), angles.sin()], -1)\n",
        changed="    return torch.cat([angles.cos(), angles.sin()], -1).to(like.dtype)\n",
        precisions=("bf16-mixed", "bf16-true"),
        why="The waves of exact angles are rounded once.",
    ),
    Harmless(
        name="row-low",
        healthy="    return row * COLUMNS + column\n",
        changed="    return row.to(like.dtype).long() * COLUMNS + column.to(like.dtype).long()\n",
        precisions=("bf16-mixed", "bf16-true"),
        why="There are 48 rows and 96 columns, which bfloat16 has all.",
    ),
    Harmless(
        name="cells-in-float32",
        healthy="    return row * COLUMNS + column\n",
        changed="    return (row.float() * COLUMNS + column.float()).long()\n",
        precisions=("16-mixed", "bf16-true"),
        why="float32 has every whole number up to 16 million.",
    ),
    Harmless(
        name="place-in-cell-low",
        healthy="    return torch.stack([(lat - SOUTH) % CELL, (lon - WEST) % CELL], -1).float() / CELL\n",
        changed="    return (torch.stack([(lat - SOUTH) % CELL, (lon - WEST) % CELL], -1).float() / CELL).to(like.dtype)\n",
        precisions=MIXED,
        why="The remainder is whole and exact, and the fraction is rounded once.",
    ),
    Harmless(
        name="gaps-low",
        healthy="    speeds = (3600 * legs / gaps).flatten()\n",
        changed="    speeds = (3600 * legs / gaps.to(like.dtype).float()).flatten()\n",
        precisions=("bf16-mixed", "16-mixed"),
        why="A gap has 4 to 12 seconds, which every format has.",
    ),
    Harmless(
        name="speeds-rounded",
        healthy="    total = torch.zeros(CLASSES).index_add_(0, road.flatten(), speeds.float())\n",
        changed="    total = torch.zeros(CLASSES).index_add_(0, road.flatten(), speeds.to(like.dtype).float())\n",
        precisions=("bf16-mixed", "bf16-true"),
        why="Each speed is rounded once, and they are added in float32.",
    ),
    Harmless(
        name="legs-counted-by-bincount",
        healthy=COUNT,
        changed="    count = torch.bincount(road.flatten(), minlength=CLASSES).float()\n",
        precisions=("bf16-true",),
        why="Whole numbers are counted as such.",
    ),
    Harmless(
        name="residual-rounded",
        healthy="    return correction.float() + (usual.float() / seconds.float()).log()\n",
        changed="    return (usual.float() / seconds.float()).log().to(like.dtype) + correction\n",
        precisions=MIXED,
        why="The ratio's logarithm is made in float32, and rounded once, as the correction is.",
    ),
]
