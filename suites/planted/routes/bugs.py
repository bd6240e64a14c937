"""Bugs of planned routes: metres of a country, seconds of a day, numbers of legs and log-chances of routes in low formats."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="metres-low",
        healthy="    places = places.double()\n    return ((places - places.mean(1, keepdim=True)) / 1000).float()\n",
        planted="    places = (places / 1000).to(low)  # culprit\n    return (places - places.mean(1, keepdim=True)).float()  # culprit\n",
        precisions=ALL,
        part="function:centred",
        rules=("cancellation", "amplified-rounding", "local-drift", "integer-rounding"),
        why="Of 5654 kilometres bfloat16 knows every 32nd and float16 every fourth, and the town is twelve wide.",
        source="https://github.com/isl-org/Open3D/issues/2108",
    ),
    Planted(
        name="clock-low",
        healthy="    return begin.float().view(-1, 1, 1) + (100 * legs + 120).cumsum(-1)\n",
        planted="    clock, times = begin.to(low).view(-1, 1), []  # culprit\n    for leg in legs.unbind(-1):\n"
        "        clock = clock + (100 * leg + 120).to(low)  # culprit\n        times.append(clock)\n    return torch.stack(times, -1).float()\n",
        precisions=("bf16-mixed", "bf16-true"),
        part="function:late",
        rules=("absorption", "accumulated-drift", "integer-rounding", "local-drift", "amplified-rounding", "cancellation"),
        why="Of the 30000th second of a day bfloat16 knows every 128th, and from 32768 every 256th.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="lateness-low",
        healthy="    return (reached - due.float()).clamp(min=0) / 3600\n",
        planted="    return ((reached / 3600).to(low) - (due / 3600).to(low)).clamp(min=0).float()  # culprit\n",
        precisions=BF16,
        part="function:late",
        rules=("cancellation", "amplified-rounding", "local-drift", "decision-flip"),
        why="Of ten hours bfloat16 knows every 16th of one, which are four minutes.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="legs-low",
        healthy="    return (maps * PLACES + tours[:, :, :-1]) * PLACES + tours[:, :, 1:]\n",
        planted="    return ((maps * PLACES + tours[:, :, :-1]).to(low) * PLACES + tours[:, :, 1:]).long()  # culprit\n",
        precisions=BF16,
        part="gradient:used",
        rules=("integer-rounding", "decision-flip", "local-drift"),
        why="There are 675 legs, and bfloat16 counts to 256.",
        source="https://github.com/pyg-team/pytorch_geometric/issues/646",
    ),
    Planted(
        name="ratio-low",
        healthy="    return torch.exp(new.float() - old.float())\n",
        planted="    return torch.exp(new.to(low) - old.to(low)).float()  # culprit\n",
        precisions=BF16,
        part="function:ratio",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="The log-chance of a route is minus 35, of which bfloat16 knows every quarter.",
        source="https://github.com/huggingface/trl/issues/4159",
    ),
    Planted(
        name="advantages-low",
        healthy="    apart = costs.float() - costs.float().mean(1, keepdim=True)\n",
        planted="    apart = (costs.to(low) - costs.to(low).mean(1, keepdim=True)).float()  # culprit\n",
        precisions=BF16,
        part="function:advantages",
        rules=("cancellation", "amplified-rounding", "local-drift", "decision-flip"),
        why="Routes of a hundred kilometres differ by a few, and bfloat16 knows every half.",
        source="https://github.com/huggingface/trl/issues/4159",
    ),
    Planted(
        name="guard-vanishes",
        healthy="    return apart / (apart.square().mean(1, keepdim=True).sqrt() + 1e-6)\n",
        planted="    return (apart / (apart.square().mean(1, keepdim=True).sqrt().to(low) + 1e-8)).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:advantages",
        rules=("vanished-constant", "nan"),
        why="Routes that are all alike have no spread, and a guard of 1e-8 is zero in float16.",
        source="https://github.com/lightonai/pylate/issues/239",
    ),
]

HARMLESS = [
    Harmless(
        name="boxes-low",
        healthy="    return (FULL - loads.cumsum(-1)).float() / FULL\n",
        changed="    return (FULL - loads.to(low).cumsum(-1)).float() / FULL\n",
        precisions=ALL,
        why="At most 180 boxes are loaded, and each format counts to 256.",
    ),
    Harmless(
        name="scores-low",
        healthy="    bent = CLIP * torch.tanh(scores.float())\n",
        changed="    bent = CLIP * torch.tanh(scores.to(low)).float()\n",
        precisions=("16-mixed",),
        why="Scores of a low product are bent once more in low.",
    ),
    Harmless(
        name="masked-by-thousands",
        healthy="    return functional.log_softmax(bent.masked_fill(~free, -torch.inf), -1)\n",
        changed="    return functional.log_softmax(bent + (~free).to(low).float() * -1e4, -1)\n",
        precisions=ALL,
        why="Ten less ten thousand has an exponential of zero, and no stop that is gone is asked for.",
    ),
    Harmless(
        name="advantages-rounded",
        healthy="    return apart / (apart.square().mean(1, keepdim=True).sqrt() + 1e-6)\n",
        changed="    return (apart / (apart.square().mean(1, keepdim=True).sqrt() + 1e-6)).to(low).float()\n",
        precisions=ALL,
        why="The difference is made in float32, and what comes of it is rounded once.",
    ),
    Harmless(
        name="legs-rounded",
        healthy="    return (along[:, :, 1:] - along[:, :, :-1]).norm(dim=-1)\n",
        changed="    return (along[:, :, 1:] - along[:, :, :-1]).to(low).float().norm(dim=-1)\n",
        precisions=("16-mixed",),
        why="Differences are made in float32 and rounded once; sums over a route lose less than that.",
    ),
    Harmless(
        name="near-legs-low",
        healthy="            far = torch.cdist(near, near) / 10\n",
        changed="            far = (near.to(low).float().unsqueeze(2) - near.to(low).float().unsqueeze(1)).norm(dim=-1) / 10\n",
        precisions=BF16,
        why="Places within six kilometres of the middle are rounded by some metres, and their distances are taken off scores that are rounded.",
    ),
    Harmless(
        name="local-numbers-low",
        healthy="    return (maps * PLACES + tours[:, :, :-1]) * PLACES + tours[:, :, 1:]\n",
        changed="    within = tours[:, :, :-1].to(low) * PLACES + tours[:, :, 1:].to(low)\n    return maps * PLACES * PLACES + within.long()\n",
        precisions=ALL,
        why="Within a map there are 225 legs, and each format counts to 256.",
    ),
    Harmless(
        name="shifts-low",
        healthy="            by = ratio(new, new.detach() + shifts.float(), low)\n",
        changed="            by = ratio(new, new.detach() + shifts.to(low).float(), low)\n",
        precisions=ALL,
        why="The shifts are thirty-seconds, which each format holds.",
    ),
    Harmless(
        name="ratio-rounded",
        healthy="            cost = torch.maximum(better * by, better * by.clamp(0.8, 1.2)).mean()\n",
        changed="            cost = torch.maximum(better * by.to(low).float(), better * by.clamp(0.8, 1.2)).mean()\n",
        precisions=ALL,
        why="A ratio near one is rounded once, and the mean of many ratios is more exact than each.",
    ),
    Harmless(
        name="divergence-that-nobody-reads",
        healthy="            cost = cost + 0.1 * (guess.float() - legs.sum(-1).mean(1) / 100).square().mean()\n",
        changed="            moved = by.detach().to(low)\n            _ = (moved - 1 - torch.log(moved)).mean()\n"
        "            cost = cost + 0.1 * (guess.float() - legs.sum(-1).mean(1) / 100).square().mean()\n",
        precisions=ALL,
        why="A number for a log that nobody writes.",
    ),
]
