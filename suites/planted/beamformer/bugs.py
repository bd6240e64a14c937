"""Bugs of a beamformer: delays of tenths of a millisecond, quiet waves whose powers vanish, small guards, a small rest of two waves."""

from __future__ import annotations

from planted_bug import Harmless, Planted

MIXED = ("bf16-mixed", "16-mixed")

BUGS = [
    Planted(
        name="angles-low",
        healthy="    return torch.complex(angles.cos(), angles.sin())\n",
        planted="    angles = angles.to(low).float()  # culprit\n    return torch.complex(angles.cos(), angles.sin())\n",
        precisions=("bf16-mixed",),
        part="function:steering",
        rules=("amplified-rounding", "accumulated-drift", "local-drift"),
        why="An angle of sixty is known to a quarter of a radian.",
        source="https://github.com/huggingface/transformers/issues/25681",
    ),
    Planted(
        name="delays-vanish",
        healthy="    return -(direction @ places.T) / SPEED\n",
        planted="    return (-(direction @ places.T) / SPEED / RATE).half().float() * RATE  # culprit\n",
        precisions=("16-mixed",),
        part="function:delays",
        rules=("underflow", "amplified-rounding", "local-drift"),
        why="A delay in squares of samples is some hundred-millionths, which is near the smallest number of float16 or below it.",
        source="https://github.com/facebookresearch/fairscale/pull/263",
    ),
    Planted(
        name="power-vanishes",
        healthy="    return 10 * (spec[:, 0].abs().square() + 1e-10).log10()\n",
        planted="    size = spec[:, 0].abs().half()\n    return 10 * (size * size + 1e-10).float().log10()  # culprit\n",
        precisions=("16-mixed",),
        part="function:level",
        rules=("underflow", "overflow", "nan", "vanished-constant"),
        why="A quiet wave of a ten-thousandth has a power that float16 does not hold, nor the guard, so the logarithm is infinite.",
        source="https://github.com/espnet/espnet/issues/3380",
    ),
    Planted(
        name="loading-low",
        healthy="    return noise + 5e-2 * power[..., None, None] * torch.eye(MICS)\n",
        planted="    parts = torch.view_as_real(noise).to(low)  # culprit\n"
        "    extra = (5e-2 * power[..., None, None] * torch.eye(MICS)).to(low)\n"
        "    parts = torch.stack([parts[..., 0] + extra, parts[..., 1]], -1)  # culprit\n"
        "    return torch.view_as_complex(parts.float())\n",
        precisions=("bf16-mixed",),
        part="function:weights",
        rules=("amplified-rounding", "absorption", "local-drift", "accumulated-drift", "cancellation"),
        why="A covariance of waves that are nearly one has small eigenvalues, which its rounding changes.",
        source="https://github.com/princeton-vl/RAFT/issues/54",
    ),
    Planted(
        name="phases-vanish",
        healthy="    real, imaginary = (a * b.conj()).real, (a * b.conj()).imag\n",
        planted="    real, imaginary = (a * b.conj()).real.half(), (a * b.conj()).imag.half()  # culprit\n",
        more=(
            (
                "    return real / (real.square() + imaginary.square() + 1e-20).sqrt()\n",
                "    return (real / (real * real + imaginary * imaginary + 1e-20).sqrt()).float()  # culprit\n",
            ),
        ),
        precisions=("16-mixed",),
        part="function:coherence",
        rules=("underflow", "overflow", "nan", "vanished-constant"),
        why="The product of two quiet spectra, and its square all the more, are below float16, and so is the guard: nought over nought.",
        source="https://github.com/facebookresearch/fairscale/pull/263",
    ),
    Planted(
        name="average-absorbs",
        healthy="        state = state + (1 - kept) * (power[..., t] - state)\n",
        planted="        state = (state.to(low) + ((1 - kept) * (power[..., t] - state)).to(low)).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:smoothed",
        rules=("absorption", "local-drift", "accumulated-drift"),
        why="A five-hundredth of a difference is less than half a step of bfloat16.",
        source="https://github.com/facebookresearch/dinov2/pull/583",
    ),
]

HARMLESS = [
    Harmless(
        name="turns-rounded",
        healthy="    return torch.complex(angles.cos(), angles.sin())\n",
        changed="    return torch.complex(angles.cos().to(low).float(), angles.sin().to(low).float())\n",
        precisions=("16-mixed",),
        why="Cosines of exact angles are rounded once.",
    ),
    Harmless(
        name="delays-in-samples",
        healthy="    return -(direction @ places.T) / SPEED\n",
        changed="    return (-(direction @ places.T) / SPEED * RATE).half().float() / RATE\n",
        precisions=("16-mixed",),
        why="A delay of some samples is rounded once by float16, and an angle is a turn at most.",
    ),
    Harmless(
        name="level-rounded",
        healthy="    return 10 * (spec[:, 0].abs().square() + 1e-10).log10()\n",
        changed="    return (10 * (spec[:, 0].abs().square() + 1e-10).log10()).to(low).float()\n",
        precisions=MIXED,
        why="Decibels are rounded once.",
    ),
    Harmless(
        name="cosines-rounded",
        healthy="    return real / (real.square() + imaginary.square() + 1e-20).sqrt()\n",
        changed="    return (real / (real.square() + imaginary.square() + 1e-20).sqrt()).to(low).float()\n",
        precisions=MIXED,
        why="A cosine is rounded once.",
    ),
    Harmless(
        name="rest-rounded",
        healthy="    return (heard - wanted).square().sum(-1) / wanted.square().sum(-1)\n",
        changed="    rest = (1000 * (heard - wanted)).to(low).float() / 1000\n    return rest.square().sum(-1) / wanted.square().sum(-1)\n",
        precisions=MIXED,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="mismatch-rounded",
        healthy="    return (a - b).square().sum(-1) / 2\n",
        changed="    return ((a - b).square().sum(-1) / 2).to(low).float()\n",
        precisions=("bf16-mixed",),
        why="The difference is made in float32, and what comes of it is rounded once.",
    ),
    Harmless(
        name="frames-rounded",
        healthy="        state = state + (1 - kept) * (power[..., t] - state)\n",
        changed="        state = state + (1 - kept) * ((1000 * (power[..., t] - state)).to(low).float() / 1000)\n",
        precisions=("bf16-mixed",),
        why="A step is rounded once, and it is added in float32.",
    ),
]
