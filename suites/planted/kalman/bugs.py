"""Bugs of a Kalman filter: small differences of large places and times, powers of short steps, covariances, squares of outliers."""

from __future__ import annotations

from planted_bug import Harmless, Planted

MIXED = ("bf16-mixed", "16-mixed")

BUGS = [
    Planted(
        name="times-low",
        healthy="    return (times[:, 1:] - times[:, :-1]).float()\n",
        planted="    seconds = times.to(low)  # culprit\n    return (seconds[:, 1:] - seconds[:, :-1]).float()  # culprit\n",
        precisions=MIXED,
        part="function:step_lengths",
        rules=("cancellation", "amplified-rounding", "local-drift", "integer-rounding"),
        why="Of the 41234th second of a day bfloat16 knows every 256th and float16 every 32nd, and steps are hundredths.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="times-single-then-low",
        healthy="    return (times[:, 1:] - times[:, :-1]).float()\n",
        planted="    seconds = (times - 41000).to(low).float()  # culprit\n    return seconds[:, 1:] - seconds[:, :-1]\n",
        precisions=MIXED,
        part="function:step_lengths",
        rules=("cancellation", "amplified-rounding", "local-drift", "accumulated-drift"),
        why="After 235 seconds bfloat16 knows one and float16 an eighth.",
        source="https://github.com/binux/pyspider/pull/83",
    ),
    Planted(
        name="innovation-low",
        healthy="    return reading - state[:, :2]\n",
        planted="    return (reading.to(low) - state[:, :2].to(low)).float()  # culprit\n",
        precisions=MIXED,
        part="function:innovation",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="A place of 20000 metres is known to 128 in bfloat16 and to 16 in float16, and readings err by one.",
        source="https://github.com/aqlaboratory/openfold/pull/222",
    ),
    Planted(
        name="outlier-overflows",
        healthy="    return y.square().sum(-1) / (s[:, 0, 0] + s[:, 1, 1])\n",
        planted="    small = y.half()\n    return (small * small).sum(-1).float() / (s[:, 0, 0] + s[:, 1, 1])  # culprit\n",
        precisions=("16-mixed",),
        part="function:gate",
        rules=("overflow",),
        why="The square of 300 metres is beyond float16.",
        source="https://github.com/openai/glow/issues/40",
    ),
    Planted(
        name="heading-absorbed",
        healthy="        heading = heading + rates[:, k] * dt[:, k]\n",
        planted="        heading = heading.to(low) + (rates[:, k] * dt[:, k]).to(low)  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:headings",
        rules=("absorption", "local-drift", "accumulated-drift"),
        why="A turn of a fifth of a degree is lost beside 200, where bfloat16 has whole numbers.",
        source="https://github.com/fla-org/flash-linear-attention/issues/29",
    ),
    Planted(
        name="density-vanishes",
        healthy="    return logs.mean(1)\n",
        planted="    return logs.exp().half().prod(1).float().log() / logs.shape[1]  # culprit\n",
        precisions=("16-mixed",),
        part="function:evidence",
        rules=("underflow", "overflow", "nan"),
        why="The product of the densities of eight readings is near the smallest number of float16 or below it.",
        source="https://github.com/VincentStimper/normalizing-flows/pull/52",
    ),
]

HARMLESS = [
    Harmless(
        name="steps-rounded",
        healthy="    return (times[:, 1:] - times[:, :-1]).float()\n",
        changed="    return (times[:, 1:] - times[:, :-1]).to(low).float()\n",
        precisions=MIXED,
        why="The difference is made in float64, and rounded once.",
    ),
    Harmless(
        name="noise-rounded",
        healthy="    entries = [dt**4 / 4, dt**3 / 2, dt**2]\n",
        changed="    entries = [each.to(low).float() for each in (dt**4 / 4, dt**3 / 2, dt**2)]\n",
        precisions=("bf16-mixed",),
        why="Each is rounded once, and bfloat16 has the range of float32.",
    ),
    Harmless(
        name="innovation-rounded",
        healthy="    return reading - state[:, :2]\n",
        changed="    return (reading - state[:, :2]).to(low).float()\n",
        precisions=MIXED,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="covariance-rounded",
        healthy="    return rest @ p\n",
        changed="    after = rest @ p\n    return ((after + after.transpose(1, 2)) / 2).to(low).float()\n",
        precisions=("16-mixed",),
        why="Each number of the covariance is rounded once, after the difference.",
    ),
    Harmless(
        name="outlier-scaled",
        healthy="    return y.square().sum(-1) / (s[:, 0, 0] + s[:, 1, 1])\n",
        changed="    small = (y / 16).to(low)\n    return (small * small).sum(-1).float() * 256 / (s[:, 0, 0] + s[:, 1, 1])\n",
        precisions=("bf16-mixed",),
        why="Sixteenths of the differences have squares within the range, and two of them are added.",
    ),
    Harmless(
        name="turns-rounded",
        healthy="        heading = heading + rates[:, k] * dt[:, k]\n",
        changed="        heading = heading + (rates[:, k] * dt[:, k]).to(low).float()\n",
        precisions=MIXED,
        why="A turn is rounded once, and it is added in float32.",
    ),
    Harmless(
        name="logs-rounded",
        healthy="    return logs.mean(1)\n",
        changed="    return logs.to(low).float().mean(1)\n",
        precisions=MIXED,
        why="Each logarithm is rounded once, and a mean is over eight of them.",
    ),
    Harmless(
        name="identity-low",
        healthy="    f = torch.eye(4).repeat(len(dt), 1, 1)\n",
        changed="    f = torch.eye(4, dtype=torch.float16).repeat(len(dt), 1, 1).float()\n",
        precisions=MIXED,
        why="Noughts and ones.",
    ),
]
