"""Bugs of potentials: places in a box, fast waves, polynomials that cancel, powers, energies of free atoms."""

from __future__ import annotations

from planted_bug import Planted

MIXED = ("bf16-mixed", "16-mixed")

BUGS = [
    Planted(
        name="places-in-the-box-low",
        healthy="    apart = places.unsqueeze(1) - places.unsqueeze(2)\n",
        planted="    places, box = places.to(low), box.to(low)  # culprit\n    apart = places.unsqueeze(1) - places.unsqueeze(2)  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:displacements",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="A place of 80 in a box is known by a half in bfloat16, and a bond is 0.7 long.",
        source="https://github.com/aqlaboratory/openfold-3/pull/353",
    ),
    Planted(
        name="wave-angles-low",
        healthy="    number = torch.arange(1, WAVES + 1, device=distance.device, dtype=distance.dtype)\n",
        planted="    number = torch.arange(1, WAVES + 1, device=distance.device, dtype=low)\n",
        precisions=("bf16-mixed",),
        part="function:waves",
        rules=("amplified-rounding", "local-drift"),
        why="The fastest wave turns by 50 radians up to the cutoff, which bfloat16 knows by a quarter.",
        source="https://github.com/wfondrie/depthcharge/pull/82",
        more=(
            (
                "    return math.sqrt(2 / CUTOFF) * torch.sin(number * math.pi / CUTOFF * distance.unsqueeze(-1)).float() / distance.unsqueeze(-1)\n",
                "    angles = number * math.pi / CUTOFF * distance.to(low).unsqueeze(-1)  # culprit\n"
                "    return math.sqrt(2 / CUTOFF) * torch.sin(angles).float() / distance.unsqueeze(-1)  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="envelope-low",
        healthy="    x = (distance / CUTOFF).clamp(max=1.0)\n    return (1 - 28 * x**6 + 48 * x**7 - 21 * x**8).float()\n",
        planted="    x = (distance.to(low) / CUTOFF).clamp(max=1.0)  # culprit\n"
        "    return (1 - 28 * x**6 + 48 * x**7 - 21 * x**8).float()  # culprit\n",
        precisions=MIXED,
        part="function:envelope",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Near the cutoff terms of 48 cancel to nothing, and what is left of them in a low format are their roundings.",
        source="https://github.com/materialyzeai/matgl/pull/87",
    ),
    Planted(
        name="bonded-power-overflows",
        healthy="    power = (2.8 / distance) ** 12\n",
        planted="    power = ((2.8 / distance.to(low)) ** 12).float()  # culprit\n",
        precisions=("16-mixed",),
        part="result",
        rules=("overflow", "nan"),
        why="Bonded atoms are so near that the power is beyond float16. It is not read, but its derivative times zero is no number.",
        source="https://github.com/pytorch/pytorch/issues/23156",
    ),
    Planted(
        name="free-atoms-low",
        healthy="    free = torch.tensor(FREE, device=energy.device)[species].sum(-1)\n    return energy.float() - (known - free)\n",
        planted="    free = torch.tensor(FREE, device=energy.device)[species].sum(-1)\n"
        "    return (energy + free).to(low).float() - known  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:surplus",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="The energy of 40 free atoms is -40000, where bfloat16 moves by 256; what the atoms have to do with one another is 4.",
        source="https://github.com/torchmd/torchmd-net/pull/275",
    ),
]
