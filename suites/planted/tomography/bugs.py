"""Bugs of scanners: logarithms near nought, a filter whose terms cancel, places between bins, sums of photons."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
MIXED = ("bf16-mixed", "16-mixed")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation", "integer-rounding")
LINES = "    return -(counts.float() / air.float()).log()\n"
STEPS = "    steps = torch.arange(VIEWS) + 0.25\n    return steps * (math.pi * 13 / 12 / VIEWS)\n"
FILTER = "    return F.conv1d(lines.flatten(0, 1)[:, None], math.pi * ramp()[None, None], padding=BINS - 1).unflatten(0, lines.shape[:2])[:, :, 0]\n"
PART = "    left = place.floor().clamp(0, BINS - 2)\n    part = place - left\n"
TISSUE = "    return 10 * (slices - WATER) / WATER\n"
DOSE = "    return counts.float().sum(-1) / BINS / 1000\n"

BUGS = [
    Planted(
        name="lines-by-difference",
        healthy=LINES,
        planted="    return (air.float().log().to(low) - counts.clamp_min(1).float().log().to(low)).float()  # culprit\n",
        precisions=ALL,
        part="function:attenuation",
        rules=DRIFTS,
        why="Logarithms of ten are known to a thirty-second, and their difference is a half.",
        source="https://github.com/pytorch/pytorch/issues/88939",
    ),
    Planted(
        name="filter-low",
        healthy=FILTER,
        planted="    lines, kernel = lines.to(low), (math.pi * ramp()).to(low)  # culprit\n"
        "    return F.conv1d(lines.flatten(0, 1)[:, None], kernel[None, None], padding=BINS - 1).unflatten(0, lines.shape[:2])[:, :, 0]  # culprit\n",
        precisions=BF16,
        part="function:filtered",
        rules=DRIFTS,
        why="The middle of the filter cancels all the rest where the lines are smooth.",
        source="https://github.com/pytorch/audio/issues/3280",
    ),
    Planted(
        name="place-low",
        healthy=PART,
        planted="    place = place.to(low)  # culprit\n" + PART.replace("part = place - left", "part = (place - left).float()  # culprit"),
        precisions=BF16,
        part="function:back_projected",
        rules=DRIFTS,
        why="A place of fifty bins is known to a quarter of one.",
        source="https://github.com/pytorch/pytorch/issues/88939",
    ),
    Planted(
        name="dose-overflows",
        healthy=DOSE,
        planted="    return (counts.to(low).sum(-1) / BINS / 1000).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:exposure",
        rules=("overflow",),
        why="Sixty-four bins of 20 000 photons are a million.",
        source="https://github.com/qubvel-org/segmentation_models.pytorch/issues/463",
    ),
]

HARMLESS = [
    Harmless(
        name="dose-rounded",
        healthy=DOSE,
        changed="    return (counts.float() / 1000).to(low).sum(-1).float() / BINS\n",
        precisions=ALL,
        why="Thousands of photons are rounded once each, and all are positive.",
    ),
    Harmless(
        name="parts-rounded",
        healthy="    part = place - left\n",
        changed="    part = (place - left).to(low).float()\n",
        precisions=ALL,
        why="The place within a bin is made in float32, and rounded once.",
    ),
    Harmless(
        name="tissue-rounded",
        healthy=TISSUE,
        changed="    return (10 * (slices - WATER) / WATER).to(low).float()\n",
        precisions=ALL,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="angles-by-whole-steps",
        healthy=STEPS,
        changed="    return (torch.arange(VIEWS, dtype=low).float() + 0.25) * (math.pi * 13 / 12 / VIEWS)\n",
        precisions=ALL,
        why="Whole numbers up to 120 are exact in every format.",
    ),
]
