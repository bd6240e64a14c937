"""Bugs of insurance: day numbers, cents beyond float16, growth near one, chances near zero, differences of logarithms."""

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
COVER = "    return (ended - began).float() / 365.25\n"
SEASON = "    angle = (began % 365).float() * (2 * math.pi / 365)\n"
SIZE = "    return torch.log1p(cents.float())\n"
TWEEDIE = "    amount = cents.float() / 100_000\n    return 2 * amount / rate.sqrt() + 2 * rate.sqrt()\n"
KEPT = "    return -torch.expm1(years.float() * math.log(0.995))\n"
BEYOND = "    return 0.5 * torch.erfc((limit - log_cents) / math.sqrt(2))\n"
GROWTH = "    return after.float() / here.float()\n"
RESERVE = "    tail = torch.log1p(growth_).flip(0).cumsum(0)\n    return torch.expm1(tail)\n"
LIFT = "    curve = count[order].float().cumsum(0) / count.sum()\n"

BUGS = [
    Planted(
        name="days-low",
        healthy=COVER,
        planted="    began, ended = began.to(torch.bfloat16), ended.to(torch.bfloat16)  # culprit\n    return (ended - began).float() / 365.25\n",
        precisions=BF16,
        part="function:cover",
        rules=(*WHOLE, "underflow"),
        why="Of 738 000 days bfloat16 knows every 4096th, and a year has 365.",
        source="https://github.com/utensils/mold/issues/786",
        more=(
            ("            rate = (often - 2).exp() * years\n", "            rate = (often - 2).exp() * years.clamp(0.01)\n"),
            ("(much.exp() + 0.1) * years, low)", "(much.exp() + 0.1) * years.clamp(0.01), low)"),
        ),
    ),
    Planted(
        name="season-of-low-days",
        healthy=SEASON,
        planted="    angle = (began - 738_000).to(torch.bfloat16) * (2 * math.pi / 365)  # culprit\n    angle = angle.float()\n",
        precisions=BF16,
        part="function:season",
        rules=(*WHOLE,),
        why="Days of a few years are rounded to the fourth, and so are the angles: they go on for three turns.",
        source="https://github.com/kohya-ss/musubi-tuner/pull/729",
    ),
    Planted(
        name="cents-overflow",
        healthy=SIZE,
        planted="    return torch.log1p(cents.half()).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:size",
        rules=("overflow", "nan"),
        why="655 euros are more cents than float16 holds.",
        source="https://github.com/open-mmlab/mmdetection3d/issues/296",
    ),
    Planted(
        name="amounts-overflow",
        healthy=TWEEDIE,
        planted="    amount = cents.to(low) / 100_000  # culprit\n    return (2 * amount / rate.sqrt() + 2 * rate.sqrt()).float()\n",
        precisions=("16-mixed",),
        part="function:tweedie",
        rules=("overflow", "nan"),
        why="Cents are cast before they become thousands.",
        source="https://github.com/openai/glow/issues/40",
    ),
    Planted(
        name="bonus-by-one-less",
        healthy=KEPT,
        planted="    return (1 - torch.pow(torch.tensor(0.995), years).to(low)).float()  # culprit\n",
        precisions=BF16,
        part="function:kept",
        rules=(*DRIFTS, "underflow"),
        why="One less 0.995 is a single step of bfloat16.",
        source="https://github.com/pytorch/pytorch/issues/80226",
    ),
    Planted(
        name="tail-by-one-less",
        healthy=BEYOND,
        planted="    inside = 0.5 * (1 + torch.erf((limit - log_cents) / math.sqrt(2)).to(low))\n    return (1 - inside).float()  # culprit\n",
        precisions=ALL,
        part="function:beyond",
        rules=(*DRIFTS, "underflow"),
        why="A chance of a thousandth is what is left of one beside 0.999.",
        source="https://github.com/nerfstudio-project/nerfacc/issues/138",
    ),
    Planted(
        name="growth-from-low-totals",
        healthy=GROWTH,
        planted="    return ((here + after).float() / here.float()).to(low).float() - 1  # culprit\n",
        precisions=BF16,
        part="function:growth",
        rules=(*DRIFTS, "underflow"),
        why="Late years grow by a thousandth, and a factor near one is rounded to a 128th.",
        source="https://github.com/InterDigitalInc/CompressAI/issues/65",
    ),
    Planted(
        name="shares-of-claims-low",
        healthy=LIFT,
        planted="    running, steps = torch.zeros((), dtype=low), []\n    for each in count[order].to(low):\n"
        "        running = running + each  # culprit\n        steps.append(running)\n    curve = torch.stack(steps).float() / count.sum()\n",
        precisions=BF16,
        part="function:lift",
        rules=(*WHOLE, "absorption"),
        why="A running count beyond 256 stands still.",
        source="https://github.com/pytorch/pytorch/pull/133085",
    ),
]

HARMLESS = [
    Harmless(
        name="cover-rounded",
        healthy=COVER,
        changed="    return (ended - began).to(low).float() / 365.25\n",
        precisions=ALL,
        why="Days of cover are an amount, and rounded once: no 512th of a year matters more than that.",
    ),
    Harmless(
        name="season-in-the-year-rounded",
        healthy=SEASON,
        changed="    angle = ((began % 365).float() * (2 * math.pi / 365) - math.pi).to(torch.float16).float() + math.pi\n",
        precisions=("16-mixed",),
        why="An angle within a turn is rounded once, to a thousandth.",
    ),
    Harmless(
        name="size-rounded",
        healthy=SIZE,
        changed="    return torch.log1p(cents.float().bfloat16().float())\n",
        precisions=BF16,
        why="A logarithm knows a 512th of an amount by as much.",
    ),
    Harmless(
        name="amount-rounded",
        healthy="    amount = cents.float() / 100_000\n",
        changed="    amount = (cents.float() / 100_000).to(low).float()\n",
        precisions=ALL,
        why="Thousands are rounded once.",
    ),
    Harmless(
        name="bonus-rounded-late",
        healthy=KEPT,
        changed="    return (-torch.expm1(years.float() * math.log(0.995))).to(low).float()\n",
        precisions=ALL,
        why="The bonus itself is rounded, not what it is less than.",
    ),
    Harmless(
        name="growth-rounded",
        healthy=GROWTH,
        changed="    return (after.float() / here.float()).to(low).float()\n",
        precisions=ALL,
        why="Without the one, a share is rounded once.",
    ),
    Harmless(
        name="tail-rounded",
        healthy=BEYOND,
        changed="    return (0.5 * torch.erfc((limit - log_cents) / math.sqrt(2))).to(torch.bfloat16).float()\n",
        precisions=BF16,
        why="bfloat16 has chances of 1e-30 as well as any other.",
    ),
]
