"""Bugs of a bidder: ids and times that are too large, bids that are alike, budgets that are nearly spent, and chances near nought and one."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
INFINITE = ("overflow", "nan")
HASHED = "    return ids % BUCKETS\n"
HOUR = "    return (seconds % 86_400).float() / 86_400\n"
SMOOTHED = "    return (clicks + 20).float() / (views + 1000).float() * 50 - 1\n"
LEAD = "    return (best[:, 0] - best[:, 1]).float() / 100\n"
UNCLICKED = "    return (shown.float() * torch.log1p(-chance.float())).exp()\n"
CORRECTED = "    return chance.float() / (chance.float() + (1 - chance.float()) / 0.1)\n"
SPENT = "    return prices.cumsum(-1).float()\n"
REMAINING = "    return (budget - paid).float() / budget.float()\n"
CENTRED = "    centred = amount - amount.mean(-1, keepdim=True)\n"
SPREAD = "    return centred / (centred.square().mean(-1, keepdim=True).sqrt() + 1e-8)\n"
LOGGED = "    return counts.float().log1p()\n"
EPOCH = "https://github.com/facebookresearch/fairo/pull/537"

BUGS = [
    Planted(
        name="ids-low",
        healthy=HASHED,
        planted="    return (ids.bfloat16() % BUCKETS).long()  # culprit\n",
        precisions=BF16,
        part="function:hashed",
        rules=(*WHOLE, "decision-flip"),
        why="Of 100 000 ids bfloat16 has every 512th, so most features share a row.",
        source="https://github.com/tensorflow/tensorflow/issues/47187",
    ),
    Planted(
        name="hour-low",
        healthy=HOUR,
        planted="    return (seconds.bfloat16() % 86_400).float() / 86_400  # culprit\n",
        precisions=BF16,
        part="function:hour",
        rules=WHOLE,
        why="Of the seconds since 1970 bfloat16 knows ninety days.",
        source=EPOCH,
    ),
    Planted(
        name="hour-half",
        healthy=HOUR,
        planted="    return ((seconds % 86_400).half() / 86_400).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:hour",
        rules=(*INFINITE, "vanished-constant"),
        why="A day has 86 400 seconds, which are more than float16 has.",
        source=EPOCH,
    ),
    Planted(
        name="smoothed-low",
        healthy=SMOOTHED,
        planted="    rate = (clicks + 20).bfloat16() / (views + 1000).bfloat16()  # culprit\n    return (rate * 50 - 1).float()  # culprit\n",
        precisions=BF16,
        part="function:smoothed",
        rules=WHOLE,
        why="Two in a hundred are usual, and rates differ from that by two in a hundred of it.",
        source="https://github.com/PrimeIntellect-ai/prime-rl/pull/568",
    ),
    Planted(
        name="lead-low",
        healthy=LEAD,
        planted="    return (best[:, 0].bfloat16() - best[:, 1].bfloat16()).float() / 100  # culprit\n",
        precisions=BF16,
        part="function:lead",
        rules=WHOLE,
        why="Bids of 32 000 are known to 128, and the two highest differ by 200.",
        source="https://github.com/pytorch/pytorch/issues/70179",
    ),
    Planted(
        name="lead-half",
        healthy=LEAD,
        planted="    return (best[:, 0].half() - best[:, 1].half()).float() / 100  # culprit\n",
        precisions=("16-mixed",),
        part="function:lead",
        rules=WHOLE,
        why="Bids of 32 000 are known to 16, and some of the highest two differ by little more.",
        source="https://github.com/pytorch/pytorch/issues/70179",
    ),
    Planted(
        name="unclicked-low",
        healthy=UNCLICKED,
        planted="    stays = (1 - chance.float()).bfloat16()  # culprit\n    return (shown.float() * stays.float().log()).exp()\n",
        precisions=BF16,
        part="function:unclicked",
        rules=DRIFTS,
        why="Nobody clicks with a chance of 0.995, which bfloat16 knows to a 256th; and that is asked sixty times.",
        source="https://github.com/ml-explore/mlx/pull/1280",
    ),
    Planted(
        name="unclicked-half",
        healthy=UNCLICKED,
        planted="    stays = 1 - chance.half()  # culprit\n    return (shown.float() * stays.float().log()).exp()\n",
        precisions=("16-mixed",),
        part="function:unclicked",
        rules=DRIFTS,
        why="Nobody clicks with a chance of 0.995, which float16 knows to a 2048th; and that is asked sixty times.",
        source="https://github.com/ml-explore/mlx/pull/1280",
    ),
    Planted(
        name="spent-low",
        healthy=SPENT,
        planted="    total, after = torch.zeros(len(prices), dtype=torch.bfloat16), []\n    for each in prices.unbind(-1):\n"
        "        total = total + each  # culprit\n        after.append(total)\n    return torch.stack(after, -1).float()\n",
        precisions=BF16,
        part="function:spent",
        rules=("absorption", *WHOLE),
        why="To 16 384 cents bfloat16 adds nothing below 64.",
        source="https://github.com/pytorch/pytorch/issues/92164",
    ),
    Planted(
        name="spent-overflows",
        healthy=SPENT,
        planted="    return prices.half().cumsum(-1).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:spent",
        rules=INFINITE,
        why="A day's spending of 98 000 cents is more than float16 has.",
        source="https://github.com/numpy/numpy/issues/24443",
    ),
    Planted(
        name="remaining-low",
        healthy=REMAINING,
        planted="    return 1 - (paid.float() / budget.float()).bfloat16().float()  # culprit\n",
        precisions=BF16,
        part="function:remaining",
        rules=DRIFTS,
        why="A budget of which a hundredth is left is spent to 0.99, which bfloat16 knows to a 256th.",
        source="https://github.com/ggml-org/ggml/pull/1515",
    ),
    Planted(
        name="remaining-half",
        healthy=REMAINING,
        planted="    share = (paid.float() / budget.float()).half()  # culprit\n    return (1 - share).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:remaining",
        rules=DRIFTS,
        why="A budget of which a hundredth is left is spent to 0.99, which float16 knows to a 2048th.",
        source="https://github.com/ggml-org/ggml/pull/1515",
    ),
    Planted(
        name="eps-vanishes",
        healthy=CENTRED,
        planted="    centred = (amount - amount.mean(-1, keepdim=True)).half()  # culprit\n",
        more=((SPREAD, "    return (centred / (centred.square().mean(-1, keepdim=True).sqrt() + 1e-8)).float()  # culprit\n"),),
        precisions=("16-mixed",),
        part="function:standardised",
        rules=("vanished-constant", "nan", "underflow"),
        why="float16 stores 1e-8 as nought, and a campaign with one price has no spread.",
        source="https://github.com/lightonai/pylate/pull/240",
    ),
]

HARMLESS = [
    Harmless(
        name="hour-rounded",
        healthy=HOUR,
        changed="    return ((seconds % 86_400).float() / 86_400).bfloat16()\n",
        precisions=BF16,
        why="The time of day is rounded once.",
    ),
    Harmless(
        name="corrected-low",
        healthy=CORRECTED,
        changed="    chance = chance.half()\n    return (chance / (chance + (1 - chance) / 0.1)).float()\n",
        precisions=("16-mixed",),
        why="Both terms are positive, and what is one less a small chance is right.",
    ),
    Harmless(
        name="logged-low",
        healthy=LOGGED,
        changed="    return counts.bfloat16().log1p()\n",
        precisions=BF16,
        why="A rounding of a large count is a small part of its logarithm.",
    ),
    Harmless(
        name="lead-rounded",
        healthy=LEAD,
        changed="    return ((best[:, 0] - best[:, 1]).float() / 100).bfloat16()\n",
        precisions=BF16,
        why="What is rounded is the difference.",
    ),
]
