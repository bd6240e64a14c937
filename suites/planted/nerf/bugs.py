"""Bugs of radiance fields: angles of high octaves, distances along a ray, thin samples, a cumulative distribution."""

from __future__ import annotations

from planted_bug import Planted

MIXED = ("bf16-mixed", "16-mixed")

BUGS = [
    Planted(
        name="angles-low",
        healthy="    angles = places.float().unsqueeze(-1) * octaves\n",
        planted="    angles = places.to(low).unsqueeze(-1) * octaves.to(low)  # culprit\n",
        precisions=MIXED,
        part="function:encoded",
        rules=("amplified-rounding", "cancellation", "local-drift", "accumulated-drift", "integer-rounding"),
        why="The highest octave turns a place of 0.7 into an angle of 280, whose rounding in bfloat16 is one radian.",
        source="https://github.com/wfondrie/depthcharge/pull/82",
    ),
    Planted(
        name="depths-low",
        healthy="    edges = torch.linspace(NEAR, FAR, COARSE + 1, device=jitter.device)\n"
        "    return edges[:-1] + (edges[1:] - edges[:-1]) * jitter\n",
        planted="    edges = torch.linspace(NEAR, FAR, COARSE + 1, device=jitter.device, dtype=low)  # culprit\n"
        "    return edges[:-1] + (edges[1:] - edges[:-1]) * jitter.to(low)  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:lengths",
        rules=("cancellation", "amplified-rounding", "local-drift", "accumulated-drift", "absorption"),
        why="Places along a ray are stored in steps of 1/32, and samples are 1/12 long: their lengths are rounding, and some are zero.",
        source="https://github.com/Comfy-Org/ComfyUI/pull/16001",
        more=(
            (
                "    apart = along[:, 1:] - along[:, :-1]\n",
                "    apart = along[:, 1:] - along[:, :-1]  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="opacity-low",
        healthy="    return -torch.expm1(-thickness) * reached\n",
        planted="    return (1 - torch.exp(-thickness.to(density.dtype))).float() * reached  # culprit\n",
        precisions=("16-mixed",),
        part="function:weights",
        rules=("cancellation", "amplified-rounding", "absorption", "local-drift", "accumulated-drift"),
        why="A thin sample stops a hundredth of the light. One minus a number near one, in float16, knows it in steps of 1/2048.",
        source="https://github.com/nerfstudio-project/nerfacc/issues/138",
    ),
    Planted(
        name="density-low",
        healthy="    thickness = torch.exp(density.float() - 1) * apart\n",
        planted="    thickness = torch.exp(density - 1) * apart.to(density.dtype)  # culprit\n",
        precisions=("16-mixed",),
        part="function:weights",
        rules=("overflow", "nan"),
        why="Inside a surface the raw density passes 12, whose exponential float16 does not hold: infinity minus infinity is no number.",
        source="https://github.com/nerfstudio-project/nerfstudio/pull/104",
    ),
    Planted(
        name="cumulative-low",
        healthy="    cumulative = (shares / shares.sum(-1, keepdim=True)).cumsum(-1)\n",
        planted="    cumulative = (shares / shares.sum(-1, keepdim=True)).cumsum(-1).to(torch.bfloat16)  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:resampled",
        rules=("amplified-rounding", "cancellation", "accumulated-drift"),
        why="Steps of the distribution are a few thousandths high, and near one bfloat16 has steps of 1/256: samples jump between the ends of a bin.",
        source="https://github.com/ROCm/AMDMIGraphX/pull/3817",
    ),
]
