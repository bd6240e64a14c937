"""Bugs of orbits: seconds since 1970, ranges that nearly agree, one less the square of an eccentricity near one."""

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
SINCE = "    return (seconds - epoch[:, None]).float()\n"
TURNS = "    return torch.remainder(start[:, None].float() / 1000 + rate[:, None] * elapsed, 2 * math.pi)\n"
MINOR = "    return (1 - eccentric.square()).sqrt()\n"
MISSED = "    return seen.float() / 1000 - range_\n"
CUBE = "    return (MU / axis.float().pow(3)).sqrt()\n"
DENSITY = "    return (-(range_ - 6778).clamp_min(0) / 58).exp()\n"
ANGLE = "    angle = anomaly[..., None] * torch.arange(1, 5).float()\n"
ERROR = "            error = missed / 20 - drag\n"

BUGS = [
    Planted(
        name="seconds-low",
        healthy=SINCE,
        planted="    return (seconds.to(low) - epoch.to(low)[:, None]).float()  # culprit\n",
        precisions=BF16,
        part="function:since",
        rules=(*WHOLE, "underflow"),
        why="Of a billion seconds bfloat16 knows every eight millionth.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="residuals-low",
        healthy=MISSED,
        planted="    return ((seen.float() / 1000).to(low) - range_.to(low)).float()  # culprit\n",
        precisions=ALL,
        part="function:residuals",
        rules=(*DRIFTS, "overflow", "nan"),
        why="Ranges of 40 000 kilometres agree to 25, and bfloat16 knows them to 128.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
    Planted(
        name="cube-overflows",
        healthy=CUBE,
        planted="    return (MU / axis.to(low).pow(3)).sqrt().float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:motion",
        rules=("overflow", "nan", "underflow"),
        why="The cube of an axis is beyond float16, so the satellites stand still.",
        source="https://github.com/open-mmlab/mmdetection3d/issues/296",
    ),
    Planted(
        name="minor-low",
        healthy=MINOR,
        planted="    eccentric = eccentric.to(low)  # culprit\n    return (1 - eccentric.square()).sqrt().float()  # culprit\n",
        precisions=BF16,
        part="function:residuals",
        rules=DRIFTS,
        why="One less the square of 0.93 is known to a fiftieth if the square is rounded, and the short axis to a hundred kilometres.",
        source="https://github.com/pytorch/audio/issues/3280",
    ),
]

HARMLESS = [
    Harmless(
        name="residuals-rounded-late",
        healthy=MISSED,
        changed="    return (seen.float() / 1000 - range_).to(low).float()\n",
        precisions=ALL,
        why="Ranges are subtracted in float32, and the difference is rounded once.",
    ),
    Harmless(
        name="density-rounded",
        healthy=DENSITY,
        changed="    return (-(range_ - 6778).clamp_min(0) / 58).exp().to(low).float()\n",
        precisions=ALL,
        why="The exponential is taken in float32, and rounded once.",
    ),
    Harmless(
        name="waves-rounded",
        healthy="            facts = torch.cat([waves(anomaly, low),",
        changed="            facts = torch.cat([waves(anomaly, low).to(low).float(),",
        precisions=ALL,
        why="Waves are rounded before the first layer in any case.",
    ),
    Harmless(
        name="harmonics-low",
        healthy=ANGLE,
        changed="    angle = anomaly[..., None] * torch.arange(1, 5).to(low).float()\n",
        precisions=ALL,
        why="One to four are exact.",
    ),
    Harmless(
        name="time-in-double",
        healthy=SINCE,
        changed="    return (seconds.double() - epoch.double()[:, None]).float()\n",
        precisions=ALL,
        why="More digits than whole seconds need.",
    ),
    Harmless(
        name="error-rounded",
        healthy=ERROR,
        changed="            error = (missed / 20 - drag).to(low).float()\n",
        precisions=ALL,
        why="The difference is made in float32, and rounded once.",
    ),
]
