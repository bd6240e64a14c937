"""Bugs of power grids: flows and losses as differences of large terms, a frequency near fifty, clocks of many turns, costs beyond float16."""

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
SIZE = "    size = r.square() + x.square()\n    return r / size, -x / size\n"
FLOW = "    return here.square() * g - here * there * (g * turn.cos() + b * turn.sin())\n"
LOSS = "    return begin + end\n"
MISS = "    off = torch.zeros_like(used).index_add(1, first, begin).index_add(1, second, end)\n    return made - used - off\n"
COST = "    return (a * megawatts.square() + b * megawatts).sum(-1)\n"
HERTZ = "    return (hertz - 50.0) / 0.02\n"
TURNS = "    turns = microseconds.float() * 50e-6\n"
WAVE = "    return torch.stack([(2 * math.pi * turns).cos(), (2 * math.pi * turns).sin()], -1)\n"
UNIT = "    return kilowatts.float() / (1000 * BASE)\n"

BUGS = [
    Planted(
        name="admittance-overflows",
        healthy=SIZE,
        planted="    r, x = r.to(low), x.to(low)  # culprit\n"
        "    size = (r.square() + x.square()) / 1000  # culprit\n"
        "    return (r / size / 1000).float(), (-x / size / 1000).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:admittance",
        rules=(*DRIFTS, "underflow", "overflow", "nan", "absorption"),
        why="The square of a reactance of a hundredth, by a thousand, is a ten millionth: two steps of float16's smallest number.",
        source="https://github.com/kscalelabs/minppo/pull/19",
    ),
    Planted(
        name="flows-low",
        healthy=FLOW,
        planted="    here, there, g, b = here.to(low), there.to(low), g.to(low), b.to(low)  # culprit\n"
        "    return (here.square() * g - here * there * (g * turn.cos().to(low) + b * turn.sin().to(low))).float()  # culprit\n",
        precisions=ALL,
        part="function:flows",
        rules=DRIFTS,
        why="Two terms of six differ by a tenth, and voltages near one are known to a 256th.",
        source="https://github.com/e2nIEE/pandapower/issues/2338",
    ),
    Planted(
        name="voltages-low",
        healthy="            size, angle = 1 + 0.02 * size.tanh(), 0.05 * angle.tanh()\n",
        planted="            size, angle = (1 + (0.02 * size.tanh()).to(low)).float(), 0.05 * angle.tanh()  # culprit\n",
        precisions=ALL,
        part="function:flows",
        rules=(*DRIFTS, "absorption"),
        why="What flows hangs on how much a voltage is above or below one, and that is known to a 128th, or to a thousandth.",
        source="https://github.com/powsybl/powsybl-core/issues/1043",
    ),
    Planted(
        name="losses-low",
        healthy=LOSS,
        planted="    return (begin.to(low) + end.to(low)).float()  # culprit\n",
        precisions=ALL,
        part="function:losses",
        rules=DRIFTS,
        why="Nearly all that goes in comes out, and the loss is what is left of the two roundings.",
        source="https://github.com/e2nIEE/pandapower/issues/2338",
    ),
    Planted(
        name="costs-overflow",
        healthy=COST,
        planted="    return (a * megawatts.to(low).square() + b * megawatts).sum(-1)  # culprit\n",
        precisions=("16-mixed",),
        part="function:costs",
        rules=("overflow", "nan"),
        why="The square of 300 megawatts is 90 000.",
        source="https://github.com/apple/coremltools/pull/2727",
    ),
    Planted(
        name="frequency-low",
        healthy=HERTZ,
        planted="    return ((hertz.to(low) - 50.0) / 0.02).float()  # culprit\n",
        precisions=ALL,
        part="function:swing",
        rules=DRIFTS,
        why="Near fifty hertz bfloat16 knows every quarter, and float16 every 32nd; the grid is within a twentieth.",
        source="https://github.com/amazon-science/chronos-forecasting/issues/193",
    ),
    Planted(
        name="clocks-low",
        healthy=TURNS,
        planted="    turns = (microseconds.float() / 1e6).to(low) * 50  # culprit\n",
        more=((WAVE, WAVE.replace("\n", "  # culprit\n")),),
        precisions=ALL,
        part="function:phasor",
        rules=(*DRIFTS, "integer-rounding"),
        why="Of three seconds bfloat16 knows every 64th, and a turn is a fiftieth. The angle is rounded again, to four radians.",
        source="https://github.com/open-mmlab/mmdetection3d/issues/296",
    ),
]

HARMLESS = [
    Harmless(
        name="flows-rounded",
        healthy="            lost = losses(begin, end, low)\n",
        changed="            lost = losses(begin, end, low).to(low).float()\n",
        precisions=ALL,
        why="The sum is made in float32, and rounded once.",
    ),
    Harmless(
        name="degrees-low",
        healthy="    ones = torch.ones(LINES)\n    return torch.zeros(BUSES).index_add(0, first, ones).index_add(0, second, ones)\n",
        changed="    ones = torch.ones(LINES).to(low)\n"
        "    return torch.zeros(BUSES).to(low).index_add(0, first, ones).index_add(0, second, ones).float()\n",
        precisions=ALL,
        why="No bus has more than ten lines.",
    ),
    Harmless(
        name="loads-rounded",
        healthy=UNIT,
        changed="    return (kilowatts.float() / (1000 * BASE)).to(low).float()\n",
        precisions=ALL,
        why="A load is made exactly and rounded once, as a cast before the first layer does.",
    ),
    Harmless(
        name="frequency-rounded-late",
        healthy=HERTZ,
        changed="    return ((hertz - 50.0).to(low) / 0.02).float()\n",
        precisions=ALL,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="turns-rounded-late",
        healthy=TURNS,
        changed="    turns = (microseconds.float() * 50e-6).frac().to(low).float()\n",
        precisions=("16-mixed",),
        why="Whole turns are taken off before the rounding.",
    ),
    Harmless(
        name="costs-in-thousands",
        healthy=COST,
        changed="    scaled = (megawatts / 1000).to(low)\n    return (1e6 * a * scaled.float().square() + b * megawatts).sum(-1)\n",
        precisions=ALL,
        why="A power is rounded once, and its square is off by twice as much.",
    ),
    Harmless(
        name="mismatch-rounded",
        healthy=MISS,
        changed=MISS.replace("    return made - used - off\n", "    return (made - used - off).to(low).float()\n"),
        precisions=ALL,
        why="The difference is made in float32, and rounded once.",
    ),
]
