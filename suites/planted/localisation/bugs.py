"""Bugs of super-resolution: a camera's offset, nanometres on a stage, running sums, counts of molecules, and chances near one."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
HALF = ("16-mixed",)
ALL = ("bf16-mixed", "16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = ("integer-rounding", "decision-flip", "absorption", *DRIFTS)
INFINITE = ("overflow", "nan")
ELECTRONS = "    return (counts - OFFSET).float() / GAIN\n"
RUN = "    run = F.pad(image.cumsum(-1), (1, 0))\n    return (run[..., WINDOW:] - run[..., :-WINDOW]) / WINDOW\n"
EDGE = "    edge = torch.erf((torch.arange(SIZE + 1) - place[:, None]) / (SPREAD * math.sqrt(2)))\n"
LIKELIHOOD = "    return torch.xlogy(counts, rate) - rate - torch.lgamma(counts + 1.0)\n"
FOUND = "    found = (pixel + 0.5 + offset.float()) * PIXEL + origin.float()\n"
SHARE = "    whole = frame // EVERY\n    share = (frame % EVERY).float() / EVERY\n"
PARABOLA = "    left, centre, right = (each / shifts[1] for each in shifts)\n"
FISHER = "    return 1 / (light.square() / rate).sum((1, 2))\n"
APART = "    apart = (places - places.float().mean(0)).float()\n    return apart.square().sum(-1).mean().sqrt()\n"
IMAGE = "    image = torch.zeros(BINS)\n    return image.index_add_(0, bins, torch.ones(len(bins)))\n"
POWER = "    power = [torch.zeros(ring.max() + 1).index_add_(0, ring, each.abs().square().flatten()) for each in (one, other)]\n"
PRESENCE = '    return F.binary_cross_entropy_with_logits(logits.float(), there, reduction="none")\n'
OFFSETS = "        return self.there(hidden)[:, 0] + 7, 0.5 * torch.tanh(self.offset(hidden))\n"

BUGS = [
    Planted(
        name="offset-low",
        healthy=ELECTRONS,
        planted="    counts = counts.to(torch.bfloat16)  # culprit\n    return (counts.float() - OFFSET) / GAIN\n",
        precisions=BF16,
        part="function:electrons",
        rules=WHOLE,
        why="The camera's offset is 1600, where bfloat16 has every eighth number, and light is some tens more.",
        source="https://github.com/huggingface/lerobot/pull/4704",
    ),
    Planted(
        name="running-sum-low",
        healthy=RUN,
        planted="    run = F.pad(image.cumsum(-1, dtype=torch.bfloat16), (1, 0))  # culprit\n"
        "    return ((run[..., WINDOW:] - run[..., :-WINDOW]) / WINDOW).float()  # culprit\n",
        precisions=BF16,
        part="function:background",
        rules=WHOLE,
        why="A sum of forty pixels is rounded to eights, and differences of it are a tenth of it.",
        source="https://github.com/scikit-image/scikit-image/pull/5372",
    ),
    Planted(
        name="edges-low",
        healthy=EDGE,
        planted="    edge = torch.erf((torch.arange(SIZE + 1) - place[:, None]) / (SPREAD * math.sqrt(2))).to(torch.bfloat16)  # culprit\n"
        "    edge = edge.float()\n",
        precisions=BF16,
        part="function:profile",
        rules=DRIFTS,
        why="Neighbouring values of a broad error function are nearly equal.",
        source="https://github.com/FBruzzesi/polars-stats/pull/37",
    ),
    Planted(
        name="likelihood-low",
        healthy=LIKELIHOOD,
        planted="    terms = torch.xlogy(counts, rate).bfloat16()  # culprit\n    return terms - rate - torch.lgamma(counts + 1.0)\n",
        precisions=BF16,
        part="function:log_likelihood",
        rules=(*WHOLE,),
        why="A count of nine hundred times its logarithm is six thousand, rounded to 32, and what is left is four.",
        source="https://github.com/scverse/scvi-tools/issues/2965",
    ),
    Planted(
        name="nanometres-low",
        healthy=FOUND,
        planted="    found = (offset + 0.5 + pixel) * PIXEL + origin  # culprit\n",
        precisions=ALL,
        part="function:misplaced",
        rules=WHOLE,
        why="An offset is low, and whole numbers that are added to it become so: tens of micrometres, of which nanometres are to be known.",
        source="https://github.com/elixir-nx/scholar/pull/354",
    ),
    Planted(
        name="frames-low",
        healthy=SHARE,
        planted="    knot = (frame / EVERY).bfloat16()  # culprit\n    whole = knot.long()\n    share = (knot - whole).float()\n",
        precisions=BF16,
        part="function:drifted",
        rules=(*WHOLE,),
        why="After sixty thousand frames the place between knots is a half or nothing.",
        source="https://github.com/NVIDIA/cudf/issues/4419",
    ),
    Planted(
        name="parabola-low",
        healthy=PARABOLA,
        planted="    left, centre, right = (torch.stack(shifts) / shifts[1]).bfloat16().float()  # culprit\n",
        precisions=BF16,
        part="function:subpixel",
        rules=DRIFTS,
        why="Correlations beside the peak are one less a thousandth.",
        source="https://github.com/opencv/opencv/issues/7124",
    ),
    Planted(
        name="information-half",
        healthy=FISHER,
        planted="    light = light.half()\n    return 1 / (light * light / rate).sum((1, 2))  # culprit\n",
        precisions=HALF,
        part="function:bounds",
        rules=("underflow", *DRIFTS),
        why="A pixel gets a thousandth of the light, whose square is below float16's smallest normal number.",
        source="https://github.com/google-deepmind/jax_privacy/pull/309",
    ),
    Planted(
        name="width-half",
        healthy=APART,
        planted="    apart = (places - places.float().mean(0)).half()\n    return (apart * apart).sum(-1).mean().sqrt().float()  # culprit\n",
        precisions=HALF,
        part="function:gyration",
        rules=INFINITE,
        why="Ten micrometres in nanometres have a square of a hundred millions.",
        source="https://github.com/NVIDIA/cuvs/issues/914",
    ),
    Planted(
        name="counts-low",
        healthy=IMAGE,
        planted="    image = torch.zeros(BINS, dtype=torch.bfloat16)  # culprit\n"
        "    return image.index_add_(0, bins, torch.ones(len(bins), dtype=image.dtype)).float()  # culprit\n",
        precisions=BF16,
        part="function:counted",
        rules=WHOLE,
        why="At 256 one more changes nothing.",
        source="https://github.com/pytorch/pytorch/issues/139242",
    ),
    Planted(
        name="power-half",
        healthy=POWER,
        planted="    sizes = [each.abs().half().flatten() for each in (one, other)]\n"
        "    power = [torch.zeros(ring.max() + 1).index_add_(0, ring, (each * each).float()) for each in sizes]  # culprit\n",
        precisions=HALF,
        part="function:rings",
        rules=INFINITE,
        why="The power of most frequencies is beyond float16, so no ring is like any other.",
        source="https://github.com/numpy/numpy/issues/8133",
    ),
    Planted(
        name="chances-low",
        healthy=PRESENCE,
        planted="    chance = torch.sigmoid(logits)  # culprit\n"
        "    return -(there * torch.log(chance + 1e-7) + (1 - there) * torch.log(1 - chance + 1e-7)).float()  # culprit\n",
        precisions=ALL,
        part="function:presence",
        rules=(*DRIFTS, "vanished-constant", "underflow", *INFINITE),
        why="A chance of 0.999 is one in a low format, and its opposite is nothing.",
        source="https://github.com/huggingface/candle/issues/2561",
    ),
]

HARMLESS = [
    Harmless(
        name="counts-half",
        healthy=IMAGE,
        changed="    image = torch.zeros(BINS, dtype=torch.float16)\n"
        "    return image.index_add_(0, bins, torch.ones(len(bins), dtype=image.dtype)).float()\n",
        precisions=("bf16-mixed", "16-mixed"),
        why="float16 holds every whole number up to 2048, and no bin has so many.",
    ),
    Harmless(
        name="offsets-rounded-again",
        healthy=OFFSETS,
        changed="        return self.there(hidden)[:, 0] + 7, 0.5 * torch.tanh(self.offset(hidden)).bfloat16()\n",
        precisions=("bf16-mixed",),
        why="They are low already.",
    ),
    Harmless(
        name="light-rounded",
        healthy="    return (edge[:, 1:] - edge[:, :-1]) / 2\n",
        changed="    return ((edge[:, 1:] - edge[:, :-1]) / 2).bfloat16().float()\n",
        precisions=BF16,
        why="Each pixel is off by a part in 512 of itself, and nothing is taken off.",
    ),
]
