"""Bugs of a tree of species: ages beside the years between them, chances of a change on a short branch, and likelihoods of many leaves."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
LENGTHS = "    return (born - died).float() / 1000\n"
OTHER = "    return -torch.expm1(-4 * length.float() / 3) / 4\n"
APART = "    return -0.75 * torch.log1p(-4 * differing.float() / (3 * compared.float()))\n"
PRUNED = "    up = torch.logsumexp(below[:, :, :, None] + matrix[:, :, None], -1)\n    return up.sum(1)\n"
WAITS = "    return (ages[1:] - ages[:-1]).float() / 1000\n"
RATES = "    return changed.float() / years.float() / 30_000\n"
BASES = "    return F.one_hot(sequences, BASES).sum(1).float() / sequences.shape[1]\n"

BUGS = [
    Planted(
        name="lengths-low",
        healthy=LENGTHS,
        planted="    born, died = born.bfloat16() / 1000, died.bfloat16() / 1000  # culprit\n    return (born - died).float()  # culprit\n",
        precisions=BF16,
        part="function:lengths",
        rules=WHOLE,
        why="20 million years are known to 60 000, and a branch has as many.",
        source="https://github.com/biopython/biopython/issues/4777",
    ),
    Planted(
        name="other-by-one-less-low",
        healthy=OTHER,
        planted="    return (0.25 - torch.exp(-4 * length.float() / 3).bfloat16() / 4).float()  # culprit\n",
        precisions=BF16,
        part="function:other",
        rules=DRIFTS,
        why="On a short branch nearly all stays, and what does not is the difference.",
        source="https://github.com/xflouris/libpll/issues/129",
    ),
    Planted(
        name="apart-by-logarithm-low",
        healthy=APART,
        planted="    share = differing.bfloat16() / compared.bfloat16()\n"
        "    return -0.75 * torch.log(1 - 4 * share / 3).float()  # culprit\n",
        precisions=BF16,
        part="function:apart",
        rules=DRIFTS,
        why="Of a share of a fiftieth one less it has a digit.",
        source="https://github.com/pytorch/pytorch/issues/61098",
    ),
    Planted(
        name="likelihoods-underflow",
        healthy=PRUNED,
        planted="    up = below.exp().half()[:, :, :, None] * matrix.exp().half()[:, :, None]  # culprit\n"
        "    return up.sum(-1).prod(1).float().log()  # culprit\n",
        precisions=("16-mixed",),
        part="function:pruned",
        rules=("underflow", "nan", "overflow", *DRIFTS),
        why="The product of many leaves is less than float16 has, and its logarithm is infinite.",
        source="https://github.com/neherlab/treetime/issues/39",
    ),
    Planted(
        name="rates-half",
        healthy=RATES,
        planted="    return (changed.half() / years.half() / 30_000).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:rates",
        rules=("underflow", *DRIFTS),
        why="A millionth is known to a sixteen-millionth in float16.",
        source="https://github.com/CshlSiepelLab/phast/pull/87",
    ),
]

HARMLESS = [
    Harmless(
        name="lengths-rounded",
        healthy=LENGTHS,
        changed="    return ((born - died).float() / 1000).bfloat16().float()\n",
        precisions=BF16,
        why="What is rounded is the difference.",
    ),
    Harmless(
        name="other-of-rounded-length",
        healthy=OTHER,
        changed="    return -torch.expm1(-4 * length.bfloat16() / 3) / 4\n",
        precisions=BF16,
        why="The exponential less one is as exact as the length.",
    ),
    Harmless(
        name="share-rounded",
        healthy=BASES,
        changed="    return (F.one_hot(sequences, BASES).sum(1).float() / sequences.shape[1]).half()\n",
        precisions=("16-mixed",),
        why="A share is rounded once.",
    ),
    Harmless(
        name="waits-rounded",
        healthy=WAITS,
        changed="    return (ages[1:] - ages[:-1]).bfloat16() / 1000\n",
        precisions=BF16,
        why="What is rounded is a difference of whole numbers.",
    ),
]
