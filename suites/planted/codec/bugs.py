"""Bugs of an audio codec: times, phases and levels kept low, counts that saturate, squares and guards that the format does not hold."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="loudness-low",
        healthy="    return torch.sqrt(wave.float().square().mean(-1, keepdim=True) + 1e-8)\n",
        planted="    return torch.sqrt(wave.to(low).square().mean(-1, keepdim=True) + 1e-8).float()  # culprit\n",
        precisions=("16-mixed",),
        part="result",
        rules=("vanished-constant", "nan", "underflow"),
        why="A hundred-millionth is zero in float16, so silence is divided by zero.",
        source="https://github.com/lightonai/pylate/issues/239",
    ),
    Planted(
        name="envelope-absorbed",
        healthy="    levels = levels.float()\n    level, followed = levels[:, 0], []\n",
        planted="    levels = levels.to(low)\n    level, followed = levels[:, 0], []\n",
        precisions=BF16,
        part="function:envelope",
        rules=("absorption", "accumulated-drift", "local-drift"),
        why="A step of four thousandths of the difference is less than half of a step of bfloat16: the level stands still.",
        source="https://github.com/facebookresearch/dinov2/pull/583",
        more=(
            (
                "        level = level + 0.004 * (each - level)\n",
                "        level = level + 0.004 * (each - level)  # culprit\n",
            ),
            ("    return torch.stack(followed, -1)\n", "    return torch.stack(followed, -1).float()\n"),
        ),
    ),
    Planted(
        name="times-low",
        healthy="    times = torch.arange(count).float() / FRAME_RATE\n",
        planted="    times = torch.arange(count, dtype=low) / FRAME_RATE  # culprit\n",
        precisions=BF16,
        part="function:time_waves",
        rules=("integer-rounding", "amplified-rounding", "local-drift"),
        why="Six seconds are known to a 64th of one, and the fastest wave turns eight times in a second.",
        source="https://github.com/huggingface/transformers/pull/29285",
    ),
    Planted(
        name="phase-low",
        healthy="    cycles = torch.cumsum(pitch.float() / RATE, -1)\n",
        planted="    cycles = torch.cumsum((pitch / RATE).to(low), -1)  # culprit\n",
        precisions=ALL,
        part="function:oscillator",
        rules=("amplified-rounding", "accumulated-drift", "absorption", "local-drift", "cancellation"),
        why="After 80 cycles bfloat16 knows halves of one, and float16 sixteenths.",
        source="https://github.com/hexgrad/kokoro/pull/353",
        more=(
            (
                "    turns = cycles.unsqueeze(1) * torch.arange(1, HARMONICS + 1).float().unsqueeze(-1)\n",
                "    turns = cycles.float().unsqueeze(1) * torch.arange(1, HARMONICS + 1).float().unsqueeze(-1)\n",
            ),
        ),
    ),
    Planted(
        name="distances-low",
        healthy="    x, codes = x.float(), codes.float()\n"
        "    distances = x.square().sum(-1, keepdim=True) - 2 * x @ codes.T + codes.square().sum(-1)\n",
        planted="    x, codes = x.to(low), codes.to(low)\n"
        "    distances = x.square().sum(-1, keepdim=True) - 2 * x @ codes.T + codes.square().sum(-1)  # culprit\n",
        precisions=BF16,
        part="function:nearest",
        rules=("cancellation", "decision-flip", "amplified-rounding", "local-drift"),
        why="A squared length of 500 is known to two, and so are distances: codes that differ by less are one to it.",
        source="https://github.com/lucidrains/vector-quantize-pytorch/issues/114",
    ),
    Planted(
        name="counts-saturate",
        healthy="    counts = torch.zeros(CODES)\n    return counts.index_add(0, chosen.flatten(), torch.ones(chosen.numel()))\n",
        planted="    counts = torch.zeros(CODES, dtype=low)\n"
        "    return counts.index_add(0, chosen.flatten(), torch.ones(chosen.numel(), dtype=low)).float()  # culprit\n",
        precisions=BF16,
        part="function:usage",
        rules=("absorption", "accumulated-drift", "integer-rounding", "local-drift"),
        why="Silence chooses one code 320 times, and one more than 256 is 256 in bfloat16.",
        source="https://github.com/pytorch/pytorch/issues/61098",
    ),
    Planted(
        name="power-overflows",
        healthy="    power = spectrum.real.square() + spectrum.imag.square()\n",
        planted="    power = (spectrum.real.to(low).square() + spectrum.imag.to(low).square()).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:magnitudes",
        rules=("overflow", "nan"),
        why="A tone has a magnitude of 350 in 1024 samples, whose square is beyond float16.",
        source="https://github.com/adobe-research/convmelspec/pull/3",
    ),
    Planted(
        name="silence-low",
        healthy="    return torch.log(magnitude + 1e-8)\n",
        planted="    return torch.log(magnitude.to(low) + 1e-8).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:decibels",
        rules=("vanished-constant", "nan", "underflow", "overflow"),
        why="A magnitude of a millionth and less is nearly nothing in float16, and a guard of 1e-8 is zero.",
        source="https://github.com/qiuqiangkong/audioset_tagging_cnn/issues/17",
        more=(("    return torch.sqrt(power + 1e-12)\n", "    return torch.sqrt(power)\n"),),
    ),
    Planted(
        name="total-low",
        healthy="    total = torch.zeros(len(apart))\n",
        planted="    total = torch.zeros(len(apart), dtype=low)\n",
        precisions=BF16,
        part="function:over_time",
        rules=("absorption", "accumulated-drift", "local-drift"),
        why="A sum of 400 frames does not feel one more of them in bfloat16.",
        source="https://github.com/pytorch/pytorch/issues/61098",
        more=(
            (
                "        total = total + frame.mean(-1)\n    return total\n",
                "        total = total + frame.mean(-1).to(low)  # culprit\n    return total.float()\n",
            ),
        ),
    ),
]

HARMLESS = [
    Harmless(
        name="straight-through-low",
        healthy="        return x + (total - x).detach(), torch.stack(chosen), commitment\n",
        changed="        return (x.to(low) + (total.to(low) - x.to(low)).detach()).float(), torch.stack(chosen), commitment\n",
        precisions=ALL,
        why="The sum is a frame of codes, rounded once or twice as each layer rounds.",
    ),
    Harmless(
        name="window-low",
        healthy="    window = torch.hann_window(size)\n",
        changed="    window = torch.hann_window(size).to(low).float()\n",
        precisions=ALL,
        why="A window that is rounded once changes no magnitude by more than that.",
    ),
    Harmless(
        name="short-counts-low",
        healthy="    return counts.index_add(0, chosen.flatten(), torch.ones(chosen.numel()))\n",
        changed="    parts = chosen.flatten().split(200)\n"
        "    return sum(counts.to(low).index_add(0, each, torch.ones(len(each), dtype=low)).float() for each in parts)\n",
        precisions=ALL,
        why="No count of 200 frames reaches 256, up to which each format holds whole numbers, and the counts are added up in float32.",
    ),
]
