"""Bugs of electron microscopy: volts, phases of a lens, small turns, electrons that are counted, and costs of poses."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
MIXED = ("bf16-mixed", "16-mixed")
HALF = ("16-mixed",)
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = ("integer-rounding", "decision-flip", "absorption", *DRIFTS)
INFINITE = ("overflow", "nan")
VOLTS = "    volts = volts.float()\n    return 12.2643247 / (volts + 0.978466e-6 * volts.square()).sqrt()\n"
PHASE = "    phase = math.pi * (along * wave * squared - bent / 2)\n"
ALONG = "    along = defocus[:, None].float() + astigmatism[:, None].float() * torch.cos(2 * way)\n"
NEAR = (
    "    near = (one[..., None, :] * other[..., None, :, :]).sum(-1)\n"
    "    sign = torch.where(near < 0, -1.0, 1.0)\n"
    "    apart = (one[..., None, :] - sign[..., None] * other[..., None, :, :]).square().sum(-1).sqrt()\n"
    "    return 4 * torch.asin((apart / 2).clamp_max(1))\n"
)
ANGLE = "    angle = math.pi / SIDE * place.float()[..., None] * 2.0 ** torch.arange(WAVES)\n"
MOVED = "    angle = -2 * math.pi / SIDE * (plane[:, :2] * (shift[:, None].float() / 1000)).sum(-1)\n"
SUMMED = "    picture = frames.sum(1).float()\n"
GROUND = "    return (picture - ground.mean(1)[:, None, None]) / ground.std(1)[:, None, None]\n"
LIKELY = "    return (-(cost - cost.amin(1, keepdim=True)) / 2).softmax(1)\n"
NUMBER = "    number = torch.bincount(shell)\n"
FADED = "    return torch.exp(-(dose.float() / 10)[:, None] / (2 * critical))\n"
BENT = "    bent = 1e7 * spherical[:, None] * wave**3 * squared.square()\n"

BUGS = [
    Planted(
        name="volts-half",
        healthy=VOLTS,
        planted="    volts = volts.half()  # culprit\n    return (12.2643247 / (volts + 0.978466e-6 * volts.square()).sqrt()).float()  # culprit\n",
        precisions=HALF,
        part="function:wavelength",
        rules=(*INFINITE, "underflow"),
        why="Three hundred thousand volts are more than float16 has numbers for.",
        source="https://github.com/openai/glow/issues/40",
    ),
    Planted(
        name="phase-low",
        healthy=PHASE,
        planted="    phase = math.pi * (along * wave * squared - bent / 2)\n    phase = phase.to(torch.bfloat16)  # culprit\n",
        precisions=BF16,
        part="function:transfer",
        rules=DRIFTS,
        why="The lens turns waves by dozens of radians, of which bfloat16 knows a quarter.",
        source="https://github.com/hexgrad/kokoro/pull/353",
    ),
    Planted(
        name="defocus-low",
        healthy=ALONG,
        planted="    along = defocus[:, None].bfloat16() + (astigmatism[:, None] * torch.cos(2 * way)).bfloat16()  # culprit\n"
        "    along = along.float()\n",
        precisions=BF16,
        part="function:transfer",
        rules=WHOLE,
        why="Twenty thousand ångströms are rounded to 128, as much as the astigmatism is.",
        source="https://github.com/nerfstudio-project/gsplat/pull/270",
    ),
    Planted(
        name="turned-by-cosine",
        healthy=NEAR,
        planted="    near = (one[..., None, :] * other[..., None, :, :]).sum(-1).abs()\n    near = near.bfloat16()  # culprit\n"
        "    return 2 * torch.acos(near.float().clamp_max(1))\n",
        precisions=BF16,
        part="function:between",
        rules=DRIFTS,
        why="A turn of a degree has a cosine of one less a ten-thousandth.",
        source="https://github.com/papagina/RotationContinuity/issues/1",
    ),
    Planted(
        name="waves-low",
        healthy=ANGLE,
        planted="    angle = (math.pi / SIDE * place.float()[..., None]).bfloat16()  # culprit\n"
        "    angle = angle.float() * 2.0 ** torch.arange(WAVES)\n",
        precisions=BF16,
        part="function:waves",
        rules=DRIFTS,
        why="An angle of one and a half is known to a 128th, and doubled five times.",
        source="https://github.com/megvii-research/PETR/issues/136",
    ),
    Planted(
        name="shift-low",
        healthy=MOVED,
        planted="    angle = (plane[:, :2] * (shift[:, None].float() / 1000)).sum(-1).bfloat16()  # culprit\n"
        "    angle = -2 * math.pi / SIDE * angle.float()\n",
        precisions=BF16,
        part="function:shifted",
        rules=DRIFTS,
        why="Eleven waves over a side, nine pixels further: a hundred is known to a half, and a turn has twenty-four.",
        source="https://github.com/radarsimx/radarsimpy/issues/50",
    ),
    Planted(
        name="electrons-low",
        healthy=SUMMED,
        planted="    picture = torch.zeros(len(frames), SIDE, SIDE, dtype=torch.bfloat16)\n    for frame in frames.unbind(1):\n"
        "        picture += frame  # culprit\n    picture = picture.float()\n",
        precisions=BF16,
        part="function:whitened",
        rules=WHOLE,
        why="Beyond 256 bfloat16 has every second number, and the particle is some electrons among three hundred.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
    Planted(
        name="spread-by-squares",
        healthy=GROUND,
        planted="    mean = ground.mean(1)\n    squared = ground.square().mean(1).bfloat16()  # culprit\n"
        "    spread = (squared.float() - mean.square()).clamp_min(1).sqrt()\n"
        "    return (picture - mean[:, None, None]) / spread[:, None, None]\n",
        precisions=BF16,
        part="function:whitened",
        rules=DRIFTS,
        why="The mean square is ninety thousand, which bfloat16 rounds to 512, and the variance is three hundred.",
        source="https://github.com/google/CommonLoopUtils/pull/380",
    ),
    Planted(
        name="wave-cubed-half",
        healthy=BENT,
        planted="    cubed = (wave * wave).half() * wave.half()  # culprit\n    bent = 1e7 * spherical[:, None] * cubed.float() * squared.square()\n",
        precisions=HALF,
        part="function:transfer",
        rules=("underflow", *DRIFTS),
        why="The third power of a fiftieth of an ångström has six bits in float16, and is multiplied by ten millions.",
        source="https://github.com/loudinthecloud/pytorch-ntm/blob/master/ntm/memory.py",
    ),
    Planted(
        name="costs-low",
        healthy=LIKELY,
        planted="    cost = cost.bfloat16()  # culprit\n    return (-(cost - cost.amin(1, keepdim=True)).float() / 2).softmax(1)\n",
        precisions=BF16,
        part="function:likely",
        rules=DRIFTS,
        why="Costs of seven hundred are known to four, and poses differ by one or two.",
        source="https://github.com/huggingface/trl/issues/4159",
    ),
]

HARMLESS = [
    Harmless(
        name="dose-rounded",
        healthy=FADED,
        changed="    return torch.exp(-(dose.float() / 10).bfloat16().float()[:, None] / (2 * critical))\n",
        precisions=BF16,
        why="Forty electrons are known to an eighth, and a frequency fades by half of it over a hundred.",
    ),
    Harmless(
        name="shells-counted-half",
        healthy=NUMBER,
        changed="    number = torch.bincount(shell).half().long()\n",
        precisions=("bf16-mixed", "16-mixed", "bf16-true"),
        why="A shell has fewer than two thousand pixels, which float16 counts.",
    ),
    Harmless(
        name="nearest-cost-in-its-format",
        healthy=LIKELY,
        changed="    left = (cost - cost.amin(1, keepdim=True)).bfloat16()\n    return (-left.float() / 2).softmax(1)\n",
        precisions=BF16,
        why="What is left of a cost is small where it matters, and is rounded after the difference.",
    ),
]
