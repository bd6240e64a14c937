"""Bugs of a topic model: logarithms that differ little, chances of rare words, factorials, and counts of documents."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
HALF = ("16-mixed",)
ALL = ("bf16-mixed", "16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = ("integer-rounding", "decision-flip", "absorption", *DRIFTS)
INFINITE = ("overflow", "nan")
LENGTHS = "    return counts.sum(1)\n"
LOGS = "    logs = alpha.log()\n"
SPREAD = "    spread = torch.expm1(grown) - grown\n"
UNIFORM = "    uniform = (ticks.float() + 0.5) / TICKS\n    return scale * (-torch.log1p(-uniform)).pow(1 / shape)\n"
CHANCE = "    chance = (theta[:, :, None] * beta).sum(1)\n"
GUARD = "    return (chance + 1e-12).log()\n"
PERPLEXITY = "    return (-(counts * logs).sum(1) / lengths(counts)).exp()\n"
ORDERS = "    orders = torch.lgamma(number + 1) - torch.lgamma(number + total)\n"
ONE = "    one, both = (seen.float() + 1) / CORPUS, (together.float() + 1) / CORPUS\n"
RATIO = "    ratio = both / (one[:, :, None] * one[:, None, :])\n"
WAY = "    way = F.normalize(beta.sqrt(), dim=1)\n    return 0.5 * (way[:, None] - way[None]).square().sum(-1)\n"
STRENGTH = "    return -torch.expm1(-done.float() / WARM)\n"
BAGS = "    return counts.float() / lengths(counts)[:, None].float()\n"
FREQUENCY = "        beta = (self.logits.float() + self.frequency.float().log()).softmax(1)\n"

BUGS = [
    Planted(
        name="logarithms-low",
        healthy=LOGS,
        planted="    logs = alpha.log().bfloat16()  # culprit\n",
        precisions=BF16,
        part="function:prior",
        rules=DRIFTS,
        why="Logarithms of 47 to 52 are all within a tenth of four, which bfloat16 knows to a sixty-fourth.",
        source="https://github.com/verl-project/verl/issues/6280",
    ),
    Planted(
        name="ratio-low",
        healthy=RATIO,
        planted="    ratio = (both / (one[:, :, None] * one[:, None, :])).to(torch.bfloat16)  # culprit\n    ratio = ratio.float()\n",
        precisions=BF16,
        part="function:coherence",
        rules=DRIFTS,
        why="Words that have little to do with each other are together as often as by chance: the ratio is one but for hundredths.",
        source="https://github.com/radis/radis/pull/652",
    ),
    Planted(
        name="documents-half",
        healthy=ONE,
        planted="    seen, together = seen.half(), together.half()  # culprit\n"
        "    one, both = ((seen + 1) / CORPUS).float(), ((together + 1) / CORPUS).float()  # culprit\n",
        precisions=HALF,
        part="function:coherence",
        rules=(*INFINITE, "integer-rounding"),
        why="A hundred thousand documents are more than float16 has numbers for.",
        source="https://github.com/apple/coremltools/pull/2727",
    ),
    Planted(
        name="grown-by-exponential-low",
        healthy=SPREAD,
        planted="    ratio = grown.exp().bfloat16()  # culprit\n    spread = ratio.float() - 1 - grown\n",
        precisions=BF16,
        part="function:divergence",
        rules=DRIFTS,
        why="What is left of the ratio is half of the square of a tenth, and near one bfloat16 knows a 128th.",
        source="https://github.com/NVIDIA/apex/issues/812",
    ),
    Planted(
        name="uniform-low",
        healthy=UNIFORM,
        planted="    uniform = (ticks.float() + 0.5) / TICKS\n    left = (1 - uniform).bfloat16()  # culprit\n"
        "    return scale * (-left.float().log() + 1e-6).pow(1 / shape)\n",
        precisions=BF16,
        part="function:weibull",
        rules=(*DRIFTS, "vanished-constant"),
        why="One less a two-hundredth is rounded to a 256th.",
        source="https://github.com/ml-explore/mlx/pull/1280",
    ),
    Planted(
        name="rare-words-vanish",
        healthy=CHANCE,
        planted="    chance = (theta[:, :, None] * beta).sum(1).half()  # culprit\n",
        more=((GUARD, GUARD.rstrip() + "  # culprit\n"),),
        precisions=HALF,
        part="function:log_chances",
        rules=("underflow", "vanished-constant", *INFINITE),
        why="A rare word has a chance of a billionth, which float16 does not hold, nor what is added to it.",
        source="https://github.com/NVIDIA/apex/issues/379",
    ),
    Planted(
        name="perplexity-half",
        healthy=PERPLEXITY,
        planted="    cost = (-(counts * logs).sum(1) / lengths(counts)).exp().half()  # culprit\n    return cost.float()\n",
        precisions=HALF,
        part="function:perplexity",
        rules=INFINITE,
        why="A document of rare words has a perplexity of hundred thousands.",
        source="https://github.com/huggingface/transformers/pull/11855",
    ),
    Planted(
        name="gammas-low",
        healthy=ORDERS,
        planted="    ordered = torch.lgamma(number + 1).bfloat16()  # culprit\n    orders = ordered.float() - torch.lgamma(number + total)\n",
        precisions=BF16,
        part="function:burst",
        rules=(*WHOLE,),
        why="The logarithm of a long document's factorial is nine thousand, which is rounded to 64, and another of that size is taken off.",
        source="https://github.com/scverse/scvi-tools/issues/2965",
    ),
    Planted(
        name="alike-by-product",
        healthy=WAY,
        planted="    way = F.normalize(beta.sqrt(), dim=1)\n    return 1 - (way @ way.T).float()  # culprit\n",
        precisions=("bf16-mixed", "16-mixed"),
        part="function:apart",
        rules=DRIFTS,
        why="Autocast computes the product low, and topics that begin alike have cosines of 0.998.",
        source="https://github.com/lucidrains/vector-quantize-pytorch/issues/106",
    ),
    Planted(
        name="strength-low",
        healthy=STRENGTH,
        planted="    left = torch.exp(-done.float() / WARM).bfloat16()  # culprit\n    return 1 - left.float()\n",
        precisions=BF16,
        part="function:strength",
        rules=(*DRIFTS, "vanished-constant", "absorption"),
        why="An exponential of a thousandth is one in bfloat16.",
        source="https://github.com/NVlabs/Sana/pull/424",
    ),
    Planted(
        name="length-low",
        healthy=LENGTHS,
        planted="    total = torch.zeros(len(counts), dtype=torch.bfloat16)  # culprit\n    for word in counts.T:\n"
        "        total = total + word  # culprit\n"
        "    return total.float()\n",
        precisions=BF16,
        part="function:lengths",
        rules=WHOLE,
        why="Beyond 256 a word that is used once or twice changes no sum.",
        source="https://github.com/NVIDIA/cccl/issues/10976",
    ),
]

HARMLESS = [
    Harmless(
        name="bag-rounded",
        healthy=BAGS,
        changed="    return (counts.float() / lengths(counts)[:, None].float()).bfloat16().float()\n",
        precisions=BF16,
        why="The first layer rounds the logarithm of a share as well.",
    ),
    Harmless(
        name="frequency-rounded",
        healthy=FREQUENCY,
        changed="        beta = (self.logits.float() + self.frequency.float().bfloat16().float().log()).softmax(1)\n",
        precisions=("bf16-mixed",),
        why="A frequency that is off by a 512th moves each chance by as much.",
    ),
    Harmless(
        name="first-word-taken-off",
        healthy=CHANCE,
        changed="    theta = theta.half().float()\n    chance = (theta[:, :, None] * beta).sum(1)\n",
        precisions=HALF,
        why="A topic's share of a document is a twelfth, which float16 knows to a part in two thousand.",
    ),
]
