"""Bugs of a recogniser of speech: a microphone's offset, powers beyond float16, numbers of samples, and attention that is nearly even."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
HALF = ("16-mixed",)
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = ("integer-rounding", "decision-flip", *DRIFTS)
INFINITE = ("overflow", "nan")
FRAMES = "    frames = audio.unfold(1, WINDOW, HOP).float()\n"
SPECTRUM = "    return spectrum.real.square() + spectrum.imag.square()\n"
LOGS = "    logs = energy.clamp_min(1e-10).log10()\n    logs = torch.maximum(logs, logs.amax((1, 2), keepdim=True) - 8)\n"
INVERSE = "    inverse = torch.exp(-step * torch.arange(channels // 2, dtype=torch.float32))\n"
TICKS = '    ticks = torch.div(begin, RATE // 50, rounding_mode="floor")\n    return ticks % 1500\n'
WARP = "    spread, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)\n"
SPANNED = "    return ((spans * logs[:, None]).sum(-1) / spans.sum(-1)).exp()\n"
STANDARD = "    return (weights - mean) / (spread + 1e-9)\n"
SCALED = "    return (logs - 4) / 4\n"
SINES = "    return torch.cat((angles.sin(), angles.cos()), -1)\n"

BUGS = [
    Planted(
        name="offset-low",
        healthy=FRAMES,
        planted="    frames = audio.unfold(1, WINDOW, HOP).bfloat16()  # culprit\n",
        precisions=BF16,
        part="function:framed",
        rules=WHOLE,
        why="A microphone's offset of twenty thousand leaves bfloat16 steps of 128, and a voice has a thousand.",
        source="https://github.com/qiuqiangkong/audioset_tagging_cnn/issues/17",
    ),
    Planted(
        name="power-half",
        healthy=SPECTRUM,
        planted="    real, imag = spectrum.real.half(), spectrum.imag.half()  # culprit\n"
        "    return (real.square() + imag.square()).float()  # culprit\n",
        precisions=HALF,
        part="function:power",
        rules=INFINITE,
        why="The square of a tone's amplitude in the converter's steps is 10^10.",
        source="https://github.com/LIHANG-HONG/birdclef2023-2nd-place-solution/issues/2",
    ),
    Planted(
        name="energy-half",
        healthy=LOGS,
        planted="    logs = energy.half().clamp_min(1e-7).log10().float()  # culprit\n"
        "    logs = torch.maximum(logs, logs.amax((1, 2), keepdim=True) - 8)\n",
        precisions=HALF,
        part="function:log_mel",
        rules=INFINITE,
        why="Energies of a channel are more than float16's largest number, and their logarithm infinite.",
        source="https://github.com/adobe-research/convmelspec/pull/3",
    ),
    Planted(
        name="inverse-low",
        healthy=INVERSE,
        planted="    inverse = torch.exp(-step * torch.arange(channels // 2, dtype=torch.float32)).bfloat16()  # culprit\n",
        precisions=BF16,
        part="function:sinusoids",
        rules=DRIFTS,
        why="A frequency's rounding is multiplied by the frame's number.",
        source="https://github.com/EleutherAI/gpt-neox/issues/1003",
    ),
    Planted(
        name="stamps-low",
        healthy=TICKS,
        planted="    seconds = begin.bfloat16() / RATE  # culprit\n    return (seconds * 50).floor().long() % 1500\n",
        precisions=BF16,
        part="function:stamps",
        rules=WHOLE,
        why="After a minute bfloat16 knows a time to a quarter of a second.",
        source="https://github.com/openai/whisper/pull/869",
    ),
    Planted(
        name="warp-low",
        healthy=WARP,
        planted="    weights = weights.bfloat16().float()  # culprit\n" + WARP,
        precisions=BF16,
        part="function:standardised",
        rules=DRIFTS,
        why="Attention of an untrained head is nearly even, and what it differs by is lost.",
        source="https://github.com/huggingface/transformers/pull/23205",
    ),
    Planted(
        name="confidence-by-product",
        healthy=SPANNED,
        planted="    chances = torch.where(spans.bool(), logs[:, None].exp(), 1.0).half()  # culprit\n"
        "    return chances.prod(-1).float() ** (1 / spans.sum(-1))  # culprit\n",
        precisions=HALF,
        part="function:confidence",
        rules=("underflow", *DRIFTS),
        why="The product of six chances of a fortieth is below float16's smallest number.",
        source="https://github.com/OpenNMT/CTranslate2/issues/1077",
    ),
]

HARMLESS = [
    Harmless(
        name="floor-vanishes",
        healthy=LOGS,
        changed="    logs = energy.clamp_min(1e-10 * 1e-36).log10()\n    logs = torch.maximum(logs, logs.amax((1, 2), keepdim=True) - 8)\n",
        precisions=("bf16-mixed", "16-mixed", "bf16-true"),
        why="The floor of eight decades below the loudest takes the place of whatever is lower.",
    ),
    Harmless(
        name="mel-rounded",
        healthy=SCALED,
        changed="    return ((logs - 4) / 4).bfloat16().float()\n",
        precisions=BF16,
        why="Logarithms are of the order of one; the first convolution rounds them as well.",
    ),
    Harmless(
        name="warp-rounded",
        healthy=STANDARD,
        changed="    return ((weights - mean) / (spread + 1e-9)).half().float()\n",
        precisions=("16-mixed",),
        why="What is rounded has been standardised.",
    ),
    Harmless(
        name="sines-rounded",
        healthy=SINES,
        changed="    return torch.cat((angles.sin(), angles.cos()), -1).bfloat16().float()\n",
        precisions=BF16,
        why="A sine is rounded once.",
    ),
]
