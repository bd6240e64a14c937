"""Bugs of thinking longer: chances to stop that are rare, a threshold near one, states that hardly move, and logits with an offset."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
HALF = ("16-mixed",)
MIXED = ("bf16-mixed", "16-mixed")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = ("integer-rounding", "decision-flip", "absorption", *DRIFTS)
INFINITE = ("overflow", "nan", "underflow", *DRIFTS)
ANGLE = "    angle = position[..., None].float() * speeds\n"
LAST = "    last = torch.where(seen == SPACE, place, place[:, :1]).cummax(1).values\n    return (place - last).float()\n"
KEPT = "    kept = F.logsigmoid(-logits)\n"
LOGS = "    return torch.arange(turns).float() * math.log1p(-rate)\n"
APART = "    return (chances * (chances.clamp_min(1e-20).log() - prior[:, None, None])).sum(0)\n"
ENOUGH = "    undecided = decided < enough\n"
MOVED = "    moved = (after - before).square().sum(-1)\n"
REACH = "    middle = (weights * place).sum(-1, keepdim=True)\n    return (weights * (place - middle).square()).sum(-1)\n"
DRAWN = "    drawn = (ticks.float() + 0.5) / TICKS\n"
BITS = "    logs = F.log_softmax(logits, -1)\n"
BYTES = "    return bits.sum(1) * 100 / sizes.sum(1).float()\n"
BEST = "    best = logits.topk(2, -1).values\n"
BETTER = "    return (first - last) / first\n"
HEAD = "            return F.linear(self.norm(state).float(), self.head.weight.float(), self.head.bias.float()) + OFFSET\n"

BUGS = [
    Planted(
        name="places-low",
        healthy=ANGLE,
        planted="    angle = (position[..., None].bfloat16() * speeds.bfloat16()).float()  # culprit\n",
        precisions=BF16,
        part="function:waves",
        rules=WHOLE,
        why="bfloat16 knows every fourth place beyond 512, and an angle of eight hundred to four radians.",
        source="https://github.com/nkalyanv99/UNI-D2/pull/6",
    ),
    Planted(
        name="spaces-low",
        healthy=LAST,
        planted="    place = place.bfloat16()  # culprit\n    last = torch.where(seen == SPACE, place, place[:, :1]).cummax(1).values\n"
        "    return (place - last).float()\n",
        precisions=BF16,
        part="function:since_space",
        rules=WHOLE,
        why="Words are seven bytes long, and bfloat16 knows every fourth byte.",
        source="https://github.com/nkalyanv99/UNI-D2/pull/6",
    ),
    Planted(
        name="kept-low",
        healthy=KEPT,
        planted="    kept = (1 - torch.sigmoid(logits).bfloat16()).log().float()  # culprit\n",
        precisions=BF16,
        part="function:going_on",
        rules=DRIFTS,
        why="One less a chance of a 400th is rounded to a 256th.",
        source="https://github.com/ml-explore/mlx/pull/1280",
    ),
    Planted(
        name="rate-low",
        healthy=LOGS,
        planted="    kept = torch.tensor(1 - rate, dtype=torch.bfloat16)  # culprit\n    return torch.arange(turns).float() * kept.float().log()\n",
        precisions=BF16,
        part="function:survived",
        rules=(*DRIFTS, "vanished-constant"),
        why="0.9975 is 0.996 in bfloat16.",
        source="https://github.com/SlopDotCash/asi/pull/388",
    ),
    Planted(
        name="logarithms-half",
        healthy=APART,
        planted="    logs = chances.clamp_min(1e-20).log().half()  # culprit\n    return (chances * (logs.float() - prior[:, None, None])).sum(0)\n",
        precisions=HALF,
        part="function:divergence",
        rules=DRIFTS,
        why="A logarithm of six is known to a 256th, and the prior's is nearly the same.",
        source="https://github.com/scverse/scvi-tools/issues/2965",
    ),
    Planted(
        name="enough-low",
        healthy=ENOUGH,
        planted="    undecided = decided.bfloat16() < enough  # culprit\n",
        precisions=BF16,
        part="function:turns_taken",
        rules=WHOLE,
        why="A chance of 0.9985 is one in bfloat16, so it is decided too early.",
        source="https://github.com/pytorch/pytorch/issues/70179",
    ),
    Planted(
        name="moved-by-products-low",
        healthy=MOVED,
        planted="    first, second = before.square().sum(-1).bfloat16(), after.square().sum(-1).bfloat16()  # culprit\n"
        "    moved = (first + second - 2 * (before * after).sum(-1)).float().abs()  # culprit\n",
        precisions=BF16,
        part="function:settled",
        rules=DRIFTS,
        why="A state moves by a hundredth of its length, whose square is lost beside that of the length.",
        source="https://github.com/elixir-nx/scholar/pull/354",
    ),
    Planted(
        name="reach-by-squares-low",
        healthy=REACH,
        planted="    middle = (weights * place).sum(-1).bfloat16()  # culprit\n"
        "    return (weights * place.square()).sum(-1) - middle.float().square()  # culprit\n",
        precisions=BF16,
        part="function:reach",
        rules=DRIFTS,
        why="The mean place is five hundred, whose square is known to a thousand, and the variance is a hundred.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
    Planted(
        name="drawn-half",
        healthy=DRAWN,
        planted="    drawn = ((ticks.float() + 0.5) / TICKS).half().clamp_max(0.9999).float()  # culprit\n",
        precisions=HALF,
        part="function:gumbel",
        rules=INFINITE,
        why="Draws near one are rounded to a 2048th, and the noise of seven to ten is the logarithm of what is left.",
        source="https://github.com/ml-explore/mlx/pull/1280",
    ),
    Planted(
        name="bits-of-half-chances",
        healthy=BITS,
        planted="    logs = (logits * 3).half().exp()  # culprit\n    logs = (logs / logs.sum(-1, keepdim=True)).log().float() / 3\n",
        precisions=HALF,
        part="function:surprise",
        rules=INFINITE,
        why="An exponential of seventy is beyond float16.",
        source="https://github.com/huggingface/trl/issues/7221",
    ),
    Planted(
        name="bytes-overflow",
        healthy=BYTES,
        planted="    return bits.sum(1) * 100 / sizes.sum(1).half()  # culprit\n",
        precisions=HALF,
        part="function:per_byte",
        rules=INFINITE,
        why="Forty words of two thousand bytes are more than float16 holds, and no bits are left for each.",
        source="https://github.com/numpy/numpy/issues/8133",
    ),
    Planted(
        name="margin-low",
        healthy=BEST,
        planted="    best = logits.bfloat16().topk(2, -1).values  # culprit\n",
        precisions=BF16,
        part="function:margin",
        rules=WHOLE,
        why="Logits of 25 are rounded to an eighth, and the best two differ by as much.",
        source="https://github.com/pytorch/pytorch/issues/70179",
    ),
    Planted(
        name="losses-low",
        healthy=BETTER,
        planted="    first, last = first.bfloat16(), last.bfloat16()  # culprit\n    return ((first - last) / first).float()\n",
        precisions=BF16,
        part="function:improved",
        rules=DRIFTS,
        why="A loss of six bits is known to a 32nd, and a turn makes it less by a hundredth.",
        source="https://github.com/OpenRLHF/OpenRLHF/pull/634",
    ),
    Planted(
        name="head-under-autocast",
        healthy=HEAD,
        planted="            pass\n        return (self.head(self.norm(state)) + OFFSET).float()  # culprit\n",
        precisions=MIXED,
        part="function:margin",
        rules=DRIFTS,
        why="Logits have an offset of 24, and autocast rounds them with it.",
        source="https://github.com/OpenRLHF/OpenRLHF/pull/634",
    ),
]

HARMLESS = [
    Harmless(
        name="far-rounded",
        healthy="    return (place - last).float()\n",
        changed="    return (place - last).half().float()\n",
        precisions=MIXED,
        why="A word has seven bytes.",
    ),
    Harmless(
        name="moved-rounded",
        healthy="    return moved / before.square().sum(-1)\n",
        changed="    return (moved / before.square().sum(-1)).bfloat16().float()\n",
        precisions=BF16,
        why="The ratio is rounded once.",
    ),
    Harmless(
        name="chances-half",
        healthy="    return (before + stop).exp()\n",
        changed="    return (before + stop).exp().half().float()\n",
        precisions=HALF,
        why="A chance of a few hundredths or thousandths has eleven bits in float16, as the logits have.",
    ),
    Harmless(
        name="margin-rounded",
        healthy="    return best[..., 0] - best[..., 1]\n",
        changed="    return (best[..., 0] - best[..., 1]).bfloat16().float()\n",
        precisions=BF16,
        why="It is rounded after the difference.",
    ),
]
