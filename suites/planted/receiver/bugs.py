"""Bugs of a neural receiver: angles of many turns, powers by their moments, noise beside products of channels, and ratios that overflow."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
INFINITE = ("overflow", "nan")
CYCLES = "    cycles = torch.arange(SLOTS) * SAMPLES * (hertz.double() / rate)[:, None]\n"
TURNS = "    return (2 * math.pi * torch.remainder(cycles, 1)).float()\n"
MEAN = "    mean = pilots.mean(1, keepdim=True)\n    return (pilots - mean).abs().square().mean((1, 2))\n"
GRAM = "    product = channel.mH @ channel\n    return product + power[:, None, None, None] * torch.eye(STREAMS)\n"
LATE = "    return torch.atan2(product.imag.mean((1, 2)), product.real.mean((1, 2)))\n"
DECIBELS = "    return 10 * torch.log10(signal.float() / power.float())\n"
FAR = "    far = -(seen[..., None] - points).square() / power[..., None]\n"
TURN = "    turn = torch.complex(angle.cos(), -angle.sin())\n"

BUGS = [
    Planted(
        name="samples-low",
        healthy=CYCLES,
        planted="    cycles = (torch.arange(SLOTS) * SAMPLES).bfloat16() * (hertz.float() / rate)[:, None]  # culprit\n",
        precisions=BF16,
        part="function:turns",
        rules=WHOLE,
        why="Of 14 000 samples bfloat16 knows every 64th.",
        source="https://github.com/gnuradio/gnuradio/issues/6269",
    ),
    Planted(
        name="phase-accumulated-low",
        healthy=TURNS,
        planted="    step = 2 * math.pi * SAMPLES * (hertz.float() / rate)\n"
        "    phase, out = torch.zeros(len(hertz), dtype=torch.bfloat16), []\n"
        "    for _ in range(SLOTS):\n        out.append(phase)\n        phase = (phase + step).bfloat16()  # culprit\n"
        "    return torch.remainder(torch.stack(out, -1).float(), 2 * math.pi)\n",
        precisions=BF16,
        part="function:turns",
        rules=(*DRIFTS, "absorption"),
        why="A phase that only grows loses the digits of its last turn.",
        source="https://github.com/jgaeddert/liquid-dsp/issues/3",
    ),
    Planted(
        name="noise-by-moments-low",
        healthy=MEAN,
        planted="    parts = torch.view_as_real(pilots).bfloat16()  # culprit\n"
        "    spread = parts.square().mean(1) - parts.mean(1).square()  # culprit\n    return spread.sum(-1).mean(1).float()\n",
        precisions=BF16,
        part="function:noise",
        rules=DRIFTS,
        why="The pilots' power is 36, and the noise is a difference of two such.",
        source="https://github.com/google/objax/issues/182",
    ),
    Planted(
        name="gram-low",
        healthy=GRAM,
        planted="    parts = torch.view_as_real(channel).bfloat16().float()  # culprit\n    channel = torch.view_as_complex(parts)\n"
        "    product = torch.view_as_real(channel.mH @ channel).bfloat16()  # culprit\n"
        "    whole = torch.view_as_complex(product.float())\n    return whole + power[:, None, None, None] * torch.eye(STREAMS)\n",
        precisions=BF16,
        part="function:equalised",
        rules=DRIFTS,
        why="Two streams whose channels are alike leave little after their product is taken off, and the rounding with it.",
        source="https://github.com/NVlabs/sionna/pull/327",
    ),
    Planted(
        name="ratios-overflow",
        healthy=FAR,
        planted="    far = -((seen.half()[..., None] - points.half()) / power.half()[..., None].square()).square()  # culprit\n",
        precisions=("16-mixed",),
        part="function:ratios",
        rules=INFINITE,
        why="What is far from a point, over little noise, has a square beyond float16.",
        source="https://github.com/NVlabs/sionna/pull/327",
    ),
]

HARMLESS = [
    Harmless(
        name="turn-rounded",
        healthy=TURN,
        changed="    turn = torch.complex(angle.cos().bfloat16().float(), -angle.sin().bfloat16().float())\n",
        precisions=BF16,
        why="A sine and a cosine are rounded once.",
    ),
    Harmless(
        name="decibels-rounded",
        healthy=DECIBELS,
        changed="    return (10 * torch.log10(signal.float() / power.float())).bfloat16()\n",
        precisions=BF16,
        why="What is rounded is the result.",
    ),
    Harmless(
        name="late-rounded",
        healthy=LATE,
        changed="    return torch.atan2(product.imag.mean((1, 2)).half().float(), product.real.mean((1, 2)).half().float())\n",
        precisions=("16-mixed",),
        why="Both means are rounded once.",
    ),
]
