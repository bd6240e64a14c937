"""Bugs of a training loop: a cosine near its end, counts of millions, averages that stand still, steps that are lost."""

from planted_bug import Harmless, Planted

MIXED = ("bf16-mixed", "16-mixed")
BF16 = ("bf16-mixed",)
LOOP = ("watch",)
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
COSTS = "    logits = logits.float()\n    whole = logits.logsumexp(-1)\n"
GATHERED = "    return gradient.float() if total is None else total + gradient.float()\n"
LENGTH = "    return gradient.float().square().sum()\n"
NOISE = "    return (small - large) / (1 - 1 / MICRO)\n"
RATE = "    return 0.5 * (1 + torch.cos(math.pi * step.float() / TOTAL))\n"
LEFT = "    return (TOTAL - step).float()\n"
COUNT = "    return seen + tokens\n"
FOLLOWED = "    return old + 0.001 * (new.float() - old)\n"
WANDER = "    return (second - first.square()).clamp_min(0).sqrt()\n"
RUNNING = "    return old + 0.02 * (new - old)\n"
SCHULZ = "    x = gradient / (gradient.norm() + 1e-7)\n"
STEPPED = "    return weight * (1 - 0.1 * by) - by * update\n"

BUGS = [
    Planted(
        name="cosine-low",
        healthy=RATE,
        planted="    return (0.5 * (1 + torch.cos(math.pi * step.float() / TOTAL).to(low))).float()  # culprit\n",
        precisions=MIXED,
        part="function:rate",
        rules=(*DRIFTS, "underflow", "vanished-constant"),
        why="Near the end the cosine is minus one in either format, and the rate is nought a hundred steps too early.",
        source="https://github.com/huggingface/diffusers/pull/3005",
        through=LOOP,
    ),
    Planted(
        name="steps-left-low",
        healthy=LEFT,
        planted="    return (TOTAL - step.to(low)).float()  # culprit\n",
        precisions=MIXED,
        part="function:remaining",
        rules=WHOLE,
        why="Of 19 900 steps bfloat16 knows every 128th and float16 every 16th.",
        source="https://github.com/ai-safety-foundation/sparse_autoencoder/pull/42",
        through=LOOP,
    ),
    Planted(
        name="tokens-not-counted",
        healthy=COUNT,
        planted="    return (seen.to(torch.bfloat16) + tokens).float()  # culprit\n",
        precisions=BF16,
        part="parameter:seen",
        rules=("absorption", "integer-rounding"),
        why="Of seven million tokens bfloat16 knows every 32 768th, so 192 more are none.",
        source="https://github.com/ai-safety-foundation/sparse_autoencoder/pull/42",
        through=LOOP,
    ),
    Planted(
        name="average-stands-still",
        healthy=FOLLOWED,
        planted="    return (old.to(low) + (0.001 * (new.float() - old)).to(low)).float()  # culprit\n",
        precisions=BF16,
        part="parameter:average.qkv.weight",
        rules=("absorption", "lost-update", *DRIFTS),
        why="A thousandth of a small difference is less than half a step of bfloat16.",
        source="https://github.com/d8ahazard/sd_dreambooth_extension/pull/1415",
        through=LOOP,
    ),
    Planted(
        name="spread-low",
        healthy=WANDER,
        planted="    return (second.to(low) - first.to(low).square()).float().clamp_min(0).sqrt()  # culprit\n",
        precisions=BF16,
        part="parameter:spread",
        rules=DRIFTS,
        why="Squares of sixteen are known to a 16th, and the variance is a fiftieth.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
        through=LOOP,
    ),
    Planted(
        name="loss-stands-still",
        healthy=RUNNING,
        planted="    return (old.to(torch.bfloat16) + 0.02 * (new.to(torch.bfloat16) - old.to(torch.bfloat16))).float()  # culprit\n",
        precisions=BF16,
        part="parameter:loss",
        rules=("absorption", *DRIFTS),
        why="A loss of 4.1 moves by some thousandths, which is less than half a step of bfloat16.",
        source="https://github.com/facebookresearch/dinov2/pull/583",
        through=LOOP,
    ),
    Planted(
        name="steps-lost",
        healthy=STEPPED,
        planted="    low = torch.bfloat16\n    return (weight.to(low) * (1 - 0.1 * by) - by * update.to(low)).float()  # culprit\n",
        precisions=BF16,
        part="parameter:model.qkv.weight",
        rules=("lost-update", "absorption", *DRIFTS),
        why="A step of some ten thousandths is less than half of what bfloat16 moves by at weights of a tenth and more.",
        source="https://github.com/meta-pytorch/torchtune/issues/2254",
        through=LOOP,
    ),
]

HARMLESS = [
    Harmless(
        name="schulz-low",
        healthy=SCHULZ,
        changed="    x = gradient.bfloat16()\n    x = x / (x.norm() + 1e-7)\n",
        precisions=BF16,
        why="Muon is run so: the iteration draws singular values towards one, and an error with them.",
    ),
    Harmless(
        name="sum-of-four-low",
        healthy=GATHERED,
        changed="    return gradient.float() if total is None else (total + gradient.float()).to(low).float()\n",
        precisions=BF16,
        why="Three additions are rounded once each, as autocast rounds each gradient.",
    ),
    Harmless(
        name="length-of-rounded",
        healthy=LENGTH,
        changed="    return gradient.to(low).float().square().sum()\n",
        precisions=BF16,
        why="A gradient is rounded once, and its square is float32.",
    ),
    Harmless(
        name="noise-rounded-late",
        healthy=NOISE,
        changed="    return ((small - large) / (1 - 1 / MICRO)).to(low).float()\n",
        precisions=BF16,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="rate-by-a-sine",
        healthy=RATE,
        changed="    return torch.sin(0.5 * math.pi * remaining(step, low) / TOTAL).square().to(low).float()\n",
        precisions=BF16,
        why="The sine of what is left has all its digits, and the rate is rounded once.",
    ),
    Harmless(
        name="steps-left-rounded",
        healthy=LEFT,
        changed="    return (TOTAL - step).to(low).float()\n",
        precisions=MIXED,
        why="Ninety steps that are left are whole numbers that either format holds.",
    ),
    Harmless(
        name="tokens-by-double",
        healthy=COUNT,
        changed="    return (seen.double() + tokens).float()\n",
        precisions=MIXED,
        why="More digits than need be.",
    ),
    Harmless(
        name="average-moved-by-rounded",
        healthy=FOLLOWED,
        changed="    return old + (0.001 * (new.float() - old)).to(low).float()\n",
        precisions=BF16,
        why="What it moves by is rounded once, and added in float32.",
    ),
    Harmless(
        name="update-rounded",
        healthy=STEPPED,
        changed="    return weight * (1 - 0.1 * by) - by * update.bfloat16().float()\n",
        precisions=BF16,
        why="The update is rounded once, and subtracted in float32.",
    ),
]
