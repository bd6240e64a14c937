"""Bugs of a renderer: mirrors of a hundredth, light beyond float16, depths that differ little, and sums of many samples and strides."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
HALF = ("16-mixed",)
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
INFINITE = ("overflow", "nan")
AWAY = "    away = torch.linalg.cross(normal, half, dim=1).square().sum(1)\n"
SQUARE = "    square = rough.float().pow(4)\n    near = away + square * (1 - away)\n"
LOBE = "    return square / (math.pi * near * near)\n"
AROUND = "    around = F.unfold(depth.float()[:, None] / 1000, 3, padding=0)\n"
SPREAD = "    return (around - around.mean(1, keepdim=True)).square().mean(1)\n"
BLURRED = "    blurred = F.avg_pool2d(F.relu(light.float() - THRESHOLD)[:, None], 5, stride=1, padding=2)\n"
STOPS = "    return torch.log2(1 + blurred.squeeze(1))\n"
MEAN = "        mean = mean + (sample - mean) / number\n    return mean\n"
PHASE = "    return torch.remainder(frame * turns, 36_000).float() / 36_000\n"
SEEN = "    seen = torch.stack([metres * places, metres * places[:, None], metres], 1)\n"
MARCHED = "        far = far + stride\n    return far - start\n"
FACING = "    return F.normalize(torch.linalg.cross(down, right, dim=1), dim=1)\n"
SHOWN = "    light = light.float()\n    return light * (2.51 * light + 0.03) / (light * (2.43 * light + 0.59) + 0.14)\n"

BUGS = [
    Planted(
        name="lobe-by-cosine-low",
        healthy=AWAY + SQUARE,
        planted="    square = rough.float().pow(4)\n    facing = (normal * half).sum(1).bfloat16()  # culprit\n"
        "    near = (facing * facing * (square.bfloat16() - 1) + 1).float().clamp_min(1e-3)  # culprit\n",
        precisions=BF16,
        part="function:lobe",
        rules=DRIFTS,
        why="A surface that faces the lamp has a cosine of nearly one, and one less its square is what counts.",
        source="https://github.com/AcademySoftwareFoundation/MaterialX/pull/2792",
    ),
    Planted(
        name="lobe-half",
        healthy=SQUARE + LOBE,
        planted="    square, away = rough.half().pow(4), away.half()  # culprit\n    near = away + square * (1 - away)\n"
        "    return (square / (math.pi * near * near)).float()  # culprit\n",
        precisions=HALF,
        part="function:lobe",
        rules=("underflow", *DRIFTS, *INFINITE),
        why="The fourth power of a small roughness is less than float16 has, and its square is nothing.",
        source="https://github.com/mrdoob/three.js/pull/8349",
    ),
    Planted(
        name="spread-by-moments-low",
        healthy=AROUND + SPREAD,
        planted="    around = F.unfold((depth.float() / 1000).bfloat16()[:, None], 3, padding=0)  # culprit\n"
        "    return (around.square().mean(1) - around.mean(1).square()).float()  # culprit\n",
        precisions=BF16,
        part="function:spread",
        rules=DRIFTS,
        why="Depths of twenty metres have squares of four hundred, and differ by centimetres.",
        source="https://github.com/Delt06/toon-rp/issues/158",
    ),
    Planted(
        name="glow-overflows",
        healthy=BLURRED,
        planted="    bright = F.relu(light.half() - THRESHOLD)  # culprit\n"
        "    blurred = F.avg_pool2d(bright.float()[:, None], 5, stride=1, padding=2)\n",
        precisions=HALF,
        part="function:glow",
        rules=INFINITE,
        why="Bright places have more light than float16's largest number.",
        source="https://github.com/stride3d/stride/pull/3429",
    ),
    Planted(
        name="averaged-low",
        healthy=MEAN,
        planted="        mean = (mean + (sample - mean) / number).bfloat16()  # culprit\n    return mean.float()\n",
        precisions=BF16,
        part="function:averaged",
        rules=(*DRIFTS, "absorption"),
        why="A late sample moves the mean by less than a rounding of it.",
        source="https://github.com/TheRealMJP/BakingLab/pull/6",
    ),
    Planted(
        name="phase-of-low-seconds",
        healthy=PHASE,
        planted="    seconds = (frame / 60).bfloat16()  # culprit\n    return torch.remainder(seconds * turns / 600, 1).float()  # culprit\n",
        precisions=BF16,
        part="function:phase",
        rules=(*DRIFTS, "integer-rounding"),
        why="After half an hour bfloat16 knows every eighth second, and a lamp turns in one.",
        source="https://github.com/microsoft/terminal/pull/17104",
    ),
    Planted(
        name="facing-of-half-places",
        healthy=SEEN,
        planted="    seen = torch.stack([metres * places, metres * places[:, None], metres], 1).half().float()  # culprit\n",
        precisions=HALF,
        part="function:facing",
        rules=DRIFTS,
        why="Twenty metres are known to a centimetre in float16, and neighbours are as far apart.",
        source="https://github.com/scp-fs2open/fs2open.github.com/pull/7245",
    ),
    Planted(
        name="marched-low",
        healthy=MARCHED,
        planted="        far = (far + stride).bfloat16()  # culprit\n    return far.float() - start\n",
        precisions=BF16,
        part="function:marched",
        rules=(*DRIFTS, "absorption"),
        why="A hundred metres away bfloat16 has steps of half a metre.",
        source="https://github.com/jolivain/glslsandbox-player/issues/6",
    ),
    Planted(
        name="shown-half",
        healthy=SHOWN,
        planted="    light = light.half()  # culprit\n    return light * (2.51 * light + 0.03) / (light * (2.43 * light + 0.59) + 0.14)  # culprit\n",
        precisions=HALF,
        part="function:shown",
        rules=INFINITE,
        why="The square of a bright light is infinite in float16, above and below the fraction.",
        source="https://github.com/Unity-Technologies/ScriptableRenderPipeline/pull/3515",
    ),
]

HARMLESS = [
    Harmless(
        name="spread-rounded",
        healthy=SPREAD,
        changed="    return (around - around.mean(1, keepdim=True)).square().mean(1).bfloat16().float()\n",
        precisions=BF16,
        why="What is rounded is the variance.",
    ),
    Harmless(
        name="mean-rounded-at-the-end",
        healthy=MEAN,
        changed="        mean = mean + (sample - mean) / number\n    return mean.bfloat16().float()\n",
        precisions=BF16,
        why="All samples have been added in float32.",
    ),
    Harmless(
        name="stops-rounded",
        healthy=STOPS,
        changed="    return torch.log2(1 + blurred.squeeze(1)).half().float()\n",
        precisions=HALF,
        why="Stops are few, however bright the light.",
    ),
    Harmless(
        name="facing-rounded",
        healthy=FACING,
        changed="    return F.normalize(torch.linalg.cross(down, right, dim=1), dim=1).half().float()\n",
        precisions=HALF,
        why="A unit vector is rounded once.",
    ),
    Harmless(
        name="distance-rounded",
        healthy="    return torch.exp(-distance.float().square() / (2 * reach * reach))\n",
        changed="    return torch.exp(-distance.bfloat16().square() / (2 * reach * reach)).float()\n",
        precisions=BF16,
        why="A neighbour that counts is near, and its exponent small.",
    ),
]
