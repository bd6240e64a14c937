"""Bugs of folding: indices of residues, triangles that overflow, frames of far atoms, points in frames, distances, unknown angles."""

from __future__ import annotations

from planted_bug import Planted

MIXED = ("bf16-mixed", "16-mixed")

BUGS = [
    Planted(
        name="index-low",
        healthy="    apart = index.unsqueeze(-1) - index.unsqueeze(-2)\n",
        planted="    index = index.to(low)  # culprit\n    apart = index.unsqueeze(-1) - index.unsqueeze(-2)  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:relative",
        rules=("integer-rounding", "cancellation", "amplified-rounding"),
        why="Residues are numbered from 411 on, where bfloat16 has every second number: neighbours are two apart or not at all.",
        source="https://github.com/bytedance/Protenix/pull/195",
    ),
    Planted(
        name="triangle-overflows",
        healthy="    a, b = a.float(), b.float()\n",
        planted="    a, b = a.to(low), b.to(low)\n",
        precisions=("16-mixed",),
        part="function:triangle",
        rules=("overflow", "nan"),
        why="Forty products of a few thousand each are beyond float16. The norm that follows would have taken their scale away.",
        source="https://github.com/aqlaboratory/openfold/pull/295",
        more=(
            (
                '    return torch.einsum("bikc,bjkc->bijc", a, b).float()\n',
                '    return torch.einsum("bikc,bjkc->bijc", a, b).float()  # culprit\n',
            ),
        ),
    ),
    Planted(
        name="frames-low",
        healthy="    n, ca, c = backbone.unbind(-2)\n    along, other = c - ca, n - ca\n",
        planted="    n, ca, c = backbone.to(low).unbind(-2)  # culprit\n    along, other = c - ca, n - ca  # culprit\n",
        precisions=MIXED,
        part="function:frames.0",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="An atom at 140 is known by a half in bfloat16, and a bond is 1.5 long: frames point anywhere.",
        source="https://github.com/aqlaboratory/openfold/pull/222",
    ),
    Planted(
        name="points-in-frames-expanded",
        healthy="    apart = points.unsqueeze(1) - places.unsqueeze(2)\n    return (apart @ rotations).float()\n",
        planted="    rotations = rotations.to(low)\n"
        "    turned = points.to(low).unsqueeze(1) @ rotations  # culprit\n"
        "    return (turned - places.to(low).unsqueeze(2) @ rotations).float()  # culprit\n",
        precisions=MIXED,
        part="function:seen_from",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Rotating first and subtracting afterwards takes the difference of two low numbers of 140.",
        source="https://github.com/aqlaboratory/openfold-3/pull/353",
    ),
    Planted(
        name="distances-low",
        healthy="    return (ours - theirs).abs().float()\n",
        planted="    return (ours.to(low) - theirs.to(low)).abs().float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:distance_errors",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Distances of 20 are kept to an eighth in bfloat16, and they are off by a fifth.",
        source="https://github.com/aqlaboratory/openfold/pull/222",
    ),
    Planted(
        name="unknown-angles-low",
        healthy="    directions = directions.float() * known.unsqueeze(-1).float()\n",
        planted="    directions = directions.to(low) * known.unsqueeze(-1).to(low)\n",
        precisions=("16-mixed",),
        part="function:normalised",
        rules=("vanished-constant", "nan", "overflow"),
        why="An unknown angle is zero, 1e-8 is zero in float16, and zero times the inverse root of zero is no number.",
        source="https://github.com/fastino-ai/GLiNER2/pull/155",
        more=(
            (
                "    return directions * torch.rsqrt(directions.square().sum(-1, keepdim=True) + 1e-8)\n",
                "    return directions * torch.rsqrt(directions.square().sum(-1, keepdim=True) + 1e-8)  # culprit\n",
            ),
        ),
    ),
]
