"""Bugs of signals: poles near one, states of filters, a small wave on a large voltage, milliseconds since the evening."""

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
VOLTS = "    return counts.float() * 2.4e-4\n"
LEVEL = "    return signal - signal.mean(-1, keepdim=True)\n"
TURN = "    turn = torch.tensor(math.tan(math.pi * 0.5 / RATE))\n"
COEFFICIENTS = "    gain, first, second = poles(low)\n"
SUMS = "    total = F.pad(power.cumsum(-1), (width, 0))\n"
DIFFS = "    return milliseconds.diff(dim=-1).float() / 1000\n"
RMSSD = "    return 1000 * between.diff(dim=-1).square().mean(-1).sqrt()\n"
SDNN = "    return 1000 * (between - between.mean(-1, keepdim=True)).square().mean(-1).sqrt()\n"
BAZETT = "    return milliseconds.float() / between.mean(-1).sqrt() - 420\n"
BREATH = "    angle = 2 * math.pi * (milliseconds.remainder(4100).float() / 4100)\n"
ALIKE = "    return (stretch * shape).sum(-1) / (stretch.square().sum(-1) * shape.square().sum(-1) + 1e-9).sqrt()\n"

BUGS = [
    Planted(
        name="volts-low",
        healthy=VOLTS,
        planted="    return (counts.float() * 2.4e-4).to(low).float()  # culprit\n",
        precisions=ALL,
        part="function:levelled",
        rules=DRIFTS,
        why="A heart's wave of a millivolt lies on 200 of them, which bfloat16 knows to one and float16 to an eighth.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
    Planted(
        name="level-low",
        healthy=LEVEL,
        planted="    signal = signal.to(low)  # culprit\n    return (signal - signal.mean(-1, keepdim=True)).float()  # culprit\n",
        precisions=("bf16-mixed", "bf16-true"),
        part="function:levelled",
        rules=DRIFTS,
        why="The mean is taken off when the wave is lost already.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
    Planted(
        name="poles-low",
        healthy=COEFFICIENTS,
        planted="    gain, first, second = (each.to(low).float() for each in poles(low))  # culprit\n",
        precisions=("16-mixed",),
        part="function:high_pass",
        rules=DRIFTS,
        why="Poles within a two hundredth of the unit circle are moved onto it, or beyond.",
        source="https://github.com/pytorch/audio/issues/3280",
    ),
    Planted(
        name="states-low",
        healthy="        one = -2 * gain * x - first * y + two\n",
        planted="        one = (-2 * gain * x - first * y + two).to(low).float()  # culprit\n",
        precisions=BF16,
        part="function:high_pass",
        rules=DRIFTS,
        why="The filter adds up what is left of a large difference, sample by sample.",
        source="https://github.com/pytorch/audio/issues/3280",
    ),
    Planted(
        name="milliseconds-low",
        healthy=DIFFS,
        planted="    return milliseconds.to(low).diff(dim=-1).float() / 1000  # culprit\n",
        precisions=BF16,
        part="function:intervals",
        rules=(*WHOLE, "nan", "overflow", "underflow"),
        why="Of five million milliseconds bfloat16 knows every 32 768th.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="variability-low",
        healthy=RMSSD,
        planted="    return 1000 * between.to(low).diff(dim=-1).float().square().mean(-1).sqrt()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:variability",
        rules=DRIFTS,
        why="Intervals of 0.8 seconds are known to four milliseconds, and differ by some tens.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
    Planted(
        name="spread-by-squares",
        healthy=SDNN,
        planted="    between = between.to(low)  # culprit\n"
        "    square = between.square().mean(-1) - between.mean(-1).square()  # culprit\n"
        "    return 1000 * square.float().clamp_min(0).sqrt()  # culprit\n",
        precisions=ALL,
        part="function:deviation",
        rules=DRIFTS,
        why="The variance is a thousandth of the mean square.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
    Planted(
        name="corrected-low",
        healthy=BAZETT,
        planted="    return (milliseconds.to(low) / between.mean(-1).sqrt().to(low) - 420).float()  # culprit\n",
        precisions=BF16,
        part="function:corrected",
        rules=WHOLE,
        why="Times of 420 milliseconds are known to two, and are ten beside the norm.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
]

HARMLESS = [
    Harmless(
        name="level-rounded-late",
        healthy=LEVEL,
        changed="    return (signal - signal.mean(-1, keepdim=True)).to(low).float()\n",
        precisions=ALL,
        why="The mean is taken off in float32, and the wave is rounded once.",
    ),
    Harmless(
        name="poles-by-double",
        healthy=TURN,
        changed="    turn = torch.tensor(math.tan(math.pi * 0.5 / RATE), dtype=torch.float64)\n",
        precisions=ALL,
        why="More digits than need be; the states take them.",
    ),
    Harmless(
        name="power-rounded",
        healthy=SUMS,
        changed="    total = F.pad(power.to(low).float().cumsum(-1), (width, 0))\n",
        precisions=BF16,
        why="Each power is rounded once, and the running sum is float32.",
    ),
    Harmless(
        name="intervals-rounded-late",
        healthy="    return 1000 * (between - between.mean(-1, keepdim=True)).square().mean(-1).sqrt()\n",
        changed="    return 1000 * (between - between.mean(-1, keepdim=True)).to(low).float().square().mean(-1).sqrt()\n",
        precisions=ALL,
        why="The mean is taken off in float32.",
    ),
    Harmless(
        name="norm-rounded-late",
        healthy=BAZETT,
        changed="    return (milliseconds.float() / between.mean(-1).sqrt() - 420).to(low).float()\n",
        precisions=ALL,
        why="The norm is taken off in float32, and the rest is rounded once.",
    ),
    Harmless(
        name="breath-rounded",
        healthy=BREATH,
        changed="    angle = 2 * math.pi * (milliseconds.remainder(4100).float() / 4100).double().float()\n",
        precisions=ALL,
        why="Whole breaths are taken off whole milliseconds, and more digits change nothing.",
    ),
    Harmless(
        name="likeness-rounded",
        healthy=ALIKE,
        changed="    return ((stretch * shape).sum(-1) / (stretch.square().sum(-1) * shape.square().sum(-1) + 1e-9).sqrt()).to(low).float()\n",
        precisions=ALL,
        why="A coefficient is rounded once.",
    ),
    Harmless(
        name="outputs-rounded",
        healthy="        out.append(y)\n",
        changed="        out.append(y.to(low).float())\n",
        precisions=BF16,
        why="The state does not see the rounding.",
    ),
    Harmless(
        name="differences-rounded-late",
        healthy=RMSSD,
        changed="    return 1000 * between.diff(dim=-1).to(low).float().square().mean(-1).sqrt()\n",
        precisions=ALL,
        why="Intervals differ in float32, and the difference is rounded once.",
    ),
]
