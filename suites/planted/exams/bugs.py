"""Bugs of knowledge tracing: ratings that small steps do not move, seconds since 1970, chances that vanish."""

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
MOVED = "        rating = rating + K * (right[:, turn].float() - torch.sigmoid(gap * (math.log(10) / 400)))\n"
SURPRISE = "    sign = 2 * right.float() - 1\n    return -F.logsigmoid(sign * gap * (math.log(10) / 400))\n"
PAUSE = "    gap = F.pad(seconds[:, 1:] - seconds[:, :-1], (1, 0), value=1)\n    return torch.log1p(gap.float())\n"
KEPT = "    return torch.exp2(-gap.expm1() / 86_400)\n"
ONCE = "    once = F.one_hot(skill, SKILLS)\n    return (once.cumsum(1) * once).sum(-1)\n"

BUGS = [
    Planted(
        name="ratings-stand-still",
        healthy=MOVED,
        planted="        moved = right[:, turn].float() - torch.sigmoid(gap * (math.log(10) / 400))\n"
        "        rating = (rating + K * moved).to(dtype)  # culprit\n",
        more=(
            ("        ratings.append(rating)\n", "        ratings.append(rating.float())\n"),
            ("        gap = rating - ", "        gap = rating.float() - "),
        ),
        precisions=BF16,
        part="function:rated.1",
        rules=(*DRIFTS, "absorption"),
        why="Steps of up to six vanish beside 1500, of which bfloat16 knows every eighth.",
        source="https://github.com/pytorch/audio/issues/3280",
    ),
    Planted(
        name="seconds-low",
        healthy=PAUSE,
        planted="    seconds = seconds.to(dtype)  # culprit\n"
        "    gap = F.pad(seconds[:, 1:] - seconds[:, :-1], (1, 0), value=1)\n    return torch.log1p(gap.float())\n",
        precisions=BF16,
        part="function:pause",
        rules=(*WHOLE, "underflow"),
        why="Of a billion seconds bfloat16 knows every eight millionth.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="chances-vanish",
        healthy=SURPRISE,
        planted="    other = torch.where(right, gap, -gap).to(dtype)\n    return -(1 / (1 + 10 ** (-other / 400))).log().float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:surprise",
        rules=("overflow", "nan", "underflow"),
        why="Ten to the power of seven is infinite in float16, and so is the surprise.",
        source="https://github.com/huggingface/transformers/issues/17937",
    ),
]

HARMLESS = [
    Harmless(
        name="ratings-rounded-for-the-network",
        healthy="            facts = torch.stack([(rating - 1500) / 400,",
        changed="            facts = torch.stack([((rating - 1500) / 400).to(dtype).float(),",
        precisions=ALL,
        why="The state does not see the rounding, and what goes into a layer is rounded in any case.",
    ),
    Harmless(
        name="pause-rounded",
        healthy="    return torch.log1p(gap.float())\n",
        changed="    return torch.log1p(gap.to(dtype).float())\n",
        precisions=BF16,
        why="Whole seconds enter by their logarithm, and a 512th of them is a 512th of one there.",
    ),
    Harmless(
        name="counts-low",
        healthy=ONCE,
        changed="    once = F.one_hot(skill, SKILLS)\n    return (once.cumsum(1) * once).sum(-1).to(dtype)\n",
        precisions=ALL,
        why="No skill is tried more than 256 times.",
    ),
    Harmless(
        name="memory-rounded",
        healthy=KEPT,
        changed="    return torch.exp2(-gap.expm1() / 86_400).to(dtype).float()\n",
        precisions=ALL,
        why="It is rounded once.",
    ),
    Harmless(
        name="surprise-rounded",
        healthy="            hard = surprise(gap, right, dtype)\n",
        changed="            hard = surprise(gap, right, dtype).to(dtype).float()\n",
        precisions=ALL,
        why="A logarithm is rounded once.",
    ),
]
