"""Bugs of slots: a slot without pixels whose guard vanishes, variances and speeds as differences of rounded numbers, too many pairs."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="guard-vanishes",
        healthy="    return taken / (taken.sum(-1, keepdim=True) + 1e-8)\n",
        planted="    taken = taken.to(low)\n    return (taken / (taken.sum(-1, keepdim=True) + 1e-8)).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:competed",
        rules=("vanished-constant", "nan"),
        why="A slot that is switched off takes nothing, and a guard of 1e-8 is zero in float16.",
        source="https://github.com/google-research/google-research/blob/master/slot_attention/model.py",
    ),
    Planted(
        name="speeds-low",
        healthy="    return SIZE * (now - before)\n",
        planted="    return (SIZE * (now.to(low) - before.to(low))).float()  # culprit\n",
        precisions=ALL,
        part="function:speeds",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="A slot moves by a thousandth of the picture, and of a half bfloat16 knows a 256th.",
        source="https://github.com/princeton-vl/RAFT/issues/54",
    ),
    Planted(
        name="sizes-by-moments",
        healthy="    apart = places - middle.unsqueeze(2)\n"
        "    return (masks.float().unsqueeze(-1) * apart.square()).sum(2) / masks.float().sum(-1, keepdim=True)\n",
        planted="    total = masks.sum(-1, keepdim=True)\n    second = ((masks @ (2 + places).square()) / total).to(low)  # culprit\n"
        "    return (second - (2 + middle).to(low).square()).float()  # culprit\n",
        precisions=ALL,
        part="function:sizes",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Squares of two and a half less their mean's square: six less six is known to a 32nd, and the variance is a twelfth.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
    Planted(
        name="areas-low",
        healthy="    return masks.float().sum(-1)\n",
        planted="    total = torch.zeros(masks.shape[:-1], dtype=low)\n    for each in masks.unbind(-1):\n"
        "        total = total + each.to(low)  # culprit\n    return total.float()\n",
        precisions=BF16,
        part="function:areas",
        rules=("absorption", "accumulated-drift", "local-drift"),
        why="A running sum of 256 shares of a quarter is rounded to a quarter and a half.",
        source="https://github.com/pytorch/pytorch/issues/61098",
    ),
    Planted(
        name="pairs-overflow",
        healthy="    counts = counts.float()\n    both = (counts * (counts - 1) / 2).sum((-1, -2))\n",
        planted="    counts = 4 * counts.to(low)\n    both = (counts * (counts - 1) / 2).sum((-1, -2))  # culprit\n",
        precisions=("16-mixed",),
        part="function:agreement",
        rules=("overflow", "nan"),
        why="A thousand counted subpixels have half a million pairs, which are infinite in float16.",
        source="https://github.com/pytorch/pytorch/issues/43211",
        more=(
            (
                "    mine, theirs = ((each * (each - 1) / 2).sum(-1) for each in (counts.sum(-1), counts.sum(-2)))\n",
                "    mine, theirs = ((each * (each - 1) / 2).sum(-1) for each in (counts.sum(-1), counts.sum(-2)))  # culprit\n",
            ),
        ),
    ),
]

HARMLESS = [
    Harmless(
        name="grid-low",
        healthy="    along = (torch.arange(SIZE).float() + 0.5) / SIZE\n",
        changed="    along = ((torch.arange(SIZE, dtype=low) + 0.5) / SIZE).float()\n",
        precisions=ALL,
        why="Odd 32nds are exact in each format.",
    ),
    Harmless(
        name="levels-low",
        healthy="            pictures = levels.float() / 255\n",
        changed="            pictures = levels.to(low).float() / 255\n",
        precisions=ALL,
        why="Levels are whole numbers up to 255.",
    ),
    Harmless(
        name="guard-in-bfloat16",
        healthy="    return taken / (taken.sum(-1, keepdim=True) + 1e-8)\n",
        changed="    taken = taken.to(low).float()\n    return taken / (taken.sum(-1, keepdim=True).to(low).float() + 1e-8)\n",
        precisions=("bf16-mixed",),
        why="Shares are rounded once, and bfloat16 holds a guard of 1e-8; a slot that is switched off gets noughts.",
    ),
    Harmless(
        name="masked-to-the-end-of-the-range",
        healthy="    taken = torch.softmax(scores.float().masked_fill(~there.unsqueeze(-1), -1e4), 1) * there.unsqueeze(-1)\n",
        changed="    taken = torch.softmax(scores.masked_fill(~there.unsqueeze(-1), torch.finfo(low).min).float(), 1) * there.unsqueeze(-1)\n",
        precisions=ALL,
        why="The lowest number of the format is finite, and each pixel has three slots that are on.",
    ),
    Harmless(
        name="masks-rounded",
        healthy="    return torch.softmax(4 * logits.float(), 1)\n",
        changed="    return torch.softmax(4 * logits.float(), 1).to(low).float()\n",
        precisions=("bf16-mixed", "bf16-true"),
        why="Shares are rounded once, after a layer that rounds its logits by more; areas and centres are means of 256 of them.",
    ),
    Harmless(
        name="table-low",
        healthy="            mine = functional.one_hot(masks.argmax(1), SLOTS).float()\n",
        changed="            mine = functional.one_hot(masks.argmax(1), SLOTS).to(low).float()\n",
        precisions=ALL,
        why="Noughts and ones.",
    ),
    Harmless(
        name="counts-low",
        healthy="    counts = counts.float()\n",
        changed="    counts = counts.to(low).float()\n",
        precisions=ALL,
        why="Counts of a picture of 256 pixels are whole numbers up to 256, and pairs are counted in float32.",
    ),
    Harmless(
        name="areas-of-one-sum-low",
        healthy="    return masks.float().sum(-1)\n",
        changed="    return masks.to(low).sum(-1).float()\n",
        precisions=ALL,
        why="One sum over 256 shares: torch adds them up in float32 and rounds once.",
    ),
    Harmless(
        name="areas-summed-low",
        healthy="    return masks.float().sum(-1)\n",
        changed="    return masks.unflatten(-1, (SIZE, SIZE)).sum(-1).to(low).float().sum(-1)\n",
        precisions=ALL,
        why="Sums of rows are rounded once and by themselves, and 16 of them are added up in float32.",
    ),
    Harmless(
        name="small-share-low",
        healthy="    return torch.logsumexp(torch.log(masks + 1e-6) - apart, 1)\n",
        changed="    return torch.logsumexp(torch.log(masks.to(low).float() + 1e-6) - apart.to(torch.bfloat16).float(), 1)\n",
        precisions=BF16,
        why="A share and a distance of the nearest layer are rounded once, and the mean is over 256 pixels.",
    ),
    Harmless(
        name="average-that-is-thrown-away",
        healthy="            score = agreement(table.detach(), low)\n",
        changed="            score = agreement(table.detach(), low)\n            tiny = masks.detach().to(low)\n"
        "            empty = int((tiny.sum(-1).square() - tiny.square().sum(-1) < 0).sum())\n            assert empty <= ROWS * SLOTS\n",
        precisions=BF16,
        why="A count for a log, of which only is asked that it is no more than there are slots.",
    ),
]
