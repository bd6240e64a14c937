"""Bugs of ptychography: ticks of a rail, milliseconds since midnight, a wave's phase over a long way, bright pixels, and turns put back."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
HALF = ("16-mixed",)
MIXED = ("bf16-mixed", "16-mixed")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = ("integer-rounding", "decision-flip", "absorption", *DRIFTS)
INFINITE = ("overflow", "nan", "underflow", *DRIFTS)
SHIFTS = "    return (ticks - ticks[:, :1]).float() * optics.tick\n"
DRIFT = "    return (clock - clock[:, :1]).float() / 1000 * rate\n"
SLOWER = "    along = torch.sqrt(wave * wave - squared)\n    slower = -squared / (along + wave)\n"
ZERNIKE = "    radius = squared / squared.max()\n"
ROOT = "    return 2 * torch.sqrt(counts.float() + 0.375)\n"
CONTRAST = "    return counts.float() / flat.float() - 1\n"
OVER = "    over = (rate - counts) / counts\n    return 2 * counts * (over - torch.log1p(over))\n"
TURNS = "    turns = phase / (2 * math.pi)\n"
RUNNING = "    return phase[..., :1] + F.pad(steps.cumsum(-1), (1, 0))\n"
SHARP = "    return (intensity - mean[:, None, None]).square().mean((-2, -1)) / mean.square()\n"
CROSS = "    size = cross.abs()\n"
TAKEN = "    return (sent - come) / sent\n"
LEVEL = "    place = place - place.mean()\n    slope = (phase * place).sum(-1, keepdim=True) / place.square().sum()\n"

BUGS = [
    Planted(
        name="ticks-low",
        healthy=SHIFTS,
        planted="    ticks = ticks.bfloat16()  # culprit\n    return (ticks - ticks[:, :1]).float() * optics.tick\n",
        precisions=BF16,
        part="function:shifts",
        rules=WHOLE,
        why="Ticks of fifty thousand are rounded to 256, and a shot is some hundreds from the first.",
        source="https://github.com/scp-fs2open/fs2open.github.com/pull/7245",
    ),
    Planted(
        name="clock-in-half-seconds",
        healthy=DRIFT,
        planted="    seconds = (clock / 1000).half()  # culprit\n    return (seconds - seconds[:, :1]).float() * rate\n",
        precisions=HALF,
        part="function:drift",
        rules=WHOLE,
        why="Forty thousand seconds are known to 32, and all shots take forty.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="along-less-wave-low",
        healthy=SLOWER,
        planted="    along = torch.sqrt(wave * wave - squared).bfloat16()  # culprit\n    slower = along.float() - wave\n",
        precisions=BF16,
        part="function:delay",
        rules=DRIFTS,
        why="A wave that is a little aslant is nearly as long along the axis: two numbers of 1.88 are subtracted.",
        source="https://github.com/nerfstudio-project/gsplat/pull/270",
    ),
    Planted(
        name="zernike-low",
        healthy=ZERNIKE,
        planted="    radius = (squared / squared.max()).bfloat16()  # culprit\n",
        precisions=BF16,
        part="function:aberration",
        rules=DRIFTS,
        why="Terms of twenty and thirty make less than one, each rounded.",
        source="https://github.com/SpeedyWeather/SpeedyWeather.jl/issues/85",
    ),
    Planted(
        name="counts-overflow",
        healthy=ROOT,
        planted="    return 2 * torch.sqrt(counts.half() + 0.375).float()  # culprit\n",
        precisions=HALF,
        part="function:amplitude",
        rules=INFINITE,
        why="A bright pixel counts seventy thousand photons, which float16 does not hold.",
        source="https://github.com/numpy/numpy/issues/8133",
    ),
    Planted(
        name="ratio-less-one-low",
        healthy=CONTRAST,
        planted="    ratio = (counts.float() / flat.float()).bfloat16()  # culprit\n    return ratio.float() - 1\n",
        precisions=BF16,
        part="function:contrast",
        rules=DRIFTS,
        why="Most of the sample takes a few hundredths, and a ratio near one is known to a 256th.",
        source="https://github.com/radis/radis/pull/652",
    ),
    Planted(
        name="logarithms-half",
        healthy=OVER,
        planted="    logs = rate.log().half() - counts.log().half()  # culprit\n    return 2 * (rate - counts - counts * logs.float())\n",
        precisions=HALF,
        part="function:deviance",
        rules=DRIFTS,
        why="Logarithms of ten are known to a 128th, and forty thousand photons are multiplied by what they differ.",
        source="https://github.com/scverse/scvi-tools/issues/2965",
    ),
    Planted(
        name="turns-half",
        healthy=TURNS,
        planted="    turns = (phase / (2 * math.pi)).half().float()  # culprit\n",
        precisions=HALF,
        part="function:wrapped",
        rules=DRIFTS,
        why="Of a hundred turns the part of one is known to a sixteenth.",
        source="https://github.com/hexgrad/kokoro/pull/353",
    ),
    Planted(
        name="turns-put-back-low",
        healthy=RUNNING,
        planted="    total = phase[..., :1].bfloat16()  # culprit\n    found = [total]\n    for step in steps.unbind(-1):\n"
        "        total = total + step[..., None].bfloat16()  # culprit\n        found.append(total)\n    return torch.cat(found, -1).float()\n",
        precisions=BF16,
        part="function:levelled",
        rules=WHOLE,
        why="A phase of twenty is rounded to an eighth with each step of a row, and what is looked for is a part of the ramp.",
        source="https://github.com/surge-synthesizer/surge/pull/2571",
    ),
    Planted(
        name="spread-by-squares-low",
        healthy=SHARP,
        planted="    squares = intensity.square().mean((-2, -1)).bfloat16()  # culprit\n    return squares.float() / mean.square() - 1\n",
        precisions=BF16,
        part="function:sharpness",
        rules=DRIFTS,
        why="The mean square is a little more than the square of the mean.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
    Planted(
        name="size-half",
        healthy=CROSS,
        planted="    cross = cross * 400\n    size = (cross.real.half().square() + cross.imag.half().square()).sqrt()  # culprit\n",
        precisions=HALF,
        part="function:aligned",
        rules=INFINITE,
        why="The square of a wave's size is beyond float16 for some, and nothing of them is left.",
        source="https://github.com/adobe-research/convmelspec/pull/3",
    ),
    Planted(
        name="photons-low",
        healthy=TAKEN,
        planted="    sent, come = sent.bfloat16(), come.bfloat16()  # culprit\n    return ((sent - come) / sent).float()\n",
        precisions=BF16,
        part="function:absorbed",
        rules=WHOLE,
        why="Twenty-four million photons are rounded to 131 072, and the sample takes 240 000.",
        source="https://github.com/OpenRLHF/OpenRLHF/pull/634",
    ),
    Planted(
        name="slope-by-products",
        healthy=LEVEL,
        planted="    phase = phase.bfloat16().float()  # culprit\n    place = place - place.mean()\n"
        "    slope = (phase * place).sum(-1, keepdim=True) / place.square().sum()\n",
        precisions=BF16,
        part="function:levelled",
        rules=DRIFTS,
        why="A phase of twenty is known to an eighth, and what is left without the slope is a third.",
        source="https://github.com/viser-project/viser/pull/427",
    ),
]

HARMLESS = [
    Harmless(
        name="contrast-rounded",
        healthy=CONTRAST,
        changed="    return (counts.float() / flat.float() - 1).bfloat16().float()\n",
        precisions=BF16,
        why="The contrast is rounded once, after the difference, and the network rounds it as well.",
    ),
    Harmless(
        name="shifts-half",
        healthy=SHIFTS,
        changed="    return (ticks - ticks[:, :1]).half().float() * optics.tick\n",
        precisions=HALF,
        why="Whole numbers up to 900 are exact in float16.",
    ),
    Harmless(
        name="turns-rounded",
        healthy="    return turns - turns.round()\n",
        changed="    return (turns - turns.round()).bfloat16().float()\n",
        precisions=BF16,
        why="What is left of a turn is rounded once.",
    ),
    Harmless(
        name="root-rounded",
        healthy=ROOT,
        changed="    return (2 * torch.sqrt(counts.float() + 0.375)).half().float()\n",
        precisions=MIXED,
        why="A root of four hundred is rounded once, to a part in two thousand.",
    ),
]
