"""Bugs of finding a place on Earth: degrees that are subtracted, distances from cosines, tiles, waves, seconds since 1970, heights."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
INFINITE = ("overflow", "nan")
DIFFERENCE = "    high, wide = radians(latitude[:, None] - others), radians(longitude[:, None] - beyond)\n"
DISTANCE = "    return 2 * RADIUS * half.clamp(0, 1).sqrt().asin()\n"
BEHIND = "    behind = distance - distance.min(1, keepdim=True).values\n"
LABEL = "    return torch.exp(-behind / NEAR)\n"
ACROSS = "    across = (longitude.float() / 360e6 + 0.5) * 2**ZOOM\n"
INTO = "    return across - across.floor()\n"
ANGLE = "    angle = 2 * math.pi * turn[..., None] * 2.0 ** torch.arange(0, 9)\n"
SINES = "    return torch.cat([angle.sin(), angle.cos()], -1).flatten(-2)\n"
CLOCK = "    angle = (seconds % 86_400).float() * (2 * math.pi / 86_400)\n"
METRES = "    metres = (height[:, 1:] - height[:, :-1]).float() / 100\n"
APART = "    apart = (one[:, None] - other) * RADIUS\n"
CHORD = "    return (apart * apart).sum(-1).clamp_min(1e-6).sqrt()\n"

BUGS = [
    Planted(
        name="degrees-low",
        healthy=DIFFERENCE,
        planted="    places = [(each.float() / 1e6).bfloat16() for each in (latitude, others, longitude, beyond)]  # culprit\n"
        "    high, wide = (places[0][:, None] - places[1]).float(), (places[2][:, None] - places[3]).float()  # culprit\n"
        "    high, wide = high * (math.pi / 180), wide * (math.pi / 180)\n",
        precisions=BF16,
        part="function:kilometres",
        rules=WHOLE,
        why="Longitudes of 130 degrees are known to one, which are 75 kilometres.",
        source="https://github.com/networknext/next/pull/1494",
    ),
    Planted(
        name="law-of-cosines",
        healthy=DISTANCE,
        planted="    cosine = (1 - 2 * half).bfloat16()  # culprit\n    return (RADIUS * cosine.clamp(-1, 1).acos()).float()  # culprit\n",
        precisions=BF16,
        part="function:kilometres",
        rules=(*DRIFTS, "absorption"),
        why="Cosines near one are known to a 256th, and an angle of a quarter changes by as much as a 60th.",
        source="https://github.com/AndGem/OsmToRoadGraph/pull/90",
    ),
    Planted(
        name="nearest-low",
        healthy=BEHIND,
        planted="    distance = distance.bfloat16()  # culprit\n    behind = (distance - distance.min(1, keepdim=True).values).float()  # culprit\n",
        precisions=BF16,
        part="function:nearness",
        rules=DRIFTS,
        why="Fifteen hundred kilometres are known to eight, and an exponential of what is left decides.",
        source="https://github.com/deep-spin/entmax/issues/30",
    ),
    Planted(
        name="tiles-low",
        healthy=ACROSS,
        planted="    across = ((longitude.float() / 360e6 + 0.5) * 2**ZOOM).bfloat16().float()  # culprit\n",
        precisions=BF16,
        part="function:within_tile",
        rules=WHOLE,
        why="Of 830 tiles bfloat16 knows every fourth.",
        source="https://github.com/OpenGeoscience/geojs/pull/1005",
    ),
    Planted(
        name="tiles-half",
        healthy=ACROSS,
        planted="    across = ((longitude.float() / 360e6 + 0.5) * 2**ZOOM).half().float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:within_tile",
        rules=WHOLE,
        why="Of 830 tiles float16 knows half of one.",
        source="https://github.com/OpenGeoscience/geojs/pull/1005",
    ),
    Planted(
        name="waves-low",
        healthy=ANGLE,
        planted="    angle = (2 * math.pi * turn[..., None] * 2.0 ** torch.arange(0, 9)).bfloat16()  # culprit\n",
        more=((SINES, "    return torch.cat([angle.sin(), angle.cos()], -1).flatten(-2).float()\n"),),
        precisions=BF16,
        part="function:waves",
        rules=DRIFTS,
        why="An angle of 600 is known to four radians.",
        source="https://github.com/samvanstroud/hepattn/issues/63",
    ),
    Planted(
        name="seconds-low",
        healthy=CLOCK,
        planted="    angle = (seconds.to(torch.bfloat16).float() % 86_400) * (2 * math.pi / 86_400)  # culprit\n",
        precisions=BF16,
        part="function:clock",
        rules=WHOLE,
        why="Seconds since 1970 are known to three months.",
        source="https://github.com/circonus-labs/reconnoiter/pull/330",
    ),
    Planted(
        name="heights-low",
        healthy=METRES,
        planted="    high = (height.float() / 100).bfloat16()  # culprit\n    metres = (high[:, 1:] - high[:, :-1]).float()  # culprit\n",
        precisions=BF16,
        part="function:slopes",
        rules=WHOLE,
        why="Two thousand metres are known to eight, and the ground rises by one.",
        source="https://github.com/vcloarec/ReosProject/pull/13",
    ),
    Planted(
        name="chord-overflows",
        healthy=APART,
        planted="    apart = ((one[:, None] - other) * RADIUS).half()  # culprit\n",
        more=((CHORD, "    return (apart * apart).sum(-1).clamp_min(1e-6).sqrt().float()  # culprit\n"),),
        precisions=("16-mixed",),
        part="function:chord",
        rules=INFINITE,
        why="The square of 256 kilometres is more than float16 has.",
        source="https://github.com/nntrainer/nntrainer/issues/3935",
    ),
]

HARMLESS = [
    Harmless(
        name="slopes-rounded",
        healthy=METRES,
        changed="    metres = ((height[:, 1:] - height[:, :-1]).float() / 100).bfloat16()\n",
        precisions=BF16,
        why="The difference is that of whole numbers, and is rounded once.",
    ),
    Harmless(
        name="labels-rounded",
        healthy=LABEL,
        changed="    return torch.exp(-behind / NEAR).bfloat16()\n",
        precisions=BF16,
        why="The label is rounded once.",
    ),
    Harmless(
        name="chord-in-radii",
        healthy=APART,
        changed="    apart = (one[:, None] - other).half()\n",
        more=((CHORD, "    return RADIUS * (apart * apart).sum(-1).clamp_min(1e-6).sqrt().float()\n"),),
        precisions=("16-mixed",),
        why="On a sphere of radius one, squares are four at most.",
    ),
    Harmless(
        name="into-tile-rounded",
        healthy=INTO,
        changed="    return (across - across.floor()).bfloat16()\n",
        precisions=BF16,
        why="The whole tiles are taken off in float32.",
    ),
]
