"""Bugs of separation: places between samples, angles of filters, a norm over everything, a slow level, a silent voice."""

from __future__ import annotations

from planted_bug import Planted

MIXED = ("bf16-mixed", "16-mixed")

BUGS = [
    Planted(
        name="places-low",
        healthy="    at = torch.arange(SAMPLES, device=wave.device).float() * SPEED\n",
        planted="    at = torch.arange(SAMPLES, device=wave.device).to(low) * SPEED  # culprit\n",
        precisions=MIXED,
        part="function:perturbed",
        rules=("integer-rounding", "amplified-rounding", "cancellation", "decision-flip", "local-drift"),
        why="Places reach 4464 and are between samples, of which bfloat16 has every sixteenth and float16 every second.",
        source="https://github.com/pytorch/pytorch/issues/94816",
    ),
    Planted(
        name="filter-angles-low",
        healthy="    angles = 2 * math.pi * seconds * torch.stack([low_hz.abs(), high_hz]).unsqueeze(-1)\n",
        planted="    angles = (2 * math.pi * seconds * torch.stack([low_hz.abs(), high_hz]).unsqueeze(-1)).to(low)  # culprit\n",
        precisions=MIXED,
        part="function:filters",
        rules=("amplified-rounding", "local-drift"),
        why="Angles reach 85 radians, which bfloat16 knows by a quarter.",
        source="https://github.com/wfondrie/depthcharge/pull/82",
        more=(
            (
                "    below, above = (torch.sin(angles).float() / (math.pi * seconds * RATE)).unbind(0)\n",
                "    below, above = (torch.sin(angles).float() / (math.pi * seconds * RATE)).unbind(0)  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="norm-overflows",
        healthy="    power = x.square().sum((1, 2), keepdim=True) / x[0].numel()\n",
        planted="    power = x.to(low).square().sum((1, 2), keepdim=True) / x[0].numel()  # culprit\n",
        precisions=("16-mixed",),
        part="function:global_norm",
        rules=("overflow", "nan"),
        why="The sum of 28800 squares is beyond float16 before it is divided by their number, and the wave is divided by infinity.",
        source="https://github.com/nntrainer/nntrainer/issues/3935",
    ),
    Planted(
        name="level-low",
        healthy="    level, levels = torch.full_like(energy[:, 0], 0.8).float(), []\n",
        planted="    level, levels = torch.full_like(energy[:, 0], 0.8).to(low), []\n",
        precisions=("bf16-mixed",),
        part="function:loudness",
        rules=("absorption", "accumulated-drift", "local-drift"),
        why="The level moves by 0.005 of what it is off, which is less than bfloat16's step: it stays where it is.",
        source="https://github.com/NVIDIA/Model-Optimizer/pull/738",
        more=(
            (
                "    for now in energy.float().unbind(1):\n        level = level + 0.005 * (now - level)\n",
                "    for now in energy.to(low).unbind(1):\n        level = level + 0.005 * (now - level)  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="silent-voice-low",
        healthy="    share = (found * true).mean(-1, keepdim=True) / (true.square().mean(-1, keepdim=True) + 1e-8)\n",
        planted="    found, true = found.to(low), true.to(low)\n"
        "    share = (found * true).mean(-1, keepdim=True) / (true.square().mean(-1, keepdim=True) + 1e-8)  # culprit\n",
        precisions=("16-mixed",),
        part="function:separation_ratio",
        rules=("vanished-constant", "nan", "overflow"),
        why="The energy of a silent voice is zero, and so is 1e-8 in float16: the share is no number, and the decibels would be minus infinity.",
        source="https://github.com/asteroid-team/asteroid/issues/252",
        more=(
            (
                "    return 10 * torch.log10((right.square().mean(-1) + 1e-8) / ((found - right).square().mean(-1) + 1e-8)).float()\n",
                "    return 10 * torch.log10((right.square().mean(-1) + 1e-8) / ((found - right).square().mean(-1) + 1e-8)).float()  # culprit\n",
            ),
        ),
    ),
]
