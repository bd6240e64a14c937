"""Bugs of a learned simulator: places whose small differences matter, densities near one, and steps that are too small for a place."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
SPEEDS = "    place = history.float() / 1e6\n    return (place[:, 1:] - place[:, :-1]) / TIME_STEP\n"
FORCES = "    return (velocity[:, 1:] - velocity[:, :-1]) / TIME_STEP\n"
SCALED = "    scaled = place / REACH\n"
INNER = "    return cell.long(), scaled - cell\n"
APART = "    apart = (place[:, None] - place[None]).norm(dim=-1)\n"
OFFSET = "    return (place[index] - place[:, None]) / RADIUS\n"
TAIT = "    return (dense ** GAMMA - 1) / GAMMA\n"
WALLS = "    return (1 - torch.cat([place, tank - place], -1) / (4 * RADIUS)).clamp_min(0)\n"
SPREAD = "    spread = (speed - mean).square().mean().sqrt()\n"
LOST = "    return later - earlier\n"
NOW = "    now, step = place, TIME_STEP / SMALL\n"
MOVED = "    return (now - place) / RADIUS\n"

BUGS = [
    Planted(
        name="places-low",
        healthy=SPEEDS,
        planted="    place = (history.float() / 1e6).bfloat16()  # culprit\n"
        "    return (place[:, 1:] - place[:, :-1]).float() / TIME_STEP  # culprit\n",
        precisions=BF16,
        part="function:velocities",
        rules=WHOLE,
        why="A frame moves particles by five millimetres, and places are rounded to four.",
        source="https://github.com/Farama-Foundation/Gymnasium/issues/1021",
    ),
    Planted(
        name="places-half",
        healthy=SPEEDS,
        planted="    place = (history.float() / 1e6).half()  # culprit\n    return (place[:, 1:] - place[:, :-1]).float() / TIME_STEP  # culprit\n",
        precisions=("16-mixed",),
        part="function:velocities",
        rules=WHOLE,
        why="A frame moves particles by five millimetres, and places are rounded to half of one.",
        source="https://github.com/Farama-Foundation/Gymnasium/issues/1021",
    ),
    Planted(
        name="micrometres-overflow",
        healthy=SPEEDS,
        planted="    place = history.half().float() / 1e6  # culprit\n    return (place[:, 1:] - place[:, :-1]) / TIME_STEP  # culprit\n",
        precisions=("16-mixed",),
        part="function:velocities",
        rules=("overflow", "nan"),
        why="Half a million micrometres are infinite in float16.",
        source="https://github.com/open-mmlab/mmdetection3d/issues/296",
    ),
    Planted(
        name="cells-low",
        healthy=SCALED,
        planted="    scaled = (place / REACH).bfloat16().float()  # culprit\n",
        precisions=BF16,
        part="function:cells.1",
        rules=WHOLE,
        why="The fifteenth cell is known to a sixteenth: particles near a side are in the next one, and inside it they are anywhere.",
        source="https://github.com/huggingface/transformers/pull/47133",
    ),
    Planted(
        name="distances-expanded",
        healthy=APART,
        planted="    low = place.bfloat16()\n    square = low.square().sum(-1)\n"
        "    apart = (square[:, None] + square[None] - 2 * low @ low.mT).float().clamp_min(0).sqrt()  # culprit\n",
        precisions=BF16,
        part="function:neighbours",
        rules=WHOLE,
        why="Neighbours are four centimetres apart, the square of which is less than a rounding of the square of their places.",
        source="https://github.com/RosettaCommons/foundry/pull/236",
    ),
    Planted(
        name="offsets-low",
        healthy=OFFSET,
        planted="    place = place.bfloat16()  # culprit\n    return (place[index] - place[:, None]).float() / RADIUS  # culprit\n",
        precisions=BF16,
        part="function:offsets",
        rules=DRIFTS,
        why="Places are rounded to four millimetres, and neighbours are forty away.",
        source="https://github.com/epochpic/epoch/issues/39",
    ),
    Planted(
        name="densities-low",
        healthy=TAIT,
        planted="    dense = dense.bfloat16()  # culprit\n    return ((dense ** GAMMA - 1) / GAMMA).float()  # culprit\n",
        precisions=BF16,
        part="function:pressure",
        rules=DRIFTS,
        why="A fluid that is hardly pressed has a density of one, but for a few thousandths.",
        source="https://github.com/tensorflow/tensor2tensor/pull/1424",
    ),
    Planted(
        name="densities-half",
        healthy=TAIT,
        planted="    dense = dense.half()  # culprit\n    return ((dense ** GAMMA - 1) / GAMMA).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:pressure",
        rules=DRIFTS,
        why="A density of one is rounded to a thousandth, and differs from one by a few.",
        source="https://github.com/tensorflow/tensor2tensor/pull/1424",
    ),
    Planted(
        name="walls-low",
        healthy=WALLS,
        planted="    tank, place = tank.bfloat16(), place.bfloat16()  # culprit\n"
        "    return (1 - torch.cat([place, tank - place], -1) / (4 * RADIUS)).clamp_min(0).float()  # culprit\n",
        precisions=BF16,
        part="function:to_walls",
        rules=DRIFTS,
        why="The far wall is a metre from the origin, and a few centimetres from the particles.",
        source="https://github.com/ComputationalRadiationPhysics/picongpu/issues/208",
    ),
    Planted(
        name="spread-by-squares",
        healthy=SPREAD,
        planted="    low = speed.bfloat16()  # culprit\n"
        "    spread = (low.square().mean() - low.mean().square()).float().clamp_min(1e-8).sqrt()  # culprit\n",
        precisions=BF16,
        part="function:normalised",
        rules=DRIFTS,
        why="All particles are nearly as fast: the mean of squares and the square of the mean differ by less than a rounding.",
        source="https://github.com/berceanu/openPMD-resampler/pull/3",
    ),
    Planted(
        name="energies-low",
        healthy=LOST,
        planted="    return (later.bfloat16() - earlier.bfloat16()).float()  # culprit\n",
        precisions=BF16,
        part="function:energy_lost",
        rules=DRIFTS,
        why="Two joules are rounded to a 64th, and a frame loses hundredths.",
        source="https://github.com/openmm/openmm/pull/1165",
    ),
    Planted(
        name="small-steps-lost",
        healthy=NOW,
        planted="    now, step = place.bfloat16(), TIME_STEP / SMALL  # culprit\n",
        more=(
            ("        now = now + step * velocity\n", "        now = (now + step * velocity).bfloat16()  # culprit\n"),
            (MOVED, "    return (now.float() - place) / RADIUS\n"),
        ),
        precisions=BF16,
        part="function:moved",
        rules=(*DRIFTS, "absorption"),
        why="A small step is a fifth of a millimetre, and a place is rounded to four: no particle moves.",
        source="https://github.com/gamer-project/gamer/issues/441",
    ),
]

HARMLESS = [
    Harmless(
        name="speeds-half",
        healthy="            speed = normalised(velocity[:, -1].norm(dim=-1))\n",
        changed="            speed = normalised(velocity[:, -1].norm(dim=-1)).half().float()\n",
        precisions=("16-mixed",),
        why="Speeds are rounded after their mean is off.",
    ),
    Harmless(
        name="forces-rounded",
        healthy=FORCES,
        changed="    return ((velocity[:, 1:] - velocity[:, :-1]) / TIME_STEP).bfloat16().float()\n",
        precisions=BF16,
        why="A difference is rounded after it has been taken.",
    ),
    Harmless(
        name="pressures-rounded",
        healthy=TAIT,
        changed="    return ((dense ** GAMMA - 1) / GAMMA).bfloat16().float()\n",
        precisions=BF16,
        why="What is left of one less is rounded.",
    ),
    Harmless(
        name="distances-rounded",
        healthy="    return index, distance\n",
        changed="    return index, distance.half().float()\n",
        precisions=("16-mixed",),
        why="A distance is rounded once it is known.",
    ),
    Harmless(
        name="moved-rounded",
        healthy=MOVED,
        changed="    return ((now - place) / RADIUS).bfloat16().float()\n",
        precisions=BF16,
        why="The way is rounded, and not the places.",
    ),
]
