"""Bugs of a trading simulation: small differences of prices, small returns, a large account, discounts near one."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="prices-low",
        healthy="    return held * (prices[:, 1:] - prices[:, :-1])\n",
        planted="    prices = prices.to(low)  # culprit\n    return held * (prices[:, 1:] - prices[:, :-1]).float()  # culprit\n",
        precisions=ALL,
        part="function:gains",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="A price of 100 is known to a half in bfloat16 and to a sixteenth in float16, and moves by one.",
        source="https://github.com/amazon-science/chronos-forecasting/issues/193",
    ),
    Planted(
        name="logs-low",
        healthy="    return prices[:, 1:].log() - prices[:, :-1].log()\n",
        planted="    logs = prices.log().to(low)  # culprit\n    return (logs[:, 1:] - logs[:, :-1]).float()  # culprit\n",
        precisions=ALL,
        part="function:log_returns",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="A logarithm of 4.6 is known to a 32nd in bfloat16, and a day's return is a hundredth.",
        source="https://github.com/ecmwf/WeatherGenerator/issues/2046",
    ),
    Planted(
        name="returns-by-ratio-low",
        healthy="    return prices[:, 1:].log() - prices[:, :-1].log()\n",
        planted="    ratio = (prices[:, 1:] / prices[:, :-1]).to(low)  # culprit\n    return ratio.float().log()\n",
        precisions=BF16,
        part="function:log_returns",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="A ratio near one is known to a 128th, and a day's return is a hundredth.",
        source="https://github.com/fastino-ai/GLiNER2/pull/155",
    ),
    Planted(
        name="moneyness-low",
        healthy="    return (prices / STRIKE).log()\n",
        planted="    ratio = (prices / STRIKE).to(low)  # culprit\n    return ratio.float().log()\n",
        precisions=BF16,
        part="function:log_moneyness",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="A ratio near one is known to a 128th, and its logarithm is less than a tenth.",
        source="https://github.com/huggingface/diffusers/pull/3005",
    ),
    Planted(
        name="discounts-low",
        healthy="    factor = torch.tensor(math.exp(-RATE * STEP))\n",
        planted="    factor = torch.tensor(math.exp(-RATE * STEP)).to(low).float()  # culprit\n",
        precisions=("bf16-mixed", "16-mixed"),
        part="function:discounts",
        rules=("amplified-rounding", "accumulated-drift", "local-drift", "vanished-constant"),
        why="A day takes a 8400th, so the factor is one.",
        source="https://github.com/fla-org/flash-linear-attention/issues/181",
    ),
    Planted(
        name="account-absorbs",
        healthy="        account = account + flows[:, day]\n",
        planted="        account = account.to(low) + flows[:, day].to(low)  # culprit\n",
        more=(("    return account - start\n", "    return account.float() - start\n"),),
        precisions=ALL,
        part="function:settled",
        rules=("absorption", "local-drift", "accumulated-drift"),
        why="An account of 5000 moves by 32 in bfloat16 and by four in float16: a day's gain of one is lost.",
        source="https://github.com/pytorch/pytorch/pull/133085",
    ),
    Planted(
        name="risk-overflows",
        healthy="    return (torch.logsumexp(-aversion * outcome, 0) - math.log(len(outcome))) / aversion\n",
        planted="    return (-aversion * outcome).half().exp().mean().log().float() / aversion  # culprit\n",
        precisions=("16-mixed",),
        part="function:entropic_risk",
        rules=("overflow",),
        why="Four times a loss of more than three has an exponential beyond float16.",
        source="https://github.com/apple/coremltools/pull/2727",
    ),
    Planted(
        name="small-returns-vanish",
        healthy="    return (returns.square().cumsum(1) / days / STEP).sqrt()\n",
        planted="    small = (returns / 64).half()\n    return ((small * small).float().cumsum(1) / days / STEP).sqrt() * 64  # culprit\n",
        precisions=("16-mixed",),
        part="function:realised",
        rules=("underflow",),
        why="A 64th of a return has a square below the smallest number of float16.",
        source="https://github.com/facebookresearch/fairscale/pull/263",
    ),
]

HARMLESS = [
    Harmless(
        name="gains-rounded",
        healthy="    return held * (prices[:, 1:] - prices[:, :-1])\n",
        changed="    return (held * (prices[:, 1:] - prices[:, :-1])).to(low).float()\n",
        precisions=ALL,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="returns-rounded",
        healthy="    return prices[:, 1:].log() - prices[:, :-1].log()\n",
        changed="    return (prices[:, 1:].log() - prices[:, :-1].log()).to(low).float()\n",
        precisions=ALL,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="days-low",
        healthy="    return 1 - days.float() / (DAYS + 0.25)\n",
        changed="    return 1 - days.to(low).float() / (DAYS + 0.25)\n",
        precisions=ALL,
        why="Whole numbers up to 119.",
    ),
    Harmless(
        name="time-left-rounded",
        healthy="    return 1 - days.float() / (DAYS + 0.25)\n",
        changed="    return (1 - days.float() / (DAYS + 0.25)).to(low).float()\n",
        precisions=("16-mixed",),
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="discounts-rounded",
        healthy="    return torch.cumprod(factor.expand(count), 0)\n",
        changed="    return torch.cumprod(factor.expand(count), 0).to(low).float()\n",
        precisions=("16-mixed",),
        why="Each discount is rounded once, after the product.",
    ),
    Harmless(
        name="flows-rounded",
        healthy="        account = account + flows[:, day]\n",
        changed="        account = account + flows[:, day].to(low).float()\n",
        precisions=("16-mixed",),
        why="A flow is rounded once, and it is added in float32.",
    ),
    Harmless(
        name="account-from-zero-compensated",
        healthy="        account = account + flows[:, day]\n",
        changed="        account = (account.double() + flows[:, day].double()).float()\n",
        precisions=ALL,
        why="The sum is made in float64.",
    ),
    Harmless(
        name="risk-shifted",
        healthy="    return (torch.logsumexp(-aversion * outcome, 0) - math.log(len(outcome))) / aversion\n",
        changed="    worst = (-aversion * outcome).amax().detach()\n    apart = (-aversion * outcome - worst).to(low).exp()\n"
        "    return (worst + apart.float().mean().log()) / aversion\n",
        precisions=("16-mixed",),
        why="The largest exponent is nought, and what vanishes counts for nothing beside it.",
    ),
]
