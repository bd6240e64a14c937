"""Bugs of distillation: differences of logarithms and cosines, gradients that are stored before they are scaled, and starts of documents."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
HALF = ("16-mixed",)
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = ("integer-rounding", "decision-flip", *DRIFTS)
INFINITE = ("overflow", "nan")
ENDS = "    ends = lengths.cumsum(1)\n"
TOTAL = (
    "    total = torch.zeros(len(hidden), count, DIM)\n"
    "    total = total.scatter_add(1, document[..., None].expand_as(hidden), hidden.float())\n"
)
LOGS = "    logs, other = (student.float() / HEAT).log_softmax(-1), (teacher.float() / HEAT).log_softmax(-1)\n"
APART = "    return HEAT**2 * (other.exp() * (other - logs)).sum(-1)\n"
HINT = "    return 1 - F.cosine_similarity(student.float(), teacher.float(), -1)\n"
COUNTS = "    counts = counts.float()\n    return counts.log() - counts.sum().log()\n"
MIXING = "    return -torch.expm1(-done.float() / TEACH)\n"
KEPT = "                kept.append(slope @ wide)\n"
NORM = "        norm = way.float().square().sum(1, keepdim=True).sqrt()\n"
MEAN = "    return total / number[..., None].clamp_min(1)\n"

BUGS = [
    Planted(
        name="ends-low",
        healthy=ENDS,
        planted="    ends = lengths.cumsum(1).bfloat16().long()  # culprit\n",
        precisions=BF16,
        part="function:places",
        rules=WHOLE,
        why="bfloat16 knows every second word beyond 256, so documents begin a word too early.",
        source="https://github.com/pytorch/pytorch/issues/137774",
    ),
    Planted(
        name="logarithms-low",
        healthy=LOGS,
        planted="    logs, other = (student / HEAT).log_softmax(-1).bfloat16(), (teacher / HEAT).log_softmax(-1).bfloat16()  # culprit\n",
        more=((APART, APART.rstrip() + "  # culprit\n"),),
        precisions=BF16,
        part="function:divergence",
        rules=DRIFTS,
        why="Logarithms of seven differ by hundredths, and bfloat16 has steps of three hundredths there.",
        source="https://github.com/erfanzar/EasyDeL/pull/267",
    ),
    Planted(
        name="cosine-low",
        healthy=HINT,
        planted="    alike = F.cosine_similarity(student, teacher, -1).bfloat16()  # culprit\n    return 1 - alike.float()\n",
        precisions=BF16,
        part="function:hint",
        rules=DRIFTS,
        why="Hidden states that are nearly alike have a cosine that rounds to one.",
        source="https://github.com/huggingface/diffusers/pull/13316",
    ),
    Planted(
        name="counts-half",
        healthy=COUNTS,
        planted="    counts = counts.half()  # culprit\n    return (counts.log() - counts.sum().log()).float()  # culprit\n",
        precisions=HALF,
        part="function:log_prior",
        rules=(*INFINITE, "integer-rounding"),
        why="Frequent words occur more often than float16's largest number.",
        source="https://github.com/pytorch/pytorch/issues/137774",
    ),
    Planted(
        name="mixing-low",
        healthy=MIXING,
        planted="    return 1 - torch.exp(-done.float() / TEACH).bfloat16().float()  # culprit\n",
        precisions=BF16,
        part="function:mixing",
        rules=(*DRIFTS, "vanished-constant"),
        why="An exponential of a thousandth is one in bfloat16, and nothing is left.",
        source="https://github.com/NVlabs/Sana/pull/424",
    ),
    Planted(
        name="gradients-half",
        healthy=KEPT,
        planted="                kept.append((slope @ wide).half())  # culprit\n",
        precisions=HALF,
        part="gradient:student.place.weight",
        rules=("underflow", "gradient-underflow", *DRIFTS),
        why="A gradient that is made before the loss is scaled has a digit in float16, or none.",
        source="https://github.com/linkedin/Liger-Kernel/issues/512",
    ),
    Planted(
        name="length-half",
        healthy=NORM,
        planted="        low = way.half()\n        norm = (low * low).sum(1, keepdim=True).sqrt()  # culprit\n",
        precisions=HALF,
        part="student.project",
        rules=("underflow", *INFINITE, *DRIFTS),
        why="The square of a weight of a ten-thousandth is below float16's smallest number.",
        source="https://github.com/facebookresearch/xformers/issues/96",
    ),
]

HARMLESS = [
    Harmless(
        name="divergence-rounded",
        healthy=APART,
        changed="    return (HEAT**2 * (other.exp() * (other - logs)).sum(-1)).bfloat16().float()\n",
        precisions=BF16,
        why="What is rounded is the divergence.",
    ),
    Harmless(
        name="mean-of-rounded-words",
        healthy=TOTAL,
        changed="    total = torch.zeros(len(hidden), count, DIM)\n"
        "    total = total.scatter_add(1, document[..., None].expand_as(hidden), hidden.bfloat16().float())\n",
        precisions=BF16,
        why="Words are rounded, as the layer before has rounded them, and added in float32.",
    ),
    Harmless(
        name="mean-rounded",
        healthy=MEAN,
        changed="    return (total / number[..., None].clamp_min(1)).half().float()\n",
        precisions=HALF,
        why="A mean of the order of one.",
    ),
    Harmless(
        name="gradient-rounded-low",
        healthy=KEPT,
        changed="                kept.append((slope @ wide).bfloat16().float())\n",
        precisions=("bf16-mixed",),
        why="bfloat16 has the range of float32, and rounds a gradient as the layer before does.",
    ),
]
