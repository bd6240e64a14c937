"""Bugs of a memory that learns: places in a book, what is kept from word to word, steps that it does not hold, and an inverse kept up to date."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
HALF = ("16-mixed",)
MIXED = ("bf16-mixed", "16-mixed")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = ("integer-rounding", "decision-flip", "absorption", *DRIFTS)
INFINITE = ("overflow", "nan", "underflow", *DRIFTS)
SPEED = "    speed = sizes.base ** (-torch.arange(half).float() / half)\n"
WRITTEN = "    written = now[:, words[0]]\n"
KEPT = "    return F.logsigmoid(logits.float()).cumsum(-1)\n"
SURPRISE = '    return torch.einsum("bcd,bde->bce", keys, memory) - values\n'
STEP = "    return memory - rate * moment\n"
INVERSE = '        past = past - seen[:, :, None] * seen[:, None, :] / (1 + (seen * key).sum(-1))[:, None, None]\n'
LENGTH = "    return torch.linalg.vector_norm(moment.flatten(1), dim=1)\n"
HORIZON = "    return 1 / torch.sigmoid(-logits.float()).mean(-1)\n"
LEARNT = "    first, last = before.square().sum((1, 2)), after.square().sum((1, 2))\n"
TOTAL = "    total = counted.sum(-1)\n"
DOWN = "    down = place % 64\n"
UNEVEN = "    return (costs - costs.mean(1, keepdim=True)).square().mean(1)\n"

BUGS = [
    Planted(
        name="speeds-low",
        healthy=SPEED,
        planted="    speed = (sizes.base ** (-torch.arange(half).float() / half)).bfloat16()  # culprit\n",
        precisions=BF16,
        part="function:rotated",
        rules=DRIFTS,
        why="A speed is off by a 500th, and the angle of place 35 000 by many turns.",
        source="https://github.com/huggingface/transformers/issues/25681",
    ),
    Planted(
        name="ages-low",
        healthy=WRITTEN,
        planted="    written, place = now[:, words[0]].bfloat16(), place.bfloat16()  # culprit\n",
        precisions=BF16,
        part="function:age",
        rules=WHOLE,
        why="Places of thirty thousand are rounded to 128 or 256, and words are seen again after some hundreds.",
        source="https://github.com/nkalyanv99/UNI-D2/pull/6",
    ),
    Planted(
        name="kept-by-product-low",
        healthy=KEPT,
        planted="    kept = torch.sigmoid(logits.float()).bfloat16()  # culprit\n    return kept.float().log().cumsum(-1)\n",
        precisions=BF16,
        part="function:remembered",
        rules=DRIFTS,
        why="A share of 0.998 is one or 0.996 in bfloat16.",
        source="https://github.com/fla-org/flash-linear-attention/issues/181",
    ),
    Planted(
        name="surprise-by-low-product",
        healthy=SURPRISE,
        planted='    return (torch.einsum("bcd,bde->bce", keys.bfloat16(), memory.bfloat16()) - values).float()  # culprit\n',
        precisions=BF16,
        part="function:surprise",
        rules=DRIFTS,
        why="What the memory knows is nearly right, and the product is rounded before the difference.",
        source="https://github.com/OpenRLHF/OpenRLHF/pull/634",
    ),
    Planted(
        name="memory-stands-still",
        healthy=STEP,
        planted="    return (memory.bfloat16() - (rate * moment).bfloat16()).float()  # culprit\n",
        precisions=BF16,
        part="function:learnt",
        rules=("absorption", "lost-update", *DRIFTS),
        why="Steps of some ten thousandths are less than half of what bfloat16 moves by at a weight of a fifth.",
        source="https://github.com/d8ahazard/sd_dreambooth_extension/pull/1415",
    ),
    Planted(
        name="inverse-low",
        healthy=INVERSE,
        planted="        fitted = seen[:, :, None] * seen[:, None, :] / (1 + (seen * key).sum(-1))[:, None, None]\n"
        "        past = (past.bfloat16() - fitted.bfloat16()).float()  # culprit\n",
        precisions=BF16,
        part="function:leverage",
        rules=(*DRIFTS, "absorption"),
        why="Of a thousand, one is left, and it is rounded to four.",
        source="https://github.com/VincentStimper/normalizing-flows/pull/52",
    ),
    Planted(
        name="length-half",
        healthy=LENGTH,
        planted="    return moment.half().square().flatten(1).sum(1).sqrt().float()  # culprit\n",
        precisions=HALF,
        part="function:length",
        rules=INFINITE,
        why="The square of a moment of a ten-thousandth is below float16's smallest number.",
        source="https://github.com/google-deepmind/jax_privacy/pull/309",
    ),
    Planted(
        name="horizon-low",
        healthy=HORIZON,
        planted="    return 1 / (1 - torch.sigmoid(logits.float()).mean(-1).bfloat16()).float()  # culprit\n",
        precisions=BF16,
        part="function:horizon",
        rules=(*DRIFTS, "overflow", "nan"),
        why="A head keeps 0.998, and one less it is a 256th or nought.",
        source="https://github.com/ggml-org/ggml/pull/1515",
    ),
    Planted(
        name="errors-half",
        healthy=LEARNT,
        planted="    first, last = before.square().sum((1, 2)).half(), after.square().sum((1, 2)).half()  # culprit\n",
        precisions=HALF,
        part="function:learnt",
        rules=INFINITE,
        why="Squares of errors add up to a millionth, which float16 has four bits of.",
        source="https://github.com/tensorflow/recommenders/pull/441",
    ),
    Planted(
        name="words-counted-low",
        healthy=TOTAL,
        planted="    total = counted.bfloat16()[:, 0]  # culprit\n    for each in counted.unbind(-1)[1:]:\n"
        "        total = (total + each.bfloat16()).bfloat16()  # culprit\n",
        precisions=BF16,
        part="function:perplexity",
        rules=WHOLE,
        why="To sixty thousand of one word bfloat16 adds no hundred of another.",
        source="https://github.com/numpy/numpy/issues/24443",
    ),
    Planted(
        name="books-overflow",
        healthy=TOTAL,
        planted="    total = counted.sum(-1).half()  # culprit\n",
        precisions=HALF,
        part="function:perplexity",
        rules=INFINITE,
        why="The words of a book are more than float16 holds.",
        source="https://github.com/numpy/numpy/issues/8133",
    ),
    Planted(
        name="pages-half",
        healthy=DOWN,
        planted="    place = place.half()  # culprit\n    down = place - (place / 64).floor() * 64\n",
        precisions=HALF,
        part="function:on_page",
        rules=WHOLE,
        why="Beyond 32 768 float16 knows every 32nd word, and a page has 64.",
        source="https://github.com/NVIDIA/cccl/issues/10976",
    ),
    Planted(
        name="costs-by-squares-low",
        healthy=UNEVEN,
        planted="    squares, middle = costs.square().mean(1).bfloat16(), costs.mean(1)  # culprit\n"
        "    return squares.float() - middle.square()  # culprit\n",
        precisions=BF16,
        part="function:unevenness",
        rules=DRIFTS,
        why="A mean square of nineteen is known to an eighth, and the variance is less than a half.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
]

HARMLESS = [
    Harmless(
        name="ages-rounded",
        healthy="    return torch.log1p((place - written).float())\n",
        changed="    return torch.log1p((place - written).half()).float()\n",
        precisions=MIXED,
        why="Ages below 2048 are exact in float16, and so is one more; the model has the logarithm low anyway.",
    ),
    Harmless(
        name="horizon-rounded",
        healthy=HORIZON,
        changed="    return (1 / torch.sigmoid(-logits.float()).mean(-1)).bfloat16().float()\n",
        precisions=BF16,
        why="It is rounded once, after the inverse.",
    ),
    Harmless(
        name="wrong-rounded",
        healthy="            errors.append(wrong)\n",
        changed="            errors.append(wrong.bfloat16().float())\n",
        precisions=BF16,
        why="What is noted of an error is rounded once, after the difference.",
    ),
]
