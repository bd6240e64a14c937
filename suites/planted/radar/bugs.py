"""Bugs of a car's radar: echoes that stand still and hide others, sums over cells, turns of a phase, clocks, and numbers of cells."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
INFINITE = ("overflow", "nan", "underflow")
VOLTS = "    volts = samples.float() / 4096\n    return volts - volts.mean(1, keepdim=True)\n"
LEVEL = "    return 10 * (power + 1e-9).log10()\n"
RUNNING = "    running = F.pad(power.cumsum(-1), (1, 0))\n"
AROUND = "    around = running[..., last] - running[..., first] - (running[..., outer] - running[..., inner])\n"
MEAN = "    return decibels((around / (last - first - outer + inner)).clamp_min(0))\n"
TURNS = "    turns = 2 * millimetres.float() / 1000 / WAVE\n"
SIDES = "    left, right = left.float(), right.float()\n    return (left - right) / (left + right)\n"
OWN = "    return speed.float() / 100 + car.float()[:, None] / 100 * torch.cos(bearing)\n"
AGES = "    return (now[:, None] - stamp).float() / 1000\n"
TURNED = "    return heading.float() / 100 - before.float() / 100\n"
NUMBER = "    return row * 97 + column\n"

BUGS = [
    Planted(
        name="volts-low",
        healthy=VOLTS,
        planted="    volts = (samples.float() / 4096).bfloat16()  # culprit\n"
        "    return (volts - volts.mean(1, keepdim=True)).float()  # culprit\n",
        precisions=BF16,
        part="function:moving",
        rules=WHOLE,
        why="Walls echo two volts, rounded to a 64th, and cars a hundredth.",
        source="https://github.com/ai2cm/fv3net/pull/1111",
    ),
    Planted(
        name="volts-half",
        healthy=VOLTS,
        planted="    volts = (samples.float() / 4096).half()  # culprit\n"
        "    return (volts - volts.mean(1, keepdim=True)).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:moving",
        rules=WHOLE,
        why="Walls echo two volts, rounded to a 512th, and cars a hundredth.",
        source="https://github.com/ai2cm/fv3net/pull/1111",
    ),
    Planted(
        name="floor-vanishes",
        healthy=LEVEL,
        planted="    return 10 * (power.half() + 1e-9).log10().float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:decibels",
        rules=INFINITE,
        why="Empty cells have less power than float16 has, and so has what keeps their logarithm finite.",
        source="https://github.com/kitzeslab/opensoundscape/issues/794",
    ),
    Planted(
        name="running-sum-low",
        healthy=RUNNING,
        planted="    running = F.pad(power.to(LOW).cumsum(-1), (1, 0))  # culprit\n",
        more=(
            ("STEPS = 1\n", "STEPS = 1\nLOW = torch.bfloat16\n"),
            (AROUND, AROUND.replace("\n", "  # culprit\n")),
            (MEAN, MEAN.replace("around /", "around.float() /")),
        ),
        precisions=BF16,
        part="function:noise_level",
        rules=(*DRIFTS, "absorption"),
        why="Beyond a strong echo, what the neighbours add is less than a rounding of the sum.",
        source="https://github.com/opencv/opencv/pull/7127",
    ),
    Planted(
        name="turns-low",
        healthy=TURNS,
        planted="    turns = (2 * millimetres.float() / 1000 / WAVE).bfloat16().float()  # culprit\n",
        precisions=BF16,
        part="function:phases",
        rules=WHOLE,
        why="Ten thousand turns are rounded to 64, and what is left of them is no phase.",
        source="https://github.com/radarsimx/radarsimpy/issues/50",
    ),
    Planted(
        name="turns-half",
        healthy=TURNS,
        planted="    turns = (2 * millimetres.float() / 1000 / WAVE).half().float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:phases",
        rules=WHOLE,
        why="Ten thousand turns are rounded to eight.",
        source="https://github.com/radarsimx/radarsimpy/issues/50",
    ),
    Planted(
        name="sides-low",
        healthy=SIDES,
        planted="    left, right = left.to(torch.bfloat16), right.to(torch.bfloat16)  # culprit\n"
        "    return ((left - right) / (left + right)).float()  # culprit\n",
        precisions=BF16,
        part="function:bearings",
        rules=WHOLE,
        why="Two antennas that look nearly the same way see nearly the same, to a hundredth, and bfloat16 knows a 256th.",
        source="https://github.com/locationtech/rasterframes/issues/50",
    ),
    Planted(
        name="speeds-low",
        healthy=OWN,
        planted="    away = (speed.float() / 100).bfloat16()  # culprit\n"
        "    car = (car.float()[:, None] / 100 * torch.cos(bearing)).bfloat16()  # culprit\n"
        "    return (away + car).float()  # culprit\n",
        precisions=BF16,
        part="function:own_motion",
        rules=DRIFTS,
        why="The car's twelve metres per second are rounded to a sixteenth, and a pedestrian has half of one.",
        source="https://github.com/vespa-engine/vespa/pull/34763",
    ),
    Planted(
        name="clocks-low",
        healthy=AGES,
        planted="    now, stamp = now.to(torch.bfloat16), stamp.to(torch.bfloat16)  # culprit\n"
        "    return (now[:, None] - stamp).float() / 1000  # culprit\n",
        precisions=BF16,
        part="function:ages",
        rules=WHOLE,
        why="Milliseconds since a quarter of an hour are rounded to four seconds.",
        source="https://github.com/CMBSciPol/furax/pull/145",
    ),
    Planted(
        name="clocks-overflow",
        healthy=AGES,
        planted="    now, stamp = now.half(), stamp.half()  # culprit\n    return (now[:, None] - stamp).float() / 1000  # culprit\n",
        precisions=("16-mixed",),
        part="function:ages",
        rules=INFINITE,
        why="A quarter of an hour in milliseconds is infinite in float16.",
        source="https://github.com/facebookresearch/fairo/pull/537",
    ),
    Planted(
        name="headings-low",
        healthy=TURNED,
        planted="    heading, before = (heading.float() / 100).bfloat16(), (before.float() / 100).bfloat16()  # culprit\n"
        "    return (heading - before).float()  # culprit\n",
        precisions=BF16,
        part="function:turned",
        rules=DRIFTS,
        why="Two hundred degrees are rounded to one, and a car turns by half of one.",
        source="https://github.com/litebird/litebird_sim/issues/424",
    ),
    Planted(
        name="numbers-low",
        healthy=NUMBER,
        planted="    return (row.to(torch.bfloat16) * 97 + column).long().clamp_max(97 * 97 - 1)  # culprit\n",
        precisions=BF16,
        part="cell",
        rules=WHOLE,
        why="Numbers of nine thousand are rounded to 64: whole stretches of a row become one cell.",
        source="https://github.com/tensorflow/tfjs-core/pull/1800",
    ),
    Planted(
        name="numbers-half",
        healthy=NUMBER,
        planted="    return (row.half() * 97 + column).long().clamp_max(97 * 97 - 1)  # culprit\n",
        precisions=("16-mixed",),
        part="cell",
        rules=WHOLE,
        why="Numbers of nine thousand are rounded to eight.",
        source="https://github.com/tensorflow/tfjs-core/pull/1800",
    ),
]

HARMLESS = [
    Harmless(
        name="bearings-rounded",
        healthy="    return (left - right) / (left + right)\n",
        changed="    return ((left - right) / (left + right)).bfloat16().float()\n",
        precisions=BF16,
        why="A quotient is rounded after the difference has been taken.",
    ),
    Harmless(
        name="waves-rounded",
        healthy="    return torch.stack([angle.cos(), angle.sin()], -1)\n",
        changed="    return torch.stack([angle.cos(), angle.sin()], -1).bfloat16().float()\n",
        precisions=BF16,
        why="Sines are rounded once.",
    ),
    Harmless(
        name="ages-rounded",
        healthy=AGES,
        changed="    return ((now[:, None] - stamp).float() / 1000).half().float()\n",
        precisions=("16-mixed",),
        why="An age is rounded, and not the clocks.",
    ),
    Harmless(
        name="noise-rounded",
        healthy=MEAN,
        changed="    return decibels((around / (last - first - outer + inner)).bfloat16().float().clamp_min(0))\n",
        precisions=BF16,
        why="A mean of powers is rounded once, and its logarithm is taken.",
    ),
    Harmless(
        name="motion-rounded",
        healthy=OWN,
        changed="    return (speed.float() / 100 + car.float()[:, None] / 100 * torch.cos(bearing)).bfloat16().float()\n",
        precisions=BF16,
        why="What is left of two speeds is rounded.",
    ),
]
