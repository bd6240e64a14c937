"""Bugs of a loop of workers: gradients without the loss scale, columns that are nearly parallel, counts, and rates near the end."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed",)
HALF = ("16-mixed",)
MIXED = ("bf16-mixed", "16-mixed")
LOOP = ("watch",)
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = ("integer-rounding", "decision-flip", "absorption", *DRIFTS)
INFINITE = ("overflow", "nan", "underflow", *DRIFTS)
DRAWN = "    return table[start + torch.arange(many)]\n"
STANDARD = "    return (rows - centre).float() / 100\n"
AVERAGED = "    return sum(shares) / len(shares)\n"
COLUMN = "            column = column - (column @ each) * each\n"
KEPT = "    return matrix - sent\n"
NOISE = (
    "    apart = sum((share - whole).square().sum() for each in shares for share, whole in zip(each, merged, strict=True))\n"
    "    return apart / len(shares)\n"
)
LENGTH = "    return torch.stack([each.square().sum() for each in gradients]).sum().sqrt()\n"
LEFT = "    left = 1 - seen / TOTAL\n"
SHRUNK = "    return -torch.expm1(torch.log1p(-learning * DECAY))\n"
SMOOTH = "    return before + 0.005 * (cost - before)\n"
GAINED = "    return (best - cost) / best\n"
SPEED = "    return words / ((clock[1] - clock[0]).float() / 1000)\n"
DOUBTS = "        self.doubts = nn.Parameter(torch.tensor([-0.9, -1.3]))\n"
SEEN = '        trainer.seen = trainer.seen + inputs["words"].sum()\n'
STEP = "    scaler.step(optimizer)\n"

BUGS = [
    Planted(
        name="rows-half",
        healthy=DRAWN,
        planted="    place = start.half() + torch.arange(many)  # culprit\n    return table[place.long()]\n",
        precisions=HALF,
        part="function:drawn",
        rules=WHOLE,
        why="Beyond 32 768 float16 knows every 32nd row, so all twelve are the same one or two.",
        source="https://github.com/NVIDIA/cccl/issues/10976",
        through=LOOP,
    ),
    Planted(
        name="readings-low",
        healthy=STANDARD,
        planted="    rows, centre = rows.bfloat16(), centre.bfloat16()  # culprit\n    return (rows - centre).float() / 100\n",
        precisions=BF16,
        part="function:standard",
        rules=WHOLE,
        why="Readings of five thousand are rounded to 32, and differ from their centre by a hundred.",
        source="https://github.com/lgsvl/simulator/issues/463",
        through=LOOP,
    ),
    Planted(
        name="averaged-half",
        healthy=AVERAGED,
        planted="    return (sum(each.half() for each in shares) / len(shares)).float()  # culprit\n",
        precisions=HALF,
        part="function:averaged",
        rules=INFINITE,
        why="Without the loss scale most gradients are below 1e-5, of which float16 keeps few bits or none.",
        source="https://github.com/linkedin/Liger-Kernel/issues/512",
        through=LOOP,
    ),
    Planted(
        name="upright-low",
        healthy=COLUMN,
        planted="            column = column.bfloat16()  # culprit\n"
        "            column = (column - (column @ each.bfloat16()) * each.bfloat16()).float()  # culprit\n",
        precisions=BF16,
        part="function:upright",
        rules=DRIFTS,
        why="Columns of a sketch are nearly parallel, so what is left of the second is what rounding leaves.",
        source="https://github.com/VincentStimper/normalizing-flows/pull/52",
        through=LOOP,
    ),
    Planted(
        name="kept-back-half",
        healthy=KEPT,
        planted="    return (matrix.half() - sent.half()).float()  # culprit\n",
        precisions=HALF,
        part="function:kept_back",
        rules=INFINITE,
        why="What is kept back of an unscaled gradient is a ten-millionth, which float16 has few bits of, or none.",
        source="https://github.com/OpenRLHF/OpenRLHF/pull/634",
        through=LOOP,
    ),
    Planted(
        name="noise-by-lengths-low",
        healthy=NOISE,
        planted="    one = sum(share.square().sum() for each in shares for share in each) / len(shares)\n"
        "    both = sum(whole.square().sum() for whole in merged)\n    return (one.bfloat16() - both.bfloat16()).float()  # culprit\n",
        precisions=BF16,
        part="function:noise",
        rules=DRIFTS,
        why="Workers agree on most of a gradient, so both lengths are nearly the same.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
        through=LOOP,
    ),
    Planted(
        name="length-half",
        healthy=LENGTH,
        planted="    return torch.stack([each.half().square().sum() for each in gradients]).sum().sqrt().float()  # culprit\n",
        precisions=HALF,
        part="function:length",
        rules=INFINITE,
        why="The square of a gradient of a ten-thousandth is below float16's smallest number.",
        source="https://github.com/google-deepmind/jax_privacy/pull/309",
        through=LOOP,
    ),
    Planted(
        name="progress-low",
        healthy=LEFT,
        planted="    left = 1 - (seen / TOTAL).bfloat16().float()  # culprit\n",
        precisions=BF16,
        part="function:rate",
        rules=DRIFTS,
        why="A tenth is left, and 0.9 is known to a 256th.",
        source="https://github.com/huggingface/diffusers/pull/3005",
        through=LOOP,
    ),
    Planted(
        name="factor-low",
        healthy=SHRUNK,
        planted="    factor = torch.as_tensor(1 - learning * DECAY).bfloat16()  # culprit\n    return 1 - factor.float()\n",
        precisions=BF16,
        part="function:shrunk",
        rules=(*DRIFTS, "vanished-constant", "lost-update", "absorption"),
        why="One less some hundred-thousandths is one, so no weight decays.",
        source="https://github.com/huggingface/diffusers/pull/813",
        through=LOOP,
    ),
    Planted(
        name="running-loss-stands-still",
        healthy=SMOOTH,
        planted="    before = before.bfloat16()  # culprit\n    return before + (0.005 * (cost - before)).bfloat16()  # culprit\n",
        precisions=BF16,
        part="function:smooth",
        rules=("absorption", "lost-update", *DRIFTS),
        why="A two-hundredth of a difference is less than half of bfloat16's last digit.",
        source="https://github.com/d8ahazard/sd_dreambooth_extension/pull/1415",
        through=LOOP,
    ),
    Planted(
        name="losses-low",
        healthy=GAINED,
        planted="    cost, best = cost.bfloat16(), best.bfloat16()  # culprit\n    return ((best - cost) / best).float()\n",
        precisions=BF16,
        part="function:gained",
        rules=DRIFTS,
        why="A loss is better by a hundredth, and known to a 256th.",
        source="https://github.com/OpenRLHF/OpenRLHF/pull/634",
        through=LOOP,
    ),
    Planted(
        name="clock-low",
        healthy=SPEED,
        planted="    seconds = (clock / 1000).bfloat16()  # culprit\n    return words / (seconds[1] - seconds[0]).float().clamp_min(1e-3)\n",
        precisions=BF16,
        part="function:speed",
        rules=WHOLE,
        why="After two hours a second is known to 32.",
        source="https://github.com/huggingface/lerobot/issues/3580",
        through=LOOP,
    ),
    Planted(
        name="words-not-counted",
        healthy=SEEN,
        planted='        trainer.seen = trainer.seen.bfloat16() + inputs["words"].sum()  # culprit\n        trainer.seen = trainer.seen.float()\n',
        precisions=BF16,
        part="function:rate",
        rules=WHOLE,
        why="Of four hundred thousand words bfloat16 knows every 2048th, and a step has five hundred.",
        source="https://github.com/ai-safety-foundation/sparse_autoencoder/pull/42",
        through=LOOP,
    ),
    Planted(
        name="doubts-stand-still",
        healthy=DOUBTS,
        planted="        self.doubts = nn.Parameter(torch.tensor([-0.9, -1.3], dtype=torch.bfloat16))  # culprit\n",
        more=((STEP, STEP.rstrip() + "  # culprit\n"),),
        precisions=BF16,
        part="parameter:doubts",
        rules=("lost-update", "absorption"),
        why="A step of a ten-thousandth is less than half of bfloat16's last digit at one.",
        source="https://github.com/d8ahazard/sd_dreambooth_extension/pull/1417",
        through=LOOP,
    ),
]

HARMLESS = [
    Harmless(
        name="readings-half-of-the-difference",
        healthy=STANDARD,
        changed="    return (rows - centre).half().float() / 100\n",
        precisions=MIXED,
        why="Differences of some hundreds are exact in float16.",
    ),
    Harmless(
        name="noise-rounded",
        healthy="    return apart / len(shares)\n",
        changed="    return (apart / len(shares)).bfloat16().float()\n",
        precisions=BF16,
        why="A variance is rounded once.",
    ),
    Harmless(
        name="sent-low",
        healthy="    return left @ right.T, right\n",
        changed="    return (left.bfloat16() @ right.bfloat16().T).float(), right\n",
        precisions=BF16,
        why="What is sent is rounded, and what rounding takes of it is kept back for the next step.",
    ),
]
