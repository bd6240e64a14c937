"""Bugs of a physics-informed network: slopes that cancel, phases of many turns, running sums, a variance by moments."""

from __future__ import annotations

from planted_bug import Harmless, Planted

MIXED = ("bf16-mixed", "16-mixed")

BUGS = [
    Planted(
        name="residual-low",
        healthy="    all_x, all_t = u_x + slope, u_t - SPEED * slope\n",
        planted="    low = torch.bfloat16\n    all_x, all_t = (u_x + slope).to(low), (u_t - SPEED * slope).to(low)\n",
        more=(("    return all_t + SPEED * all_x\n", "    return (all_t + SPEED * all_x).float()  # culprit\n"),),
        precisions=("bf16-mixed",),
        part="function:residual",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Slopes of 3770 cancel, and each is known to 16.",
        source="https://github.com/princeton-vl/RAFT/issues/54",
    ),
    Planted(
        name="phase-low",
        healthy="    return HEIGHT * torch.sin(2 * math.pi * (coords[..., 0] - SPEED * coords[..., 1]))\n",
        planted="    turns = (coords[..., 0] - SPEED * coords[..., 1]).to(torch.get_autocast_dtype('cpu'))  # culprit\n"
        "    return HEIGHT * torch.sin(2 * math.pi * turns).float()  # culprit\n",
        precisions=MIXED,
        part="function:drifting",
        rules=("amplified-rounding", "accumulated-drift", "local-drift", "cancellation"),
        why="Of thirty turns bfloat16 knows an eighth of one, and float16 a 64th.",
        source="https://github.com/hexgrad/kokoro/pull/353",
    ),
    Planted(
        name="causal-sum-low",
        healthy="    before[1:] = losses.detach().cumsum(0)[:-1]\n    return torch.exp(-rate * before)\n",
        planted="    total = torch.zeros((), dtype=torch.float16)\n    for i, each in enumerate(losses.detach()):\n"
        "        before[i] = total.float()\n        total = total + each.half() * 100  # culprit\n    return torch.exp(-rate / 100 * before)\n",
        precisions=("16-mixed",),
        part="function:causal_weights",
        rules=("overflow", "absorption"),
        why="A hundred times the sum of the losses is beyond float16, and the weights of all later slices are zero.",
        source="https://github.com/pytorch/pytorch/pull/133085",
    ),
    Planted(
        name="energy-by-moments",
        healthy="    return (values - values.mean(-1, keepdim=True)).square().mean(-1)\n",
        planted="    low = values.to(torch.bfloat16)\n    return (low.square().mean(-1) - low.mean(-1).square()).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:energy",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="A square of 200 is known to 128, and the variance is 200.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
]

HARMLESS = [
    Harmless(
        name="waves-low",
        healthy="    k = torch.arange(1, 5, device=coords.device, dtype=coords.dtype)\n",
        changed="    k = torch.arange(1, 5, device=coords.device, dtype=torch.bfloat16).to(coords.dtype)\n",
        precisions=MIXED,
        why="Whole numbers up to four.",
    ),
    Harmless(
        name="features-low",
        healthy="    return torch.cat([phase.sin(), phase.cos(), t.unsqueeze(-1)], -1)\n",
        changed="    return torch.cat([phase.sin(), phase.cos(), t.unsqueeze(-1)], -1).to(torch.get_autocast_dtype('cpu')).float()\n",
        precisions=MIXED,
        why="The first layer rounds what it is given in any case.",
    ),
    Harmless(
        name="squares-rounded",
        healthy="    return squares.view(SLICES, -1).mean(-1)\n",
        changed="    return (squares / 64).to(torch.get_autocast_dtype('cpu')).float().view(SLICES, -1).mean(-1) * 64\n",
        precisions=MIXED,
        why="Squares are rounded once, each for itself.",
    ),
    Harmless(
        name="weights-rounded",
        healthy="    return torch.exp(-rate * before)\n",
        changed="    return torch.exp(-rate * before).to(torch.get_autocast_dtype('cpu')).float()\n",
        precisions=MIXED,
        why="A weight of a slice's loss is rounded once.",
    ),
    Harmless(
        name="slopes-rounded",
        healthy="    all_x, all_t = u_x + slope, u_t - SPEED * slope\n    return all_t + SPEED * all_x\n",
        changed="    low = torch.get_autocast_dtype('cpu')\n    return (u_t.to(low) + SPEED * u_x.to(low)).float()\n",
        precisions=("bf16-mixed",),
        why="The wave's slopes are left out, which cancel: what the network gives is rounded once.",
    ),
    Harmless(
        name="losses-detached-low",
        healthy="    before[1:] = losses.detach().cumsum(0)[:-1]\n",
        changed="    before[1:] = losses.detach().to(torch.bfloat16).float().cumsum(0)[:-1]\n",
        precisions=MIXED,
        why="Sixteen losses are rounded once, and summed up in float32.",
    ),
    Harmless(
        name="phase-reduced-first",
        healthy="    return HEIGHT * torch.sin(2 * math.pi * (coords[..., 0] - SPEED * coords[..., 1]))\n",
        changed="    turns = coords[..., 0] - SPEED * coords[..., 1]\n"
        "    turns = (turns - turns.round()).to(torch.get_autocast_dtype('cpu')).float()\n    return HEIGHT * torch.sin(2 * math.pi * turns)\n",
        precisions=("16-mixed",),
        why="Whole turns are taken off in float32; what is rounded is half a turn at most.",
    ),
]
