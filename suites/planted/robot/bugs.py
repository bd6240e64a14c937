"""Bugs of kinematics: small turns, small angles, large coordinates, covariances that shrink, a norm of nothing."""

from __future__ import annotations

from planted_bug import Planted

MIXED = ("bf16-mixed", "16-mixed")

BUGS = [
    Planted(
        name="attitude-low",
        healthy="    attitude = start.float()\n",
        planted="    attitude = start.to(low)\n",
        precisions=MIXED,
        part="function:integrated",
        rules=("absorption", "local-drift", "accumulated-drift"),
        why="A tick turns the arm by half a thousandth, which bfloat16 does not add to one, and float16 adds as one step or none.",
        source="https://github.com/d8ahazard/sd_dreambooth_extension/pull/1415",
        more=(
            ("    for rate in rates.float().unbind(1):\n", "    for rate in rates.to(low).unbind(1):\n"),
            (
                "        attitude = attitude + product(attitude, torch.cat([torch.zeros_like(half[..., :1]), half], -1))\n",
                "        attitude = attitude + product(attitude, torch.cat([torch.zeros_like(half[..., :1]), half], -1))  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="angle-by-arc-cosine",
        healthy="    return (2 * torch.atan2(apart[..., 1:].norm(dim=-1), apart[..., 0].abs())).float()\n",
        planted="    return (2 * torch.acos(apart[..., 0].abs().to(low).clamp(max=0.9999))).float()  # culprit\n",
        precisions=MIXED,
        part="function:angle",
        rules=("amplified-rounding", "cancellation", "local-drift"),
        why="The cosine of a small angle is 1 less its square: 0.9998 is 1 in either format, so the angle is nothing or a fixed one.",
        source="https://github.com/papagina/RotationContinuity/issues/1",
    ),
    Planted(
        name="places-low",
        healthy="    return (places - origin).float()\n",
        planted="    return (places.to(low) - origin.to(low)).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:local_places",
        rules=("cancellation", "amplified-rounding", "integer-rounding"),
        why="A map's coordinates are half a million metres, which bfloat16 knows by 2 kilometres. The arm reaches 5 metres.",
        source="https://github.com/RosettaCommons/foundry/pull/236",
    ),
    Planted(
        name="covariance-low",
        healthy="        covariance = covariance - gain @ covariance[:, :1]\n",
        planted="        covariance = (covariance.to(low) - gain.to(low) @ covariance[:, :1].to(low)).float()  # culprit\n",
        precisions=MIXED,
        part="function:filtered",
        rules=("cancellation", "amplified-rounding", "local-drift", "accumulated-drift"),
        why="Where nothing was known, a first look takes away all but a millionth of the covariance. In a low format all of it goes, "
        "and the filter is sure "
        "of what it does not know.",
        source="https://github.com/tenstorrent/tt-metal/issues/45968",
    ),
    Planted(
        name="norm-eps-vanishes",
        healthy="    turn = turn.float()\n    return turn / turn.norm(dim=-1, keepdim=True).clamp_min(1e-12)\n",
        planted="    return turn / turn.norm(dim=-1, keepdim=True).clamp_min(1e-12)  # culprit\n",
        precisions=("16-mixed",),
        part="function:normalised",
        rules=("vanished-constant", "nan", "underflow", "overflow"),
        why="1e-12 is zero in float16, so a sensor that is off divides zero by zero.",
        source="https://github.com/kornia/kornia/issues/4021",
    ),
]
