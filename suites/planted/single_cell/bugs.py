"""Bugs of a model of single cells: logarithms of nearly the same depth, gamma functions of large numbers, and one less what is nearly one."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
INFINITE = ("overflow", "nan")
TOTAL = "    total = counts.sum(-1).float()\n"
DEEP = "    return deep - deep.mean()\n"
SHARED = "    return (counts.float() * 10_000 / total).log1p()\n"
VARIANCE = "    variance = (value - mean).square().mean(0)\n"
PATHS = "    paths = torch.lgamma(counts + rate) - torch.lgamma(rate) - torch.lgamma(counts + 1)\n"
LIKELY = "    return paths + rate * (rate / (rate + mean)).log() + counts * (mean / (rate + mean)).log()\n"
MOVING = "    return unspliced.float() - ratio * spliced.float()\n"
UNIT = "    unit = F.normalize(centred, dim=-1)\n"
APART = "    return 1 - unit @ unit.T\n"
GAP = "    return F.pad((starts[1:] - starts[:-1]).float() / 1000, (1, 0))\n"
TOLD = "    return torch.tensor(float(GENES)).log2() - entropy\n"
KEPT = "    return torch.log1p(-chance)\n"

BUGS = [
    Planted(
        name="totals-overflow",
        healthy=TOTAL,
        planted="    total = counts.half().sum(-1).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:depth",
        rules=INFINITE,
        why="A cell has eighty thousand molecules, and float16 ends at 65504.",
        source="https://github.com/openpipelines-bio/openpipeline/pull/852",
    ),
    Planted(
        name="depths-low",
        healthy=DEEP,
        planted="    deep = deep.bfloat16()  # culprit\n    return (deep - deep.mean()).float()  # culprit\n",
        precisions=BF16,
        part="function:depth",
        rules=DRIFTS,
        why="The logarithm of a total is eleven, rounded to a sixteenth, and cells differ by a few hundredths.",
        source="https://github.com/amazon-science/chronos-forecasting/issues/193",
    ),
    Planted(
        name="depths-half",
        healthy=DEEP,
        planted="    deep = deep.half()  # culprit\n    return (deep - deep.mean()).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:depth",
        rules=DRIFTS,
        why="The logarithm of a total is eleven, rounded to a 128th, and cells differ by a few hundredths.",
        source="https://github.com/amazon-science/chronos-forecasting/issues/193",
    ),
    Planted(
        name="ten-thousand-overflow",
        healthy=SHARED,
        planted="    return (counts.half() * 10_000 / total).float().log1p()  # culprit\n",
        precisions=("16-mixed",),
        part="function:normalised",
        rules=INFINITE,
        why="Five hundred molecules times ten thousand are infinite in float16, before they are divided.",
        source="https://github.com/scverse/muon/issues/130",
    ),
    Planted(
        name="variance-by-squares",
        healthy=VARIANCE,
        planted="    low = value.bfloat16()  # culprit\n    variance = (low.square().mean(0) - low.mean(0).square()).float()  # culprit\n",
        precisions=BF16,
        part="function:overdispersion",
        rules=DRIFTS,
        why="The square of a mean of five hundred is rounded to a thousand, as much as the variance is.",
        source="https://github.com/google/CommonLoopUtils/pull/380",
    ),
    Planted(
        name="gammas-low",
        healthy=PATHS,
        planted="    low, flat = counts.bfloat16(), rate.bfloat16()  # culprit\n"
        "    paths = (torch.lgamma(low + flat) - torch.lgamma(flat) - torch.lgamma(low + 1)).float()  # culprit\n",
        precisions=BF16,
        part="function:log_likelihood",
        rules=WHOLE,
        why="Logarithms of factorials are some thousands, rounded to sixteen, and nearly all of them is taken off again.",
        source="https://github.com/scverse/scvi-tools/issues/2965",
    ),
    Planted(
        name="shares-low-before-the-logarithm",
        healthy=LIKELY,
        planted="    share = (mean / (rate + mean)).bfloat16().float()  # culprit\n"
        "    return paths + rate * (rate / (rate + mean)).log() + counts * share.log()  # culprit\n",
        precisions=BF16,
        part="function:log_likelihood",
        rules=DRIFTS,
        why="A share of 0.9 is rounded to a 256th, and its logarithm is taken five hundred times.",
        source="https://github.com/pyro-ppl/numpyro/issues/563",
    ),
    Planted(
        name="spliced-low",
        healthy=MOVING,
        planted="    new, old = unspliced.bfloat16(), (ratio * spliced.float()).bfloat16()  # culprit\n    return (new - old).float()  # culprit\n",
        precisions=BF16,
        part="function:velocity",
        rules=WHOLE,
        why="A gene at rest has as many as it loses but for a hundredth, and both are rounded to a 256th.",
        source="https://github.com/dirac-institute/kbmod/pull/453",
    ),
    Planted(
        name="correlations-low",
        healthy=UNIT,
        planted="    unit = F.normalize(centred, dim=-1).to(LOW)  # culprit\n",
        more=(
            ("STEPS = 1\n", "STEPS = 1\nLOW = torch.bfloat16\n"),
            (APART, "    return (1 - unit @ unit.T).float()  # culprit\n"),
        ),
        precisions=BF16,
        part="function:likeness",
        rules=DRIFTS,
        why="Cells correlate by 0.98, which is rounded to a 256th and taken off one.",
        source="https://github.com/huggingface/sentence-transformers/pull/3892",
    ),
    Planted(
        name="starts-low",
        healthy=GAP,
        planted="    starts = starts.to(torch.bfloat16)  # culprit\n    return F.pad((starts[1:] - starts[:-1]).float() / 1000, (1, 0))  # culprit\n",
        precisions=BF16,
        part="function:between_genes",
        rules=WHOLE,
        why="Places on a chromosome of seven million letters are rounded to thirty thousand.",
        source="https://github.com/lumicks/pylake/pull/209",
    ),
    Planted(
        name="starts-overflow",
        healthy=GAP,
        planted="    starts = starts.half()  # culprit\n    return F.pad((starts[1:] - starts[:-1]).float() / 1000, (1, 0))  # culprit\n",
        precisions=("16-mixed",),
        part="function:between_genes",
        rules=INFINITE,
        why="Places on a chromosome are infinite in float16, and their differences no numbers.",
        source="https://github.com/facebookresearch/fairo/pull/537",
    ),
    Planted(
        name="entropies-low",
        healthy=TOLD,
        planted="    most = torch.tensor(float(GENES)).log2().bfloat16()  # culprit\n    return (most - entropy.bfloat16()).float()  # culprit\n",
        precisions=BF16,
        part="function:information",
        rules=DRIFTS,
        why="Seven bits are rounded to a 32nd, and what is asked for is a tenth.",
        source="https://github.com/google-deepmind/optax/issues/1020",
    ),
    Planted(
        name="kept-low",
        healthy=KEPT,
        planted="    return (1 - chance).bfloat16().log().float()  # culprit\n",
        precisions=BF16,
        part="function:dropouts",
        rules=DRIFTS,
        why="One less a thousandth is one in bfloat16.",
        source="https://github.com/jax-ml/jax/pull/1200",
    ),
    Planted(
        name="kept-half",
        healthy=KEPT,
        planted="    return (1 - chance).half().log().float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:dropouts",
        rules=DRIFTS,
        why="One less a thousandth is rounded to a 2048th.",
        source="https://github.com/jax-ml/jax/pull/1200",
    ),
]

HARMLESS = [
    Harmless(
        name="totals-low",
        healthy=TOTAL.replace("-1)", "-1, keepdim=True)"),
        changed="    total = counts.sum(-1, keepdim=True).bfloat16().float()\n",
        precisions=BF16,
        why="A total is rounded once, and what is divided by it is off by one rounding before a logarithm is taken.",
    ),
    Harmless(
        name="spreads-rounded",
        healthy="    return (variance - mean) / mean.square()\n",
        changed="    return ((variance - mean) / mean.square()).bfloat16().float()\n",
        precisions=BF16,
        why="What is left is rounded after the mean is off.",
    ),
    Harmless(
        name="velocities-rounded",
        healthy=MOVING,
        changed="    return (unspliced.float() - ratio * spliced.float()).half().float()\n",
        precisions=("16-mixed",),
        why="A difference is rounded after it has been taken.",
    ),
    Harmless(
        name="likeness-rounded",
        healthy=APART,
        changed="    return (1 - unit @ unit.T).bfloat16().float()\n",
        precisions=BF16,
        why="What is left of one less the correlation is rounded.",
    ),
    Harmless(
        name="lost-low",
        healthy="            kept = dropouts(lost.float() / 100_000)\n",
        changed="            kept = dropouts((lost.float() / 100_000).bfloat16().float())\n",
        precisions=BF16,
        why="A small chance is rounded before it is taken off one, not after.",
    ),
]
