"""Bugs of mass spectra: masses of a thousand known to a ten thousandth, differences of them, counts of millions, sums of residues."""

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
MIXED = ("bf16-mixed", "16-mixed")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding", "decision-flip")
DEPTHCHARGE = "https://github.com/wfondrie/depthcharge/pull/82"
ANGLE = "        angle = 2 * math.pi * mz[..., None] / lengths\n"
NEUTRAL = "    return (mz - PROTON) * charge.float()\n"
ROOT = "    root = counts.float().sqrt()\n"
LADDER = "    return masses.cumsum(-1) + PROTON\n"
GAP = "    gap = (mz[:, None] - fragments[..., None]).abs().amin(-1)\n"
PPM = "    return (found - wanted) / wanted * 1e6\n"
SHARE = "    share = counts.float() / counts.float().sum(-1, keepdim=True)\n"
BINS = "    return (mz * 10).floor().long() % 997\n"
CLOCK = "    angle = seconds.float()[:, None] / 3600 * 2 * math.pi * 2.0 ** torch.arange(6).float()\n"

BUGS = [
    Planted(
        name="waves-of-low-masses",
        healthy=ANGLE,
        planted="        angle = 2 * math.pi * mz.type_as(like)[..., None] / lengths.type_as(like)  # culprit\n",
        precisions=ALL,
        part="waves",
        rules=DRIFTS,
        why="Of a mass of 1000 bfloat16 knows every fourth dalton, and the shortest wave is a hundredth of one.",
        source=DEPTHCHARGE,
    ),
    Planted(
        name="neutral-mass-low",
        healthy=NEUTRAL,
        planted="    return ((mz.type_as(like) - PROTON) * charge.type_as(like)).float()  # culprit\n",
        precisions=MIXED,
        part="function:ppm",
        rules=DRIFTS,
        why="A mass of 1500 is known to 8 or to 1, and what it is off is told in millionths.",
        source="https://github.com/OpenMS/OpenMS/issues/2442",
    ),
    Planted(
        name="counts-overflow",
        healthy=ROOT,
        planted="    root = counts.type_as(like).sqrt().float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:heights",
        rules=("overflow", "nan"),
        why="A peak of three million ions is beyond float16.",
        source="https://github.com/open-mmlab/mmdetection/issues/5237",
    ),
    Planted(
        name="ladder-low",
        healthy=LADDER,
        planted="    return (masses.type_as(like).cumsum(-1) + PROTON).float()  # culprit\n",
        precisions=BF16,
        part="function:explained",
        rules=DRIFTS,
        why="Fragments of 900 daltons are known to four, and peaks to a hundredth.",
        source=DEPTHCHARGE,
    ),
    Planted(
        name="gaps-low",
        healthy=GAP,
        planted="    gap = (mz.type_as(like)[:, None] - fragments.type_as(like)[..., None]).abs().amin(-1).float()  # culprit\n",
        precisions=ALL,
        part="function:explained",
        rules=DRIFTS,
        why="The difference of two masses is what is left of their roundings.",
        source="https://github.com/OpenMS/OpenMS/pull/754",
    ),
    Planted(
        name="millionths-low",
        healthy=PPM,
        planted="    found, wanted = found.type_as(like), wanted.type_as(like)  # culprit\n"
        "    return ((found - wanted) / wanted * 1e6).float().clamp(-1e5, 1e5)  # culprit\n",
        precisions=BF16,
        part="function:ppm",
        rules=DRIFTS,
        why="Two masses that differ by ten millionths are the same number in bfloat16, or neighbours that differ by 4000.",
        source="https://github.com/OpenMS/OpenMS/issues/2442",
    ),
    Planted(
        name="bins-low",
        healthy=BINS,
        planted="    return (mz.type_as(like) * 10).floor().long() % 997  # culprit\n",
        precisions=ALL,
        part="function:bins",
        rules=WHOLE,
        why="The tenth of a dalton that a mass of 800 is in needs thirteen bits.",
        source="https://github.com/dmlc/gluon-nlp/pull/272",
    ),
]

HARMLESS = [
    Harmless(
        name="waves-rounded",
        healthy="        return torch.cat([angle.sin(), angle.cos()], -1).type_as(like)\n",
        changed="        return torch.cat([angle.sin().type_as(like), angle.cos().type_as(like)], -1)\n",
        precisions=ALL,
        why="The angle is exact, and each wave is rounded once, as it was.",
    ),
    Harmless(
        name="charge-low",
        healthy=NEUTRAL,
        changed="    return (mz - PROTON) * charge.type_as(like).float()\n",
        precisions=ALL,
        why="Charges are two and three.",
    ),
    Harmless(
        name="heights-rounded",
        healthy=ROOT,
        changed="    root = counts.float().sqrt().type_as(like).float()\n",
        precisions=ALL,
        why="A root is at most 1700, and rounded once before it is divided by their length.",
    ),
    Harmless(
        name="gaps-rounded",
        healthy="    return (-0.5 * (gap / 0.02).square()).exp()\n",
        changed="    return (-0.5 * (gap / 0.02).type_as(like).float().square()).exp()\n",
        precisions=("16-mixed",),
        why="The difference is exact, and where its square is known badly, the bell is nearly nought.",
    ),
    Harmless(
        name="millionths-rounded",
        healthy=PPM,
        changed="    return ((found - wanted).type_as(like) / wanted.type_as(like)).float() * 1e6\n",
        precisions=BF16,
        why="The difference is made in float32; then both are rounded once, and divided.",
    ),
    Harmless(
        name="shares-rounded",
        healthy=SHARE,
        changed="    share = (counts.float() / counts.float().sum(-1, keepdim=True)).type_as(like).float()\n",
        precisions=BF16,
        why="A share is rounded once, and its logarithm is off by as much, or less.",
    ),
    Harmless(
        name="hours-rounded-late",
        healthy=CLOCK,
        changed="    hours = (seconds.float() / 3600)[:, None] * 2.0 ** torch.arange(6).float().type_as(like).float()\n"
        "    angle = hours.frac().type_as(like).float() * 2 * math.pi\n",
        precisions=("16-mixed",),
        why="Whole turns are taken off before the rounding, which is a two thousandth of a turn at most.",
    ),
]
