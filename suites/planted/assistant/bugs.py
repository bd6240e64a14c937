"""Bugs of a served chat model: positions beyond 256, windows, chances that vanish, norms that overflow, and scores of a long answer."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
HALF = ("16-mixed",)
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = ("integer-rounding", "decision-flip", *DRIFTS)
INFINITE = ("overflow", "nan")
ANGLES = "    angles = positions.float()[..., None] * inverse_frequencies(config)\n"
CHOSEN = "    return logits.float().log_softmax(-1).gather(-1, word[:, None])[:, 0]\n"
MASKED = "        weights = scores.float().masked_fill(~seen, -torch.inf).softmax(-1).to(value.dtype)\n"
APART = "    apart = queries[:, :, None] - keys[:, None, :]\n"
COUNTS = (
    "    counts = torch.zeros(history.shape[0], vocab_size, dtype=torch.long)\n"
    "    return counts.scatter_add_(1, history, torch.ones_like(history))\n"
)
ENTROPY = "    logs = (logits.float() / temperature).log_softmax(-1)\n    return -(logs.exp() * logs).sum(-1)\n"
SUM = "    for each in steps:\n        score = score + each\n"
NORM = (
    "        wide = x.float()\n        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)\n"
    "        return self.weight * wide.to(x.dtype)\n"
)
BEST = "    return score.max(-1, keepdim=True).values - score\n"
PENALISED = "    return logits.float() - penalty * counts\n"
TABLE = "    return torch.stack((angles.cos(), angles.sin()))\n"

BUGS = [
    Planted(
        name="positions-low",
        healthy=ANGLES,
        planted="    angles = positions.bfloat16()[..., None] * inverse_frequencies(config)  # culprit\n",
        precisions=BF16,
        part="function:rotary_table",
        rules=WHOLE,
        why="bfloat16 knows every fourth position beyond 512.",
        source="https://github.com/nkalyanv99/UNI-D2/pull/6",
    ),
    Planted(
        name="frequencies-low",
        healthy=ANGLES,
        planted="    inverse = inverse_frequencies(config).bfloat16()  # culprit\n"
        "    angles = positions.float()[..., None] * inverse\n",
        precisions=BF16,
        part="function:rotary_table",
        rules=DRIFTS,
        why="A frequency's rounding is multiplied by the position.",
        source="https://github.com/Modalities/modalities/pull/462",
    ),
    Planted(
        name="window-low",
        healthy=APART,
        planted="    apart = queries[:, :, None].bfloat16() - keys[:, None, :].bfloat16()  # culprit\n",
        precisions=BF16,
        part="function:visible",
        rules=WHOLE,
        why="Positions of nine hundred are known to four, and the window ends at 24.",
        source="https://github.com/pytorch/pytorch/issues/114544",
    ),
    Planted(
        name="entropy-nan",
        healthy=ENTROPY,
        planted="    chance = (logits.float() / temperature).softmax(-1).half()  # culprit\n"
        "    return -(chance * chance.log()).sum(-1)  # culprit\n",
        precisions=HALF,
        part="function:entropy",
        rules=("underflow", *INFINITE),
        why="Chances below 6e-8 are zero in float16, and nought times the logarithm of nought is no number.",
        source="https://github.com/huggingface/trl/issues/7221",
    ),
    Planted(
        name="scores-low",
        healthy=SUM,
        planted="    score = score.bfloat16()  # culprit\n    for each in steps:\n        score = (score + each).bfloat16()  # culprit\n",
        more=((BEST, BEST.rstrip() + "  # culprit\n"),),
        precisions=BF16,
        part="function:margins",
        rules=("absorption", *DRIFTS),
        why="A long answer's score is hundreds, and answers differ by less than bfloat16's step there.",
        source="https://github.com/NVIDIA/FasterTransformer/issues/84",
    ),
    Planted(
        name="norm-half",
        healthy=NORM,
        planted="        low = x.half()\n        low = low * torch.rsqrt((low * low).mean(-1, keepdim=True) + self.eps)  # culprit\n"
        "        return self.weight * low.to(x.dtype)\n",
        precisions=HALF,
        part="norm",
        rules=(*INFINITE, "underflow"),
        why="The square of a massive activation is more than float16's largest number.",
        source="https://github.com/pytorch/pytorch/pull/133085",
    ),
    Planted(
        name="chances-vanish",
        healthy=CHOSEN,
        planted="    return logits.float().softmax(-1).gather(-1, word[:, None])[:, 0].half().log().float()  # culprit\n",
        precisions=HALF,
        part="function:chosen",
        rules=("underflow", *INFINITE),
        why="A word's chance of 1e-9 is zero in float16, and its logarithm infinite.",
        source="https://github.com/NVIDIA/apex/issues/379",
    ),
]

HARMLESS = [
    Harmless(
        name="table-rounded",
        healthy=TABLE,
        changed="    return torch.stack((angles.cos(), angles.sin())).bfloat16().float()\n",
        precisions=BF16,
        why="Cosines are rounded, not angles; Llama's code does so.",
    ),
    Harmless(
        name="margins-rounded",
        healthy=BEST,
        changed="    return (score.max(-1, keepdim=True).values - score).bfloat16().float()\n",
        precisions=BF16,
        why="The difference is taken before it is rounded.",
    ),
    Harmless(
        name="counts-in-half",
        healthy=COUNTS,
        changed="    counts = torch.zeros(history.shape[0], vocab_size, dtype=torch.half)\n"
        "    return counts.scatter_add_(1, history, torch.ones_like(history, dtype=torch.half)).long()\n",
        precisions=HALF,
        why="float16 counts to 2048, and no word occurs as often.",
    ),
    Harmless(
        name="penalty-of-rounded-counts",
        healthy=PENALISED,
        changed="    return logits.float() - penalty * counts.bfloat16().float()\n",
        precisions=BF16,
        why="A count of several hundred is off by a part of 256, and the penalty of it with it.",
    ),
    Harmless(
        name="mask-infinite-in-half",
        healthy=MASKED,
        changed="        weights = (scores + torch.where(seen, 0.0, -1e9).to(scores.dtype)).float().softmax(-1).to(value.dtype)\n",
        precisions=HALF,
        why="A billion is infinite in float16, and so it should be: each token sees itself.",
    ),
]
