"""Bugs of simulated particles: places far from zero, small steps, a power beyond the format, times, energies above a large rest."""

from __future__ import annotations

from planted_bug import Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="places-low",
        healthy="    ways = places.unsqueeze(-2) - places.unsqueeze(-3)\n",
        planted="    places = places.to(low)  # culprit\n    ways = (places.unsqueeze(-2) - places.unsqueeze(-3)).float()  # culprit\n",
        precisions=ALL,
        part="function:between",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Places of 44 are known to a quarter, or a thirty-second. What is left of their difference is a step of the format.",
        source="https://github.com/viser-project/viser/pull/427",
    ),
    Planted(
        name="step-absorbed",
        healthy="    return places + STEP * speeds\n",
        planted="    return (places.to(low) + STEP * speeds.to(low)).float()  # culprit\n",
        precisions=ALL,
        part="result",
        rules=("absorption", "cancellation", "amplified-rounding", "local-drift", "accumulated-drift"),
        why="A step of a hundredth, added to a place of 44, is nothing in the format: particles stand still.",
        source="https://github.com/vllm-project/vllm-omni/pull/4341",
    ),
    Planted(
        name="core-overflows",
        healthy="    power = (2.2 / length) ** 12\n",
        planted="    power = (2.2 / length).to(low).pow(12).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:core",
        rules=("overflow", "nan"),
        why="The twelfth power of three is beyond float16, and infinity over infinity is no number.",
        source="https://github.com/brucefan1983/GPUMD/issues/234",
    ),
    Planted(
        name="clock-low",
        healthy="    time = start.float() + turn * STEP\n",
        planted="    time = (start.to(low) + turn * STEP).float()  # culprit\n",
        precisions=BF16,
        part="function:clock",
        rules=("amplified-rounding", "absorption", "cancellation", "local-drift"),
        why="After 40 seconds bfloat16 knows quarters of a second, and the fastest wave turns 20 times in one.",
        source="https://github.com/finegrain-ai/refiners/pull/449",
    ),
    Planted(
        name="energy-before-rest",
        healthy="    each = own + moving - REST\n",
        planted="    each = (own.to(low) + moving.to(low) - REST).float()  # culprit\n",
        precisions=ALL,
        part="function:energy",
        rules=("absorption", "cancellation", "amplified-rounding", "local-drift", "accumulated-drift"),
        why="An energy of one above a rest of 740 is rounded to a step of four, or of a half, and then the rest is taken off.",
        source="https://github.com/torchmd/torchmd-net/pull/275",
    ),
    Planted(
        name="bumps-low",
        healthy="    apart = length.unsqueeze(-1) - centres\n",
        planted="    apart = length.to(low).unsqueeze(-1) - centres.to(low)  # culprit\n",
        precisions=BF16,
        part="function:basis",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="A distance of three is known to a hundredth, where bumps are a sixth apart.",
        source="https://github.com/materialyzeai/matgl/pull/87",
    ),
]
