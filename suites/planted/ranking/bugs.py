"""Bugs of ranking: counts of millions, chances near one, days since 1970, small corrections of large scores."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
MIXED = ("bf16-mixed", "16-mixed")
BF16 = ("bf16-mixed", "bf16-true")
DIFFERENCES = ("cancellation", "amplified-rounding", "local-drift", "accumulated-drift", "integer-rounding")
IDF = """    without = (COLLECTION - frequency).float() + 0.5
    return (without / (frequency.float() + 0.5)).log()
"""
EXAMINED = """    gone = torch.log1p(-stops.float()).cumsum(1)
    return (gone - torch.log1p(-stops.float())).exp()
"""
SHARES = """    scores = scores.float().masked_fill(~mask, -math.inf)
    return (scores - torch.logsumexp(scores, 1, keepdim=True)).masked_fill(~mask, 0)
"""

BUGS = [
    Planted(
        name="frequencies-low",
        healthy=IDF,
        planted="""    frequency = frequency.to(dtype)  # culprit
    return ((COLLECTION - frequency + 0.5) / (frequency + 0.5)).float().log()  # culprit
""",
        precisions=("bf16-mixed",),
        part="function:idf",
        rules=DIFFERENCES,
        why="Millions of documents are known to 16384 and more, and of a word in half of them the logarithm of the odds is near nought.",
        source="https://github.com/pytorch/pytorch/issues/61098",
    ),
    Planted(
        name="frequencies-overflow",
        healthy=IDF,
        planted="""    frequency = frequency.to(dtype)  # culprit
    return ((COLLECTION - frequency + 0.5) / (frequency + 0.5)).float().clamp_min(1e-9).log()
""",
        precisions=("16-mixed",),
        part="function:idf",
        rules=("overflow", "nan"),
        why="Millions of documents are infinite in float16.",
        source="https://github.com/business-science/pytimetk/issues/274",
    ),
    Planted(
        name="ages-low",
        healthy="    return (TODAY - published).float()\n",
        planted="    return (TODAY - published.to(dtype)).float()  # culprit\n",
        precisions=ALL,
        part="function:ages",
        rules=DIFFERENCES,
        why="A day of 19700 is known to 128 days in bfloat16, and to 16 in float16.",
        source="https://github.com/utensils/mold/issues/786",
    ),
    Planted(
        name="shows-overflow",
        healthy="    return clicks.float() / shows.float()\n",
        planted="    return clicks.to(dtype) / shows.to(dtype)  # culprit\n",
        precisions=("16-mixed",),
        part="function:click_rates",
        rules=("overflow", "nan"),
        why="Most documents were shown to more than 65504 people, and have no clicks then.",
        source="https://github.com/NVIDIA-Merlin/models/pull/1051",
    ),
    Planted(
        name="places-low",
        healthy="    return torch.arange(len(query)) - first[query]\n",
        planted="    return torch.arange(len(query), dtype=dtype) - first[query]  # culprit\n",
        precisions=BF16,
        part="function:places",
        rules=DIFFERENCES,
        why="There are 768 documents, and beyond 256 bfloat16 has every second number.",
        source="https://github.com/RosettaCommons/foundry/pull/236",
    ),
    Planted(
        name="examined-low",
        healthy=EXAMINED,
        planted="""    stays = 1 - stops.to(dtype)  # culprit
    return (stays.float().cumprod(1) / stays.float())
""",
        precisions=BF16,
        part="function:examined",
        rules=("absorption", *DIFFERENCES),
        why="A reader who stays with a chance of 0.999 stays for ever in bfloat16.",
        source="https://github.com/j-min/MoChA-pytorch/issues/4",
    ),
    Planted(
        name="gains-low",
        healthy="    return torch.expm1(grades.float() * math.log(2))\n",
        planted="    return 2 ** grades.to(dtype) - 1  # culprit\n",
        precisions=BF16,
        part="function:gains",
        rules=DIFFERENCES,
        why="Two to a hundredth is one and a 144th, which is one and a 128th in bfloat16.",
        source="https://github.com/kiudee/cs-ranking/issues/32",
    ),
    Planted(
        name="scores-low",
        healthy="    return prior.float() + correction.float()\n",
        planted="    return prior.to(dtype) + correction  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:margins",
        rules=DIFFERENCES,
        why="A score of 14 is known to a 16th, and the network moves it by a tenth.",
        source="https://github.com/amazon-science/chronos-forecasting/issues/193",
    ),
    Planted(
        name="exponentials-overflow",
        healthy=SHARES,
        planted="""    shares = scores.to(dtype).exp() * mask  # culprit
    return (shares / shares.sum(1, keepdim=True)).float().clamp_min(1e-9).log().masked_fill(~mask, 0)  # culprit
""",
        precisions=("16-mixed",),
        part="function:log_shares",
        rules=("overflow", "nan"),
        why="The exponential of 14 is a million, which float16 does not hold.",
        source="https://github.com/apple/coremltools/pull/2727",
    ),
]

HARMLESS = [
    Harmless(
        name="discounts-low",
        healthy="    return 1 / (place.float() + 2).log2()\n",
        changed="    return 1 / (place + 2).to(dtype).log2()\n",
        precisions=BF16,
        why="A list has 64 places, and a logarithm hardly changes.",
    ),
    Harmless(
        name="rates-low",
        healthy="    return clicks.float() / shows.float()\n",
        changed="    return clicks.to(dtype) / shows.to(dtype)\n",
        precisions=BF16,
        why="Both counts are rounded once, and bfloat16 holds them. A rate asks for no whole number.",
    ),
    Harmless(
        name="idf-rounded",
        healthy="    return (without / (frequency.float() + 0.5)).log()\n",
        changed="    return (without / (frequency.float() + 0.5)).log().to(dtype).float()\n",
        precisions=MIXED,
        why="The logarithm is rounded once.",
    ),
    Harmless(
        name="counts-low",
        healthy="    tf = counts.float()\n",
        changed="    tf = counts.to(dtype).float()\n",
        precisions=BF16,
        why="A term occurs up to eight times in a document.",
    ),
    Harmless(
        name="lengths-low",
        healthy="    relative = lengths.float() / 300.0\n",
        changed="    relative = (lengths.to(dtype) / 300.0).float()\n",
        precisions=("bf16-mixed", "bf16-true"),
        why="A length of 700 words is off by two, and counts as a part of the mean length.",
    ),
    Harmless(
        name="ages-rounded",
        healthy="    return (TODAY - published).float()\n",
        changed="    return (TODAY - published).to(dtype)\n",
        precisions=MIXED,
        why="Whole days are subtracted exactly, and up to 90 of them are in every format.",
    ),
    Harmless(
        name="masked-by-the-least",
        healthy="    scores = scores.float().masked_fill(~mask, -math.inf)\n",
        changed="    scores = scores.float().masked_fill(~mask, torch.finfo(dtype).min)\n",
        precisions=("16-mixed", "bf16-mixed"),
        why="The least number of either format has no part in the list either.",
    ),
    Harmless(
        name="examined-rounded",
        healthy="    return (gone - torch.log1p(-stops.float())).exp()\n",
        changed="    return (gone - torch.log1p(-stops.float())).exp().to(dtype)\n",
        precisions=("bf16-mixed", "16-mixed"),
        why="The chance is made in float32, rounded once, and divides.",
    ),
    Harmless(
        name="margins-rounded",
        healthy="    return (scores[:, :-1] - scores[:, 1:]).float()\n",
        changed="    return (scores[:, :-1] - scores[:, 1:]).to(dtype).float()\n",
        precisions=MIXED,
        why="The difference is made in float32, and rounded once.",
    ),
]
