"""Bugs of a model of rivers: temperatures in kelvin, levels above the sea, days since a year long ago, stores that are added up, and small shares."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
INFINITE = ("overflow", "nan")
WARMTH = "    return centikelvin.float() / 100 - FREEZING\n"
TURN = "    turn = 2 * math.pi * day.float() / 365.25\n"
STORED = "    return ((rain - loss).float() / 100).cumsum(-1)\n"
WETTER = "    return store[:, 2:] - store[:, :-2]\n"
DEEP = "    deep = (stage - datum).float() / 1000\n"
RATED = "    return 12 * deep.clamp_min(0) ** 1.7\n"
VOLUME = "    return millimetres.float() * area.float()[:, None] / 86.4\n"
LEAVING = "    return -torch.expm1(-1 / hours.float())\n"
SHAPE = "    shape = torch.softmax(1.5 * time.log() - time / peak.float()[:, None], -1)\n"
FLOW = "    flow = flow.float()\n"
SPREAD = "    return (flow - flow.mean(-1, keepdim=True)).square().mean(-1)\n"
GAUGED = "    return valid.sum(-1).float()\n"
STREAM = "https://github.com/tensorflow/tensorflow/issues/115731"
KELVIN = "https://github.com/SpeedyWeather/SpeedyWeather.jl/issues/85"

BUGS = [
    Planted(
        name="kelvin-low",
        healthy=WARMTH,
        planted="    kelvin = (centikelvin.float() / 100).bfloat16()  # culprit\n    return (kelvin - FREEZING).float()  # culprit\n",
        precisions=BF16,
        part="function:warmth",
        rules=(*DRIFTS, "vanished-constant"),
        why="273 kelvins are known to two, and snow melts within five.",
        source=KELVIN,
    ),
    Planted(
        name="kelvin-half",
        healthy=WARMTH,
        planted="    kelvin = (centikelvin.float() / 100).half()  # culprit\n    return (kelvin - FREEZING).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:warmth",
        rules=(*DRIFTS, "vanished-constant"),
        why="273 kelvins are known to a quarter, and snow melts within five.",
        source=KELVIN,
    ),
    Planted(
        name="days-low",
        healthy=TURN,
        planted="    turn = 2 * math.pi * day.bfloat16() / 365.25  # culprit\n",
        more=(("    return torch.stack([turn.sin(), turn.cos()], -1)\n", "    return torch.stack([turn.sin(), turn.cos()], -1).float()\n"),),
        precisions=BF16,
        part="function:season",
        rules=WHOLE,
        why="Of 20 000 days bfloat16 knows every 128th, and a season has 91.",
        source="https://github.com/open-mmlab/mmdetection3d/issues/296",
    ),
    Planted(
        name="days-half",
        healthy=TURN,
        planted="    turn = 2 * math.pi * (day.half() / 365.25).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:season",
        rules=WHOLE,
        why="Of 20 000 days float16 knows every sixteenth, and of 55 years a 32nd.",
        source="https://github.com/open-mmlab/mmdetection3d/issues/296",
    ),
    Planted(
        name="store-low",
        healthy=STORED,
        planted="    return ((rain - loss).float() / 100).bfloat16().cumsum(-1).float()  # culprit\n",
        precisions=BF16,
        part="function:wetter",
        rules=(*DRIFTS, "absorption"),
        why="A store of 200 millimetres is known to one, and changes by eight in two days.",
        source=STREAM,
    ),
    Planted(
        name="changes-low",
        healthy=WETTER,
        planted="    store = store.bfloat16()  # culprit\n    return (store[:, 2:] - store[:, :-2]).float()  # culprit\n",
        precisions=BF16,
        part="function:wetter",
        rules=DRIFTS,
        why="A store of 200 millimetres is rounded to one, and then that of two days before is taken off.",
        source=STREAM,
    ),
    Planted(
        name="stage-low",
        healthy=DEEP,
        planted="    deep = (stage.bfloat16() / 1000 - datum.bfloat16() / 1000).float()  # culprit\n",
        precisions=BF16,
        part="function:rated",
        rules=WHOLE,
        why="300 metres above the sea are known to two, and the water is one deep.",
        source="https://github.com/viser-project/viser/pull/427",
    ),
    Planted(
        name="stage-half",
        healthy=DEEP,
        planted="    deep = (stage.float() / 1000).half() - (datum.float() / 1000).half()  # culprit\n    deep = deep.float()\n",
        precisions=("16-mixed",),
        part="function:rated",
        rules=DRIFTS,
        why="300 metres above the sea are known to a quarter, and the water is one deep.",
        source="https://github.com/viser-project/viser/pull/427",
    ),
    Planted(
        name="volume-overflows",
        healthy=VOLUME,
        planted="    return (millimetres.half() * area.half()[:, None] / 86.4).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:volume",
        rules=INFINITE,
        why="80 000 square kilometres are more than float16 has.",
        source="https://github.com/pytorch/vision/pull/9175",
    ),
    Planted(
        name="leaving-low",
        healthy=LEAVING,
        planted="    return (1 - torch.exp(-1 / hours.float()).bfloat16()).float()  # culprit\n",
        precisions=BF16,
        part="function:leaving",
        rules=DRIFTS,
        why="What stays is 0.998, which bfloat16 has not: all stays, or a 256th leaves.",
        source="https://github.com/ggml-org/ggml/pull/1515",
    ),
    Planted(
        name="leaving-half",
        healthy=LEAVING,
        planted="    return (1 - torch.exp((-1 / hours.float()).half())).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:leaving",
        rules=DRIFTS,
        why="What stays is 0.998, known to a 2048th, and a 500th leaves.",
        source="https://github.com/ggml-org/ggml/pull/1515",
    ),
    Planted(
        name="spread-by-squares-low",
        healthy=FLOW,
        planted="    flow = flow.bfloat16()  # culprit\n",
        more=((SPREAD, "    return (flow.square().mean(-1) - flow.mean(-1).square()).float()  # culprit\n"),),
        precisions=BF16,
        part="function:spread",
        rules=DRIFTS,
        why="Squares of flows are thousands, and their variance is a twentieth of that.",
        source="https://github.com/ecmwf/earthkit-hydro/pull/74",
    ),
    Planted(
        name="gauged-low",
        healthy=GAUGED,
        planted="    days = torch.zeros(len(valid), dtype=torch.bfloat16)\n"
        "    for each in valid.unbind(-1):\n        days = days + each  # culprit\n    return days.float()\n",
        precisions=BF16,
        part="function:gauged",
        rules=("absorption", *WHOLE),
        why="256 days and one more are 256 in bfloat16.",
        source="https://github.com/pytorch/pytorch/issues/92164",
    ),
]

HARMLESS = [
    Harmless(
        name="warmth-rounded",
        healthy=WARMTH,
        changed="    return (centikelvin.float() / 100 - FREEZING).bfloat16()\n",
        precisions=BF16,
        why="What is rounded is the difference.",
    ),
    Harmless(
        name="shape-rounded",
        healthy=SHAPE,
        changed="    shape = torch.softmax(1.5 * time.log() - time / peak.float()[:, None], -1).bfloat16()\n",
        precisions=BF16,
        why="Weights are rounded once, and each flow is a mean of twelve.",
    ),
    Harmless(
        name="rated-low",
        healthy=RATED,
        changed="    return 12 * deep.clamp_min(0).half() ** 1.7\n",
        precisions=("16-mixed",),
        why="A power of 1.7 makes a rounding less than twice as large.",
    ),
    Harmless(
        name="stay-rounded",
        healthy=LEAVING,
        changed="    return -torch.expm1((-1 / hours.float()).bfloat16())\n",
        precisions=BF16,
        why="Of a small share the exponential less one is as exact as the share.",
    ),
]
