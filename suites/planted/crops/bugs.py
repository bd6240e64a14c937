"""Bugs of a network on satellite images: bands that are nearly the same, days since a launch, and Kelvin."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
LIGHT = "    return bands.float() / 10_000\n"
GAP = "    between = (bands[..., NEAR] + bands[..., SHORT + 1]) / 2\n    return bands[..., SHORT] - between\n"
TURN = "    turn = 2 * math.pi * day.float() / 365.25\n"
STRESS = "    surface, air = surface.float() / 100, air.float() / 100\n    return surface - air\n"

BUGS = [
    Planted(
        name="bands-low-before-the-gap",
        healthy=GAP,
        planted="    bands = bands.bfloat16()  # culprit\n    between = (bands[..., NEAR] + bands[..., SHORT + 1]) / 2\n"
        "    return (bands[..., SHORT] - between).float()  # culprit\n",
        precisions=BF16,
        part="function:moisture_gap",
        rules=DRIFTS,
        why="Soil is nearly as bright in three neighbouring bands, and the gap is a hundredth of that.",
        source="https://github.com/OpenMS/OpenMS/pull/754",
    ),
    Planted(
        name="days-since-launch-low",
        healthy=TURN,
        planted="    turn = (2 * math.pi * day.to(torch.bfloat16) / 365.25).float()  # culprit\n",
        precisions=BF16,
        part="function:day_encoding",
        rules=WHOLE,
        why="Three thousand days are rounded to the sixteenth, and its octaves are turns of a month.",
        source="https://github.com/kohya-ss/musubi-tuner/pull/729",
    ),
    Planted(
        name="kelvin-low",
        healthy=STRESS,
        planted="    surface, air = (surface.float() / 100).to(LOW), (air.float() / 100).to(LOW)  # culprit\n"
        "    return (surface - air).float()  # culprit\n",
        more=(("STEPS = 1\n", "STEPS = 1\nLOW = torch.bfloat16\n"),),
        precisions=BF16,
        part="function:stress",
        rules=DRIFTS,
        why="Kelvin are rounded to two degrees, and leaves are one degree warmer than the air.",
        source="https://github.com/torchmd/torchmd-net/pull/275",
    ),
    Planted(
        name="kelvin-half",
        healthy=STRESS,
        planted="    surface, air = (surface.float() / 100).half(), (air.float() / 100).half()  # culprit\n"
        "    return (surface - air).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:stress",
        rules=DRIFTS,
        why="Kelvin are rounded to a quarter of a degree.",
        source="https://github.com/torchmd/torchmd-net/pull/275",
    ),
    Planted(
        name="numbers-overflow",
        healthy=LIGHT,
        planted="    bands = bands.half()\n    return (bands * bands).float().sqrt() / 10_000  # culprit\n",
        precisions=("16-mixed",),
        part="function:reflectance",
        rules=("overflow", "nan"),
        why="The square of a thousand counts is more than float16 has.",
        source="https://github.com/qubvel-org/segmentation_models.pytorch/issues/463",
    ),
]

HARMLESS = [
    Harmless(
        name="clouds-half",
        healthy="            clear = 1 - cloud.float() / 100\n",
        changed="            clear = 1 - (cloud.float() / 100).half().float()\n",
        precisions=("16-mixed",),
        why="No more than nine tenths are clouds, so what is left of one is off by little more than a rounding.",
    ),
    Harmless(
        name="stress-rounded",
        healthy="    return surface - air\n",
        changed="    return (surface - air).bfloat16().float()\n",
        precisions=BF16,
        why="A difference is rounded after it has been taken.",
    ),
    Harmless(
        name="temperatures-low",
        healthy="    warm = (temperature - BASE).clamp_min(0).float() / 10\n",
        changed="    warm = ((temperature - BASE).clamp_min(0).float() / 10).bfloat16().float()\n",
        precisions=BF16,
        why="Each day is rounded once, and the sum is float32.",
    ),
    Harmless(
        name="warmth-rounded",
        healthy="    return torch.stack(totals, 1).gather(1, since) / 100\n",
        changed="    return (torch.stack(totals, 1).gather(1, since) / 100).bfloat16().float()\n",
        precisions=BF16,
        why="The sum is rounded once, after all days.",
    ),
]
