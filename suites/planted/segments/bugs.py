"""Bugs of segmentation: sums over all pixels, neighbours of a chance near one, a spread as a difference of squares."""

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
DICE = "    chances = logits.float().softmax(1)\n    truth"
EDGES = "    ground = chances[:, 0].float()\n    return (ground[:, 1:] - ground[:, :-1]).abs().mean((1, 2))\n"
SPREAD = "    middle = (weight * rows).sum(-1, keepdim=True)\n    return (weight * (rows - middle).square()).sum(-1)\n"
RARITY = "    return 1 / torch.log(1.02 + shares)\n"

BUGS = [
    Planted(
        name="dice-low",
        healthy=DICE,
        planted="    chances = logits.softmax(1)  # culprit\n    truth",
        more=(
            ("    both = (chances * truth).sum((0, 2, 3))\n", "    both = (chances * truth).sum((0, 2, 3))  # culprit\n"),
            ("    all_ = chances.sum((0, 2, 3)) + truth.sum((0, 2, 3))\n", "    all_ = chances.sum((0, 2, 3)) + truth.sum((0, 2, 3))  # culprit\n"),
        ),
        precisions=("16-mixed",),
        part="function:dice",
        rules=("overflow", "nan"),
        why="Eighty thousand pixels are more than float16 can count.",
        source="https://github.com/qubvel-org/segmentation_models.pytorch/issues/463",
    ),
    Planted(
        name="edges-low",
        healthy=EDGES,
        planted="    ground = chances[:, 0].to(torch.bfloat16)  # culprit\n"
        "    return (ground[:, 1:] - ground[:, :-1]).abs().float().mean((1, 2))  # culprit\n",
        precisions=BF16,
        part="function:edges",
        rules=DRIFTS,
        why="The background is nearly certain everywhere, and bfloat16 knows a chance near one to a 512th.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
    Planted(
        name="reach-by-squares",
        healthy=SPREAD,
        planted="    weight, rows = weight.to(torch.bfloat16), rows.to(torch.bfloat16)  # culprit\n"
        "    return ((weight * rows.square()).sum(-1) - (weight * rows).sum(-1).square()).float()  # culprit\n",
        precisions=BF16,
        part="function:reach",
        rules=DRIFTS,
        why="A spread of 20 rows around the 168th is a twentieth of the mean square.",
        source="https://github.com/Project-MONAI/MONAI/issues/1868",
    ),
    Planted(
        name="pixels-overflow",
        healthy="    return torch.bincount(labels.flatten(), minlength=CLASSES).float() / labels.numel()\n",
        planted="    return F.one_hot(labels, CLASSES).half().sum((0, 1, 2)).float() / labels.numel()  # culprit\n",
        precisions=("16-mixed",),
        part="function:shares",
        rules=("overflow", "nan"),
        why="More pixels of the background than float16 has numbers for.",
        source="https://github.com/ultralytics/ultralytics/pull/24554",
    ),
]

HARMLESS = [
    Harmless(
        name="truth-low",
        healthy="    truth = F.one_hot(labels, CLASSES).movedim(-1, 1).to(chances.dtype)\n",
        changed="    truth = F.one_hot(labels, CLASSES).movedim(-1, 1).to(logits.dtype).float()\n",
        precisions=ALL,
        why="Noughts and ones are exact.",
    ),
    Harmless(
        name="chances-rounded",
        healthy=DICE,
        changed="    chances = logits.float().softmax(1).to(logits.dtype).float()\n    truth",
        precisions=ALL,
        why="Each chance is rounded once, and they are added up in float32.",
    ),
    Harmless(
        name="rows-low",
        healthy="    return torch.arange(FIRST, FIRST + SIZE).float()\n",
        changed="    return torch.arange(FIRST, FIRST + SIZE).to(dtype).float()\n",
        precisions=ALL,
        why="Every row up to 239 is exact in each format.",
    ),
    Harmless(
        name="edges-rounded-late",
        healthy="    return (ground[:, 1:] - ground[:, :-1]).abs().mean((1, 2))\n",
        changed="    return (ground[:, 1:] - ground[:, :-1]).abs().to(torch.bfloat16).float().mean((1, 2))\n",
        precisions=BF16,
        why="Neighbours are subtracted in float32, and each difference is rounded once.",
    ),
    Harmless(
        name="reach-rounded-late",
        healthy="    return (weight * (rows - middle).square()).sum(-1)\n",
        changed="    return (weight * (rows - middle).to(torch.bfloat16).float().square()).sum(-1)\n",
        precisions=BF16,
        why="The middle is taken off in float32, and each distance is rounded once.",
    ),
    Harmless(
        name="rarity-of-rounded-shares",
        healthy=RARITY,
        changed="    return 1 / torch.log(1.02 + shares.bfloat16().float())\n",
        precisions=BF16,
        why="A share of a hundredth is known to a 512th of it, beside 1.02.",
    ),
]
