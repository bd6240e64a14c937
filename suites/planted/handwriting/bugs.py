"""Bugs of pens and mixtures: places on a page subtracted low, a window that stops, densities that vanish, correlations near one."""

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
MIXED = ("bf16-mixed", "16-mixed")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation", "integer-rounding")
STEPS = "    steps = (points[:, 1:] - points[:, :-1]).float()\n"
ENDS = "    ends = points[:, 3:].float() - points[:, :-3].float()\n"
GONE = "    return steps.square().sum(-1).sqrt().cumsum(1)\n"
MIXED_LOSS = "    return -(F.log_softmax(logits, -1) + densities).logsumexp(-1)\n"
REST = "    rest = 1 - correlation.square()\n"

BUGS = [
    Planted(
        name="points-low",
        healthy=STEPS,
        planted="    points = points.to(compute)  # culprit\n    steps = (points[:, 1:] - points[:, :-1]).float()  # culprit\n",
        precisions=ALL,
        part="function:offsets",
        rules=DRIFTS,
        why="At 14 000 hundredths of a millimetre bfloat16 knows every 64th and float16 every eighth, and a step is 35.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="slant-low",
        healthy=ENDS,
        planted="    millimetres = (points.float() / 100).to(compute)  # culprit\n"
        "    ends = 100 * (millimetres[:, 3:] - millimetres[:, :-3])  # culprit\n",
        precisions=BF16,
        part="function:slant",
        rules=DRIFTS,
        why="At 140 millimetres bfloat16 knows every one, and three steps are half of one.",
        source="https://github.com/princeton-vl/RAFT/issues/54",
    ),
    Planted(
        name="window-stops",
        healthy="            places = places + moves / 25\n",
        planted="            places = (places + moves / 25).to(compute)  # culprit\n",
        precisions=BF16,
        part="function:window",
        rules=("absorption", *DRIFTS),
        why="A place of eight moves by a sixteenth at least in bfloat16, and the window asks for a 25th.",
        source="https://github.com/vllm-project/vllm/issues/13466",
    ),
    Planted(
        name="correlation-low",
        healthy=REST,
        planted="    rest = (1 - correlation.to(compute).square()).float().clamp_min(0.002)  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:log_densities",
        rules=DRIFTS,
        why="A correlation of 0.97 leaves 0.06, of which bfloat16 knows a fifteenth.",
        source="https://github.com/pytorch/pytorch/issues/52248",
    ),
    Planted(
        name="densities-vanish",
        healthy=MIXED_LOSS,
        planted="    shares = logits.softmax(-1).to(compute) * densities.to(compute).exp()  # culprit\n    return -shares.float().sum(-1).log()\n",
        precisions=("16-mixed",),
        part="function:mixture_loss",
        rules=("underflow", "overflow", *DRIFTS),
        why="Between words the pen jumps, and the density there is below the smallest float16.",
        source="https://github.com/hardmaru/WorldModelsExperiments/issues/21",
    ),
]

HARMLESS = [
    Harmless(
        name="steps-rounded",
        healthy=STEPS,
        changed="    steps = (points[:, 1:] - points[:, :-1]).to(compute).float()\n",
        precisions=ALL,
        why="Whole numbers are subtracted as such; few steps are beyond 256.",
    ),
    Harmless(
        name="slant-of-rounded-ends",
        healthy=ENDS,
        changed="    ends = (points[:, 3:] - points[:, :-3]).to(compute).float()\n",
        precisions=ALL,
        why="The ends are subtracted as whole numbers, and rounded once.",
    ),
    Harmless(
        name="bells-rounded",
        healthy='    return torch.einsum("bkl,bla->ba", bells.float(), letters)\n',
        changed='    return torch.einsum("bkl,bla->ba", bells.to(compute).float(), letters)\n',
        precisions=ALL,
        why="Each bell is rounded once, and bells are positive.",
    ),
    Harmless(
        name="spreads-rounded",
        healthy="    z = (steps[:, :, None] - means) / spreads\n",
        changed="    z = (steps[:, :, None] - means) / spreads.to(compute)\n",
        precisions=MIXED,
        why="A deviation is divided by a spread that was rounded once, and squared.",
    ),
    Harmless(
        name="way-in-pieces",
        healthy=GONE,
        changed="    way = steps.square().sum(-1).sqrt().to(compute).float()\n    return way.cumsum(1)\n",
        precisions=ALL,
        why="Each step is rounded once, and the sum is float32's.",
    ),
    Harmless(
        name="shares-rounded",
        healthy=MIXED_LOSS,
        changed="    return -(F.log_softmax(logits, -1).to(compute).float() + densities).logsumexp(-1)\n",
        precisions=("16-mixed",),
        why="Logarithms of shares are of the size of one, and added to densities of the same.",
    ),
]
