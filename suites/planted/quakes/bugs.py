"""Bugs of earthquakes: exponents of ten, differences of slow powers, kilometres of a map's grid, chances that are nearly nought."""

from __future__ import annotations

from planted_bug import Harmless, Planted

MIXED = ("bf16-mixed", "16-mixed")
DIFFERENCES = ("cancellation", "amplified-rounding", "local-drift", "accumulated-drift")
APART = "    apart = places[:, :, None, :] - places[:, None, :, :]\n"
FADED = "    return powers[:, :-1] - powers[:, 1:]\n"

BUGS = [
    Planted(
        name="times-low",
        healthy="    return (times[:, :, None] - times[:, None, :]).clamp_min(0).float() / DAY\n",
        planted="""    days = (times / DAY).to(low)  # culprit
    return (days[:, :, None] - days[:, None, :]).clamp_min(0).float()
""",
        precisions=MIXED,
        part="function:lags",
        rules=(*DIFFERENCES, "integer-rounding"),
        why="The 19900th day since 1970 is known to 128 days, and to 16 in float16.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="magnitudes-low",
        healthy="    return 1e-3 * 10 ** (magnitudes - LEAST)\n",
        planted="    return 1e-3 * 10 ** (magnitudes.to(low) - LEAST).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:children",
        rules=DIFFERENCES,
        why="A magnitude of 9.4 is off by a 32nd, and ten to it by seven percent.",
        source="https://github.com/state-spaces/mamba/issues/6",
    ),
    Planted(
        name="children-overflow",
        healthy="    return 1e-3 * 10 ** (magnitudes - LEAST)\n",
        planted="    return 1e-3 * (10 ** (magnitudes - LEAST).to(low)).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:children",
        rules=("overflow",),
        why="Ten to the fifth power is infinite in float16; the thousandth comes too late.",
        source="https://github.com/tensorpro/tpu_rwkv/issues/1",
    ),
    Planted(
        name="powers-low",
        healthy=FADED,
        planted="    powers = powers.to(low)  # culprit\n    return powers[:, :-1] - powers[:, 1:]\n",
        precisions=MIXED,
        part="function:faded",
        rules=DIFFERENCES,
        why="The power of a tenth falls so slowly that from one shock to the next hardly a step of the format is left.",
        source="https://github.com/esheldon/smatch/pull/21",
    ),
    Planted(
        name="grid-low",
        healthy=APART,
        planted="    places = places.to(low)  # culprit\n    apart = (places[:, :, None, :] - places[:, None, :, :]).float()\n",
        precisions=MIXED,
        part="function:squared_distances",
        rules=DIFFERENCES,
        why="A place of 3950 km is known to 16 km in bfloat16 and to two in float16.",
        source="https://github.com/isl-org/Open3D/issues/2108",
    ),
    Planted(
        name="background-vanishes",
        healthy="    return (background / AREA + triggered).log()\n",
        planted="    return (background / AREA + triggered).to(low).log().float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:rates",
        rules=("underflow", "nan", "overflow"),
        why="A shock every ten years on a square of 300 km is a rate below all that float16 has, and its logarithm is infinite.",
        source="https://github.com/apple/coremltools/pull/2727",
    ),
    Planted(
        name="mean-magnitude-low",
        healthy="    return math.log10(math.e) / (magnitudes - LEAST).mean(1)\n",
        planted="    return math.log10(math.e) / (magnitudes.mean(1).to(low) - LEAST).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:b_values",
        rules=DIFFERENCES,
        why="A mean of 5.1 is known to a 32nd, and nine tenths of it are taken off.",
        source="https://github.com/fastino-ai/GLiNER2/pull/155",
    ),
    Planted(
        name="chances-low",
        healthy="    return -torch.expm1(-expected)\n",
        planted="    return 1 - torch.exp(-expected).to(low)  # culprit\n",
        precisions=MIXED,
        part="function:chances",
        rules=DIFFERENCES,
        why="Where hardly a shock is expected the chance of none is one, and the chance of some is nought.",
        source="https://github.com/nerfstudio-project/nerfacc/issues/138",
    ),
    Planted(
        name="numbers-low",
        healthy="    return torch.arange(times.shape[1]) + 700\n",
        planted="    return torch.arange(times.shape[1], dtype=low) + 700  # culprit\n",
        precisions=("bf16-mixed",),
        part="number",
        rules=("integer-rounding", "decision-flip", "local-drift"),
        why="Beyond 512 bfloat16 has every fourth number, so four shocks are one to the table.",
        source="https://github.com/keras-team/keras/issues/10531",
    ),
]

HARMLESS = [
    Harmless(
        name="lags-rounded",
        healthy="    return (times[:, :, None] - times[:, None, :]).clamp_min(0).float() / DAY\n",
        changed="    return ((times[:, :, None] - times[:, None, :]).clamp_min(0).float() / DAY).to(low).float()\n",
        precisions=("bf16-mixed",),
        why="Whole seconds are subtracted exactly; the days are rounded once, and read by slow powers.",
    ),
    Harmless(
        name="fading-low",
        healthy="    return (lag + DELAY) ** -POWER\n",
        changed="    return ((lag + DELAY).to(low).float() ** -POWER).to(low)\n",
        precisions=MIXED,
        why="A power of one and a tenth passes a rounding on hardly enlarged.",
    ),
    Harmless(
        name="children-rounded",
        healthy="    return 1e-3 * 10 ** (magnitudes - LEAST)\n",
        changed="    return (1e-3 * 10 ** (magnitudes - LEAST)).to(low)\n",
        precisions=MIXED,
        why="The number is made in float32, and rounded once.",
    ),
    Harmless(
        name="faded-rounded",
        healthy=FADED,
        changed="    return (powers[:, :-1] - powers[:, 1:]).to(low)\n",
        precisions=MIXED,
        why="The difference is made in float32.",
    ),
    Harmless(
        name="apart-rounded",
        healthy=APART,
        changed="    apart = (places[:, :, None, :] - places[:, None, :, :]).to(low).float()\n",
        precisions=MIXED,
        why="Kilometres between two shocks are subtracted in float32, and rounded once.",
    ),
    Harmless(
        name="nearness-low",
        healthy="    return (1 + squares / width**2) ** -1.5 / (2 * math.pi * width**2)\n",
        changed="    return ((1 + squares / width**2).to(low).float() ** -1.5 / (2 * math.pi * width**2)).to(low).float()\n",
        precisions=("bf16-mixed",),
        why="One and a positive number is rounded once, and raised to a small power.",
    ),
    Harmless(
        name="rates-rounded",
        healthy="    return (background / AREA + triggered).log()\n",
        changed="    return (background / AREA + triggered).log().to(low)\n",
        precisions=("bf16-mixed", "16-mixed"),
        why="The logarithm is rounded once, and a mean is taken.",
    ),
    Harmless(
        name="excess-low",
        healthy="    return math.log10(math.e) / (magnitudes - LEAST).mean(1)\n",
        changed="    return math.log10(math.e) / (magnitudes - LEAST).to(low).float().mean(1)\n",
        precisions=MIXED,
        why="The least magnitude is taken off first, and what is left is rounded once.",
    ),
    Harmless(
        name="chances-rounded",
        healthy="    return -torch.expm1(-expected)\n",
        changed="    return -torch.expm1(-expected.to(low).float())\n",
        precisions=("bf16-mixed",),
        why="A small number is rounded once, and the function gives it back almost as it was.",
    ),
    Harmless(
        name="numbers-whole",
        healthy="    return torch.arange(times.shape[1]) + 700\n",
        changed="    return torch.arange(times.shape[1], dtype=low).long() + 700\n",
        precisions=MIXED,
        why="Forty numbers are in every format, and the 700 are added to whole ones.",
    ),
]
