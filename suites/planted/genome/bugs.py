"""Bugs of a genome's model: places of a hundred million, running counts, factors near one, logarithms of densities, counts of reads."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="places-low",
        healthy="    return (genes - starts).float() / 1000\n",
        planted="    return (genes.to(torch.bfloat16) - starts.to(torch.bfloat16)).float() / 1000  # culprit\n",
        precisions=BF16,
        part="function:gene_offsets",
        rules=("integer-rounding", "cancellation", "amplified-rounding", "local-drift"),
        why="Of a hundred million letters bfloat16 knows every half million.",
        source="https://github.com/huggingface/transformers/issues/28685",
    ),
    Planted(
        name="running-count-low",
        healthy="    running = strong.cumsum(-1)\n",
        planted="    running = strong.cumsum(-1, dtype=low)  # culprit\n",
        precisions=BF16,
        part="function:gc_content",
        rules=("integer-rounding", "absorption", "local-drift", "cancellation", "accumulated-drift"),
        why="bfloat16 counts to 256.",
        source="https://github.com/pytorch/pytorch/pull/133085",
    ),
    Planted(
        name="running-count-stored-low",
        healthy="    running = strong.cumsum(-1)\n",
        planted="    running = strong.cumsum(-1).to(low)  # culprit\n",
        precisions=BF16,
        part="function:gc_content",
        rules=("integer-rounding", "cancellation", "local-drift", "accumulated-drift"),
        why="Counts up to 700 are rounded to fours, and subtracted.",
        source="https://github.com/huggingface/transformers/issues/28685",
    ),
    Planted(
        name="kept-low",
        healthy="    kept = torch.exp(-math.log(2) / half_lives)\n",
        planted="    kept = torch.exp(-math.log(2) / half_lives).to(low).float()  # culprit\n",
        precisions=BF16,
        part="function:decays",
        rules=("amplified-rounding", "accumulated-drift", "local-drift", "vanished-constant"),
        why="What is kept of one bin with a half-life of 256 is 0.9973, which is 0.996 in bfloat16, and is taken to the power of the distance.",
        source="https://github.com/fla-org/flash-linear-attention/issues/181",
    ),
    Planted(
        name="log-densities-low",
        healthy="    density = (concentration - 1) * x.log() - rate * x\n",
        planted="    density = (((concentration - 1) * x.log()).to(low) - (rate * x).to(low)).float()  # culprit\n",
        precisions=ALL,
        part="function:gamma_densities",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Numbers of two hundred are rounded to one, and the exponential of their difference is taken.",
        source="https://github.com/VincentStimper/normalizing-flows/pull/52",
    ),
    Planted(
        name="rates-overflow",
        healthy="    return logs.float().exp()\n",
        planted="    return (logs * 2).to(torch.float16).exp().float().sqrt()  # culprit\n",
        precisions=("16-mixed",),
        part="function:rates",
        rules=("overflow",),
        why="The square of a rate of 900 is beyond float16.",
        source="https://github.com/apple/coremltools/pull/2727",
    ),
    Planted(
        name="likelihood-low",
        healthy="    least = counts - torch.xlogy(counts, counts)\n    return (rate - counts * rate.log()) - least\n",
        planted="    least = (counts - torch.xlogy(counts, counts)).to(low)  # culprit\n"
        "    return ((rate - counts * rate.log()).to(low) - least).float()  # culprit\n",
        precisions=BF16,
        part="function:poisson",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Costs of seven thousand are rounded to 32, and what a count costs more than at least is some tens.",
        source="https://github.com/esheldon/smatch/pull/21",
    ),
    Planted(
        name="total-overflows",
        healthy="    return counts * (1e6 / counts.sum(1, keepdim=True))\n",
        planted="    total = counts.half().sum(1, keepdim=True)  # culprit\n    return counts * (1e6 / total.float())\n",
        precisions=("16-mixed",),
        part="function:per_million",
        rules=("overflow",),
        why="A hundred bins with a thousand reads each are beyond float16.",
        source="https://github.com/adobe-research/convmelspec/pull/3",
    ),
    Planted(
        name="correlation-by-moments",
        healthy="    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)\n"
        "    return (a * b).sum(1) / (a.square().sum(1) * b.square().sum(1)).sqrt()\n",
        planted="    a, b = (a / 1024).to(low), (b / 1024).to(low)\n"
        "    both = (a * b).mean(1) - a.mean(1) * b.mean(1)  # culprit\n"
        "    va, vb = a.square().mean(1) - a.mean(1).square(), b.square().mean(1) - b.mean(1).square()  # culprit\n"
        "    return both.float() / (va.float() * vb.float()).clamp_min(1e-12).sqrt()\n",
        precisions=BF16,
        part="function:correlation",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Means of squares less squares of means lose the digits that both have in common.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
]

HARMLESS = [
    Harmless(
        name="offsets-rounded",
        healthy="    return (genes - starts).float() / 1000\n",
        changed="    return ((genes - starts).float() / 1000).to(low).float()\n",
        precisions=ALL,
        why="Integers are subtracted, and the difference is rounded once.",
    ),
    Harmless(
        name="share-rounded",
        healthy="    return ((running - before).float() / window)[:, ::POOL]\n",
        changed="    return ((running - before).to(low) / window).float()[:, ::POOL]\n",
        precisions=ALL,
        why="Counts up to 32 are held by either format, and are divided by a power of two.",
    ),
    Harmless(
        name="decays-rounded",
        healthy="    return kept ** distances[..., None]\n",
        changed="    return (kept ** distances[..., None]).to(low).float()\n",
        precisions=ALL,
        why="Each power is rounded once.",
    ),
    Harmless(
        name="exponents-rounded-late",
        healthy="    return (density - peak).exp()\n",
        changed="    return (density - peak).exp().to(low)\n",
        precisions=ALL,
        why="Each density is rounded once.",
    ),
    Harmless(
        name="half-lives-low",
        healthy="    half_lives = torch.tensor([4.0, 32.0, 256.0, 2048.0])\n",
        changed="    half_lives = torch.tensor([4.0, 32.0, 256.0, 2048.0]).to(low).float()\n",
        precisions=ALL,
        why="Powers of two.",
    ),
    Harmless(
        name="distances-low",
        healthy="    distances = (places[:, None] - places).abs().float()\n",
        changed="    distances = (places[:, None] - places).abs().to(low).float()\n",
        precisions=ALL,
        why="Whole numbers up to 95.",
    ),
    Harmless(
        name="costs-rounded",
        healthy="    return (rate - counts * rate.log()) - least\n",
        changed="    return ((rate - counts * rate.log()) - least).to(low).float()\n",
        precisions=("bf16-mixed", "bf16-true"),
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="shares-in-thousands",
        healthy="    return counts * (1e6 / counts.sum(1, keepdim=True))\n",
        changed="    total = (counts / 1024).to(low).float().sum(1, keepdim=True)\n    return counts * (1e6 / 1024 / total)\n",
        precisions=("16-mixed",),
        why="Counts of thousands are rounded once each, and added in float32.",
    ),
]
