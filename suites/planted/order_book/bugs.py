"""Bugs of an order book: prices in ticks, milliseconds since midnight, sums of shares, and a state that decays slowly."""

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
MIDDLE = "    return (bid[..., 0] + ask[..., 0]).float() / 2\n"
MOVES = "    return F.pad(price[:, 1:] - price[:, :-1], (1, 0))\n"
LEAN = "    return (buying / (buying + selling) - 0.5) * spread\n"
DEPTH = "    return waiting.cumsum(-1).float().log()\n"
PAUSE = "    return F.pad(clock[:, 1:] - clock[:, :-1], (1, 0), value=1).float()\n"
LEFT = "    left = torch.exp2(-wait / 300_000)\n"
HEAT = "        state = state * left[:, turn] + 1\n"
PRESSURE = "    return (bought.cumsum(1) - bought[:, :1]).float()\n"
PAID = "    beyond, shares = (price - middle_[:, -1:]).float(), bought.abs().float()\n    return (beyond * shares).sum(1) / shares.sum(1)\n"
SWING = "    relative = (price[:, 1:] - price[:, :-1]) / price[:, :-1]\n    return relative.square().mean(1).sqrt() * 1e6\n"

BUGS = [
    Planted(
        name="prices-low",
        healthy=MOVES,
        planted="    price = price.to(low)  # culprit\n    return F.pad(price[:, 1:] - price[:, :-1], (1, 0)).float()\n",
        precisions=ALL,
        part="function:moves",
        rules=(*WHOLE, "underflow"),
        why="Of 41 000 ticks bfloat16 knows every 256th and float16 every 32nd, and the price moves by one.",
        source="https://github.com/amazon-science/chronos-forecasting/issues/193",
    ),
    Planted(
        name="agreed-price-low",
        healthy=LEAN,
        planted="    agreed = ((bid[..., 0] * selling + ask[..., 0] * buying) / (buying + selling)).to(torch.bfloat16)  # culprit\n"
        "    return (agreed - (bid[..., 0] + ask[..., 0]) / 2).float()\n",
        precisions=BF16,
        part="function:lean",
        rules=(*WHOLE, "underflow"),
        why="A price is stored low, and what counts is a tick of it.",
        source="https://github.com/esheldon/smatch/pull/21",
    ),
    Planted(
        name="shares-overflow",
        healthy=DEPTH,
        planted="    return waiting.half().cumsum(-1).float().log()  # culprit\n",
        precisions=("16-mixed",),
        part="function:depth",
        rules=("overflow", "nan"),
        why="Five levels hold more shares than float16 has numbers for.",
        source="https://github.com/NVIDIA-Merlin/models/pull/1051",
    ),
    Planted(
        name="clock-low",
        healthy=PAUSE,
        planted="    clock = clock.to(torch.bfloat16)  # culprit\n    return F.pad(clock[:, 1:] - clock[:, :-1], (1, 0), value=1).float()\n",
        precisions=BF16,
        part="function:pause",
        rules=(*WHOLE, "underflow"),
        why="36 million milliseconds, of which bfloat16 knows every 262 144th.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="decay-low",
        healthy=LEFT,
        planted="    left = torch.exp2(-wait / 300_000).to(low).float()  # culprit\n",
        precisions=BF16,
        part="function:heat",
        rules=DRIFTS,
        why="After a fifth of a second 0.9995 is left, which is one in bfloat16: nothing fades.",
        source="https://github.com/ml-explore/mlx-lm/issues/565",
    ),
    Planted(
        name="heat-stands-still",
        healthy=HEAT,
        planted="        state = (state * left[:, turn] + 1).to(torch.bfloat16).float()  # culprit\n",
        precisions=BF16,
        part="function:heat",
        rules=(*DRIFTS, "absorption"),
        why="The state is up to a hundred, and what fades in a turn is less than half a step of bfloat16.",
        source="https://github.com/vllm-project/vllm/issues/13466",
    ),
    Planted(
        name="pressure-low",
        healthy=PRESSURE,
        planted="    side, sides = bought[:, 0].to(low), [bought[:, 0].to(low)]\n    for turn in range(1, TIMES):\n"
        "        side = side + bought[:, turn].to(low)  # culprit\n        sides.append(side)\n"
        "    return (torch.stack(sides, 1) - sides[0][:, None]).float()\n",
        precisions=BF16,
        part="function:pressure",
        rules=(*WHOLE, "absorption"),
        why="A running sum of 9000 shares is rounded to the 64th in each turn.",
        source="https://github.com/pytorch/pytorch/pull/133085",
    ),
    Planted(
        name="paid-in-ticks-overflows",
        healthy=PAID,
        planted="    shares = bought.abs().to(low)\n    spent = (price.to(low) * shares).sum(1)  # culprit\n"
        "    return (spent / shares.sum(1)).float() - middle_[:, -1]\n",
        precisions=("16-mixed",),
        part="function:paid",
        rules=("overflow", "nan"),
        why="41 000 ticks by 90 shares.",
        source="https://github.com/open-mmlab/mmdetection/issues/5237",
    ),
    Planted(
        name="squares-vanish",
        healthy=SWING,
        planted="    relative = ((price[:, 1:] - price[:, :-1]) / price[:, :-1]).half()\n"
        "    return relative.square().mean(1).sqrt().float() * 1e6  # culprit\n",
        precisions=("16-mixed",),
        part="function:spread_of_moves",
        rules=("underflow",),
        why="A move of a tick is 2e-5, and its square is less than float16 has.",
        source="https://github.com/pytorch/pytorch/issues/189581",
    ),
]

HARMLESS = [
    Harmless(
        name="moves-rounded",
        healthy=MOVES,
        changed="    return F.pad(price[:, 1:] - price[:, :-1], (1, 0)).to(low).float()\n",
        precisions=ALL,
        why="Moves are halves of a tick, and few.",
    ),
    Harmless(
        name="queues-low",
        healthy=LEAN,
        changed="    buying, selling = buying.log(), selling.log()\n"
        "    return (torch.sigmoid((buying - selling).to(torch.bfloat16).float()) - 0.5) * spread\n",
        precisions=BF16,
        why="A logarithm of a ratio is rounded once, and a sigmoid makes no more of it.",
    ),
    Harmless(
        name="depth-rounded",
        healthy=DEPTH,
        changed="    return waiting.cumsum(-1).to(torch.bfloat16).float().log()\n",
        precisions=BF16,
        why="Shares are amounts here: their logarithm knows a 256th of them.",
    ),
    Harmless(
        name="pause-rounded",
        healthy=PAUSE,
        changed="    return F.pad(clock[:, 1:] - clock[:, :-1], (1, 0), value=1).to(low).float()\n",
        precisions=("bf16-mixed", "bf16-true"),
        why="Differences of whole milliseconds are amounts: a decay and a logarithm are made of them.",
    ),
    Harmless(
        name="heat-rounded-late",
        healthy="        states.append(state)\n    return torch.stack(states, 1)\n",
        changed="        states.append(state.to(low).float())\n    return torch.stack(states, 1)\n",
        precisions=ALL,
        why="The state itself is not rounded.",
    ),
    Harmless(
        name="trades-low",
        healthy=PRESSURE,
        changed="    bought = bought.to(low).float()\n    return bought.cumsum(1) - bought[:, :1]\n",
        precisions=ALL,
        why="Each format holds the opening of 8960 shares, no other trade has more than 256, and they are added up in float32.",
    ),
]
