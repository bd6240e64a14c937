"""Bugs of readings: directions that are nearly the same, temperatures in kelvin, minutes since 1970, pressures beside their norm."""

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
CHORD = "    chord = (one[:, :, None] - other[:, None]).square().sum(-1).add(1e-12).sqrt()\n"
ARC = "    return 2 * RADIUS * (chord / 2).clamp_max(1).asin()\n"
HOUR = "    hour = minutes.remainder(1440).float() / 60\n"
DAY = "    day = minutes.float() / 1440\n"
SPREADS = "    return (kelvin - kelvin.mean(-1, keepdim=True)) / 4\n"
BAROMETER = "    return (pascals.float() - still) / 100\n"
STILL = "    still = 101_325 * (-metres.float() / 8434).exp()\n"
START = "    mean, weight = torch.zeros_like(values[:, 0]), torch.ones_like(values[:, 0])\n"
RATIO = "    ratio = spread / wide\n    return 0.5 * (ratio.square() - 1) - ratio.log() + 0.5 * ((mean - other) / wide).square()\n"
CHANCE = "    return -0.5 * ((value - mean) / spread).square() - spread.log() - 0.9189385\n"
NEAR = "    return -(kilometres / 40).square()\n"

BUGS = [
    Planted(
        name="chords-low",
        healthy=CHORD,
        planted="    one, other = one.type_as(like), other.type_as(like)  # culprit\n"
        "    chord = (one[:, :, None] - other[:, None]).float().square().sum(-1).add(1e-12).sqrt()  # culprit\n",
        precisions=ALL,
        part="function:arcs",
        rules=DRIFTS,
        why="Stations of one country differ by a hundredth in direction, and bfloat16 knows a 256th.",
        source="https://github.com/georust/geo/issues/100",
    ),
    Planted(
        name="arcs-by-cosine",
        healthy=CHORD + ARC,
        planted="    cosine = torch.einsum('bid,bjd->bij', one.type_as(like), other.type_as(like))  # culprit\n"
        "    return RADIUS * cosine.float().clamp(-1, 1 - 1e-7).acos()  # culprit\n",
        precisions=ALL,
        part="function:arcs",
        rules=(*DRIFTS, "absorption"),
        why="The cosine of a hundredth is one less a 20 000th: one in either format.",
        source="https://github.com/esheldon/smatch/pull/21",
    ),
    Planted(
        name="hours-low",
        healthy=HOUR,
        planted="    hour = minutes.type_as(like).remainder(1440).float() / 60  # culprit\n",
        precisions=BF16,
        part="function:sun",
        rules=WHOLE,
        why="Of 27 million minutes bfloat16 knows every 131 072nd, which is three months.",
        source="https://github.com/open-mmlab/mmdetection3d/issues/296",
    ),
    Planted(
        name="days-low",
        healthy=DAY,
        planted="    day = (minutes.float() / 1440).type_as(like).float()  # culprit\n",
        precisions=ALL,
        part="function:sun.1",
        rules=WHOLE,
        why="Of 19 000 days bfloat16 knows every 128th, and float16 every 16th.",
        source="https://github.com/utensils/mold/issues/786",
    ),
    Planted(
        name="kelvin-low",
        healthy=SPREADS,
        planted="    kelvin = kelvin.type_as(like)  # culprit\n    return ((kelvin - kelvin.mean(-1, keepdim=True)) / 4).float()  # culprit\n",
        precisions=ALL,
        part="function:centigrade",
        rules=DRIFTS,
        why="Of 285 kelvin bfloat16 knows every second one, and float16 every quarter.",
        source="https://github.com/amazon-science/chronos-forecasting/issues/193",
    ),
    Planted(
        name="pressures-low",
        healthy=BAROMETER,
        planted="    return (pascals.type_as(like) - still.type_as(like)).float() / 100  # culprit\n",
        precisions=BF16,
        part="function:sinking",
        rules=WHOLE,
        why="Of 90 000 pascals bfloat16 knows every 512th, and a day's weather is 500.",
        source="https://github.com/ecmwf/WeatherGenerator/issues/2046",
    ),
    Planted(
        name="pressures-overflow",
        healthy=STILL,
        planted="    still = 101_325 * (-metres.float() / 8434).exp().type_as(like)  # culprit\n",
        precisions=("16-mixed",),
        part="function:sinking",
        rules=("overflow", "nan"),
        why="A hundred thousand pascals are beyond float16.",
        source="https://github.com/apple/coremltools/pull/2727",
    ),
    Planted(
        name="weights-absorbed",
        healthy=START,
        planted="    values, spreads = values.type_as(like), spreads.type_as(like)  # culprit\n" + START,
        more=(
            (
                "        weight = weight + spread.pow(-2)\n        mean = mean + (value - mean) * spread.pow(-2) / weight\n"
                "    return mean, weight.rsqrt()\n",
                "        weight = weight + spread.pow(-2)  # culprit\n"
                "        mean = mean + (value - mean) * spread.pow(-2) / weight  # culprit\n"
                "    return mean.float(), weight.rsqrt().float()  # culprit\n",
            ),
        ),
        precisions=BF16,
        part="function:divergence",
        rules=(*DRIFTS, "absorption"),
        why="Each of 64 readings adds about one to a weight of sixty, which bfloat16 knows to a quarter.",
        source="https://github.com/vllm-project/vllm-omni/pull/4341",
    ),
    Planted(
        name="divergence-low",
        healthy=RATIO,
        planted="    ratio = (spread / wide).type_as(like)  # culprit\n"
        "    return (0.5 * (ratio.square() - 1) - ratio.log()).float() + 0.5 * ((mean - other) / wide).square()  # culprit\n",
        precisions=BF16,
        part="function:divergence",
        rules=DRIFTS,
        why="The ratio is near 0.8, and half a square less one and a logarithm nearly cancel.",
        source="https://github.com/zylo117/Yet-Another-EfficientDet-Pytorch/issues/502",
    ),
]

HARMLESS = [
    Harmless(
        name="chords-rounded",
        healthy=CHORD,
        changed="    chord = (one[:, :, None] - other[:, None]).type_as(like).float().square().sum(-1).add(1e-12).sqrt()\n",
        precisions=ALL,
        why="The differences are made in float32, and rounded once.",
    ),
    Harmless(
        name="hours-of-whole-days",
        healthy=HOUR,
        changed="    hour = (minutes.remainder(1440) // 60).type_as(like).float() + minutes.remainder(60).type_as(like).float() / 60\n",
        precisions=ALL,
        why="Hours up to 24 and minutes up to 60 are whole numbers that every format holds.",
    ),
    Harmless(
        name="kelvin-rounded-late",
        healthy=SPREADS,
        changed="    return (kelvin - kelvin.mean(-1, keepdim=True)).type_as(like).float() / 4\n",
        precisions=ALL,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="heights-rounded",
        healthy=NEAR,
        changed="    return -(kilometres.type_as(like).float() / 40).square()\n",
        precisions=("16-mixed",),
        why="A distance is rounded once, and where its square is known badly the weight is nearly nought.",
    ),
    Harmless(
        name="humidity-low",
        healthy="    return humidity.float() / 100 * (17.62",
        changed="    return humidity.type_as(like).float() / 100 * (17.62",
        precisions=ALL,
        why="Shares up to 99 are whole numbers that every format holds.",
    ),
    Harmless(
        name="spreads-rounded",
        healthy=CHANCE,
        changed="    spread = spread.type_as(like).float()\n" + CHANCE,
        precisions=ALL,
        why="A spread is rounded once, and its logarithm and what is divided by it are off by as much.",
    ),
    Harmless(
        name="hectopascals-rounded",
        healthy=BAROMETER,
        changed="    return ((pascals.float() - still) / 100).type_as(like).float()\n",
        precisions=ALL,
        why="The difference is made in float32, and rounded once.",
    ),
]
