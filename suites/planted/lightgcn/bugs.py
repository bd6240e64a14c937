"""Bugs of recommendations from a graph: counts that stand still, days that are rounded, a guard that vanishes, hashes."""

from __future__ import annotations

from planted_bug import Harmless, Planted

MIXED = ("bf16-mixed", "16-mixed")

BUGS = [
    Planted(
        name="degrees-low",
        healthy="    return torch.zeros(size).index_add_(0, index, torch.ones(len(index)))\n",
        planted="    low = torch.bfloat16\n"
        "    return torch.zeros(size, dtype=low).index_add_(0, index, torch.ones(len(index), dtype=low)).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:degrees",
        rules=("absorption", "integer-rounding", "local-drift"),
        why="A count in bfloat16 stands still at 256, and the favourite has 500 edges.",
        source="https://github.com/rusty1s/pytorch_scatter/issues/269",
    ),
    Planted(
        name="days-low",
        healthy="    return torch.exp(-(NOW - days) / 30.0)\n",
        planted="    return torch.exp(-(NOW - days.to(torch.get_autocast_dtype('cpu'))) / 30.0).float()  # culprit\n",
        precisions=MIXED,
        part="function:fresh",
        rules=("cancellation", "amplified-rounding", "integer-rounding", "local-drift", "accumulated-drift", "vanished-constant"),
        why="Days since 1970 are known to 128 in bfloat16, and to 16 in float16.",
        source="https://github.com/ecmwf/WeatherGenerator/issues/2046",
    ),
    Planted(
        name="guard-vanishes",
        healthy="    return torch.where(degree > 0, degree.clamp(min=1e-12).rsqrt(), 0.0)\n",
        planted="    degree = degree.half()\n    return ((degree > 0) * (degree + 1e-12).rsqrt()).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:inverse_root",
        rules=("vanished-constant", "nan", "overflow"),
        why="1e-12 is zero in float16, and nought times infinity is NaN.",
        source="https://github.com/kornia/kornia/issues/4021",
    ),
    Planted(
        name="sampled-low",
        healthy="    return (user * 31 + item * 17 + 5) % ITEMS\n",
        planted="    low = torch.get_autocast_dtype('cpu')\n    return ((user.to(low) * 31 + item.to(low) * 17 + 5) % ITEMS).long()  # culprit\n",
        precisions=MIXED,
        part="function:sampled",
        rules=("integer-rounding",),
        why="Hashes reach 13000, of which bfloat16 knows every 64th and float16 every eighth.",
        source="https://github.com/pyg-team/pytorch_geometric/issues/646",
    ),
]

HARMLESS = [
    Harmless(
        name="degrees-half",
        healthy="    return torch.zeros(size).index_add_(0, index, torch.ones(len(index)))\n",
        changed="    return torch.zeros(size, dtype=torch.half).index_add_(0, index, torch.ones(len(index), dtype=torch.half)).float()\n",
        precisions=MIXED,
        why="Counts up to 600 are whole numbers that float16 holds.",
    ),
    Harmless(
        name="root-rounded",
        healthy="    return torch.where(degree > 0, degree.clamp(min=1e-12).rsqrt(), 0.0)\n",
        changed="    return torch.where(degree > 0, degree.clamp(min=1e-4).rsqrt(), 0.0).to(torch.get_autocast_dtype('cpu')).float()\n",
        precisions=MIXED,
        why="A factor of each node is rounded once.",
    ),
    Harmless(
        name="weights-rounded",
        healthy="    return torch.exp(-(NOW - days) / 30.0)\n",
        changed="    return torch.exp(-(NOW - days) / 30.0).to(torch.get_autocast_dtype('cpu')).float()\n",
        precisions=MIXED,
        why="The weight of each edge is rounded once, after the days have been taken off.",
    ),
    Harmless(
        name="ages-rounded",
        healthy="    return torch.exp(-(NOW - days) / 30.0)\n",
        changed="    return torch.exp(-((NOW - days) / 30.0).half().float())\n",
        precisions=("16-mixed",),
        why="Ages of up to two months are rounded once, and the exponent is two at most.",
    ),
    Harmless(
        name="layers-rounded",
        healthy="    return out / (LAYERS + 1)\n",
        changed="    return (out / (LAYERS + 1)).to(torch.get_autocast_dtype('cpu')).float()\n",
        precisions=MIXED,
        why="The next layer rounds what it is given in any case.",
    ),
    Harmless(
        name="popularity-rounded",
        healthy="    return torch.log((count + 1.0) / total)\n",
        changed="    return torch.log((count.half() + 1.0).float() / total)\n",
        precisions=MIXED,
        why="Whole numbers up to 600 and one more.",
    ),
    Harmless(
        name="scores-taken-off-low",
        healthy="    return -F.logsigmoid(positive.float() - negative.float())\n",
        changed="    return -F.logsigmoid((positive - negative).float())\n",
        precisions=MIXED,
        why="The difference of two scores that a layer rounded is rounded once more.",
    ),
    Harmless(
        name="spread-guard-small",
        healthy="    return scores / (scores.std() + 1e-6)\n",
        changed="    return scores / (scores.std().to(torch.bfloat16) + 1e-12).float()\n",
        precisions=("bf16-mixed",),
        why="A guard that is lost beside a spread of several, which is rounded once.",
    ),
]
