"""Bugs of a renderer of ellipsoids: long ellipses, thin ones, places on a map, light that hardly fades, depths that are far."""

from __future__ import annotations

from planted_bug import Planted

MIXED = ("bf16-mixed", "16-mixed")

BUGS = [
    Planted(
        name="form-low",
        healthy="    a, b, c = cone.unbind(-1)\n",
        planted="    a, b, c = cone.to(low).unbind(-1)\n    x, y = x.to(low), y.to(low)\n",
        precisions=("bf16-mixed",),
        part="gradients",
        rules=("cancellation", "amplified-rounding", "overflow", "local-drift"),
        why="For a long ellipse two squares and a product nearly cancel. What is left is rounded like the largest of them.",
        source="https://github.com/openvdb/fvdb-core/issues/129",
        more=(
            (
                "    shown = opacity.float() * torch.exp(-0.5 * (a * x * x + 2 * b * x * y + c * y * y).clamp_min(0))\n",
                "    shown = opacity.float() * torch.exp(-0.5 * (a * x * x + 2 * b * x * y + c * y * y).float().clamp_min(0))  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="determinant-low",
        healthy="    a, b, c = flat[..., 0, 0], flat[..., 0, 1], flat[..., 1, 1]\n    determinant = a * c - b * b\n",
        planted="    a, b, c = flat[..., 0, 0], flat[..., 0, 1], flat[..., 1, 1]\n"
        "    determinant = (a.to(low) * c.to(low) - b.to(low) * b.to(low)).float()  # culprit\n",
        precisions=MIXED,
        part="function:inverted",
        rules=("cancellation", "amplified-rounding", "underflow"),
        why="A thin ellipse has a determinant that is a small part of either product. In eight bits it is nothing or negative.",
        source="https://github.com/aras-p/UnityGaussianSplatting/pull/14",
    ),
    Planted(
        name="places-low",
        healthy="    return (places - camera) @ turned.T\n",
        planted="    return (places.to(low) - camera.to(low)).float() @ turned.T  # culprit\n",
        precisions=MIXED,
        part="function:seen_from",
        rules=("cancellation", "amplified-rounding", "integer-rounding"),
        why="The map has 1400 metres, which bfloat16 knows by eight and float16 by one. Ellipsoids are 25 metres away.",
        source="https://github.com/nerfstudio-project/gsplat/pull/270",
    ),
    Planted(
        name="light-low",
        healthy="    through = torch.cumprod(1 - shown, -1)\n",
        planted="    through = torch.cumprod(1 - shown.to(low), -1).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:drawn.1",
        rules=("absorption", "local-drift", "accumulated-drift", "cancellation", "amplified-rounding"),
        why="An ellipsoid that takes a five-hundredth of the light takes nothing in bfloat16, or twice that.",
        source="https://github.com/openvdb/fvdb-core/issues/125",
    ),
    Planted(
        name="depths-low",
        healthy="    return 1 / (1 / NEAR + share * (1 / FAR - 1 / NEAR))\n",
        planted="    return (1 / (1 / NEAR + share.to(low) * (1 / FAR - 1 / NEAR))).float()  # culprit\n",
        precisions=MIXED,
        part="function:depths",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="One over a depth of 25 metres is half less 0.46, of which bfloat16 keeps no more than every five-hundredth.",
        source="https://github.com/openvdb/fvdb-core/issues/129",
    ),
]
