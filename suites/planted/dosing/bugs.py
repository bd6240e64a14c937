"""Bugs of pharmacokinetics: minutes since admission, rates that are nearly equal, small chances, and matrices of what varies together."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
MIXED = ("bf16-mixed", "16-mixed")
HALF = ("16-mixed",)
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = ("integer-rounding", "decision-flip", "absorption", *DRIFTS)
INFINITE = ("overflow", "nan")
HOURS = "    return (sampled - taken).float() / 60\n"
KIDNEYS = "    return 142 * ratio.clamp(max=1) ** -0.302 * ratio.clamp(min=1) ** -1.2 * torch.exp(age * math.log(0.9938))\n"
ANGLE = "    angle = 2 * math.pi * (sampled % 1440).float() / 1440\n"
RISE = "    rise = -torch.expm1(-gap * hours) * torch.exp(-out * hours)\n"
PUMPED = "    return -1 / torch.expm1(-out * cfg.pump_every)\n"
HILL = "    return torch.sigmoid(cfg.steepness * (level.log() - math.log(cfg.half_effect)))\n"
RESIDUAL = "    return (observed.float().log() - predicted.log()) / cfg.sigma\n"
UNSEEN = "    return torch.special.log_ndtr(apart)\n"
AREA = "    return torch.trapezoid(curve, dx=spacing, dim=1)\n"
OMEGA = "    with torch.autocast(eta.device.type, enabled=False):\n        omega = lower.float() @ lower.float().T\n"
SIZE = "        size = (weight.float() / 70) ** 0.75\n"

BUGS = [
    Planted(
        name="minutes-low",
        healthy=HOURS,
        planted="    sampled, taken = sampled.bfloat16(), taken.bfloat16()  # culprit\n    return (sampled - taken).float() / 60\n",
        precisions=BF16,
        part="function:hours_since",
        rules=WHOLE,
        why="Minutes since admission are rounded to half an hour.",
        source="https://github.com/CMBSciPol/furax/pull/145",
    ),
    Planted(
        name="years-by-power-low",
        healthy=KIDNEYS,
        planted="    yearly = torch.tensor(0.9938, dtype=torch.bfloat16)  # culprit\n"
        "    return 142 * ratio.clamp(max=1) ** -0.302 * ratio.clamp(min=1) ** -1.2 * yearly.float() ** age\n",
        precisions=BF16,
        part="function:filtration",
        rules=(*DRIFTS, "vanished-constant"),
        why="0.9938 is 0.9922 in bfloat16, to the power of seventy.",
        source="https://github.com/SlopDotCash/asi/pull/388",
    ),
    Planted(
        name="days-half",
        healthy=ANGLE,
        planted="    days = (sampled / 1440).half()  # culprit\n    angle = 2 * math.pi * (days.float() - days.float().floor())\n",
        precisions=HALF,
        part="function:rhythm",
        rules=WHOLE,
        why="After four days the time of day is known to six minutes.",
        source="https://github.com/spacetelescope/astrocut/issues/18",
    ),
    Planted(
        name="exponentials-low",
        healthy=RISE,
        planted="    slow, fast = torch.exp(-out * hours).bfloat16(), torch.exp(-into * hours).bfloat16()  # culprit\n"
        "    rise = (slow - fast).float()\n",
        precisions=BF16,
        part="function:bateman",
        rules=DRIFTS,
        why="The rates are nearly equal, and so are the exponentials.",
        source="https://github.com/crowsonkb/k-diffusion/pull/114",
    ),
    Planted(
        name="pump-low",
        healthy=PUMPED,
        planted="    left = torch.exp(-out * cfg.pump_every)\n    return 1 / (1 - left.bfloat16()).float()  # culprit\n",
        precisions=BF16,
        part="function:pumped",
        rules=DRIFTS,
        why="What is left after a quarter of an hour is 0.98, and bfloat16 knows it to a 256th.",
        source="https://github.com/ggml-org/ggml/pull/1515",
    ),
    Planted(
        name="hill-half",
        healthy=HILL,
        planted="    once = level.half() / cfg.half_effect\n"
        "    raised = once * once * once * once * once * cfg.half_effect**cfg.steepness  # culprit\n"
        "    return (raised / (raised + cfg.half_effect**cfg.steepness)).float()  # culprit\n",
        precisions=HALF,
        part="function:effect",
        rules=INFINITE,
        why="The fifth power of a level of a hundred is beyond float16.",
        source="https://github.com/QueensGambit/CrazyAra/issues/39",
    ),
    Planted(
        name="residual-low",
        healthy=RESIDUAL,
        planted="    predicted = predicted.log().bfloat16()  # culprit\n    return (observed.float().log() - predicted) / cfg.sigma\n",
        precisions=BF16,
        part="function:residual",
        rules=DRIFTS,
        why="A logarithm of five is known to a 64th, and the assay's error is a twelfth.",
        source="https://github.com/verl-project/verl/issues/6280",
    ),
    Planted(
        name="chance-half",
        healthy=UNSEEN,
        planted="    chance = torch.special.ndtr(apart).half()  # culprit\n    return chance.float().clamp_min(1e-30).log()\n",
        precisions=HALF,
        part="function:censored",
        rules=("underflow", *DRIFTS, *INFINITE),
        why="A level well above the limit is missed with a chance that float16 does not hold.",
        source="https://github.com/stan-dev/math/issues/3150",
    ),
    Planted(
        name="area-low",
        healthy=AREA,
        planted="    area = torch.zeros(len(curve), dtype=torch.bfloat16)  # culprit\n"
        "    for left, right in zip(curve.T[:-1], curve.T[1:], strict=True):\n"
        "        area += spacing * (left + right) / 2  # culprit\n    return area.float()\n",
        precisions=BF16,
        part="function:exposure",
        rules=WHOLE,
        why="After some hours a trapezoid is less than half of the sum's last digit.",
        source="https://github.com/numpy/numpy/issues/24443",
    ),
    Planted(
        name="omega-under-autocast",
        healthy=OMEGA,
        planted="    omega = (lower.float() @ lower.float().T).float()  # culprit\n",
        precisions=MIXED,
        part="function:shrinkage",
        rules=DRIFTS,
        why="What patients have in common is nearly all, and a low product spoils the rest.",
        source="https://github.com/vllm-project/vllm-omni/pull/7224",
    ),
]

HARMLESS = [
    Harmless(
        name="size-rounded",
        healthy=SIZE,
        changed="        size = ((weight.bfloat16() / 70) ** 0.75).float()\n",
        precisions=BF16,
        why="A weight below 256 kg is exact, and the network rounds the power as well.",
    ),
    Harmless(
        name="pump-rounded",
        healthy=PUMPED,
        changed="    return (-1 / torch.expm1(-out * cfg.pump_every)).bfloat16().float()\n",
        precisions=BF16,
        why="The ratio is rounded once, after the difference.",
    ),
    Harmless(
        name="area-of-halves",
        healthy=AREA,
        changed="    return torch.trapezoid(curve.half().float(), dx=spacing, dim=1)\n",
        precisions=HALF,
        why="The points' roundings cancel in the sum.",
    ),
]
