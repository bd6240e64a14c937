"""Bugs of tables: large whole numbers in low formats, logarithms of infinity, variances by moments, an optimizer that keeps little."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="incomes-low",
        healthy="    x, edges = x.float(), edges.float()\n    return ((x.unsqueeze(-1) - edges[:-1]) / (edges[1:] - edges[:-1])).clamp(0, 1)\n",
        planted="    x, edges = x.to(low), edges.to(low)  # culprit\n"
        "    return ((x.unsqueeze(-1) - edges[:-1]) / (edges[1:] - edges[:-1])).clamp(0, 1).float()  # culprit\n",
        precisions=ALL,
        part="function:piecewise",
        rules=("integer-rounding", "cancellation", "amplified-rounding", "local-drift", "nan"),
        why="Of incomes of 50000 bfloat16 knows every 256th and float16 every 32nd, and bins are 1000 wide.",
        source="https://github.com/business-science/pytimetk/issues/274",
    ),
    Planted(
        name="clock-low",
        healthy="    day, week = (seconds % 86_400).float() / 86_400, (seconds % 604_800).float() / 604_800\n",
        planted="    day, week = (seconds.to(low) % 86_400).float() / 86_400, (seconds.to(low) % 604_800).float() / 604_800  # culprit\n",
        precisions=ALL,
        part="function:hours",
        rules=("integer-rounding", "overflow", "nan", "amplified-rounding", "local-drift"),
        why="Of 1.7 milliards of seconds bfloat16 knows every eight millionth, and float16 none.",
        source="https://github.com/binux/pyspider/pull/83",
    ),
    Planted(
        name="days-low",
        healthy="    angles = 2 * math.pi * speeds.float() * days.float().unsqueeze(-1)\n",
        planted="    angles = (2 * math.pi * speeds.to(low) * days.to(low).unsqueeze(-1)).float()  # culprit\n",
        precisions=ALL,
        part="function:waves",
        rules=("integer-rounding", "amplified-rounding", "local-drift"),
        why="Of 5000 days bfloat16 knows every 32nd, and the fastest wave turns every second day.",
        source="https://github.com/utensils/mold/issues/786",
    ),
    Planted(
        name="hash-low",
        healthy="    return (names * FACTOR) % BUCKETS\n",
        planted="    return ((names.to(low) * FACTOR) % BUCKETS).long()  # culprit\n",
        precisions=BF16,
        part="function:hashed",
        rules=("integer-rounding", "amplified-rounding", "decision-flip", "local-drift"),
        why="Of three million names bfloat16 knows every 8192nd or 16384th, and their remainders are others.",
        source="https://github.com/pyg-team/pytorch_geometric/issues/646",
    ),
    Planted(
        name="cents-overflow",
        healthy="    return torch.log1p(cents.float()) / 10\n",
        planted="    return torch.log1p(cents.to(low)).float() / 10  # culprit\n",
        precisions=("16-mixed",),
        part="function:amounts",
        rules=("overflow", "nan"),
        why="Amounts of more than 655 are infinite in cents, and so are their logarithms.",
        source="https://github.com/business-science/pytimetk/issues/274",
    ),
    Planted(
        name="prices-by-moments",
        healthy="    variance = (prices - mean).square().mean()\n",
        planted="    variance = (prices.to(low).square().mean() - mean.to(low).square()).float()  # culprit\n",
        precisions=BF16,
        part="function:standardised",
        rules=("cancellation", "amplified-rounding", "local-drift", "integer-rounding", "nan"),
        why="A mean of 245000 and a spread of 9000: their squares are a thousandth apart.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
    Planted(
        name="votes-low",
        healthy="    return votes.var(-1, correction=0)\n",
        planted="    return votes.to(low).var(-1, correction=0).float()  # culprit\n",
        precisions=ALL,
        part="function:disagreement",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Answers of 60 years are known to a quarter or a 32nd, and differ by a half.",
        source="https://github.com/google/objax/issues/182",
    ),
    Planted(
        name="second-moment-low",
        healthy='            state["second"] = torch.zeros_like(weight, dtype=torch.float32)\n',
        planted='            state["second"] = torch.zeros_like(weight, dtype=torch.float16)  # culprit\n',
        precisions=("bf16-mixed", "16-mixed"),
        part="weights",
        rules=("underflow", "lost-update", "absorption", "vanished-constant", "amplified-rounding"),
        why="A thousandth of the square of a gradient of 0.001 is zero in float16: the step has no size and is a hundred thousand times too large.",
        source="https://github.com/Nerogar/OneTrainer/issues/1005",
        more=(
            (
                '        state["second"].mul_(second).add_((gradient.square() * (1 - second)).to(state["second"].dtype))\n',
                '        state["second"].mul_(second).add_((gradient.square() * (1 - second)).to(state["second"].dtype))  # culprit\n',
            ),
        ),
    ),
    Planted(
        name="step-into-weights",
        healthy='        state["master"].sub_(change)\n        weight.copy_(state["master"])\n',
        planted='        weight.sub_(change.to(weight.dtype))  # culprit\n        state["master"].copy_(weight)\n',
        precisions=("bf16-true",),
        part="parameter:blocks.0.linear1.weight",
        rules=("lost-update", "absorption"),
        why="A step of two ten-thousandths is less than half of what bfloat16 moves by at weights of 0.1.",
        source="https://github.com/pytorch/ao/pull/1124",
    ),
]

HARMLESS = [
    Harmless(
        name="first-moment-low",
        healthy='            state["first"] = torch.zeros_like(weight, dtype=torch.float32)\n',
        changed='            state["first"] = torch.zeros_like(weight, dtype=torch.bfloat16)\n',
        precisions=("bf16-mixed",),
        why="It keeps nine tenths at each step, so it feels each gradient, with a rounding.",
    ),
    Harmless(
        name="step-with-its-rest",
        healthy='        state["master"].sub_(change)\n        weight.copy_(state["master"])\n',
        changed='        state["rest"] = state.get("rest", torch.zeros_like(weight, dtype=torch.float32)) - change\n'
        '        before = weight.clone()\n        weight.add_(state["rest"].to(weight.dtype))\n'
        '        state["rest"] = state["rest"] - (weight.float() - before.float())\n        state["master"].copy_(weight.float() + state["rest"])\n',
        precisions=("bf16-true",),
        why="What a rounded weight did not take of a step is added to the next one, as Kahan does it.",
    ),
    Harmless(
        name="week-low",
        healthy="    angles = 2 * math.pi * torch.stack([day, week], -1)\n",
        changed="    angles = 2 * math.pi * torch.stack([day, torch.floor(7 * week).to(low).float() / 7 + (7 * week % 1) / 7], -1)\n",
        precisions=ALL,
        why="The day of the week is a whole number up to six.",
    ),
]
