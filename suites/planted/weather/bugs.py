"""Bugs of a model of the weather: fields with large means, hours of a century, a recurrence, small angles, large squares."""

from __future__ import annotations

from planted_bug import Planted

MIXED = ("bf16-mixed", "16-mixed")

BUGS = [
    Planted(
        name="fields-low",
        healthy="    return ((fields - mean) / spread).float()\n",
        planted="    return ((fields.to(low) - mean.to(low)) / spread.to(low)).float()  # culprit\n",
        precisions=MIXED,
        part="function:standardised",
        rules=("cancellation", "amplified-rounding"),
        why="A height of 54321 is 54272 in bfloat16 and 54336 in float16; a standard deviation is 330.",
        source="https://github.com/ecmwf/WeatherGenerator/issues/2046",
    ),
    Planted(
        name="hours-low",
        healthy="    return (torch.remainder(hours, 24) * (2 * math.pi / 24)).float()\n",
        planted="    return (torch.remainder(hours.to(low), 24) * (2 * math.pi / 24)).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:hour_angle",
        rules=("integer-rounding", "amplified-rounding", "cancellation"),
        why="Of a million hours bfloat16 knows every 8192nd, so the time of day is none.",
        source="https://github.com/kohya-ss/musubi-tuner/pull/729",
    ),
    Planted(
        name="recurrence-low",
        healthy="            before, now = now, a * (x * now - b * before)\n",
        planted="            before, now = now, (a * (x.to(low) * now.to(low) - b * before.to(low))).float()  # culprit\n",
        precisions=MIXED,
        part="function:legendre",
        rules=("cancellation", "amplified-rounding", "accumulated-drift", "local-drift"),
        why="Each function is a difference of the two before it; sixteen of them in a row lose what they round.",
        source="https://github.com/MarcCoru/locationencoder/issues/1",
    ),
    Planted(
        name="angles-by-arc-cosine",
        healthy="    angle = 2 * torch.asin(((here.unsqueeze(1) - grid).norm(dim=-1) / 2).clamp(max=1))\n",
        planted="    angle = torch.acos((here.to(low) @ grid.to(low).T).float().clamp(-1, 1))  # culprit\n",
        precisions=MIXED,
        part="function:nearness",
        rules=("amplified-rounding", "cancellation"),
        why="The cosine of a hundredth is one in either format, so every station that is near is in the same place.",
        source="https://github.com/esheldon/smatch/pull/21",
    ),
    Planted(
        name="share-of-heights-vanishes",
        healthy="    return (1 / spread.square()).float()\n",
        planted="    return (1 / spread.to(low).square()).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:shares",
        rules=("overflow", "underflow", "amplified-rounding"),
        why="The square of 330 is infinite in float16, and one over it nothing: heights do not count. The square of 0.004 is coarse.",
        source="https://github.com/facebookresearch/fairscale/pull/263",
    ),
    Planted(
        name="change-low",
        healthy="    return (after - before).float()\n",
        planted="    return (after.to(low) - before.to(low)).float()  # culprit\n",
        precisions=MIXED,
        part="function:change",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="In six hours a temperature of 278 changes by 0.4, which bfloat16 does not know.",
        source="https://github.com/ecmwf/WeatherGenerator/issues/2046",
    ),
]
