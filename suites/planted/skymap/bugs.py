"""Bugs of a map of the sky: angles of many turns, directions that are near each other, numbers of pixels, counts, and weights of small spreads."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
HALF = ("16-mixed",)
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
PLATE = "    return 2 * math.pi * torch.remainder(sample * turns, 1000 * rate).float() / (1000 * rate)\n"
APART = "    return torch.atan2(torch.linalg.cross(first, second).norm(dim=-1), (first * second).sum(-1))\n"
PIXEL = "    return ring * COLUMNS + column\n"
HITS = "    seen = torch.zeros(CELLS, dtype=torch.long)\n    return seen.index_add(0, cell.flatten(), torch.ones_like(cell.flatten())).float()\n"
TRUSTED = "    weight = (spread.float() / 1e6).square().reciprocal()\n    return weight / weight.sum()\n"
WARMTH = "    return (millis - 273_150).float() / 1000\n"
SLANT = "    return (2 * EARTH * LAYER + LAYER * LAYER) / (below + torch.sqrt(below.square() + 2 * EARTH * LAYER + LAYER * LAYER))\n"
EMITTED = "    return -torch.expm1(-depth.float())\n"
SMOOTHED = "    return signal.float().unfold(-1, width, 1).mean(-1)\n"

BUGS = [
    Planted(
        name="plate-unwrapped-low",
        healthy=PLATE,
        planted="    turned = (sample / rate).bfloat16() * turns / 1000  # culprit\n"
        "    return 2 * math.pi * torch.remainder(turned, 1).float()  # culprit\n",
        precisions=BF16,
        part="function:plate",
        rules=WHOLE,
        why="After two hundred turns bfloat16 knows every whole turn.",
        source="https://github.com/surge-synthesizer/surge/pull/2571",
    ),
    Planted(
        name="apart-by-cosine-low",
        healthy=APART,
        planted="    near = (first * second).sum(-1).bfloat16()  # culprit\n    return torch.acos(near.clamp(-0.998, 0.998)).float()  # culprit\n",
        precisions=BF16,
        part="function:apart",
        rules=DRIFTS,
        why="The cosine of a few degrees is one but for its last digits.",
        source="https://github.com/GalacticDynamics/coordinax/issues/836",
    ),
    Planted(
        name="pixel-low",
        healthy=PIXEL,
        planted="    return (ring.bfloat16() * COLUMNS + column).long()  # culprit\n",
        precisions=BF16,
        part="function:hits",
        rules=WHOLE,
        why="There are twelve thousand pixels before it, and bfloat16 has every 64th.",
        source="https://github.com/astropy/astropy-healpix/issues/34",
    ),
    Planted(
        name="hits-low",
        healthy=HITS,
        planted="    seen, one = torch.zeros(CELLS, dtype=torch.bfloat16), torch.ones(cell.numel(), dtype=torch.bfloat16)\n"
        "    return seen.index_add(0, cell.flatten(), one).float()  # culprit\n",
        precisions=BF16,
        part="function:hits",
        rules=(*WHOLE, "absorption"),
        why="A count in bfloat16 stands still at 256.",
        source="https://github.com/NVIDIA/cccl/issues/10976",
    ),
    Planted(
        name="weights-half",
        healthy=TRUSTED,
        planted="    weight = (spread / 1e6).half().square().reciprocal()  # culprit\n    return (weight / weight.sum()).float()  # culprit\n",
        precisions=HALF,
        part="function:trusted",
        rules=("overflow", "nan", "underflow"),
        why="One over the square of a thousandth is more than float16 has.",
        source="https://github.com/spacetelescope/stcal/pull/556",
    ),
    Planted(
        name="warmth-of-half-kelvins",
        healthy=WARMTH,
        planted="    return (millis / 1000).half().float() - 273.15  # culprit\n",
        precisions=HALF,
        part="function:warmth",
        rules=DRIFTS,
        why="Near freezing float16 knows a quarter of a kelvin, and the load changes by one.",
        source="https://github.com/vedderb/bldc/issues/169",
    ),
    Planted(
        name="slant-by-difference-low",
        healthy=SLANT,
        planted="    far = torch.sqrt(below.square() + 2 * EARTH * LAYER + LAYER * LAYER)\n"
        "    return far.bfloat16().float() - below.bfloat16().float()  # culprit\n",
        precisions=BF16,
        part="function:slant",
        rules=DRIFTS,
        why="Five kilometres are the difference of two distances of five thousand.",
        source="https://github.com/sunpy/sunpy/pull/4724",
    ),
    Planted(
        name="emitted-by-one-less-low",
        healthy=EMITTED,
        planted="    return 1 - torch.exp(-depth).bfloat16().float()  # culprit\n",
        precisions=BF16,
        part="function:emitted",
        rules=DRIFTS,
        why="Thin air lets nearly all through, and what it does not is the difference.",
        source="https://github.com/HajimeKawahara/exojax/pull/744",
    ),
    Planted(
        name="smoothed-by-sums-half",
        healthy=SMOOTHED,
        planted="    sums = F.pad(signal.float().cumsum(-1), (1, 0)).half().float()  # culprit\n"
        "    return (sums[:, width:] - sums[:, :-width]) / width  # culprit\n",
        precisions=HALF,
        part="function:smoothed",
        rules=(*DRIFTS, "absorption"),
        why="A sum of thousands is known to one or two, and a window has a hundred of it.",
        source="https://github.com/numpy/numpy/issues/24443",
    ),
]

HARMLESS = [
    Harmless(
        name="plate-rounded",
        healthy=PLATE,
        changed=PLATE.removesuffix("\n").replace("return ", "return (") + ").bfloat16().float()\n",
        precisions=BF16,
        why="An angle within one turn is rounded once.",
    ),
    Harmless(
        name="apart-rounded",
        healthy=APART,
        changed="    across = torch.linalg.cross(first, second).norm(dim=-1)\n"
        "    return torch.atan2(across.bfloat16(), (first * second).sum(-1).bfloat16()).float()\n",
        precisions=BF16,
        why="An arc tangent is as exact as the sine and the cosine.",
    ),
    Harmless(
        name="emitted-rounded",
        healthy=EMITTED,
        changed="    return -torch.expm1(-depth.bfloat16()).float()\n",
        precisions=BF16,
        why="The exponential less one is as exact as the depth.",
    ),
    Harmless(
        name="hits-rounded",
        healthy=HITS,
        changed=HITS.replace(".float()", ".bfloat16().float()"),
        precisions=BF16,
        why="All have been counted as whole numbers.",
    ),
    Harmless(
        name="weights-of-scaled-spreads",
        healthy=TRUSTED,
        changed="    weight = (spread.min() / spread).half().square()\n    return (weight / weight.sum()).float()\n",
        precisions=HALF,
        why="Weights beside the largest are between zero and one.",
    ),
]
