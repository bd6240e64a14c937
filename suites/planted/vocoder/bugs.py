"""Bugs of a vocoder: sums of steps, harmonics of a phase, numbers of samples, waves that hardly change from sample to sample."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
MIXED = ("bf16-mixed", "16-mixed")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift")
EDGES = "    edges = 700 * (10 ** (torch.linspace(0, top, MELS + 2) / 2595) - 1)\n"
GAP = "    return ((made + 0.1).log() - (real + 0.1).log()).square().mean()\n"
LEVEL = "    return wave / (wave.square().mean(1, keepdim=True) + 1e-9).sqrt()\n"

BUGS = [
    Planted(
        name="steps-low",
        healthy="        steps = pitch / RATE\n",
        planted="        steps = (pitch / RATE).to(like.dtype).float()  # culprit\n",
        precisions=BF16,
        part="function:Source.overtones",
        rules=DRIFTS,
        why="A step of a fiftieth of a turn is rounded and added 800 times; the sixth harmonic is off by a tenth of a turn and more.",
        source="https://github.com/hexgrad/kokoro/pull/353",
    ),
    Planted(
        name="phase-low",
        healthy="        sums = steps.cumsum(1)\n",
        planted="        sums = steps.to(like.dtype).cumsum(1)  # culprit\n",
        precisions=("bf16-true",),
        part="function:Source.overtones",
        rules=(*DRIFTS, "absorption", "cancellation"),
        why="Of fifteen turns bfloat16 knows a sixteenth.",
        source="https://github.com/hexgrad/kokoro/pull/353",
    ),
    Planted(
        name="harmonics-low",
        healthy="        angles = 2 * math.pi * turns[..., None] * torch.arange(1, HARMONICS + 1)\n",
        planted="        angles = 2 * math.pi * turns[..., None].to(like.dtype) * torch.arange(1, HARMONICS + 1)  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:Source.overtones",
        rules=DRIFTS,
        why="The angle of the sixth harmonic is up to 38, and off by a 500th of that.",
        source="https://github.com/huggingface/transformers/issues/25681",
    ),
    Planted(
        name="emphasis-low",
        healthy="    return wave[:, 1:] - 0.97 * wave[:, :-1]\n",
        planted="    wave = wave.to(like.dtype)  # culprit\n    return wave[:, 1:] - 0.97 * wave[:, :-1]  # culprit\n",
        precisions=MIXED,
        part="function:emphasised",
        rules=("cancellation", *DRIFTS),
        why="A low voice changes by a tenth from sample to sample, and a wave of one is known to a 256th.",
        source="https://github.com/amazon-science/chronos-forecasting/issues/193",
    ),
    Planted(
        name="fading-low",
        healthy="    powers = torch.tensor(keep) ** torch.arange(length)\n",
        planted="    powers = torch.tensor(keep, dtype=like.dtype).float() ** torch.arange(length)  # culprit\n",
        precisions=BF16,
        part="function:echo",
        rules=DRIFTS,
        why="0.9969 is 0.9961 in bfloat16, and its 400th power is a fourth less.",
        source="https://github.com/fla-org/flash-linear-attention/issues/181",
    ),
    Planted(
        name="mels-low",
        healthy=EDGES,
        planted="    edges = 700 * (10 ** (torch.linspace(0, top, MELS + 2, dtype=like.dtype).float() / 2595) - 1)  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:filter_bank",
        rules=("cancellation", "integer-rounding", *DRIFTS),
        why="A mel of 2000 is known to eight, and a triangle is 120 wide.",
        source="https://github.com/adobe-research/convmelspec/pull/3",
    ),
    Planted(
        name="edges-low",
        healthy="    bins = torch.linspace(0, RATE / 2, n // 2 + 1)\n",
        planted="    bins, edges = torch.linspace(0, RATE / 2, n // 2 + 1).to(like.dtype), edges.to(like.dtype)  # culprit\n",
        precisions=BF16,
        part="function:filter_bank",
        rules=("cancellation", "integer-rounding", *DRIFTS),
        why="A frequency of 3000 Hz is known to 16, and the sides of a triangle are 100 to 400 long.",
        source="https://github.com/adobe-research/convmelspec/pull/3",
    ),
    Planted(
        name="silence-low",
        healthy=LEVEL,
        planted="    return (wave / (wave.square().mean(1, keepdim=True).to(like.dtype) + 1e-9).sqrt()).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:levelled",
        rules=("underflow", "overflow", "nan"),
        why="The guard is nought in float16, as the power of silence is.",
        source="https://github.com/qiuqiangkong/audioset_tagging_cnn/issues/17",
    ),
    Planted(
        name="energy-overflows",
        healthy="    return (real - made).square().sum().sqrt() / real.square().sum().sqrt()\n",
        planted="    real, made = real.to(like.dtype), made.to(like.dtype)\n"
        "    return ((real - made).square().sum().sqrt() / real.square().sum().sqrt()).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:convergence",
        rules=("overflow", "nan"),
        why="Squares of all bins of all pieces together are more than float16 holds.",
        source="https://github.com/adobe-research/convmelspec/pull/3",
    ),
]

HARMLESS = [
    Harmless(
        name="magnitudes-low",
        healthy=GAP,
        changed="    return ((made.to(like.dtype).float() + 0.1).log() - (real.to(like.dtype).float() + 0.1).log()).square().mean()\n",
        precisions=("bf16-mixed",),
        why="A logarithm turns one rounding into a small difference, and a mean is taken.",
    ),
    Harmless(
        name="sines-rounded",
        healthy="        return 0.1 * angles.sin() / torch.arange(1, HARMONICS + 1)\n",
        changed="        return (0.1 * angles.sin() / torch.arange(1, HARMONICS + 1)).to(like.dtype).float()\n",
        precisions=("bf16-mixed",),
        why="The sines of exact angles are rounded once.",
    ),
    Harmless(
        name="place-by-remainder",
        healthy="        left = place.floor().long().clamp(max=FRAMES - 2)\n        part = (place - left).clamp(max=1)\n",
        changed="        left = (torch.arange(LENGTH) // HOP).clamp(max=FRAMES - 2)\n"
        "        part = ((torch.arange(LENGTH) - left * HOP).to(like.dtype).float() / HOP).clamp(max=1)\n",
        precisions=BF16,
        why="What is left of a frame is 0 to 79 samples, which every format has.",
    ),
    Harmless(
        name="echo-rounded",
        healthy="    return powers * (1 - keep)\n",
        changed="    return (powers * (1 - keep)).to(like.dtype)\n",
        precisions=ALL,
        why="The powers are made in float32, and rounded once.",
    ),
    Harmless(
        name="bank-rounded",
        healthy="    return torch.minimum(rise, fall).clamp_min(0)\n",
        changed="    return torch.minimum(rise, fall).clamp_min(0).to(like.dtype)\n",
        precisions=("bf16-mixed", "bf16-true"),
        why="The triangles are rounded once.",
    ),
    Harmless(
        name="emphasis-rounded",
        healthy="    return wave[:, 1:] - 0.97 * wave[:, :-1]\n",
        changed="    return (wave[:, 1:] - 0.97 * wave[:, :-1]).to(like.dtype)\n",
        precisions=MIXED,
        why="The difference is made in float32.",
    ),
    Harmless(
        name="level-rounded",
        healthy=LEVEL,
        changed="    return wave / (wave.square().mean(1, keepdim=True) + 1e-9).sqrt().to(like.dtype).float()\n",
        precisions=("16-mixed",),
        why="The guard is added in float32, and its root is in float16.",
    ),
    Harmless(
        name="energies-scaled",
        healthy="    return (real - made).square().sum().sqrt() / real.square().sum().sqrt()\n",
        changed="    real, made = (real / 32).to(like.dtype), (made / 32).to(like.dtype)\n"
        "    return torch.linalg.vector_norm((real - made).float()) / torch.linalg.vector_norm(real.float())\n",
        precisions=("16-mixed",),
        why="Magnitudes are divided by a power of two, rounded once, and squared in float32.",
    ),
]
