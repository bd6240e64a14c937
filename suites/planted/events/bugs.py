"""Bugs of a model of event times: seconds since a log began, an integral that is small, its running sum, and decays."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
PHASE = "        phase = time.float()[..., None] * rate\n"
GAPS = "    return F.pad(time[:, 1:] - time[:, :-1], (1, 0)).float() / HOUR\n"
AGO = "    ago = (time[:, :, None] - time[:, None, :]).float() / HOUR\n    kernel = torch.exp(-decay * ago).tril(-1)\n"
CHANCE = "    return -torch.expm1(-area)\n"
UNIT = "    return area.cumsum(-1)\n"
MEAN = "    mean = (rate[:, :, 1:] + rate[:, :, :-1]).sum(-1) / 2 / (rate.shape[-1] - 1)\n"

BUGS = [
    Planted(
        name="times-in-the-hidden-format",
        healthy=PHASE,
        planted="        phase = (time.to(like.dtype)[..., None] * rate.to(like.dtype)).float()  # culprit\n",
        precisions=BF16,
        part="encode",
        rules=WHOLE,
        why="A million seconds are rounded to the 4096th, and the phase of a minute is anything.",
        source="https://github.com/amazon-science/chronos-forecasting/issues/193",
    ),
    Planted(
        name="gaps-of-rounded-times",
        healthy=GAPS,
        planted="    time = time.to(torch.bfloat16)  # culprit\n    return F.pad(time[:, 1:] - time[:, :-1], (1, 0)).float() / HOUR  # culprit\n",
        precisions=BF16,
        part="function:elapsed",
        rules=(*WHOLE, "underflow"),
        why="Most events are within two minutes, and the format knows every hour or two.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="kernel-factored",
        healthy=AGO,
        planted="    hours = (time - time[:, :1]).to(torch.bfloat16) / HOUR  # culprit\n"
        "    ago = (hours[:, :, None] - hours[:, None, :]).float()  # culprit\n    kernel = torch.exp(-decay * ago).tril(-1)\n",
        precisions=BF16,
        part="function:excitation",
        rules=WHOLE,
        why="Hours since the first event are up to seven and rounded to minutes, and what decays are minutes.",
        source="https://github.com/fla-org/flash-linear-attention/issues/104",
    ),
    Planted(
        name="chance-by-one-less",
        healthy=CHANCE,
        planted="    return (1 - torch.exp(-area).to(torch.bfloat16)).float()  # culprit\n",
        precisions=BF16,
        part="function:event_chance",
        rules=DRIFTS,
        why="After a few seconds hardly anything can have happened: one less nearly one.",
        source="https://github.com/pytorch/pytorch/issues/80226",
    ),
    Planted(
        name="unit-times-low",
        healthy=UNIT,
        planted='    return area.to(torch.get_autocast_dtype("cpu")).cumsum(-1).float()  # culprit\n',
        precisions=("bf16-mixed", "16-mixed"),
        part="function:waits",
        rules=(*DRIFTS, "absorption"),
        why="A running sum is stored low, and its differences are what a test of the model looks at.",
        source="https://github.com/nv-tlabs/lift-splat-shoot/blob/master/src/tools.py",
    ),
    Planted(
        name="unit-times-stand-still",
        healthy=UNIT,
        planted="    total, times = torch.zeros(len(area), dtype=torch.bfloat16), []\n    for each in area.unbind(-1):\n"
        "        total = total + each.to(total.dtype)  # culprit\n        times.append(total)\n    return torch.stack(times, -1).float()\n",
        precisions=BF16,
        part="function:waits",
        rules=(*DRIFTS, "absorption"),
        why="Dozens of small areas are added to a sum of low precision.",
        source="https://github.com/pytorch/pytorch/pull/133085",
    ),
]

HARMLESS = [
    Harmless(
        name="gaps-rounded",
        healthy=GAPS,
        changed="    return (F.pad(time[:, 1:] - time[:, :-1], (1, 0)).float() / HOUR).bfloat16().float()\n",
        precisions=BF16,
        why="A length of time is an amount, of which a logarithm and an integral are made.",
    ),
    Harmless(
        name="kernel-rounded",
        healthy="    return kernel.sum(-1)\n",
        changed="    return kernel.bfloat16().sum(-1, dtype=torch.float32)\n",
        precisions=BF16,
        why="Each term of a sum is rounded once.",
    ),
    Harmless(
        name="rates-rounded",
        healthy=MEAN,
        changed=f"    rate = rate.bfloat16().float()\n{MEAN}",
        precisions=BF16,
        why="Intensities come of a network that has rounded as much.",
    ),
    Harmless(
        name="chance-rounded",
        healthy=CHANCE,
        changed="    return -torch.expm1(-area).half().float()\n",
        precisions=("16-mixed",),
        why="A chance is rounded once, and nothing is taken off it.",
    ),
]
