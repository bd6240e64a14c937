"""Bugs of a forecast of solar power: days since long ago, meters that have counted long, and a diode that is steep."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
HALF = ("16-mixed",)
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
DAYS = "    return (julian - START).float() + minutes.float() / 1440\n"
HOUR = '    return torch.div(minutes, 60, rounding_mode="floor") % 24\n'
GAINED = "        total = total + each / 4000\n    return total - counter\n"
USED = "    return (counter[:, 1:] - counter[:, :-1]).float() / 1000\n"
TOGETHER = "    return ((pressure - pressure.mean(-1, keepdim=True)) * (power - power.mean(-1, keepdim=True))).mean(-1)\n"
CURRENT = "    return light.float() - LEAK * torch.expm1(volts.float() / THERMAL)\n"
OFFSETS = "    return torch.stack([north - north[0], east - east[0]], -1).float() / 1000\n"
USUAL = "        total = total + each\n        means.append(total / number)\n    return torch.stack(means)\n"
CHANGE = "    return torch.log1p((power[:, 1:] - power[:, :-1]) / power[:, :-1])\n"

BUGS = [
    Planted(
        name="julian-low",
        healthy=DAYS,
        planted="    return (julian + minutes / 1440).bfloat16().float() - START  # culprit\n",
        precisions=BF16,
        part="function:days",
        rules=WHOLE,
        why="Of two and a half million days bfloat16 knows every 16 000th.",
        source="https://github.com/CliMA/Insolation.jl/issues/21",
    ),
    Planted(
        name="hour-low",
        healthy=HOUR,
        planted="    return torch.floor(minutes.bfloat16() / 60).long() % 24  # culprit\n",
        precisions=BF16,
        part="function:hour",
        rules=WHOLE,
        why="After some days bfloat16 knows every 64th minute.",
        source="https://github.com/markusfisch/ShaderEditor/issues/100",
    ),
    Planted(
        name="gained-low",
        healthy=GAINED,
        planted="        total = (total + each / 4000).bfloat16()  # culprit\n    return total.float() - counter\n",
        precisions=BF16,
        part="function:gained",
        rules=(*DRIFTS, "absorption"),
        why="A meter that has counted hundreds stands still when one is added.",
        source="https://github.com/openshwprojects/OpenBK7231T_App/issues/1009",
    ),
    Planted(
        name="used-half",
        healthy=USED,
        planted="    kilos = (counter / 1000).half()  # culprit\n    return (kilos[:, 1:] - kilos[:, :-1]).float()  # culprit\n",
        precisions=HALF,
        part="function:used",
        rules=DRIFTS,
        why="Four hundred kilowatt hours are known to a quarter, and five are used.",
        source="https://github.com/domoticz/domoticz/issues/5326",
    ),
    Planted(
        name="together-by-moments-low",
        healthy=TOGETHER,
        planted="    pressure, power = pressure.bfloat16(), power.bfloat16()  # culprit\n"
        "    return ((pressure * power).mean(-1) - pressure.mean(-1) * power.mean(-1)).float()  # culprit\n",
        precisions=BF16,
        part="function:together",
        rules=DRIFTS,
        why="The pressure is a thousand and changes by one.",
        source="https://github.com/OxWearables/biobankAccelerometerAnalysis/issues/69",
    ),
    Planted(
        name="diode-half",
        healthy=CURRENT,
        planted="    steep = torch.expm1(volts.half() / THERMAL)  # culprit\n    return (light - LEAK * steep).float()\n",
        precisions=HALF,
        part="function:current",
        rules=("overflow", "nan"),
        why="The exponential of seventeen is more than float16 has.",
        source="https://github.com/pvlib/pvlib-python/issues/225",
    ),
    Planted(
        name="offsets-of-low-places",
        healthy=OFFSETS,
        planted="    north, east = north.bfloat16(), east.bfloat16()  # culprit\n"
        "    return torch.stack([north - north[0], east - east[0]], -1).float() / 1000  # culprit\n",
        precisions=BF16,
        part="function:offsets",
        rules=WHOLE,
        why="Five thousand kilometres north are known to thirty.",
        source="https://github.com/lgsvl/simulator/issues/463",
    ),
    Planted(
        name="usual-by-low-total",
        healthy=USUAL,
        planted="        total = (total + each).bfloat16()  # culprit\n        means.append(total.float() / number)\n    return torch.stack(means)\n",
        precisions=BF16,
        part="function:usual",
        rules=(*DRIFTS, "absorption"),
        why="A total of a thousand takes four only as four or eight.",
        source="https://github.com/yvanvds/yse-soundengine/pull/616",
    ),
    Planted(
        name="change-by-low-ratio",
        healthy=CHANGE,
        planted="    return torch.log((power[:, 1:] / power[:, :-1]).bfloat16()).float()  # culprit\n",
        precisions=BF16,
        part="function:change",
        rules=DRIFTS,
        why="The ratio of two powers of one hour is one but for a hundredth.",
        source="https://github.com/radis/radis/pull/652",
    ),
]

HARMLESS = [
    Harmless(
        name="change-of-rounded-step",
        healthy=CHANGE,
        changed="    return torch.log1p(((power[:, 1:] - power[:, :-1]) / power[:, :-1]).bfloat16()).float()\n",
        precisions=BF16,
        why="What is rounded is the small number.",
    ),
    Harmless(
        name="used-rounded",
        healthy=USED,
        changed="    return ((counter[:, 1:] - counter[:, :-1]).float() / 1000).half().float()\n",
        precisions=HALF,
        why="What is rounded is the difference of whole numbers.",
    ),
    Harmless(
        name="offsets-rounded",
        healthy=OFFSETS,
        changed="    return torch.stack([north - north[0], east - east[0]], -1).bfloat16().float() / 1000\n",
        precisions=BF16,
        why="Metres from the first plant are rounded once.",
    ),
    Harmless(
        name="diode-of-half-light",
        healthy=CURRENT,
        changed="    return light.half().float() - LEAK * torch.expm1(volts.float() / THERMAL)\n",
        precisions=HALF,
        why="What is steep is in float32.",
    ),
    Harmless(
        name="usual-rounded",
        healthy=USUAL,
        changed="        total = total + each\n        means.append((total / number).bfloat16().float())\n    return torch.stack(means)\n",
        precisions=BF16,
        why="All are added in float32, and each mean is rounded once.",
    ),
]
