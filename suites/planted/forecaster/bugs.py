"""Bugs of forecasters: Unix time, levels that are large beside what varies, running stocks, sums of readings."""

from __future__ import annotations

from planted_bug import Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="time-low",
        healthy="    shares = [(times % period).float() / period for period in (DAY, WEEK, YEAR)]\n",
        planted="    times = times.to(like.dtype)  # culprit\n"
        "    shares = [(times % period).float() / period for period in (DAY, WEEK, YEAR)]  # culprit\n",
        precisions=ALL,
        part="function:calendar",
        rules=("integer-rounding", "amplified-rounding", "overflow", "nan", "accumulated-drift"),
        why="Seconds since 1970 are about 1.7e9, where bfloat16 moves by 97 days, and beyond float16's end: every hour "
        "looks like every other, or is NaN.",
        source="https://github.com/open-mmlab/mmdetection3d/issues/296",
    ),
    Planted(
        name="normalised-low",
        healthy="    values = readings.float()\n",
        planted="    values = readings.to(like.dtype)  # culprit\n",
        precisions=ALL,
        part="function:normalised.0",
        rules=("integer-rounding", "cancellation", "amplified-rounding", "accumulated-drift"),
        why="Readings of 20000 that vary by 25 are stored in steps of 128 in bfloat16, 16 in float16, before their mean is taken off.",
        source="https://github.com/amazon-science/chronos-forecasting/issues/193",
    ),
    Planted(
        name="denormalised-low",
        healthy="    forecast = forecast.float()\n"
        "    return (forecast * deviation.unsqueeze(-1).to(forecast.dtype) + mean.unsqueeze(-1).to(forecast.dtype)).float()\n",
        planted="    return (forecast * deviation.unsqueeze(-1).to(forecast.dtype) + mean.unsqueeze(-1).to(forecast.dtype)).float()  # culprit\n",
        precisions=ALL,
        part="loss",
        rules=("absorption", "amplified-rounding", "accumulated-drift", "cancellation", "local-drift"),
        why="The level is added in the model's format, whose steps there are larger than all that the forecast says.",
        source="https://github.com/amazon-science/chronos-forecasting/pull/532",
    ),
    Planted(
        name="stock-low",
        healthy="    left = start.to(torch.float32)\n",
        planted="    left = start.to(demand.dtype)  # culprit\n",
        precisions=ALL,
        part="function:stocks",
        rules=("absorption", "integer-rounding", "local-drift", "accumulated-drift"),
        why="An hour's demand of 3 is subtracted from a stock of 5000, where bfloat16 moves by 32: the stock never shrinks.",
        source="https://github.com/Lightning-AI/pytorch-lightning/issues/18620",
    ),
    Planted(
        name="scale-overflows",
        healthy="        total = target.float().sum(1)\n",
        planted="        total = target.to(like.dtype).sum(1)  # culprit\n",
        precisions=("16-mixed",),
        part="function:quantile_loss",
        rules=("overflow", "nan", "integer-rounding"),
        why="The sum of 48 readings of 20000 is beyond float16's 65504. The loss is divided by Inf: it is 0, and so are its gradients.",
        source="https://github.com/qubvel-org/segmentation_models.pytorch/issues/463",
    ),
]
