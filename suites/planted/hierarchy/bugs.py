"""Bugs of ranking in a tree: the rim of a disc in a low format, ages and slots as low numbers, exponentials, sums and guards of float16."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="room-low",
        healthy="    return 1 - x.square().sum(-1)\n",
        planted="    return (1 - x.to(low).square().sum(-1)).float()  # culprit\n",
        precisions=ALL,
        part="function:room",
        rules=("cancellation", "amplified-rounding", "nan", "overflow", "local-drift"),
        why="Near the rim the squared length is 0.998, which is one in bfloat16 and half right in float16.",
        source="https://github.com/SauersML/gam/issues/3972",
    ),
    Planted(
        name="rim-low",
        healthy="    length = x.norm(dim=-1, keepdim=True).clamp(1e-6, 1 - 1e-6)\n",
        planted="    length = x.norm(dim=-1, keepdim=True).to(low).clamp(1e-6, 1 - 1e-6)  # culprit\n",
        precisions=ALL,
        part="function:flat",
        rules=("vanished-constant", "nan", "overflow", "amplified-rounding", "cancellation", "local-drift"),
        why="The bound is one in the format, and so is the length of the outermost places: the area tangent of one is infinite.",
        source="https://github.com/SauersML/gam/issues/3972",
        more=(
            (
                "    return torch.atanh(length) * x / length\n",
                "    return torch.atanh(length).float() * x / length  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="arc-low",
        healthy="    return torch.log1p(beyond + torch.sqrt(beyond * (beyond + 2)))\n",
        planted="    return torch.acosh(1 + beyond).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:distance",
        rules=("overflow", "nan", "cancellation", "amplified-rounding"),
        why="Two places at the rim are more than 65504 apart before the arc is taken.",
        source="https://github.com/SauersML/gam/issues/3972",
        more=(
            (
                "    beyond = 2 * (x - y).square().sum(-1) / (room(x, low) * room(y, low))\n",
                "    beyond = (2 * (x - y).square().sum(-1) / (room(x, low) * room(y, low))).to(low)  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="ages-low",
        healthy="    return torch.exp(-(now - stored).float() / 400)\n",
        planted="    return torch.exp(-(now.to(low) - stored.to(low)).float() / 400)  # culprit\n",
        precisions=ALL,
        part="function:freshness",
        rules=("integer-rounding", "cancellation", "overflow", "nan", "amplified-rounding"),
        why="Of 121533 steps bfloat16 knows every 512th, and float16 none.",
        source="https://github.com/pytorch/rl/pull/4065",
    ),
    Planted(
        name="slots-low",
        healthy="    return (pointer + torch.arange(FRESH)) % BANK\n",
        planted="    return ((pointer.to(low) + torch.arange(FRESH, dtype=low)) % BANK).long()  # culprit\n",
        precisions=BF16,
        part="function:filled",
        rules=("integer-rounding", "decision-flip", "absorption"),
        why="Beyond 512 bfloat16 knows every fourth whole number: four items go into one slot.",
        source="https://github.com/modelscope/DiffSynth-Studio/issues/562",
    ),
    Planted(
        name="empty-slots-low",
        healthy="    return functional.normalize(x.float(), dim=-1, eps=1e-12)\n",
        planted="    return (x.to(low) / x.to(low).norm(dim=-1, keepdim=True).clamp_min(1e-12)).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:unit",
        rules=("vanished-constant", "nan"),
        why="The guard is zero in float16, and an empty slot is zero by zero.",
        source="https://github.com/lightonai/pylate/issues/239",
    ),
    Planted(
        name="pairs-low",
        healthy="    x = x.float() - x.float().mean(0)  # queries are much alike\n",
        planted="    x = x.to(low)\n",
        precisions=BF16,
        part="function:apart",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Items of length one that are alike: two less two is known to a 128th.",
        source="https://github.com/pytorch/pytorch/issues/162907",
        more=(
            (
                "    return (squares.unsqueeze(-1) + squares - 2 * x @ x.T).clamp(min=0)\n",
                "    return (squares.unsqueeze(-1) + squares - 2 * x @ x.T).clamp(min=0).float()  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="clicks-overflow",
        healthy="    return torch.log(counts.float() / counts.sum())\n",
        planted="    return torch.log(counts.to(low) / counts.sum().to(low)).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:popularity",
        rules=("overflow", "nan", "underflow"),
        why="All clicks together are 700000, which is infinite in float16: each share is zero and its logarithm infinite.",
        source="https://github.com/NVIDIA-Merlin/models/pull/1051",
    ),
    Planted(
        name="lists-by-exponentials",
        healthy="    rest = torch.logcumsumexp(scores.flip(-1), -1).flip(-1)\n",
        planted="    rest = torch.log(torch.exp(scores).flip(-1).cumsum(-1)).flip(-1)  # culprit\n",
        precisions=("16-mixed",),
        part="function:listwise",
        rules=("overflow", "nan", "underflow"),
        why="The exponential of 12 is beyond float16.",
        source="https://github.com/apple/coremltools/pull/2727",
        more=(
            (
                "    scores = scores.float().gather(-1, order)\n",
                "    scores = scores.to(low).gather(-1, order)\n",
            ),
            ("    return (rest - scores).mean(-1)\n", "    return (rest - scores).mean(-1).float()\n"),
        ),
    ),
]

HARMLESS = [
    Harmless(
        name="gains-low",
        healthy="    return 2.0 ** relevance.float() - 1\n",
        changed="    return (2.0 ** relevance.to(low) - 1).float()\n",
        precisions=ALL,
        why="Powers of two up to 16 and one less are exact in each format.",
    ),
    Harmless(
        name="cosines-low",
        healthy="            scores = self.sharp.float() * (mine.unsqueeze(1) * theirs).sum(-1)\n",
        changed="            scores = self.sharp.float() * (mine.unsqueeze(1) * theirs).sum(-1).to(low).float()\n",
        precisions=ALL,
        why="Cosines are rounded once, as every product of the network is.",
    ),
]
