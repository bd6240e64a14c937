"""Bugs of tables of patients: years and codes of towns, chances near one, effects that are small beside outcomes, ranks beyond 256."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
MIXED = ("bf16-mixed", "16-mixed")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding", "decision-flip")
AGES = "    return (seen - born).float() / YEAR\n"
CUBES = "    cubes = torch.stack([(age - knot).clamp_min(0) ** 3 for knot in KNOTS], -1)\n"
TABLE = "    x = table.double()\n"
HAPPENED = "    happened = torch.where(treated, chance, 1 - chance)\n"
ODDS = "    return chance.log() - torch.log1p(-chance)\n"
EFFECT = "    return grams_with - grams_without\n"
ROBUST = "    return weights * (outcome.float() - guess)\n"
BANDED = "    return ((rank.long() - 1) * BANDS // ROWS).clamp_max(BANDS - 1)\n"
BALANCE = "    return (x * share).sum(0) / share.sum() - (x * (1 - share)).sum(0) / (1 - share).sum()\n"
GAPS = "    gaps = a[:, None] - b[None]\n    return (-gaps.square().sum(-1) / width).exp()\n"
CURVE = "    return ordered.cumsum(0) / 1000\n"
COUNT = "    count = torch.zeros(CENTRES).index_add_(0, centre, torch.ones(ROWS))\n"
TOTAL = "    total = torch.zeros(CENTRES).index_add_(0, centre, values.float())\n"
SHARE = "    return weights.sum().square() / weights.square().sum() / len(weights)\n"

BUGS = [
    Planted(
        name="days-low",
        healthy=AGES,
        planted="    return (seen.to(low) - born.to(low)).float() / YEAR  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:ages",
        rules=WHOLE,
        why="Of 738000 days bfloat16 knows every 4096th, which is eleven years.",
        source="https://github.com/utensils/mold/issues/786",
    ),
    Planted(
        name="cubes-overflow",
        healthy=CUBES,
        planted="    cubes = torch.stack([(age.to(low) - knot).clamp_min(0) ** 3 for knot in KNOTS], -1).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:bent",
        rules=("overflow", "nan"),
        why="The cube of 47 years is beyond float16.",
        source="https://github.com/apple/coremltools/pull/2727",
    ),
    Planted(
        name="columns-low",
        healthy=TABLE,
        planted="    x = table.to(low).double()  # culprit\n",
        precisions=BF16,
        part="function:scaled",
        rules=WHOLE,
        why="Of years bfloat16 knows every eighth, and of codes of towns every 256th.",
        source="https://github.com/ecmwf/WeatherGenerator/issues/2046",
    ),
    Planted(
        name="grams-low",
        healthy="    return (grams.float() - grams.float().mean()) / 500\n",
        planted="    grams = grams.to(low)  # culprit\n    return ((grams - grams.mean()) / 500).float()  # culprit\n",
        precisions=BF16,
        part="function:outcome_scaled",
        rules=WHOLE,
        why="Of 3400 grams bfloat16 knows every 16th, and so of the mean.",
        source="https://github.com/amazon-science/chronos-forecasting/issues/193",
    ),
    Planted(
        name="chances-low",
        healthy=HAPPENED,
        planted="    happened = torch.where(treated, chance, (1 - chance.to(low)).float().clamp_min(0.002))  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:inverse_weights",
        rules=DRIFTS,
        why="A chance of 0.99 is known to a 256th, and one less it is a hundredth.",
        source="https://github.com/fastino-ai/GLiNER2/pull/155",
    ),
    Planted(
        name="odds-low",
        healthy=ODDS,
        planted="    return chance.log() - torch.log1p(-chance.to(low)).float().clamp_min(-9)  # culprit\n",
        precisions=BF16,
        part="function:log_odds",
        rules=(*DRIFTS, "overflow", "nan"),
        why="A chance of 0.998 is one in bfloat16.",
        source="https://github.com/zylo117/Yet-Another-EfficientDet-Pytorch/issues/502",
    ),
    Planted(
        name="effects-low",
        healthy=EFFECT,
        planted="    return (grams_with.to(low) - grams_without.to(low)).float()  # culprit\n",
        precisions=MIXED,
        part="function:effects",
        rules=DRIFTS,
        why="Outcomes of 3400 are known to 16 or two, and differ by thirty.",
        source="https://github.com/google/objax/issues/182",
    ),
    Planted(
        name="residuals-low",
        healthy=ROBUST,
        planted="    return weights * (outcome.to(low) - guess.to(low)).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:doubly_robust",
        rules=WHOLE,
        why="Weights of 3400 are known to 16, and the guess is off by a hundred.",
        source="https://github.com/amazon-science/chronos-forecasting/issues/193",
    ),
    Planted(
        name="distances-expanded",
        healthy=GAPS,
        planted="    a, b = a.to(torch.bfloat16) + 8, b.to(torch.bfloat16) + 8  # culprit\n"
        "    apart = a.square().sum(-1)[:, None] + b.square().sum(-1)[None] - 2 * a @ b.T  # culprit\n"
        "    return (-apart.float() / width).exp()\n",
        precisions=("bf16-mixed",),
        part="function:closeness",
        rules=(*DRIFTS, "overflow"),
        why="Squares of 1500 are known to eight, and distances are nearly nought.",
        source="https://github.com/NVIDIA/cuvs/issues/991",
    ),
    Planted(
        name="gains-absorbed",
        healthy=CURVE,
        planted="    total, out = torch.zeros((), dtype=low), []\n"
        "    for gain in (ordered + 60).unbind(0):\n"
        "        total = total + gain.to(low)  # culprit\n"
        "        out.append(total)\n"
        "    return (torch.stack(out).float() - 60 * torch.arange(1, ROWS + 1)) / 1000\n",
        precisions=("bf16-mixed",),
        part="function:gain_curve",
        rules=("absorption", *DRIFTS),
        why="Sixty grams are added to thirty thousand, of which bfloat16 knows every 128th.",
        source="https://github.com/fla-org/flash-linear-attention/issues/29",
    ),
    Planted(
        name="centres-counted-low",
        healthy=COUNT,
        planted="    count = torch.zeros(CENTRES, dtype=low)\n"
        "    for k in centre.tolist():\n"
        "        count[k] += 2.5  # culprit\n"
        "    count = count.float() / 2.5\n",
        precisions=("bf16-mixed",),
        part="function:by_centre",
        rules=("absorption", "integer-rounding", *DRIFTS),
        why="Beyond 512 two and a half is added as two or four.",
        source="https://github.com/rusty1s/pytorch_scatter/issues/269",
    ),
    Planted(
        name="total-overflows",
        healthy=TOTAL,
        planted="    total = torch.zeros(CENTRES, dtype=low).index_add_(0, centre, values.to(low)).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:by_centre",
        rules=("overflow", "nan"),
        why="A hundred newborns weigh 340000 grams.",
        source="https://github.com/adobe-research/convmelspec/pull/3",
    ),
    Planted(
        name="weights-overflow",
        healthy=SHARE,
        planted="    weights = weights.to(low)\n    return weights.sum().square() / weights.square().sum() / len(weights)  # culprit\n",
        precisions=("16-mixed",),
        part="function:spread_of_weights",
        rules=("overflow", "nan"),
        why="The square of the sum of 640 weights of two and more is beyond float16.",
        source="https://github.com/pytorch/pytorch/issues/43211",
    ),
]

HARMLESS = [
    Harmless(
        name="ages-rounded",
        healthy=AGES,
        changed="    return ((seen - born).float() / YEAR).to(low)\n",
        precisions=("16-mixed",),
        why="Days are subtracted as whole numbers, and the years are rounded once: of an age of 60 to a 64th of a year.",
    ),
    Harmless(
        name="cubes-in-decades",
        healthy="    return (cubes[:, :-1] - cubes[:, -1:]) / 1e4\n",
        changed="    return ((cubes[:, :-1] - cubes[:, -1:]) / 1e4).to(low)\n",
        precisions=ALL,
        why="Cubes are made and subtracted in float32.",
    ),
    Harmless(
        name="columns-centred-first",
        healthy="    return ((x - x.mean(0)) / x.std(0)).float()\n",
        changed="    return ((x - x.mean(0)).to(low).float() / x.std(0)).float()\n",
        precisions=ALL,
        why="What is left of a column without its mean is rounded once.",
    ),
    Harmless(
        name="grams-centred-first",
        healthy="    return (grams.float() - grams.float().mean()) / 500\n",
        changed="    return (grams.float() - grams.float().mean()).to(low) / 500\n",
        precisions=ALL,
        why="The mean is taken off in float32.",
    ),
    Harmless(
        name="chances-of-the-other-logit",
        healthy=HAPPENED,
        changed="    happened = torch.where(treated, chance.to(low), (1 - chance).to(low)).float()\n",
        precisions=ALL,
        why="One less a chance is made in float32, and rounded once.",
    ),
    Harmless(
        name="effects-rounded",
        healthy=EFFECT,
        changed="    return (grams_with - grams_without).to(low)\n",
        precisions=ALL,
        why="The difference is made in float32.",
    ),
    Harmless(
        name="bands-rounded",
        healthy="    return ((rank.long() - 1) * BANDS // ROWS).clamp_max(BANDS - 1)\n",
        changed="    return ((rank.long() - 1) * BANDS // ROWS).to(low).clamp_max(BANDS - 1).long()\n",
        precisions=ALL,
        why="Numbers of eight bands are exact.",
    ),
    Harmless(
        name="ranks-over-a-power-of-two",
        healthy=BANDED,
        changed="    return ((rank - 1) / 80).floor().to(low).clamp_max(BANDS - 1).long()\n",
        precisions=ALL,
        why="A rank is divided in float32, and whole numbers up to eight are exact.",
    ),
    Harmless(
        name="kernel-rounded",
        healthy=GAPS,
        changed="    gaps = (a[:, None] - b[None]).to(torch.bfloat16).float()\n    return (-gaps.square().sum(-1) / width).exp()\n",
        precisions=("bf16-mixed",),
        why="Differences are made in float32.",
    ),
    Harmless(
        name="gains-in-kilograms",
        healthy=CURVE,
        changed="    return (ordered.to(low).float() / 1000).cumsum(0)\n",
        precisions=ALL,
        why="Each gain is rounded once, and the running sum is in float32.",
    ),
    Harmless(
        name="weights-halved",
        healthy=SHARE,
        changed="    weights = (weights / 64).to(low).float()\n    return weights.sum().square() / weights.square().sum() / len(weights)\n",
        precisions=ALL,
        why="Only the ratio of the two counts, and sums are in float32.",
    ),
]
