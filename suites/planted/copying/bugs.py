"""Bugs of a summariser that copies: numbers of words and places as low floats and counts beyond the format."""

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding", "decision-flip")
PLACES = "    return mask.long().cumsum(-1) * mask.long()\n"
ANGLE = "    angle = place.float()[..., None] / 10_000 ** (torch.arange(DIM // 2).float() / (DIM // 2))\n"
PAIRS = "    return words[:, :-1] * EXTENDED + words[:, 1:]\n"
KNOWN = "    return torch.where(words < WORDS, words, torch.zeros_like(words))\n"
COPIED = "    return torch.zeros(len(source), EXTENDED).scatter_add(1, source, attention)\n"
MIXED_CHANCE = "    return switch * F.pad(chance, (0, UNKNOWN)) + (1 - switch) * copies\n"
SURPRISE = "    return -(chances + 1e-9).log().mean(-1)\n"
RARE = "    return (total.float() / (1 + counts.float())).log()\n"

BUGS = [
    Planted(
        name="places-low",
        healthy=PLACES,
        planted="    return (mask.type_as(like).cumsum(-1) * mask.type_as(like)).long()  # culprit\n",
        precisions=BF16,
        part="function:waves",
        rules=WHOLE,
        why="Beyond 256 bfloat16 knows every second place.",
        source="https://github.com/huggingface/transformers/pull/29285",
    ),
    Planted(
        name="waves-of-low-places",
        healthy=ANGLE,
        planted=ANGLE.replace("place.float()", "place.type_as(like)").replace("\n", "  # culprit\n"),
        precisions=BF16,
        part="function:waves",
        rules=WHOLE,
        why="The fastest wave turns by a radian a place, and beyond 256 each second place is lost.",
        source="https://github.com/wfondrie/depthcharge/pull/82",
    ),
    Planted(
        name="pairs-low",
        healthy=PAIRS,
        planted="    return words[:, :-1].type_as(like) * EXTENDED + words[:, 1:].type_as(like)  # culprit\n",
        precisions=ALL,
        part="function:repeated",
        rules=(*WHOLE, "overflow"),
        why="Pairs have numbers up to 400 000: many are one number in bfloat16, and all are infinite in float16 beyond 65 504.",
        source="https://github.com/dmlc/gluon-nlp/pull/272",
    ),
    Planted(
        name="words-low",
        healthy=KNOWN,
        planted="    return torch.where(words < WORDS, words.type_as(like), 0).long()  # culprit\n",
        precisions=BF16,
        part="embedding",
        rules=WHOLE,
        why="The number of a word beyond 256 becomes its neighbour's.",
        source="https://github.com/huggingface/transformers/pull/18165",
    ),
    Planted(
        name="texts-overflow",
        healthy=RARE,
        planted="    return (total.type_as(like) / (1 + counts.type_as(like))).log().float().clamp(-20, 20)  # culprit\n",
        precisions=("16-mixed",),
        part="function:rarity",
        rules=("overflow", "nan"),
        why="A million texts are infinitely many in float16.",
        source="https://github.com/apple/coremltools/pull/2727",
    ),
]

HARMLESS = [
    Harmless(
        name="texts-rounded",
        healthy=RARE,
        changed="    return (total.type_as(like).float() / (1 + counts.type_as(like).float())).log()\n",
        precisions=BF16,
        why="Counts enter by their logarithm, and a 512th of a count is a 512th of one there.",
    ),
    Harmless(
        name="attention-rounded",
        healthy=COPIED,
        changed=COPIED.replace("scatter_add(1, source, attention)", "scatter_add(1, source, attention.type_as(like).float())"),
        precisions=ALL,
        why="Each share is rounded once, and they are added up in float32.",
    ),
    Harmless(
        name="copies-rounded",
        healthy=COPIED,
        changed=COPIED.replace("attention)\n", "attention).type_as(like).float()\n"),
        precisions=ALL,
        why="The sum is made in float32, and rounded once.",
    ),
    Harmless(
        name="switch-rounded-late",
        healthy=MIXED_CHANCE,
        changed="    return switch * F.pad(chance, (0, UNKNOWN)) + (1 - switch).type_as(like).float() * copies\n",
        precisions=ALL,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="whole-mask-low",
        healthy="    same = pair[:, :, None] == pair[:, None]\n    return same.tril(-1).any(-1)\n",
        changed="    same = (pair[:, :, None] == pair[:, None]).type_as(like)\n    return same.tril(-1).sum(-1) > 0.5\n",
        precisions=ALL,
        why="Whether a sum of ones is above a half does not hang on its rounding.",
    ),
    Harmless(
        name="surprise-rounded",
        healthy=SURPRISE,
        changed="    return -(chances + 1e-9).log().type_as(like).float().mean(-1)\n",
        precisions=ALL,
        why="A logarithm of six is rounded once, before the mean.",
    ),
    Harmless(
        name="lengths-by-low-sums",
        healthy="    angle = place.float()[..., None]",
        changed="    half = (place.amax(-1, keepdim=True) // 2).type_as(like).float()\n    angle = (place.float() + half - half)[..., None]",
        precisions=ALL,
        why="Half a length is rounded, added, and the same number is taken off again.",
    ),
]
