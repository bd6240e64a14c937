"""Bugs of spiking networks: decays that are one, thresholds that do not adapt, times of spikes."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="trace-low",
        healthy="    return trace * (1.0 - DT / TAU_TRACE) + fired\n",
        planted="    decay = torch.tensor(1.0 - DT / TAU_TRACE, dtype=torch.bfloat16)\n"
        "    return (trace.bfloat16() * decay + fired.bfloat16()).float()  # culprit\n",
        precisions=("16-mixed", "bf16-true"),
        part="function:traced",
        rules=("vanished-constant", "absorption", "accumulated-drift", "amplified-rounding", "local-drift"),
        why="0.9975 has no neighbours in bfloat16 but 0.996 and one, and a trace is rounded back at each tick.",
        source="https://github.com/ml-explore/mlx-lm/issues/565",
    ),
    Planted(
        name="threshold-stands-still",
        healthy="    return theta - DT / TAU_THRESHOLD * (theta - 1.0) + 0.002 * fired\n",
        planted="    theta = theta.bfloat16()  # culprit\n"
        "    return (theta - DT / TAU_THRESHOLD * (theta - 1.0) + 0.002 * fired.bfloat16()).float()  # culprit\n",
        precisions=("16-mixed",),
        part="result",
        rules=("absorption", "accumulated-drift", "vanished-constant", "local-drift", "amplified-rounding"),
        why="A spike adds 0.002 to one, which is less than half of what bfloat16 moves by.",
        source="https://github.com/fla-org/flash-linear-attention/issues/29",
    ),
    Planted(
        name="times-low",
        healthy="    times = torch.arange(ticks, device=spikes.device).view(-1, 1, 1).expand_as(spikes)\n"
        "    return torch.where(spikes > 0, times, ticks).amin(0)\n",
        planted="    times = (1000 + torch.arange(ticks, device=spikes.device)).bfloat16().view(-1, 1, 1).expand_as(spikes)  # culprit\n"
        "    return torch.where(spikes > 0, times, 1000 + ticks).amin(0).long() - 1000\n",
        precisions=ALL,
        part="function:first_spike",
        rules=("integer-rounding",),
        why="From 1000 on bfloat16 has every fourth tick.",
        source="https://github.com/tenstorrent/tt-metal/issues/33742",
    ),
    Planted(
        name="distance-overflows",
        healthy="        total = total + (ya - yb).square()\n    return total / len(a)\n",
        planted="        apart = 1000 * (ya - yb).half()\n        total = total + apart * apart  # culprit\n"
        "    return total.float() / len(a) / 1e6\n",
        precisions=("16-mixed",),
        part="function:van_rossum",
        rules=("overflow", "nan"),
        why="The square of 1000 is beyond float16.",
        source="https://github.com/pytorch/pytorch/issues/43211",
    ),
]

HARMLESS = [
    Harmless(
        name="spikes-low",
        healthy="        return (v > 0).to(v.dtype)\n",
        changed="        return (v > 0).to(torch.bfloat16).to(v.dtype)\n",
        precisions=ALL,
        why="Noughts and ones.",
    ),
    Harmless(
        name="current-rounded",
        healthy="    return keep * v.float() * (1.0 - fired) + current.float()\n",
        changed="    return keep * v.float() * (1.0 - fired) + current.to(torch.bfloat16).float()\n",
        precisions=BF16,
        why="What a layer gives is of bfloat16 already.",
    ),
    Harmless(
        name="counts-low",
        healthy="        rates = rate_of(s1.detach().sum(0), STEPS_IN_TIME)\n",
        changed="        rates = rate_of(s1.detach().bfloat16().sum(0).float(), STEPS_IN_TIME)\n",
        precisions=ALL,
        why="Counts up to forty.",
    ),
    Harmless(
        name="slope-rounded",
        healthy="        return grad / (1.0 + 5.0 * v.abs()) ** 2\n",
        changed="        return grad / ((1.0 + 5.0 * v.abs()) ** 2).to(torch.bfloat16).float()\n",
        precisions=BF16,
        why="A factor of a gradient is rounded once.",
    ),
    Harmless(
        name="times-half",
        healthy="    times = torch.arange(ticks, device=spikes.device).view(-1, 1, 1).expand_as(spikes)\n"
        "    return torch.where(spikes > 0, times, ticks).amin(0)\n",
        changed="    times = torch.arange(ticks, device=spikes.device).bfloat16().view(-1, 1, 1).expand_as(spikes)\n"
        "    return torch.where(spikes > 0, times, ticks).amin(0).long()\n",
        precisions=ALL,
        why="Whole numbers up to forty.",
    ),
    Harmless(
        name="counted-in-a-loop",
        healthy="        rates = rate_of(s1.detach().sum(0), STEPS_IN_TIME)\n",
        changed="        count = torch.zeros(BATCH, HIDDEN, dtype=torch.bfloat16)\n        for each in s1.detach():\n"
        "            count = count + each.bfloat16()\n        rates = rate_of(count.float(), STEPS_IN_TIME)\n",
        precisions=ALL,
        why="A running count up to forty is exact.",
    ),
    Harmless(
        name="trace-written-otherwise",
        healthy="    return trace * (1.0 - DT / TAU_TRACE) + fired\n",
        changed="    return trace + (fired.half().float() - DT / TAU_TRACE * trace)\n",
        precisions=ALL,
        why="The same in another order; spikes are noughts and ones.",
    ),
]
