"""Bugs of an equilibrium model: places and speeds that are rounded before they become angles, sums beyond float16, a guard that vanishes."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="places-low",
        healthy="    angles = places.float().unsqueeze(-1) * speeds\n",
        planted="    angles = places.to(low).unsqueeze(-1) * speeds  # culprit\n",
        precisions=BF16,
        part="function:encoded",
        rules=("integer-rounding", "amplified-rounding", "local-drift"),
        why="Of place 1930 bfloat16 knows every eighth, and the fastest wave turns once in six.",
        source="https://github.com/huggingface/transformers/pull/29285",
    ),
    Planted(
        name="speeds-low",
        healthy="    speeds = 2000.0 ** (-torch.arange(0, WIDTH, 2).float() / WIDTH)\n",
        planted="    speeds = 2000.0 ** (-torch.arange(0, WIDTH, 2).to(low) / WIDTH)  # culprit\n",
        precisions=ALL,
        part="function:encoded",
        rules=("amplified-rounding", "local-drift", "integer-rounding"),
        why="A speed that is off by a 256th makes an angle of 1930 radians wrong by several.",
        source="https://github.com/huggingface/transformers/pull/29285",
    ),
    Planted(
        name="distance-expanded",
        healthy="    return (result.float() - state.float()).norm(dim=-1) / (state.float().norm(dim=-1) + 1e-8)\n",
        planted="    result, state = result.to(low), state.to(low)\n"
        "    square = result.square().sum(-1) + state.square().sum(-1) - 2 * (result * state).sum(-1)  # culprit\n"
        "    return torch.sqrt(square.float().clamp(min=0)) / (state.float().norm(dim=-1) + 1e-8)\n",
        precisions=ALL,
        part="function:residual",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="A hundredth of a length is a ten-thousandth of its square, which is less than a rounding.",
        source="https://github.com/pytorch/pytorch/issues/57690",
    ),
    Planted(
        name="guard-vanishes",
        healthy="    return (result.float() - state.float()).norm(dim=-1) / (state.float().norm(dim=-1) + 1e-8)\n",
        planted="    return (result.float() - state.float()).norm(dim=-1) / (state.norm(dim=-1).to(low) + 1e-8).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:residual",
        rules=("vanished-constant", "nan"),
        why="Padding has a length of zero, and a guard of 1e-8 is zero in float16.",
        source="https://github.com/lightonai/pylate/issues/239",
    ),
    Planted(
        name="squares-overflow",
        healthy="    return torch.sqrt(states.float().square().flatten(1).sum(-1) / states[0].numel())\n",
        planted="    return torch.sqrt((32 * states).to(low).square().flatten(1).sum(-1) / states[0].numel()).float() / 32  # culprit\n",
        precisions=("16-mixed",),
        part="function:length",
        rules=("overflow", "nan"),
        why="The sum of 960 squares of some tens is beyond float16, however small their mean.",
        source="https://github.com/pytorch/pytorch/issues/43211",
    ),
]

HARMLESS = [
    Harmless(
        name="first-turns-low",
        healthy="        states.append(state.flatten(1))\n",
        changed="        state = state.to(low).float() if _turn < 3 else state\n        states.append(state.flatten(1))\n",
        precisions=ALL,
        why="Where the search begins does not matter: each turn halves what the first states were off.",
    ),
    Harmless(
        name="residuals-low",
        healthy="    apart = results - states\n",
        changed="    apart = (results.to(low) - states.to(low)).float()\n",
        precisions=ALL,
        why="The low layers of the block are off by as much as rounding the states, and the weights add up to one whatever they are.",
    ),
    Harmless(
        name="system-low",
        healthy="    solved = torch.linalg.solve(products / (size + 1e-12) + 1e-3 * torch.eye(count), torch.ones(len(products), count, 1))\n",
        changed="    system = (products / (size + 1e-12)).to(low).float() + 1e-3 * torch.eye(count)\n"
        "    solved = torch.linalg.solve(system, torch.ones(len(products), count, 1))\n",
        precisions=ALL,
        why="Which mixture of the last states is taken decides how fast the search is, not where it ends.",
    ),
    Harmless(
        name="chances-by-logarithm",
        healthy="            cost = functional.cross_entropy(guess.float()[there], wanted[there])\n",
        changed="            chance = torch.softmax(guess.float()[there], -1).to(low).float()\n"
        "            cost = functional.nll_loss(torch.log(chance), wanted[there])\n",
        precisions=BF16,
        why="Chances of some hundredths are rounded once, which moves their logarithms by a 256th, and 53 of them are averaged.",
    ),
    Harmless(
        name="mask-beyond-the-range",
        healthy="        scores = (query @ key.transpose(-1, -2) / DIM**0.5).masked_fill(~there[:, None, None, :], torch.finfo(query.dtype).min)\n",
        changed="        scores = query @ key.transpose(-1, -2) / DIM**0.5\n"
        "        scores = scores + (~there[:, None, None, :]).to(scores.dtype) * -1e9\n",
        precisions=ALL,
        why="In float16 a masked score is minus infinity, whose exponential is zero, and each place sees thirteen others.",
    ),
    Harmless(
        name="stretch-rounded",
        healthy="    return torch.dot(across, weight.mv(along))\n",
        changed="    return torch.dot(across, weight.mv(along)).to(low).float()\n",
        precisions=ALL,
        why="A factor of a layer is rounded once.",
    ),
    Harmless(
        name="direction-low",
        healthy="            along = functional.normalize(weight.t().mv(across), dim=0)\n",
        changed="            along = functional.normalize(weight.t().mv(across), dim=0).to(low).float()\n",
        precisions=ALL,
        why="What the power method finds is flat at the largest factor: a direction that is off by e changes it by the square of e.",
    ),
    Harmless(
        name="probe-low",
        healthy="        pulled = torch.autograd.grad(result, found, probe.float(), create_graph=True)[0]\n",
        changed="        pulled = torch.autograd.grad(result, found, probe.to(low).float(), create_graph=True)[0]\n",
        precisions=ALL,
        why="Signs are exact.",
    ),
    Harmless(
        name="waves-low",
        healthy="    return torch.cat([angles.sin(), angles.cos()], -1)\n",
        changed="    return torch.cat([angles.sin(), angles.cos()], -1).to(low).float()\n",
        precisions=ALL,
        why="Sines of exact angles are rounded once.",
    ),
    Harmless(
        name="lengths-low",
        healthy="    return (result.float() - state.float()).norm(dim=-1) / (state.float().norm(dim=-1) + 1e-8)\n",
        changed="    return (result.float() - state.float()).norm(dim=-1) / (state.float().norm(dim=-1).to(low).float() + 1e-8)\n",
        precisions=ALL,
        why="A length is rounded once, before the guard is added in float32.",
    ),
    Harmless(
        name="size-for-the-guard-low",
        healthy="    size = products.diagonal(dim1=-2, dim2=-1).mean(-1).view(-1, 1, 1)\n",
        changed="    size = products.diagonal(dim1=-2, dim2=-1).mean(-1).view(-1, 1, 1).to(torch.bfloat16).float()\n",
        precisions=ALL,
        why="The size only says what the thousandth is a thousandth of.",
    ),
    Harmless(
        name="stiffness-of-low",
        healthy="    return pulled.float().square().sum() / probe.numel()\n",
        changed="    return pulled.to(low).float().square().sum() / probe.numel()\n",
        precisions=ALL,
        why="Each of 2880 numbers is rounded once, and their squares are added up in float32.",
    ),
    Harmless(
        name="gradient-low",
        healthy="                return equilibrium(turned, torch.zeros_like(gradient), low)\n",
        changed="                return equilibrium(turned, torch.zeros_like(gradient), low).to(low).to(gradient.dtype)\n",
        precisions=BF16,
        why="A gradient that enters low layers next is rounded once, and bfloat16 has the range of float32.",
    ),
]
